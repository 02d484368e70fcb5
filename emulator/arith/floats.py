"""What do f32 and f64 instructions compute? PTX ISA 9.7.3.

Operands are unsigned arrays of raw bits (uint32 or uint64) of shapes that broadcast; the result has the width
of the type; `.f32x2` is two f32 in 64 bits. f32 results that are NaN are 0x7fffffff, as the hardware's. `rnd`
is "rn", "rz", "rm" or "rp". Approximate instructions are computed in f64 and rounded once: inside every
documented bound, but not the bits of the hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arith.compare import flush, numbers
from emulator.arith.directed import add64, directed, fma64, sqrt_directed, towards
from emulator.arith.rounding import round_f32, sum_to_odd
from emulator.arith.types import Array, bits_of, pairs, raw, typed, unsigned

__all__ = [
    "NAN",
    "abs_",
    "add",
    "copysign",
    "cos",
    "div",
    "ex2",
    "extreme",
    "fma",
    "lg2",
    "max_",
    "min_",
    "mul",
    "neg",
    "rcp",
    "rsqrt",
    "sin",
    "sqrt",
    "sub",
    "tanh",
]

NAN: dict[str, Any] = {
    "f16": np.uint16(0x7FFF),
    "bf16": np.uint16(0x7FFF),
    "f32": np.uint32(0x7FFFFFFF),
    "f64": np.uint64(0x7FF8000000000000),
}


def add(type_: str, a: Any, b: Any, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """add (9.7.3.3)."""
    if type_ == "f32x2":
        return pairs(lambda x, y: add("f32", x, y, rnd, ftz), a, b, bits=64)
    with np.errstate(all="ignore"):
        if type_ == "f64":
            return add64(typed("f64", a), typed("f64", b), rnd).view(np.uint64)
        x, y = _read(a, ftz), _read(b, ftz)
        if rnd == "rn":
            return _write(np.add(x, y), ftz, sat)
        return _write(_sum32(x.astype(np.float64), y.astype(np.float64), rnd), ftz, sat)


def sub(type_: str, a: Any, b: Any, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """sub (9.7.3.4): adds the negated `b`."""
    return add(type_, a, neg(type_, b), rnd, ftz, sat)


def mul(type_: str, a: Any, b: Any, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """mul (9.7.3.5)."""
    if type_ == "f32x2":
        return pairs(lambda x, y: mul("f32", x, y, rnd, ftz), a, b, bits=64)
    with np.errstate(all="ignore"):
        if type_ == "f64":
            x, y = typed("f64", a), typed("f64", b)
            near = np.asarray(x * y)
            if rnd != "rn":
                near = directed(near, lambda p, q: p * q, rnd, x, y, where=(x != 0) & (y != 0))
            return near.view(np.uint64)
        x, y = _read(a, ftz), _read(b, ftz)
        if rnd == "rn":
            return _write(np.multiply(x, y), ftz, sat)
        return _write(round_f32(np.multiply(x, y, dtype=np.float64), rnd), ftz, sat)


def fma(type_: str, a: Any, b: Any, c: Any, rnd: str = "rn", ftz: bool = False, sat: bool = False) -> Array:
    """fma, and mad of floats (9.7.3.6, 9.7.3.7): a * b + c with one rounding."""
    if type_ == "f32x2":
        return pairs(lambda x, y, z: fma("f32", x, y, z, rnd, ftz), a, b, c, bits=64)
    with np.errstate(all="ignore"):
        if type_ == "f64":
            x, y, z = np.broadcast_arrays(typed("f64", a), typed("f64", b), typed("f64", c))
            return fma64(x, y, z, rnd).view(np.uint64)
        # The product of two f32 is exact in f64.
        product = np.multiply(_read(a, ftz), _read(b, ftz), dtype=np.float64)
        addend = _read(c, ftz).astype(np.float64)
        if rnd == "rn" and not sat:
            found = _fma32_usual(product, addend)
            if found is not None:
                return found
        return _write(_sum32(product, addend, rnd), ftz, sat)


def neg(type_: str, a: Any, ftz: bool = False) -> Array:
    """neg (9.7.3.10): the sign bit turned."""
    if type_ == "f32x2":
        return pairs(lambda x: neg("f32", x), a, bits=64)
    bits = bits_of(type_)
    a = flush("f32", a) if ftz else raw(a, bits)
    out: Array = np.bitwise_xor(a, unsigned(bits)(1 << (bits - 1)))
    return out


def abs_(type_: str, a: Any, ftz: bool = False) -> Array:
    """abs (9.7.3.9): the sign bit cleared."""
    bits = bits_of(type_)
    a = flush("f32", a) if ftz else raw(a, bits)
    out: Array = np.bitwise_and(a, unsigned(bits)((1 << (bits - 1)) - 1))
    return out


def copysign(type_: str, a: Any, b: Any) -> Array:
    """copysign: the value of `b` with the sign of `a` (9.7.3.2)."""
    bits = bits_of(type_)
    sign = unsigned(bits)(1 << (bits - 1))
    out: Array = (raw(a, bits) & sign) | (raw(b, bits) & ~sign)
    return out


def min_(
    type_: str,
    a: Any,
    b: Any,
    c: Any = None,
    ftz: bool = False,
    nan: bool = False,
    absolute: bool = False,
    xorsign: bool = False,
) -> Array:
    """min of two or three (9.7.3.11): -0 is less than +0; a NaN is passed over, or with `nan` wins."""
    return extreme(type_, True, a, b, c, ftz, nan, absolute, xorsign)


def max_(
    type_: str,
    a: Any,
    b: Any,
    c: Any = None,
    ftz: bool = False,
    nan: bool = False,
    absolute: bool = False,
    xorsign: bool = False,
) -> Array:
    """max of two or three (9.7.3.12): +0 is greater than -0; a NaN is passed over, or with `nan` wins."""
    return extreme(type_, False, a, b, c, ftz, nan, absolute, xorsign)


def div(type_: str, a: Any, b: Any, rnd: str = "rn", ftz: bool = False) -> Array:
    """div (9.7.3.8). `rnd` may also be "approx" or "full"."""
    with np.errstate(all="ignore"):
        if type_ == "f64":
            x, y = np.broadcast_arrays(typed("f64", a), typed("f64", b))
            near = np.asarray(x / y)
            if rnd != "rn":
                near = directed(near, lambda p, q: p / q, rnd, x, y, where=(x != 0) & (y != 0))
            return near.view(np.uint64)
        x, y = _read(a, ftz), _read(b, ftz)
        near = np.divide(x, y)
        if rnd in ("rz", "rm", "rp"):
            # near * y against x, both exact in f64, says on which side of the quotient `near` lies.
            side = np.sign(near.astype(np.float64) * y - x.astype(np.float64)) * np.sign(y)
            near = towards(near, side, rnd, np.isfinite(x) & np.isfinite(y) & (y != 0), x, y)
        elif rnd == "approx":
            large = np.isfinite(y) & (np.abs(y) > np.float32(2.0**126))
            zero = np.copysign(np.float32(0), np.multiply(np.sign(x), np.sign(y)))
            near = np.where(large & ~np.isnan(x), np.where(np.isinf(x), np.float32(np.nan), zero), near)
        return _write(near, ftz)


def rcp(type_: str, a: Any, rnd: str = "rn", ftz: bool = False) -> Array:
    """rcp (9.7.3.13), and rcp.approx.ftz.f64 (9.7.3.14) with `rnd` "approx"."""
    if type_ == "f64" and rnd == "approx":
        return _gross64(lambda x: 1.0 / x, a)
    one = np.uint32(0x3F800000) if type_ == "f32" else np.uint64(0x3FF0000000000000)
    return div(type_, np.full((1,) * np.ndim(a), one), a, "rn" if rnd == "approx" else rnd, ftz)


def sqrt(type_: str, a: Any, rnd: str = "rn", ftz: bool = False) -> Array:
    """sqrt (9.7.3.15). `rnd` may also be "approx"."""
    with np.errstate(all="ignore"):
        if type_ == "f64":
            x = typed("f64", a)
            near = np.asarray(np.sqrt(x))
            if rnd != "rn":
                near = sqrt_directed(near, x, rnd)
            return near.view(np.uint64)
        x = _read(a, ftz)
        near = np.sqrt(x)
        if rnd in ("rz", "rm", "rp"):
            wide = near.astype(np.float64)
            near = towards(near, np.sign(wide * wide - x), rnd, np.isfinite(x) & (x > 0), x, x)
        return _write(near, ftz)


def rsqrt(type_: str, a: Any, ftz: bool = False) -> Array:
    """rsqrt.approx (9.7.3.16); with f64 and `ftz` rsqrt.approx.ftz.f64 (9.7.3.17)."""
    if type_ == "f64":
        if ftz:
            return _gross64(lambda x: 1.0 / np.sqrt(x), a)
        with np.errstate(all="ignore"):
            return np.asarray(1.0 / np.sqrt(typed("f64", a))).view(np.uint64)
    return _approx(lambda x: 1.0 / np.sqrt(x), a, ftz)


def sin(a: Any, ftz: bool = False) -> Array:
    """sin.approx.f32 (9.7.3.18)."""
    return _approx(np.sin, a, ftz)


def cos(a: Any, ftz: bool = False) -> Array:
    """cos.approx.f32 (9.7.3.19)."""
    return _approx(np.cos, a, ftz)


def lg2(a: Any, ftz: bool = False) -> Array:
    """lg2.approx.f32 (9.7.3.20)."""
    return _approx(np.log2, a, ftz)


def ex2(a: Any, ftz: bool = False) -> Array:
    """ex2.approx.f32 (9.7.3.21)."""
    return _approx(np.exp2, a, ftz)


def tanh(a: Any) -> Array:
    """tanh.approx.f32 (9.7.3.22)."""
    return _approx(np.tanh, a, False)


def _read(a: Any, ftz: bool) -> Array:
    return (flush("f32", a) if ftz else raw(a, 32)).view(np.float32)


def _write(x: Array, ftz: bool, sat: bool = False) -> Array:
    x = np.asarray(x)
    bits = x.view(np.uint32)
    nan = x != x
    if sat:
        return np.where(nan | (x <= 0), np.float32(0), np.minimum(x, np.float32(1))).view(np.uint32)
    if nan.any():
        bits = np.where(nan, NAN["f32"], bits)
    return flush("f32", bits) if ftz else bits


def _approx(function: Callable[[Array], Any], a: Any, ftz: bool) -> Array:
    with np.errstate(all="ignore"):
        return _write(np.asarray(function(_read(a, ftz).astype(np.float64))).astype(np.float32), ftz)


def _sum32(x: Array, y: Array, rnd: str) -> Array:
    """x + y of exact f64 values, as f32 with one rounding."""
    total = sum_to_odd(x, y)
    found = round_f32(total, rnd)
    if rnd == "rm":  # an exact 0 of two numbers with different signs is -0 when rounding down
        found = np.where((total == 0) & (np.signbit(x) != np.signbit(y)), np.float32(-0.0), found)
    return found


def _fma32_usual(x: Array, y: Array) -> Array | None:
    """x + y as f32 by way of f64, None where that could round twice or the result is not a normal number.

    Rounding twice goes wrong only if f64 lands on the middle between two f32, where the lower 29 bits say so.
    """
    total = np.asarray(x + y)
    found = np.asarray(total.astype(np.float32)).view(np.uint32)
    doubtful = total.view(np.uint64) & np.uint64(0x1FFFFFFF) == np.uint64(0x10000000)
    # True for the exponents 0 and 255.
    doubtful |= found + np.uint32(0x00800000) & np.uint32(0x7F000000) == 0
    return None if doubtful.any() else found


def _gross64(function: Callable[[Array], Any], a: Any) -> Array:
    """The upper 32 bits of the result from the upper 32 bits of the operand; subnormals are zero."""
    bits = raw(a, 64) & np.uint64(0xFFFFFFFF00000000)
    least, sign = np.uint64(0x7FF0000000000000), np.uint64(1 << 63)
    bits = np.where(bits & least == 0, bits & sign, bits)
    with np.errstate(all="ignore"):
        found = np.asarray(function(bits.view(np.float64)))
    out = found.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    out = np.where(out & least == 0, out & sign, out)
    return np.where(found != found, np.uint64(0x7FFFFFFF00000000), out)


def extreme(
    type_: str,
    least: bool,
    a: Any,
    b: Any,
    c: Any,
    ftz: bool,
    nan: bool,
    absolute: bool,
    xorsign: bool,
) -> Array:
    """min (`least`) or max of floats of any type, with all their modifiers."""
    bits = bits_of(type_)
    a, b = (flush(type_, v) if ftz else raw(v, bits) for v in (a, b))
    sign = unsigned(bits)(1 << (bits - 1))
    xor = (a ^ b) & sign
    if absolute:
        a, b = a & ~sign, b & ~sign
    found = _extreme_of_two(type_, least, a, b, nan)
    if c is not None:
        c = flush(type_, c) if ftz else raw(c, bits)
        found = _extreme_of_two(type_, least, found, c & ~sign if absolute else c, nan)
    elif xorsign:
        value = numbers(type_, found)
        found = np.where(value != value, found, (found & ~sign) | xor)
    return found


def _extreme_of_two(type_: str, least: bool, a: Array, b: Array, nan: bool) -> Array:
    x, y = numbers(type_, a), numbers(type_, b)
    # Between equal numbers only zeros differ: the sign bit decides.
    if least:
        found = np.where((x < y) | ((x == y) & (a > b)), a, b)
    else:
        found = np.where((x > y) | ((x == y) & (a < b)), a, b)
    canonical = NAN[type_]
    a_nan, b_nan = x != x, y != y
    if a_nan.any() or b_nan.any():
        both = a_nan | b_nan if nan else a_nan & b_nan
        found = np.where(both, canonical, np.where(a_nan, b, np.where(b_nan, a, found)))
    return found
