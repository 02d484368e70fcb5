"""How is an exact value rounded once to a narrower format?

A sum of two f64 numbers is kept "to odd": cut to 53 bits, and the last bit set if anything was lost. Rounding
that to a format of at most 51 bits gives what one rounding of the exact sum gives (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers
2008).

Rounding modes are PTX's: "rn" to nearest even, "rz" towards zero, "rm" down, "rp" up, "rna" to nearest, ties
away.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from emulator.arith.types import Array

__all__ = [
    "encode_bf16",
    "exact_f64",
    "fraction_to_f64",
    "nearest_multiple",
    "round_f32",
    "sum_to_odd",
    "to_format",
]

_ONE = np.int64(1)


def sum_to_odd(x: Array, y: Array) -> Array:
    """x + y of f64 arrays, rounded to odd. Infinities and NaN go the way of IEEE 754. No sum may overflow."""
    total = x + y
    back = total - x
    lost = (x - (total - back)) + (y - back)
    # An infinity makes `lost` NaN, which is neither less nor greater than 0.
    away = lost * np.copysign(1.0, total)
    outward, inward = away > 0, away < 0
    bits = np.asarray(total).view(np.int64)
    even = bits & _ONE == 0
    change = (outward & even).astype(np.int64) - (inward & even).astype(np.int64)
    if not change.any():
        return np.asarray(total)
    out: Array = (bits + change).view(np.float64)
    return out


def round_f32(x: Array, mode: str) -> Array:
    """An f64 array (exact, or to odd) as f32. Directed modes overflow to the greatest finite number."""
    near = x.astype(np.float32)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    if mode == "rm":
        return np.where(back > x, np.nextafter(near, np.float32(-np.inf)), near)
    if mode == "rp":
        return np.where(back < x, np.nextafter(near, np.float32(np.inf)), near)
    raise ValueError(f"unknown rounding {mode}")


def encode_bf16(x: Array) -> Array:
    """An f64 array (exact, or to odd) to the nearest bf16 (uint16), ties to even; NaN is 0x7fff."""
    near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    # f32 to odd first: cut, and remember in the last bit that something was lost.
    bits = near.view(np.uint32) - (np.abs(back) > np.abs(x)).astype(np.uint32)
    bits = bits | (back != x).astype(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(x != x, np.uint16(0x7FFF), rounded.astype(np.uint16))


def nearest_multiple(x: Array, mode: str) -> Array:
    """f64 numbers rounded to integers, still f64."""
    rounding: dict[str, Callable[[Any], Any]] = {
        "rn": np.rint,
        "rz": np.trunc,
        "rm": np.floor,
        "rp": np.ceil,
        "rna": lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v),
    }
    return np.asarray(rounding[mode](x))


def to_format(x: Array, mantissa: int, least: int, mode: str) -> Array:
    """f64 numbers rounded to `mantissa` bits (the leading one counts), exponents from `least` on, still f64.

    Below 2^`least` numbers are subnormal. There is no upper bound here: what overflows is the caller's to
    say. NaN and infinities stay.
    """
    _, exponent = np.frexp(x)
    unit = np.maximum(exponent - 1, least) - (mantissa - 1)
    rounded = np.ldexp(nearest_multiple(np.ldexp(x, -unit), mode), unit)
    return np.where(np.isfinite(x), np.copysign(rounded, x), x)


def fraction_to_f64(value: Fraction, mode: str, zero: float = 0.0) -> float:
    """An exact value as f64; `zero` is given for an exact 0."""
    if value == 0:
        return zero
    negative = value < 0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = max(exponent, -1022) - 52
    scaled = size / Fraction(2) ** unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    whole += up
    if whole.bit_length() + unit > 1024:
        away = mode == "rn" or (mode == "rm" and negative) or (mode == "rp" and not negative)
        result = float("inf") if away else float.fromhex("0x1.fffffffffffffp1023")
    else:
        result = float(np.ldexp(float(whole), unit))
    return -result if negative else result


def exact_f64(function: Callable[..., Fraction], mode: str, *operands: Array) -> Array:
    """A rational function of finite f64 arrays of one shape, rounded once. One element after the other: slow.

    An exact 0 gets the sign that IEEE 754 gives a difference: negative only when rounding down.
    """
    flat = [np.asarray(o, np.float64).reshape(-1) for o in operands]
    zero = -0.0 if mode == "rm" else 0.0
    found = [
        fraction_to_f64(function(*(Fraction(float(v)) for v in values)), mode, zero)
        for values in zip(*flat, strict=True)
    ]
    return np.array(found, np.float64).reshape(np.shape(operands[0]))
