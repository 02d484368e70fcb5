"""Is a one-line mistake in our own kernels caught by the verification that every candidate goes through?

Each mutation is compiled for real and given to a real measuring process, as a candidate of a job is. The
unchanged kernel passes with the same problem and schedule, so the mutation alone is what is caught.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rooftile.device import local_cpu
from rooftile.problem import Gemm

from search_space.device import local_device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.paths import kernels_dir
from service.store.enums import TrialReason
from service.store.records import Failed, Measured
from worker.compile import compile_kernel
from worker.compile.cache import ArtifactCache
from worker.measure.session import MeasureSession

FAMILY = get_family("gemm_x86")
POLICY = {"cache": "cold", "launch": "eager"}
RAGGED = Gemm(13, 391, 301, "f32")
SQUARE = Gemm(101, 203, 150, "f32")
FULL = Gemm(
    29, 100, 65, "f32", batch=3, alpha="any", beta="any", epilogue={"bias": "n", "activation": "gelu"}
)
DOTS = Gemm(5, 103, 300, "f32", layout={"b": "nk"})


@dataclass(frozen=True)
class Mutation:
    file: str
    old: str
    new: str
    problem: Gemm
    path: str
    changes: dict[str, Any] = field(default_factory=dict)


MUTATIONS = {
    "stream: last visit reads past k": Mutation(
        "gemm_stream.c",
        "const int64_t there = rt_min(deep, k - v * deep);",
        "const int64_t there = deep;",
        RAGGED,
        "stream",
    ),
    "stream: sums begin with what was there": Mutation(
        "gemm_stream.c",
        "memset(sums, 0, (size_t)((j1 - j0) * STRIP(rows)) * sizeof(float));",
        "",
        RAGGED,
        "stream",
    ),
    "stream: the padded copy is not padded": Mutation(
        "gemm_stream.c",
        "memset(copy + there * RT_NR, 0, (size_t)(depth - there) * RT_NR * sizeof(float));",
        "",
        RAGGED,
        "stream",
    ),
    "stream: the last rows of a tile are left out": Mutation(
        "gemm_stream.c", "if (i < rows)\n        switch", "if (0)\n        switch",
        RAGGED, "stream", {"hold": "c"},
    ),
    "stream: one part of k too few": Mutation(
        "gemm_stream.c",
        "parts + j * STRIP(rows), RT_NR, g->parts, g->size_partial",
        "parts + j * STRIP(rows), RT_NR, g->parts - 1, g->size_partial",
        RAGGED,
        "stream",
        {"split_k": 2},
    ),
    "dots: the rest of k is left out": Mutation(
        "gemm_dots.c", "if (p < depth) {", "if (0) {", DOTS, "stream"
    ),
    "dots: a row too many at the edge": Mutation(
        "gemm_dots.c",
        "cols = rt_min(RT_NB, g->n - col);",
        "cols = RT_NB;",
        DOTS,
        "stream",
    ),
    "blocked: the last block of k is left out": Mutation(
        "gemm.c",
        "blocks_k = (k + g->block_k - 1) / g->block_k;",
        "blocks_k = rt_max(1, k / g->block_k);",
        Gemm(101, 203, 700, "f32"),
        "blocked",
        {"kc": 384},
    ),
    "blocked: every block of k is the first": Mutation(
        "gemm.c", "t.first = pb == 0;", "t.first = 1;", Gemm(101, 203, 700, "f32"), "blocked", {"kc": 256}
    ),
    "blocked: columns beyond the edge are written": Mutation(
        "gemm.c", "if (cols == RT_NR)\n        tiles", "if (1)\n        tiles", SQUARE, "blocked"
    ),
    "blocked: a panel begins a row too late": Mutation(
        "gemm.c", "const int64_t row = (i0 + i) * RT_MR;", "const int64_t row = (i0 + i) * RT_MR + 1;",
        SQUARE, "blocked",
    ),
    "packing: two of four columns exchanged": Mutation(
        "include/rt_pack.h", "RT_MIX(low01, low23, 2, 3, 6, 7)", "RT_MIX(low01, low23, 3, 2, 6, 7)",
        SQUARE, "blocked",
    ),
    "epilogue: bias begins at column 0 of each block": Mutation(
        "include/rt_gemm.h", "g->bias + col : NULL", "g->bias : NULL", FULL, "blocked"
    ),
    "epilogue: beta C is left out at the edge": Mutation(
        "include/rt_gemm.h", "x = beta * c[j] + x;", "x += 0.0f;", FULL, "stream"
    ),
    "epilogue: batch entries share one out": Mutation(
        "include/rt_gemm.h", "g->out + i * g->stride_out}", "g->out}", FULL, "blocked"
    ),
    "activation: gelu's tail has the wrong half": Mutation(
        "include/rt_act.h", "v_select(x < 0.0f, tail, 1.0f - tail)", "v_select(x < 0.0f, 1.0f - tail, tail)",
        FULL, "blocked",
    ),
}  # fmt: skip

# What a mistake may end as: reading or writing beside an operand may also fault.
CAUGHT = {
    TrialReason.WRONG_RESULT,
    TrialReason.NAN_RESULT,
    TrialReason.NOT_WRITTEN,
    TrialReason.OUT_OF_BOUNDS,
    TrialReason.CRASH,
    TrialReason.NONDETERMINISTIC,
}


def schedule_of(mutation: Mutation) -> Schedule:
    """The first start on the mutation's path for which its changes are legal."""
    problem, device = mutation.problem, local_device()
    for start in FAMILY.candidates(problem, device):
        if start["path"] != mutation.path or any(
            name in ("hold",) and start[name] != value for name, value in mutation.changes.items()
        ):
            continue
        changed = start.replace(**mutation.changes)
        if not FAMILY.check(problem, device, changed):
            return changed
    raise AssertionError(f"no legal schedule for {mutation}")


@pytest.fixture(scope="session")
def trial_of(
    session: MeasureSession, pool_path: Path, worker_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Measured | Failed]:
    def run(mutation: Mutation, *, mutated: bool) -> Measured | Failed:
        root = tmp_path_factory.mktemp("mutated")
        shutil.copytree(kernels_dir(), root, dirs_exist_ok=True)
        if mutated:
            file = root / "x86" / mutation.file
            text = file.read_text()
            assert mutation.old in text, "the kernel has changed: write the mutation anew"
            file.write_text(text.replace(mutation.old, mutation.new))
        device, schedule = local_device(), schedule_of(mutation)
        build = FAMILY.build(mutation.problem, device, schedule)
        artifact = compile_kernel(build, local_cpu().arch, home=worker_home, root=root)
        path = ArtifactCache(worker_home).blob_path(artifact.sha256)
        plan = FAMILY.plan(mutation.problem, device, schedule)
        return session.trial(mutation.problem, plan, path, pool_path, POLICY, 5)

    return run


@pytest.mark.skipif(local_cpu().cores < 2, reason="half of the mutations are in what threads share")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_of_one_line_is_caught(name: str, trial_of: Callable[..., Measured | Failed]) -> None:
    mutation = MUTATIONS[name]
    right = trial_of(mutation, mutated=False)
    assert isinstance(right, Measured), right
    wrong = trial_of(mutation, mutated=True)
    assert isinstance(wrong, Failed), f"not caught: {name}"
    assert wrong.reason in CAUGHT, wrong
