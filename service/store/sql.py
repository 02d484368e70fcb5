"""Which pieces of SQL do the query modules share?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from sqlalchemy import CursorResult, Delete, Update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql import Executable

from .models import Base

S = TypeVar("S")


def insert_ignoring(s: Session, model: type[Base], values: dict[str, Any]) -> bool:
    """Inserts the row unless a unique index has one like it; True if it was inserted."""
    return _rowcount(s, _insert(s, model).values(**values).on_conflict_do_nothing()) == 1


def upsert(
    s: Session, model: type[Base], values: dict[str, Any], *, key: Sequence[str], update: dict[str, Any]
) -> None:
    """Inserts the row, or sets `update` in the one that has its key."""
    s.execute(
        _insert(s, model).values(**values).on_conflict_do_update(index_elements=list(key), set_=update),
        execution_options={"synchronize_session": False},
    )


def _insert(s: Session, model: type[Base]) -> Any:
    # the two dialects spell ON CONFLICT alike, but SQLAlchemy keeps two classes
    if s.get_bind().dialect.name == "postgresql":
        return postgresql.insert(model)
    return sqlite.insert(model)


def changed(s: Session, statement: Update | Delete) -> int:
    """Executes it and says how many rows it hit."""
    return _rowcount(s, statement)


def _rowcount(s: Session, statement: Executable) -> int:
    result = s.execute(statement, execution_options={"synchronize_session": False})
    return cast(CursorResult[Any], result).rowcount


def usable(time: InstrumentedAttribute[float | None]) -> Any:
    """A finite positive time. Postgres orders NaN above all numbers, so one comparison refuses both."""
    return (time > 0) & (time < 1e300)
