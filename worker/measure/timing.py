"""How is a kernel timed once it is known to be right?

Runs go round the sets of buffers. A kernel that is short against the timer is run several times a sample.
Samples come in chunks of some 20 ms; a chunk during which the machine did something else is taken again, at
most three times, and then kept and marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from worker.measure import machine
from worker.measure.statistics import median, quantile, relative_halfwidth

Run = Callable[[], object]

LEAST_SAMPLES = 5
MOST_SAMPLES = 200
BUDGET_S = 0.2
TARGET_HALFWIDTH = 0.01
SCREEN_FACTOR = 1.15
CHUNK_S = 0.02
RETRIES = 3
# A sample is at least this long: 20 us is 400 times the resolution of the clock.
LEAST_SAMPLE_US = 20.0
MOST_BATCH = 4096
# After so many chunks that stayed disturbed nothing is taken again: the machine is busy, and that is that.
_GIVE_UP_AFTER = 2


@dataclass
class Timing:
    """What was measured, and how it went."""

    samples_us: list[float] = field(default_factory=list)
    disturbed_us: list[float] = field(default_factory=list)
    dropped: int = 0
    spoiled: int = 0
    batch: int = 1
    runs: int = 0
    culled: bool = False
    contended: bool = False
    reasons: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> list[float]:
        """Undisturbed samples where there are enough of them, else all."""
        if self.culled or not self.contended:
            return self.samples_us or self.disturbed_us
        return self.samples_us + self.disturbed_us

    def to_json(self) -> dict[str, Any]:
        kept = self.kept()
        return {
            "samples_us": kept,
            "median_us": median(kept),
            "q10_us": quantile(kept, 0.1),
            "q90_us": quantile(kept, 0.9),
            "runs": self.runs,
            "contended": self.contended,
            "environment": {
                **self.environment,
                "batch": self.batch,
                "dropped_samples": self.dropped,
                "disturbed_samples": len(self.disturbed_us),
                "disturbances": sorted(set(self.reasons)),
                "halfwidth": relative_halfwidth(kept),
                "method": "wall clock around Prepared.run()",
            },
        }


class Sampler(Protocol):
    """What is timed: a Rotor, or the rounds of a GPU."""

    count: int
    most_batch: int

    def sample(self, batch: int) -> float:
        """Microseconds a run, over `batch` runs in a row."""
        ...


class Rotor:
    """Runs a kernel over its sets of buffers in turn, and flushes between rounds where sets are too small."""

    def __init__(self, runs: Sequence[Run], flush: Run | None = None) -> None:
        self._runs = list(runs)
        self._flush = flush
        self._next = 0
        self.count = 0
        self.most_batch = len(self._runs) if flush is not None else MOST_BATCH

    def sample(self, batch: int) -> float:
        """Microseconds a run, over `batch` runs in a row."""
        if self._flush is not None and self._next + batch > len(self._runs):
            self._flush()
            self._next = 0
        size = len(self._runs)
        turn = [self._runs[(self._next + i) % size] for i in range(batch)]
        self._next = (self._next + batch) % size if self._flush is None else self._next + batch
        self.count += batch
        start = time.perf_counter_ns()
        for run in turn:
            run()
        return (time.perf_counter_ns() - start) / 1000.0 / batch


def choose_batch(rotor: Sampler, estimate_us: float) -> int:
    """Runs in one sample, so that the clock's resolution does not matter. An estimate of 0 is no problem."""
    batch = 1
    while batch < rotor.most_batch and estimate_us * batch < LEAST_SAMPLE_US:
        # Doubled and measured: an estimate of nearly nothing may be a first call's mistake (AT-20).
        batch = min(rotor.most_batch, batch * 2)
        if batch > 1:
            estimate_us = max(rotor.sample(batch), 0.0)
    return batch


def collect(
    rotor: Sampler,
    watch: machine.Watch,
    *,
    estimate_us: float,
    best_us: float | None = None,
    budget_s: float = BUDGET_S,
    halfway: Callable[[], None] | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Timing:
    """Sample until the median is known to 1 %, the budget is spent, or a first look says it is far slower.

    `alive` is called before each chunk: whoever watches may expect the next call soon.
    """
    alive()
    timing = Timing(batch=choose_batch(rotor, estimate_us))
    alive()
    if estimate_us < 20_000.0:
        rotor.sample(timing.batch)  # threads awake, code and tables in the cache
    before = watch.snapshot()
    started = time.monotonic()
    if (
        best_us is not None
        and best_us > 0.0
        and _screen(rotor, watch, timing, SCREEN_FACTOR * best_us, alive)
    ):
        timing.culled = True
    while not timing.culled:
        _chunk(rotor, watch, timing, alive)
        clean = len(timing.samples_us)
        total = clean + len(timing.disturbed_us)
        spent = time.monotonic() - started
        if halfway is not None and (clean >= LEAST_SAMPLES // 2 or spent > budget_s / 2):
            halfway()
            halfway = None
        enough = clean >= LEAST_SAMPLES or (timing.spoiled >= _GIVE_UP_AFTER and total >= LEAST_SAMPLES)
        if total >= MOST_SAMPLES or (spent > budget_s and enough):
            break
        width = relative_halfwidth(timing.samples_us)
        if width is not None and width < TARGET_HALFWIDTH and clean >= 2 * LEAST_SAMPLES:
            break
    whole = watch.between(before, watch.snapshot())
    timing.runs = rotor.count
    timing.environment = {**watch.describe(), **whole.to_json()}
    if not timing.culled:
        overall = whole.disturbed()
        if overall is not None:
            timing.reasons.append(overall)
        timing.contended = len(timing.samples_us) < LEAST_SAMPLES or overall in ("steal", "other processes")
    return timing


def _screen(
    rotor: Sampler, watch: machine.Watch, timing: Timing, limit_us: float, alive: Callable[[], None]
) -> bool:
    """True when a first look says it is slower than `limit_us`. One unlucky sample culls nobody."""
    least = float("inf")
    for _ in range(2):
        for _again in range(RETRIES + 1):
            alive()
            before = watch.snapshot()
            value = rotor.sample(timing.batch)
            reason = watch.between(before, watch.snapshot()).disturbed()
            least = min(least, value)
            if reason is None or value <= limit_us:
                break
            timing.dropped += 1
            timing.reasons.append(reason)
        timing.samples_us.append(value)
        if least <= limit_us:
            timing.samples_us.clear()
            return False
    return True


def _chunk(rotor: Sampler, watch: machine.Watch, timing: Timing, alive: Callable[[], None]) -> None:
    """Some 20 ms of samples, taken again when the machine was disturbed meanwhile."""
    tries = RETRIES + 1 if timing.spoiled < _GIVE_UP_AFTER else 1
    for attempt in range(tries):
        alive()
        before = watch.snapshot()
        end = time.monotonic() + CHUNK_S
        samples = [rotor.sample(timing.batch)]
        while time.monotonic() < end and len(samples) < MOST_SAMPLES:
            samples.append(rotor.sample(timing.batch))
        reason = watch.between(before, watch.snapshot()).disturbed()
        if reason is None:
            timing.samples_us += samples
            return
        timing.reasons.append(reason)
        if attempt + 1 < tries:
            timing.dropped += len(samples)
        else:
            timing.disturbed_us += samples
            timing.spoiled += 1
