"""What time is it, by the database's clock?

Leases are compared across hosts, whose clocks differ; the database's clock is one. SQLite lives on
one host, so there the host's clock is the database's.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, DateTime, func, null, text
from sqlalchemy.orm import Session

_ASKED = "rooftile_clock"
ASK_AGAIN_S = 0.2
"""A session asks once, and for so long adds what has passed in this process: a quarter of all statements were
this question. Whoever was stopped in between, or had its own clock set, asks again."""


def now(s: Session) -> datetime:
    """The time now (not at the start of the transaction), UTC and aware."""
    if s.get_bind().dialect.name == "sqlite":
        return datetime.now(UTC)
    asked = s.info.get(_ASKED)
    if asked is not None and 0.0 <= (passed_s := time.monotonic() - asked[1]) < ASK_AGAIN_S:
        known: datetime = asked[0] + timedelta(seconds=passed_s)
        return known
    moment: datetime = s.execute(text("SELECT clock_timestamp()")).scalar_one()
    moment = moment.astimezone(UTC)
    s.info[_ASKED] = (moment, time.monotonic())
    return moment


def moment(s: Session, plus_s: float = 0.0) -> Any:
    """The time, or one so much later, as a part of a statement: Postgres looks at its clock itself."""
    later = timedelta(seconds=plus_s)
    if s.get_bind().dialect.name == "sqlite":
        return now(s) + later
    return func.clock_timestamp(type_=DateTime(timezone=True)) + later


def column(s: Session) -> ColumnElement[Any]:
    """The time, asked for beside something else: what comes is for `told`."""
    return null() if s.get_bind().dialect.name == "sqlite" else func.clock_timestamp()


def told(s: Session, moment: datetime | None) -> None:
    """The database said just now what time it is."""
    if moment is not None:
        s.info[_ASKED] = (moment.astimezone(UTC), time.monotonic())
