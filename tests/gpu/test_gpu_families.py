"""Is each family's default kernel right on this GPU, called with arrays and verified like a candidate?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.problem import Gemm

from search_space import registry
from search_space.device import Device
from worker.compile import compile_kernel
from worker.verify.device_cases import device_mains, device_neighbours
from worker.verify.device_checks import check_device_case, prepare_device_case

PROBLEMS = [
    Gemm(200, 264, 144, "f16"),
    Gemm(129, 120, 192, "bf16", beta="any"),
    Gemm(64, 96, 80, "tf32"),
    Gemm(96, 128, 256, "s8", layout={"b": "nk"}),
    Gemm(64, 64, 4104, "f16", layout={"b": "nk", "c": "nm"}),
    Gemm(96, 128, 256, "e4m3", layout={"b": "nk"}),
]


def cases_of(arch: str) -> list[tuple[str, Gemm]]:
    return [(f.name, problem) for problem in PROBLEMS for f in registry.families_for(problem, arch)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.title())
def test_default_kernels_are_right(gpu: Any, folder: Path, problem: Gemm, on_stream: Any) -> None:
    from rooftile.launch.cuda import CudaKernel

    from worker.verify.device_memory import CupyMemory

    families = registry.families_for(problem, gpu.arch)
    if not families:
        pytest.skip(f"no family computes {problem.title()} on {gpu.arch}")
    device = gpu.local.device or Device.for_arch(gpu.arch)
    memory = CupyMemory()
    for family in families:
        schedule = family.default(problem, device)
        artifact = compile_kernel(family.build(problem, device, schedule), home=folder / "home")
        path = folder / f"{artifact.sha256}.cubin"
        path.write_bytes(artifact.data)
        kernel = CudaKernel(path, family.plan(problem, device, schedule), problem)
        run = 0
        for case in (*device_mains(problem, 3), *device_neighbours(problem, 3)):
            result = check_device_case(
                kernel, prepare_device_case(case, memory), memory, lambda _: None, repeat=2
            )
            run += result.skipped is None
        assert run >= 6, f"{family.name}: only {run} cases were for its plan"


def test_f16_called_with_arrays(gpu: Any, folder: Path) -> None:
    from rooftile.launch.cuda import CudaKernel

    problem = Gemm(200, 264, 144, "f16")
    device = gpu.local.device or Device.for_arch(gpu.arch)
    for family in registry.families_for(problem, gpu.arch):
        schedule = family.default(problem, device)
        artifact = compile_kernel(family.build(problem, device, schedule), home=folder / "home")
        path = folder / f"{artifact.sha256}.cubin"
        path.write_bytes(artifact.data)
        stream = np.random.default_rng(1)
        a, b = (stream.uniform(-1, 1, s).astype(np.float16) for s in ((200, 144), (144, 264)))
        out = CudaKernel(path, family.plan(problem, device, schedule), problem)(
            gpu.cupy.asarray(a), gpu.cupy.asarray(b)
        )
        want = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(gpu.cupy.asnumpy(out), want, rtol=2e-3, atol=2e-3)
