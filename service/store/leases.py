"""Who holds a named lease (the reaper's, a job's, a device's)?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .records import LeaseRecord

REAPER = "reaper"


def job_lease(job_id: int) -> str:
    """Name of the lease under which a job is advanced."""
    raise NotImplementedError


def device_lease(device_key: str) -> str:
    """Name of the lease under which a device is owned."""
    raise NotImplementedError


def acquire(s: Session, name: str, owner: str, lease_s: float) -> LeaseRecord | None:
    """Takes it if it is free or ran out, or extends it if `owner` has it; None: another has it."""
    raise NotImplementedError


def renew(s: Session, name: str, owner: str, lease_s: float) -> bool:
    """Extends it; False: `owner` does not hold it any more (its time ran out, or another has it)."""
    raise NotImplementedError


def release(s: Session, name: str, owner: str) -> bool:
    """Frees it; False if `owner` did not hold it."""
    raise NotImplementedError


def release_all(s: Session, owner: str) -> int:
    """Frees all that an owner holds (it ended, or is known dead)."""
    raise NotImplementedError


def holder(s: Session, name: str) -> LeaseRecord | None:
    """Who holds it now; None where it is free or ran out."""
    raise NotImplementedError
