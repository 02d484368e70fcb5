"""Which numbers come out of a WGMMA of s8 and u8, with and without .satfinite?

What is wanted is computed here in 64-bit integers, exactly; PTX ISA 9.7.15.5.2 says what happens to sums
beyond 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.wgmma import TYPES, Form, multiply

FORMS = [Form("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")]
whole = pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.a}.{f.b}")
places = pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
cuts = pytest.mark.parametrize("satfinite", [False, True], ids=["wraps", "satfinite"])
LEAST, MOST = -(1 << 31), (1 << 31) - 1


def operands(form: Form, seed: int) -> tuple[Any, Any]:
    """All values of the types; the first row and column are the greatest, the second the least ones."""
    rng = np.random.default_rng(seed)
    found = []
    for rows, kind in ((64, form.a), (form.n, form.b)):
        ends = np.iinfo(TYPES[kind])
        matrix = rng.integers(ends.min, ends.max + 1, (rows, form.k))
        matrix[0], matrix[1] = ends.max, ends.min
        found.append(matrix)
    return found[0], found[1]


def limited(exact: Any, satfinite: bool) -> Any:
    """What of exact sums fits into s32, or what is left of them."""
    return np.clip(exact, LEAST, MOST) if satfinite else (exact - LEAST) % (1 << 32) + LEAST


def found(form: Form, a: Any, b: Any, d: Any, order: str = "late") -> Any:
    """D, of matrices of int64."""
    return multiply(form, a.astype(TYPES[form.a]), b.astype(TYPES[form.b]), d.astype(np.int32), order)


@whole
@places
@pytest.mark.parametrize("n", [8, 16, 24, 32, 48, 64, 240, 256])
def test_products(form: Form, in_registers: bool, n: int) -> None:
    """All of K, for all values."""
    form = form.but(n=n, in_registers=in_registers)
    a, b = operands(form, n)
    before = np.random.default_rng(1).integers(-1000, 1000, (64, n))
    np.testing.assert_array_equal(found(form, a, b, before), a @ b.T + before)


@whole
@places
@cuts
@pytest.mark.parametrize("order", ["early", "late"])
def test_limits(form: Form, in_registers: bool, satfinite: bool, order: str) -> None:
    """Sums at and beyond both ends of s32."""
    form = form.but(n=32, in_registers=in_registers, satfinite=satfinite)
    a, b = operands(form, 2)
    exact = a @ b.T
    # Rows that end at, one beyond or far beyond an end.
    aims = np.array([MOST, MOST + 1, MOST - 1, LEAST, LEAST - 1, LEAST + 1])[np.arange(64) % 6, None]
    before = np.clip(aims - exact, LEAST, MOST)
    before[6:12], before[12:18] = MOST, LEAST
    sums = before + exact
    reached = {MOST, MOST + 1} | ({LEAST, LEAST - 1} if "s8" in (form.a, form.b) else set())
    assert reached <= set(sums.reshape(-1).tolist())
    np.testing.assert_array_equal(found(form, a, b, before, order), limited(sums, satfinite))


@cuts
def test_only_the_whole_sum_is_limited(satfinite: bool) -> None:
    """Terms that would leave s32 on the way but come back within the instruction."""
    form = Form("s32", "s8", "s8", satfinite=satfinite)
    a, b = np.full((64, 32), 127), np.full((8, 32), 127)
    b[:, 16:] = -127
    before = np.where(np.arange(64)[:, None] % 2, MOST, LEAST) + np.zeros((64, 8), np.int64)
    np.testing.assert_array_equal(found(form, a, b, before), before)
    np.testing.assert_array_equal(found(form, a, np.roll(b, 16, axis=1), before), before)


@whole
@cuts
def test_each_instruction_is_limited(form: Form, satfinite: bool) -> None:
    """Three in a row: the second begins with what the first has left."""
    form = form.but(satfinite=satfinite, times=3)
    a, b = operands(form, 3)
    wanted = np.full((64, 8), MOST - 20000)
    wanted[::2] = LEAST + 20000
    before = wanted
    for _ in range(3):
        wanted = limited(wanted + a @ b.T, satfinite)
    np.testing.assert_array_equal(found(form, a, b, before), wanted)


@whole
@pytest.mark.parametrize("predicate", [False, True])
@pytest.mark.parametrize("scale_d", ["0", "1", "adds", "!adds"])
def test_scale_d(form: Form, predicate: bool, scale_d: str) -> None:
    """Constants, the predicate and its opposite."""
    adds = {"0": False, "1": True, "adds": predicate, "!adds": not predicate}[scale_d]
    a, b = operands(form, 4)
    before = np.full((64, 8), 1234567)
    given = form.but(adds=predicate, scale_d=scale_d)
    np.testing.assert_array_equal(found(given, a, b, before), a @ b.T + adds * before)
