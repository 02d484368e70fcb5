"""Do the checks work on CuPy's arrays as they do on numpy's: the same inputs, references and findings?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm

from worker.verify.checks import VerifyFailure
from worker.verify.device_cases import device_mains
from worker.verify.device_checks import check_device_case, prepare_device_case
from worker.verify.device_elements import checksum, decode, fill_random, storage
from worker.verify.device_reference import parts_of


@pytest.mark.parametrize("name", ["f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8"])
def test_numbers_are_the_same_on_both(gpu: Any, name: str) -> None:
    host, device = np.empty(50_001, storage(name)), gpu.cupy.empty(50_001, storage(name))
    fill_random(np, host, name, 9, 2)
    fill_random(gpu.cupy, device, name, 9, 2)
    np.testing.assert_array_equal(gpu.cupy.asnumpy(device).view(np.uint8), host.view(np.uint8))
    np.testing.assert_array_equal(gpu.cupy.asnumpy(decode(gpu.cupy, device, name)), decode(np, host, name))
    flat = host.view(np.uint8)
    assert checksum(gpu.cupy, gpu.cupy.asarray(flat)) == checksum(np, flat)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_references_are_the_same_on_both(gpu: Any, activation: str | None) -> None:
    problem = Gemm(
        40, 50, 60, "bf16", beta="any", epilogue={"bias": "n", "activation": activation, "residual": True}
    )
    case = device_mains(problem, 4)[0]
    shapes = {"a": (40, 60), "b": (60, 50), "c": (40, 50), "residual": (40, 50), "bias": (50,)}
    host = {}
    for index, (name, shape) in enumerate(shapes.items()):
        flat = np.empty(int(np.prod(shape)), np.uint16)
        fill_random(np, flat, "bf16", 1, index)
        host[name] = flat.reshape(shape)
    for most in (1e12, 1e5):
        ours = parts_of(gpu.cupy, case, {n: gpu.cupy.asarray(x) for n, x in host.items()}, most_flops=most)
        theirs = parts_of(np, case, host, most_flops=most)
        for one, other in zip(ours, theirs, strict=True):
            values = gpu.cupy.asnumpy(one.reference.values)
            np.testing.assert_allclose(values, other.reference.values, rtol=1e-11, atol=1e-12)
            assert one.bound.absolute == pytest.approx(other.bound.absolute, rel=1e-9)


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        ("wrong value", "wrong_result", "elements are wrong"),
        ("writes an input", "out_of_bounds", "read-only a"),
        ("past out", "out_of_bounds", r"past the end of out, at \+0"),
        ("not the last row", "not_written", "were not written"),
    ],
)
def test_faults_are_found(gpu: Any, make: Any, on_stream: Any, fault: str, reason: str, says: str) -> None:
    from worker.verify.device_memory import CupyMemory

    memory = CupyMemory()
    problem = Gemm(50, 60, 70, "f32")
    prepared = prepare_device_case(device_mains(problem, 2)[0], memory)
    check_device_case(make(), prepared, memory, lambda _: None, repeat=2)
    with pytest.raises(VerifyFailure, match=says) as caught:
        check_device_case(make(fault=fault), prepared, memory, lambda _: None)
    assert caught.value.reason == reason
