"""Are f16 and bf16 results those of one exact rounding, alone and in pairs?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.exact import LAYOUTS, Value, code_of, interesting, value

from emulator.arith import halves

RNG = np.random.default_rng(13)
TYPES = ("f16", "bf16")
NAN = 0x7FFF


def add(x: Value, y: Value) -> Value:
    if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)):
        return float(sum(v for v in (x, y) if isinstance(v, float)))
    exact = Fraction(x) + Fraction(y)
    return -0.0 if not exact and all(isinstance(v, float) for v in (x, y)) else exact


def multiply(x: Value, y: Value) -> Value:
    if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)):
        return float(x) * float(y)
    exact = Fraction(x) * Fraction(y)
    negative = (isinstance(x, float) or x < 0) != (isinstance(y, float) or y < 0)
    return -0.0 if not exact and negative else exact


def rows_of(type_: str, count: int) -> list[tuple[int, ...]]:
    edges = interesting(LAYOUTS[type_])
    rows: list[tuple[int, ...]] = [(*r, int(RNG.integers(65536))) for r in itertools.product(edges, edges)]
    rows += [tuple(int(v) for v in RNG.integers(0, 65536, 3)) for _ in range(count)]
    one = LAYOUTS[type_].bias << LAYOUTS[type_].fraction
    # Numbers near 1, and an addend near the product's negative or far below its last place.
    rows += [
        (
            one + int(p),
            one + int(q),
            (one + int(p) + int(q) | 0x8000) if k % 2 else int(RNG.integers(one // 2)),
        )
        for k, (p, q) in enumerate(RNG.integers(0, 60, (count, 2)))
    ]
    return rows


def check(got: Any, rows: list[tuple[int, ...]], reference: Callable[..., int]) -> None:
    assert got.dtype == np.uint16
    wrong = [
        (tuple(map(hex, row)), hex(g), hex(reference(*row)))
        for row, g in zip(rows, got.tolist(), strict=True)
        if g != reference(*row)
    ]
    assert not wrong, (len(wrong), wrong[:4])


@pytest.mark.parametrize("type_", TYPES)
def test_arithmetic(type_: str) -> None:
    layout = LAYOUTS[type_]
    rows = rows_of(type_, 400)
    a, b, c = (np.array(x, np.uint16) for x in zip(*rows, strict=True))
    v = lambda code: value(layout, code)  # noqa: E731
    check(halves.add(type_, a, b), rows, lambda x, y, _: code_of(layout, add(v(x), v(y))))
    check(halves.sub(type_, a, b), rows, lambda x, y, _: code_of(layout, add(v(x), v(y ^ 0x8000))))
    check(halves.mul(type_, a, b), rows, lambda x, y, _: code_of(layout, multiply(v(x), v(y))))

    def fma(x: int, y: int, z: int) -> int:
        return code_of(layout, add(multiply(v(x), v(y)), v(z)))

    check(halves.fma(type_, a, b, c), rows, fma)
    check(halves.fma(type_, a, b, c, relu=True), rows, lambda *r: f if (f := fma(*r)) < 0x8000 else 0)


@pytest.mark.parametrize("type_", TYPES)
def test_agrees_with_ml_dtypes(type_: str) -> None:
    """Another implementation of the same formats, at random bits."""
    kind = np.float16 if type_ == "f16" else ml_dtypes.bfloat16
    a, b = (RNG.integers(0, 65536, 20000).astype(np.uint16) for _ in range(2))
    x, y = a.view(kind), b.view(kind)
    with np.errstate(all="ignore"):
        for got, want in ((halves.add(type_, a, b), x + y), (halves.mul(type_, a, b), x * y)):
            nan = np.isnan(want.astype(np.float32))
            assert (got[nan] == NAN).all()
            assert (got == want.view(np.uint16))[~nan].all()


@pytest.mark.parametrize("type_", TYPES)
def test_pairs_are_two_on_their_own(type_: str) -> None:
    a, b, c = (RNG.integers(0, 65536, (3, 64)).astype(np.uint16) for _ in range(3))
    wide = [np.ascontiguousarray(v).view(np.uint32) for v in (a, b, c)]
    pair = type_ + "x2"
    for name, count, options in (
        ("add", 2, {}), ("sub", 2, {}), ("mul", 2, {}), ("fma", 3, {}), ("fma", 3, {"relu": True}),
        ("min_", 2, {"nan": True}), ("max_", 2, {}), ("min_", 2, {"absolute": True, "xorsign": True}),
        ("neg", 1, {}), ("abs_", 1, {}), ("tanh", 1, {}), ("ex2", 1, {}),
    ):  # fmt: skip
        function = getattr(halves, name)
        alone = function(type_, *(a, b, c)[:count], **options)
        both = function(pair, *wide[:count], **options)
        assert both.shape == (3, 32)
        assert (both.view(np.uint16) == alone).all(), name
    one = np.array([[0x3C003F80]], np.uint32)
    assert halves.add(pair, wide[0], one).shape == (3, 32)


def test_flush_and_saturation() -> None:
    tiny = np.array([1, 0x8001, 0x0400], np.uint16)
    zero = np.zeros(3, np.uint16)
    half = np.full(3, 0x3800, np.uint16)
    assert halves.add("f16", tiny, zero, ftz=True).tolist() == [0, 0, 0x0400]
    assert halves.add("f16", tiny, zero).tolist() == [1, 0x8001, 0x0400]
    assert halves.mul("f16", tiny, half, ftz=True).tolist() == [0, 0x8000, 0]
    assert halves.mul("f16", tiny, half).tolist() == [0, 0x8000, 0x0200]
    values = np.array([0xBC00, 0x8000, 0x3400, 0x3C00, 0x4700, 0x7C00, 0xFC00, 0x7E00], np.uint16)
    clamped = [0, 0, 0x3400, 0x3C00, 0x3C00, 0x3C00, 0, 0]
    one = np.full(8, 0x3C00, np.uint16)
    assert halves.mul("f16", values, one, sat=True).tolist() == clamped
    assert halves.fma("f16", values, one, np.full(8, 0x8000, np.uint16), sat=True).tolist() == clamped
    assert halves.fma("f16", values, one, np.full(8, 0x8000, np.uint16), relu=True).tolist() == [
        0, 0, 0x3400, 0x3C00, 0x4700, 0x7C00, 0, NAN,
    ]  # fmt: skip


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("least", [True, False])
def test_minimum_and_maximum(type_: str, least: bool) -> None:
    layout = LAYOUTS[type_]
    function = halves.min_ if least else halves.max_
    edges = interesting(layout)
    rows: list[tuple[int, ...]] = list(itertools.product(edges, edges))
    a, b = (np.array(x, np.uint16) for x in zip(*rows, strict=True))

    def isnan(code: int) -> bool:
        return value(layout, code) != value(layout, code)

    def order(code: int) -> int:
        return -(code & 0x7FFF) - 1 if code >> 15 else code

    def pick(x: int, y: int) -> int:
        if isnan(x) and isnan(y):
            return NAN
        return y if isnan(x) else x if isnan(y) else (min if least else max)(x, y, key=order)

    check(function(type_, a, b), rows, pick)
    check(function(type_, a, b, nan=True), rows, lambda x, y: NAN if isnan(x) or isnan(y) else pick(x, y))

    def xorsign(x: int, y: int) -> int:
        found = pick(x & 0x7FFF, y & 0x7FFF)
        return found if isnan(found) else found | (x ^ y) & 0x8000

    check(function(type_, a, b, absolute=True, xorsign=True), rows, xorsign)


@pytest.mark.parametrize("type_", TYPES)
def test_signs_of_all_numbers(type_: str) -> None:
    a = np.arange(65536).astype(np.uint16)
    assert (halves.neg(type_, a) == a ^ 0x8000).all()
    assert (halves.abs_(type_, a) == a & 0x7FFF).all()


def test_approximate_functions() -> None:
    table = {  # the ISA's tables
        "ex2": [
            (0xFC00, 0),
            (0x8000, 0x3C00),
            (0, 0x3C00),
            (0x7C00, 0x7C00),
            (0x7E00, NAN),
            (0x4200, 0x4800),
        ],
        "tanh": [(0xFC00, 0xBC00), (0x8000, 0x8000), (0, 0), (0x7C00, 0x3C00), (0x7E00, NAN), (1, 1)],
    }
    for name, rows in table.items():
        got = getattr(halves, name)("f16", np.array([x for x, _ in rows], np.uint16))
        assert got.tolist() == [want for _, want in rows], name
    got = halves.ex2(
        "bf16", np.array([0xFF80, 0x8001, 0x8000, 0, 1, 0x7F80, 0x7FC0, 0xC308], np.uint16), ftz=True
    )
    assert got.tolist() == [0, 0x3F80, 0x3F80, 0x3F80, 0x3F80, 0x7F80, NAN, 0]
    a = np.arange(0x7C00).astype(np.uint16)
    exact = np.tanh(a.view(np.float16).astype(np.float64))
    assert np.abs(halves.tanh("f16", a).view(np.float16).astype(np.float64) - exact).max() < 2.0**-10.987
