"""Does a kernel run through the client, in a process of its own, in the time that the service recorded?

    python -m bench.round_trip [--quick] [--json FILE] [--trials N] [--seconds S]

A service with its workers in one process tree; here, in another, a client with a cache of its own: it posts a
job, waits, fetches the release, runs it on numpy arrays and times it cold, as the race did: calls go round
sets of arrays that hold at least twice the last-level cache. Figures: `client_over_recorded`, and, because a
shared machine changes from minute to minute, `client_over_race_way`: the client's calls in turns with the
same kernel run as a race runs it (bound once, in the workers' own buffers), the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rooftile
from rooftile.device import local_cpu
from rooftile.problem import Gemm

from bench.common import BenchError, bench_lock, environment, say, write
from worker.verify.arena import GuardedBuffer

PROBLEM = Gemm(4, 4096, 4096, "f32")
Array = np.ndarray[Any, np.dtype[np.float32]]
CALLS = 8
ROUNDS = 12


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.round_trip", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a shorter search: under 2 minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None)
    args = parser.parse_args(argv)
    trials = args.trials or (8 if args.quick else 24)
    seconds = args.seconds or (20.0 if args.quick else 40.0)
    try:
        with bench_lock():
            figures, row = measure(trials, seconds)
    except BenchError as error:
        print(f"bench.round_trip: {error}", file=sys.stderr)
        return 1
    write(
        args.json,
        figures,
        [row],
        environment(policy="cold", quick=args.quick, trials=trials, seconds=seconds),
    )
    print(json.dumps({"figures": figures}, indent=1))
    return 0


def measure(trials: int, seconds: float) -> tuple[dict[str, float | int | None], dict[str, Any]]:
    """Tune through the service, time through the client."""
    with tempfile.TemporaryDirectory(prefix="rooftile-bench-") as folder, service(Path(folder) / "s") as url:
        os.environ["ROOFTILE_HOME"] = str(Path(folder) / "c")
        client = rooftile.Client(url, (Path(folder) / "s" / "token").read_text().strip())
        job = client.submit(PROBLEM, budget={"trials": trials, "seconds": seconds})
        job.wait(timeout=20 * seconds)
        kernel = client.kernel(PROBLEM)
        recorded = kernel.best.time_us
        if kernel.level != "exact" or recorded is None or kernel.best.artifact is None:
            raise BenchError(f"the service serves {kernel.level} ({kernel.reason}); is the machine quiet?")
        ours, beside = client_us(kernel)
        if kernel.fallbacks:
            raise BenchError(f"{kernel.fallbacks} calls went to the Baseline: {kernel.last_fallback}")
    row = {
        "problem": PROBLEM.title(),
        "client_us": ours,
        "recorded_us": recorded,
        "client_over_race_way_rounds": beside,
        "schedule": kernel.best.schedule_text,
    }
    say(f"{PROBLEM.title()}: {ours:.1f} us through the client, {recorded:.1f} us recorded")
    figures: dict[str, float | int | None] = {
        "client_over_recorded": ours / recorded,
        "client_over_race_way": statistics.median(beside),
    }
    return figures, row


def client_us(kernel: rooftile.Kernel) -> tuple[float, list[float]]:
    """The median of calls that go round sets of arrays, each call cold, and their ratio to the race's way in
    each round; the result checked against numpy."""
    m, n, k = PROBLEM.m, PROBLEM.n, PROBLEM.k
    rng = np.random.default_rng(0)
    cache = local_cpu().llc_total_bytes or local_cpu().llc_bytes or 0
    sets = max(2, -(-2 * cache // (4 * k * n)))
    calls, runs = [], []
    for _ in range(sets):
        a = rng.uniform(-1, 1, (m, k)).astype(np.float32)
        b = rng.uniform(-1, 1, (k, n)).astype(np.float32)
        out = np.empty((m, n), np.float32)
        calls.append(partial(kernel, a, b, out=out))
        runs.append(race_run(kernel, a, b))
        calls[-1]()
        if not np.allclose(out, a.astype(np.float64) @ b, rtol=0, atol=2e-6 * k):
            raise BenchError("the result is wrong")
    times: list[float] = []
    ratios = []
    for _ in range(ROUNDS):
        mine, theirs = timed(calls), timed(runs)
        times += mine
        ratios.append(statistics.median(mine) / statistics.median(theirs))
    return statistics.median(times), ratios


def timed(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of some runs that go round the sets."""
    times = []
    for call in range(CALLS):
        start = time.perf_counter()
        runs[call % len(runs)]()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def race_run(kernel: rooftile.Kernel, a: Array, b: Array) -> Callable[[], object]:
    """The kernel bound once to buffers as the measure worker makes them."""
    ours = kernel._ours  # the launcher's kernel, which a race binds as well
    assert ours is not None
    sizes = {"a": a.nbytes, "b": b.nbytes, "out": PROBLEM.m * PROBLEM.n * 4}
    buffers = {name: GuardedBuffer(name, size, placement="end", align=64) for name, size in sizes.items()}
    for name, array in (("a", a), ("b", b)):
        buffers[name].data().view(np.float32)[:] = array.ravel()
    pointers = {name: buffer.base for name, buffer in buffers.items()}
    prepared = ours.prepare(PROBLEM.plan_names(), pointers, {"alpha": 1.0, "beta": 0.0})

    def run(_kept: object = buffers) -> None:
        prepared.run()

    return run


@contextmanager
def service(home: Path) -> Iterator[str]:
    """`rooftile serve` on a home of its own; its address."""
    command = [str(Path(sys.executable).with_name("rooftile")), "serve", "--port", "0"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ROOFTILE_")} | {
        "ROOFTILE_HOME": str(home)
    }
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("Rooftile serves at "):
            raise BenchError(f"`rooftile serve` said {line!r}")
        yield line.split()[3].rstrip("/.")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
