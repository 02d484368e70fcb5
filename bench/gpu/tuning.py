"""How fast are our kernels beside the vendor's, tuned by the product itself within the time there is?

A real job for some problems at a time: `rooftile tune` in a home of its own, with search, compile,
verification, measuring and the race of finalists and Baseline. What is told of a problem are the medians of
that race.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooftile.problem import parse_problem

from bench.common import say
from bench.gpu.places import Place
from bench.gpu.report import Budget, Report
from search_space import registry
from search_space.schedule import Schedule
from service.store import jobs, races, trials
from service.store.database import Database
from service.store.enums import EntrantRole, RaceState
from service.store.records import EntrantResult

DATA = Path(__file__).parents[1] / "data" / "real_problems.json"
# Which rows at which m, the most telling first: decode, a batch, prefill; skinny, ragged k, wide.
ORDER: tuple[tuple[str, int], ...] = (
    ("llama3.1-8b/o_proj", 2053), ("llama3.1-8b/qkv_proj", 16), ("deepseek-v3/router_gate_n256_k7168", 128),
    ("gpt-oss/qkv_proj", 64), ("llama3.1-8b/down_proj", 256), ("llama3.1-8b/gate_up_proj", 1),
    ("llama3.1-405b/qkv_proj_tp8", 512), ("qwen3-8b/gate_up_proj", 128), ("llama3.1-70b/qkv_proj", 4096),
    ("gpt-oss/o_proj", 1024), ("llama3.1-70b/down_proj_tp4", 8), ("llama3.1-8b/lm_head", 8),
)  # fmt: skip
CPU_ORDER: tuple[tuple[int, int, int], ...] = ((8, 1024, 1024), (96, 96, 96), (17, 403, 277))
PROBLEMS_A_JOB = {"gpu": 3, "cpu": 1}
# Of one problem, search and race together: less says little.
LEAST_S = {"gpu": 26.0, "cpu": 11.0}
MOST_S = 70.0
# The race's own 8 s, and what it takes until it begins; not part of a job's seconds.
RACE_S = 10.0
# Of the reserve that a job may use before it is killed; the rest is for the file and the children's end.
OVERRUN = 0.7
# Children, CUDA context and the device's health; on a CPU its roof.
START_S = {"gpu": 20.0, "cpu": 6.0}
# What is kept of the Baseline: which it was, its kernels, and what else was tried.
_BASELINE_FACTS = ("baseline", "chosen", "kernels", "tried", "blas", "numpy")
_OURS = (EntrantRole.FINALIST, EntrantRole.DEFAULT, EntrantRole.INCUMBENT)


def wanted(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and problems in the order in which they are tuned."""
    if kind == "cpu":
        return [
            (f"cpu/{m}x{n}x{k}", {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "f32"})
            for m, n, k in CPU_ORDER
        ]
    rows = {row["name"]: row for row in json.loads(DATA.read_text())["problems"]}
    return [(f"{name} m={m}", {**rows[name]["problem"], "m": m}) for name, m in ORDER]


def tune_all(
    place: Place, report: Report, home: Path, budget: Budget, *, seconds_each: float | None = None
) -> None:
    """Jobs until the time is spent. What no family does, or no time is left for, is left out by name."""
    waiting = []
    for name, problem in wanted(place.kind):
        reasons = registry.why_not(parse_problem(problem), place.device.arch.name)
        if reasons:
            # A family of another arch has the least to say.
            telling = [one.message for one in reasons if "it runs on" not in one.message]
            report.leave_out(f"tune {name}: {(telling or [reasons[0].message])[0]}")
        else:
            waiting.append((name, problem))
    ratios: list[float] = []
    tuned = crashed = 0
    while waiting:
        now = budget.left_s - START_S[place.kind]
        each = seconds_each or min(MOST_S, max(LEAST_S[place.kind], now / max(1, len(waiting))))
        count = min(PROBLEMS_A_JOB[place.kind], len(waiting), int(now // each))
        if count < 1:
            break
        these, waiting = waiting[:count], waiting[count:]
        rows = _job(place, home, these, (each - RACE_S) * count, budget.left_s + OVERRUN * budget.reserve_s)
        for row in rows:
            report.row(step="tune", **row)
            say(_line(row))
            if row.get("ratio"):
                ratios.append(row["ratio"])
                tuned += 1
            crashed += bool(row.get("crashed"))
        report.figures |= {
            "tune_failed": crashed,
            "problems_tuned": tuned,
            "geomean_ratio": math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else None,
            "min_ratio": min(ratios, default=None),
        }
        report.write()
    for name, _ in waiting:
        report.leave_out(f"tune {name}: no time left")


def _job(
    place: Place, home: Path, these: Sequence[tuple[str, dict[str, Any]]], seconds: float, limit: float
) -> list[dict[str, Any]]:
    body = {
        "problems": [{"problem": problem} for _, problem in these],
        "target": {"device": place.key},
        "budget": {"seconds": seconds},
        "force": True,
    }
    if place.kind == "gpu":
        # The emulator proves structures on any machine; here its cores are the compiler's.
        body["emulate"] = "never"
    spec = home / "spec.json"
    spec.write_text(json.dumps(body))
    code = "import sys; from service.cli import tune; sys.exit(tune(sys.argv[1:]) or 0)"
    command = [sys.executable, "-c", code, "--spec", str(spec), "--json"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROOFTILE_")} | {
        "ROOFTILE_HOME": str(home)
    }
    job_id: int | None = None
    said: str | None = None
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
        job_id = int(json.loads(done.stdout)["job_id"])
    except subprocess.TimeoutExpired:
        said = f"`rooftile tune` gave no answer within {limit:.0f} s"
    except (ValueError, KeyError):
        tail = (done.stderr or done.stdout).strip()[-600:]
        said = f"`rooftile tune` ended with {done.returncode}: {tail}"
        return [row | {"crashed": True} for row in _rows(home, these, job_id, said)]
    return _rows(home, these, job_id, said)


def _rows(
    home: Path, these: Sequence[tuple[str, dict[str, Any]]], job_id: int | None, said: str | None
) -> list[dict[str, Any]]:
    """What the database says of each problem, also of a job that was killed: its trials are there."""
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    try:
        with database.read() as s:
            newest = job_id or max((job.id for job in jobs.listing(s).rows), default=0)
            found = jobs.problems(s, newest) if newest else []
            rows = [_row(s, name, problem, one) for (name, problem), one in zip(these, found, strict=True)]
    except Exception as error:  # noqa: BLE001 - no database, or not yet: then what was said is all
        said = said or f"{type(error).__name__}: {error}"
        return [{"problem": name, "failed": said} for name, _ in these]
    finally:
        database.close()
    for row in rows:
        if said is not None:
            row["failed"] = said if row["ratio"] is None else row.get("failed")
            row["job"] = said
    return rows


def _row(s: Any, name: str, problem: dict[str, Any], one: Any) -> dict[str, Any]:
    parsed = parse_problem(problem)
    row: dict[str, Any] = {"problem": name, "state": str(one.state), "ratio": None, "trials": {}}
    for count in trials.counts(s, job_problem_id=one.id):
        label = f"{count.state}" if count.reason is None else f"{count.state}: {count.reason}"
        row["trials"][label] = row["trials"].get(label, 0) + count.count
    times = [one.time_us for one in trials.of_problem(s, one.id, None) if one.time_us is not None]
    row["best_trial_us"] = min(times, default=None)
    race = races.latest(s, one.id)
    if race is None or race.state is not RaceState.DONE:
        return row | {"failed": "no race was run"}
    row["entrants"] = [_entrant(entrant) for entrant in race.entrants]
    timed = [e for e in race.entrants if e.measurement is not None and e.failure is None]
    ours = min((e for e in timed if e.role in _OURS), key=_median, default=None)
    vendor = next((e for e in timed if e.role is EntrantRole.BASELINE), None)
    if ours is None:
        return row | {"failed": "no kernel of ours was timed in the race"}
    assert ours.measurement is not None
    us = ours.measurement.median_us
    detail = trials.detail(s, ours.trial_id) if ours.trial_id is not None else None
    row |= {
        "ours_us": us,
        "ours_tflops": parsed.flops / us / 1e6,
        "ours_gbs": parsed.min_bytes / us / 1e3,
        "schedule": None if detail is None else Schedule.from_json(dict(detail.trial.schedule)).one_line(),
        "contended": ours.measurement.contended,
        "noise": None if race.noise is None else race.noise.get("relative"),
    }
    if vendor is not None and vendor.measurement is not None:
        facts = dict(vendor.measurement.environment)
        row |= {
            "baseline_us": vendor.measurement.median_us,
            "baseline": {key: facts[key] for key in _BASELINE_FACTS if key in facts},
            "ratio": _ratio(vendor, ours),
        }
    return row


def _entrant(entrant: EntrantResult) -> dict[str, Any]:
    time_us = None if entrant.measurement is None else entrant.measurement.median_us
    failure = (
        None
        if entrant.failure is None
        else f"{entrant.failure.reason}: {entrant.failure.evidence.get('message')}"
    )
    return {"name": entrant.name, "role": str(entrant.role), "time_us": time_us, "failure": failure}


def _median(entrant: EntrantResult) -> float:
    return math.inf if entrant.measurement is None else entrant.measurement.median_us


def _ratio(vendor: EntrantResult, ours: EntrantResult) -> float:
    """Their time over ours, round by round, so that what changes slowly on the machine cancels."""
    assert vendor.measurement is not None
    assert ours.measurement is not None
    first = vendor.measurement.environment.get("round_medians_us") or []
    second = ours.measurement.environment.get("round_medians_us") or []
    pairs = [a / b for a, b in zip(first, second, strict=False) if a and b]
    return statistics.median(pairs) if pairs else vendor.measurement.median_us / ours.measurement.median_us


def _line(row: dict[str, Any]) -> str:
    if row.get("ratio") is None:
        return f"{row['problem']}: {row.get('failed') or 'no Baseline'}; trials {row.get('trials')}"
    return (
        f"{row['problem']}: ours {row['ours_us']:.1f} us, baseline {row['baseline_us']:.1f} us, "
        f"ratio {row['ratio']:.2f}  {row['schedule']}"
    )
