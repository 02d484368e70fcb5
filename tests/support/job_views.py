"""What do tests of jobs look at, and how do they post one?"""

from __future__ import annotations

from typing import Any

from support.hands import DEVICE
from support.store import failed

from service.jobs.submit import submit
from service.store import jobs, releases, trials
from service.store.database import Database
from service.store.enums import (
    TrialReason,
)
from service.store.records import (
    Entrant,
    EntrantResult,
    JobProblemRecord,
    JobRecord,
    ReleaseRecord,
    TrialRecord,
)

LAYER: dict[str, Any] = {"op": "gemm", "n": 64, "k": 64, "dtype": "f32"}
PROBLEM = {**LAYER, "m": 8}


def post(db: Database, **body: Any) -> int:
    if "sweep" not in body and "problems" not in body:
        body = {"problem": PROBLEM, **body}
    job, _ = submit(db, {"target": {"device": DEVICE}, "budget": {"trials": 8}, **body})
    return job.id


def rows_of(db: Database, job_id: int) -> list[JobProblemRecord]:
    with db.read() as s:
        return jobs.problems(s, job_id)


def trials_of(db: Database, job_id: int) -> list[TrialRecord]:
    with db.read() as s:
        return [t for row in jobs.problems(s, job_id) for t in trials.of_problem(s, row.id)]


def served(db: Database, row: JobProblemRecord) -> ReleaseRecord | None:
    with db.read() as s:
        return releases.best(s, row.problem_key, row.device_key or "", "cold-eager")


def job_of(db: Database, job_id: int) -> JobRecord:
    with db.read() as s:
        job = jobs.get(s, job_id)
    assert job is not None
    return job


def fell(entrant: Entrant, reason: TrialReason) -> EntrantResult:
    """An entrant that failed in the race."""
    return EntrantResult(entrant.name, entrant.role, entrant.trial_id, None, None, failed(reason))


