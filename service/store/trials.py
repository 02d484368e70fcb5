"""Which trials are there, who may work on one, and what came of it?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from .enums import TrialReason, TrialState
from .records import (
    ClaimId,
    CompileClaim,
    CompileOutcome,
    MeasureClaim,
    MeasureOutcome,
    NewTrial,
    OutcomeCount,
    Page,
    Spent,
    TrialDetail,
    TrialRecord,
)


def propose(s: Session, job_problem_id: int, new: Sequence[NewTrial]) -> list[TrialRecord]:
    """Inserts the schedules that its job problem does not have yet, in the order given and numbered
    on from the last; returns the inserted ones."""
    raise NotImplementedError


def claim_compile(
    s: Session, owner: str, limit: int, lease_s: float, archs: Sequence[str]
) -> list[CompileClaim]:
    """Takes up to `limit` trials to compile, of running jobs: by priority, job, number."""
    raise NotImplementedError


def finish_compile(s: Session, claim_id: ClaimId, outcome: CompileOutcome) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed."""
    raise NotImplementedError


def claim_measure(
    s: Session, owner: str, device_key: str, limit: int, lease_s: float
) -> list[MeasureClaim]:
    """Takes up to `limit` compiled trials of this device, of running jobs."""
    raise NotImplementedError


def finish_measure(s: Session, claim_id: ClaimId, outcome: MeasureOutcome) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed. A reason of
    QUARANTINE_REASONS also puts (schedule, toolchain) into quarantine, in the same transaction."""
    raise NotImplementedError


def renew(s: Session, claim_ids: Sequence[ClaimId], lease_s: float) -> list[ClaimId]:
    """Extends the leases; returns the claims that are still held: stop work on the others."""
    raise NotImplementedError


def release(s: Session, claim_ids: Sequence[ClaimId]) -> int:
    """Gives claims back unharmed (a worker that stops); returns how many were still held."""
    raise NotImplementedError


def expire(
    s: Session, *, owner: str | None = None, max_attempts: int = 3, limit: int = 100
) -> list[TrialRecord]:
    """Gives back the trials whose lease ran out (or all that `owner` holds: it is known dead). One
    that lost its worker `max_attempts` times ends as failed: worker_lost. Returns what it touched."""
    raise NotImplementedError


def cancel_open(
    s: Session,
    *,
    job_id: int | None = None,
    job_problem_id: int | None = None,
    reason: TrialReason = TrialReason.JOB_ENDED,
) -> int:
    """Cancels what has not ended; claims on them are stale from then on. Returns how many."""
    raise NotImplementedError


def fail(s: Session, trial_id: int, reason: TrialReason, evidence: dict[str, object]) -> bool:
    """Ends a trial that nobody can work on (no worker for its arch...); False if it had ended."""
    raise NotImplementedError


def get(s: Session, trial_id: int) -> TrialRecord | None:
    raise NotImplementedError


def detail(s: Session, trial_id: int) -> TrialDetail | None:
    """With plan, toolchain, log, evidence, verdicts and measurements (oldest first)."""
    raise NotImplementedError


def of_problem(
    s: Session, job_problem_id: int, states: Sequence[TrialState] | None = None
) -> list[TrialRecord]:
    """All trials of a job problem by number: what the search is fed with."""
    raise NotImplementedError


def in_flight(s: Session, job_problem_id: int) -> int:
    """How many trials of a job problem have not ended."""
    raise NotImplementedError


def best(s: Session, job_problem_id: int) -> TrialRecord | None:
    """The fastest measured, undisturbed trial with a finite positive time."""
    raise NotImplementedError


def top(s: Session, job_problem_id: int, limit: int) -> list[TrialRecord]:
    """The fastest ones, as `best`, fastest first; equal times by number."""
    raise NotImplementedError


def best_of_job(s: Session, job_id: int) -> dict[int, TrialRecord]:
    """`best` for each job problem of a job that has one, by job problem id."""
    raise NotImplementedError


def counts(
    s: Session, *, job_id: int | None = None, job_problem_id: int | None = None
) -> list[OutcomeCount]:
    """Trials by state and reason."""
    raise NotImplementedError


def spent(s: Session, job_problem_id: int) -> Spent:
    """What a job problem has used; its races' device time is counted too."""
    raise NotImplementedError


def listing(
    s: Session,
    *,
    job_id: int | None = None,
    job_problem_id: int | None = None,
    problem_key: str | None = None,
    device_key: str | None = None,
    family: str | None = None,
    states: Sequence[TrialState] | None = None,
    order: str = "newest",
    after: tuple[float, int] | tuple[int] | None = None,
    limit: int = 50,
) -> Page[TrialRecord]:
    """Trials by page. order: "newest", "oldest" (key: (id,)) or "fastest" (only those with a time; key:
    (time_us, id))."""
    raise NotImplementedError
