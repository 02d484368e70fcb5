"""What does an operator's monitoring want to know of the whole database, for a few milliseconds of it?

Nothing here looks at what has ended long ago: what waits and what is held is found by the indexes that claims
use, trials that ended are counted once a process and then followed by their events.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from . import clock, devices
from .enums import (
    DeviceState,
    EmulationState,
    EventKind,
    JobState,
    RaceState,
    Stage,
    TrialReason,
    TrialState,
    WorkerKind,
    WorkerState,
)
from .models import Artifact, Emulation, Event, Job, Lease, Race, Release, Trial
from .transitions import TRIAL_OPEN
from .workers import listing

MOST_QUEUES = 200
"""Of devices with a queue of their own; the rest is counted as one."""
OTHER = "other"
SILENT = "silent"
"""State of a worker that does not report any more."""
_LEASE_KINDS = ("reaper", "job", "device", "retention")
_ENDS = tuple(state for state in TrialState if state not in TRIAL_OPEN)


@dataclass(frozen=True)
class Queue:
    """What waits in one queue."""

    length: int
    oldest_s: float
    """Since the oldest was asked for."""


@dataclass(frozen=True)
class WorkersOfKind:
    """The processes of one kind that are known."""

    states: dict[str, int]
    youngest_s: float | None
    """Since the last heartbeat of any of them; None where none is known."""


@dataclass(frozen=True)
class DeviceFigures:
    arch: str
    connected: bool
    out_of_service: bool


@dataclass(frozen=True)
class Figures:
    """One look at the database."""

    queues: dict[str, Queue]
    claims: dict[tuple[str, str], int]
    """By what is claimed (trial, race, emulation), and `held` or `expired`."""
    leases: dict[str, int]
    """Held now, by what they are of."""
    workers: dict[str, WorkersOfKind]
    jobs: dict[str, int]
    releases: dict[str, int]
    devices: dict[str, DeviceFigures]
    events: int
    """Number of the newest event."""


@dataclass
class Followed:
    """What is counted once and then followed by events; one a process."""

    event_id: int | None = None
    trials: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Ended trials by state and reason."""
    noise: dict[str, float] = field(default_factory=dict)
    """By device: the band inside which two times of its newest race count as equal."""


def look(s: Session) -> Figures:
    """Everything that is true now. Call in a read session."""
    now = clock.now(s)
    return Figures(
        queues=_queues(s, now),
        claims=_claims(s, now),
        leases=_leases(s, now),
        workers=_workers(s, now),
        jobs=_by_state(s, select(Job.state, func.count()).group_by(Job.state), JobState),
        releases={
            str(state): count
            for state, count in s.execute(select(Release.state, func.count()).group_by(Release.state))
        },
        devices={
            one.key: DeviceFigures(one.arch, one.connected, one.state is DeviceState.OUT_OF_SERVICE)
            for one in devices.listing(s)[:MOST_QUEUES]
        },
        events=s.scalar(select(func.max(Event.id))) or 0,
    )


def follow(s: Session, known: Followed) -> None:
    """Brings `known` up to date, in one read session."""
    latest = s.scalar(select(func.max(Event.id))) or 0
    if known.event_id is None:
        # Once a process: one pass over all trials that ended.
        query = select(Trial.state, Trial.reason, func.count()).where(Trial.state.in_(_ENDS))
        for state, reason, count in s.execute(query.group_by(Trial.state, Trial.reason)):
            known.trials[str(state), "" if reason is None else str(reason)] += count
        for device in devices.listing(s)[:MOST_QUEUES]:
            _note_race(s, known, Race.device_key == device.key)
    elif latest > known.event_id:
        new = (Event.id > known.event_id) & (Event.id <= latest)
        ended = new & (Event.kind == EventKind.TRIAL) & Event.to.in_([str(one) for one in _ENDS])
        # An event about a trial that stays what it is has the same state on both sides.
        ended &= Event.source.is_distinct_from(Event.to)
        counted = select(Event.to, Event.reason, func.count()).where(ended).group_by(Event.to, Event.reason)
        for to, why, count in s.execute(counted):
            known.trials[to, why if why in _REASONS else ""] += count
        raced = new & (Event.kind == EventKind.RACE) & (Event.to == str(RaceState.DONE))
        for race_id in s.scalars(select(Event.subject_id).where(raced).order_by(Event.id)):
            _note_race(s, known, Race.id == race_id)
    known.event_id = latest


def kept_bytes(s: Session) -> dict[str, tuple[int, int]]:
    """By kind of artifact: how many have their bytes here, and how many bytes that is."""
    query = select(Artifact.kind, func.count(), func.sum(Artifact.size_bytes))
    query = query.where(Artifact.stored.is_(True)).group_by(Artifact.kind)
    return {str(kind): (count, int(size)) for kind, count, size in s.execute(query)}


_REASONS = frozenset(str(reason) for reason in TrialReason)


def _note_race(s: Session, known: Followed, where: object) -> None:
    query = select(Race.device_key, Race.noise).where(Race.state == RaceState.DONE, where)  # type: ignore[arg-type]
    row = s.execute(query.order_by(Race.id.desc()).limit(1)).first()
    relative = (row.noise or {}).get("relative") if row is not None else None
    if row is not None and isinstance(relative, (int, float)):
        known.noise[row.device_key] = float(relative)


def _queues(s: Session, now: datetime) -> dict[str, Queue]:
    found: dict[str, list[tuple[int, datetime]]] = {}

    def add(name: str, count: int, oldest: datetime | None) -> None:
        if oldest is not None:
            found.setdefault(name, []).append((count, oldest))

    waiting = (Trial.stage.in_([Stage.COMPILE, Stage.MEASURE]), Trial.lease_owner.is_(None))
    query = select(Trial.stage, Trial.device_key, func.count(), func.min(Trial.created_at)).where(*waiting)
    for stage, device, count, oldest in s.execute(query.group_by(Trial.stage, Trial.device_key)):
        add("compile" if stage is Stage.COMPILE else f"measure.{device}", count, oldest)
    races = select(Race.device_key, func.count(), func.min(Race.created_at))
    races = races.where(Race.state == RaceState.QUEUED).group_by(Race.device_key)
    for device, count, oldest in s.execute(races):
        add(f"measure.{device}", count, oldest)
    runs = select(func.count(), func.min(Emulation.created_at)).where(
        Emulation.state == EmulationState.QUEUED
    )
    add("emulate", *s.execute(runs).one())
    jobs = select(func.count(), func.min(Job.created_at)).where(Job.state == JobState.QUEUED)
    add("search", *s.execute(jobs).one())
    for name in ("search", "compile", "emulate"):
        found.setdefault(name, [])
    if len(found) > MOST_QUEUES:
        longest = sorted(found, key=lambda name: (name.startswith("measure."), -len(found[name]), name))
        for name in longest[MOST_QUEUES:]:
            found.setdefault(f"measure.{OTHER}", []).extend(found.pop(name))
    return {name: _queue(parts, now) for name, parts in found.items()}


def _queue(parts: list[tuple[int, datetime]], now: datetime) -> Queue:
    if not parts:
        return Queue(0, 0.0)
    oldest = min(at for _count, at in parts)
    return Queue(sum(count for count, _at in parts), max(0.0, (now - oldest).total_seconds()))


def _claims(s: Session, now: datetime) -> dict[tuple[str, str], int]:
    out: dict[tuple[str, str], int] = {}
    for name, model in (("trial", Trial), ("race", Race), ("emulation", Emulation)):
        state = case((model.lease_expires_at > now, "held"), else_="expired")
        query: Select[str, int] = select(state, func.count()).where(model.lease_expires_at.is_not(None))
        out |= {(name, "held"): 0, (name, "expired"): 0}
        for word, count in s.execute(query.group_by(state)):
            out[name, word] = count
    return out


def _leases(s: Session, now: datetime) -> dict[str, int]:
    counts: Counter[str] = Counter(dict.fromkeys(_LEASE_KINDS, 0))
    for name in s.scalars(select(Lease.name).where(Lease.expires_at > now)):
        kind = name.partition(":")[0]
        counts[kind if kind in _LEASE_KINDS else OTHER] += 1
    return dict(counts)


def _workers(s: Session, now: datetime) -> dict[str, WorkersOfKind]:
    out: dict[str, WorkersOfKind] = {}
    known = listing(s)
    for kind in WorkerKind:
        mine = [one for one in known if one.kind is kind]
        states: Counter[str] = Counter({str(state): 0 for state in WorkerState} | {SILENT: 0})
        for one in mine:
            states[str(one.state) if one.alive else SILENT] += 1
        ages = [max(0.0, (now - one.heartbeat_at).total_seconds()) for one in mine]
        out[str(kind)] = WorkersOfKind(dict(states), min(ages, default=None))
    return out


def _by_state(s: Session, query: Select[JobState, int], words: type[JobState]) -> dict[str, int]:
    return {str(word): 0 for word in words} | {str(state): count for state, count in s.execute(query)}
