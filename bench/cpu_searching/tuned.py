"""What does the product find for a problem on this CPU, within so many trials?

A real job: `rooftile tune` in a home of its own, with search, compile, verification, measuring and race. Its
answer is the fastest of our own kernels in the race that ends the search.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu
from rooftile.problem import Problem

from bench.common import BenchError
from service.store import jobs, races, trials
from service.store.database import Database
from service.store.enums import EntrantRole, RaceState, TrialState
from service.store.records import EntrantResult, JobProblemRecord

CODE = "import sys; from service.cli import tune; sys.exit(tune(sys.argv[1:]) or 0)"
_OURS = (EntrantRole.FINALIST, EntrantRole.DEFAULT, EntrantRole.INCUMBENT)
SECONDS_A_TRIAL = 20.0
"""After so much no trial of these is still under way: something is wrong."""


@dataclass(frozen=True)
class Found:
    """The answer of one search."""

    schedule: dict[str, Any]
    time_us: float
    trials: int
    measured: int
    """Of them were timed to the end; the rest failed or were given up early."""
    seconds: float
    toolchain: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def search(problem: Problem, home: Path, budget: int, *, seed: int = 0) -> Found:
    """One job for one problem. BenchError where it found nothing."""
    home.mkdir(parents=True, exist_ok=True)
    body = {
        "problems": [{"problem": problem.to_json()}],
        "target": {"device": str(local_cpu().key)},
        "budget": {"trials": budget, "seconds": budget * SECONDS_A_TRIAL},
        "early_stop": False,
        "seed": seed,
        "force": True,
    }
    result = tune(home, body)
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    try:
        with database.read() as s:
            (row,) = jobs.problems(s, int(result["job_id"]))
            return _found(s, row, float(result.get("seconds") or 0.0))
    finally:
        database.close()


def tune(home: Path, body: dict[str, Any]) -> dict[str, Any]:
    """The product's own command in that home: its result as JSON says it."""
    spec = home / "spec.json"
    spec.write_text(json.dumps(body))
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROOFTILE_")}
    env["ROOFTILE_HOME"] = str(home)
    done = subprocess.run(
        [sys.executable, "-c", CODE, "--spec", str(spec), "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        tail = (done.stderr or done.stdout).strip()[-400:]
        raise BenchError(f"`rooftile tune` ended with {done.returncode} and no result: {tail}") from error
    if "job_id" not in result:
        raise BenchError(f"`rooftile tune` ended with {done.returncode}: {result.get('error', result)}")
    return result


def _found(s: Any, row: JobProblemRecord, seconds: float) -> Found:
    rows = [one for one in trials.of_problem(s, row.id) if one.state is not TrialState.CANCELLED]
    timed = [one for one in rows if one.state is TrialState.MEASURED and one.time_us is not None]
    trial_id, time_us = _of_race(s, row) or min(
        ((one.id, one.time_us or math.inf) for one in timed), key=lambda pair: pair[1], default=(None, 0.0)
    )
    detail = None if trial_id is None else trials.detail(s, trial_id)
    if detail is None:
        raise BenchError(f"a search of {len(rows)} trials ended {row.state} and found no kernel")
    kept = ("compiler", "version", "flags")
    toolchain = {name: value for name, value in (detail.toolchain or {}).items() if name in kept}
    return Found(dict(detail.trial.schedule), time_us, len(rows), len(timed), seconds, toolchain)


def _of_race(s: Any, row: JobProblemRecord) -> tuple[int, float] | None:
    race = races.latest(s, row.id)
    if race is None or race.state is not RaceState.DONE:
        return None
    ours = [e for e in race.entrants if e.role in _OURS and e.measurement is not None and e.failure is None]
    best = min(ours, key=_median, default=None)
    return None if best is None or best.trial_id is None else (best.trial_id, _median(best))


def _median(entrant: EntrantResult) -> float:
    return math.inf if entrant.measurement is None else entrant.measurement.median_us
