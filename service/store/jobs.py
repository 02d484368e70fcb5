"""Which jobs and job problems are there, and how do they move?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from .enums import JobProblemReason, JobProblemState, JobReason, JobState
from .records import JobProblemRecord, JobRecord, Json, NewJob, Page


def create(s: Session, new: NewJob) -> tuple[JobRecord, bool]:
    """Writes the job, its problems and its first event. (job, True), or (the open job with the same
    dedup_key, False): of equal requests at the same moment exactly one creates."""
    raise NotImplementedError


def get(s: Session, job_id: int) -> JobRecord | None:
    raise NotImplementedError


def listing(
    s: Session,
    *,
    states: Sequence[JobState] | None = None,
    token_id: int | None = None,
    after: tuple[int] | None = None,
    limit: int = 50,
) -> Page[JobRecord]:
    """Newest first; `after` is the `next` of the page before."""
    raise NotImplementedError


def advanceable(s: Session, limit: int = 100) -> list[int]:
    """Ids of the jobs that a search worker should look at (open and not paused): priority, then age."""
    raise NotImplementedError


def counts(s: Session) -> dict[JobState, int]:
    """How many jobs there are in each state (states with none are left out)."""
    raise NotImplementedError


def count_open(s: Session, token_id: int | None = None) -> int:
    """Open jobs, of one token if named."""
    raise NotImplementedError


def move(
    s: Session,
    job_id: int,
    to: JobState,
    reason: JobReason | None = None,
    message: str = "",
    data: Json | None = None,
) -> JobRecord:
    """Moves a job by the transition table and writes the event. NotFound, IllegalTransition, Conflict.
    Moving to the state it has already is a no-op (reason and message are renewed, no event)."""
    raise NotImplementedError


def set_priority(s: Session, job_id: int, priority: int) -> None:
    raise NotImplementedError


def problems(s: Session, job_id: int) -> list[JobProblemRecord]:
    """The problems of a job in their order."""
    raise NotImplementedError


def problem(s: Session, job_problem_id: int) -> JobProblemRecord | None:
    raise NotImplementedError


def move_problem(
    s: Session,
    job_problem_id: int,
    to: JobProblemState,
    reason: JobProblemReason | None = None,
    message: str = "",
    data: Json | None = None,
) -> JobProblemRecord:
    """As `move`, for one problem. SEARCHING sets started_at, an end sets finished_at."""
    raise NotImplementedError


def set_budget(
    s: Session,
    job_problem_id: int,
    *,
    trials: int | None,
    seconds: float | None,
    device_seconds: float | None,
) -> None:
    """Sets the share of a problem, as when an earlier one leaves seconds over."""
    raise NotImplementedError


def set_device(s: Session, job_problem_id: int, device_key: str, arch: str) -> None:
    """Binds a problem that waited for a device to the one that came."""
    raise NotImplementedError


def remember(s: Session, job_problem_id: int, search: Json) -> None:
    """Replaces `search` of the problem."""
    raise NotImplementedError
