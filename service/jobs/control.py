"""How does a person cancel, pause and resume a job?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.jobs.errors import IllegalMove, NotFound
from service.jobs.submit import in_transaction
from service.store import jobs, leases, races, trials
from service.store.database import Database
from service.store.enums import JobProblemReason, JobProblemState, JobReason, JobState
from service.store.records import JobRecord
from service.store.transitions import JOB_OPEN, JOB_PROBLEM, final

PAUSABLE = (JobState.QUEUED, JobState.WAITING, JobState.RUNNING)


def cancel(where: Session | Database, job_id: int) -> JobRecord:
    """End a job now. Trials and races that have not ended are cancelled, and whoever works on one finds
    its claim stale; times measured so far stay. Cancelling twice is one cancel."""
    return in_transaction(where, lambda s: _cancel(s, job_id))


def leave(where: Session | Database, job_id: int, token_id: int | None) -> JobRecord:
    """One owner no longer wants the job. Where others want it too it goes on for them, else it is cancelled.
    Leaving twice is leaving once."""
    return in_transaction(where, lambda s: _leave(s, job_id, token_id))


def pause(where: Session | Database, job_id: int) -> JobRecord:
    """Start nothing new; what is in flight ends. The job's clock stands still. Pausing twice is one pause."""
    return in_transaction(where, lambda s: _pause(s, job_id))


def resume(where: Session | Database, job_id: int) -> JobRecord:
    """Go on with a paused job, as soon as its device is free. Others that are open stay as they are."""
    return in_transaction(where, lambda s: _resume(s, job_id))


def _cancel(s: Session, job_id: int) -> JobRecord:
    job = _job(s, job_id)
    if job.state is JobState.CANCELLED:
        return job
    if job.state not in JOB_OPEN:
        raise IllegalMove("job", str(job_id), str(job.state), "cancel", map(str, JOB_OPEN))
    close(s, job_id, "The job was cancelled.")
    leases.forget(s, leases.job_lease(job_id))
    # Last, so that whoever follows the job's events sees all of them before its end.
    return jobs.move(s, job_id, JobState.CANCELLED, JobReason.USER, "Cancelled by a person.")


def _leave(s: Session, job_id: int, token_id: int | None) -> JobRecord:
    job = _job(s, job_id)
    if job.open and jobs.leave(s, job_id, token_id):
        return _job(s, job_id)
    return _cancel(s, job_id)


def close(
    s: Session,
    job_id: int,
    message: str,
    to: JobProblemState = JobProblemState.CANCELLED,
    reason: JobProblemReason = JobProblemReason.JOB_ENDED,
) -> None:
    """End whatever of a job has not ended: races, trials, problems. The job must be locked."""
    races.cancel_open(s, job_id)
    trials.cancel_open(s, job_id=job_id)
    for row in jobs.problems(s, job_id):
        if row.state not in final(JOB_PROBLEM):
            jobs.move_problem(s, row.id, to, reason, message)


def _pause(s: Session, job_id: int) -> JobRecord:
    job = _job(s, job_id)
    if job.state is JobState.PAUSED:
        return job
    if job.state not in PAUSABLE:
        raise IllegalMove("job", str(job_id), str(job.state), "pause", map(str, PAUSABLE))
    return jobs.move(s, job_id, JobState.PAUSED, JobReason.USER, "Paused by a person.")


def _resume(s: Session, job_id: int) -> JobRecord:
    job = _job(s, job_id)
    if job.state is JobState.PAUSED:
        # `advance` moves it on: to running when its device is free, to waiting when it is gone.
        return jobs.move(s, job_id, JobState.QUEUED)
    if job.state not in JOB_OPEN:
        raise IllegalMove("job", str(job_id), str(job.state), "resume", [str(JobState.PAUSED)])
    return job


def _job(s: Session, job_id: int) -> JobRecord:
    """The job, locked: proposals take the same lock, so none slips in behind a cancel."""
    if jobs.get(s, job_id) is not None:
        jobs.lock(s, job_id)
    job = jobs.get(s, job_id)
    if job is None:
        raise NotFound("job", str(job_id))
    return job
