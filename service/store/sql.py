"""Which pieces of SQL do the query modules share?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import CursorResult, Delete, Table, Update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from .models import Base

S = TypeVar("S")


def insert_ignoring(s: Session, model: type[Base], values: dict[str, Any]) -> bool:
    """Inserts the row unless a unique index has one like it; True if it was inserted."""
    # RETURNING says it: Postgres' driver gives no row count for an insert through the ORM
    key = cast(Table, model.__table__).primary_key.columns
    statement = insert_or(s, model).values(**values).on_conflict_do_nothing().returning(*key)
    return s.execute(statement).first() is not None


def upsert(
    s: Session, model: type[Base], values: dict[str, Any], *, key: Sequence[str], update: dict[str, Any]
) -> None:
    """Inserts the row, or sets `update` in the one that has its key."""
    insert = insert_or(s, model).values(**values)
    s.execute(insert.on_conflict_do_update(index_elements=list(key), set_=update))


def insert_or(s: Session, model: type[Base]) -> Any:
    """An INSERT that can be given an ON CONFLICT."""
    # the two dialects spell ON CONFLICT alike, but SQLAlchemy keeps two classes
    if s.get_bind().dialect.name == "postgresql":
        return postgresql.insert(cast(Table, model.__table__))
    return sqlite.insert(cast(Table, model.__table__))


def changed(s: Session, statement: Update | Delete) -> int:
    """Executes it and says how many rows it hit."""
    result = s.execute(statement, execution_options={"synchronize_session": False})
    return cast(CursorResult[Any], result).rowcount


def usable(time: InstrumentedAttribute[float | None]) -> Any:
    """A finite positive time. Postgres orders NaN above all numbers, so one comparison refuses both."""
    return (time > 0) & (time < 1e300)
