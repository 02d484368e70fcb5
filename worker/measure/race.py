"""How do entrants of a race take turns, and what does the twin say about the noise?

Runs in the measuring process. Every entrant has a process of its own that runs only while it is its turn and
answers when its threads have gone to sleep. A round is one burst of each, in shuffled order; ratios are taken
round by round, so that what changes slowly on the machine cancels.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.measure import machine
from worker.measure.blas import clean_environment
from worker.measure.candidate import failed
from worker.measure.channel import send
from worker.measure.entrant import KernelRunner, burst_samples, order_with, serve
from worker.measure.problems import PreparedProblem
from worker.measure.process import CandidateProcess, Died, FaultGuard, Inbox, fork
from worker.measure.statistics import impossible, median, quantile, relative_halfwidth

BUDGET_S = 8.0
LEAST_ROUNDS = 7
# However slow everything is (a machine busy with other work), so many budgets later it is over, ...
MOST_BUDGETS = 2.0
# ... with as many rounds as there are, if they are at least these.
FEWEST_ROUNDS = 3
MOST_ROUNDS = 40
ENOUGH_ROUNDS = 12
TARGET_HALFWIDTH = 0.004
RETRIES = 3
# Turns that stayed disturbed after all retries: from then on nothing is retried, the machine is busy.
GIVE_UP_AFTER = 3
# Noise of a race whose twin did not run: what a busy VM showed at its worst.
CAUTIOUS_NOISE = 0.05
LEAST_NOISE = 0.005


@dataclass
class Lane:
    """One entrant in the race."""

    name: str
    role: str
    order: Mapping[str, Any]
    process: CandidateProcess | None = None
    estimate_us: float = 0.0
    batch: int = 1
    rounds: list[float | None] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    disturbed_rounds: int = 0
    disturbances: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    finish: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.failure is None


def run_race(
    message: Mapping[str, Any], data: PreparedProblem, guard: FaultGuard, inbox: Inbox
) -> dict[str, Any]:
    """The whole race. Raises Cancelled; an entrant's end is its own."""
    lanes = [Lane(str(one["name"]), str(one["role"]), one) for one in message["entrants"]]
    before = machine.snapshot()
    try:
        for lane in lanes:
            _enter(lane, message, data, guard, inbox)
        rounds = _rounds(
            lanes, int(message["seed"]), message.get("rounds"), float(message.get("budget_s") or BUDGET_S)
        )
        for lane in lanes:
            if lane.running:
                _ask(lane, lambda process: process.ask({"op": "finish"}, 120.0), "finish")
    finally:
        for lane in lanes:
            if lane.process is not None:
                lane.process.kill()
    whole = machine.between(before, machine.snapshot(), data_threads(message))
    return {
        "status": "raced",
        "entrants": [_result(lane, message, data) for lane in lanes],
        "noise": noise_of(lanes),
        "environment": {
            **machine.describe(),
            "steal_share": whole.steal_share,
            "rounds": rounds,
            "rotation": data.rotation.to_json(data.set_bytes),
            "threads": data_threads(message),
        },
    }


def data_threads(message: Mapping[str, Any]) -> int:
    return int(message["threads"])


def _enter(
    lane: Lane, message: Mapping[str, Any], data: PreparedProblem, guard: FaultGuard, inbox: Inbox
) -> None:
    """Start the entrant and have it prove itself."""
    common = {key: message.get(key) for key in ("threads", "tool_path", "roof", "best_us")}
    if lane.role == "baseline":
        lane.process = _start_baseline(message, inbox)
    else:
        order = order_with({**common, **lane.order})
        lane.process = fork(
            lambda tell, commands: serve(lambda: KernelRunner(order, data, tell), tell, commands),
            guard,
            inbox,
        )
    answer = _ask(lane, lambda process: process.answer(), "ready")
    if answer is not None:
        lane.estimate_us, lane.batch = float(answer["estimate_us"]), int(answer["batch"])


def _start_baseline(message: Mapping[str, Any], inbox: Inbox) -> CandidateProcess:
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.measure.baseline_numpy", str(os.getpid())],
        env=clean_environment(data_threads(message)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers, commands = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
    process.stdout.close()
    process.stdin.close()
    started = CandidateProcess(process.pid, answers, commands, inbox)
    process.returncode = 0  # CandidateProcess waits for it, not Popen
    keys = ("problem", "policy", "seed", "llc_bytes", "threads", "tool_path", "pool_path", "arch")
    send(commands, {key: message.get(key) for key in keys})
    return started


def _ask(
    lane: Lane, question: Callable[[CandidateProcess], dict[str, Any]], wanted: str
) -> dict[str, Any] | None:
    """An answer of an entrant, or None when that was its end."""
    assert lane.process is not None
    try:
        answer = question(lane.process)
    except Died as death:
        lane.failure = death.outcome
        return None
    if answer["status"] == "failed":
        lane.failure = answer
        lane.process.kill()
        return None
    if wanted == "finish":
        lane.finish = answer
        lane.process.close()
    return answer


def _rounds(lanes: Sequence[Lane], seed: int, wanted: int | None, budget_s: float) -> int:
    """Take turns until the noise is small, the budget spent, or as many rounds are done as were asked for."""
    order = random.Random(seed)
    started = time.monotonic()
    done = 0
    while any(lane.running for lane in lanes):
        turn = [lane for lane in lanes if lane.running]
        order.shuffle(turn)
        for lane in turn:
            given_up = sum(one.disturbed_rounds for one in lanes) >= GIVE_UP_AFTER
            _turn(lane, 0 if given_up else RETRIES)
        done += 1
        for lane in lanes:
            while len(lane.rounds) < done:
                lane.rounds.append(None)
        if wanted is not None:
            if done >= wanted:
                break
            continue
        spent = time.monotonic() - started
        if done >= MOST_ROUNDS or (done >= LEAST_ROUNDS and spent > budget_s):
            break
        if done >= FEWEST_ROUNDS and spent > MOST_BUDGETS * budget_s:
            break
        if done >= ENOUGH_ROUNDS and steady(lanes):
            break
    return done


def _turn(lane: Lane, retries: int) -> None:
    samples = burst_samples(lane.estimate_us, lane.batch)
    limit_s = 10.0 + 60.0 * lane.estimate_us * 1e-6 * lane.batch * samples
    last: dict[str, Any] = {}
    for attempt in range(retries + 1):
        answer = _ask(
            lane, lambda process: process.ask({"op": "burst", "samples": samples}, limit_s), "burst"
        )
        if answer is None:
            return
        last = answer
        if answer["disturbed"] is None or attempt == retries:
            break
    values = [float(value) for value in last["samples_us"]]
    if last["disturbed"] is not None:
        lane.disturbed_rounds += 1
        lane.disturbances.append({"reason": last["disturbed"], **last["disturbance"]})
    lane.samples += values
    lane.rounds.append(median(values))


def steady(lanes: Sequence[Lane]) -> bool:
    pair = twin_pair(lanes)
    if pair is None:
        return True
    width = relative_halfwidth(_ratios(*pair))
    return width is not None and width < TARGET_HALFWIDTH


def twin_pair(lanes: Sequence[Lane]) -> tuple[Lane, Lane] | None:
    """The twin and the entrant that runs the same bytes, when both have times."""
    for twin in lanes:
        if twin.role != "twin" or twin.failure is not None:
            continue
        for lane in lanes:
            same = lane.order.get("so_path") == twin.order.get("so_path") and lane.order.get(
                "plan"
            ) == twin.order.get("plan")
            if lane is not twin and lane.role != "baseline" and same and lane.failure is None:
                return lane, twin
    return None


def _ratios(one: Lane, other: Lane) -> list[float]:
    pairs = zip(one.rounds, other.rounds, strict=False)
    return [b / a for a, b in pairs if a is not None and b is not None and a > 0.0]


def noise_of(lanes: Sequence[Lane]) -> dict[str, Any]:
    """How different the same binary was from itself.

    `relative` is how far the median of such ratios may be from 1 by chance: three standard errors (by the
    spread of the rounds), or what the twin really was off, whichever is more.
    """
    pair = twin_pair(lanes)
    ratios = _ratios(*pair) if pair is not None else []
    if pair is None or len(ratios) < 3:
        return {
            "pair": None,
            "ratios": [],
            "median_ratio": None,
            "q10": None,
            "q90": None,
            "relative": CAUTIOUS_NOISE,
            "rounds": len(ratios),
        }
    middle = median(ratios)
    spread = 1.4826 * median([abs(ratio - middle) for ratio in ratios])
    # The standard error of a median is 1.25 times that of a mean.
    chance = 3.0 * 1.2533 * spread / math.sqrt(len(ratios))
    return {
        "pair": [pair[0].name, pair[1].name],
        "ratios": ratios,
        "median_ratio": middle,
        "q10": quantile(ratios, 0.1),
        "q90": quantile(ratios, 0.9),
        "relative": max(LEAST_NOISE, abs(middle - 1.0), chance),
        "rounds": len(ratios),
    }


def _result(lane: Lane, message: Mapping[str, Any], data: PreparedProblem) -> dict[str, Any]:
    result: dict[str, Any] = {"name": lane.name, "role": lane.role, "measurement": None, "verdict": None}
    if lane.failure is not None:
        return {**result, "failure": lane.failure, "verdict": lane.failure.get("verdict")}
    if lane.finish is None or not lane.samples:
        return {**result, "failure": failed("internal_error", {"message": "the race ended before it ran"})}
    wrong = impossible(
        lane.samples, data.problem.flops, data.read_bytes, message.get("roof"), cold=data.policy.cold
    )
    result["verdict"] = lane.finish["verdict"]
    if wrong is not None:
        return {**result, "failure": failed("invalid_time", wrong, lane.finish["verdict"])}
    times = [value for value in lane.rounds if value is not None]
    # One number an entrant: the median of its rounds, so that a long burst counts no more than a short one.
    result["measurement"] = {
        "policy": data.policy.to_json(),
        "samples_us": lane.samples,
        "median_us": median(times),
        "q10_us": quantile(lane.samples, 0.1),
        "q90_us": quantile(lane.samples, 0.9),
        "runs": int(lane.finish["runs"]),
        "contended": lane.disturbed_rounds * 2 > len(times),
        "started_at": lane.finish["started_at"],
        "environment": {
            **lane.finish["facts"],
            "round_medians_us": lane.rounds,
            "batch": lane.batch,
            "disturbed_rounds": lane.disturbed_rounds,
            "disturbances": lane.disturbances[:5],
            "method": "race",
        },
    }
    return {**result, "failure": None}
