"""Which kinds of values does a request hold, and what is said of one that is of another kind?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftile.errors import FieldError
from rooftile.problem import nearest_name

MOST_NAME = 200


def or_empty(value: object) -> object:
    return {} if value is None else value


def members(path: str, value: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The members of a JSON object, none of them unknown."""
    if not isinstance(value, Mapping):
        raise FieldError(path or "body", value, f"an object with the members {', '.join(names)}")
    for name in value:
        if name not in names:
            shown = (name or '""') if isinstance(name, str) and len(name) <= 64 else "..."
            allowed = f"no such field; {path or 'a job'} has {', '.join(names)}"
            dotted = f"{path}.{shown}" if path else shown
            raise FieldError(dotted, value[name], allowed, nearest_name(name, names))
    return dict(value)


def list_of(path: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise FieldError(path, value, f"a list of 1 to {most} entries")
    return value


def name_of(path: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MOST_NAME:
        raise FieldError(path, value, f"a text of 1 to {MOST_NAME} characters")
    return value


def choice_of(path: str, value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in names:
        return value
    raise FieldError(path, value, f"one of {', '.join(names)}", nearest_name(value, names))


def flag(path: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise FieldError(path, value, "true or false")


def whole(path: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FieldError(path, value, f"a whole number from {low} to {high}")
    return value


def positive(path: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise FieldError(path, value, f"a number above 0, at most {most:g}")
    return float(value)
