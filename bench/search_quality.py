"""How near to the best does the search come, after so many trials, on spaces that were recorded whole?

    python -m bench.search_quality [--quick] [--json FILE]

Every configuration of a kernel with its time on a real GPU, as others recorded them, for three convolutions,
two dedispersions, a GEMM and a point in polygon: a trial looks its time up, a failure costs a trial as well.
The product's own proposer, without a cost model, is asked for four at a time and told the times of the four
before. Figures: the best time recorded over the best one found, after 25, 50, 100 and 200 trials, mean over
spaces and seeds; the same seeds give the same figures anywhere. `search_ms_per_suggestion` is CPU time of
this process. Rows: each space, with the mean and the least of its seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError, bench_lock, environment, say, write
from bench.searching.space import PROBLEM, RecordedFamily, recorded, share
from search_space.device import Device
from service.jobs.proposing import Ask, Tried
from service.search.proposer import Proposer

SPACES = (
    "conv8_3090",
    "conv_a100",
    "conv_w6600",
    "dedisp_a4000",
    "dedisp_mi250x",
    "gemm_3090",
    "pnpoly_3090",
)
AFTER = (25, 50, 100, 200)
SEEDS, QUICK_SEEDS = 8, 2
BATCH = 4
DEVICE = Device.for_arch("x86-64-v3")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.search_quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds: under 3 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    seeds = QUICK_SEEDS if args.quick else SEEDS
    try:
        with bench_lock():
            figures, rows = measure(SPACES, seeds)
    except BenchError as error:
        print(f"bench.search_quality: {error}", file=sys.stderr)
        return 1
    write(args.json, figures, rows, environment(quick=args.quick, seeds=seeds, batch=BATCH))
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(
    spaces: Sequence[str], seeds: int, after: Sequence[int] = AFTER
) -> tuple[dict[str, float | int | None], list[dict[str, Any]]]:
    """Every space with every seed."""
    rows = [_row(recorded(name), seeds, after) for name in spaces]
    figures: dict[str, float | int | None] = {
        f"share_after_{count}": statistics.mean(row[f"share_after_{count}"] for row in rows)
        for count in after
    }
    figures["search_ms_per_suggestion"] = statistics.mean(row["search_ms_per_suggestion"] for row in rows)
    return figures, rows


def _row(family: RecordedFamily, seeds: int, after: Sequence[int]) -> dict[str, Any]:
    started = time.process_time()
    runs = [best_so_far(family, seed, after[-1]) for seed in range(seeds)]
    used_s = time.process_time() - started
    row: dict[str, Any] = {"space": family.name, "configurations": len(family.times_us), "seeds": seeds}
    for count in after:
        shares = [share(family.best_us, run[count - 1]) for run in runs]
        row[f"share_after_{count}"] = statistics.mean(shares)
        row[f"least_after_{count}"] = min(shares)
    row["search_ms_per_suggestion"] = 1000 * used_s / sum(map(len, runs))
    shown = ", ".join(f"{row[f'share_after_{count}']:.3f} after {count}" for count in after)
    say(f"{family.name}: {shown}; {row['search_ms_per_suggestion']:.1f} ms a suggestion")
    return row


def best_so_far(family: RecordedFamily, seed: int, trials: int) -> list[float]:
    """One search: the best time in microseconds after each trial, infinite before the first that ran."""
    proposer = Proposer(lambda _: family)
    done: list[Tried] = []
    best: list[float] = []
    while len(done) < trials:
        n = min(BATCH, trials - len(done))
        ask = Ask("1", PROBLEM, DEVICE, (family.name,), seed, trials, n, done=tuple(done))
        found = proposer.propose(ask)
        if not found:
            raise BenchError(f"{family.name}: nothing is left after {len(done)} trials")
        for one in found:
            time_us = family.time_us(one.schedule)
            done.append(Tried(one.schedule, one.schedule.key, time_us))
            best.append(min(best[-1] if best else math.inf, math.inf if time_us is None else time_us))
    return best


if __name__ == "__main__":
    sys.exit(main())
