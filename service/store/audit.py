"""Who did what, when, and from where?

Written in the transaction of what was done, so neither is there without the other. Never a token, code or
cookie: an actor is `token:7`, `session:3`, `command`, or `service` for what follows from its own rules: the
token it is started with, releases that a search publishes, withdrawals of what was quarantined.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.host import host_name

from . import clock
from .bounded import json_object
from .enums import AuditAction
from .models import Audit
from .records import AuditRecord, By, Json, Page
from .sql import changed

MOST_DATA_BYTES = 2048


def command() -> By:
    """Whoever has the database's address, at a terminal of this host."""
    return By("command", host_name())


def service() -> By:
    """The service itself, by its rules; the host of the process that did it."""
    return By("service", host_name())


def write(s: Session, by: By, action: AuditAction, subject: str, data: Json | None = None) -> None:
    """Note that this was done."""
    s.add(
        Audit(
            at=clock.now(s),
            actor=by.actor[:64],
            action=action.value,
            subject=subject[:200],
            origin=by.origin[:200],
            data=json_object(data or {}, MOST_DATA_BYTES),
        )
    )
    s.flush()


def listing(
    s: Session, *, action: AuditAction | None = None, after: tuple[int] | None = None, limit: int = 50
) -> Page[AuditRecord]:
    """Newest first."""
    query = select(Audit).order_by(Audit.id.desc()).limit(limit + 1)
    if action is not None:
        query = query.where(Audit.action == action.value)
    if after is not None:
        query = query.where(Audit.id < after[0])
    rows = [_record(row) for row in s.scalars(query)]
    return Page(tuple(rows[:limit]), (rows[limit - 1].id,) if len(rows) > limit else None)


def forget(s: Session, older_than_s: float) -> int:
    """Drops what is older; returns how many."""
    since = clock.now(s) - timedelta(seconds=older_than_s)
    return changed(s, delete(Audit).where(Audit.at < since))


def _record(row: Audit) -> AuditRecord:
    return AuditRecord(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        origin=row.origin,
        data=row.data,
    )
