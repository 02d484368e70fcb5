"""How does anything change its state?

Only here: `transition` checks the table, changes the row by compare-and-swap and writes the event,
all in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from . import clock, events
from .enums import EventKind, Word
from .errors import Conflict, IllegalTransition
from .models import Emulation, Job, JobProblem, Race, Release, Trial
from .records import Json
from .sql import changed
from .transitions import TABLES

Moving: TypeAlias = Trial | Job | JobProblem | Race | Emulation | Release

_KINDS: dict[type[Moving], EventKind] = {
    Trial: EventKind.TRIAL,
    Job: EventKind.JOB,
    JobProblem: EventKind.JOB_PROBLEM,
    Race: EventKind.RACE,
    Emulation: EventKind.EMULATION,
    Release: EventKind.RELEASE,
}


def transition(
    s: Session,
    obj: Moving,
    to: Word,
    reason: Word | str | None = None,
    *,
    columns: dict[str, Any] | None = None,
    data: Json | None = None,
    at: datetime | None = None,
) -> None:
    """Moves `obj` and sets `columns` with it. IllegalTransition if the table has no such move; Conflict if
    the row was moved by another process since it was read. `reason` is the event's; what the row shall
    say is among the columns."""
    transition_all(s, [obj], to, reason, columns=columns, data=data, at=at)


def transition_all(
    s: Session,
    objs: Sequence[Moving],
    to: Word,
    reason: Word | str | None = None,
    *,
    columns: dict[str, Any] | None = None,
    data: Json | None = None,
    at: datetime | None = None,
) -> None:
    """As `transition`, for rows of one kind and state that are given the same columns, in one statement."""
    if not objs:
        return
    columns = columns or {}
    model = type(objs[0])
    kind = _KINDS[model]
    source: Word = objs[0].state
    after = TABLES[kind.value][source]
    if to not in after:
        raise IllegalTransition(kind.value.replace("_", " "), objs[0].id, source, to, tuple(map(str, after)))
    at = at if at is not None else clock.now(s)
    s.flush()
    ids = [obj.id for obj in objs]
    which = model.id == ids[0] if len(ids) == 1 else model.id.in_(ids)
    statement = update(model).where(which, model.state == source).values(state=to, **columns)
    if changed(s, statement) != len(ids):
        told = ", ".join(map(str, ids))
        raise Conflict(f"{kind} {told} {'is' if len(ids) == 1 else 'are'} not {source} any more.")
    for obj in objs:
        set_committed_value(obj, "state", to)
        for name, value in columns.items():
            set_committed_value(obj, name, value)
        _tell(s, obj, kind, source, reason, data, at)


def born(s: Session, obj: Moving, *, data: Json | None = None, at: datetime | None = None) -> None:
    """Writes the first event of something that was just inserted."""
    _tell(s, obj, _KINDS[type(obj)], None, None, data, at)


def stayed(s: Session, obj: Moving, reason: Word | str, *, data: Json | None = None) -> None:
    """Writes an event about something that keeps its state: a lease given back, a pin set."""
    _tell(s, obj, _KINDS[type(obj)], obj.state, reason, data, None)


def _tell(
    s: Session,
    obj: Moving,
    kind: EventKind,
    source: Word | None,
    reason: Word | str | None,
    data: Json | None,
    at: datetime | None,
) -> None:
    events.append(
        s,
        kind,
        obj.id,
        job_id=obj.id if isinstance(obj, Job) else obj.job_id,
        source=None if source is None else source.value,
        to=obj.state.value,
        reason=None if reason is None else str(reason)[:64],
        data=data,
        at=at,
    )
