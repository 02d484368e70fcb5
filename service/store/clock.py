"""What time is it, by the database's clock?

Leases are compared across hosts, whose clocks differ; the database's clock is one. SQLite lives on
one host, so there the host's clock is the database's.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.orm import Session


def now(s: Session) -> datetime:
    """The time now (not at the start of the transaction), UTC and aware."""
    if s.get_bind().dialect.name == "sqlite":
        return datetime.now(UTC)
    moment: datetime = s.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment.astimezone(UTC)
