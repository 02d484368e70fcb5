"""How does a trial end without a time, or lose the one it has?"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from . import clock, moves, quarantines
from .bounded import json_object
from .enums import QUARANTINE_REASONS, Stage, TrialReason, TrialState
from .evidence import add_verdict
from .models import Job, Trial
from .records import Failed
from .transitions import TRIAL_OPEN

FREE: dict[str, Any] = {"lease_owner": None, "lease_expires_at": None}


def cancel_open(
    s: Session,
    *,
    job_id: int | None = None,
    job_problem_id: int | None = None,
    reason: TrialReason = TrialReason.JOB_ENDED,
) -> int:
    """Cancels what has not ended; claims on them are stale from then on. Returns how many."""
    if (job_id is None) == (job_problem_id is None):
        raise ValueError("name either the job or the job problem")
    mine = Trial.job_id == job_id if job_id is not None else Trial.job_problem_id == job_problem_id
    query = select(Trial).where(mine, Trial.state.in_(TRIAL_OPEN)).order_by(Trial.id)
    rows = s.scalars(query.with_for_update(key_share=True).execution_options(populate_existing=True)).all()
    for trial in rows:
        end(s, trial, Failed(TrialState.CANCELLED, reason))
    return len(rows)


def fail(s: Session, trial_id: int, reason: TrialReason, evidence: dict[str, object]) -> bool:
    """Ends a trial that nobody can work on (no worker for its arch...); False if it had ended."""
    trial = lock(s, (Trial.id == trial_id) & Trial.state.in_(TRIAL_OPEN))
    if trial is None:
        return False
    end(s, trial, Failed(TrialState.FAILED, reason, evidence))
    return True


def disprove(s: Session, trial_id: int, failure: Failed) -> None:
    """Takes the time from a measured trial that failed in a race, and quarantines it if it was wrong.
    For this package."""
    trial = lock(s, Trial.id == trial_id)
    if trial is None:
        return
    if trial.state is TrialState.MEASURED:
        end(s, trial, failure, time_us=None)
    elif failure.reason in QUARANTINE_REASONS:
        quarantine(s, trial, failure)


def lock(s: Session, where: Any) -> Trial | None:
    """The one trial that is so, locked against other moves. For this package."""
    query = select(Trial).where(where).with_for_update(key_share=True)
    return s.scalar(query.execution_options(populate_existing=True))


def lock_of_token(s: Session, where: Any) -> tuple[Trial, int | None] | None:
    """`lock`, and the token of its job. For this package."""
    query = select(Trial, Job.token_id, clock.column(s)).join(Job, Job.id == Trial.job_id).where(where)
    locked = query.with_for_update(of=Trial, key_share=True).execution_options(populate_existing=True)
    found = s.execute(locked).one_or_none()
    if found is None:
        return None
    clock.told(s, found[2])
    return found[0], found[1]


def end(s: Session, trial: Trial, failure: Failed, **columns: Any) -> None:
    """Moves a locked trial to its end, with `columns`; quarantines it where its reason says so. For this
    package."""
    now = clock.now(s)
    if failure.verdict is not None:
        add_verdict(s, failure.verdict, trial_id=trial.id, artifact_sha256=trial.artifact_sha256)
    if failure.compile_s is not None:
        columns["compile_s"] = failure.compile_s
    reason = TrialReason(failure.reason)
    ended = {
        "reason": reason,
        "stage": Stage.DONE,
        "finished_at": now,
        "evidence": json_object(failure.evidence),
        **FREE,
    }
    moves.transition(s, trial, TrialState(failure.state), reason, columns={**columns, **ended}, at=now)
    if failure.reason in QUARANTINE_REASONS:
        quarantine(s, trial, failure)


def quarantine(s: Session, trial: Trial, failure: Failed) -> None:
    """Never try or serve this schedule under this toolchain again. For this package."""
    if trial.toolchain_key is None:
        return
    quarantines.add(
        s,
        family=trial.family,
        arch=trial.arch,
        schedule_key=trial.schedule_key,
        toolchain_key=trial.toolchain_key,
        reason=TrialReason(failure.reason),
        device_key=trial.device_key,
        artifact_sha256=trial.artifact_sha256,
        trial_id=trial.id,
    )
