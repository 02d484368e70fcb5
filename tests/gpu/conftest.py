"""What do device tests share, and what is said where there is no GPU? Every one of them is skipped, and
counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOT_RUN = "GPU TESTS ARE NOT RUN"


def _why_not() -> str | None:
    """One sentence where no GPU can be used."""
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"CuPy is not installed ({error})"
    from rooftile.errors import RooftileError
    from rooftile.gpu_detect import local_gpus

    try:
        local_gpus()
    except RooftileError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [item for item in items if here in Path(item.path).parents]
    reason = _why_not() if mine else None
    if reason is not None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=f"{NOT_RUN}: {reason}"))


@dataclass(frozen=True)
class Gpu:
    """The GPU of the tests."""

    cupy: Any
    runtime: Any
    arch: str
    local: Any


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    import cupy
    from rooftile.launch.cuda_runtime import cupy_runtime

    from worker.measure.cuda_device import find_gpu

    local = find_gpu()
    return Gpu(cupy, cupy_runtime(), local.identity.arch, local)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


Make = Callable[..., Any]


@pytest.fixture
def make(gpu: Gpu, folder: Path) -> Make:
    """make(problem, fault="none", **plan): the toy as a CudaKernel."""
    from rooftile.launch.cuda import CudaKernel
    from rooftile.launch.cuda_workspace import Workspaces
    from support import gpu_toy

    def build(problem: Any = None, fault: str = "none", *, static_bytes: int = 4, **more: Any) -> Any:
        _, path = gpu_toy.build(folder, gpu.arch, fault, static_bytes=static_bytes)
        open_sizes = more.pop("open_sizes", False)
        plan = gpu_toy.plan(gpu.arch, **more)
        return CudaKernel(path, plan, problem, open_sizes=open_sizes, workspaces=Workspaces(gpu.runtime))

    return build


@pytest.fixture
def on_stream(gpu: Gpu) -> Iterator[Any]:
    """A stream of the test's own, current for CuPy."""
    with gpu.cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream
        stream.synchronize()
