"""Which parts do the worker's tests share: a home, an arch, planted kernels in C, a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rooftile.device import local_cpu
from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, ValidFor
from search_space.family import BuildSpec
from worker.compile import Artifact, compile_kernel, compile_pool
from worker.compile.cache import ArtifactCache
from worker.measure.session import MeasureSession
from worker.measure.tools import build_tools

SIZES = ("m", "n", "k", "batch", "ld_a", "ld_b", "ld_out", "stride_a", "stride_b", "stride_out")

# A right GEMM, slow but simple, with holes for faults: BEFORE runs first on every thread, EACH for each row,
# VALUE is what is stored, AFTER runs last. ROWS_FROM and ROWS_TO are a thread's share.
TEMPLATE = """
#include "rooftile_abi.h"
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>
struct args {{
    const float *a, *b; float *out; char *workspace;
    int64_t m, n, k, batch, ld_a, ld_b, ld_out, stride_a, stride_b, stride_out;
    float alpha;
}};
static float sink[64];
RT_EXPORT void run(const void *packed, int thread, int threads, rt_barrier *barrier)
{{
    const struct args *p = packed;
    int64_t m = p->m, n = p->n, k = p->k;
    int64_t rows_from = m * thread / threads, rows_to = m * (thread + 1) / threads;
    static int calls; (void)calls; (void)barrier; (void)sink;
    {before}
    for (int64_t batch = 0; batch < p->batch; batch++) {{
        const float *a = p->a + batch * p->stride_a, *b = p->b + batch * p->stride_b;
        float *out = p->out + batch * p->stride_out;
        for (int64_t i = rows_from; i < rows_to; i++) {{
            float *row = out + i * p->ld_out;
            {each}
            for (int64_t j = 0; j < n; j++)
                row[j] = 0.0f;
            for (int64_t l = 0; l < k; l++) {{
                float x = p->alpha * a[i * p->ld_a + l];
                const float *from = b + l * p->ld_b;
                for (int64_t j = 0; j < n; j++)
                    row[j] += x * from[j];
            }}
            {last}
        }}
    }}
    {after}
}}
"""


def planted_source(before: str = "", each: str = "", last: str = "", after: str = "") -> str:
    return TEMPLATE.format(before=before, each=each, last=last, after=after)


@dataclass(frozen=True)
class Built:
    """A planted kernel, ready for a session."""

    artifact: Artifact
    so_path: Path
    plan: LaunchPlan


def planted_plan(
    arch: str, *, deterministic: bool = True, workspace_bytes: int = 0, m: SizeRange | None = None
) -> LaunchPlan:
    pointers = tuple(Arg.ptr(name) for name in ("a", "b", "out", "workspace"))
    numbers = tuple(Arg.i64(name) for name in SIZES)
    from rooftile.plan import Workspace

    return LaunchPlan(
        family="planted",
        arch=arch,
        kind="x86",
        entries=("run",),
        sizes=SIZES,
        steps=(Launch("run", (*pointers, *numbers, Arg.f32("alpha")), threads="threads"),),
        workspace=Workspace(workspace_bytes),
        deterministic=deterministic,
        valid_for=ValidFor({} if m is None else {"m": m}, {"a": 4, "b": 4, "out": 4}),
    )


@pytest.fixture(scope="session")
def arch() -> str:
    return local_cpu().arch


@pytest.fixture(scope="session")
def worker_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-home")


@pytest.fixture(scope="session")
def pool_path(worker_home: Path, arch: str) -> Path:
    return ArtifactCache(worker_home).blob_path(compile_pool(arch, home=worker_home).sha256)


Plant = Callable[..., Built]


@pytest.fixture(scope="session")
def plant(worker_home: Path, arch: str, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """plant(before=..., each=..., last=..., after=..., **plan options) -> Built."""

    def build(
        before: str = "",
        each: str = "",
        last: str = "",
        after: str = "",
        deterministic: bool = True,
        workspace_bytes: int = 0,
        m: SizeRange | None = None,
    ) -> Built:
        root = tmp_path_factory.mktemp("kernels")
        write_template(root, planted_source(before, each, last, after))
        artifact = compile_kernel(BuildSpec("x86/planted.c", arch), home=worker_home, root=root)
        plan = planted_plan(arch, deterministic=deterministic, workspace_bytes=workspace_bytes, m=m)
        return Built(artifact, ArtifactCache(worker_home).blob_path(artifact.sha256), plan)

    return build


def write_template(root: Path, text: str) -> None:
    """A kernels/ folder with one template and the real ABI header."""
    from service.paths import kernels_dir

    include = root / "x86" / "include"
    include.mkdir(parents=True)
    header = "rooftile_abi.h"
    (include / header).write_text((kernels_dir() / "x86" / "include" / header).read_text())
    (root / "x86" / "planted.c").write_text(text)


@pytest.fixture(scope="session")
def session(worker_home: Path, arch: str) -> Iterator[MeasureSession]:
    """One session for all planted kernels: each test proves that the one before it left nothing behind."""
    with MeasureSession(local_cpu().key, tools=build_tools(arch, worker_home), budget_s=0.05) as one:
        yield one
