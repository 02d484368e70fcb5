"""How does every failure of a request become one application/problem+json answer?

    ApiError                     status, slug, one sentence, and the field it is about
    ├── BadBodyError       400   not JSON, not UTF-8, NaN, a duplicate key, nested too deep
    ├── UnauthorizedError  401   no token, or one nobody knows
    ├── ForbiddenError     403   the token lacks the scope; a form without its CSRF token
    ├── NotFoundError      404   no such job, trial, problem, release, artifact
    ├── ConflictError      409   the state does not allow it; the first request is still being answered
    ├── TooLargeError      413   the body is over the limit
    ├── WrongMediaError    415   the body is not application/json
    ├── BadFieldError      422   one field has a value that is not allowed
    ├── TooManyError       429   the token has as many open jobs as it may have
    └── UnavailableError   503   the database does not answer

FieldError of the client library (rooftile.errors) becomes BadFieldError where it crosses the edge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from rooftile.errors import show_value

PROBLEM_JSON = "application/problem+json"
TYPE_PREFIX = "urn:rooftile:problem:"

# An error must never grow with what was sent: whoever posts a megabyte gets a line back.
MAX_TEXT = 200
MAX_ITEMS = 32
MAX_JSON = 1500
MAX_DEPTH = 3
_LARGEST_EXACT = 2**53  # above it a JSON reader that holds numbers as doubles loses digits


class ApiError(Exception):
    """A request that ends with a problem document."""

    status: int = 500
    slug: str = "internal"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: object = None,
        nearest: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.value = value
        self.allowed = allowed
        self.nearest = nearest
        self.headers = dict(headers or {})

    def problem(self) -> dict[str, Any]:
        """The problem document (RFC 9457); all eight members are always there."""
        return problem(
            self.status,
            self.slug,
            self.detail,
            field=self.field,
            value=self.value,
            allowed=self.allowed,
            nearest=self.nearest,
        )


class BadBodyError(ApiError):
    status, slug = 400, "bad-body"


class UnauthorizedError(ApiError):
    status, slug = 401, "unauthorized"


class ForbiddenError(ApiError):
    status, slug = 403, "forbidden"


class NotFoundError(ApiError):
    status, slug = 404, "not-found"


class ConflictError(ApiError):
    status, slug = 409, "conflict"


class TooLargeError(ApiError):
    status, slug = 413, "too-large"


class WrongMediaError(ApiError):
    status, slug = 415, "wrong-media-type"


class BadFieldError(ApiError):
    status, slug = 422, "bad-field"


class TooManyError(ApiError):
    status, slug = 429, "too-many"


class UnavailableError(ApiError):
    status, slug = 503, "unavailable"


def problem(
    status: int,
    slug: str,
    detail: str,
    *,
    field: str | None = None,
    value: object = None,
    allowed: object = None,
    nearest: object = None,
) -> dict[str, Any]:
    """A problem document whose every value is strict JSON and short."""
    return {
        "type": TYPE_PREFIX + slug,
        "title": title(status),
        "status": status,
        "detail": _text(detail, 4 * MAX_TEXT),
        "field": None if field is None else _text(field, MAX_TEXT),
        "value": _brief(value),
        "allowed": _brief(allowed),
        "nearest": _brief(nearest),
    }


def title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _brief(value: object) -> Any:
    """As json_safe, and what is still long is shown by its first members, in a text."""
    shown = json_safe(value)
    if isinstance(shown, list | dict) and len(json.dumps(shown)) > MAX_JSON:
        return show_value(value)
    return shown


def json_safe(value: object, depth: int = 0) -> Any:
    """`value` as strict JSON: no NaN, no integer that a double cannot hold, nothing long, nothing deep."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) <= _LARGEST_EXACT:
            return value
        # int -> str is quadratic and refused over 4300 digits, so a huge one is told by its size.
        return str(value) if value.bit_length() < 512 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _text(value, MAX_TEXT)
    if depth >= MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        items = list(value.items())
        out = {_text(str(key), MAX_TEXT): json_safe(item, depth + 1) for key, item in items[:MAX_ITEMS]}
        if len(items) > MAX_ITEMS:
            out["..."] = f"{len(items) - MAX_ITEMS} more"
        return out
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        rows = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        shown = [json_safe(item, depth + 1) for item in rows[:MAX_ITEMS]]
        return shown if len(rows) <= MAX_ITEMS else [*shown, f"... {len(rows) - MAX_ITEMS} more"]
    return _text(str(value), MAX_TEXT)


def _text(text: str, limit: int) -> str:
    # A lone surrogate cannot be sent as UTF-8, and comes in by "\ud800" in a JSON string.
    clean = text[: limit + 1].encode("utf-8", "replace").decode("utf-8")
    return clean if len(text) <= limit else clean[:limit] + "..."
