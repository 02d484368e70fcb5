"""Which bit patterns say "nobody wrote here"?

Signalling NaNs with a payload: arithmetic on one gives a quiet NaN, so an element that was never written
(the pattern itself) differs from one that was computed from such an element (a quiet NaN), and a kernel that
reads a margin or an unwritten workspace cannot give a finite result by chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_PATTERNS: dict[str, int] = {
    "float64": 0x7FF5_DEAD_BEEF_0BAD,
    "float32": 0x7FA5_DEAD,
    "float16": 0x7DAD,
    "bfloat16": 0x7FAD,
    "float8_e5m2": 0x7D,
    "float8_e4m3fn": 0xFF,  # its only NaNs are 0x7F and this
    # No NaN there: values that a product of numbers from a small range does not give.
    "int32": 0x7FA5_DEAD,
    "int8": 0x5A,
    "uint8": 0xA5,
}
_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}

Words = npt.NDArray[Any]


def pattern(dtype: npt.DTypeLike) -> Any:
    """The poison of an element type, as an unsigned word of its width."""
    kind = np.dtype(dtype)
    return _WORDS[kind.itemsize](_PATTERNS[kind.name])


def words(array: npt.NDArray[Any]) -> Words:
    """The same memory as unsigned words of the element's width."""
    return array.view(_WORDS[array.dtype.itemsize])


def fill_bytes(target: npt.NDArray[np.uint8], dtype: npt.DTypeLike, address: int) -> None:
    """Poison raw bytes that begin at `address`, so that every aligned element in them reads as poison."""
    unit = np.dtype(dtype).itemsize
    tile = np.frombuffer(pattern(dtype).tobytes(), np.uint8)
    head = min(-address % unit, target.size)
    whole = (target.size - head) // unit * unit
    target[:head] = tile[unit - head :] if head else tile[:0]
    target[head : head + whole].view(_WORDS[unit])[:] = pattern(dtype)
    target[head + whole :] = tile[: target.size - head - whole]


def first_touched(target: npt.NDArray[np.uint8], dtype: npt.DTypeLike, address: int) -> int | None:
    """Offset of the first byte that no longer holds the poison of `fill_bytes`, or None."""
    unit = np.dtype(dtype).itemsize
    head = min(-address % unit, target.size)
    whole = (target.size - head) // unit * unit
    tile = np.frombuffer(pattern(dtype).tobytes(), np.uint8)
    if head and not np.array_equal(target[:head], tile[unit - head :]):
        return int(np.argmax(target[:head] != tile[unit - head :]))
    middle = target[head : head + whole].view(_WORDS[unit])
    bad = middle != pattern(dtype)
    if bad.any():
        at = int(np.argmax(bad)) * unit + head
        return at + int(np.argmax(target[at : at + unit] != tile))
    rest = target[head + whole :]
    if rest.size and not np.array_equal(rest, tile[: rest.size]):
        return head + whole + int(np.argmax(rest != tile[: rest.size]))
    return None
