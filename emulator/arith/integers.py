"""What do integer instructions compute? PTX ISA 9.7.1 and 9.7.2.

Operands are unsigned arrays of raw bits, of shapes that broadcast; the result has the instruction's width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arith.types import Array, Bools, bits_of, pairs, raw, signed, typed, unsigned

__all__ = [
    "abs_",
    "add",
    "addc",
    "div",
    "dp2a",
    "dp4a",
    "mad",
    "mad24",
    "madc",
    "max_",
    "min_",
    "mul",
    "mul24",
    "neg",
    "rem",
    "sad",
    "sub",
    "subc",
]


def add(type_: str, a: Any, b: Any, sat: bool = False) -> Array:
    """add (9.7.1.1), also .u16x2 and .s16x2; `sat` clamps to the range of s32."""
    if type_ in ("u16x2", "s16x2"):
        return pairs(np.add, a, b)
    if sat:
        return _clamped(typed(type_, a).astype(np.int64) + typed(type_, b))
    return np.add(_raw(type_, a), _raw(type_, b))


def sub(type_: str, a: Any, b: Any, sat: bool = False) -> Array:
    """sub (9.7.1.2); `sat` clamps to the range of s32."""
    if type_ in ("u16x2", "s16x2"):
        return pairs(np.subtract, a, b)
    if sat:
        return _clamped(typed(type_, a).astype(np.int64) - typed(type_, b))
    return np.subtract(_raw(type_, a), _raw(type_, b))


def addc(type_: str, a: Any, b: Any, carry: Bools | None = None) -> tuple[Array, Bools]:
    """add.cc (`carry` None) and addc{.cc} (9.7.2.1, 9.7.2.2): the sum and the carry out."""
    a, b = _raw(type_, a), _raw(type_, b)
    total = np.add(a, b)
    over = total < a
    if carry is not None:
        total = np.add(total, carry.astype(total.dtype))
        over = over | (carry & (total == 0))
    return total, over


def subc(type_: str, a: Any, b: Any, borrow: Bools | None = None) -> tuple[Array, Bools]:
    """sub.cc (`borrow` None) and subc{.cc} (9.7.2.3, 9.7.2.4): the difference and the borrow out."""
    a, b = _raw(type_, a), _raw(type_, b)
    rest = np.subtract(a, b)
    under = a < b
    if borrow is not None:
        under = under | (borrow & (rest == 0))
        rest = np.subtract(rest, borrow.astype(rest.dtype))
    return rest, under


def mul(type_: str, part: str, a: Any, b: Any) -> Array:
    """mul.lo, .hi (the width of the type) and .wide (twice that) (9.7.1.3). `part`: "lo", "hi", "wide"."""
    bits = bits_of(type_)
    if part == "lo":
        return np.multiply(_raw(type_, a), _raw(type_, b))
    if bits == 64:
        if part == "wide":
            raise ValueError("mul.wide takes 16- or 32-bit types")
        return _high64(type_, raw(a, 64), raw(b, 64))
    wide = signed(2 * bits) if type_[0] == "s" else unsigned(2 * bits)
    product = np.multiply(typed(type_, a).astype(wide), typed(type_, b)).view(unsigned(2 * bits))
    if part == "wide":
        return product
    return (product >> np.uint8(bits)).astype(unsigned(bits))


def mad(type_: str, part: str, a: Any, b: Any, c: Any, sat: bool = False) -> Array:
    """mad.lo, .hi, .wide (9.7.1.4); `c` has the result's width; `sat` (hi.s32 only) clamps the sum."""
    product = mul(type_, part, a, b)
    if sat:
        return _clamped(product.view(np.int32).astype(np.int64) + typed("s32", c))
    out: Array = np.add(product, np.asarray(c).astype(product.dtype, copy=False))
    return out


def madc(type_: str, part: str, a: Any, b: Any, c: Any, carry: Bools | None = None) -> tuple[Array, Bools]:
    """mad.cc (`carry` None) and madc{.cc} (9.7.2.5, 9.7.2.6), lo or hi: the sum and the carry out."""
    return addc(type_, mul(type_, part, a, b), c, carry)


def mul24(type_: str, part: str, a: Any, b: Any) -> Array:
    """mul24.lo, .hi: bits 31:0 or 47:16 of the product of 24-bit numbers (9.7.1.5)."""
    product = np.multiply(_low24(type_, a), _low24(type_, b))
    return (product if part == "lo" else product >> 16).astype(np.uint32)


def mad24(type_: str, part: str, a: Any, b: Any, c: Any, sat: bool = False) -> Array:
    """mad24.lo, .hi (9.7.1.6); `sat` (hi.s32 only) clamps the sum."""
    product = mul24(type_, part, a, b)
    if sat:
        return _clamped(product.view(np.int32).astype(np.int64) + typed("s32", c))
    return np.add(product, raw(c, 32))


def sad(type_: str, a: Any, b: Any, c: Any) -> Array:
    """sad: c + |a - b| (9.7.1.7)."""
    less = typed(type_, a) < typed(type_, b)
    a, b = _raw(type_, a), _raw(type_, b)
    out: Array = np.add(np.where(less, b - a, a - b), _raw(type_, c))
    return out


def div(type_: str, a: Any, b: Any) -> Array:
    """div, towards zero (9.7.1.8). By zero, which is unspecified: all bits set."""
    return _divide(type_, a, b)[0]


def rem(type_: str, a: Any, b: Any) -> Array:
    """rem, with the sign of the dividend (9.7.1.9). By zero, which is unspecified: all bits set."""
    return _divide(type_, a, b)[1]


def abs_(type_: str, a: Any) -> Array:
    """abs (9.7.1.10); that of the least number is itself."""
    a = _raw(type_, a)
    out: Array = np.where(a >> np.uint8(bits_of(type_) - 1) == 1, np.negative(a), a)
    return out


def neg(type_: str, a: Any) -> Array:
    """neg (9.7.1.11)."""
    return np.negative(_raw(type_, a))


def min_(type_: str, a: Any, b: Any, relu: bool = False) -> Array:
    """min, also .u16x2 and .s16x2; `relu` clamps to 0 if negative (9.7.1.12)."""
    return _least(type_, a, b, np.minimum, relu)


def max_(type_: str, a: Any, b: Any, relu: bool = False) -> Array:
    """max, also .u16x2 and .s16x2; `relu` clamps to 0 if negative (9.7.1.13)."""
    return _least(type_, a, b, np.maximum, relu)


def dp4a(a_type: str, b_type: str, a: Any, b: Any, c: Any) -> Array:
    """dp4a: c plus four products of bytes, modulo 2^32 (9.7.1.23)."""
    total = raw(c, 32).astype(np.int64)
    for shift in (0, 8, 16, 24):
        total = total + _field(a_type, a, shift, 8) * _field(b_type, b, shift, 8)
    return total.astype(np.uint32)


def dp2a(mode: str, a_type: str, b_type: str, a: Any, b: Any, c: Any) -> Array:
    """dp2a.lo, .hi: c plus two products of a half word and a byte, modulo 2^32 (9.7.1.24)."""
    total = raw(c, 32).astype(np.int64)
    first = 0 if mode == "lo" else 16
    for i in (0, 1):
        total = total + _field(a_type, a, 16 * i, 16) * _field(b_type, b, first + 8 * i, 8)
    return total.astype(np.uint32)


def _raw(type_: str, a: Any) -> Array:
    return raw(a, bits_of(type_))


def _clamped(value: Array) -> Array:
    return np.clip(value, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32)


def _high64(type_: str, a: Array, b: Array) -> Array:
    """Bits 127:64 of a product, from four of 32 bits each."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint8(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high: Array = a1 * b1 + (middle >> half) + (other >> half)
    if type_[0] == "s":
        high = high - np.where(a >> np.uint8(63) == 1, b, 0) - np.where(b >> np.uint8(63) == 1, a, 0)
    return high.astype(np.uint64, copy=False)


def _low24(type_: str, a: Any) -> Array:
    low = raw(a, 32) << np.uint8(8)
    if type_[0] == "s":
        return (low.view(np.int32) >> np.int32(8)).astype(np.int64)
    return (low >> np.uint8(8)).astype(np.int64)


def _divide(type_: str, a: Any, b: Any) -> tuple[Array, Array]:
    bits = bits_of(type_)
    a, b = _raw(type_, a), _raw(type_, b)
    zero = b == 0
    ones = unsigned(bits)(2**bits - 1)
    if type_[0] != "s":
        quotient, rest = np.divmod(a, np.where(zero, unsigned(bits)(1), b))
    else:
        a_negative, b_negative = typed(type_, a) < 0, typed(type_, b) < 0
        size_a = np.where(a_negative, np.negative(a), a)
        size_b = np.where(zero, unsigned(bits)(1), np.where(b_negative, np.negative(b), b))
        quotient, rest = np.divmod(size_a, size_b)
        quotient = np.where(a_negative != b_negative, np.negative(quotient), quotient)
        rest = np.where(a_negative, np.negative(rest), rest)
    return np.where(zero, ones, quotient), np.where(zero, ones, rest)


def _least(type_: str, a: Any, b: Any, which: Any, relu: bool) -> Array:
    if type_.endswith("16x2"):
        half = type_[:-2]
        return pairs(lambda x, y: _least(half, x, y, which, relu), a, b)
    found: Array = which(typed(type_, a), typed(type_, b))
    if relu:
        found = np.maximum(found, found.dtype.type(0))
    return found.view(unsigned(bits_of(type_)))


def _field(type_: str, a: Any, shift: int, bits: int) -> Array:
    part = (raw(a, 32) >> np.uint8(shift)).astype(unsigned(bits))
    return (part.view(signed(bits)) if type_[0] == "s" else part).astype(np.int64)
