"""Do inputs, references, bounds and poison hold for the types that GPUs compute in?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm, parse_problem

from worker.verify.bounds import compare
from worker.verify.cases import Case
from worker.verify.elements import element_dtype, representable
from worker.verify.poison import fill_bytes, first_touched, pattern, words
from worker.verify.prepared import PreparedCase, prepare_case, random_operand, strided

K = 96
TYPES: list[dict[str, Any]] = [
    {"dtype": "f16"},
    {"dtype": "bf16"},
    {"dtype": "tf32"},
    {"dtype": "e4m3"},
    {"dtype": "e5m2"},
    {"dtype": {"a": "e4m3", "b": "e4m3", "c": "f16"}},
    {"dtype": "s8"},
    {"dtype": "u8"},
    {"dtype": {"a": "s8", "b": "s8", "c": "bf16"}},
    {
        "dtype": {"a": "e4m3", "b": "e4m3", "c": "bf16"},
        "scale": {"a": {"dtype": "f32", "block": "row"}, "b": {"dtype": "f32", "block": "tensor"}},
    },
    {
        "dtype": {"a": "s8", "b": "s8", "c": "f16"}, "batch": 2,
        "scale": {"a": {"dtype": "f32", "block": "row"}, "b": {"dtype": "f32", "block": "row"}},
    },
]  # fmt: skip


def case(**fields: Any) -> PreparedCase:
    whole = {"op": "gemm", "m": 33, "n": 17, "k": K, "alpha": "one", "layout": {"b": "nk"}, **fields}
    problem = parse_problem(whole)
    assert isinstance(problem, Gemm)
    return prepare_case(Case("test", problem, "end", 0, 5, 1.0, 0.0, align=16), threads=1)


def as_f32(prepared: PreparedCase, skipped: int = 0) -> Any:
    """What a careful kernel computes: sums in f32, product after product, rounded once to the output's type.
    `skipped`: it forgets so many products of each sum."""
    of = prepared.case.problem
    a, b = (
        strided(prepared.case, name, prepared.inputs[name].data()).astype(np.float32) for name in ("a", "b")
    )
    sums = np.zeros((*a.shape[:-1], b.shape[-2]), np.float32)
    for i in range(of.k - skipped):
        sums += a[..., :, None, i] * b[..., None, :, i]
    for name, scale in prepared.scales.items():
        factor = scale if scale.size > 1 else scale.reshape(-1)
        sums = sums * (factor[..., :, None] if name == "scale_a" else factor[..., None, :])
    kind = element_dtype(of.dtype.c)
    return sums.astype(kind) if kind.kind != "i" else np.rint(sums).astype(kind)


@pytest.mark.parametrize("fields", TYPES, ids=str)
def test_a_careful_kernel_passes_and_one_missing_product_is_seen(fields: dict[str, Any]) -> None:
    prepared = case(**fields)
    (part,) = prepared.parts
    right = compare(as_f32(prepared), part.reference, part.bound)
    assert right.problem is None, right.evidence
    # A quarter of a sum's deviation is below what an 8-bit result is rounded by, so more is left out there.
    wrong = compare(as_f32(prepared, skipped=1), part.reference, part.bound)
    assert wrong.problem == "wrong_result", (right, part.bound)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "tf32", "f32", "s32"])
def test_poison_of_each_output_type_is_seen(name: str) -> None:
    kind = element_dtype(name)
    raw = np.zeros(64 * kind.itemsize, np.uint8)
    fill_bytes(raw, kind, 0)
    assert first_touched(raw, kind, 0) is None
    array = raw.view(kind)
    assert (words(array) == pattern(kind)).all()
    if name != "s32":
        assert np.isnan(array.astype(np.float64)).all()
    prepared = case(dtype={"a": "e4m3", "b": "e4m3", "c": "f16"})
    (part,) = prepared.parts
    if name == "f16":
        out = as_f32(prepared)
        out.reshape(-1)[3] = array[0]
        found = compare(out, part.reference, part.bound)
        assert (found.problem, found.evidence["first"]) == ("not_written", [0, 3])
    raw[5] ^= 1
    assert first_touched(raw, kind, 0) == 5


@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2"])
def test_nan_never_passes(name: str) -> None:
    prepared = case(dtype={"a": "e5m2", "b": "e5m2", "c": name} if name != "e5m2" else "e5m2")
    (part,) = prepared.parts
    out = as_f32(prepared)
    out.reshape(-1)[7] = float("nan")
    assert compare(out, part.reference, part.bound).problem == "nan_result"


def test_tf32_inputs_have_nothing_that_the_unit_drops() -> None:
    prepared = case(dtype="tf32")
    values = random_operand(prepared.case, "a")
    assert values.dtype == np.float32
    assert (values.view(np.uint32) & 0x1FFF == 0).all()
    assert len(np.unique(values)) > 1000
    exact = np.array([1.0, -0.5, 1.0 + 2.0**-10], np.float32)
    assert (representable(exact, "tf32") == exact).all()
    # Halfway between two neighbours goes away from zero, as cvt.rna does.
    assert representable(np.array([1.0 + 2.0**-11], np.float32), "tf32")[0] == 1.0 + 2.0**-10


def test_integers_use_their_whole_range_and_fp8_is_spread_over_one() -> None:
    signed = random_operand(case(dtype="s8").case, "a")
    assert (signed.dtype, signed.min(), signed.max()) == (np.dtype(np.int8), -128, 127)
    unsigned = random_operand(case(dtype="u8").case, "a")
    assert (unsigned.dtype, unsigned.max()) == (np.dtype(np.uint8), 255)
    eighths = random_operand(case(dtype="e4m3").case, "a").astype(np.float64)
    assert -1.0 <= eighths.min() < -0.9
    assert 0.9 < eighths.max() <= 1.0
    assert math.isclose(eighths.std(), 1 / math.sqrt(3), rel_tol=0.05)


def test_scales_by_blocks_are_refused_not_ignored() -> None:
    scale = {"dtype": "f32", "block": "1x128"}
    with pytest.raises(ValueError, match="has no reference here"):
        case(dtype="e4m3", scale={"a": scale, "b": {"dtype": "f32", "block": "128x128"}}, k=256)
