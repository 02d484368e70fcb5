"""Is each family's default kernel right on this GPU, called with arrays and verified like a candidate?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.plan import Launch
from rooftile.problem import Gemm

from search_space import registry
from search_space.device import Device
from search_space.schedule import Schedule
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


def hopper_turns(problem: Gemm, device: Device) -> Schedule:
    """Ping-pong consumers in clusters of 2 x 1, which share B by multicast; results leave by TMA."""
    family = registry.get_family("gemm_sm90")
    schedule = family.default(problem, device).replace(
        bm=64, bn=128, bk=64, stages=4, cluster_m=2, cluster_n=1, hand_off="pingpong", consumers_m=2,
        consumers_n=1, registers="40/232", persistent=True, store="tma", store_columns=64, store_panels=2,
        vector=2, swizzle_a=128, swizzle_b=128, swap_ab=False, split_k=1, split_sum="last",
    )  # fmt: skip
    assert family.check(problem, device, schedule) == []
    return schedule


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


def test_turns_in_a_cluster_with_multicast_and_stores_by_tma(gpu: Any, folder: Path, on_stream: Any) -> None:
    """The schedule with most of Hopper's parts at once, at ragged sizes and several tiles a block."""
    from rooftile.launch.cuda import CudaKernel

    from worker.verify.device_memory import CupyMemory

    if gpu.arch != "sm_90a":
        pytest.skip(f"gemm_sm90 runs on sm_90a; this GPU is {gpu.arch}")
    family, device = registry.get_family("gemm_sm90"), gpu.local.device or Device.for_arch(gpu.arch)
    problem = Gemm(2000, 2040, 520, "bf16", layout={"b": "nk"}, beta="any")
    schedule = hopper_turns(problem, device)
    plan = family.plan(problem, device, schedule)
    assert [step.cluster for step in plan.steps if isinstance(step, Launch)] == [(2, 1, 1)]
    artifact = compile_kernel(family.build(problem, device, schedule), home=folder / "home")
    path = folder / f"{artifact.sha256}.cubin"
    path.write_bytes(artifact.data)
    kernel, memory, run = CudaKernel(path, plan, problem), CupyMemory(), 0
    for case in (*device_mains(problem, 3), *device_neighbours(problem, 3)):
        # Order of arrival must not show: the same bits ten times.
        result = check_device_case(
            kernel, prepare_device_case(case, memory), memory, lambda _: None, repeat=10
        )
        run += result.skipped is None
    assert run >= 6


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
