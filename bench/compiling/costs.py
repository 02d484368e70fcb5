"""What does one candidate cost, in CPU-seconds, by our compiler and by a peer's, in turns?"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError, say
from bench.compiling.points import CUTLASS_POINTS, HOPPER, Comparison, Point
from search_space.family import BuildSpec
from worker.compile import compile_kernel
from worker.compile.farm import Order, compile_all
from worker.compile.nvrtc import find_nvrtc


def costs(
    comparison: Comparison, points: Sequence[Point], repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """A row for each point; both compilers in turns on one core."""
    triton = comparison.triton()
    builds = [comparison.build(point) for point in points]
    before = os.sched_getaffinity(0)
    # The process that forks for each NVRTC call inherits it, and so does Triton's assembler.
    os.sched_setaffinity(0, {max(before)})
    find_nvrtc(comparison.arch).host.close()
    try:
        say(f"{comparison.arch}: warming both compilers")
        ours_once(comparison.build(comparison.warm), folder / "warm")
        triton(comparison.warm)
        ours: list[list[float]] = [[] for _ in points]
        theirs: list[list[float]] = [[] for _ in points]
        facts: list[dict[str, Any]] = [{} for _ in points]
        for turn in range(repeats):
            for i, (point, build) in enumerate(zip(points, builds, strict=True)):
                # Who goes first alternates, so that a machine that slows down favours neither.
                for is_ours in (True, False) if (turn + i) % 2 else (False, True):
                    if is_ours:
                        cpu_s, facts[i] = ours_once(build, folder / f"cost-{turn}")
                        ours[i].append(cpu_s)
                    else:
                        theirs[i].append(triton(point).cpu_s)
    finally:
        find_nvrtc(comparison.arch).host.close()
        os.sched_setaffinity(0, before)
    rows = []
    for point, fact, mine, other in zip(points, facts, ours, theirs, strict=True):
        rows.append(_row(comparison, point, fact, mine, other))
        say(_line(rows[-1]))
    return rows


def ours_once(build: BuildSpec, home: Path) -> tuple[float, dict[str, Any]]:
    """CPU-seconds of one compile in a worker: its own, the forking process's, and the child's."""
    host = find_nvrtc(build.arch).host
    own, forking, children = time.process_time(), host.own_cpu_s(), host.children_cpu_s
    artifact = compile_kernel(build, home=home)
    spent = time.process_time() - own + host.own_cpu_s() - forking + host.children_cpu_s - children
    if artifact.cached or artifact.ptx is None:
        raise BenchError("a compile was answered from the cache")
    return spent, {
        "registers": artifact.resources["registers"],
        "cubin_bytes": len(artifact.data),
        "ptx_bytes": len(artifact.ptx),
    }


def _row(
    comparison: Comparison,
    point: Point,
    facts: dict[str, Any],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> dict[str, Any]:
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "kind": "cost",
        "family": comparison.family,
        "tile": [point.bm, point.bn, point.bk],
        "stages": point.stages,
        "warps": point.warps,
        "values": dict(point.values),
        "cpu_s": round(mine, 4),
        "cpu_s_samples": [round(x, 4) for x in ours],
        "triton_cpu_s": round(other, 4),
        "triton_cpu_s_samples": [round(x, 4) for x in theirs],
        "ratio": round(other / mine, 3),
        **facts,
    }


def _line(row: Mapping[str, Any]) -> str:
    tile = "x".join(str(x) for x in row["tile"])
    return (
        f"{tile} {row['stages']} stages {row['warps']} warps: {row['cpu_s']:.3f} s, "
        f"Triton {row['triton_cpu_s']:.3f} s, ratio {row['ratio']:.2f}"
    )


def cutlass_costs(folder: Path) -> list[dict[str, Any]]:
    """The same tiles by CUTLASS 3's warp-specialised kernel through nvcc, once each: its cost is so much
    larger that noise does not matter. Ours again right before."""
    from bench.peers import cutlass_sm90

    rows = []
    for point in CUTLASS_POINTS:
        values = dict(point.values)
        ours, _ = ours_once(HOPPER.build(point), folder / "cutlass")
        made = cutlass_sm90.compile_gemm(
            point.bm, point.bn, point.bk, point.stages, cluster_m=int(values["cluster_m"])
        )
        rows.append({
            "kind": "cutlass", "tile": [point.bm, point.bn, point.bk], "stages": point.stages,
            "values": values, "cpu_s": round(ours, 4), "cutlass_cpu_s": round(made.cpu_s, 2),
            "ratio": round(made.cpu_s / ours, 1),
        })  # fmt: skip
        say(f"{point}: {ours:.3f} s, CUTLASS by nvcc {made.cpu_s:.1f} s, ratio {rows[-1]['ratio']}")
    return rows


def probe_cutlass() -> None:
    """BenchError where something that CUTLASS needs is missing."""
    from bench.peers import cutlass_sm90

    try:
        cutlass_sm90.check_tools()
    except cutlass_sm90.CutlassMissingError as error:
        raise BenchError(f"{error}; pip install 'rooftile-server[peers]'") from None


def rate(comparison: Comparison, points: Sequence[Point], repeats: int, folder: Path) -> float:
    """Candidates a second with as many compiles at once as the machine has room for."""
    builds = [comparison.build(point) for point in points]
    compile_kernel(builds[0], home=folder / "rate-warm")
    orders = [
        Order((turn, i), compiling(build, folder / f"rate-{turn}"))
        for turn in range(min(repeats, 3))
        for i, build in enumerate(builds)
    ]
    started = time.monotonic()
    for _key, outcome in compile_all(orders):
        if isinstance(outcome, Exception):
            raise BenchError(f"a schedule does not compile: {outcome}")
    return len(orders) / (time.monotonic() - started)


def compiling(build: BuildSpec, home: Path) -> Any:
    """The compile as a call without arguments."""
    return lambda: compile_kernel(build, home=home)
