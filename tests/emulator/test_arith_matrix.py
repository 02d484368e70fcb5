"""Do mma and wmma multiply the matrices that the documented fragments hold?

The reference takes rows and columns from the PTX ISA's formulas, one lane and one element at a time, and
multiplies with Python's fractions or integers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.exact import LAYOUTS, code_of

from emulator.arith import fragments
from emulator.arith.matrix import dimensions, mma, wmma

RNG = np.random.default_rng(23)
Place = tuple[int, int]


def g(lane: int) -> int:
    return lane >> 2


def t(lane: int) -> int:
    return lane % 4


# (row, column) of element i of a lane, as 9.7.14.5.1 to 9.7.14.5.11 have it.
A: dict[tuple[str, int], Callable[[int, int], Place]] = {
    ("m16n8k8", 16): lambda q, i: (g(q) + 8 * (i >= 2), t(q) * 2 + (i & 1)),
    ("m16n8k16", 16): lambda q, i: (g(q) + 8 * (i in (2, 3, 6, 7)), t(q) * 2 + (i & 1) + 8 * (i >= 4)),
    ("m16n8k4", 32): lambda q, i: (g(q) + 8 * i, t(q)),
    ("m16n8k8", 32): lambda q, i: (g(q) + 8 * (i in (1, 3)), t(q) + 4 * (i >= 2)),
    ("m8n8k16", 8): lambda q, i: (g(q), t(q) * 4 + i),
    ("m16n8k16", 8): lambda q, i: (g(q) + 8 * (i >= 4), t(q) * 4 + (i & 3)),
    ("m16n8k32", 8): lambda q, i: (g(q) + 8 * (i // 4 in (1, 3)), t(q) * 4 + (i & 3) + 16 * (i >= 8)),
    ("m8n8k32", 4): lambda q, i: (g(q), t(q) * 8 + i),
    ("m16n8k32", 4): lambda q, i: (g(q) + 8 * (i >= 8), t(q) * 8 + (i & 7)),
    ("m16n8k64", 4): lambda q, i: (g(q) + 8 * (i // 8 in (1, 3)), t(q) * 8 + (i & 7) + 32 * (i >= 16)),
    ("m8n8k4", 64): lambda q, i: (g(q), t(q)),
    ("m16n8k4", 64): lambda q, i: (g(q) + 8 * i, t(q)),
    ("m16n8k8", 64): lambda q, i: (g(q) + 8 * (i in (1, 3)), t(q) + 4 * (i >= 2)),
    ("m16n8k16", 64): lambda q, i: (g(q) + 8 * (i % 2), i * 2 + t(q) if i % 2 == 0 else i * 2 - 2 + t(q)),
}
B: dict[tuple[str, int], Callable[[int, int], Place]] = {
    ("m16n8k8", 16): lambda q, i: (t(q) * 2 + i, g(q)),
    ("m16n8k16", 16): lambda q, i: (t(q) * 2 + (i & 1) + 8 * (i >= 2), g(q)),
    ("m16n8k4", 32): lambda q, i: (t(q), g(q)),
    ("m16n8k8", 32): lambda q, i: (t(q) + 4 * i, g(q)),
    ("m8n8k16", 8): lambda q, i: (t(q) * 4 + i, g(q)),
    ("m16n8k16", 8): lambda q, i: (t(q) * 4 + i, g(q)),
    ("m16n8k32", 8): lambda q, i: (t(q) * 4 + (i & 3) + 16 * (i >= 4), g(q)),
    ("m8n8k32", 4): lambda q, i: (t(q) * 8 + i, g(q)),
    ("m16n8k32", 4): lambda q, i: (t(q) * 8 + (i & 7), g(q)),
    ("m16n8k64", 4): lambda q, i: (t(q) * 8 + (i & 7) + 32 * (i >= 8), g(q)),
    ("m8n8k4", 64): lambda q, i: (t(q), g(q)),
    ("m16n8k4", 64): lambda q, i: (t(q), g(q)),
    ("m16n8k8", 64): lambda q, i: (t(q) + 4 * i, g(q)),
    ("m16n8k16", 64): lambda q, i: (t(q) + i * 4, g(q)),
}
BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "f64": 64,
    "f32": 32,
    "s32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e2m3": 8,
    "e3m2": 8,
    "e2m1": 8,
}


def c_place(lane: int, i: int) -> Place:
    return g(lane) + 8 * (i >= 2), t(lane) * 2 + (i & 1)


def registers(
    type_: str, shape: tuple[int, int], place: Callable[[int, int], Place], codes: Any
) -> list[Any]:
    """Registers that hold matrices of codes (warps, rows, columns) of a type."""
    bits = BITS[type_]
    word = 64 if bits == 64 else 32
    each = word // bits
    count = 0
    # As many elements as it takes for all of the matrix.
    total = shape[0] * shape[1] // 32
    out = [
        np.zeros((codes.shape[0], 32), np.uint64 if word == 64 else np.uint32) for _ in range(total // each)
    ]
    for lane in range(32):
        for i in range(total):
            row, column = place(lane, i)
            value = codes[:, row, column].astype(out[0].dtype)
            out[i // each][:, lane] |= value << out[0].dtype.type(bits * (i % each))
            count += 1
    assert count == shape[0] * shape[1]
    return out


def read(type_: str, place: Callable[[int, int], Place], regs: list[Any], shape: tuple[int, int]) -> Any:
    """Matrices of codes from registers."""
    bits = BITS[type_]
    each = (64 if bits == 64 else 32) // bits
    out = np.full((regs[0].shape[0], *shape), -1, object)
    for lane in range(32):
        for i in range(len(regs) * each):
            row, column = place(lane, i)
            word = regs[i // each][:, lane]
            out[:, row, column] = [int(v) >> bits * (i % each) & (1 << bits) - 1 for v in word]
    assert (out != -1).all()
    return out


def numbers(type_: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Random codes and what they mean, as f64."""
    kinds: dict[str, Any] = {
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
    }  # fmt: skip
    if type_ in ("s8", "u8", "s4", "u4"):
        bits = BITS[type_]
        codes = RNG.integers(0, 1 << bits, shape)
        return codes, (
            np.where(codes >> (bits - 1) == 1, codes - (1 << bits), codes) if type_[0] == "s" else codes
        )
    if type_ == "f64":
        values = RNG.normal(size=shape)
        return values.view(np.uint64), values
    values = (RNG.normal(size=shape) * 2).astype(np.float32)
    if type_ == "f32":
        return values.view(np.uint32), values.astype(np.float64)
    if type_ == "tf32":
        noise = RNG.integers(0, 1 << 13, shape).astype(np.uint32)  # bits that no one may look at
        codes = values.view(np.uint32) & np.uint32(0xFFFFE000)
        return codes | noise, codes.view(np.float32).astype(np.float64)
    exact = values.astype(kinds[type_])
    codes = exact.view(np.uint16 if BITS[type_] == 16 else np.uint8).astype(np.int64)
    if type_ == "e2m1":
        codes = codes << 2  # in the middle of its byte
    return codes, exact.astype(np.float64)


FLOATING = [
    ("m16n8k8", "f16", "f16", "f32"), ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f32"), ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "bf16", "bf16", "f32"), ("m16n8k16", "bf16", "bf16", "f32"),
    ("m16n8k4", "tf32", "tf32", "f32"), ("m16n8k8", "tf32", "tf32", "f32"),
    ("m16n8k16", "e4m3", "e4m3", "f32"), ("m16n8k32", "e4m3", "e5m2", "f32"),
    ("m16n8k32", "e5m2", "e4m3", "f16"), ("m16n8k32", "e5m2", "e5m2", "f32"),
    ("m16n8k32", "e2m3", "e3m2", "f32"), ("m16n8k32", "e2m1", "e4m3", "f32"),
    ("m16n8k32", "e3m2", "e2m1", "f32"),
]  # fmt: skip
WHOLE = [
    ("m8n8k16", "s8", "s8"), ("m8n8k16", "u8", "s8"),
    ("m16n8k16", "s8", "u8"), ("m16n8k32", "s8", "s8"),
    ("m16n8k32", "u8", "u8"), ("m8n8k32", "s4", "u4"),
    ("m16n8k32", "s4", "s4"), ("m16n8k64", "u4", "s4"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), FLOATING)
def test_floating_point(shape: str, a_type: str, b_type: str, d_type: str) -> None:
    m, n, k = dimensions(shape)
    warps = 3
    a_codes, a = numbers(a_type, (warps, m, k))
    b_codes, b = numbers(b_type, (warps, k, n))
    c_codes, c = numbers(d_type, (warps, m, n))
    got = mma(
        shape, a_type, b_type, d_type, d_type, "row", "col",
        registers(a_type, (m, k), A[shape, BITS[a_type]], a_codes),
        registers(b_type, (k, n), B[shape, BITS[b_type]], b_codes),
        registers(d_type, (m, n), c_place, c_codes),
    )  # fmt: skip
    assert len(got) == (2 if d_type == "f16" else 4)
    codes = read(d_type, c_place, got, (m, n))
    for w in range(warps):
        for i in range(m):
            for j in range(n):
                exact = Fraction(float(c[w, i, j]))
                exact += sum(
                    Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[w, i], b[w, :, j], strict=True)
                )
                assert codes[w, i, j] == code_of(LAYOUTS[d_type], exact)


@pytest.mark.parametrize(("shape", "a_type", "b_type"), WHOLE)
@pytest.mark.parametrize("satfinite", [False, True])
def test_integers(shape: str, a_type: str, b_type: str, satfinite: bool) -> None:
    m, n, k = dimensions(shape)
    a_codes, a = numbers(a_type, (4, m, k))
    b_codes, b = numbers(b_type, (4, k, n))
    c = RNG.integers(-(1 << 31), 1 << 31, (4, m, n))
    c[0], c[1] = (1 << 31) - 1, -(1 << 31)
    got = mma(
        shape, a_type, b_type, "s32", "s32", "row", "col",
        registers(a_type, (m, k), A[shape, BITS[a_type]], a_codes),
        registers(b_type, (k, n), B[shape, BITS[b_type]], b_codes),
        registers("s32", (m, n), c_place, c.astype(np.int32).view(np.uint32)), satfinite,
    )  # fmt: skip
    assert len(got) == m // 4
    exact = a.astype(object) @ b.astype(object) + c.astype(object)
    if satfinite:
        exact = np.minimum(np.maximum(exact, -(1 << 31)), (1 << 31) - 1)
    assert (read("s32", c_place, got, (m, n)) == exact % (1 << 32)).all()


@pytest.mark.parametrize("shape", ["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"])
@pytest.mark.parametrize("rnd", ["rn", "rz"])
def test_double_precision(shape: str, rnd: str) -> None:
    m, n, k = dimensions(shape)
    (a_codes, a), (b_codes, b), (c_codes, c) = (numbers("f64", (2, *s)) for s in ((m, k), (k, n), (m, n)))
    got = mma(
        shape, "f64", "f64", "f64", "f64", "row", "col",
        registers("f64", (m, k), A[shape, 64], a_codes), registers("f64", (k, n), B[shape, 64], b_codes),
        registers("f64", (m, n), c_place, c_codes), rnd=rnd,
    )  # fmt: skip
    codes = read("f64", c_place, got, (m, n)).astype(np.uint64)
    assert np.allclose(codes.view(np.float64), a @ b + c, rtol=1e-14)
    for i, j in ((0, 0), (m - 1, n - 1)):  # a chain of fused multiply-adds
        total = Fraction(float(c[1, i, j]))
        for x, y in zip(a[1, i], b[1, :, j], strict=True):
            bits = code_of(LAYOUTS["f64"], total + Fraction(float(x)) * Fraction(float(y)), rnd)
            total = Fraction(float(np.uint64(bits).view(np.float64)))
        assert codes[1, i, j] == bits


def volta_a(layout: str, lane: int, i: int) -> Place:
    if layout == "row":
        return lane % 4 + 4 * (lane >= 16), i
    return i % 4 + 4 * (lane >= 16), lane % 4


def volta_b(layout: str, lane: int, i: int) -> Place:
    if layout == "row":
        return lane % 4, i + 4 * (lane >= 16)
    return i, lane % 4 + 4 * (lane >= 16)


def volta_c(type_: str, lane: int, i: int) -> Place:
    if type_ == "f16":
        return lane % 4 + 4 * (lane >= 16), i
    return (lane & 1) + (i & 2) + 4 * (lane >= 16), (i & 4) + (lane & 2) + (i & 1)


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize(("c_type", "d_type"), [("f16", "f16"), ("f32", "f32"), ("f16", "f32")])
def test_volta(a_layout: str, b_layout: str, c_type: str, d_type: str) -> None:
    (ac, a), (bc, b), (cc, c) = (
        numbers("f16", (2, 4, 8, 4)),
        numbers("f16", (2, 4, 4, 8)),
        numbers(c_type, (2, 4, 8, 8)),
    )

    def fill(type_: str, codes: Any, place: Callable[[int, int], Place], count: int) -> list[Any]:
        each = 32 // BITS[type_]
        out = [np.zeros((2, 32), np.uint32) for _ in range(count // each)]
        for lane in range(32):
            for i in range(count):
                row, column = place(lane, i)
                word = codes[:, lane % 16 // 4, row, column].astype(np.uint32)
                out[i // each][:, lane] |= word << np.uint32(BITS[type_] * (i % each))
        return out

    got = mma(
        "m8n8k4", "f16", "f16", c_type, d_type, a_layout, b_layout,
        fill("f16", ac, lambda q, i: volta_a(a_layout, q, i), 4),
        fill("f16", bc, lambda q, i: volta_b(b_layout, q, i), 4),
        fill(c_type, cc, lambda q, i: volta_c(c_type, q, i), 8),
    )  # fmt: skip
    assert len(got) == (4 if d_type == "f16" else 8)
    exact = a @ b + c  # f16 products of this size are exact in f64
    each = 32 // BITS[d_type]
    for lane in range(32):
        for i in range(8):
            row, column = volta_c(d_type, lane, i)
            for w in range(2):
                code = int(got[i // each][w, lane]) >> BITS[d_type] * (i % each) & (1 << BITS[d_type]) - 1
                assert code == code_of(
                    LAYOUTS[d_type], Fraction(float(exact[w, lane % 16 // 4, row, column]))
                )


def test_nan_and_infinity() -> None:
    zero = [np.zeros((1, 32), np.uint32)] * 4
    a = [z.copy() for z in zero]
    b = [z.copy() for z in zero[:2]]
    a[0][0, 0] = 0x3F807F80  # row 0: inf, 1 at k = 0, 1
    b[0][0, 0] = 0x00003F80  # column 0: 1 at k = 0
    b[0][0, 4] = 0x3F800000  # column 1: 0 at k = 0, 1 at k = 1
    got = mma("m16n8k16", "bf16", "bf16", "f32", "f32", "row", "col", a, b, zero)
    assert [hex(r[0, 0]) for r in got[:2]] == ["0x7f800000", "0x7fffffff"]  # inf * 1, inf * 0
    a[0][0, 0] = 0x00007FC0
    half = mma("m16n8k16", "bf16", "bf16", "f32", "f32", "row", "col", a, b, zero)
    assert half[0][0, 0] == 0x7FFFFFFF
    a[0][0, 0], b[0][0, 0] = 0x7BFF7BFF, 0x7BFF7BFF
    over = mma("m16n8k16", "f16", "f16", "f16", "f16", "row", "col", a, b, zero[:2])
    assert over[0][0, 0] & 0xFFFF == 0x7C00


def test_registers_may_broadcast() -> None:
    one = np.full((1, 1), 0x3F803F80, np.uint32)
    got = mma(
        "m16n8k16",
        "bf16",
        "bf16",
        "f32",
        "f32",
        "row",
        "col",
        [one] * 4,
        [one] * 2,
        [np.zeros((5, 32), np.uint32)] * 4,
    )
    assert all(r.shape == (5, 32) and (r.view(np.float32) == 16).all() for r in got)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m16n8k16", "f16", "bf16", "f32", "f32", "row", "col"), "does not take"),
        (("m16n8k16", "f16", "f16", "f32", "f32", "col", "col"), "by row"),
        (("m16n8k32", "f16", "f16", "f32", "f32", "row", "col"), "does not take"),
        (("m16n8", "f16", "f16", "f32", "f32", "row", "col"), "does not take"),
        (("m16n8k16", "f16", "f16", "f32", "s64", "row", "col"), "no type"),
        (("m16n8k16", "x", "x", "f32", "f32", "row", "col"), "does not take"),
    ],
)
def test_unknown_forms(arguments: Any, message: str) -> None:
    r = [np.zeros((1, 32), np.uint32)] * 4
    with pytest.raises(ValueError, match=message):
        mma(*arguments, r, r[:2], r)


WMMA = [
    ("m16n16k16", "f16", "f16", "f32"), ("m16n16k16", "f16", "f16", "f16"),
    ("m32n8k16", "f16", "f16", "f32"), ("m8n32k16", "f16", "f16", "f32"),
    ("m16n16k16", "bf16", "bf16", "f32"), ("m32n8k16", "bf16", "bf16", "f32"),
    ("m8n32k16", "bf16", "bf16", "f32"), ("m16n16k8", "tf32", "tf32", "f32"),
    ("m8n8k4", "f64", "f64", "f64"), ("m16n16k16", "s8", "s8", "s32"),
    ("m32n8k16", "u8", "s8", "s32"), ("m8n32k16", "s8", "u8", "s32"),
    ("m8n8k32", "s4", "s4", "s32"),
]  # fmt: skip
REGISTERS = {  # of A, B, C and D, from 9.7.14.4.1
    ("m16n16k16", "f16"): (8, 8, 8), ("m32n8k16", "f16"): (8, 8, 8), ("m8n32k16", "f16"): (8, 8, 8),
    ("m16n16k16", "bf16"): (4, 4, 8), ("m32n8k16", "bf16"): (8, 2, 8), ("m8n32k16", "bf16"): (2, 8, 8),
    ("m16n16k8", "tf32"): (4, 4, 8), ("m8n8k4", "f64"): (1, 1, 2), ("m16n16k16", "8"): (2, 2, 8),
    ("m32n8k16", "8"): (4, 1, 8), ("m8n32k16", "8"): (1, 4, 8), ("m8n8k32", "4"): (1, 1, 2),
}  # fmt: skip


@pytest.mark.parametrize(("shape", "a_type", "b_type", "d_type"), WMMA)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wmma(shape: str, a_type: str, b_type: str, d_type: str, seed: int) -> None:
    m, n, k = (int(v) for v in shape[1:].replace("n", " ").replace("k", " ").split())
    (ac, a), (bc, b) = numbers(a_type, (2, m, k)), numbers(b_type, (2, k, n))
    c = RNG.integers(-1000, 1000, (2, m, n)) if d_type == "s32" else None
    cc, cv = (c.astype(np.int32).view(np.uint32), c) if c is not None else numbers(d_type, (2, m, n))

    def fill(role: str, type_: str, codes: Any, layout: str = "row") -> list[Any]:
        rows, columns = fragments.wmma_layout(shape, role, type_, seed, layout)
        word = 64 if type_ == "f64" else 32
        kind = np.uint64 if word == 64 else np.uint32
        each = word // BITS[type_]
        elements = codes[:, rows, columns].astype(kind).reshape(2, 32, -1, each)
        shifts = (np.arange(each) * BITS[type_]).astype(kind)
        return list((elements << shifts).sum(-1, dtype=kind).transpose(2, 0, 1))

    ra, rb, rc = fill("a", a_type, ac, "row"), fill("b", b_type, bc, "col"), fill("c", d_type, cc)
    key = (shape, a_type[1] if a_type in ("s8", "u8", "s4") else a_type)
    assert (len(ra), len(rb), len(rc)) == (
        *REGISTERS[key][:2],
        REGISTERS[key][2] // (2 if d_type == "f16" else 1),
    )
    got = wmma(shape, a_type, b_type, d_type, d_type, "row", "col", ra, rb, rc, seed=seed)
    assert len(got) == len(rc)
    exact = a.astype(np.float64) @ b.astype(np.float64) + cv
    if d_type == "s32":
        want = exact.astype(np.int32).view(np.uint32)
    else:
        want = exact.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[d_type])
        want = want.view({"f16": np.uint16, "f32": np.uint32, "f64": np.uint64}[d_type])
    tolerance = 1e-12 if d_type == "f64" else 0
    for r, w in zip(got, fill("d", d_type, want), strict=True):
        if tolerance:
            assert np.allclose(r.view(np.float64), w.view(np.float64), rtol=tolerance)
        else:
            assert (r == w).all()


def test_wmma_layouts_are_many_and_whole() -> None:
    for shape, type_ in (("m16n16k16", "f16"), ("m8n32k16", "bf16"), ("m16n16k8", "tf32")):
        m, n, k = (int(v) for v in shape[1:].replace("n", " ").replace("k", " ").split())
        for role, size in (("a", (m, k)), ("b", (k, n)), ("c", (m, n))):
            found = set()
            for seed in range(5):
                row, column = fragments.wmma_layout(shape, role, type_, seed)
                assert row.shape == (32, fragments.wmma_elements(shape, role, type_))
                assert {(int(r), int(c)) for r, c in zip(row.flat, column.flat, strict=True)} == {
                    (i, j) for i in range(size[0]) for j in range(size[1])
                }
                found.add(row.tobytes() + column.tobytes())
            assert len(found) == 5
    one, other = (fragments.wmma_layout("m16n16k16", "a", "f16", 1, layout)[0] for layout in ("row", "col"))
    assert (one != other).any()
    c, d = (fragments.wmma_layout("m16n16k16", role, "f32", 3) for role in "cd")
    assert (c[0] == d[0]).all()
    with pytest.raises(ValueError, match="no shape"):
        fragments.wmma_layout("m16n8k16", "a", "f16", 0)
    with pytest.raises(ValueError, match="no fragments"):
        fragments.wmma_layout("m16n16k16", "a", "tf32", 0)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_of_shared_memory(count: int) -> None:
    """Lane 4g + t holds elements 2t, 2t+1 of row g; transposed, of column g (Figure 104)."""
    elements = RNG.integers(0, 65536, (3, count, 8, 8)).astype(np.uint16)
    rows = elements.view(np.uint32)
    for trans in (False, True):
        regs = fragments.ldmatrix(rows, trans)
        assert len(regs) == count
        for i, r in enumerate(regs):
            for lane in range(32):
                for e in (0, 1):
                    at = (lane % 4 * 2 + e, lane // 4) if trans else (lane // 4, lane % 4 * 2 + e)
                    assert (
                        r[:, lane] >> np.uint32(16 * e) & np.uint32(0xFFFF) == elements[:, i, at[0], at[1]]
                    ).all()
        assert (fragments.stmatrix(regs, trans) == rows).all()
    moved = fragments.movmatrix(fragments.ldmatrix(rows)[0])
    assert (moved == fragments.ldmatrix(rows, True)[0]).all()


def test_mma_is_quick() -> None:
    """A guard against a change of kind, not of degree: a few hundred microseconds for 32 warps."""
    r = [RNG.integers(0, 1 << 32, (32, 32), dtype=np.uint32) & np.uint32(0x3FFF3FFF) for _ in range(10)]
    best = math.inf
    for _ in range(20):
        started = time.perf_counter()
        mma("m16n8k16", "bf16", "bf16", "f32", "f32", "row", "col", r[:4], r[4:6], r[6:])
        best = min(best, time.perf_counter() - started)
    assert best < 2e-3
