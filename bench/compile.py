"""What does it cost to compile a candidate, beside Triton, and how many of the legal schedules compile?

    python -m bench.compile [--quick] [--json FILE] [--repeats N] [--schedules N]

Cost: for each schedule of gemm_sm80 below (bf16 on sm_80, B k x n), ours and Triton's compile of the same
tile, stages and warps in turns, on one core, to PTX and cubin. CPU-seconds, not wall time. Ours as a worker
pays it: gathering sources, the request, the whole child with NVRTC, the gate, the write to a fresh cache.
Triton's in a process that has imported it and compiled something; its cache is off; its assembler counts.
Share: schedules drawn uniformly from the legal space of each family, over several dtypes and layouts; what
does not compile is listed with its reason. Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.problem import Problem, parse_problem

from bench.common import BenchError, bench_lock, environment, say, write
from search_space.device import Device
from search_space.errors import UnknownFamily
from search_space.family import BuildSpec, Family
from search_space.registry import get_family
from search_space.schedule import Schedule, Value
from worker.compile import compile_kernel
from worker.compile.capacity import compile_slots
from worker.compile.farm import Order, compile_all
from worker.compile.nvrtc import find_nvrtc
from worker.errors import CompileFailure, CompilerMissingError

ARCH, CAPABILITY = "sm_80", 80
PROBLEM = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "layout": {"b": "kn"}}


@dataclass(frozen=True)
class Point:
    """What both compilers are told: the tile in elements, stages, warps below and beside each other."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps_m: int
    warps_n: int

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_n


POINTS = (
    Point(64, 64, 32, 4, 2, 2),
    Point(64, 64, 64, 3, 2, 2),
    Point(64, 128, 32, 4, 2, 2),
    Point(64, 128, 64, 3, 2, 2),
    Point(128, 64, 32, 4, 2, 2),
    Point(128, 64, 64, 3, 2, 2),
    Point(64, 256, 32, 4, 1, 4),
    Point(256, 64, 32, 4, 4, 1),
    Point(128, 128, 32, 3, 2, 2),
    Point(128, 128, 32, 4, 2, 2),
    Point(128, 128, 64, 3, 2, 2),
    Point(128, 128, 32, 4, 2, 4),
    Point(128, 256, 32, 3, 2, 4),
    Point(256, 128, 32, 3, 4, 2),
)
QUICK = (POINTS[0], POINTS[5], POINTS[9], POINTS[13])

_BIG = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096}
SPACES: Mapping[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "gemm_sm80": (
        "sm_80",
        (
            {**_BIG, "dtype": "bf16"},
            {**_BIG, "dtype": "f16", "layout": {"b": "nk"}, "epilogue": {"bias": "n", "activation": "gelu"}},
            {**_BIG, "dtype": "bf16", "layout": {"a": "km", "b": "kn"}, "beta": "any"},
            {**_BIG, "dtype": "tf32"},
            {**_BIG, "dtype": "s8", "layout": {"b": "nk"}},
        ),
    ),
    "gemm_sm70": (
        "sm_70",
        (
            {**_BIG, "dtype": "f16"},
            {**_BIG, "dtype": "f16", "layout": {"b": "nk"}, "epilogue": {"bias": "n", "activation": "relu"}},
            {**_BIG, "dtype": "f16", "layout": {"a": "km", "b": "kn"}, "beta": "any"},
        ),
    ),
}
"""family -> (arch, problems): the draws are shared out among the problems."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four schedules, few draws: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--repeats", type=int, default=None, help="compiles of each schedule by each compiler"
    )
    parser.add_argument("--schedules", type=int, default=None, help="drawn from each family's legal space")
    args = parser.parse_args(argv)
    repeats = args.repeats or (3 if args.quick else 7)
    drawn = args.schedules or (30 if args.quick else 300)
    try:
        with bench_lock():
            figures, rows, env = measure(QUICK if args.quick else POINTS, repeats, drawn, quick=args.quick)
    except (BenchError, CompilerMissingError) as error:
        print(f"bench.compile: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    points: Sequence[Point], repeats: int, drawn: int, *, quick: bool
) -> tuple[dict[str, float | int | None], list[dict[str, Any]], dict[str, Any]]:
    """Both costs of each point, the rate on all cores, and the share of each family."""
    triton = _peer()
    env = environment(
        quick=quick, points=len(points), repeats=repeats, schedules_per_family=drawn, seed=_SEED
    )
    env["toolchains"] = {arch: f"nvrtc {find_nvrtc(arch).version}" for arch in ("sm_80", "sm_70")}
    env["triton"] = triton.VERSION
    with tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
        costs = _costs(triton, points, repeats, Path(folder))
        rate = _rate(points, repeats, Path(folder))
        env["compile_slots"] = compile_slots()
        shares: list[dict[str, Any]] = []
        for name in SPACES:
            shares.append(_share(name, drawn, Path(folder)))
    return _figures(costs, rate, shares), [*costs, *shares], env


def _peer() -> Any:
    try:
        from bench.peers import triton_matmul
    except ImportError as error:
        raise BenchError(
            f"the peer triton is missing ({error}); install it: pip install 'rooftile-server[peers]'"
        ) from None
    return triton_matmul


# ---------------------------------------------------------------- cost


def schedule_of(family: Family, problem: Problem, device: Device, point: Point) -> Schedule:
    """The family's default with the point's tile. BenchError where that is not legal."""
    values: dict[str, Value] = {
        "bm": point.bm, "bn": point.bn, "bk": point.bk, "warps_m": point.warps_m, "warps_n": point.warps_n,
        "stages": point.stages, "split_k": 1,
    }  # fmt: skip
    schedule = family.default(problem, device).replace(**values)
    violations = family.check(problem, device, schedule)
    if violations:
        raise BenchError(f"{point} is not legal: {violations[0].message}")
    return schedule


def _builds(points: Sequence[Point]) -> list[BuildSpec]:
    family, problem, device = get_family("gemm_sm80"), parse_problem(PROBLEM), Device.for_arch(ARCH)
    return [family.build(problem, device, schedule_of(family, problem, device, point)) for point in points]


def _costs(triton: Any, points: Sequence[Point], repeats: int, folder: Path) -> list[dict[str, Any]]:
    builds = _builds(points)
    before = os.sched_getaffinity(0)
    # The process that forks for each NVRTC call inherits it, and so does Triton's assembler.
    os.sched_setaffinity(0, {max(before)})
    find_nvrtc(ARCH).host.close()
    try:
        say("warming both compilers")
        warm = Point(32, 64, 32, 2, 2, 2)
        _ours(_builds([warm])[0], folder / "warm")
        _theirs(triton, warm)
        ours: list[list[float]] = [[] for _ in points]
        theirs: list[list[float]] = [[] for _ in points]
        facts: list[dict[str, Any]] = [{} for _ in points]
        for turn in range(repeats):
            for i, (point, build) in enumerate(zip(points, builds, strict=True)):
                # Who goes first alternates, so that a machine that slows down favours neither.
                for is_ours in (True, False) if (turn + i) % 2 else (False, True):
                    if is_ours:
                        cpu_s, facts[i] = _ours(build, folder / f"cost-{turn}")
                        ours[i].append(cpu_s)
                    else:
                        theirs[i].append(_theirs(triton, point))
    finally:
        find_nvrtc(ARCH).host.close()
        os.sched_setaffinity(0, before)
    rows = []
    for point, fact, mine, other in zip(points, facts, ours, theirs, strict=True):
        rows.append(_cost_row(point, fact, mine, other))
        say(_line(rows[-1]))
    return rows


def _ours(build: BuildSpec, home: Path) -> tuple[float, dict[str, Any]]:
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


def _theirs(triton: Any, point: Point) -> float:
    made = triton.compile_matmul(CAPABILITY, point.bm, point.bn, point.bk, point.stages, point.warps)
    for wanted in ("cp.async", "mma.sync"):
        if wanted not in made.ptx:
            raise BenchError(f"Triton's kernel for {point} has no {wanted}: not the same work")
    if made.cubin_bytes == 0:
        raise BenchError(f"Triton gave no cubin for {point}")
    return float(made.cpu_s)


def _cost_row(
    point: Point, facts: dict[str, Any], ours: Sequence[float], theirs: Sequence[float]
) -> dict[str, Any]:
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "kind": "cost",
        "tile": [point.bm, point.bn, point.bk],
        "stages": point.stages,
        "warps": point.warps,
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


def _rate(points: Sequence[Point], repeats: int, folder: Path) -> float:
    """Candidates a second with as many compiles at once as the machine has room for."""
    builds = _builds(points)
    compile_kernel(builds[0], home=folder / "rate-warm")
    rounds = min(repeats, 3)
    orders = [
        Order((turn, i), _order(build, folder / f"rate-{turn}"))
        for turn in range(rounds)
        for i, build in enumerate(builds)
    ]
    started = time.monotonic()
    for _key, outcome in compile_all(orders):
        if isinstance(outcome, Exception):
            raise BenchError(f"a schedule does not compile: {outcome}")
    return len(orders) / (time.monotonic() - started)


def _order(build: BuildSpec, home: Path) -> Any:
    return lambda: compile_kernel(build, home=home)


# ---------------------------------------------------------------- share

_SEED = 20261
_MOST_TRIES = 2_000_000


def draw(
    family: Family, problem: Problem, device: Device, count: int, rng: random.Random
) -> tuple[list[Schedule], int]:
    """`count` different legal schedules, each legal one as likely as any other, and how many draws it took.

    By rejection: a uniform draw from the product of all choices, kept where it is legal.
    """
    parameters = family.parameters(problem, device)
    found: dict[str, Schedule] = {}
    for tries in range(1, _MOST_TRIES + 1):
        values = {one.name: rng.choice(one.choices) for one in parameters}
        schedule = Schedule.of(family.name, parameters, values)
        if not family.check(problem, device, schedule):
            found.setdefault(schedule.key, schedule)
            if len(found) == count:
                return list(found.values()), tries
    raise BenchError(f"{family.name}: {len(found)} of {count} legal schedules after {_MOST_TRIES} draws")


def _share(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Compile what was drawn from one family; the failures with their reasons."""
    try:
        family = get_family(name)
    except UnknownFamily as error:
        raise BenchError(str(error)) from None
    arch, specs = SPACES[name]
    device, rng = Device.for_arch(arch), random.Random(_SEED)
    problems = [parse_problem(spec) for spec in specs]
    orders: list[Order[tuple[str, Schedule]]] = []
    draws = 0
    for i, problem in enumerate(problems):
        mine = count // len(problems) + (1 if i < count % len(problems) else 0)
        schedules, tries = draw(family, problem, device, mine, rng)
        draws += tries
        for schedule in schedules:
            build = family.build(problem, device, schedule)
            orders.append(Order((problem.title(), schedule), _order(build, folder / f"share-{name}")))
    say(f"{name}: compiling {len(orders)} schedules out of {draws} draws")
    started, compiled, seconds = time.monotonic(), 0, []
    reasons: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    for (title, schedule), outcome in compile_all(orders):
        if isinstance(outcome, CompileFailure):
            reasons[str(outcome.reason)] += 1
            told = {"reason": str(outcome.reason), "message": outcome.message}
            failures.append({"problem": title, "schedule": schedule.values(), **told})
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            compiled += 1
            if not outcome.cached:
                seconds.append(outcome.compile_s)
    row = {
        "kind": "share",
        "family": name,
        "arch": arch,
        "problems": [problem.to_json() for problem in problems],
        "drawn": len(orders),
        "draws": draws,
        "compiled": compiled,
        "share": round(compiled / len(orders), 4),
        "reasons": dict(reasons),
        "failures": failures,
        "wall_s": round(time.monotonic() - started, 1),
        "compile_s_median": round(statistics.median(seconds), 3) if seconds else None,
        "compile_s_most": round(max(seconds), 3) if seconds else None,
    }
    say(f"{name}: {compiled} of {len(orders)} compile; {dict(reasons)}; {row['wall_s']} s")
    return row


def _figures(
    costs: Sequence[Mapping[str, Any]], rate: float, shares: Sequence[Mapping[str, Any]]
) -> dict[str, float | int | None]:
    drawn = sum(row["drawn"] for row in shares)
    return {
        "cpu_s_per_candidate": round(statistics.median(row["cpu_s"] for row in costs), 4),
        "triton_ratio": round(statistics.median(row["ratio"] for row in costs), 3),
        "triton_ratio_min": round(min(row["ratio"] for row in costs), 3),
        "candidates_per_s": round(rate, 3),
        "compiled_share": round(sum(row["compiled"] for row in shares) / drawn, 4) if drawn else None,
        **{f"compiled_share_{row['family']}": row["share"] for row in shares},
    }


if __name__ == "__main__":
    sys.exit(main())
