"""What do instructions on bits compute? PTX ISA 9.7.1.14-22, 9.7.8, prmt 9.7.9.7.

Operands are unsigned arrays of raw bits, of shapes that broadcast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from emulator.arith.types import Array, bits_of, raw, typed, unsigned

__all__ = [
    "and_",
    "bfe",
    "bfi",
    "bfind",
    "bmsk",
    "brev",
    "clz",
    "cnot",
    "fns",
    "lop3",
    "not_",
    "or_",
    "popc",
    "prmt",
    "shf",
    "shl",
    "shr",
    "szext",
    "xor",
]

_ONE = np.uint64(1)
_PRMT_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}  # which byte goes to d.b0, d.b1, d.b2, d.b3, for each selector c[1:0]
_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def and_(type_: str, a: Any, b: Any) -> Array:
    """and (9.7.8.1), also of predicates (type "pred")."""
    return np.bitwise_and(_raw(type_, a), _raw(type_, b))


def or_(type_: str, a: Any, b: Any) -> Array:
    """or (9.7.8.2), also of predicates."""
    return np.bitwise_or(_raw(type_, a), _raw(type_, b))


def xor(type_: str, a: Any, b: Any) -> Array:
    """xor (9.7.8.3), also of predicates."""
    return np.bitwise_xor(_raw(type_, a), _raw(type_, b))


def not_(type_: str, a: Any) -> Array:
    """not (9.7.8.4), also of predicates."""
    return np.invert(_raw(type_, a))


def cnot(type_: str, a: Any) -> Array:
    """cnot: 1 where a is 0, else 0 (9.7.8.5)."""
    out: Array = (_raw(type_, a) == 0).astype(unsigned(bits_of(type_)))
    return out


def lop3(a: Any, b: Any, c: Any, lut: int) -> Array:
    """lop3.b32: any function of three bits; bit 4a+2b+c of `lut` is its value there (9.7.8.6)."""
    inputs = raw(a, 32), raw(b, 32), raw(c, 32)
    plan = _lop3_plan(lut & 0xFF)
    if plan is not None:
        (x, y, z), (not_x, not_y, not_z), first, second = plan
        left, middle, right = inputs[x], inputs[y], inputs[z]
        found = first(~left if not_x else left, ~middle if not_y else middle)
        return np.asarray(second(found, ~right if not_z else right))
    total: Array = np.zeros(np.broadcast_shapes(*(v.shape for v in inputs)), np.uint32)
    for row in range(8):
        if lut >> row & 1:
            p, q, r = (v if row >> (2 - i) & 1 else ~v for i, v in enumerate(inputs))
            total = total | (p & q & r)
    return total


_Operation: TypeAlias = Callable[[Any, Any], Any]
_Plan: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...], _Operation, _Operation]


@cache
def _lop3_plan(lut: int) -> _Plan | None:
    """Two operations that make the table, as most tables that compilers emit have; None without."""
    columns = 0xF0, 0xCC, 0xAA  # what the table of a, of b, of c alone is
    operations: tuple[_Operation, ...] = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    signs = sorted(itertools.product((False, True), repeat=3), key=sum)
    for invert, order in itertools.product(signs, ((0, 1, 2), (0, 2, 1), (1, 2, 0))):
        x, y, z = (columns[o] ^ (0xFF if n else 0) for o, n in zip(order, invert, strict=True))
        for first, second in itertools.product(operations, repeat=2):
            if int(second(first(x, y), z)) == lut:
                return order, invert, first, second
    return None


def shl(type_: str, a: Any, b: Any) -> Array:
    """shl: zero-filled; amounts from the width on give 0 (9.7.8.8)."""
    a = _raw(type_, a)
    # numpy's shifts, unlike C's, are defined for amounts past the width: nothing or the sign is left.
    out: Array = np.left_shift(a, _amount(b, a.dtype))
    return out


def shr(type_: str, a: Any, b: Any) -> Array:
    """shr: sign-filled for .s types; amounts are clamped to the width (9.7.8.9)."""
    value = typed(type_, a)
    found = np.right_shift(value, _amount(b, value.dtype))
    return found.view(unsigned(bits_of(type_)))


def _amount(b: Any, dtype: Any) -> Array:
    amount = raw(b, 32)
    if dtype.itemsize == 4:
        return amount.view(dtype)
    return np.minimum(amount, np.uint32(255)).astype(dtype)


def shf(direction: str, mode: str, a: Any, b: Any, c: Any) -> Array:
    """shf.l, .r of the 64-bit value {b, a} (9.7.8.7). `direction` "l" or "r", `mode` "clamp" or "wrap"."""
    amount = raw(c, 32)
    amount = np.minimum(amount, np.uint32(32)) if mode == "clamp" else amount & np.uint32(31)
    value = raw(a, 32).astype(np.uint64) | raw(b, 32).astype(np.uint64) << np.uint64(32)
    if direction == "l":
        return (value << amount.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
    return (value >> amount.astype(np.uint64)).astype(np.uint32)


def popc(type_: str, a: Any) -> Array:
    """popc: how many bits are set, as .u32 (9.7.1.14)."""
    count = raw(a, bits_of(type_)).astype(np.uint64)
    for width, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        count = (count & np.uint64(mask)) + (count >> np.uint64(width) & np.uint64(mask))
    return (count * np.uint64(0x0101010101010101) >> np.uint64(56)).astype(np.uint32)


def clz(type_: str, a: Any) -> Array:
    """clz: leading zero bits, as .u32; the width for 0 (9.7.1.15)."""
    bits = bits_of(type_)
    a = raw(a, bits)
    if bits == 64:
        high = (a >> np.uint64(32)).astype(np.uint32)
        return np.where(high == 0, 32 + _leading(a.astype(np.uint32)), _leading(high)).astype(np.uint32)
    return _leading(a)


def bfind(type_: str, a: Any, shiftamt: bool = False) -> Array:
    """bfind: place of the highest bit that is no sign bit, as .u32; 0xffffffff for none (9.7.1.16)."""
    bits = bits_of(type_)
    value = raw(a, bits)
    if type_[0] == "s":
        value = np.where(value >> np.uint8(bits - 1) == 1, ~value, value)
    leading = clz(type_, value)
    none = leading == bits
    found = leading if shiftamt else np.uint32(bits - 1) - leading
    return np.where(none, np.uint32(0xFFFFFFFF), found)


def fns(mask: Any, base: Any, offset: Any) -> Array:
    """fns.b32: the |offset|-th set bit of mask from `base` on, up or down; 0xffffffff for none (9.7.1.17)."""
    mask, base, offset = np.broadcast_arrays(raw(mask, 32), typed("s32", base), typed("s32", offset))
    found = np.full(mask.shape, 0xFFFFFFFF, np.uint32)
    wanted = np.where(offset == 0, 1, np.abs(offset.astype(np.int64)))
    for step in range(32):
        position = base + np.where(offset >= 0, step, -step)
        inside = (position >= 0) & (position < 32)
        if step:
            inside &= offset != 0
        here = inside & (mask >> np.where(inside, position, 0).astype(np.uint32) & 1 == 1)
        wanted = wanted - here
        found = np.where(here & (wanted == 0), position.astype(np.uint32), found)
    return found


def brev(type_: str, a: Any) -> Array:
    """brev: the bits in reverse order (9.7.1.18)."""
    value = np.ascontiguousarray(_raw(type_, a))
    turned = _REVERSED[value[..., None].view(np.uint8)][..., ::-1]
    return np.ascontiguousarray(turned).view(value.dtype)[..., 0].reshape(np.shape(a))


def bfe(type_: str, a: Any, b: Any, c: Any) -> Array:
    """bfe: `c` bits of `a` from bit `b` on, zero- or sign-extended (9.7.1.19)."""
    bits = bits_of(type_)
    a = raw(a, bits)
    position, length = raw(b, 32) & np.uint32(0xFF), raw(c, 32) & np.uint32(0xFF)
    mask = _ones(length, bits)
    found = _right(a, position, bits) & mask
    if type_[0] != "s":
        return found
    last = np.minimum(position + length - (length > 0), np.uint32(bits - 1))
    negative = (_right(a, last, bits) & a.dtype.type(1) == 1) & (length > 0)
    # Bits past the end of `a` are sign bits too.
    inside = np.where(position >= bits, 0, np.minimum(length, bits - np.minimum(position, np.uint32(bits))))
    return np.where(negative, found | ~_ones(inside.astype(np.uint32), bits), found)


def bfi(type_: str, a: Any, b: Any, c: Any, d: Any) -> Array:
    """bfi: `b` with `d` bits of `a` put in at bit `c` (9.7.1.20)."""
    bits = bits_of(type_)
    position, length = raw(c, 32) & np.uint32(0xFF), raw(d, 32) & np.uint32(0xFF)
    mask = _left(_ones(length, bits), position, bits)
    return (raw(b, bits) & ~mask) | (_left(raw(a, bits), position, bits) & mask)


def szext(mode: str, type_: str, a: Any, b: Any) -> Array:
    """szext.clamp, .wrap: the low `b` bits of `a`, sign- or zero-extended (9.7.1.21)."""
    a, n = raw(a, 32), raw(b, 32)
    length = n & np.uint32(31)
    mask = _ones(length, 32)
    found = a & mask
    if type_[0] == "s":
        sign = _right(a, np.maximum(length, np.uint32(1)) - np.uint32(1), 32) & np.uint32(1)
        found = np.where((sign == 1) & (length > 0), found | ~mask, found)
    out: Array = np.where(n >= 32, a, found) if mode == "clamp" else found
    return out


def bmsk(mode: str, a: Any, b: Any) -> Array:
    """bmsk.clamp, .wrap: `b` set bits from bit `a` on (9.7.1.22)."""
    position, length = raw(a, 32), raw(b, 32)
    if mode == "clamp":
        length = np.minimum(length, np.uint32(32))
    else:
        position, length = position & np.uint32(31), length & np.uint32(31)
    return _left(_ones(length, 32), position, 32)


def prmt(a: Any, b: Any, c: Any, mode: str | None = None) -> Array:
    """prmt.b32: four bytes of {b, a} as the selectors in `c` say (9.7.9.7). `mode`: "f4e", "b4e", …"""
    a, b, control = raw(a, 32), raw(b, 32), raw(c, 32)
    if control.size == 1:
        return _prmt_same(a, b, int(control.reshape(-1)[0]), mode, control.ndim)
    source = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    total: Array = np.zeros((), np.uint32)
    for i in range(4):
        if mode is None:
            select = control >> np.uint32(4 * i) & np.uint32(15)
            byte = (source >> ((select & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(np.uint8)
            byte = np.where(select >= 8, (byte.view(np.int8) >> np.int8(7)).view(np.uint8), byte)
        else:
            table = np.array([row[i] for row in _PRMT_MODES[mode]], np.uint64)
            byte = (source >> table[control & np.uint32(3)] * np.uint64(8)).astype(np.uint8)
        total = total | byte.astype(np.uint32) << np.uint32(8 * i)
    return total


def _prmt_same(a: Array, b: Array, control: int, mode: str | None, dimensions: int) -> Array:
    """prmt with one control for all lanes: a choice among the eight bytes."""
    shape = np.broadcast_shapes(a.shape, b.shape, (1,) * dimensions)
    both = np.empty((*shape, 2), np.uint32)
    both[..., 0], both[..., 1] = a, b
    source = both.view(np.uint8)
    if mode is not None:
        select: tuple[int, ...] = _PRMT_MODES[mode][control & 3]
    else:
        select = tuple(control >> 4 * i & 15 for i in range(4))
    chosen = source[..., [i & 7 for i in select]]
    for i, s in enumerate(select):
        if s >= 8:
            chosen[..., i] = (chosen[..., i].view(np.int8) >> np.int8(7)).view(np.uint8)
    return np.ascontiguousarray(chosen).view(np.uint32)[..., 0]


def _raw(type_: str, a: Any) -> Array:
    if type_ == "pred":
        return np.asarray(a, np.bool_)
    return raw(a, bits_of(type_))


def _left(a: Array, amount: Array, bits: int) -> Array:
    width = np.uint32(bits - 1)
    out: Array = np.where(amount > width, a.dtype.type(0), a << (amount & width).astype(a.dtype))
    return out


def _right(a: Array, amount: Array, bits: int) -> Array:
    width = np.uint32(bits - 1)
    out: Array = np.where(amount > width, a.dtype.type(0), a >> (amount & width).astype(a.dtype))
    return out


def _ones(length: Array, bits: int) -> Array:
    """The low `length` bits set, all from `bits` on."""
    one = np.ones(np.shape(length), unsigned(bits))
    return np.subtract(_left(one, length, bits), one)


def _leading(a: Array) -> Array:
    """Leading zeros of 16- or 32-bit numbers: their exponent as floats tells."""
    bits = a.dtype.itemsize * 8
    return (bits - np.frexp(a.astype(np.float64))[1]).astype(np.uint32)
