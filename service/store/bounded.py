"""How does evidence of any size and content become JSON that the database takes?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

LIMIT_BYTES = 64 * 1024
_DEPTH = 12
# what one value may shrink to before the whole gives up on keeping its shape
_STEPS = ((16 * 1024, 1000), (4 * 1024, 200), (1024, 50), (256, 20), (64, 8))


def json_value(value: Any, limit_bytes: int = LIMIT_BYTES) -> Any:
    """The value as plain JSON of at most so many bytes: long strings lose their middle, long lists their
    tail (with a note of how much), NaN and infinities become "NaN", "Infinity", "-Infinity", NUL and
    lone surrogates become U+FFFD, numpy scalars become numbers, unknown objects their repr."""
    plain = _plain(value, limit_bytes, None, _DEPTH)
    if _size(plain) <= limit_bytes:
        return plain
    for text_bytes, items in _STEPS:
        if text_bytes >= limit_bytes:
            continue
        smaller = _plain(plain, text_bytes, items, _DEPTH)
        if _size(smaller) <= limit_bytes:
            return smaller
    return {"truncated": f"{_size(plain)} bytes of evidence did not fit into {limit_bytes}"}


def json_object(value: Mapping[str, Any], limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """As json_value, for an object."""
    result = json_value(dict(value), limit_bytes)
    assert isinstance(result, dict)
    return result


def text(value: str, limit_bytes: int = LIMIT_BYTES) -> str:
    """Text of at most so many bytes: its beginning and, mostly, its end."""
    raw = _clean(value).encode()
    if len(raw) <= limit_bytes:
        return raw.decode()
    note = f"\n... {len(raw) - limit_bytes} bytes left out ...\n"
    room = max(0, limit_bytes - len(note.encode()) - 16)
    head, tail = room // 4, room - room // 4
    return raw[:head].decode(errors="ignore") + note + raw[len(raw) - tail :].decode(errors="ignore")


def number(value: float | None) -> float | None:
    """A float for a column: None where it is not finite (SQLite would make NaN a NULL by itself)."""
    return value if value is not None and math.isfinite(value) else None


def _clean(value: str) -> str:
    # Postgres takes no NUL in text or JSON, UTF-8 no lone surrogates
    return value.replace("\0", "�").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _plain(value: Any, text_bytes: int, items: int | None, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # JSON has no limit, but Postgres' numeric and other readers have
        return int(value) if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str):
        return text(str(value), text_bytes)
    if isinstance(value, bytes):
        return text(value.decode(errors="replace"), text_bytes)
    if depth == 0:
        return text(repr(value), min(text_bytes, 256))
    if isinstance(value, Mapping):
        pairs = list(value.items())
        kept = pairs if items is None else pairs[:items]
        result = {text(str(key), 256): _plain(one, text_bytes, items, depth - 1) for key, one in kept}
        if len(kept) < len(pairs):
            result["..."] = f"{len(pairs) - len(kept)} more left out"
        return result
    if isinstance(value, list | tuple | set | frozenset):
        entries = list(value)
        kept_entries = entries if items is None else entries[:items]
        listed = [_plain(one, text_bytes, items, depth - 1) for one in kept_entries]
        if len(kept_entries) < len(entries):
            listed.append(f"... {len(entries) - len(kept_entries)} more left out")
        return listed
    scalar = getattr(value, "item", None)
    if callable(scalar) and getattr(value, "shape", None) == ():
        return _plain(scalar(), text_bytes, items, depth - 1)
    return text(repr(value), text_bytes)
