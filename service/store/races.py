"""Which races are there, who runs one, and how did it end?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from .enums import TrialReason
from .records import ClaimId, Failed, Json, NewEntrant, RaceClaim, RaceOutcome, RaceRecord


def create(
    s: Session, job_problem_id: int, entrants: Sequence[NewEntrant], policy: Json, seed: int
) -> RaceRecord:
    """Writes a race of the job problem's device. Entrants with a trial must have its artifact."""
    raise NotImplementedError


def claim(s: Session, owner: str, device_key: str, lease_s: float) -> RaceClaim | None:
    """Takes the next race of this device, of a running job: by priority, then age."""
    raise NotImplementedError


def finish(s: Session, claim_id: ClaimId, outcome: RaceOutcome | Failed) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed. An entrant whose result
    was wrong loses its trial's time and is quarantined, in the same transaction."""
    raise NotImplementedError


def renew(s: Session, claim_id: ClaimId, lease_s: float) -> bool:
    """Extends the lease; False: it is not held any more, stop."""
    raise NotImplementedError


def release(s: Session, claim_id: ClaimId) -> bool:
    """Gives a claim back unharmed; False: it was not held any more."""
    raise NotImplementedError


def expire(
    s: Session, *, owner: str | None = None, max_attempts: int = 3, limit: int = 100
) -> list[int]:
    """As trials.expire, for races; ids of the races it touched."""
    raise NotImplementedError


def cancel_open(s: Session, job_id: int, reason: TrialReason = TrialReason.JOB_ENDED) -> int:
    """Cancels the races of a job that have not ended; returns how many."""
    raise NotImplementedError


def get(s: Session, race_id: int) -> RaceRecord | None:
    raise NotImplementedError


def latest(s: Session, job_problem_id: int) -> RaceRecord | None:
    """The newest race of a job problem."""
    raise NotImplementedError


def of_job(s: Session, job_id: int) -> list[RaceRecord]:
    """All races of a job, oldest first."""
    raise NotImplementedError
