"""What does a bulk reduction do to the bytes in memory (PTX ISA 9.7.9.25.4.2, 9.7.9.25.5.3: operations with
their types)?

Sums of f32 flush subnormal operands and results, as the text says of the form of bytes; it says nothing of
tensors, which are taken to be the same. Nor does it say what min and max do with NaN: they are taken to be
the instructions of these names, which prefer a number. """

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arith import floats, halves

_HALVES = ("f16", "bf16")
_COUNTERS = dict.fromkeys(("inc", "dec"), ("u32",))
_BITS = ("and", "or", "xor")
_LEGAL: dict[str, dict[str, tuple[str, ...]]] = {
    "global": {
        "add": ("u32", "s32", "u64", "f32", "f64", *_HALVES),
        **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", *_HALVES)),
        **_COUNTERS,
        **dict.fromkeys(_BITS, ("b32", "b64")),
    },
    "shared": {
        "add": ("u32", "s32", "u64"),
        **dict.fromkeys(("min", "max"), ("u32", "s32")),
        **_COUNTERS,
        **dict.fromkeys(_BITS, ("b32",)),
    },
    # The types are those of tensor maps, which know no bits: whole numbers stand for them.
    "tensor": {
        "add": ("u32", "s32", "u64", "f32", *_HALVES),
        **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", *_HALVES)),
        **_COUNTERS,
        **dict.fromkeys(_BITS, ("u32", "s32", "u64", "s64")),
    },
}
"""By destination."""
_NUMPY: dict[str, Any] = {
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64,
}  # fmt: skip
TYPES = tuple(_NUMPY)
_OF_HALVES: dict[str, Callable[..., Any]] = {"add": halves.add, "min": halves.min_, "max": halves.max_}
_WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": lambda now, b: np.where(now >= b, 0, now + 1),
    "dec": lambda now, b: np.where((now == 0) | (now > b), b, now - 1),
}  # fmt: skip


def reduction(op: str, kind: str, to: str) -> Callable[[Any, Any], Any] | None:
    """What makes of bytes (n, width) that are there, and of those that come, the new ones, all uint8; None
    where there is no such reduction. `to`: "global", "shared" (both of bytes) or "tensor"."""
    if kind not in _LEGAL[to].get(op, ()):
        return None
    dtype = _NUMPY[kind]

    def apply(now: Any, comes: Any) -> Any:
        a, b = np.ascontiguousarray(now).view(dtype), np.ascontiguousarray(comes).view(dtype)
        if kind in ("f32", "f64"):
            found = floats.add(kind, a, b, ftz=kind == "f32")
        elif kind in _HALVES:
            found = _OF_HALVES[op](kind, a, b)
        else:
            found = _WHOLE[op](a, b)
        return np.ascontiguousarray(np.asarray(found).astype(dtype, copy=False)).view(np.uint8)

    return apply


__all__ = ["TYPES", "reduction"]
