"""Are samples, batches, statistics and limits right, whatever the timer and the machine do?"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from worker.measure import machine
from worker.measure.limits import LEAST_S, MOST_S, run_limit_s
from worker.measure.machine import CpuWatch, Disturbance
from worker.measure.oom import oom_kills
from worker.measure.policy import FLOOR_BYTES, MOST_SETS, Policy, rotation
from worker.measure.race import CAUTIOUS_NOISE, LEAST_NOISE, Lane, noise_of
from worker.measure.statistics import impossible, least_time_us, median, quantile, relative_halfwidth
from worker.measure.timing import LEAST_SAMPLE_US, LEAST_SAMPLES, MOST_SAMPLES, Rotor, choose_batch, collect

ROOF = {"gflops": 100.0, "read_gbps": 10.0}


@pytest.mark.parametrize("bad", [0.0, -0.002, math.nan, math.inf])
def test_times_that_are_no_times_are_refused(bad: float) -> None:
    evidence = impossible([100.0, bad, 100.0], 1e6, 1e3, ROOF, cold=True)
    assert evidence is not None
    assert evidence["rule"] == "positive"
    assert impossible([], 1e6, 1e3, ROOF, cold=True) is not None


def test_times_faster_than_a_roof_are_refused_with_a_margin() -> None:
    # 1e8 flops at 100 GFLOP/s take 1000 us; 1e6 bytes at 10 GB/s take 100 us.
    assert impossible([960.0] * 5, 1e8, 1e6, ROOF, cold=True) is None
    evidence = impossible([940.0] * 5, 1e8, 1e6, ROOF, cold=True)
    assert evidence is not None
    assert evidence["rule"] == "compute_roof"
    evidence = impossible([90.0] * 5, 1e3, 1e6, ROOF, cold=True)
    assert evidence is not None
    assert evidence["rule"] == "memory_roof"
    # From the cache the memory roof means nothing.
    assert impossible([90.0] * 5, 1e3, 1e6, ROOF, cold=False) is None
    assert impossible([0.001] * 5, 1e8, 1e6, None, cold=True) is None
    # A roof of a busy machine is believed less.
    busy = {**ROOF, "contended": True}
    assert impossible([400.0] * 5, 1e8, 1e6, busy, cold=True) is None
    assert impossible([300.0] * 5, 1e8, 1e6, busy, cold=True) is not None
    assert least_time_us(1e8, 1e6, None, cold=True) == (0.0, None)


def test_one_sample_has_no_spread() -> None:
    assert median([3.0]) == 3.0
    assert quantile([3.0], 0.1) is None
    assert relative_halfwidth([3.0]) is None
    assert median([1.0, 2.0, 4.0, 8.0]) == 3.0
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert relative_halfwidth([0.0] * 10) is None
    width = relative_halfwidth([100.0] * 20)
    assert width == 0.0


class Told:
    """A kernel whose runs take as long as it is told: no stall of this machine comes between."""

    count, most_batch = 1, 1 << 20

    def __init__(self, run_us: float) -> None:
        self.run_us = run_us

    def sample(self, batch: int) -> float:
        return self.run_us


def test_short_runs_are_batched_until_the_clock_does_not_matter() -> None:
    for run_us in (0.06, 1.0, 7.0):
        for estimate in (0.0, 1e-6, 0.5):
            batch = choose_batch(Told(run_us), estimate)
            assert LEAST_SAMPLE_US <= batch * run_us < 4 * LEAST_SAMPLE_US
    for estimate in (0.0, 1e-6):
        assert choose_batch(Rotor([lambda: None]), estimate) > 1
    assert choose_batch(Rotor([lambda: None]), 1000.0) == 1


def test_runs_go_round_the_sets_and_flush_between_rounds() -> None:
    told: list[str] = []
    rotor = Rotor([lambda: told.append("a"), lambda: told.append("b"), lambda: told.append("c")])
    rotor.sample(2)
    rotor.sample(2)
    assert told == ["a", "b", "c", "a"]
    told.clear()
    flushing = Rotor([lambda: told.append("a"), lambda: told.append("b")], lambda: told.append("flush"))
    assert flushing.most_batch == 2
    for _ in range(3):
        flushing.sample(1)
    assert told == ["a", "b", "flush", "a"]


def test_sampling_stops_when_it_is_sure_or_out_of_budget() -> None:
    steady = collect(Rotor([lambda: time.sleep(0.0005)]), CpuWatch(1), estimate_us=500.0, budget_s=0.2)
    assert LEAST_SAMPLES <= len(steady.kept()) <= 2 * MOST_SAMPLES
    started = time.monotonic()
    slow = collect(Rotor([lambda: time.sleep(0.03)]), CpuWatch(1), estimate_us=30_000.0, budget_s=0.05)
    assert time.monotonic() - started < 1.5
    assert len(slow.kept()) >= LEAST_SAMPLES
    assert slow.to_json()["q10_us"] is not None


def test_a_much_slower_one_is_culled_after_two_samples() -> None:
    timing = collect(Rotor([lambda: time.sleep(0.001)]), CpuWatch(1), estimate_us=1000.0, best_us=500.0)
    assert timing.culled
    assert len(timing.samples_us) == 2
    again = Rotor([lambda: time.sleep(0.001)])
    kept = collect(again, CpuWatch(1), estimate_us=1000.0, best_us=5000.0, budget_s=0.02)
    assert not kept.culled


def test_waiting_for_a_cpu_is_seen() -> None:
    """A process that competes for the CPU it is pinned to is told so; the test makes the competitor."""
    cpus = os.sched_getaffinity(0)
    one = {min(cpus)}
    loop = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    os.sched_setaffinity(0, one)
    rival = subprocess.Popen([sys.executable, "-c", loop])
    try:
        time.sleep(0.3)
        before = machine.snapshot()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        found = machine.between(before, machine.snapshot(), 1)
    finally:
        os.sched_setaffinity(0, cpus)
        rival.kill()
        rival.wait()
    assert found.disturbed() is not None
    assert found.involuntary > 0


def test_what_counts_as_disturbed() -> None:
    quiet = Disturbance(1.0, 0.0, 0.01, 3, 0.001, 200.0)
    assert quiet.disturbed() is None
    assert Disturbance(1.0, 0.1, 0.0, 0, 0.0, 200.0).disturbed() == "steal"
    assert Disturbance(1.0, 0.0, 0.5, 0, 0.0, 200.0).disturbed() == "other processes"
    assert Disturbance(1.0, 0.0, 0.0, 0, 0.25, 200.0).disturbed() == "waited for a CPU"
    assert Disturbance(1.0, 0.0, 0.0, 900, None, 200.0).disturbed() == "involuntary switches"
    # Too short for a clock of 10 ms ticks.
    assert Disturbance(0.01, 0.5, 0.5, 0, 0.0, 2.0).disturbed() is None


def test_rotation_is_at_least_twice_the_cache_with_a_floor() -> None:
    cold, warm = Policy.parse({"cache": "cold"}), Policy.parse({"cache": "warm"})
    free = 64 << 30
    for set_bytes, llc in ((4 << 20, 32 << 20), (67 << 20, 32 << 20), (300 << 20, 1 << 20), (1 << 22, None)):
        turns = rotation(cold, set_bytes, llc, free)
        assert turns.sets >= 2
        assert turns.sets * set_bytes >= max(FLOOR_BYTES, 2 * (llc or 0))
        assert turns.flush_bytes == 0
    tiny = rotation(cold, 1000, 32 << 20, free)
    assert tiny.sets == MOST_SETS
    assert tiny.flush_bytes >= 64 << 20
    assert rotation(warm, 1000, 32 << 20, free).sets == 1
    # Little memory: fewer sets, and the rest of the cache is flushed.
    assert rotation(cold, 30 << 20, 32 << 20, 40 << 20).flush_bytes > 0
    with pytest.raises(MemoryError):
        rotation(cold, 30 << 20, 32 << 20, 10 << 20)
    with pytest.raises(ValueError, match="lukewarm"):
        Policy.parse({"cache": "lukewarm"})


def test_limits_of_one_run() -> None:
    assert run_limit_s(1e6, 1e6, None) == LEAST_S
    assert run_limit_s(1e6, 1e6, 100.0) == LEAST_S
    assert run_limit_s(1e6, 1e6, 500_000.0) == 10.0
    assert run_limit_s(1e15, 1e12, None) == MOST_S


def test_noise_is_what_the_twin_shows() -> None:
    order = {"so_path": "x", "plan": {"a": 1}}
    one = Lane("best", "finalist", order)
    twin = Lane("twin", "twin", dict(order))
    other = Lane("other", "finalist", {"so_path": "y", "plan": {"a": 1}})
    assert noise_of([one, other])["relative"] == CAUTIOUS_NOISE
    one.rounds = [100.0, 110.0, 105.0, None, 100.0, 100.0]
    twin.rounds = [100.0, 110.0, 105.0, 100.0, 100.0, 100.0]
    other.rounds = [200.0] * 6
    quiet = noise_of([other, one, twin])
    assert quiet["pair"] == ["best", "twin"]
    assert quiet["rounds"] == 5
    assert quiet["relative"] == LEAST_NOISE
    twin.rounds = [value * 1.08 if value is not None else None for value in twin.rounds]
    assert noise_of([one, twin])["relative"] == pytest.approx(0.08)
    twin.failure = {"reason": "crash"}
    assert noise_of([one, twin])["pair"] is None


def test_oom_counter_is_read(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    assert oom_kills(tmp_path) == 3


def test_threads_that_still_spin_are_waited_for() -> None:
    """OpenBLAS's spin for up to 110 ms after a product, on another CPU: they look idle between two ticks."""
    data = bytes(1 << 20)
    until = time.monotonic() + 0.15

    def spin() -> None:
        while time.monotonic() < until:
            hashlib.sha256(data).digest()  # without the interpreter's lock, as a BLAS thread

    thread = threading.Thread(target=spin)
    thread.start()
    machine.wait_until_idle()
    assert not thread.is_alive()
    assert time.monotonic() >= until
    assert machine.wait_until_idle() < 0.1
