"""Is cuBLASLt, as the client falls back to it, right in every layout, type and epilogue that it takes?"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from rooftile.cuda_baseline import CudaBaseline
from rooftile.errors import DeviceError
from rooftile.launch.errors import UnsuitableError
from rooftile.problem import Gemm, operand_shape


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    from rooftile.launch.cublaslt import load_library

    try:
        load_library()
    except DeviceError as error:
        pytest.skip(str(error))


def run(gpu: Any, problem: Gemm, dtype: Any, **scalars: float) -> tuple[Any, Any]:
    stream = np.random.default_rng(1)
    names = ["a", "b"] + (["c"] if problem.beta != "zero" else [])
    names += ["bias"] if problem.epilogue.bias else []
    host = {n: stream.uniform(-1, 1, operand_shape(problem, n)).astype(dtype) for n in names}
    device = {n: gpu.cupy.asarray(x) for n, x in host.items()}
    a, b = device.pop("a"), device.pop("b")
    out = CudaBaseline(problem)(a, b, **device, **scalars)
    x = host["a"].astype(np.float64)
    y = host["b"].astype(np.float64)
    x = x if problem.layout.a == "mk" else x.swapaxes(-1, -2)
    y = y if problem.layout.b == "kn" else y.swapaxes(-1, -2)
    want = scalars.get("alpha", 1.0) * (x @ y)
    if "bias" in host:
        want = want + host["bias"].astype(np.float64)
    if problem.layout.c == "nm":
        want = want.swapaxes(-1, -2)
    if "c" in host:
        want = want + scalars.get("beta", 0.0) * host["c"].astype(np.float64)
    if problem.epilogue.activation == "relu":
        want = np.maximum(want, 0)
    return gpu.cupy.asnumpy(out).astype(np.float64), want


@pytest.mark.parametrize(
    ("a", "b", "c", "batch"), list(product(("mk", "km"), ("kn", "nk"), ("mn", "nm"), (1, 3)))
)
def test_every_layout(gpu: Any, a: str, b: str, c: str, batch: int) -> None:
    problem = Gemm(64, 48, 80, "f16", batch=batch, layout={"a": a, "b": b, "c": c}, beta="any")
    got, want = run(gpu, problem, np.float16, alpha=0.5, beta=-1.0)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_bias_and_relu(gpu: Any) -> None:
    problem = Gemm(64, 48, 80, "f16", epilogue={"bias": "n", "activation": "relu"})
    got, want = run(gpu, problem, np.float16)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_f32(gpu: Any) -> None:
    got, want = run(gpu, Gemm(65, 47, 33, "f32"), np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_what_it_does_not_do_is_refused(gpu: Any) -> None:
    with pytest.raises(UnsuitableError, match="no activation silu"):
        run(gpu, Gemm(64, 48, 80, "f16", epilogue={"activation": "silu"}), np.float16)


def test_eight_algorithms_are_told_apart(gpu: Any) -> None:
    from worker.measure.cuda_baseline import baselines

    gpu.cupy.cuda.runtime.setDevice(0)
    found = [one for one in baselines(Gemm(512, 512, 512, "f16")) if one.name.startswith("cublaslt")]
    assert 1 <= len(found) <= 8
    configs = [str(one.facts()["config"]) for one in found]
    assert all("'id'" in text for text in configs)
