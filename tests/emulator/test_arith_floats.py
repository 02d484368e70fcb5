"""Are f32 and f64 results those of one exact rounding, and are the special cases as the PTX ISA has them?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from support.exact import F32, F64, LAYOUTS, Value, code_of, interesting, value

from emulator.arith import compare, floats
from emulator.arith.types import bits_of, unsigned

RNG = np.random.default_rng(11)
MODES = ("rn", "rz", "rm", "rp")
NAN32 = 0x7FFFFFFF


def codes(type_: str, count: int) -> list[int]:
    """Random bits: half of any exponent, half near 1 so that sums cancel and round."""
    layout = LAYOUTS[type_]
    found = [int.from_bytes(RNG.bytes(layout.bits // 8), "little") for _ in range(count)]
    near = (layout.bias << layout.fraction) - (2 << layout.fraction)
    for i in range(0, count, 2):
        found[i] = near + found[i] % (4 << layout.fraction) | found[i] & 1 << (layout.bits - 1)
    return found


def columns(type_: str, rows: list[tuple[int, ...]]) -> list[Any]:
    return [np.array(c, unsigned(bits_of(type_))) for c in zip(*rows, strict=True)]


def total(x: Value, y: Value, mode: str) -> Value:
    """x + y exactly, with the sign of an exact zero."""
    if isinstance(x, Fraction) and isinstance(y, Fraction) and x + y:
        return x + y
    if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)):
        return sum(v for v in (x, y) if isinstance(v, float))
    if Fraction(x) + Fraction(y):
        return Fraction(x) + Fraction(y)
    negative = [isinstance(v, float) or v < 0 for v in (x, y)]  # -0.0 is the only finite float here
    if all(negative) or (mode == "rm" and any(negative)):
        return -0.0
    return Fraction(0)


def product(x: Value, y: Value) -> Value:
    """x * y exactly."""
    if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)):
        signs = [-1.0 if math.copysign(1, v) < 0 else 1.0 for v in (float(x), float(y))]
        sizes = [abs(v) if isinstance(v, float) else float(v != 0) for v in (x, y)]
        return sizes[0] * sizes[1] * signs[0] * signs[1]
    exact = Fraction(x) * Fraction(y)
    if exact:
        return exact
    return -0.0 if (x < 0 or isinstance(x, float)) != (y < 0 or isinstance(y, float)) else Fraction(0)


def quotient(x: Value, y: Value) -> Value:
    signs = (x < 0 or str(x) == "-0.0") != (y < 0 or str(y) == "-0.0")
    if any(v != v for v in (x, y)) or (x == 0 and y == 0) or (abs(x) == math.inf and abs(y) == math.inf):
        return math.nan
    if abs(x) == math.inf or y == 0:
        return -math.inf if signs else math.inf
    if abs(y) == math.inf or x == 0:
        return -0.0 if signs else Fraction(0)
    return Fraction(x) / Fraction(y)


def same(type_: str, got: Any, rows: list[tuple[int, ...]], reference: Callable[..., int]) -> None:
    """Bits agree; in f64 any NaN will do."""
    got = np.asarray(got)
    assert got.dtype == unsigned(bits_of(type_))
    wrong = []
    for row, g in zip(rows, got.tolist(), strict=True):
        want = reference(*row)
        nan = type_ == "f64" and value(F64, want) != value(F64, want) and value(F64, g) != value(F64, g)
        if g != want and not nan:
            wrong.append((tuple(hex(v) for v in row), hex(g), hex(want)))
    assert not wrong, (len(wrong), wrong[:4])


def pairs_of(type_: str) -> list[tuple[int, ...]]:
    edges = interesting(LAYOUTS[type_])
    rows: list[tuple[int, ...]] = list(itertools.product(edges, edges))
    some = codes(type_, 180)
    rows += list(zip(some, codes(type_, 180), strict=True))
    # Nearly equal ones, of opposite sign.
    rows += [
        (c, (c ^ 1 << (LAYOUTS[type_].bits - 1)) + int(d))
        for c, d in zip(some[:100], RNG.integers(0, 3, 100), strict=True)
        if c + 3 < 2 ** (LAYOUTS[type_].bits - 1)
    ]
    return rows


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_sum_product_and_quotient(type_: str, mode: str) -> None:
    layout = LAYOUTS[type_]
    rows = pairs_of(type_)
    a, b = columns(type_, rows)
    v = lambda c: value(layout, c)  # noqa: E731
    same(
        type_,
        floats.add(type_, a, b, mode),
        rows,
        lambda x, y: code_of(layout, total(v(x), v(y), mode), mode),
    )
    same(type_, floats.mul(type_, a, b, mode), rows, lambda x, y: code_of(layout, product(v(x), v(y)), mode))
    same(type_, floats.div(type_, a, b, mode), rows, lambda x, y: code_of(layout, quotient(v(x), v(y)), mode))

    def minus(x: int, y: int) -> int:
        return code_of(layout, total(v(x), v(y ^ 1 << (layout.bits - 1)), mode), mode)

    same(type_, floats.sub(type_, a, b, mode), rows, minus)


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_fma_rounds_once(type_: str, mode: str) -> None:
    layout = LAYOUTS[type_]
    edges = interesting(layout)
    some = edges[:: 4 if type_ == "f32" else 6]
    rows: list[tuple[int, ...]] = list(itertools.product(some, some, some))
    for p, q in zip(codes(type_, 400), codes(type_, 400), strict=True):
        exact = product(value(layout, p), value(layout, q))
        near = code_of(layout, -exact if isinstance(exact, Fraction) else exact)
        # c near -ab, so that the low half of the product decides; or at the point between two numbers.
        rows.append((p, q, max(0, near + int(RNG.integers(-2, 3)))))
    half = 1 << (layout.fraction // 2)
    one = layout.bias << layout.fraction
    rows += [
        (one + half + i, one + half + j, one + k)
        for i in range(3)
        for j in range(3)
        for k in (-(60 << layout.fraction), -(25 << layout.fraction), 0)
    ]
    for exponent in (1, 2, layout.fraction, 2 * layout.bias - 1, 2 * layout.bias):  # by the ends of the range
        for _ in range(8):
            x, y, z = (int(v) for v in RNG.integers(0, 1 << layout.fraction, 3))
            small = exponent << layout.fraction
            rows += [(one + x, small + y, small + z | 1 << (layout.bits - 1)), (one + x, small + y, z)]
    a, b, c = columns(type_, rows)

    def reference(p: int, q: int, r: int) -> int:
        return code_of(
            layout, total(product(value(layout, p), value(layout, q)), value(layout, r), mode), mode
        )

    same(type_, floats.fma(type_, a, b, c, mode), rows, reference)


def test_fma_where_two_roundings_would_be_wrong() -> None:
    """a * b + c just above the middle of two f32, by less than f64 can hold."""
    a, b, c = (np.array([v], np.float32).view(np.uint32) for v in (1 + 2**-12, 1 + 2**-12, 2.0**-80))
    exact = (1 + Fraction(1, 2**12)) ** 2 + Fraction(1, 2**80)
    assert int(floats.fma("f32", a, b, c)[0]) == code_of(F32, exact)
    assert int(floats.fma("f32", a, b, c)[0]) != int(np.float32(float(exact)).view(np.uint32))


def test_fma_of_usual_numbers() -> None:
    """Whole warps of normal numbers, which take a shorter way; every other one has a middle that must not."""
    for _ in range(60):
        a, b, c = (
            (RNG.normal(size=32) * 2.0 ** RNG.integers(-3, 3, 32)).astype(np.float32) for _ in range(3)
        )
        if RNG.random() < 0.5:
            k = int(RNG.integers(32))
            a[k], b[k], c[k] = 1 + 2**-12, 1 + 2**-12, 2.0 ** -int(RNG.integers(50, 90))
        got = floats.fma("f32", *(v.view(np.uint32) for v in (a, b, c)))
        for x, y, z, g in zip(a, b, c, got.tolist(), strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            assert g == code_of(F32, exact if exact else Fraction(0))


@pytest.mark.parametrize("mode", MODES)
def test_square_root_and_reciprocal(mode: str) -> None:
    for type_ in ("f32", "f64"):
        layout = LAYOUTS[type_]
        rows: list[tuple[int, ...]] = [(c,) for c in interesting(layout) + codes(type_, 300)]
        (a,) = columns(type_, rows)

        def root(code: int, layout: Any = layout) -> int:
            x = value(layout, code)
            if x != x or x < 0:
                return int(layout.nan)
            if x == math.inf or x == 0:
                return code
            # An integer root far below the last place, and a mark that it is not exact.
            assert isinstance(x, Fraction)
            scaled = x * 4**1200
            whole = math.isqrt(int(scaled))
            exact = Fraction(whole) / 2**1200
            return code_of(layout, exact if exact * exact == x else exact + Fraction(1, 2**1202), mode)

        same(type_, floats.sqrt(type_, a, mode), rows, root)
        same(
            type_,
            floats.rcp(type_, a, mode),
            rows,
            lambda c, layout=layout: code_of(layout, quotient(Fraction(1), value(layout, c)), mode),
        )  # type: ignore[misc]


def f32(*numbers: float) -> Any:
    return np.array(numbers, np.float32).view(np.uint32)


def as_float(a: Any) -> list[float]:
    return [float(v) for v in np.asarray(a).view(np.float32)]


def test_flush_and_saturation() -> None:
    tiny, least = np.array([1, 0x80000001], np.uint32), np.array([0x00800000, 0x80800000], np.uint32)
    zero = f32(0, 0)
    assert floats.add("f32", tiny, zero, ftz=True).tolist() == [0, 0]
    assert floats.add("f32", tiny, zero).tolist() == [1, 0x80000001]
    assert floats.mul("f32", least, f32(0.5, 0.5), ftz=True).tolist() == [0, 0x80000000]
    assert floats.mul("f32", least, f32(0.5, 0.5)).tolist() == [0x00400000, 0x80400000]
    assert floats.fma("f32", least, f32(0.5, 0.5), zero, ftz=True).tolist() == [0, 0x80000000]
    assert floats.neg("f32", tiny, ftz=True).tolist() == [0x80000000, 0]
    assert floats.abs_("f32", tiny, ftz=True).tolist() == [0, 0]
    values = f32(-1, -0.0, 0.25, 1, 7, math.inf, -math.inf, math.nan)
    clamped = [0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 0.0, 0.0]
    for got in (
        floats.add("f32", values, f32(*[-0.0] * 8), sat=True),
        floats.mul("f32", values, f32(*[1] * 8), sat=True),
        floats.fma("f32", values, f32(*[1] * 8), f32(*[-0.0] * 8), sat=True),
    ):
        assert as_float(got) == clamped
        assert not (got >> 31).any()


def test_packed_pairs() -> None:
    a = np.array(codes("f32", 64), np.uint32).view(np.uint64)
    b = np.array(codes("f32", 64), np.uint32).view(np.uint64)
    c = np.array(codes("f32", 64), np.uint32).view(np.uint64)
    x, y, z = a.view(np.uint32), b.view(np.uint32), c.view(np.uint32)
    for mode in MODES:
        assert (floats.add("f32x2", a, b, mode).view(np.uint32) == floats.add("f32", x, y, mode)).all()
        assert (floats.mul("f32x2", a, b, mode).view(np.uint32) == floats.mul("f32", x, y, mode)).all()
        assert (floats.fma("f32x2", a, b, c, mode).view(np.uint32) == floats.fma("f32", x, y, z, mode)).all()


@pytest.mark.parametrize("least", [True, False])
def test_minimum_and_maximum(least: bool) -> None:
    function = floats.min_ if least else floats.max_
    pick = min if least else max
    for type_ in ("f32", "f64"):
        layout = LAYOUTS[type_]
        rows = pairs_of(type_)
        a, b = columns(type_, rows)
        sign = 1 << (layout.bits - 1)

        def order(code: int, sign: int = sign) -> int:  # as totalOrder: -0 below +0
            return -(code & (sign - 1)) - 1 if code & sign else code

        def reference(x: int, y: int, layout: Any = layout) -> int:
            nan = [value(layout, c) != value(layout, c) for c in (x, y)]
            if all(nan):
                return int(layout.nan)
            return y if nan[0] else x if nan[1] else pick(x, y, key=order)

        same(type_, function(type_, a, b), rows, reference)
        if type_ == "f64":
            continue

        def with_nan(x: int, y: int) -> int:
            return NAN32 if any(value(F32, c) != value(F32, c) for c in (x, y)) else reference(x, y, F32)

        def xorsign(x: int, y: int) -> int:
            found = reference(x & 0x7FFFFFFF, y & 0x7FFFFFFF, F32)
            return found if value(F32, found) != value(F32, found) else found | (x ^ y) & 0x80000000

        same(type_, function(type_, a, b, nan=True), rows, with_nan)
        same(type_, function(type_, a, b, absolute=True, xorsign=True), rows, xorsign)
        c = np.roll(b, 5)
        triples = [(*r, int(z)) for r, z in zip(rows, c, strict=True)]
        same(
            type_, function(type_, a, b, c), triples, lambda x, y, z: reference(reference(x, y, F32), z, F32)
        )
    one = f32(1.0)
    tiny = np.array([0x80000001], np.uint32)
    assert int(function("f32", one if not least else tiny, tiny, ftz=True)[0]) == (
        0x80000000 if least else 0x3F800000
    )


def test_signs() -> None:
    rows = [(c,) for c in interesting(F32)]
    (a,) = columns("f32", rows)  # type: ignore[arg-type]
    assert floats.neg("f32", a).tolist() == [c ^ 0x80000000 for (c,) in rows]
    assert floats.abs_("f32", a).tolist() == [c & 0x7FFFFFFF for (c,) in rows]
    minus = np.array([0x80000001], np.uint32)
    assert floats.copysign("f32", minus, a).tolist() == [c | 0x80000000 for (c,) in rows]
    wide = np.array(interesting(F64), np.uint64)
    assert floats.neg("f64", wide).tolist() == [c ^ 1 << 63 for c in interesting(F64)]
    assert floats.copysign("f64", np.uint64(0), wide).tolist() == [
        c & (1 << 63) - 1 for c in interesting(F64)
    ]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("function", "table"),
    [  # the tables of the ISA
        (
            lambda a: floats.rcp("f32", a, "approx"),
            [(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN)],
        ),
        (
            lambda a: floats.sqrt("f32", a, "approx"),
            [(-INF, NAN), (-1.0, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN)],
        ),
        (
            lambda a: floats.rsqrt("f32", a),
            [(-INF, NAN), (-1.0, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN)],
        ),
        (floats.sin, [(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN)]),
        (floats.cos, [(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN), (NAN, NAN)]),
        (
            floats.lg2,
            [(-INF, NAN), (-1.0, NAN), (-0.0, -INF), (0.0, -INF), (INF, INF), (NAN, NAN), (8.0, 3.0)],
        ),
        (
            floats.ex2,
            [(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (NAN, NAN), (5.0, 32.0), (-149.0, 2.0**-149)],
        ),
        (floats.tanh, [(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (NAN, NAN)]),
    ],
)
def test_approximate_functions_at_the_edges(function: Any, table: list[tuple[float, float]]) -> None:
    got = function(f32(*(x for x, _ in table)))
    for g, (x, want) in zip(got, table, strict=True):
        assert int(g) == (NAN32 if want != want else int(f32(want)[0])), x


def test_approximate_functions_are_within_their_bounds() -> None:
    x = RNG.uniform(-6, 6, 2000).astype(np.float32)
    bits = x.view(np.uint32)
    wide = x.astype(np.float64)
    for got, exact, bound in (
        (floats.sin(bits), np.sin(wide), 2.0**-20.5), (floats.cos(bits), np.cos(wide), 2.0**-20.5),
        (floats.ex2(bits), np.exp2(wide), 2.0**-17), (floats.tanh(bits), np.tanh(wide), 2.0**-11),
        (floats.lg2(np.abs(x).view(np.uint32)), np.log2(np.abs(wide)), 2.0**-20),
        (floats.rsqrt("f32", (x * x + 1).view(np.uint32)), (x * x + 1).astype("f8") ** -0.5, 2.0**-22.9),
    ):  # fmt: skip
        assert np.abs(got.view(np.float32).astype(np.float64) - exact).max() < bound
    assert floats.ex2(np.array([0x80000001], np.uint32), ftz=True).tolist() == [0x3F800000]
    assert floats.ex2(f32(-140.0), ftz=True).tolist() == [0]


def test_approximate_division() -> None:
    big = 2.0**127
    got = floats.div("f32", f32(1, -1, INF, NAN, 6, 0), f32(big, big, big, big, 3, -big), "approx")
    assert got.tolist() == [0, 0x80000000, NAN32, NAN32, int(f32(2)[0]), 0x80000000]
    full = floats.div("f32", f32(1, -1, 6), f32(big, big, 3), "full")
    assert as_float(full) == [2.0**-127, -(2.0**-127), 2.0]


def test_gross_approximations_of_f64() -> None:
    a = np.array([-INF, -0.0, 0.0, INF, 3.0, 2.0**-1040, -(2.0**-1040)]).view(np.uint64)
    got = floats.rcp("f64", a, "approx", ftz=True).view(np.float64)
    assert got[:4].tolist() == [-0.0, -INF, INF, 0.0]
    assert got[5:].tolist() == [INF, -INF]
    assert abs(got[4] - 1 / 3) < 2.0**-20
    assert not (got.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
    nan = np.array([math.nan]).view(np.uint64)
    assert floats.rcp("f64", nan, "approx").tolist() == [0x7FFFFFFF00000000]
    root = floats.rsqrt("f64", np.array([4.0, -0.0, 0.0, INF, -1.0]).view(np.uint64), ftz=True).view(
        np.float64
    )
    assert root[:4].tolist() == [0.5, -INF, INF, 0.0]
    assert root[4] != root[4]


COMPARISONS = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}  # fmt: skip


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
def test_comparisons_of_floats(type_: str) -> None:
    layout = LAYOUTS[type_]
    edges = interesting(layout)
    rows: list[tuple[int, ...]] = list(itertools.product(edges, edges))
    a, b = columns(type_, rows)
    values = [(value(layout, x), value(layout, y)) for x, y in rows]
    nan = [x != x or y != y for x, y in values]
    for name, test in COMPARISONS.items():
        ordered = [test(x, y) and not n for (x, y), n in zip(values, nan, strict=True)]
        assert compare.compare(type_, name, a, b).tolist() == ordered
        assert compare.compare(type_, name + "u", a, b).tolist() == [
            o or n for o, n in zip(ordered, nan, strict=True)
        ]
    assert compare.compare(type_, "nan", a, b).tolist() == nan
    assert compare.compare(type_, "num", a, b).tolist() == [not n for n in nan]


def test_comparisons_of_integers() -> None:
    values = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF]
    rows = list(itertools.product(values, values))
    a, b = (np.array(c, np.uint32) for c in zip(*rows, strict=True))
    s = [x - 2**32 if x >> 31 else x for x in values]
    signed = list(itertools.product(s, s))
    for name, test in COMPARISONS.items():
        assert compare.compare("u32", name, a, b).tolist() == [test(x, y) for x, y in rows]
        assert compare.compare("s32", name, a, b).tolist() == [test(x, y) for x, y in signed]
    for name, other in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
        assert compare.compare("u32", name, a, b).tolist() == [COMPARISONS[other](x, y) for x, y in rows]


def test_setp_set_and_selections() -> None:
    a, b = np.array([1, 2, 3, 4], np.uint32), np.array([2, 2, 2, 2], np.uint32)
    c = np.array([True, False, True, False])
    p, q = compare.setp("u32", "lt", a, b)
    assert p.tolist() == [True, False, False, False]
    assert q.tolist() == [False, True, True, True]
    for boolean, expected in (
        ("and", ([1, 0, 0, 0], [0, 0, 1, 0])),
        ("or", ([1, 0, 1, 0], [1, 1, 1, 1])),
        ("xor", ([0, 0, 1, 0], [1, 1, 0, 1])),
    ):  # fmt: skip
        p, q = compare.setp("u32", "lt", a, b, boolean, c)
        assert (p.astype(int).tolist(), q.astype(int).tolist()) == expected
    assert compare.set_("u32", "s32", "gt", a, b).tolist() == [0, 0, 0xFFFFFFFF, 0xFFFFFFFF]
    assert compare.set_("f32", "s32", "gt", a, b, "and", c).tolist() == [0, 0, 0x3F800000, 0]
    assert compare.set_("u16", "f32", "lt", f32(1, 2, NAN, 4), f32(2, 2, 2, 2)).tolist() == [0xFFFF, 0, 0, 0]
    assert compare.selp("b32", a, b, c).tolist() == [1, 2, 3, 2]
    signs = np.array([0, 0x80000000, 5, 0xFFFFFFFF], np.uint32)
    assert compare.slct("u32", "s32", a, b, signs).tolist() == [1, 2, 3, 2]
    choice = np.array([0x80000000, 0x80000001, 0x7FC00000, 0x3F800000], np.uint32)
    assert compare.slct("u32", "f32", a, b, choice).tolist() == [1, 2, 2, 4]
    assert compare.slct("u32", "f32", a + 10, b, choice, ftz=True).tolist() == [11, 12, 2, 14]


def test_comparisons_of_pairs() -> None:
    a = np.array([0x3C003C00, 0x7E003C00], np.uint32)  # (1, 1), (1, NaN) low half first
    b = np.array([0x40003C00, 0x3C004000], np.uint32)  # (1, 2), (2, 1)
    p, q = compare.setp("f16x2", "lt", a, b)
    assert (p.tolist(), q.tolist()) == ([False, True], [True, False])
    assert compare.set_("f16x2", "f16x2", "lt", a, b).tolist() == [0x3C000000, 0x00003C00]
    assert compare.set_("u32", "f16x2", "ltu", a, b).tolist() == [0xFFFF0000, 0xFFFFFFFF]
    tiny = np.array([0x00010001], np.uint32)
    zero = np.array([0], np.uint32)
    assert compare.setp("f16x2", "eq", tiny, zero, ftz=True)[0].tolist() == [True]
    assert compare.setp("f16x2", "eq", tiny, zero)[0].tolist() == [False]


def test_testp() -> None:
    a = np.array(
        [0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32
    )
    expected = {
        "finite": [1, 1, 1, 1, 1, 1, 0, 0, 0], "infinite": [0, 0, 0, 0, 0, 0, 1, 1, 0],
        "number": [1] * 8 + [0],
        "notanumber": [0] * 8 + [1], "normal": [1, 1, 0, 0, 1, 1, 0, 0, 0],
        "subnormal": [0, 0, 1, 1, 0, 0, 0, 0, 0],
    }  # fmt: skip
    for name, want in expected.items():
        assert compare.testp(name, "f32", a).astype(int).tolist() == want, name
