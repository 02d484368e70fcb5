"""How does evidence of any size and content become JSON that the database takes?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIMIT_BYTES = 64 * 1024


def json_value(value: Any, limit_bytes: int = LIMIT_BYTES) -> Any:
    """The value as plain JSON of at most so many bytes: long strings lose their middle, long lists their
    tail (with a note of how much), NaN and infinities become "NaN", "Infinity", "-Infinity", NUL and
    lone surrogates become U+FFFD, numpy scalars become numbers, unknown objects their repr."""
    raise NotImplementedError


def json_object(value: Mapping[str, Any], limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """As json_value, for an object."""
    raise NotImplementedError


def text(value: str, limit_bytes: int = LIMIT_BYTES) -> str:
    """Text of at most so many bytes: its beginning and, mostly, its end."""
    raise NotImplementedError
