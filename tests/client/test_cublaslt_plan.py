"""Is a GEMM of ours described to cuBLASLt so that its column-major product is our result?"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from rooftile.launch.cublaslt_plan import LtMatrix, lt_plan
from rooftile.launch.errors import UnsuitableError
from rooftile.problem import Gemm, parse_problem


def gemm(**fields: Any) -> Gemm:
    problem = parse_problem({"op": "gemm", "m": 5, "n": 7, "k": 3, "dtype": "f32", **fields})
    assert isinstance(problem, Gemm)
    return problem


class Memory:
    """Flat buffers of a problem's operands, filled with random numbers up to the last element and no
    further."""

    def __init__(self, problem: Gemm, names: dict[str, int]) -> None:
        self.problem, self.names = problem, names
        self.flat: dict[str, np.ndarray[Any, Any]] = {}
        stream = np.random.default_rng(3)
        for operand in ("a", "b", "c", "out", "residual"):
            letters = self.letters(operand)
            rows, cols = (getattr(problem, letter) for letter in letters)
            ld, step = names[f"ld_{operand}"], names[f"stride_{operand}"]
            size = (problem.batch - 1) * step + (rows - 1) * ld + cols
            self.flat[operand] = stream.uniform(-1, 1, size)
        self.bias = stream.uniform(-1, 1, problem.n)

    def letters(self, operand: str) -> str:
        return str(getattr(self.problem.layout, operand if operand in "ab" else "c"))

    def row_major(self, operand: str, wanted: str) -> np.ndarray[Any, Any]:
        """As (batch, rows, cols) in the order of `wanted`."""
        letters = self.letters(operand)
        rows, cols = (getattr(self.problem, letter) for letter in letters)
        ld, step = self.names[f"ld_{operand}"], self.names[f"stride_{operand}"]
        flat = self.flat[operand]
        strides = (step * 8, ld * 8, 8)
        found = np.lib.stride_tricks.as_strided(flat, (self.problem.batch, rows, cols), strides)
        return found if letters == wanted else found.swapaxes(1, 2)

    def column_major(self, matrix: LtMatrix) -> np.ndarray[Any, Any]:
        """As (batch, rows, cols), as cuBLASLt reads the memory; refuses to leave it."""
        flat = self.flat[matrix.operand]
        last = (matrix.batch - 1) * matrix.batch_stride + (matrix.cols - 1) * matrix.ld + matrix.rows
        assert last <= flat.size
        assert matrix.ld >= matrix.rows
        strides = (matrix.batch_stride * 8, 8, matrix.ld * 8)
        return np.lib.stride_tricks.as_strided(flat, (matrix.batch, matrix.rows, matrix.cols), strides)


@pytest.mark.parametrize(
    ("a", "b", "c", "batch", "pad"), list(product(("mk", "km"), ("kn", "nk"), ("mn", "nm"), (1, 3), (0, 2)))
)
def test_the_column_major_product_is_ours(a: str, b: str, c: str, batch: int, pad: int) -> None:
    problem = gemm(layout={"a": a, "b": b, "c": c}, batch=batch, beta="any")
    names = problem.plan_names()
    for operand in ("a", "b", "c", "out", "residual"):
        names[f"ld_{operand}"] += pad
        names[f"stride_{operand}"] = names[f"ld_{operand}"] * 7 + pad
    memory = Memory(problem, names)
    x_y = memory.row_major("a", "mk") @ memory.row_major("b", "kn")
    want = 2.0 * x_y - 0.5 * memory.row_major("c", "mn")

    plan = lt_plan(problem, names)
    x, y = memory.column_major(plan.x), memory.column_major(plan.y)
    x, y = (x.swapaxes(1, 2) if plan.transpose_x else x), (y.swapaxes(1, 2) if plan.transpose_y else y)
    assert plan.c_operand == "c"
    memory.column_major(plan.d)[...] = 2.0 * (x @ y) - 0.5 * memory.column_major(plan.c)
    np.testing.assert_allclose(memory.row_major("out", "mn"), want, rtol=1e-12)


def test_a_bias_lies_along_the_rows_of_d() -> None:
    plan = lt_plan(gemm(epilogue={"bias": "n", "activation": "relu"}), gemm().plan_names())
    assert (plan.bias, plan.activation, plan.d.rows) == (True, "relu", 7)
    with pytest.raises(UnsuitableError, match="contiguous dimension of out"):
        lt_plan(gemm(layout={"c": "nm"}, epilogue={"bias": "n"}), gemm().plan_names())


def test_a_residual_alone_is_c() -> None:
    assert lt_plan(gemm(epilogue={"residual": True}), gemm().plan_names()).c_operand == "residual"
    for problem in (
        gemm(epilogue={"residual": True}, beta="any"),
        gemm(epilogue={"residual": True, "activation": "relu"}),
    ):
        with pytest.raises(UnsuitableError, match="adds one matrix"):
            lt_plan(problem, problem.plan_names())


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_other_activations_are_refused(activation: str) -> None:
    with pytest.raises(UnsuitableError, match=f"no activation {activation}"):
        lt_plan(gemm(epilogue={"activation": activation}), gemm().plan_names())


@pytest.mark.parametrize(
    ("dtype", "compute", "scalars"),
    [("f16", "f32", "f32"), ("bf16", "f32", "f32"), ("tf32", "tf32", "f32"), ("e4m3", "f32", "f32"),
     ("s8", "s32", "s32"), ("f64", "f64", "f64")],
)  # fmt: skip
def test_what_is_summed_in(dtype: str, compute: str, scalars: str) -> None:
    plan = lt_plan(gemm(dtype=dtype), gemm().plan_names())
    assert (plan.compute, plan.scalars, plan.x.dtype) == (compute, scalars, dtype)


def test_scales_follow_their_operand() -> None:
    scale = {"a": {"dtype": "f32", "block": "tensor"}, "b": {"dtype": "f32", "block": "tensor"}}
    plan = lt_plan(gemm(dtype="e4m3", scale=scale), gemm().plan_names())
    assert (plan.x.operand, plan.scale_x, plan.scale_y) == ("b", "scale_b", "scale_a")
    rows = {"a": {"dtype": "f32", "block": "row"}, "b": {"dtype": "f32", "block": "row"}}
    with pytest.raises(UnsuitableError, match=r"scale\.a"):
        lt_plan(gemm(dtype="e4m3", scale=rows), gemm().plan_names())
