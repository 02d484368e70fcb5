"""How do our values lie in columns, alike on SQLite and on Postgres?"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine

from .enums import Word

W = TypeVar("W", bound=Word)

# SQLite makes only INTEGER PRIMARY KEY an alias of its (64-bit) rowid.
BigId = BigInteger().with_variant(Integer, "sqlite")

# none_as_null: a missing value is SQL NULL, not the JSON text "null".
JsonColumn: TypeEngine[Any] = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")

Sha256 = String(64)


class UtcTime(TypeDecorator[datetime]):
    """Aware UTC times; SQLite has no zone, so there they are stored without it and get it back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("times in the store are aware; this one has no zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class WordColumn(TypeDecorator[W], Generic[W]):
    """One of our closed words as plain text."""

    impl = String(32)
    cache_ok = True

    def __init__(self, words: type[W]) -> None:
        super().__init__()
        self.words = words

    def process_bind_param(self, value: W | None, dialect: Dialect) -> str | None:
        return None if value is None else self.words(value).value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> W | None:
        return None if value is None else self.words(value)
