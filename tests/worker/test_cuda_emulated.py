"""Do launcher, checks and real kernels fit together? Each launch runs in the emulator, from its own PTX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm, parse_problem
from support.emulated_cuda import EmulatedCuda, emulated_kernel
from support.host_cuda import HostMemory

from search_space import registry
from search_space.device import Device
from worker.compile import compile_kernel
from worker.errors import CompilerMissingError
from worker.verify.cases import Case
from worker.verify.device_checks import check_device_case, prepare_device_case

GEMM: list[tuple[str, str, dict[str, Any]]] = [
    ("gemm_sm80", "sm_80", {"dtype": "bf16", "beta": "any", "epilogue": {"bias": "n", "activation": "silu"}}),
    ("gemm_sm80", "sm_80", {"dtype": "s8", "layout": {"b": "nk"}}),
    ("gemm_sm80", "sm_80", {"dtype": "tf32", "m": 40, "batch": 2}),
    (
        "gemm_sm90",
        "sm_90a",
        {"dtype": "bf16", "beta": "any", "epilogue": {"bias": "n"}, "layout": {"b": "nk"}},
    ),
    ("gemm_sm90", "sm_90a", {"dtype": "f16", "batch": 2}),
]


@pytest.mark.parametrize(("family_name", "arch", "fields"), GEMM)
def test_a_kernel_of_ours_is_proved(
    family_name: str, arch: str, fields: dict[str, Any], worker_home: Path, tmp_path: Path
) -> None:
    problem = parse_problem({"op": "gemm", "m": 70, "n": 80, "k": 144, **fields})
    assert isinstance(problem, Gemm)
    device = Device.for_arch(arch)
    family = registry.get_family(family_name)
    schedule = family.default(problem, device)
    try:
        artifact = compile_kernel(family.build(problem, device, schedule), home=worker_home)
    except CompilerMissingError as missing:
        pytest.skip(f"NVRTC is not here: {missing}")
    kernel = emulated_kernel(artifact, family.plan(problem, device, schedule), tmp_path, problem)
    assert isinstance(kernel.runtime, EmulatedCuda)
    memory = HostMemory(kernel.runtime)
    case = Case("main", problem, "start", 256, 7, 1.0, 1.0 if problem.beta == "any" else 0.0)
    prepared = prepare_device_case(case, memory)
    result = check_device_case(kernel, prepared, memory, lambda _: None)
    assert result.skipped is None, result.skipped
    assert kernel.runtime.instructions > 1000
    step = kernel.runtime.seen[-1]
    static = kernel.functions(0)["gemm"].static_smem_bytes
    assert (step.smem_bytes + static > 48 * 1024) == bool(kernel.runtime.functions[0].allowed)
    # The same kernel, called with arrays.
    _call(kernel, problem)


def _call(kernel: Any, problem: Gemm) -> None:
    if problem.dtype.a != "s8":
        return
    stream = np.random.default_rng(1)
    a = stream.integers(-128, 128, (problem.m, problem.k), dtype=np.int8)
    b = stream.integers(-128, 128, (problem.n, problem.k), dtype=np.int8)
    out = np.zeros((problem.m, problem.n), np.int32)
    runtime = kernel.runtime
    kernel(*(runtime.array(x) for x in (a, b, out)))
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32))
