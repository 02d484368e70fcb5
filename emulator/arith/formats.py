"""How are numbers of few bits laid out: f16 to e2m1?

PTX ISA 5.2.3 (alternate floating-point formats). e4m3 has no infinities and one NaN (0x7f and 0xff); e2m1,
e2m3 and e3m2 have neither; ue8m0 is a power of two, 0xff is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from emulator.arith.rounding import to_format
from emulator.arith.types import Array

__all__ = ["FORMATS", "Format", "decode", "encode", "table"]


@dataclass(frozen=True, slots=True)
class Format:
    """`mantissa` counts the leading one; normal numbers start at 2^`least`; `greatest` is the largest finite
    one."""

    bits: int
    mantissa: int
    least: int
    greatest: float
    nan: int
    infinity: int | None = None


FORMATS = {
    "f16": Format(16, 11, -14, 65504.0, 0x7FFF, 0x7C00),
    "bf16": Format(16, 8, -126, float.fromhex("0x1.fep127"), 0x7FFF, 0x7F80),
    "tf32": Format(19, 11, -126, float.fromhex("0x1.ffcp127"), 0x3FFFF, 0x3FC00),
    "f32": Format(32, 24, -126, float.fromhex("0x1.fffffep127"), 0x7FFFFFFF, 0x7F800000),
    "e4m3": Format(8, 4, -6, 448.0, 0x7F),
    "e5m2": Format(8, 3, -14, 57344.0, 0x7F, 0x7C),
    "e2m3": Format(6, 4, 0, 7.5, 0x1F),
    "e3m2": Format(6, 3, -2, 28.0, 0x1F),
    "e2m1": Format(4, 2, 0, 6.0, 0x7),
}


def encode(name: str, x: Array, mode: str, satfinite: bool = False) -> Array:
    """f64 numbers (exact, or to odd) as codes of the format, uint32, rounded once.

    What overflows becomes infinite where the format and the rounding say so, with `satfinite` or without
    infinities the greatest number. NaN becomes the format's NaN, or the greatest number where it has none.
    """
    f = FORMATS[name]
    y = to_format(x, f.mantissa, f.least, mode)
    size = np.abs(y)
    over = size > f.greatest
    size = np.where(over, f.greatest, size)
    _, exponent = np.frexp(size)
    power = np.where((size > 0) & np.isfinite(size), np.maximum(exponent - 1, f.least), f.least)
    whole = np.ldexp(np.where(np.isfinite(size), size, 0.0), f.mantissa - 1 - power).astype(np.uint32)
    step = (power - f.least).astype(np.uint32)
    code = whole + (step << np.uint32(f.mantissa - 1))
    negative = np.signbit(x)
    if f.infinity is not None and not satfinite:
        # Towards zero nothing finite becomes infinite; up and down, only on that side.
        infinite = np.isinf(x)
        if mode in ("rn", "rna"):
            infinite = infinite | over
        elif mode == "rm":
            infinite = infinite | (over & negative)
        elif mode == "rp":
            infinite = infinite | (over & ~negative)
        code = np.where(infinite, np.uint32(f.infinity), code)
    code = code | negative.astype(np.uint32) << np.uint32(f.bits - 1)
    return np.where(x != x, np.uint32(f.nan), code).astype(np.uint32)


@cache
def table(name: str) -> Array:
    """The f64 values of all codes of a format of at most 8 bits."""
    f = FORMATS[name]
    found = np.empty(1 << f.bits, np.float64)
    for code in range(1 << f.bits):
        size = code & (1 << (f.bits - 1)) - 1
        exponent, fraction = size >> (f.mantissa - 1), size & ((1 << (f.mantissa - 1)) - 1)
        if exponent:
            fraction |= 1 << (f.mantissa - 1)
        value = float(np.ldexp(float(fraction), max(exponent - 1, 0) + f.least - (f.mantissa - 1)))
        if f.infinity is not None and size >= f.infinity:
            value = float("inf") if size == f.infinity else float("nan")
        elif name == "e4m3" and size == f.nan:
            value = float("nan")
        found[code] = -value if code >> (f.bits - 1) else value
    found.setflags(write=False)
    return found


def decode(name: str, code: Array) -> Array:
    """The f64 values of codes of a format of at most 8 bits; upper bits of `code` are ignored."""
    found = table(name)
    out: Array = found[code & (len(found) - 1)]
    return out
