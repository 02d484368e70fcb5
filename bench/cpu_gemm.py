"""How much faster than this machine's BLAS is f32 GEMM, tuned by the product itself?

    python -m bench.cpu_gemm [--quick] [--json FILE] [--seconds-per-shape S] [--trials N] [--home DIR]

For each shape a real job runs in a fresh ROOFTILE_HOME: search, compile, verify, measure, and the race of
the finalists with the Baseline: one process an entrant, bursts in turns in shuffled order, cold (rotating
buffers), B row-major k x n, any packing of B inside the time, the same number of threads. The ratio of a
shape is the median over the rounds of Baseline time over the time of our own best kernel.
Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu
from rooftile.problem import parse_problem

from bench.common import BenchError, bench_lock, environment, say, write
from search_space.schedule import Schedule
from service.store import devices, jobs, races, releases, trials
from service.store.database import Database
from service.store.enums import EntrantRole, RaceState, TrialState, Winner
from service.store.records import EntrantResult, JobProblemRecord, JobRecord, RaceRecord, TrialDetail

SHAPES = (
    (1, 4096, 4096),
    (4, 4096, 4096),
    (8, 4096, 4096),
    (16, 4096, 4096),
    (32, 4096, 4096),
    (128, 4096, 1024),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (17, 1003, 777),
    (4096, 64, 4096),
)
QUICK = ((4, 4096, 4096), (8, 4096, 4096), (16, 4096, 4096), (256, 256, 256), (17, 1003, 777))
_OURS = (EntrantRole.FINALIST, EntrantRole.DEFAULT, EntrantRole.INCUMBENT)
# What OpenBLAS calls its kernels for AVX-512 and for AVX2; a Baseline with others is not at its best.
_AVX512 = {"skylakex", "cooperlake", "sapphirerapids"}
_AVX2 = {"haswell", "zen"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.cpu_gemm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="five shapes, little search: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--seconds-per-shape", type=float, default=None)
    parser.add_argument("--trials", type=int, default=None, help="a shape")
    parser.add_argument("--home", type=Path, help="the ROOFTILE_HOME; default: one to throw away")
    args = parser.parse_args(argv)
    shapes = QUICK if args.quick else SHAPES
    seconds = args.seconds_per_shape or (20.0 if args.quick else 45.0)
    wanted = args.trials or (24 if args.quick else 96)
    try:
        with bench_lock():
            figures, rows, env = measure(shapes, seconds, wanted, quick=args.quick, home=args.home)
    except BenchError as error:
        print(f"bench.cpu_gemm: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    shapes: Sequence[tuple[int, int, int]], seconds: float, wanted: int, *, quick: bool, home: Path | None
) -> tuple[dict[str, float | int | None], list[dict[str, Any]], dict[str, Any]]:
    """Tune and race each shape; the figures, a row a shape, and the machine."""
    env = environment(
        policy="cold", quick=quick, shapes=len(shapes), seconds_per_shape=seconds, trials=wanted
    )
    with tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
        rows = _tuned(Path(home or folder), _body(shapes, seconds, wanted))
    for row in rows:
        say(_line(row))
    missing = [row["shape"] for row in rows if row["ratio"] is None]
    if missing:
        raise BenchError(f"no undisturbed race for {missing}; is other work running on this machine?")
    _check_baseline(rows)
    env["blas"] = rows[0]["baseline"]["blas"]
    env["numpy"] = rows[0]["baseline"]["numpy"]
    env["toolchain"] = rows[0]["toolchain"]
    env["roof"] = rows[0]["roof"]
    return _figures(rows), rows, env


def _tuned(home: Path, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each shape, from a job in this home."""
    home.mkdir(parents=True, exist_ok=True)
    spec = home / "spec.json"
    spec.write_text(json.dumps(body))
    result = _tune(home, spec)
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    try:
        with database.read() as s:
            job = jobs.get(s, int(result["job_id"]))
            if job is None:
                raise BenchError(f"job {result['job_id']} is gone")
            return [_row(s, job, problem) for problem in jobs.problems(s, job.id)]
    finally:
        database.close()


def _body(shapes: Sequence[tuple[int, int, int]], seconds: float, wanted: int) -> dict[str, Any]:
    problems = [
        {"problem": {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "f32", "layout": {"b": "kn"}}}
        for m, n, k in shapes
    ]
    budget = {"trials": wanted * len(shapes), "seconds": seconds * len(shapes)}
    target = {"device": str(local_cpu().key)}
    return {"problems": problems, "target": target, "budget": budget, "early_stop": False}


def _tune(home: Path, spec: Path) -> dict[str, Any]:
    """The product's own command, in a home of its own."""
    command = Path(sys.executable).with_name("rooftile")
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROOFTILE_")} | {
        "ROOFTILE_HOME": str(home)
    }
    done = subprocess.run(
        [command, "tune", "--spec", spec, "--json"], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise BenchError(f"`rooftile tune` ended with {done.returncode} and no result") from error
    if "job_id" not in result:
        raise BenchError(f"`rooftile tune` ended with {done.returncode}: {result.get('error', result)}")
    return result


def _row(s: Any, job: JobRecord, problem: JobProblemRecord) -> dict[str, Any]:
    gemm = parse_problem(dict(problem.problem))
    sizes = gemm.sizes()
    row: dict[str, Any] = {
        "shape": [sizes["m"], sizes["n"], sizes["k"]],
        "state": str(problem.state),
        "ratio": None,
        "trials": {},
        "trials_to_5_percent": _trials_to_5_percent(s, problem.id),
    }
    for count in trials.counts(s, job_problem_id=problem.id):
        name = f"{count.state}" if count.reason is None else f"{count.state}: {count.reason}"
        row["trials"][name] = row["trials"].get(name, 0) + count.count
    race = races.latest(s, problem.id)
    if race is None or race.state is not RaceState.DONE:
        return row
    ours = _fastest(race)
    baseline = next((e for e in race.entrants if e.role is EntrantRole.BASELINE and e.measurement), None)
    if ours is None or baseline is None or ours.measurement is None or baseline.measurement is None:
        return row
    ratios = _ratios(baseline, ours)
    detail = trials.detail(s, ours.trial_id) if ours.trial_id is not None else None
    release = releases.best(s, problem.problem_key, problem.device_key or "", job.policy_key)
    facts = baseline.measurement.environment
    us = ours.measurement.median_us
    row |= {
        "ratio": statistics.median(ratios),
        "ratio_q10_q90": [_quantile(ratios, 0.1), _quantile(ratios, 0.9)],
        "rounds": len(ratios),
        "ours_us": us,
        "ours_gflops": gemm.flops / us / 1e3,
        "ours_gbs": gemm.min_bytes / us / 1e3,
        "baseline_us": baseline.measurement.median_us,
        "contended": ours.measurement.contended or baseline.measurement.contended,
        "noise": None if race.noise is None else race.noise.get("relative"),
        "served": None if release is None else str(release.winner),
        "schedule": None if detail is None else Schedule.from_json(dict(detail.trial.schedule)).one_line(),
        "toolchain": None if detail is None else _compiler(detail),
        "baseline": {
            "name": baseline.name,
            "numpy": facts.get("numpy"),
            "blas": facts.get("blas"),
            "architecture": facts.get("blas_architecture"),
            "threads": facts.get("threads"),
        },
        "roof": _roof(s, problem.device_key),
    }
    return row


def _compiler(detail: TrialDetail) -> dict[str, Any]:
    toolchain = dict(detail.toolchain or {})
    return {key: toolchain.get(key) for key in ("compiler", "version", "flags") if key in toolchain}


def _roof(s: Any, device_key: str | None) -> Any:
    device = devices.get(s, device_key) if device_key else None
    return None if device is None else device.roof


def _fastest(race: RaceRecord) -> EntrantResult | None:
    timed = [e for e in race.entrants if e.role in _OURS and e.measurement is not None and e.failure is None]
    return min(timed, key=lambda e: e.measurement.median_us if e.measurement else math.inf, default=None)


def _ratios(one: EntrantResult, other: EntrantResult) -> list[float]:
    """Round by round, so that what changes slowly on the machine cancels."""
    assert one.measurement is not None
    assert other.measurement is not None
    first = one.measurement.environment.get("round_medians_us") or []
    second = other.measurement.environment.get("round_medians_us") or []
    pairs = [a / b for a, b in zip(first, second, strict=False) if a and b]
    return pairs or [one.measurement.median_us / other.measurement.median_us]


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _trials_to_5_percent(s: Any, job_problem_id: int) -> int | None:
    """How many trials, in order, until the best so far is within 5 % of the best of all."""
    rows = trials.of_problem(s, job_problem_id, None)
    ended = sorted((t for t in rows if t.state not in (TrialState.CANCELLED,)), key=lambda t: t.id)
    times = [t.time_us if t.state is TrialState.MEASURED and t.time_us else math.inf for t in ended]
    best = min(times, default=math.inf)
    if not math.isfinite(best):
        return None
    return next(i for i, t in enumerate(times, 1) if t <= 1.05 * best)


def _check_baseline(rows: Sequence[dict[str, Any]]) -> None:
    """Raise unless every Baseline was OpenBLAS with its best kernels for this CPU, on all our threads.
    What is not known is not taken for the best: a handicapped Baseline makes a false win."""
    cpu = local_cpu()
    wanted = _AVX512 if cpu.arch.startswith("x86-64-v4") else _AVX2 | _AVX512
    for row in rows:
        baseline = row["baseline"]
        blas = (baseline["blas"] or [{}])[0].get("internal_api")
        if blas != "openblas":
            raise BenchError(f"numpy's BLAS here is {blas or 'not known'}; the Baseline has to be OpenBLAS")
        if str(baseline["architecture"]).lower() not in wanted:
            raise BenchError(
                f"OpenBLAS chose its {baseline['architecture']} kernels, not the best for this CPU "
                f"({', '.join(sorted(wanted))}): the Baseline would be handicapped"
            )
        if baseline["threads"] != cpu.cores:
            raise BenchError(f"the Baseline has {baseline['threads']} threads, ours {cpu.cores}")


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float | int | None]:
    ratios = [row["ratio"] for row in rows]
    # Whatever is not a kernel of ours is numpy: the client calls it, and it is as fast as itself.
    ours = [row["served"] == str(Winner.TRIAL) for row in rows]
    served = [row["ratio"] if mine else 1.0 for row, mine in zip(rows, ours, strict=True)]
    by_m = {row["shape"][0]: row["ratio"] for row in rows if row["shape"][1:] == [4096, 4096]}
    found = [row["trials_to_5_percent"] for row in rows if row["trials_to_5_percent"] is not None]
    return {
        "geomean_speedup": math.exp(statistics.fmean(math.log(r) for r in ratios)),
        "min_speedup": min(ratios),
        "served_min": min(served),
        "fallbacks": ours.count(False),
        "speedup_m4": by_m.get(4),
        "speedup_m8": by_m.get(8),
        "speedup_m16": by_m.get(16),
        "trials_to_5_percent": statistics.median(found) if found else None,
    }


def _line(row: dict[str, Any]) -> str:
    shape = "x".join(str(x) for x in row["shape"])
    if row["ratio"] is None:
        return f"{shape:>16}  {row['state']}: no ratio; trials {row['trials']}"
    return (
        f"{shape:>16}  ours {row['ours_us']:9.1f} us"
        f" ({row['ours_gflops']:6.1f} GFLOP/s, {row['ours_gbs']:5.1f} GB/s)"
        f"  baseline {row['baseline_us']:9.1f} us  ratio {row['ratio']:.2f}"
        f"  served {row['served']}  {row['schedule']}"
    )


if __name__ == "__main__":
    sys.exit(main())
