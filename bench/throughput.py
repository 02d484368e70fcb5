"""How much of a job's time is not the device's: suggestions, claims, results, the search's next step?

    python -m bench.throughput [--quick] [--json FILE] [--trials N] [--trial-s S]

A replay device waits out recorded times (a GEMM space that somebody measured on an RTX 3090): each trial
takes 0.5 s of it. All else is the real thing: API, search, Postgres, Valkey, Celery workers, claims, leases,
events; compiling is left out. One job of 1,000 trials. Figures: `overhead_ms_per_trial` (the job's wall time
less the device's, over its trials, from the POST to its end), `device_busy_share`, `search_share` (CPU of
search and Postgres over the wall time). Rows: the same in the embedded shape (SQLite), many jobs at once,
each hundred trials of the job, and what a suggestion costs for each family with so many rows behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError, bench_lock, environment, say, write
from bench.replay.cluster import Run, running
from bench.replay.device import MARK
from bench.replay.family import NAME, PROBLEM
from bench.replay.jobs import Job, by_hundred, follow, job_row, submit
from bench.replay.statements import WRITE_S
from bench.replay.suggesting import suggestion_rows

TRIALS, QUICK_TRIALS = 1000, 100
EMBEDDED_TRIALS, QUICK_EMBEDDED_TRIALS = 200, 24
TRIAL_S = 0.5
# Many jobs: tokens, jobs of each (as many as may share a device), trials of each, seconds of a trial.
CROWD = (25, 8, 4, 0.1)
QUICK_CROWD = (10, 4, 1, 0.05)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.throughput", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRIALS} trials: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--trial-s", type=float, default=TRIAL_S, help="of the device")
    parser.add_argument("--only", action="store_true", help="the one job in the cluster shape, no other row")
    args = parser.parse_args(argv)
    trials = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
    try:
        with bench_lock():
            figures, rows = measure(trials, args.trial_s, quick=args.quick, only=args.only)
    except BenchError as error:
        print(f"bench.throughput: {error}", file=sys.stderr)
        return 1
    env = environment(quick=args.quick, trials=trials, trial_s=args.trial_s, problem=PROBLEM.title(), **MARK)
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    trials: int, trial_s: float, *, quick: bool, only: bool = False
) -> tuple[dict[str, float | int | None], list[dict[str, Any]]]:
    """Every run, one after another."""
    row = one_job("cluster", trials, trial_s)
    rows = [row]
    if not only:
        rows.append(one_job("embedded", QUICK_EMBEDDED_TRIALS if quick else EMBEDDED_TRIALS, trial_s))
        rows.append(many_jobs("cluster", *(QUICK_CROWD if quick else CROWD)))
        rows += suggestion_rows(quick=quick)
    figures: dict[str, float | int | None] = {
        "overhead_ms_per_trial": row["overhead_ms_per_trial"],
        "device_busy_share": row["device_busy_share"],
        "search_share": row["search_share"],
    }
    return figures, rows


def one_job(shape: str, trials: int, trial_s: float) -> dict[str, Any]:
    """One job alone."""
    with (
        tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder,
        running(Path(folder), shape, trial_s) as run,
    ):
        row, job = _timed(run, [trials], [None])
        row |= {"hundreds": by_hundred(run, job[0]), "best_over_recorded_best": job[0].over_best}
        if job[0].state != "done" or row["trials"] != trials:
            raise BenchError(
                f"the job ended as {job[0].state} after {row['trials']} trials: {job[0].message}"
            )
        _say(row)
        return row


def many_jobs(shape: str, tokens: int, each: int, trials: int, trial_s: float) -> dict[str, Any]:
    """So many jobs at once, of as many tokens as are needed for that."""
    with (
        tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder,
        running(Path(folder), shape, trial_s) as run,
    ):
        owners = [owner for owner in run.new_tokens(tokens) for _ in range(each)]
        row, _ = _timed(run, [trials] * len(owners), owners)
        _say(row)
        return row


def _timed(run: Run, trials: Sequence[int], owners: Sequence[str | None]) -> tuple[dict[str, Any], list[Job]]:
    sent = run.statements()
    before = run.cpu_s()
    ids = [
        submit(run, PROBLEM, NAME, count, seed, owner)
        for seed, (count, owner) in enumerate(zip(trials, owners, strict=True))
    ]
    jobs = follow(run, ids)
    used = {name: value - before[name] for name, value in run.cpu_s().items()}
    row = job_row(run, jobs, used)
    time.sleep(WRITE_S + 0.5)  # until the last ones are counted
    found = {name: (count - sent[name]) / row["trials"] for name, count in run.statements().items()}
    return {**row, "statements_per_trial": found}, jobs


def _say(row: dict[str, Any]) -> None:
    say(
        f"{row['shape']}, {row['jobs']} jobs, {row['trials']} trials: "
        f"{row['overhead_ms_per_trial']:.1f} ms each "
        f"beside the device's {row['device_ms_per_trial']:.0f}, device busy {row['device_busy_share']:.3f}, "
        f"search and store {row['search_share']:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
