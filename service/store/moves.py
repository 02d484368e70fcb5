"""How does anything change its state?

Only here: `transition` checks the table, changes the row by compare-and-swap and writes the event,
all in the caller's transaction.
"""

from __future__ import annotations

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
    columns = columns or {}
    model = type(obj)
    kind = _KINDS[model]
    source: Word = obj.state
    after = TABLES[kind.value][source]
    if to not in after:
        raise IllegalTransition(kind.value.replace("_", " "), obj.id, source, to, tuple(map(str, after)))
    at = at if at is not None else clock.now(s)
    s.flush()
    statement = update(model).where(model.id == obj.id, model.state == source).values(state=to, **columns)
    if changed(s, statement) != 1:
        raise Conflict(f"{kind} {obj.id} is not {source} any more.")
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
