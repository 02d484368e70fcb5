"""What does a bulk reduction do to the bytes in memory (PTX ISA 9.7.9.25.5.3: operations with their
types)?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arith import floats, halves

_LEGAL = {
    "add": ("f16", "bf16", "f32", "f64", "u32", "s32", "u64"),
    "min": ("f16", "bf16", "u32", "s32", "u64", "s64"),
    "max": ("f16", "bf16", "u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", "u32", "s32", "u64")),
}
_NUMPY: dict[str, Any] = {
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64,
}  # fmt: skip
_WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": lambda now, b: np.where(now >= b, 0, now + 1),
    "dec": lambda now, b: np.where((now == 0) | (now > b), b, now - 1),
}  # fmt: skip


def reduction(op: str, kind: str | None) -> Callable[[Any, Any], Any] | None:
    """What replaces bytes (n, width) by those that come, both uint8; None where there is no such
    reduction."""
    if kind is None or kind not in _LEGAL.get(op, ()):
        return None
    dtype = _NUMPY[kind]

    def apply(now: Any, comes: Any) -> Any:
        a, b = np.ascontiguousarray(now).view(dtype), np.ascontiguousarray(comes).view(dtype)
        if kind in ("f32", "f64"):
            found = floats.add(kind, a, b)
        elif kind in ("f16", "bf16"):
            found = halves.add(kind, a, b) if op == "add" else _extreme(op, kind, a, b)
        else:
            found = _WHOLE[op](a, b)
        return np.ascontiguousarray(np.asarray(found).astype(dtype, copy=False)).view(np.uint8)

    return apply


def _extreme(op: str, kind: str, a: Any, b: Any) -> Any:
    """min or max of halves: a number before a NaN."""
    wide = [
        x.view(np.float16) if kind == "f16" else (x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)
    ]
    first = wide[0] < wide[1] if op == "min" else wide[0] > wide[1]
    return np.where(first | (wide[1] != wide[1]), a, b)


__all__ = ["reduction"]
