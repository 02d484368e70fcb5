"""Who holds a named lease (the reaper's, a job's, a device's)?"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from . import clock
from .models import Lease
from .records import LeaseRecord
from .sql import changed, insert_ignoring

REAPER = "reaper"


def job_lease(job_id: int) -> str:
    """Name of the lease under which a job is advanced."""
    return f"job:{job_id}"


def device_lease(device_key: str) -> str:
    """Name of the lease under which a device is owned."""
    return f"device:{device_key}"


def acquire(s: Session, name: str, owner: str, lease_s: float) -> LeaseRecord | None:
    """Takes it if it is free or ran out, or extends it if `owner` has it; None: another has it.

    `owner` names one holder: two loops of one process need two names.
    """
    now = clock.now(s)
    until = now + timedelta(seconds=lease_s)
    if insert_ignoring(s, Lease, {"name": name, "owner": owner, "token": 1, "expires_at": until}):
        return LeaseRecord(name, owner, 1, until)
    row = s.get(Lease, name, with_for_update=True, populate_existing=True)
    if row is None:  # freed in between
        return acquire(s, name, owner, lease_s)
    if row.owner == owner and row.expires_at > now:
        row.expires_at = until
    elif row.expires_at <= now:
        row.owner, row.token, row.expires_at = owner, row.token + 1, until
    else:
        return None
    s.flush()
    return LeaseRecord(row.name, row.owner, row.token, row.expires_at)


def renew(s: Session, name: str, owner: str, lease_s: float) -> bool:
    """Extends it; False: `owner` does not hold it any more (its time ran out, or another has it)."""
    now = clock.now(s)
    held = (Lease.name == name) & (Lease.owner == owner) & (Lease.expires_at > now)
    return changed(s, update(Lease).where(held).values(expires_at=now + timedelta(seconds=lease_s))) == 1


def release(s: Session, name: str, owner: str) -> bool:
    """Frees it; False if `owner` did not hold it."""
    # the row stays, run out, so that its token goes on growing
    now = clock.now(s)
    held = (Lease.name == name) & (Lease.owner == owner) & (Lease.expires_at > now)
    return changed(s, update(Lease).where(held).values(expires_at=now)) == 1


def release_all(s: Session, owner: str) -> int:
    """Frees all that an owner holds (it ended, or is known dead)."""
    now = clock.now(s)
    held = (Lease.owner == owner) & (Lease.expires_at > now)
    return changed(s, update(Lease).where(held).values(expires_at=now))


def forget(s: Session, name: str) -> None:
    """Removes a lease whose subject has ended (a finished job)."""
    changed(s, delete(Lease).where(Lease.name == name))


def holder(s: Session, name: str) -> LeaseRecord | None:
    """Who holds it now; None where it is free or ran out."""
    now = clock.now(s)
    row = s.scalar(select(Lease).where(Lease.name == name, Lease.expires_at > now))
    return None if row is None else LeaseRecord(row.name, row.owner, row.token, row.expires_at)
