"""Do references, bounds, poison and guards say what they should, on their own?"""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm

from worker.verify.arena import GUARD_BYTES, PAGE_BYTES, GuardedBuffer, describe_fault
from worker.verify.bounds import Bound, bound_for, compare
from worker.verify.cases import main_cases, neighbours
from worker.verify.checks import Target
from worker.verify.poison import fill_bytes, first_touched, pattern, words
from worker.verify.prepared import prepare_case, random_operand, strided
from worker.verify.reference import Reference, activate, finish, product


def reference(values: Any) -> Reference:
    array = np.asarray(values, np.float64)
    return Reference(array, 1.0)


BOUND = Bound(1e-4, 1e-6, 1e-3)


def test_nan_passes_only_where_the_reference_has_it() -> None:
    expected = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 3.0]])
    assert compare(expected.astype(np.float32), reference(expected), BOUND).problem is None
    everywhere = np.full((2, 3), np.nan, np.float32)
    found = compare(everywhere, reference(expected), BOUND)
    assert found.problem == "nan_result"
    assert found.evidence["count"] == 5
    assert found.evidence["first"] == [0, 0]
    instead = expected.copy()
    instead[0, 1] = 7.0
    assert compare(instead.astype(np.float32), reference(expected), BOUND).problem == "wrong_result"
    flipped = expected.copy()
    flipped[1, 0] = -np.inf
    assert compare(flipped.astype(np.float32), reference(expected), BOUND).problem == "nan_result"


def test_the_first_wrong_element_is_named() -> None:
    expected = np.zeros((4, 8))
    out = expected.astype(np.float32)
    out[2, 5] = 0.5
    out[3, 1] = -0.5
    found = compare(out, reference(expected), BOUND)
    assert found.problem == "wrong_result"
    assert found.evidence["first"] == [2, 5]
    assert found.evidence["count"] == 2
    assert found.evidence["got"] == 0.5
    assert found.evidence["expected"] == 0.0


def test_poison_is_not_written_but_what_was_computed_from_it_is_nan() -> None:
    out = np.zeros((2, 2), np.float32)
    words(out)[1, 1] = pattern(np.float32)
    assert np.isnan(out[1, 1])
    assert compare(out, reference(np.zeros((2, 2))), BOUND).problem == "not_written"
    with np.errstate(invalid="ignore"):
        out[1, 1] = out[1, 1] * np.float32(0.0)
    assert compare(out, reference(np.zeros((2, 2))), BOUND).problem == "nan_result"


@pytest.mark.parametrize("k", [1, 7, 64, 1000, 8192])
def test_honest_f32_sums_pass_and_a_dropped_block_does_not(k: int) -> None:
    stream = np.random.default_rng(k)
    a = stream.uniform(-1, 1, (5, k)).astype(np.float32)
    b = stream.uniform(-1, 1, (k, 40)).astype(np.float32)
    expected = finish(product(a, b), alpha=1.0, beta=0.0, c=None, bias=None, activation=None, residual=None)
    bound = bound_for(expected, k, "f32", "f32", 1.0, False)
    one_by_one = np.zeros((5, 40), np.float32)
    for step in range(k):  # the least accurate order there is
        one_by_one += a[:, step : step + 1] * b[step : step + 1]
    assert compare(one_by_one, expected, bound).problem is None
    # Inputs that cancel: outputs near zero must pass as well (AT-55).
    shifted = Reference(expected.values - expected.values, expected.rms)
    assert compare(one_by_one - expected.values.astype(np.float32), shifted, bound).problem is None
    dropped = (a[:, : k - 1] @ b[: k - 1]).astype(np.float32)
    assert compare(dropped, expected, bound).problem == "wrong_result"
    half = one_by_one.astype(np.float16).astype(np.float32)
    assert compare(half, expected, bound).problem == "wrong_result"


def test_f64_is_held_to_its_own_precision() -> None:
    expected = reference(np.ones((8, 8)))
    bound = bound_for(expected, 100, "f64", "f64", 1.0, False)
    assert compare(np.ones((8, 8)), expected, bound).problem is None
    assert compare(np.ones((8, 8)) + 1e-9, expected, bound).problem == "wrong_result"


def test_integers_must_be_exact() -> None:
    expected = reference([[3.0, 4.0]])
    bound = bound_for(expected, 100, "s32", "s32", 1.0, False)
    assert compare(np.array([[3, 4]], np.int32), expected, bound).problem is None
    assert compare(np.array([[3, 5]], np.int32), expected, bound).problem == "wrong_result"


def test_epilogue_in_the_right_order() -> None:
    products = np.array([[1.0, -2.0]])
    c, bias, residual = np.array([[10.0, 10.0]]), np.array([0.5, -30.0]), np.array([[100.0, 200.0]])
    got = finish(products, alpha=2.0, beta=0.5, c=c, bias=bias, activation="relu", residual=residual)
    assert got.values.tolist() == [[107.5, 200.0]]


@pytest.mark.parametrize(
    ("name", "at_one", "at_minus_one"),
    [
        ("relu", 1.0, 0.0),
        ("gelu", 0.8413447460685429, -0.15865525393145707),
        ("gelu_tanh", 0.8411919906082768, -0.15880800939172324),
        ("silu", 0.7310585786300049, -0.2689414213699951),
    ],
)
def test_activations_by_their_known_values(name: str, at_one: float, at_minus_one: float) -> None:
    got = activate(np.array([1.0, -1.0, 0.0]), name)
    assert got[:2] == pytest.approx([at_one, at_minus_one], abs=1e-12)
    assert got[2] == 0.0
    assert np.isfinite(activate(np.array([-800.0, 800.0]), name)).all()


def test_product_in_pieces_is_the_product() -> None:
    stream = np.random.default_rng(1)
    a, b = stream.uniform(-1, 1, (300, 500)), stream.uniform(-1, 1, (500, 700))
    assert np.allclose(product(a, b, threads=3), a @ b, rtol=0, atol=1e-12)


def test_inputs_are_uniform_reproducible_and_different() -> None:
    end, start = main_cases(Gemm(64, 64, 64, "f32"), 5)
    a, again, other = random_operand(start, "a"), random_operand(start, "a"), random_operand(end, "a")
    assert np.array_equal(a, again)
    assert not np.array_equal(a, other)
    assert not np.array_equal(a, random_operand(start, "b"))
    assert -1.0 <= a.min() < -0.9
    assert 0.9 < a.max() <= 1.0
    assert a.std() == pytest.approx(1 / math.sqrt(3), rel=0.05)
    assert np.count_nonzero(a) == a.size


def test_neighbours_have_the_edges() -> None:
    cases = neighbours(Gemm(128, 4096, 1024, "f32"), 1)
    sizes = {(c.problem.m, c.problem.n, c.problem.k) for c in cases}
    assert any(k == 0 for _, _, k in sizes)
    assert any(m == 1 for m, _, _ in sizes)
    assert any(n == 1 for _, n, _ in sizes)
    assert any(c.problem.batch == 2 for c in cases)
    assert {c.offset for c in cases if c.placement == "start"} >= {0, 4, 16, 256}
    assert any(c.pad == 8 for c in cases)
    assert any(c.problem.n == 4096 and c.problem.m == 1 for c in cases)
    with_c = neighbours(Gemm(8, 64, 64, "f32", beta="any"), 1)
    assert any(c.out_is_c for c in with_c)
    assert {c.beta for c in with_c} >= {1.0, 0.5, -2.0}


def test_a_pitched_operand_has_poison_between_its_rows() -> None:
    (case,) = [c for c in neighbours(Gemm(8, 64, 64, "f32"), 1) if c.name == "pitched"]
    prepared = prepare_case(case)
    flat = words(prepared.inputs["a"].data().view(np.float32))
    gap = case.problem.k
    assert flat[gap] == pattern(np.float32)
    assert not np.isnan(strided(case, "a", prepared.inputs["a"].data())).any()


@pytest.mark.parametrize("placement", ["end", "start"])
@pytest.mark.parametrize("nbytes", [0, 4, 52, 4096, 5 << 20])
def test_buffers_lie_where_they_should(placement: str, nbytes: int) -> None:
    buffer = GuardedBuffer("x", nbytes, placement=placement, offset=16, align=4)
    region = buffer.region
    assert region.body - region.start >= GUARD_BYTES
    assert region.end - region.body_end >= GUARD_BYTES
    if placement == "end":
        assert region.base + nbytes == region.body_end
    else:
        assert region.base % PAGE_BYTES == 16
        assert region.body_end - region.base - nbytes >= PAGE_BYTES
    if nbytes >= 4 << 20:
        assert region.body % (2 << 20) == 0
    buffer.data()[:] = 1
    before, after = buffer.margins()
    fill_bytes(before, np.float32, region.body)
    fill_bytes(after, np.float32, region.base + nbytes)
    assert buffer.data().all()
    assert first_touched(before, np.float32, region.body) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("start", [0, 1, 3, 4])
@pytest.mark.parametrize("size", [0, 1, 3, 64, 101])
def test_a_touched_byte_is_found_wherever_it_is(dtype: str, start: int, size: int) -> None:
    memory = np.zeros(256, np.uint8)
    target = memory[start : start + size]
    fill_bytes(target, dtype, start)
    assert first_touched(target, dtype, start) is None
    for at in range(size):
        kept = target[at]
        target[at] ^= 1
        assert first_touched(target, dtype, start) == at
        target[at] = kept
    assert not memory[:start].any()
    assert not memory[start + size :].any()


def test_faults_are_described_by_their_distance() -> None:
    buffer = GuardedBuffer("out", 100, placement="start", offset=16)
    region = buffer.region
    beyond = describe_fault([region], region.base + 100 + (1 << 20), write=True)
    assert beyond is not None
    assert (beyond["buffer"], beyond["offset_bytes"], beyond["access"]) == ("out", 1 << 20, "write")
    before = describe_fault([region], region.base - 5000, write=False)
    assert before is not None
    assert before["message"] == "read before the start of out, at -5000 bytes"
    assert describe_fault([region], 8, write=True) is None


@pytest.mark.parametrize("what", ["end", "before", "input"])
def test_guards_really_fault(what: str) -> None:
    """In a process of its own: one byte past the end, one page before the start, one write to an input."""
    script = (
        "import ctypes, sys\n"
        "from worker.verify.arena import GuardedBuffer\n"
        "what = sys.argv[1]\n"
        "buffer = GuardedBuffer('x', 100, placement='start' if what == 'before' else 'end')\n"
        "if what == 'input': buffer.read_only()\n"
        "at = {'end': buffer.base + 100, 'before': buffer.region.body - 1, 'input': buffer.base}[what]\n"
        "ctypes.memset(at, 1, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, what], capture_output=True, check=False)
    assert done.returncode == -11


@pytest.mark.parametrize("batch", [1, 6])
def test_a_large_result_is_sampled_at_both_ends_and_looked_at_everywhere(batch: int) -> None:
    problem = Gemm(40, 50, 30, "f32", batch=batch, epilogue={"bias": "n", "residual": True}, beta="one")
    case = main_cases(problem, 3)[1]
    whole = prepare_case(case)
    some = prepare_case(case, most_flops=2.0 * batch * 40 * 50 * 30 / 4)
    assert whole.whole
    assert not some.whole
    expected = whole.parts[0].reference.values
    for part in some.parts:
        assert np.allclose(expected[part.index], part.reference.values, rtol=0, atol=1e-12)
        assert 0 < part.reference.values.size < expected.size
    target = Target(some, lambda regions: None)
    target.output()[...] = expected.astype(np.float32)
    assert target.check().problem is None
    for corner in ((0,) * expected.ndim, tuple(n - 1 for n in expected.shape)):
        target.output()[corner] += 1.0
        assert target.compare().problem == "wrong_result"
        target.output()[corner] -= 1.0
    # An element that no part looks at must have been written all the same.
    seen = np.zeros(expected.shape, np.bool_)
    for part in some.parts:
        seen[part.index] = True
    (where, *_) = np.argwhere(~seen)
    target.output()[tuple(where)] = np.nan
    assert target.compare().problem == "nan_result"
    words(target.output())[tuple(where)] = pattern(np.float32)
    assert target.compare().problem == "not_written"
