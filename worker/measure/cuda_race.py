"""How do entrants of a race take turns on one GPU?

All in one process: its context and its clocks are the same for all, and a turn costs no switch. A round is
one burst of each, in shuffled order, and ratios are taken round by round, as on the CPU (race.py, whose noise
this uses). The vendor's entrant is the best of its own kernels: they are raced first, and all their times are
kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rooftile.launch.errors import UnsuitableError

from worker.measure.candidate import Proof, Tell, failed
from worker.measure.cuda_backend import Backend, Baseline
from worker.measure.cuda_candidate import CudaOrder, DeviceCandidate, RoundSampler, guarded, load
from worker.measure.cuda_problems import DeviceProblem
from worker.measure.race import (
    BUDGET_S,
    ENOUGH_ROUNDS,
    FEWEST_ROUNDS,
    GIVE_UP_AFTER,
    LEAST_ROUNDS,
    MOST_BUDGETS,
    MOST_ROUNDS,
    RETRIES,
    Lane,
    noise_of,
    steady,
)
from worker.measure.statistics import impossible, median, quantile

# Of one turn: long against a launch, short against changes of the clocks.
BURST_S = 0.02
MOST_SAMPLES = 30
# Of the race that chooses among the vendor's kernels, each.
_CHOICE_S = 0.02


@dataclass
class Entry:
    """One entrant: its lane (what the noise is judged by) and its candidate."""

    lane: Lane
    candidate: DeviceCandidate | None = None
    sampler: RoundSampler | None = None
    started_at: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.candidate is not None and self.lane.failure is None


def run_device_race(message: Mapping[str, Any], data: DeviceProblem, tell: Tell) -> dict[str, Any]:
    """The whole race. Raises Poisoned where the context dies; the message before says whose turn it was."""
    backend = data.backend
    lanes = [Lane(str(one["name"]), str(one["role"]), one) for one in message["entrants"]]
    entries = [Entry(lane) for lane in lanes]
    before = backend.watch.snapshot()
    for entry in entries:
        _turn_of(entry, tell)
        _guard(entry, backend, lambda entry=entry: _enter(entry, message, data, tell))  # type: ignore[misc]
    rounds = _rounds(
        entries, int(message["seed"]), message.get("rounds"), float(message.get("budget_s") or BUDGET_S), tell
    )
    for entry in entries:
        if entry.running:
            _turn_of(entry, tell)
            _guard(entry, backend, lambda entry=entry: _finish(entry))  # type: ignore[misc]
    whole = backend.watch.between(before, backend.watch.snapshot())
    return {
        "status": "raced",
        "entrants": [_result(entry, message, data) for entry in entries],
        "noise": noise_of(lanes),
        "environment": {
            **backend.watch.describe(),
            **whole.to_json(),
            "rounds": rounds,
            "rotation": data.rotation.to_json(data.set_bytes),
        },
    }


def _turn_of(entry: Entry, tell: Tell) -> None:
    """Whoever reads this last before the process dies knows whose doing it was."""
    tell({"phase": "race", "entrant": entry.lane.name, "limit_s": 30.0})


def _guard(entry: Entry, backend: Backend, action: Callable[[], dict[str, Any]]) -> None:
    def proof() -> Proof | None:
        return None if entry.candidate is None else entry.candidate.proof

    answer = guarded(action, backend, proof)
    if answer.get("status") == "failed":
        entry.lane.failure = answer
        entry.candidate = None


def _enter(entry: Entry, message: Mapping[str, Any], data: DeviceProblem, tell: Tell) -> dict[str, Any]:
    """Load, prove, make ready."""
    entry.started_at = datetime.now(UTC).isoformat()
    if entry.lane.role == "baseline":
        _choose_baseline(entry, data, tell)
    else:
        order = CudaOrder.parse({**{"best_us": message.get("best_us"), "roof": None}, **entry.lane.order})
        entry.candidate = load(order, data, tell)
        entry.candidate.verify()
        entry.candidate.bind_sets()
        entry.sampler = entry.candidate.sampler()
    assert entry.sampler is not None
    assert entry.candidate is not None
    entry.lane.estimate_us = min(entry.sampler.sample(1) for _ in range(2))
    return {"status": "ready"}


def _choose_baseline(entry: Entry, data: DeviceProblem, tell: Tell) -> None:
    """The fastest of the vendor's kernels that are right; what each took, and what became of it, is
    recorded."""
    tried: list[dict[str, Any]] = []
    best: tuple[float, DeviceCandidate, RoundSampler, Baseline] | None = None
    for kernel in data.backend.baselines(data.problem):
        row: dict[str, Any] = {"name": kernel.name, **kernel.facts()}
        tried.append(row)
        # BLAS promises the same bits only for the same algorithm and addresses: judged by its bounds alone.
        candidate = DeviceCandidate(kernel, data, tell, bitwise=False)
        answer = guarded(lambda c=candidate, r=row: _try(c, r), data.backend, lambda: None)  # type: ignore[misc]
        if answer["status"] == "failed":
            row["failed"] = {"reason": answer["reason"], "message": answer["evidence"].get("message")}
            continue
        sampler: RoundSampler = answer["sampler"]
        if best is None or row["time_us"] < best[0]:
            best = row["time_us"], candidate, sampler, kernel
        else:
            candidate.targets.clear()
    if best is None:
        raise UnsuitableError(
            "the vendor has no kernel for this that is right here: "
            + "; ".join(str(row.get("failed", {}).get("message")) for row in tried)[:500]
        )
    _, entry.candidate, entry.sampler, chosen = best
    entry.facts = {"baseline": chosen.name, "chosen": chosen.facts(), "tried": tried}


def _try(candidate: DeviceCandidate, row: dict[str, Any]) -> dict[str, Any]:
    candidate.verify(timed_only=True)
    candidate.bind_sets()
    sampler = candidate.sampler()
    end = time.monotonic() + _CHOICE_S
    samples = [sampler.sample(1) for _ in range(3)]
    while time.monotonic() < end:
        samples.append(sampler.sample(1))
    row["time_us"] = median(samples)
    return {"status": "ready", "sampler": sampler}


def _rounds(entries: Sequence[Entry], seed: int, wanted: int | None, budget_s: float, tell: Tell) -> int:
    """Take turns until the noise is small, the budget spent, or as many rounds are done as were asked for."""
    order = random.Random(seed)
    started = time.monotonic()
    done = 0
    while any(entry.running for entry in entries):
        turn = [entry for entry in entries if entry.running]
        order.shuffle(turn)
        for entry in turn:
            given_up = sum(one.lane.disturbed_rounds for one in entries) >= GIVE_UP_AFTER
            _turn_of(entry, tell)
            candidate = entry.candidate
            assert candidate is not None
            _guard(
                entry,
                candidate.backend,
                lambda entry=entry, given_up=given_up: _burst(entry, 0 if given_up else RETRIES),  # type: ignore[misc]
            )
        done += 1
        for entry in entries:
            while len(entry.lane.rounds) < done:
                entry.lane.rounds.append(None)
        if wanted is not None:
            if done >= wanted:
                break
            continue
        spent = time.monotonic() - started
        if done >= MOST_ROUNDS or (done >= LEAST_ROUNDS and spent > budget_s):
            break
        if done >= FEWEST_ROUNDS and spent > MOST_BUDGETS * budget_s:
            break
        if done >= ENOUGH_ROUNDS and steady([entry.lane for entry in entries]):
            break
    return done


def _burst(entry: Entry, retries: int) -> dict[str, Any]:
    candidate, sampler, lane = entry.candidate, entry.sampler, entry.lane
    assert candidate is not None
    assert sampler is not None
    watch = candidate.backend.watch
    round_s = max(1e-6, lane.estimate_us * len(candidate.targets) * 1e-6)
    count = max(1, min(MOST_SAMPLES, int(BURST_S / round_s)))
    values: list[float] = []
    reason: str | None = None
    for _attempt in range(retries + 1):
        sampler.sample(1)  # the turn before was another's: its data is in the cache, its code too
        before = watch.snapshot()
        values = [sampler.sample(1) for _ in range(count)]
        change = watch.between(before, watch.snapshot())
        reason = change.disturbed()
        if reason is None:
            break
    if reason is not None:
        lane.disturbed_rounds += 1
        lane.disturbances.append({"reason": reason, **change.to_json()})
    lane.samples += values
    lane.rounds.append(median(values))
    return {"status": "burst"}


def _finish(entry: Entry) -> dict[str, Any]:
    assert entry.candidate is not None
    entry.candidate.check_after()
    entry.facts |= entry.candidate.facts()
    entry.lane.finish = {
        "verdict": entry.candidate.proof.to_json(True),
        "runs": 0 if entry.sampler is None else entry.sampler.count,
    }
    entry.candidate.targets.clear()
    return {"status": "finished"}


def _result(entry: Entry, message: Mapping[str, Any], data: DeviceProblem) -> dict[str, Any]:
    lane = entry.lane
    result: dict[str, Any] = {"name": lane.name, "role": lane.role, "measurement": None, "verdict": None}
    if lane.failure is not None:
        return {**result, "failure": lane.failure, "verdict": lane.failure.get("verdict")}
    if lane.finish is None or not lane.samples:
        return {**result, "failure": failed("internal_error", {"message": "the race ended before it ran"})}
    verdict = result["verdict"] = lane.finish["verdict"]
    cold = data.policy.cold
    wrong = impossible(lane.samples, data.problem.flops, data.read_bytes, message.get("roof"), cold=cold)
    if wrong is not None:
        return {**result, "failure": failed("invalid_time", wrong, verdict)}
    times = [value for value in lane.rounds if value is not None]
    result["measurement"] = {
        "policy": data.policy.to_json(),
        "samples_us": lane.samples,
        "median_us": median(times),
        "q10_us": quantile(lane.samples, 0.1),
        "q90_us": quantile(lane.samples, 0.9),
        "runs": int(lane.finish["runs"]),
        "contended": lane.disturbed_rounds * 2 > len(times),
        "started_at": entry.started_at,
        "environment": {
            **entry.facts,
            "round_medians_us": lane.rounds,
            "disturbed_rounds": lane.disturbed_rounds,
            "disturbances": lane.disturbances[:5],
        },
    }
    return {**result, "failure": None}
