"""Who holds a named lease (the reaper's, a job's, a device's)?"""

from __future__ import annotations

from sqlalchemy import case, delete, select, update
from sqlalchemy.orm import Session

from . import clock
from .models import Lease
from .records import LeaseRecord
from .sql import changed, insert_or

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
    # one statement: each step of a job begins with it
    now, until = clock.moment(s), clock.moment(s, lease_s)
    mine = (Lease.owner == owner) & (Lease.expires_at > now)
    taken = insert_or(s, Lease).values(name=name, owner=owner, token=1, expires_at=until)
    taken = taken.on_conflict_do_update(
        index_elements=["name"],
        set_={
            "owner": owner,
            "token": case((mine, Lease.token), else_=Lease.token + 1),
            "expires_at": until,
        },
        where=mine | (Lease.expires_at <= now),
    )
    row = s.execute(taken.returning(Lease.token, Lease.expires_at)).one_or_none()
    return None if row is None else LeaseRecord(name, owner, row.token, row.expires_at)


def renew(s: Session, name: str, owner: str, lease_s: float) -> bool:
    """Extends it; False: `owner` does not hold it any more (its time ran out, or another has it)."""
    now = clock.moment(s)
    held = (Lease.name == name) & (Lease.owner == owner) & (Lease.expires_at > now)
    return changed(s, update(Lease).where(held).values(expires_at=clock.moment(s, lease_s))) == 1


def release(s: Session, name: str, owner: str) -> bool:
    """Frees it; False if `owner` did not hold it."""
    # the row stays, run out, so that its token goes on growing
    now = clock.moment(s)
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


def mark(s: Session, name: str, owner: str) -> None:
    """Leaves the time of now under a name, as a lease that is held no longer."""
    acquire(s, name, owner, 0.0)


def since_mark_s(s: Session, name: str) -> float | None:
    """Seconds since the last `mark`; None: there was none."""
    at = s.scalar(select(Lease.expires_at).where(Lease.name == name))
    return None if at is None else (clock.now(s) - at).total_seconds()


def holder(s: Session, name: str) -> LeaseRecord | None:
    """Who holds it now; None where it is free or ran out."""
    now = clock.now(s)
    row = s.scalar(select(Lease).where(Lease.name == name, Lease.expires_at > now))
    return None if row is None else LeaseRecord(row.name, row.owner, row.token, row.expires_at)
