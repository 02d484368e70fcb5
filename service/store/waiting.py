"""Which work waits, whose is it, and how much of it is under way? For this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.orm import Session

from .enums import JobState, RaceState, Stage, TrialState
from .models import Job, Race, Trial
from .shares import Waiter

RACES_OF = (JobState.RUNNING, JobState.FINISHING)


def compiles(archs: Sequence[str]) -> ColumnElement[bool]:
    """Of a Trial: it waits to be compiled, and its Arch is among these."""
    return and_(
        Trial.stage == Stage.COMPILE,
        Trial.lease_owner.is_(None),
        Trial.state == TrialState.PROPOSED,
        Trial.arch.in_(list(archs)),
    )


def measures(device_key: str) -> ColumnElement[bool]:
    """Of a Trial: it waits for this device."""
    return and_(
        Trial.stage == Stage.MEASURE,
        Trial.lease_owner.is_(None),
        Trial.state == TrialState.COMPILED,
        Trial.device_key == device_key,
    )


def races(device_key: str) -> ColumnElement[bool]:
    """Of a Race: it waits for this device."""
    return and_(Race.state == RaceState.QUEUED, Race.device_key == device_key)


def owners_of_trials(s: Session, waits: ColumnElement[bool]) -> list[Waiter]:
    """The running jobs that have such a trial."""
    # From the few running jobs to an index on trials, not the other way round. EXISTS would say the same, but
    # Postgres makes a join of it, and where it takes the tables for small each job meets each waiting trial:
    # 28 ms with 200 jobs, 0.3 ms this way.
    mine = select(Trial.id).where(Trial.job_id == Job.id, waits).correlate(Job).limit(1).scalar_subquery()
    rows = s.execute(_owners().where(Job.state == JobState.RUNNING, mine.is_not(None))).all()
    return [Waiter(*row) for row in rows]


def owners_of_races(s: Session, device_key: str) -> list[Waiter]:
    """The jobs that have a race waiting for this device."""
    rows = s.execute(
        _owners().join(Race, Race.job_id == Job.id).where(races(device_key), Job.state.in_(RACES_OF))
    ).all()
    return [Waiter(*row) for row in rows]


def compiles_under_way(s: Session) -> Callable[[], Iterable[Waiter]]:
    """A Waiter for each trial that is being compiled, when asked."""
    return lambda: _claimed(s, Trial.stage == Stage.COMPILE)


def measures_under_way(s: Session, device_key: str) -> Callable[[], Iterable[Waiter]]:
    """A Waiter for each trial that is being measured on the device, when asked."""
    return lambda: _claimed(s, Trial.stage == Stage.MEASURE, Trial.device_key == device_key)


def _claimed(s: Session, *where: ColumnElement[bool]) -> list[Waiter]:
    claimed = _owners().join(Trial, Trial.job_id == Job.id).where(*where, Trial.lease_owner.is_not(None))
    return [Waiter(*row) for row in s.execute(claimed).all()]


def _owners() -> Select[int, int | None, int]:
    return select(Job.id, Job.token_id, Job.priority)
