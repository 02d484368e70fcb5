"""What does a WGMMA compute: where do its operands lie in shared memory, and which register holds what?

PTX ISA 9.7.15.5. M is 64, and K always 32 bytes of elements. An operand in shared memory is a set of 16-byte
pieces: K-major each holds elements of one row, MN-major elements of one k. Products are exact, summed in f64
with the accumulator and rounded once an instruction; how the tensor core rounds inside is not documented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from emulator.arith.floats import NAN
from emulator.arith.formats import table
from emulator.arith.types import Array

__all__ = [
    "ROWS",
    "Descriptor",
    "a_matrix",
    "accumulate",
    "elements",
    "from_registers",
    "pieces",
    "to_registers",
]

ROWS = 64
K_BYTES = 32
_SWIZZLES = (0, 128, 64, 32)
_RESERVED = 0x3FF1C000C000C000
"""Bits that no field has: 14-15, 30-31, 46-48, 52-61."""


@dataclass(frozen=True)
class Descriptor:
    """A matrix descriptor (PTX ISA 9.7.15.5.1, shared memory matrix layout); all in bytes."""

    start: int
    leading: int
    stride: int
    base: int
    swizzle: int

    @classmethod
    def of(cls, bits: int) -> Descriptor:
        """From its 64 bits. ValueError where a reserved bit is set."""
        if bits & _RESERVED:
            raise ValueError(f"its matrix descriptor {bits:#x} has reserved bits set")
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        return cls(start, leading, stride, bits >> 49 & 7, _SWIZZLES[bits >> 62])


@cache
def pieces(bits: int, extent: int, mn_major: bool) -> Array:
    """Addresses of the 16-byte pieces of an operand with `extent` rows (or columns of B): (extent, 2),
    MN-major (16, extent / 8) with k first. ValueError for a descriptor that cannot be."""
    d = Descriptor.of(bits)
    wide = d.swizzle
    if mn_major:
        k, block = np.arange(16)[:, None], np.arange(extent // 8)[None, :]
        if wide:
            each = wide // 16
            at = block % each * 16 + block // each * d.leading + k % 8 * wide + k // 8 * d.stride
        else:
            at = block * d.stride + k % 8 * 16 + k // 8 * d.leading
    else:
        row, half = np.arange(extent)[:, None], np.arange(2)[None, :]
        if wide:
            at = row % 8 * wide + row // 8 * d.stride + half * 16
        else:
            at = row % 8 * 16 + row // 8 * d.stride + half * d.leading
    address: Array = d.start + at.astype(np.int64)
    if wide:
        mask = {32: 0x10, 64: 0x30, 128: 0x70}[wide]
        address = address ^ (((address >> 3) - (d.base << 4)) & mask)
    address &= 0x3FFFF
    address.setflags(write=False)
    return address


def elements(kind: str, data: Array, mn_major: bool) -> Array:
    """(extent, k) in f64, of the pieces' bytes (extent, 2, 16), MN-major (16, extent / 8, 16)."""
    flat = np.ascontiguousarray(data).reshape(data.shape[0], -1)
    found = _numbers(kind, flat)
    return found.T if mn_major else found


def _numbers(kind: str, flat: Array) -> Array:
    """The numbers in rows of bytes, in f64."""
    match kind:
        case "f16":
            found = flat.view(np.float16)
        case "bf16":
            found = (flat.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "tf32":
            found = (flat.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        case "s8":
            found = flat.view(np.int8)
        case "u8":
            found = flat
        case _:
            found = _values(kind)[flat]
    out: Array = found.astype(np.float64)
    return out


@cache
def _values(kind: str) -> Array:
    return table(kind)[np.arange(256)].astype(np.float64)


def a_matrix(kind: str, registers: Array) -> Array:
    """A from registers (4, warps, 32): (warps, 16, k)."""
    warps = registers.shape[1]
    raw = np.ascontiguousarray(registers.transpose(1, 0, 2))
    numbers = _numbers(kind, raw.reshape(warps * 128, 1).view(np.uint8)).reshape(warps, 2, 2, 8, 4, -1)
    return numbers.transpose(0, 2, 3, 1, 4, 5).reshape(warps, 16, -1)


def from_registers(kind: str, registers: Array) -> Array:
    """The accumulator (warps, 16, n), f64 or (s32) int64, of registers (count, warps, 32)."""
    count, warps, _ = registers.shape
    if kind == "f16":
        halves = np.ascontiguousarray(registers).view(np.float16).reshape(count // 2, 2, warps, 8, 4, 2)
        return halves.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1).astype(np.float64)
    words = registers.view(np.int32 if kind == "s32" else np.float32)
    parts = words.reshape(count // 4, 2, 2, warps, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    return parts.reshape(warps, 16, -1).astype(np.int64 if kind == "s32" else np.float64)


def to_registers(kind: str, d: Array) -> Array:
    """Registers (count, warps, 32) of the accumulator (warps, 16, n), which holds what its type can."""
    warps, _, n = d.shape
    if kind == "f16":
        halves = d.astype(np.float16).reshape(warps, 2, 8, n // 8, 4, 2).transpose(3, 1, 0, 2, 4, 5)
        return np.ascontiguousarray(halves).view(np.uint32).reshape(n // 4, warps, 32)
    words = d.astype(np.int32 if kind == "s32" else np.float32).view(np.uint32)
    parts = words.reshape(warps, 2, 8, n // 8, 4, 2).transpose(3, 1, 5, 0, 2, 4)
    return np.ascontiguousarray(parts).reshape(n // 2, warps, 32)


def accumulate(
    kind: str, a: Array, b: Array, c: Array | None, signs: Sequence[int], satfinite: bool, bits: int | None
) -> Array:
    """A (rows, k) B^T (n, k) + C, rounded to the type of D but kept as f64 (s32: int64). `bits` of the
    mantissa that the tensor core keeps of its sum, None for all."""
    # The elements are negated, not their sum: what cancels is +0 either way.
    total = (a if signs[0] == signs[1] else -a) @ b.T
    if kind == "s32":
        whole = np.rint(total).astype(np.int64) + (0 if c is None else c)
        if satfinite:
            cut: Array = np.clip(whole, -(1 << 31), (1 << 31) - 1)
            return cut
        out: Array = whole.astype(np.int32).astype(np.int64)
        return out
    if bits is not None:
        total = _aligned(total, c, bits)
    elif c is not None:
        total = total + c
    rounded = total.astype(np.float16 if kind == "f16" else np.float32)
    nan = rounded != rounded
    if nan.any():
        words = rounded.view(np.uint16 if kind == "f16" else np.uint32)
        words[nan] = NAN[kind]
    found: Array = rounded.astype(np.float64)
    return found


def _aligned(total: Array, c: Array | None, bits: int) -> Array:
    """The sum of products and C, both cut to `bits` of mantissa below the larger one: as fp8 sums on Hopper
    were measured to be (about 14 bits, its leading one among them)."""
    most = np.abs(total) if c is None else np.maximum(np.abs(total), np.abs(c))
    _, exponent = np.frexp(np.where(np.isfinite(most), most, 1.0))
    unit = np.ldexp(1.0, exponent - bits)
    cut = np.trunc(total / unit)
    if c is not None:
        cut = cut + np.trunc(c / unit)
    out: Array = np.where(np.isfinite(most), cut * unit, total if c is None else total + c)
    return out
