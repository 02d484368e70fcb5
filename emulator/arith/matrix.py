"""What do mma.sync and wmma.mma compute? PTX ISA 9.7.14.4 and 9.7.14.5.

Registers are lists of arrays (warps, 32), uint32 (f64: uint64), or of what broadcasts to that. Products are
exact; their sum is taken in f64 (integers: exactly) and rounded once to the type of D. The order, rounding
and subnormals of the hardware's own sum are unspecified, so results agree with it only within rounding.

Fragments of all shapes but Volta's m8n8k4 follow one rule. Lane = 4g + t; a register holds e elements.
Register kc * R + r of A, where R = m / 8, holds the elements (row g + 8r, k = 4e * kc + e * t + 0 … e-1);
register kc of B the same k of column g; C and D hold (row g + 8r, columns 2t and 2t + 1), r counting slowest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from emulator.arith import floats
from emulator.arith.floats import NAN
from emulator.arith.formats import FORMATS, table
from emulator.arith.fragments import gather, scatter, wmma_layout
from emulator.arith.types import Array, raw

__all__ = ["dimensions", "mma", "wmma"]

_BITS = {"f64": 64, "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
_BYTES = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
_SHAPES = {
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "s4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "e": ("m16n8k16", "m16n8k32"),
}


@cache
def dimensions(shape: str) -> tuple[int, int, int]:
    """(m, n, k) of "m16n8k16". ValueError for what is no shape."""
    match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape)
    if match is None:
        raise ValueError(f"{shape} is no shape of a matrix instruction")
    return int(match[1]), int(match[2]), int(match[3])


def mma(
    shape: str,
    a_type: str,
    b_type: str,
    c_type: str,
    d_type: str,
    a_layout: str,
    b_layout: str,
    a_regs: Sequence[Any],
    b_regs: Sequence[Any],
    c_regs: Sequence[Any],
    satfinite: bool = False,
    rnd: str = "rn",
) -> list[Array]:
    """mma.sync.aligned.shape: the registers of D. Layouts are "row" and "col" but for m8n8k4 of f16.

    kind::f8f6f4 takes its e2m3, e3m2 and e2m1 from bytes, as mma does. ValueError for a combination that is
    not here.
    """
    if shape == "m8n8k4" and a_type == "f16":
        return _volta(c_type, d_type, a_layout, b_layout, a_regs, b_regs, c_regs)
    if (a_layout, b_layout) != ("row", "col"):
        raise ValueError(f"mma.{shape} takes A by row and B by col")
    family = "e" if a_type in _BYTES else a_type.replace("u", "s")
    if shape not in _SHAPES.get(family, ()) or (a_type != b_type and family not in ("e", "s8", "s4")):
        raise ValueError(f"mma.{shape} does not take {a_type} and {b_type}")
    m, _, k = dimensions(shape)
    with np.errstate(all="ignore"):
        a, b = _decoded(a_type, a_regs), _decoded(b_type, b_regs)
        warps = max(a.shape[0], b.shape[0], *(np.shape(r)[0] for r in c_regs))
        each = a.shape[-1]
        chunks, halves = k // (4 * each), m // 8
        if a.shape[1] != chunks * halves or b.shape[1] != chunks:
            raise ValueError(
                f"mma.{shape} of {a_type} takes {chunks * halves} registers of A and {chunks} of B"
            )
        a = a.reshape(-1, chunks, halves, 8, 4, each).transpose(0, 2, 3, 1, 4, 5).reshape(-1, m, k)
        b = b.reshape(-1, chunks, 8, 4, each).transpose(0, 1, 3, 4, 2).reshape(-1, k, 8)
        c = _accumulator(c_type, c_regs, warps)
        d = _product(d_type, a.astype(np.float64), b.astype(np.float64), c, satfinite, rnd)
        return _accumulator_registers(d_type, np.broadcast_to(d, (warps, m, 8)))


def wmma(
    shape: str,
    a_type: str,
    b_type: str,
    c_type: str,
    d_type: str,
    a_layout: str,
    b_layout: str,
    a_regs: Sequence[Any],
    b_regs: Sequence[Any],
    c_regs: Sequence[Any],
    satfinite: bool = False,
    rnd: str = "rn",
    seed: int = 0,
) -> list[Array]:
    """wmma.mma.sync.aligned: the registers of D, for fragments laid out by wmma_layout with `seed`."""
    with np.errstate(all="ignore"):
        a = _matrix(wmma_layout(shape, "a", a_type, seed, a_layout), a_type, a_regs)
        b = _matrix(wmma_layout(shape, "b", b_type, seed, b_layout), b_type, b_regs)
        c = _matrix(wmma_layout(shape, "c", c_type, seed), c_type, c_regs)
        c = c.astype(np.int64 if c_type == "s32" else np.float64)
        d = _product(d_type, a.astype(np.float64), b.astype(np.float64), c, satfinite, rnd)
        return _encoded(d_type, scatter(wmma_layout(shape, "d", d_type, seed), d))


def _matrix(layout: tuple[Array, Array], type_: str, registers: Sequence[Any]) -> Array:
    """The matrices that registers hold."""
    return gather(layout, _decoded(type_, registers, by_lane=True))


def _encoded(type_: str, elements: Array) -> list[Array]:
    """Elements (warps, 32, count) of a result as registers."""
    if type_ == "f16":
        words = np.ascontiguousarray(elements).view(np.uint32)
    elif type_ == "f64":
        words = elements.view(np.uint64)
    else:
        words = elements.view(np.uint32)
    return [words[..., i] for i in range(words.shape[-1])]


def _stacked(registers: Sequence[Any], bits: int, by_lane: bool) -> Array:
    """Registers (warps, 32) as (warps, registers, 32), or (warps, 32, registers) for `by_lane`."""
    arrays = [raw(r, bits) for r in registers]
    warps = max(a.shape[0] for a in arrays)
    out = np.empty((warps, 32, len(arrays)) if by_lane else (warps, len(arrays), 32), arrays[0].dtype)
    for i, array in enumerate(arrays):
        if by_lane:
            out[:, :, i] = array
        else:
            out[:, i] = array
    return out


def _decoded(type_: str, registers: Sequence[Any], by_lane: bool = False) -> Array:
    """The numbers in registers: (warps, registers, 32, elements), exact in whatever type holds them.

    For `by_lane` (warps, 32, registers, elements).
    """
    if type_ == "f64":
        return _stacked(registers, 64, by_lane).view(np.float64)[..., None]
    words = _stacked(registers, 32, by_lane)
    found: Array
    match type_:
        case "f16":
            found = words.view(np.float16).reshape(*words.shape, 2)
        case "bf16":
            both = np.empty((*words.shape, 2), np.uint32)
            np.left_shift(words, np.uint32(16), out=both[..., 0])
            np.bitwise_and(words, np.uint32(0xFFFF0000), out=both[..., 1])
            found = both.view(np.float32)
        case "tf32":  # the low 13 bits are not looked at
            found = (words & np.uint32(0xFFFFE000)).view(np.float32)[..., None]
        case "f32" | "s32":
            found = words.view(np.float32 if type_ == "f32" else np.int32)[..., None]
        case "s8" | "u8":
            found = words.view(np.int8 if type_ == "s8" else np.uint8).reshape(*words.shape, 4)
        case "s4" | "u4":
            nibbles = words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(15)
            found = nibbles.astype(np.int8)
            found = np.where(found > 7, found - 16, found) if type_ == "s4" else found
        case _:
            if type_ not in _BYTES:
                raise ValueError(f"{type_} is no type of a matrix fragment")
            found = _byte_table(type_)[words.view(np.uint8)].reshape(*words.shape, 4)
    return found


@cache
def _byte_table(type_: str) -> Array:
    """Values of the 256 bytes: e2m1 sits in bits 5:2, e2m3 and e3m2 in bits 5:0 (kind::f8f6f4)."""
    code = np.arange(256)
    if type_ == "e2m1":
        code = code >> 2
    out: Array = table(type_)[code & ((1 << FORMATS[type_].bits) - 1)].astype(np.float32)
    return out


def _accumulator(type_: str, registers: Sequence[Any], warps: int) -> Array:
    """C as (warps, m, 8): float64, or int64 for s32."""
    found = _decoded(type_, registers)
    wide = np.int64 if type_ == "s32" else np.float64
    # f16 has a pair of columns in a register, the others in two registers one after the other.
    found = (
        found.reshape(found.shape[0], -1, 2, 8, 4)
        if type_ != "f16"
        else (found.reshape(found.shape[0], -1, 8, 4, 2).transpose(0, 1, 4, 2, 3))
    )
    out = np.empty((warps, found.shape[1], 8, 4, 2), wide)
    out[...] = found.transpose(0, 1, 3, 4, 2)
    return out.reshape(warps, -1, 8)


def _accumulator_registers(type_: str, d: Array) -> list[Array]:
    """D (warps, m, 8) as registers."""
    warps, m, _ = d.shape
    if type_ == "f16":
        words = np.ascontiguousarray(d).view(np.uint32).reshape(warps, m // 8, 32)
        return [words[:, r] for r in range(m // 8)]
    parts = d.reshape(warps, m // 8, 32, 2)
    kind = np.uint64 if type_ == "f64" else np.uint32
    return [np.ascontiguousarray(parts[:, r, :, j]).view(kind) for r in range(m // 8) for j in range(2)]


def _product(d_type: str, a: Array, b: Array, c: Array, satfinite: bool, rnd: str) -> Array:
    """A B + C, rounded once to `d_type`: f16, f32, f64 or s32 arrays."""
    if d_type == "f64":
        return _product64(a, b, c, rnd)
    total = np.matmul(a, b)
    found: Array
    if d_type == "s32":
        whole = total.astype(np.int64) + c
        if satfinite:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        out: Array = whole.astype(np.int32)
        return out
    if d_type not in ("f16", "f32"):
        raise ValueError(f"{d_type} is no type of an accumulator")
    total = total + c
    found = total.astype(np.float16 if d_type == "f16" else np.float32)
    if satfinite:  # wmma of f16
        most = np.finfo(found.dtype).max
        found = np.clip(found, -most, most)
    nan = found != found
    if nan.any():
        bits = found.view(np.uint16 if d_type == "f16" else np.uint32)
        bits[nan] = NAN[d_type]
    return found


def _product64(a: Array, b: Array, c: Array, rnd: str) -> Array:
    """A chain of fused multiply-adds, k counting up, each rounded as `rnd` says."""
    total = c.view(np.uint64)
    for k in range(a.shape[-1]):
        total = floats.fma(
            "f64",
            a[:, :, k, None].copy().view(np.uint64),
            b[:, None, k, :].copy().view(np.uint64),
            total,
            rnd,
        )
    return total.view(np.float64)


def _volta(
    c_type: str,
    d_type: str,
    a_layout: str,
    b_layout: str,
    a_regs: Sequence[Any],
    b_regs: Sequence[Any],
    c_regs: Sequence[Any],
) -> list[Array]:
    """m8n8k4 (9.7.14.5.1): four products, of the lanes 4q … 4q+3 and 16 + 4q … 16 + 4q+3.

    Axes below: w warp, h lane / 16, q product, l lane % 4, i element.
    """
    with np.errstate(all="ignore"):
        a = _decoded("f16", a_regs, by_lane=True).reshape(-1, 2, 4, 4, 4).astype(np.float64)
        b = _decoded("f16", b_regs, by_lane=True).reshape(-1, 2, 4, 4, 4).astype(np.float64)
        a = np.einsum("whqli->wqhli" if a_layout == "row" else "whqli->wqhil", a)
        b = np.einsum("whqli->wqlhi" if b_layout == "row" else "whqli->wqihl", b)
        c = _decoded(c_type, c_regs, by_lane=True)
        if c_type == "f16":
            c = c.reshape(-1, 2, 4, 4, 8).transpose(0, 2, 1, 3, 4)
        else:
            # bits of the lane: h q q l1 l0, of the element: i2 i1 i0; row = h i1 l0, column = i2 l1 i0
            c = c.reshape(-1, 2, 4, 2, 2, 2, 2, 2).transpose(0, 2, 1, 6, 4, 5, 3, 7)
        c = c.astype(np.float64).reshape(-1, 4, 8, 8)
        d = _product(d_type, a.reshape(-1, 4, 8, 4), b.reshape(-1, 4, 4, 8), c, False, "rn")
        if d_type == "f16":
            d = d.reshape(-1, 4, 2, 4, 8).transpose(0, 2, 1, 3, 4)
        else:
            d = d.reshape(-1, 4, 2, 2, 2, 2, 2, 2).transpose(0, 2, 1, 6, 4, 5, 3, 7)
        return _encoded(d_type, np.ascontiguousarray(d).reshape(-1, 32, 8))
