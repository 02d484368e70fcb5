"""What does a dispatch table lose at sizes that were never tuned?

    python -m bench.dispatch [--quick] [--json FILE] [--trials N] [--checks N]

The m values up to 512 that serving sees (bench/data/real_problems.json) of two matrices of weights, f32, on
this machine's CPU. The product sweeps each through a real job in a home of its own: it tunes at most 8 of
the values and gives a table. At values that it did not tune a search of 200 trials is made in another home,
and then what the table says and that search's best run in turns in one session, cold; where the search serves
the vendor's kernel, that is what the table is compared with. The loss is the median over the rounds of their
ratio, in percent; below 0 the table's schedule is the better one.
Exit 0 when it measured, 1 when it could not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu
from rooftile.problem import Problem, parse_problem

from bench.common import BenchError, bench_lock, environment, say, write
from bench.cpu_searching.judging import REFERENCE, losses
from bench.cpu_searching.tuned import search, tune
from search_space.schedule import Schedule
from service.jobs.decide import ratio
from service.store import dispatch, jobs, races, releases, trials
from service.store.database import Database
from service.store.enums import EntrantRole, JobProblemRole, Winner
from service.store.records import DispatchTableRecord, ReleaseRecord

DATA = Path(__file__).parent / "data" / "real_problems.json"
M_MOST = 512
TABLE = "table"


@dataclass(frozen=True)
class Size:
    """How much of it is done."""

    rows: tuple[str, ...]
    """Of real_problems.json."""
    tune: int
    trials: int
    """For each tuned size."""
    hold_out: int
    reference: int
    """Trials of the search at each size that is checked."""
    checks: int
    """Sizes checked of each matrix, at most."""
    race_s: float
    sizes: tuple[int, ...] = ()
    """In place of the row's own."""


FULL = Size(("gpt-oss/o_proj", "gpt-oss/qkv_proj"), 8, 60, 2, 200, 8, 20.0)
SHORT = Size(("deepseek-v3/router_gate_n256_k7168",), 2, 6, 0, 8, 2, 4.0, (1, 2, 4, 8))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.dispatch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small matrix, few trials: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--trials", type=int, help="for each tuned size")
    parser.add_argument("--checks", type=int, help="sizes checked of each matrix, at most")
    args = parser.parse_args(argv)
    size = SHORT if args.quick else FULL
    size = replace(size, trials=args.trials or size.trials, checks=args.checks or size.checks)
    try:
        with bench_lock(), tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder:
            figures, rows, env = measure(size, Path(folder), quick=args.quick)
    except BenchError as error:
        print(f"bench.dispatch: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, env)
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    size: Size, work: Path, *, quick: bool
) -> tuple[dict[str, float | int | None], list[dict[str, Any]], dict[str, Any]]:
    """Sweep each matrix and check its table; figures, a row a checked size, and the machine."""
    env = environment(policy="cold", quick=quick, **{**vars(size), "rows": list(size.rows)})
    env["sizes"] = list(size.sizes)
    tables, rows = [], []
    for number, name in enumerate(size.rows):
        swept = _sweep(name, size, work / f"sweep{number}")
        say(_told(swept))
        tables.append(swept.to_json())
        rows += [_check(swept, m, size, work / f"reference{number}") for m in swept.others[: size.checks]]
    env["tables"] = tables
    lost = [float(row["loss_percent"]) for row in rows]
    figures: dict[str, float | int | None] = {
        "mean_loss_percent": sum(lost) / len(lost),
        "worst_loss_percent": max(lost),
        "tuned_sizes": max(len(one["tuned"]) for one in tables),
        "checked_sizes": len(rows),
        "trials": sum(one["trials"] for one in tables),
        "seconds": sum(one["seconds"] for one in tables),
        "noise_percent": max(float(row["noise_percent"]) for row in rows),
    }
    return figures, rows, env


# ---------------------------------------------------------------- the sweep


@dataclass(frozen=True)
class Swept:
    """A matrix with its table."""

    name: str
    fields: dict[str, Any]
    tuned: tuple[int, ...]
    others: tuple[int, ...]
    """Sizes of serving that were not tuned, evenly spread ones first."""
    table: DispatchTableRecord
    served: dict[int, ReleaseRecord]
    trials: int
    seconds: float

    def problem(self, m: int) -> Problem:
        return parse_problem({**self.fields, "m": m})

    def at(self, m: int) -> ReleaseRecord:
        """What the table says for a size."""
        for one in self.table.intervals:
            if one.low <= m <= one.high:
                return self.served[one.release_id]
        raise BenchError(f"{self.name}: the table says nothing for m = {m}")

    def to_json(self) -> dict[str, Any]:
        shown = [
            {
                "low": one.low,
                "high": one.high,
                "tuned_at": one.tuned_at,
                "schedule": _line(self.served[one.release_id]),
                "estimated_mean_loss": one.mean_loss,
                "estimated_worst_loss": one.worst_loss,
            }
            for one in self.table.intervals
        ]
        return {
            "name": self.name,
            "tuned": list(self.tuned),
            "trials": self.trials,
            "seconds": self.seconds,
            "intervals": shown,
            "held_out": [dict(one) for one in self.table.held_out],
            "losses": [dict(one) for one in self.table.tuned],
        }


def _sweep(name: str, size: Size, home: Path) -> Swept:
    fields, own = _row(name)
    sizes = size.sizes or own
    home.mkdir(parents=True)
    begin_s = time.monotonic()
    result = tune(
        home,
        {
            "problem": fields,
            "sweep": {"m": {"sizes": list(sizes), "tune": size.tune, "hold_out": size.hold_out}},
            "target": {"device": str(local_cpu().key)},
            "budget": {"trials": size.trials * size.tune},
            "early_stop": False,
        },
    )
    seconds = time.monotonic() - begin_s
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    try:
        with database.read() as s:
            job_id = int(result["job_id"])
            found = dispatch.of_job(s, job_id)
            if not found or not found[0].intervals:
                why = f"{result.get('state')}: {result.get('message')}"
                raise BenchError(f"the sweep of {name} gave no table; its job ended {why}")
            rows = jobs.problems(s, job_id)
            ids = sorted({one.release_id for one in found[0].intervals})
            served = {row.id: row for row in releases.several(s, ids)}
            tried = sum(one.count for one in trials.counts(s, job_id=job_id))
    finally:
        database.close()
    tuned = sorted(int(row.problem["m"]) for row in rows if row.role is JobProblemRole.SEARCH)
    others = _spread([m for m in sizes if m not in tuned])
    return Swept(name, fields, tuple(tuned), tuple(others), found[0], served, tried, seconds)


def _row(name: str) -> tuple[dict[str, Any], list[int]]:
    """The problem without m, in f32 and laid out as it is stored there, and its values of m."""
    row = next(one for one in json.loads(DATA.read_text())["problems"] if one["name"] == name)
    spec = row["problem"]
    layout = {"a": spec["layout"]["a"], "b": spec["layout"]["b"]}
    fields = {"op": "gemm", "n": spec["n"], "k": spec["k"], "dtype": "f32", "layout": layout}
    return fields, [m for m in row["m_values"] if m <= M_MOST]


def _spread(sizes: Sequence[int]) -> list[int]:
    """Every second one, then every second of the others, so that the first few of them are spread."""
    if len(sizes) < 2:
        return list(sizes)
    return [*sizes[1::2], *_spread(sizes[::2])]


# ---------------------------------------------------------------- a check


def _check(swept: Swept, m: int, size: Size, home: Path) -> dict[str, Any]:
    """A search at one size, and the race of its best with what the table says."""
    problem, said = swept.problem(m), swept.at(m)
    best = search(problem, home, size.reference)
    ours_over_vendor, vendor_served = _vendor(home, problem)
    if said.winner is Winner.BASELINE:
        loss, noise = 100.0 * (1.0 / ours_over_vendor - 1.0), 0.0
    else:
        assert said.schedule is not None
        schedules = {
            REFERENCE: Schedule.from_json(best.schedule),
            TABLE: Schedule.from_json(dict(said.schedule)),
        }
        raced = losses(problem, schedules, home, race_s=size.race_s)
        loss, noise = float(raced["losses_percent"][TABLE]), float(raced["noise_percent"])
    if vendor_served:
        loss = 100.0 * ((1.0 + loss / 100.0) * ours_over_vendor - 1.0)
    row = {
        "name": swept.name,
        "m": m,
        "loss_percent": loss,
        "noise_percent": noise,
        "table": _line(said),
        "tuned_at": said.problem["m"],
        "search": Schedule.from_json(best.schedule).one_line(),
        "search_us": best.time_us,
        "search_trials": best.trials,
        "search_serves": "baseline" if vendor_served else "trial",
        "toolchain": best.toolchain,
    }
    say(f"{swept.name} m = {m}: loss {loss:+.1f} %, noise {noise:.1f} %, as tuned at {row['tuned_at']}")
    return row


def _vendor(home: Path, problem: Problem) -> tuple[float, bool]:
    """How many times as long as the vendor's kernel the best of the search took in its race, and whether the
    vendor's is served."""
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    try:
        with database.read() as s:
            device = str(local_cpu().key)
            served = releases.best(s, problem.key, device, "cold-eager")
            race = None if served is None else races.latest(s, served.job_problem_id)
            if served is None or race is None:
                return 1.0, False
            run = [one for one in race.entrants if one.measurement is not None and one.failure is None]
            vendor = next((one for one in run if one.role is EntrantRole.BASELINE), None)
            ours = [one for one in run if one.role is not EntrantRole.BASELINE]
            if vendor is None or not ours:
                return 1.0, False
            return min(ratio(one, vendor) for one in ours), served.winner is Winner.BASELINE
    finally:
        database.close()


def _line(release: ReleaseRecord) -> str:
    if release.schedule is None:
        return "baseline"
    return Schedule.from_json(dict(release.schedule)).one_line()


def _told(swept: Swept) -> str:
    pieces = "; ".join(f"{one.low}..{one.high} as tuned at {one.tuned_at}" for one in swept.table.intervals)
    return (
        f"{swept.name}: tuned at {', '.join(map(str, swept.tuned))} with {swept.trials} trials in"
        f" {swept.seconds:.0f} s; {pieces}"
    )


if __name__ == "__main__":
    sys.exit(main())
