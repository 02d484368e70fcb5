"""How does a row of trials become its record?"""

from __future__ import annotations

from .models import Trial
from .records import TrialRecord


def trial_record(row: Trial) -> TrialRecord:
    """The light columns only; none of them is deferred."""
    return TrialRecord(
        id=row.id,
        job_id=row.job_id,
        job_problem_id=row.job_problem_id,
        number=row.number,
        problem_key=row.problem_key,
        device_key=row.device_key,
        arch=row.arch,
        family=row.family,
        schedule=row.schedule,
        schedule_key=row.schedule_key,
        source=row.source,
        predicted_us=row.predicted_us,
        state=row.state,
        reason=row.reason,
        stage=row.stage,
        attempt=row.attempt,
        lease_owner=row.lease_owner,
        artifact_sha256=row.artifact_sha256,
        toolchain_key=row.toolchain_key,
        structure_key=row.structure_key,
        time_us=row.time_us,
        contended=row.contended,
        compile_s=row.compile_s,
        device_s=row.device_s,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
