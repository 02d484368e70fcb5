"""Which numbers come out of a WGMMA of floats: NaN, infinities, subnormals, ties, signs, scale-d, layouts?

What is wanted is computed here by numpy: products of two elements are exact in f64. The PTX ISA leaves the
order and the rounding of sums open, and subnormal inputs; what is tested is what the emulator claims: the
sum of products and D is taken in f64 and rounded once an instruction, to nearest even; subnormals are kept.
Signs of zeros and the bits of NaN are not compared, but where a test says so.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from support.wgmma import TYPES, Form, multiply

FLOATS = [
    Form("f16", "f16", "f16"), Form("f32", "f16", "f16"), Form("f32", "bf16", "bf16"),
    Form("f32", "tf32", "tf32"),
    *(Form(d, a, b) for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
]  # fmt: skip
floats = pytest.mark.parametrize("form", FLOATS, ids=lambda f: f"{f.d}.{f.a}.{f.b}")
places = pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])

_WORDS = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "e4m3": np.uint8, "e5m2": np.uint8}
_SPECIAL = {
    # zero, least and greatest subnormal, least normal, one, greatest, infinity; NaN quiet and signalling
    "f16": (0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00, 0x7C01),
    "bf16": (0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81),
    # and numbers of which the last 13 bits are cut off: to zero, the greatest subnormal, one, the greatest
    "tf32": (0, 0x2000, 0x7FE000, 0x800000, 0x3F800000, 0x7F7FE000, 0x7F800000, 0x7FC00000, 0x7F802000,
             0x1FFF, 0x7FFFFF, 0x3F801FFF, 0x7F7FFFFF),
}  # fmt: skip


def numbers(kind: str, words: Any) -> Any:
    """The f64 numbers that words of a type stand for."""
    if kind == "tf32":
        words = words & np.uint32(0xFFFFE000)
    return words.view(TYPES[kind]).astype(np.float64)


def codes(kind: str, count: int, seed: int) -> Any:
    """Words of a type: all that is special with either sign, and random bits; of 8 bits each once."""
    word = _WORDS[kind]
    if word is np.uint8:
        return np.arange(256, dtype=word)
    some = np.array(_SPECIAL[kind], word)
    some = np.concatenate([some, some | word(1 << (8 * word().itemsize - 1))])
    drawn = np.random.default_rng(seed).integers(0, np.iinfo(word).max + 1, count - len(some), word)
    if kind == "tf32":  # not a NaN whose only bits are cut off
        drawn = np.where(np.isnan(drawn.view(np.float32)), np.uint32(0x7FC00000), drawn)
    return np.concatenate([some, drawn])


def one_each(form: Form, words: Any, at: int) -> Any:
    """Rows of zeros with one word each, at k = `at`."""
    rows = np.zeros((len(words), form.k), words.dtype)
    rows[:, at] = words
    return rows


def rounded(form: Form, exact: Any) -> Any:
    """f64 numbers in the type of D."""
    with np.errstate(over="ignore", invalid="ignore"):
        return exact.astype(TYPES[form.d])


@floats
@places
def test_every_product_of_two_numbers(form: Form, in_registers: bool) -> None:
    """One product and zeros, without and with a D before: of 8 bits all pairs, else all special ones."""
    left, right = codes(form.a, 64, 1), codes(form.b, 64, 2)
    form = form.but(n=len(right), in_registers=in_registers)
    before = rounded(form, np.random.default_rng(3).normal(0, 100, (64, form.n)))
    before[:, ::7] = np.array([np.inf, -np.inf, np.nan, 0])[np.arange(64) % 4, None]
    for number, start in enumerate(range(0, len(left), 64)):
        some = left[start : start + 64]
        at = (0, form.k - 1, 5, 2)[number]
        a, b = one_each(form, some, at), one_each(form, right, at)
        with np.errstate(invalid="ignore"):
            exact = numbers(form.a, some)[:, None] * numbers(form.b, right)[None, :]
            added = exact + before.astype(np.float64)
        np.testing.assert_array_equal(multiply(form.but(adds=False), a, b, before), rounded(form, exact))
        np.testing.assert_array_equal(multiply(form, a, b, before), rounded(form, added))


@floats
@places
@pytest.mark.parametrize(("n", "order"), [(8, "early"), (24, "late"), (256, "late")])
def test_whole_numbers(form: Form, in_registers: bool, n: int, order: str) -> None:
    """Exact sums of all of K, and where each of them lies."""
    form = form.but(n=n, in_registers=in_registers, times=2)
    rng = np.random.default_rng(n)
    a, b = rng.integers(-4, 5, (64, form.k)), rng.integers(-4, 5, (n, form.k))
    before = rng.integers(-100, 101, (64, n))
    given = [a.astype(TYPES[form.a]), b.astype(TYPES[form.b]), before.astype(TYPES[form.d])]
    np.testing.assert_array_equal(multiply(form, *given, order), before + 2 * (a @ b.T))


@floats
def test_fractions(form: Form) -> None:
    """Normally distributed numbers; the exact sum is rounded once, but for what f64 loses on its way: half a
    unit in the last place of D, and 2^-48 of the sum of the magnitudes."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 1, (64, form.k)), rng.normal(0, 1, (form.n, form.k))
    a, b, before = a.astype(TYPES[form.a]), b.astype(TYPES[form.b]), rng.normal(0, 4, (64, form.n))
    before = before.astype(TYPES[form.d])
    left, right = (numbers(kind, x.view(_WORDS[kind])) for kind, x in ((form.a, a), (form.b, b)))
    found = multiply(form, a, b, before)
    unit = 2.0**-11 if form.d == "f16" else 2.0**-24
    for i, j in itertools.product(range(64), range(form.n)):
        terms = [*(left[i] * right[j]), float(before[i, j])]
        exact, size = math.fsum(terms), math.fsum(map(abs, terms))
        power = 2.0 ** math.floor(math.log2(abs(exact)))
        assert abs(float(found[i, j]) - exact) <= unit * power + size * 2.0**-48


@floats
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_negated_operands(form: Form, signs: tuple[int, int]) -> None:
    """imm-scale-a and imm-scale-b turn the products' signs, and not D's."""
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 5, (64, form.k)), rng.integers(-4, 5, (8, form.k))
    before = rng.integers(-9, 10, (64, 8))
    before[3], a[3] = 7, 0
    given = [a.astype(TYPES[form.a]), b.astype(TYPES[form.b]), before.astype(TYPES[form.d])]
    wanted = signs[0] * signs[1] * (a @ b.T)
    np.testing.assert_array_equal(multiply(form.but(signs=signs), *given), before + wanted)
    np.testing.assert_array_equal(multiply(form.but(signs=signs, adds=False), *given), wanted)


@floats
@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (-1, -1)])
def test_what_cancels_is_a_positive_zero(form: Form, signs: tuple[int, int]) -> None:
    """1 - 1, as rounding to nearest has it, whichever operand is negated."""
    a, b = np.zeros((64, form.k)), np.ones((8, form.k))
    a[:, :2] = 1, -1
    found = multiply(form.but(signs=signs, adds=False), a.astype(TYPES[form.a]), b.astype(TYPES[form.b]))
    np.testing.assert_array_equal(found, np.zeros((64, 8)))
    assert not np.signbit(found).any()


@floats
@pytest.mark.parametrize(("scale_d", "adds"), [("0", False), ("1", True), ("!adds", False), ("adds", True)])
@pytest.mark.parametrize("predicate", [False, True])
def test_scale_d(form: Form, scale_d: str, adds: bool, predicate: bool) -> None:
    """Constants, the predicate and its opposite; D is not read where it is 0: a NaN there does not show."""
    if scale_d == "!adds":
        adds = not predicate
    elif scale_d == "adds":
        adds = predicate
    ones = [np.ones((rows, form.k)).astype(kind) for rows, kind in ((64, TYPES[form.a]), (8, TYPES[form.b]))]
    before = np.full((64, 8), np.nan if not adds else 3).astype(TYPES[form.d])
    found = multiply(form.but(scale_d=scale_d, adds=predicate), *ones, before)
    np.testing.assert_array_equal(found, np.full((64, 8), form.k + 3 * adds))


@places
@pytest.mark.parametrize(
    ("kind", "bits"), [("f16", None), ("bf16", None), ("tf32", None), ("e5m2", None), ("e5m2", 14)]
)
def test_infinities_that_meet(kind: str, bits: int | None, in_registers: bool) -> None:
    """Several terms and D: infinities of one sign stay, of two signs are NaN; as well where sums are cut to
    so many bits."""
    form = Form("f32", kind, kind, in_registers=in_registers)
    inf, nan = math.inf, math.nan
    cases = [  # a0, a1 and D before; the sum for b = (1, 1), for (1, -1) and for (0.5, 0)
        (inf, 1, 0, inf, inf, inf), (inf, inf, 0, inf, nan, nan),
        (inf, -inf, 0, nan, inf, nan), (-inf, -inf, 5, -inf, nan, nan), (1, 2, inf, inf, inf, inf),
        (inf, 0, -inf, nan, nan, nan), (-inf, 0, -inf, -inf, -inf, -inf), (nan, inf, 0, nan, nan, nan),
        (1, 1, nan, nan, nan, nan), (0, nan, 1, nan, nan, nan), (1, 1, -inf, -inf, -inf, -inf),
    ]  # fmt: skip
    a, b, before = np.zeros((64, form.k)), np.zeros((8, form.k)), np.zeros((64, 8))
    b[0, :2], b[1, :2], b[2, :2] = (1, 1), (1, -1), (0.5, 0)
    for row, (first, second, d, *_) in enumerate(cases):
        a[row, :2], before[row] = (first, second), d
    given = [a.astype(TYPES[kind]), b.astype(TYPES[kind]), before.astype(np.float32)]
    found = multiply(form, *given, fp8_bits=bits)
    np.testing.assert_array_equal(found[: len(cases), :3], [case[3:] for case in cases])


TIES = [  # a0 and a1 of b (1, 1) or (2^-14, 2^-14), D before, and the bits of the sum in f16
    (2048, 1, 1, 0, 0x6800), (2050, 1, 1, 0, 0x6802), (2048, 1 + 2**-10, 1, 0, 0x6801),
    (-2048, -1, 1, 0, 0xE800), (-2050, -1, 1, 0, 0xE802),
    (65504, 15.9921875, 1, 0, 0x7BFF), (65504, 16, 1, 0, 0x7C00), (-65504, -16, 1, 0, 0xFC00),
    (65504, 65504, 1, 0, 0x7C00), (65504, -32, 1, 32, 0x7BFF),
    (2**-11, 0, 2**-14, 0, 0x0000), (3 * 2**-11, 0, 2**-14, 0, 0x0002), (2**-11, 2**-21, 2**-14, 0, 0x0001),
    (1 - 2**-11, 0, 2**-14, 0, 0x0400), (1 - 2**-10, 0, 2**-14, 0, 0x03FF), (-(2**-10), 0, 2**-14, 0, 0x8001),
    (2048, 1, 1, 2**-20, 0x6801), (2050, 1, 1, -(2**-20), 0x6801),
    (0.75, 0.5, 1, 2048, 0x6801), (0.25, 0.5, 1, 2048, 0x6800), (0, 0, 1, 2**-24, 0x0001),
    (2**-10, 0, 2**-14, 2**-24, 0x0002), (1, 0, 1, 65504, 0x7BFF), (16, 0, 1, 65504, 0x7C00),
]  # fmt: skip


@places
def test_sums_in_f16_are_rounded_to_nearest_even(in_registers: bool) -> None:
    """Ties, overflow, subnormal results, and one rounding of several terms: computed by hand."""
    form = Form("f16", "f16", "f16", n=24, in_registers=in_registers)
    a, b, before = np.zeros((64, 16)), np.zeros((24, 16)), np.zeros((64, 24))
    b[::2], b[1::2] = 1, 2**-14
    for row, (first, second, _, d, _) in enumerate(TIES):
        a[row, :2], before[row] = (first, second), d
    given = [x.astype(np.float16) for x in (a, b, before)]
    found = multiply(form, *given).view(np.uint16)
    for row, (*_, scale, _, bits) in enumerate(TIES):
        columns = found[row, 0 if scale == 1 else 1 :: 2]
        np.testing.assert_array_equal(columns, np.full(12, bits), err_msg=str(TIES[row]))


def test_each_instruction_rounds_once() -> None:
    """Four ones beside 2^24: lost where each comes with an instruction of its own, and not in one."""
    form = Form("f32", "bf16", "bf16", times=4)
    a, b = (np.zeros((rows, 16), TYPES["bf16"]) for rows in (64, 8))
    before = np.full((64, 8), 2.0**24, np.float32)
    a[:, 0], b[:, :4] = 1, 1
    np.testing.assert_array_equal(multiply(form, a, b, before), before)
    a[:, :4] = 1
    np.testing.assert_array_equal(multiply(form.but(times=1), a, b, before), before + np.float32(4))
