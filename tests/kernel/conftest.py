"""Which parts do the kernel tests share: a home for artifacts, the pool, the local device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rooftile.launch.x86 import Pool, X86Kernel
from rooftile.problem import Gemm

from search_space.device import Device, local_device
from search_space.registry import get_family
from search_space.schedule import Schedule
from worker.compile import compile_kernel, compile_pool
from worker.compile.cache import ArtifactCache

Load = Callable[[Gemm, Schedule], X86Kernel]


@pytest.fixture(scope="session")
def device() -> Device:
    return local_device()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel-home")


@pytest.fixture(scope="session")
def pool(home: Path, device: Device) -> Pool:
    artifact = compile_pool(device.arch.name, home=home)
    return Pool(ArtifactCache(home).blob_path(artifact.sha256), max(device.cores, 4))


@pytest.fixture(scope="session")
def load(home: Path, device: Device, pool: Pool) -> Load:
    """The kernel of a schedule, compiled and loaded."""
    family = get_family("gemm_x86")

    def build(problem: Gemm, schedule: Schedule) -> X86Kernel:
        artifact = compile_kernel(family.build(problem, device, schedule), home=home)
        plan = family.plan(problem, device, schedule)
        return X86Kernel(ArtifactCache(home).blob_path(artifact.sha256), plan, pool, problem)

    return build
