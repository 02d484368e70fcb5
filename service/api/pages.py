"""How does a list come in pages that stay right while rows are added?

A page token is opaque to the client: it holds the sort key of the last row shown (keyset paging), and
the name of the list it belongs to, so that a token of one list is refused by another.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from typing import TypeAlias

from service.api.errors import BadFieldError

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
_MAX_TOKEN = 512

Key: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Page:
    """What a list endpoint was asked for."""

    limit: int
    after: tuple[Key, ...] | None


def encode_token(kind: str, key: tuple[Key, ...]) -> str:
    raw = json.dumps([kind, *key], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_token(kind: str, token: str, shape: tuple[type, ...]) -> tuple[Key, ...]:
    """The key in `token`; BadFieldError when it is not one that this list gave out."""
    wrong = BadFieldError(
        "This page token was not given out by this list.",
        field="page_token",
        value=token,
        allowed="next_page_token of this list's page before",
    )
    if len(token) > _MAX_TOKEN:
        raise wrong
    try:
        raw = base64.b64decode(
            token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True
        )
        parts = json.loads(raw.decode("utf-8"))
    except (ValueError, binascii.Error, RecursionError):
        raise wrong from None
    if not isinstance(parts, list) or len(parts) != len(shape) + 1 or parts[0] != kind:
        raise wrong
    key = tuple(parts[1:])
    for part, wanted in zip(key, shape, strict=True):
        if isinstance(part, bool) or not isinstance(part, wanted):
            raise wrong
        # json reads NaN and 1e999; no row has such a time, so no list gave it out.
        if isinstance(part, float) and not math.isfinite(part):
            raise wrong
        if isinstance(part, int) and abs(part) >= 2**63:
            raise wrong
        if isinstance(part, str) and (not part.isprintable() or not part.isascii()):
            raise wrong
    return key


def page(kind: str, limit: int | None, token: str | None, shape: tuple[type, ...]) -> Page:
    size = DEFAULT_LIMIT if limit is None else limit
    if not 1 <= size <= MAX_LIMIT:
        raise BadFieldError(
            f"A page holds 1 to {MAX_LIMIT} rows.",
            field="limit",
            value=size,
            allowed={"min": 1, "max": MAX_LIMIT},
        )
    return Page(limit=size, after=None if not token else decode_token(kind, token, shape))
