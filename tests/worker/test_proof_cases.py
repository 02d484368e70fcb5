"""Do the runs of a proof reach what only large problems reach: 32 bits, other pitches, odd numbers?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm, operand_dtype, operand_shape

from search_space.device import Device
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from worker.verify import emulated, identity
from worker.verify.bounds import compare
from worker.verify.elements import element_dtype
from worker.verify.prepared import as_matrix, prepare_case, random_operand, strided, with_odd
from worker.verify.proof_cases import PITCHED, ProofCase, byte_strides, proof_cases

SLOT_BYTES = 1 << 44
FAMILIES = [("gemm_sm70", "sm_70"), ("gemm_sm80", "sm_80"), ("gemm_sm90", "sm_90a")]
FULL: dict[str, Any] = {
    "beta": "any", "batch": 7, "layout": {"a": "mk", "b": "nk"},
    "epilogue": {"bias": "n", "activation": "relu", "residual": True},
}  # fmt: skip


def made(name: str, arch: str, **more: Any) -> tuple[Family, Device, Gemm, Schedule]:
    family, device = get_family(name), Device.for_arch(arch)
    p = Gemm(4096, 4096, 4096, "f16", **(FULL | more))
    return family, device, p, family.default(p, device)


def cases(family: Family, device: Device, p: Gemm, s: Schedule) -> tuple[ProofCase, ...]:
    return proof_cases(family.proof_problems(p, device, s), 3)


@pytest.mark.parametrize(("name", "arch"), FAMILIES)
@pytest.mark.parametrize("batch", [1, 7])
def test_pitches_differ_and_suit_the_plan(name: str, arch: str, batch: int) -> None:
    family, device, p, s = made(name, arch, batch=batch)
    for this in cases(family, device, p, s):
        q = this.case.problem
        plan = family.plan(q, device, s)
        names = this.names(plan)
        assert plan.check(names) == []
        given = [names[f"{what}_{x}"] for what in ("ld", "stride") for x in PITCHED]
        assert len(set(given)) == len(given)
        for x in PITCHED:
            unit = plan.valid_for.sizes[f"ld_{x}"].multiple_of
            assert names[f"ld_{x}"] // unit % 2 == 1  # no multiple of more than the plan asks for


@pytest.mark.parametrize(("name", "arch"), FAMILIES)
@pytest.mark.parametrize("batch", [1, 7])
def test_offsets_of_many_tiles_pass_32_bits(name: str, arch: str, batch: int) -> None:
    family, device, p, s = made(name, arch, batch=batch)
    far = [this for this in cases(family, device, p, s) if this.far]
    assert len(far) == 3  # the long sum, many tiles, odd numbers
    assert all(this.case.alpha and this.case.beta for this in far)  # every operand counts
    assert max(this.case.problem.batch for this in far) == min(batch, 3)
    for this in far:
        names = this.names(family.plan(this.case.problem, device, s))
        for x in PITCHED:
            shape = operand_shape(this.case.problem, x)
            strides = byte_strides(this.case.problem, x, names)
            assert strides is not None
            assert strides[-2] > 2**32
            if this.case.problem.batch == 3:
                assert 2**31 < strides[0] < strides[1] / 2
            # Entries and rows do not overlap, and the emulator has room.
            ends = sorted((step, (n - 1) * step) for n, step in zip(shape, strides, strict=True) if n > 1)
            item = element_dtype(operand_dtype(this.case.problem, x)).itemsize
            assert sum(end for _, end in ends) + item < SLOT_BYTES
            for i, (step, _) in enumerate(ends):
                assert sum(end for _, end in ends[:i]) + item <= step


def test_alpha_of_0_and_odd_numbers_come_with_the_smallest_problem() -> None:
    family, device, p, s = made("gemm_sm80", "sm_80")
    problems = family.proof_problems(p, device, s)
    found = proof_cases(problems, 3)
    odd, none = found[len(problems) :]
    assert (odd.case.odd, none.case.odd, none.case.alpha) == (True, False, 0.0)
    assert none.case.beta != 0.0
    assert len({this.case.seed for this in found}) == len(found)
    one = made("gemm_sm80", "sm_80", alpha="one")
    assert [this.case.alpha for this in cases(*one)] == [1.0] * (len(problems) + 1)
    assert 0.0 in [this.case.beta for this in found[: len(problems)]]


def test_factors_of_integers_are_no_whole_numbers() -> None:
    p = Gemm(5, 7, 9, "s8", beta="any", layout={"b": "nk"})
    (first, *_) = proof_cases([p], 3)
    prepared = prepare_case(first.case, threads=1)
    a, b, c = (
        as_matrix(first.case, x, strided(first.case, x, prepared.inputs[x].data())).astype(np.float64)
        for x in "abc"
    )
    exact = first.case.alpha * (a @ b) + first.case.beta * c
    assert (exact % 1 == 0.5).any()
    assert (exact % 1 != 0).sum() > exact.size / 2
    (part,) = prepared.parts
    assert np.array_equal(part.reference.values, np.rint(exact))
    right = np.rint(exact).astype(np.int32)
    assert compare(right, part.reference, part.bound).problem is None
    assert compare(np.trunc(exact).astype(np.int32), part.reference, part.bound).problem == "wrong_result"


def test_nan_must_come_out_where_it_went_in() -> None:
    p = Gemm(15, 14, 13, "f16", beta="any", epilogue=FULL["epilogue"])
    odd = proof_cases([p], 3)[1].case
    prepared = prepare_case(odd, threads=1)
    (part,) = prepared.parts
    values = part.reference.values
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert np.isfinite(values).sum() > values.size / 3
    assert np.isfinite(part.bound.absolute)
    out = values.astype(np.float16)
    assert compare(out, part.reference, part.bound).problem is None
    for wrong in (np.nan_to_num(out, nan=0.0), np.where(np.isinf(out), np.float16(6e4), out)):
        assert compare(wrong, part.reference, part.bound).problem is not None
    finite = np.argwhere(np.isfinite(values))[0]
    for x in (np.nan, float(values[tuple(finite)]) + 0.5):
        wrong = out.copy()
        wrong[tuple(finite)] = x
        assert compare(wrong, part.reference, part.bound).problem is not None


@pytest.mark.parametrize(("c", "activation", "expected"), [
    ("f16", None, True), ("f16", "relu", True), ("f16", "silu", False), ("e4m3", None, False),
])  # fmt: skip
def test_infinities_only_where_the_result_has_them(c: str, activation: str | None, expected: bool) -> None:
    a = "e4m3" if c == "e4m3" else "f16"
    epilogue = {"activation": activation, "residual": True}
    p = Gemm(15, 14, 13, {"a": a, "b": a, "c": c}, layout={"b": "nk"}, epilogue=epilogue)
    case = proof_cases([p], 3)[1].case
    for x in ("a", "b", "residual"):
        values = with_odd(case, x, random_operand(case, x)).astype(np.float32)
        assert np.isnan(values).sum() == 1
        assert np.isinf(values).any() == (expected and x != "b")


def test_integers_have_no_odd_numbers() -> None:
    p = Gemm(5, 7, 9, "s8", layout={"b": "nk"})
    case = proof_cases([p], 3)[1].case
    values = random_operand(case, "a")
    assert np.array_equal(with_odd(case, "a", values), values)


def test_a_block_that_computes_several_tiles_has_several() -> None:
    family, device, p, s = made("gemm_sm90", "sm_90a", batch=1)
    for cluster in (1, 2):
        t = s.replace(cluster_m=cluster, persistent=True)
        assert family.check(p, device, t) == []
        many = cases(family, device, p, t)[1]
        plan = family.plan(many.case.problem, device, t)
        names = many.names(plan) | {"threads": 1, "sm_count": many.sm_count(plan)}
        grid = [step.grid[0] for step in plan.concrete(names).steps if hasattr(step, "grid")]
        assert grid == [3 * cluster]


def test_a_verdict_is_remembered_by_all_that_judges() -> None:
    """What a proof imports of its own folder is part of its identity: a change lets structures run again."""
    text = Path(emulated.__file__).read_text()
    imported = set(re.findall(r"^from worker\.verify\.(\w+) import", text, re.M))
    assert "proof_cases" in imported
    assert imported <= set(identity._JUDGES)
