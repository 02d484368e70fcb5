"""Does gemm_x86 for AVX-512 compile, and is it right with sixteen lanes, where the CPU has only eight?

The real code is compiled for x86-64-v4. What depends on the lanes (tiles, packing, edges, plans) is then run
on any CPU: with vectors of sixteen floats that the compiler splits in two, and a multiply-add in C.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from kernel.guarded import run_guarded
from rooftile.device import local_cpu
from rooftile.launch.x86 import Pool, X86Kernel
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.paths import kernels_dir
from worker.compile import compile_kernel
from worker.compile.cache import ArtifactCache

FAMILY = get_family("gemm_x86")
DEVICE = Device.for_key("cpu-amd-26-17-4c-x86-64-v4")
ERROR = 2e-6
PROBLEMS = {
    "few rows": Gemm(7, 391, 301, "f32"),
    "few rows, B n x k": Gemm(5, 103, 301, "f32", layout={"b": "nk"}),
    "many rows": Gemm(101, 203, 300, "f32"),
    "epilogue": Gemm(29, 100, 65, "f32", batch=2, beta="any", epilogue={"bias": "n", "activation": "gelu"}),
}
STARTS = range(4)


def start(problem: Gemm, number: int) -> Schedule:
    starts = FAMILY.candidates(problem, DEVICE)
    return starts[min(number, len(starts) - 1)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_compiles_for_avx512(name: str, home: Path) -> None:
    for number in STARTS:
        build = FAMILY.build(PROBLEMS[name], DEVICE, start(PROBLEMS[name], number))
        assert build.arch == "x86-64-v4"
        artifact = compile_kernel(build, home=home)
        assert "-march=x86-64-v4" in artifact.toolchain["flags"]
        assert b"\x62" in artifact.data  # EVEX: the prefix of AVX-512 instructions


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our kernels, with vectors of sixteen floats on any CPU."""
    root: Path = tmp_path_factory.mktemp("sixteen")
    shutil.copytree(kernels_dir(), root, dirs_exist_ok=True)
    file = root / "x86/include/rt_vec.h"
    lines = []
    for line in file.read_text().splitlines():
        if line == "#if defined(__AVX512F__)":
            line = "#if 1"
        elif line.startswith("#define rt_fma("):
            line = "#define rt_fma(acc, x, y) ((acc) = (x) * (y) + (acc))"
        elif line.startswith("#define rt_keep("):
            line = "#define rt_keep(x) ((void)0)"
        lines.append(line)
    text = "\n".join(lines) + "\n"
    assert text.count("(acc) = (x)") == text.count("rt_keep(x) ((void)0)") == 1
    assert "#if 1\n#define RT_VL 16" in text
    file.write_text(text)
    return root


# Each start on two problems: with the compiles all sixteen pairs take a minute.
@pytest.mark.parametrize(
    ("name", "number"), [(name, (i + j) % len(STARTS)) for i, name in enumerate(PROBLEMS) for j in (0, 2)]
)
def test_it_is_right_with_sixteen_lanes(
    name: str, number: int, sixteen: Path, home: Path, pool: Pool, device: Any
) -> None:
    problem = PROBLEMS[name]
    schedule = start(problem, number)
    artifact = compile_kernel(
        FAMILY.build(problem, DEVICE, schedule), local_cpu().arch, home=home, root=sixteen
    )
    plan = FAMILY.plan(problem, DEVICE, schedule)
    kernel = X86Kernel(ArtifactCache(home).blob_path(artifact.sha256), plan, pool, problem)
    beta = 0.5 if problem.beta == "any" else 0.0
    for seed, threads in enumerate((1, 2, 4)):
        _, error = run_guarded(kernel, problem, seed, threads, beta=beta, pad=seed)
        assert error < ERROR
