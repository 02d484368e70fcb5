"""Does the Baseline compute the problem for every dtype numpy holds, in place, with a kernel's own checks?"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from rooftile.baseline import Baseline, erfc
from rooftile.errors import LaunchError
from rooftile.problem import Gemm, operand_shape


def exact(name: str | None, x: float) -> float:
    """The activations from their definitions, in double precision."""
    if name == "relu":
        return max(x, 0.0)
    if name == "gelu":
        return 0.5 * x * math.erfc(-x * math.sqrt(0.5))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x / (1 + math.exp(-x)) if x > -700 else 0.0
    return x


def values(problem: Gemm, name: str, seed: int) -> Any:
    shape = operand_shape(problem, name)
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_the_whole_formula(dtype: str, activation: str | None) -> None:
    kind = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype]
    tolerance = {"f32": 2e-5, "f64": 1e-12, "f16": 5e-2}[dtype]
    for batch, layouts in product(
        (1, 3), ({"a": "mk", "b": "kn", "c": "mn"}, {"a": "km", "b": "nk", "c": "nm"})
    ):
        epilogue = {"bias": "n", "activation": activation, "residual": True}
        problem = Gemm(4, 6, 33, dtype, batch=batch, layout=layouts, beta="any", epilogue=epilogue)
        arrays = {
            n: values(problem, n, i).astype(kind) for i, n in enumerate(("a", "b", "c", "bias", "residual"))
        }

        def mn(
            name: str, letters: str, arrays: dict[str, Any] = arrays, layouts: dict[str, str] = layouts
        ) -> Any:
            array = arrays[name].astype(np.float64)
            return array if layouts[name if name in "ab" else "c"] == letters else array.swapaxes(-1, -2)

        inner = (
            1.5 * (mn("a", "mk") @ mn("b", "kn")) - 0.5 * mn("c", "mn") + arrays["bias"].astype(np.float64)
        )
        want = np.vectorize(lambda x: exact(activation, x))(inner) + mn("residual", "mn")
        got = Baseline(problem)(**arrays, alpha=1.5, beta=-0.5)
        assert got.dtype == kind
        got = got if layouts["c"] == "mn" else got.swapaxes(-1, -2)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def test_out_is_written_in_place_and_may_be_c() -> None:
    problem = Gemm(4, 6, 8, "f32", beta="any")
    a, b, c = (values(problem, n, 0).astype(np.float32) for n in ("a", "b", "c"))
    want = a @ b + 2 * c
    wide = np.full((4, 12), 7, np.float32)
    out = wide[:, ::2]
    assert Baseline(problem)(a, b, out, c=c, beta=2.0) is out
    np.testing.assert_allclose(out, want, rtol=1e-5)
    assert (wide[:, 1::2] == 7).all()
    assert Baseline(problem)(a, b, c, c=c, beta=2.0) is c
    np.testing.assert_allclose(c, want, rtol=1e-5)


def test_alpha_zero_and_beta_zero_read_nothing() -> None:
    problem = Gemm(4, 6, 8, "f32", beta="any")
    nan = np.full((4, 8), np.nan, np.float32)
    b, c = values(problem, "b", 1).astype(np.float32), values(problem, "c", 2).astype(np.float32)
    np.testing.assert_array_equal(Baseline(problem)(nan, b, c=c, alpha=0.0, beta=1.0), c)
    a = values(problem, "a", 1).astype(np.float32)
    bad = np.full_like(c, np.nan)
    np.testing.assert_allclose(Baseline(problem)(a, b, c=bad, beta=0.0), a @ b, rtol=1e-5)


def test_integers_are_exact() -> None:
    a = np.random.default_rng(0).integers(-128, 128, (5, 300)).astype(np.int8)
    b = np.random.default_rng(1).integers(0, 256, (300, 4)).astype(np.uint8)
    want = a.astype(np.int64) @ b.astype(np.int64)
    got = Baseline(Gemm(5, 4, 300, {"a": "s8", "b": "u8"}))(a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)
    as_float = Baseline(Gemm(5, 4, 300, {"a": "s8", "b": "u8", "c": "f32"}))(a, b, alpha=0.5)
    np.testing.assert_allclose(as_float, 0.5 * want)
    with pytest.raises(LaunchError, match="whole numbers"):
        Baseline(Gemm(5, 4, 300, {"a": "s8", "b": "u8"}))(a, b, alpha=0.5)


@pytest.mark.parametrize("sizes", [(0, 6, 8), (4, 0, 8), (4, 6, 0)])
def test_sizes_of_zero(sizes: tuple[int, int, int]) -> None:
    problem = Gemm(*sizes, "f32", beta="any", epilogue={"bias": "n"})
    a, b, c, bias = (values(problem, n, 3).astype(np.float32) for n in ("a", "b", "c", "bias"))
    np.testing.assert_allclose(Baseline(problem)(a, b, c=c, beta=3.0, bias=bias), 3 * c + bias, rtol=1e-6)


def test_the_checks_are_those_of_a_kernel() -> None:
    problem = Gemm(4, 6, 8, "f32")
    a, b = np.zeros((4, 8), np.float32), np.zeros((8, 6), np.float32)
    base = Baseline(problem)
    for given, message in (
        ({"a": a[:3], "b": b}, "a has shape"),
        ({"a": a.astype(np.float64), "b": b}, "a is float64"),
        ({"a": a.tolist(), "b": b}, "a is a list"),
        ({"a": a, "b": b, "bias": a[0]}, "epilogue has none"),
        ({"a": a, "b": b, "scale_b": 1}, "no such scale"),
        ({"a": a, "b": b, "alpha": 1.0, "beta": 1.0}, "fixes beta to zero"),
    ):
        with pytest.raises(LaunchError, match=message):
            base(**given)  # type: ignore[arg-type]
    square = np.zeros((4, 4), np.float32)
    with pytest.raises(LaunchError, match="out overlaps a"):
        Baseline(Gemm(4, 4, 4, "f32"))(square, square.copy(), square)
    with pytest.raises(LaunchError, match="numpy arrays cannot hold bf16"):
        Baseline(Gemm(4, 6, 8, "bf16"))


def test_transposed_views_are_fine_here() -> None:
    problem = Gemm(4, 6, 8, "f32")
    a, b = values(problem, "a", 0).astype(np.float32), values(problem, "b", 1).astype(np.float32)
    got = Baseline(problem)(np.asfortranarray(a), b[::-1][::-1], np.zeros((6, 4), np.float32).T)
    np.testing.assert_allclose(got, a @ b, rtol=1e-5)


def test_erfc_is_as_exact_as_it_says() -> None:
    x = np.linspace(-6, 6, 40_001, dtype=np.float32)
    want = np.array([math.erfc(float(v)) for v in x])
    error = np.abs(erfc(x) - want)
    assert error.max() < 5e-7
    assert (error / want)[np.abs(x) < 3].max() < 2e-6
    assert erfc(x).dtype == np.float32
    wide = erfc(np.array([-np.inf, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(wide, [2, 0, np.nan])


def test_scalars_of_whole_results_are_whole() -> None:
    call = Baseline(Gemm(2, 2, 2, {"a": "s8", "b": "s8", "acc": "s32", "c": "s32"}))
    a = np.ones((2, 2), np.int8)
    for alpha in (0.5, float("nan"), float("inf")):
        with pytest.raises(LaunchError, match="whole numbers"):
            call(a, a, alpha=alpha)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_matrix_is_an_array_like_any_other() -> None:
    call = Baseline(Gemm(3, 3, 3, "f32", epilogue={"activation": "silu"}))
    a = np.random.default_rng(1).uniform(-1, 1, (3, 3)).astype(np.float32)
    out = np.matrix(np.empty((3, 3), np.float32))
    assert call(np.matrix(a), a, out) is out
    assert np.array_equal(out, call(a, a))
