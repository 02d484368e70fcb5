"""Which parts do the worker's tests share: a home, an arch, planted kernels, a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from rooftile.device import local_cpu
from rooftile.plan import LaunchPlan
from support.planted import SOURCE, Built, plan, source, write_template

from search_space.family import BuildSpec
from worker.compile import compile_kernel, compile_pool
from worker.compile.cache import ArtifactCache
from worker.measure.session import MeasureSession, Tools
from worker.measure.tools import build_tools

Plant = Callable[..., Built]


@pytest.fixture(scope="session")
def arch() -> str:
    return local_cpu().arch


@pytest.fixture(scope="session")
def worker_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-home")


@pytest.fixture(scope="session")
def pool_path(worker_home: Path, arch: str) -> Path:
    return ArtifactCache(worker_home).blob_path(compile_pool(arch, home=worker_home).sha256)


@pytest.fixture(scope="session")
def tools(worker_home: Path, arch: str) -> Tools:
    return build_tools(arch, worker_home)


@pytest.fixture(scope="session")
def plant(worker_home: Path, arch: str, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """plant({hole: C text}, plan) -> Built."""

    def build(holes: Mapping[str, str] | None = None, its_plan: LaunchPlan | None = None) -> Built:
        root = tmp_path_factory.mktemp("kernels")
        write_template(root, source(holes))
        artifact = compile_kernel(BuildSpec(SOURCE, arch), home=worker_home, root=root)
        path = ArtifactCache(worker_home).blob_path(artifact.sha256)
        return Built(artifact, path, its_plan or plan(arch))

    return build


@pytest.fixture(scope="session")
def session(tools: Tools) -> Iterator[MeasureSession]:
    """One session for all planted kernels: each test also shows that the one before left nothing behind."""
    with MeasureSession(local_cpu().key, tools=tools, budget_s=0.03, race_budget_s=0.5) as one:
        yield one
