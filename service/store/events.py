"""What happened, in which order, and what has a reader not seen yet?

Readers resume at the last id they saw, so an id must never become visible after a greater one. On
Postgres a sequence alone does not give that: ids are drawn before the commit, and transactions
commit in another order. So events are collected in the session and inserted at the very end of the
transaction, below one advisory lock that is held from drawing the ids until the commit is visible
(Postgres frees transaction locks after that). All row locks are taken before this one, so it can not
be part of a deadlock; it is held for one INSERT and the commit, about a millisecond, which bounds
writers with events to hundreds of commits a second. On SQLite there is one writer at a time anyway.

A transaction therefore does not see its own events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import event as sa_event
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import Session, SessionTransaction

from . import clock
from .bounded import json_object
from .enums import EventKind, TrialState
from .models import Event, Release
from .records import EventRecord, Json
from .transitions import TRIAL_OPEN

_PENDING = "rooftile_events"
_MARKS = "rooftile_event_marks"
APPEND_LOCK = 0x526F6F66_00000001
"""Key of the advisory lock below which ids are drawn ("Roof", 1)."""


_WITH_A_TIME = (TrialState.MEASURED, TrialState.CULLED, TrialState.RANKED)
_OF_ONE_JOB = (EventKind.TRIAL, EventKind.RACE, EventKind.NOTE)


@dataclass(frozen=True)
class News:
    """What has happened since somebody last asked."""

    latest: int
    """Id of the newest event."""
    jobs: frozenset[int]
    """Those of which something has moved that may take them on: not a trial that is still under way."""
    wider: bool
    """Something has moved that may concern any job: a place became free, a verdict came."""
    ended: Mapping[int, int] = field(default_factory=dict)
    """How many trials have ended with a time, of those of `jobs` of which nothing else has moved."""


@dataclass(frozen=True)
class _Pending:
    kind: EventKind
    subject_id: int
    job_id: int | None
    source: str | None
    to: str
    reason: str | None
    data: dict[str, Any]
    at: datetime


def append(
    s: Session,
    kind: EventKind,
    subject_id: int,
    *,
    job_id: int | None,
    source: str | None,
    to: str,
    reason: str | None = None,
    data: Json | None = None,
    at: datetime | None = None,
) -> None:
    """Adds an event to the transaction. Moves call it; others use `note`."""
    moment = at if at is not None else clock.now(s)
    pending = _Pending(
        kind, subject_id, job_id, source, to, reason, json_object(data or {}, 8 * 1024), moment
    )
    s.info.setdefault(_PENDING, []).append(pending)


def note(s: Session, job_id: int | None, to: str, data: Json | None = None) -> None:
    """Tells something that moves nothing (kind `note`); `to` is its short name."""
    append(s, EventKind.NOTE, job_id or 0, job_id=job_id, source=None, to=to, data=data)


def write_pending(s: Session) -> None:
    """Inserts what was appended; called by the session just before it commits."""
    pending: list[_Pending] = s.info.pop(_PENDING, [])
    if not pending:
        return
    if s.get_bind().dialect.name == "postgresql":
        if all(one.kind is not EventKind.RELEASE for one in pending):
            s.execute(_LOCK_AND_INSERT, {"key": APPEND_LOCK, "rows": _rows_json(pending)})
            return
        s.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": APPEND_LOCK})
    rows = [vars(one) for one in pending]
    ids = s.scalars(insert(Event).returning(Event.id, sort_by_parameter_order=True), rows).all()
    # a release's change number is the id of the event that told of it, so it has the same order
    for one, event_id in zip(pending, ids, strict=True):
        if one.kind is EventKind.RELEASE:
            s.execute(
                update(Release).where(Release.id == one.subject_id).values(change_id=event_id),
                execution_options={"synchronize_session": False},
            )


# Lock and insert in one message, and one statement however many events there are. Ids are drawn above the
# sort, which has read all of what is below it, the lock too, before it gives its first row.
_LOCK_AND_INSERT = text(
    """
    INSERT INTO events (kind, subject_id, job_id, source, "to", reason, data, at)
    SELECT kind, subject_id, job_id, source, "to", reason, data, at
    FROM (SELECT pg_advisory_xact_lock(:key)) AS held,
         jsonb_to_recordset(CAST(:rows AS jsonb)) AS told (
             place bigint, kind text, subject_id bigint, job_id bigint, source text, "to" text, reason text,
             data jsonb, at timestamptz)
    ORDER BY place
    """
)


def _rows_json(pending: Sequence[_Pending]) -> str:
    rows = [
        {**vars(one), "kind": one.kind.value, "at": one.at.isoformat(), "place": place}
        for place, one in enumerate(pending)
    ]
    return json.dumps(rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@sa_event.listens_for(Session, "after_transaction_create")
def _remember_mark(s: Session, transaction: SessionTransaction) -> None:
    if transaction.nested:
        s.info.setdefault(_MARKS, {})[transaction] = len(s.info.get(_PENDING, []))


@sa_event.listens_for(Session, "after_soft_rollback")
def _forget_undone(s: Session, transaction: SessionTransaction) -> None:
    """A rolled back transaction, or savepoint, takes its events with it."""
    marks = s.info.get(_MARKS, {})
    del s.info.get(_PENDING, [])[marks.pop(transaction, 0) :]


def after(s: Session, last_id: int, *, job_id: int | None = None, limit: int = 500) -> list[EventRecord]:
    """Events with a greater id, in order. Ids become visible in order: none is ever skipped."""
    query = select(Event).where(Event.id > last_id).order_by(Event.id).limit(limit)
    if job_id is not None:
        query = query.where(Event.job_id == job_id)
    return [_record(row) for row in s.scalars(query)]


def latest_id(s: Session, job_id: int | None = None) -> int:
    """Id of the newest event (of a job); 0 where there is none. Good as an ETag of a job."""
    query = select(func.max(Event.id))
    if job_id is not None:
        query = query.where(Event.job_id == job_id)
    return s.scalar(query) or 0


def news(s: Session, last_id: int) -> News:
    """What the events after an id are about."""
    columns = (Event.job_id, Event.kind, Event.to)
    query = select(*columns, func.max(Event.id), func.count()).where(Event.id > last_id)
    latest, told, wider = last_id, set(), False
    ended: Counter[int] = Counter()
    otherwise = set()
    for job_id, kind, to, newest, count in s.execute(query.group_by(*columns)):
        latest = max(latest, newest)
        if kind is EventKind.TRIAL and to in TRIAL_OPEN:
            continue
        if job_id is not None:
            told.add(job_id)
            if kind is EventKind.TRIAL and to in _WITH_A_TIME:
                ended[job_id] += count
            else:
                otherwise.add(job_id)
        wider |= job_id is None or kind not in _OF_ONE_JOB
    only = {job_id: count for job_id, count in ended.items() if job_id not in otherwise}
    return News(latest, frozenset(told), wider, only)


def moved(s: Session, job_id: int, last_id: int) -> tuple[int, list[int], bool]:
    """What a job's events after an id tell of: the newest one's id, the trials that moved, and whether a race
    did."""
    query = select(Event.id, Event.kind, Event.subject_id).where(Event.job_id == job_id, Event.id > last_id)
    rows = s.execute(query).all()
    ids = {row.subject_id for row in rows if row.kind is EventKind.TRIAL}
    raced = any(row.kind is EventKind.RACE for row in rows)
    return max((row.id for row in rows), default=last_id), sorted(ids), raced


def _record(row: Event) -> EventRecord:
    return EventRecord(
        id=row.id,
        kind=row.kind,
        subject_id=row.subject_id,
        job_id=row.job_id,
        source=row.source,
        to=row.to,
        reason=row.reason,
        data=row.data,
        at=row.at,
    )
