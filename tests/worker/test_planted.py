"""Is every planted fault caught under its own name, and does a good kernel pass right after it?

One measuring process serves all of these tests in turn, so each also shows that the fault before it was not
blamed on, and did not disturb, the next candidate (AT-01, AT-02, AT-37).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rooftile.device import local_cpu
from rooftile.plan import SizeRange
from rooftile.problem import Gemm
from support.planted import FAULTS, Built, plan

from service.store.enums import TrialReason, TrialState
from service.store.records import Failed, Measured
from worker.errors import TrialCancelled
from worker.measure.session import MeasureSession, Tools

Plant = Callable[..., Built]
Trial = Callable[..., Measured | Failed]

PROBLEM = Gemm(8, 512, 512, "f32")
POLICY = {"cache": "cold", "launch": "eager"}
HANG = 'if (thread == 0) for (;;) __asm__ volatile("pause");'


@pytest.fixture
def trial(session: MeasureSession, pool_path: Path) -> Trial:
    def run(built: Built, problem: Gemm = PROBLEM, **more: Any) -> Measured | Failed:
        return session.trial(problem, built.plan, built.so_path, pool_path, POLICY, 11, **more)

    return run


@pytest.fixture(scope="session")
def good(plant: Plant) -> Built:
    return plant()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_name_and_the_next_candidate_is_fine(
    name: str, plant: Plant, trial: Trial, good: Built
) -> None:
    fault = FAULTS[name]
    outcome = trial(plant(fault.holes))
    if not fault.reason:
        assert isinstance(outcome, Measured), outcome
    else:
        assert isinstance(outcome, Failed), outcome
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, TrialReason(fault.reason)), (
            outcome.evidence
        )
        assert fault.says in str(outcome.evidence["message"])
        if outcome.verdict is not None:
            assert not outcome.verdict.passed
    after = trial(good, best_us=1e9)
    assert isinstance(after, Measured), after
    assert after.verdict.passed


def test_failures_in_a_row_replace_the_measuring_process(
    plant: Plant, tools: Tools, pool_path: Path, good: Built
) -> None:
    """Candidates are forked from it: if it is ill, every schedule would be blamed (AT-07)."""
    crash = plant(FAULTS["null pointer"].holes)
    with MeasureSession(local_cpu().key, tools=tools, budget_s=0.02) as session:

        def run(built: Built) -> Measured | Failed:
            return session.trial(PROBLEM, built.plan, built.so_path, pool_path, POLICY, 11)

        for built in (crash, crash, crash, good, crash, crash, crash):
            run(built)
        before = session.child_pid
        assert session.restarts == 0  # one that ran says that the process is well
        run(crash)
        assert session.restarts == 1
        assert isinstance(run(good), Measured)
        assert session.child_pid != before


def test_a_good_kernel_has_all_the_evidence(trial: Trial, good: Built) -> None:
    outcome = trial(good)
    assert isinstance(outcome, Measured)
    verdict, measurement = outcome.verdict, outcome.measurement
    cases = {str(check["case"]): check for check in verdict.checks}
    assert {"main/end", "main/start", "ragged", "pitched", "row", "column", "k0", "batched"} <= cases.keys()
    assert cases["after timing"]["passed"]
    assert not any("skipped" in check for check in cases.values())
    assert len(set(verdict.seeds)) > 5
    assert verdict.max_error is not None
    assert verdict.bound is not None
    assert 0 < verdict.max_error < verdict.bound
    assert len(measurement.samples_us) >= 5
    assert measurement.q10_us is not None
    assert measurement.q90_us is not None
    assert measurement.q10_us <= measurement.median_us <= measurement.q90_us
    assert measurement.runs >= len(measurement.samples_us)
    rotation = measurement.environment["rotation"]
    assert rotation["sets"] * rotation["set_bytes"] + rotation["flush_bytes"] >= 64e6
    assert {"load", "steal_share", "involuntary_switches", "threads"} <= measurement.environment.keys()
    assert outcome.device_s is not None


def test_the_same_seed_gives_the_same_inputs_and_errors(trial: Trial, good: Built) -> None:
    one, other = trial(good, best_us=1e9), trial(good, best_us=1e9)
    assert isinstance(one, Measured)
    assert isinstance(other, Measured)
    assert one.verdict.max_error == other.verdict.max_error
    assert one.verdict.seeds == other.verdict.seeds


def test_a_hang_is_killed_at_its_limit_and_the_next_time_is_clean(
    plant: Plant, trial: Trial, good: Built
) -> None:
    alone = trial(good)
    started = time.monotonic()
    outcome = trial(plant({"before": HANG}), best_us=500.0)
    took = time.monotonic() - started
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.HANG
    assert 1.9 < took < 6.0
    after = trial(good)
    assert isinstance(alone, Measured)
    assert isinstance(after, Measured)
    # AT-10: the hanging one is gone before the next begins. Its two spinning threads would double the time.
    clean = min(alone.measurement.samples_us)
    assert min(after.measurement.samples_us) < 1.8 * clean


def test_a_hang_while_it_is_timed_is_a_hang(plant: Plant, trial: Trial) -> None:
    built = plant({"before": 'if (calls > 25 && thread == 0) for (;;) __asm__ volatile("pause");'})
    # Far above its time: on a machine that is busy it would else be culled before the call that hangs.
    outcome = trial(built, best_us=50_000.0)
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.HANG


def test_cancel_takes_effect_within_a_second(plant: Plant, trial: Trial, good: Built) -> None:
    begun = time.monotonic()
    with pytest.raises(TrialCancelled):
        trial(plant({"before": HANG}), cancelled=lambda: time.monotonic() - begun > 0.6)
    assert time.monotonic() - begun < 2.0
    assert isinstance(trial(good, best_us=1e9), Measured)


def test_a_much_slower_one_is_culled_and_still_recorded(plant: Plant, trial: Trial) -> None:
    slow = plant({"before": "for (volatile long w = 0; w < 4000000; w++) {}"})
    outcome = trial(slow, best_us=500.0)
    assert isinstance(outcome, Measured)
    assert outcome.culled
    assert outcome.verdict.passed
    assert 1 <= len(outcome.measurement.samples_us) <= 2
    assert outcome.measurement.median_us > 575.0


def test_a_time_that_beats_the_roof_is_no_time(
    plant: Plant, pool_path: Path, good: Built, tools: Tools
) -> None:
    # No tool for a second look at the roof: what it says is final.
    bare = Tools(guard=tools.guard)
    low = {"gflops": 0.001, "read_gbps": 0.001, "threads": local_cpu().cores}
    with MeasureSession(local_cpu().key, tools=bare, roof=low, budget_s=0.02) as session:
        outcome = session.trial(PROBLEM, good.plan, good.so_path, pool_path, POLICY, 11)
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.INVALID_TIME
    assert "roof" in str(outcome.evidence["message"])


def test_a_roof_that_was_measured_too_low_is_measured_again(
    pool_path: Path, good: Built, tools: Tools
) -> None:
    low = {"gflops": 0.001, "read_gbps": 0.001, "threads": local_cpu().cores}
    with MeasureSession(local_cpu().key, tools=tools, roof=low, budget_s=0.02) as session:
        outcome = session.trial(PROBLEM, good.plan, good.so_path, pool_path, POLICY, 11)
        assert isinstance(outcome, Measured)
        assert session.roof is not None
        assert session.roof["gflops"] > 1.0
        assert session.roof["cold_check"]["cold_us"] > 0.0


def test_a_plan_that_is_not_for_the_problem_is_rejected(plant: Plant, trial: Trial, arch: str) -> None:
    outcome = trial(plant(None, plan(arch, m=SizeRange(1, 4))))
    assert isinstance(outcome, Failed)
    assert (outcome.state, outcome.reason) == (TrialState.REJECTED, TrialReason.PLAN_INVALID)


def test_neighbours_outside_the_plans_range_are_skipped_and_say_so(
    plant: Plant, trial: Trial, arch: str
) -> None:
    wrong_at_other_m = {"last": "if (m != 8) row[0] += 1.0f;"}
    outcome = trial(plant(wrong_at_other_m, plan(arch, m=SizeRange(8, 8))), best_us=1e9)
    assert isinstance(outcome, Measured)
    skipped = [check for check in outcome.verdict.checks if "skipped" in check]
    assert len(skipped) >= 8
    assert "m = " in str(skipped[0]["skipped"])
    everywhere = trial(plant(wrong_at_other_m))
    assert isinstance(everywhere, Failed)
    assert everywhere.reason is TrialReason.WRONG_RESULT


def test_a_plan_may_say_that_it_is_not_deterministic(plant: Plant, trial: Trial, arch: str) -> None:
    holes = FAULTS["differs from run to run"].holes
    outcome = trial(plant(holes, plan(arch, deterministic=False)), best_us=1e9)
    assert isinstance(outcome, Measured), outcome


def test_layouts_epilogues_and_a_plan_without_them(plant: Plant, trial: Trial, good: Built) -> None:
    """A kernel that ignores the epilogue that its problem has is wrong."""
    outcome = trial(good, Gemm(8, 64, 64, "f32", epilogue={"bias": "n"}))
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.WRONG_RESULT
    outcome = trial(good, Gemm(8, 64, 64, "f32", layout={"b": "nk"}))
    assert isinstance(outcome, Failed)
    assert outcome.reason in (TrialReason.WRONG_RESULT, TrialReason.OUT_OF_BOUNDS)


def test_a_problem_that_does_not_fit_is_out_of_memory_and_the_next_one_works(
    trial: Trial, good: Built
) -> None:
    outcome = trial(good, Gemm(500_000, 500_000, 8, "f32"))
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.OUT_OF_MEMORY
    assert isinstance(trial(good, best_us=1e9), Measured)


def test_a_file_that_is_no_kernel_is_a_launch_error(trial: Trial, good: Built, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not an artifact")
    outcome = trial(Built(good.artifact, broken, good.plan))
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.LAUNCH_ERROR


def test_a_measuring_process_that_dies_is_replaced(
    session: MeasureSession, trial: Trial, good: Built
) -> None:
    assert isinstance(trial(good, best_us=1e9), Measured)
    pid = session.child_pid
    assert pid is not None
    os.kill(pid, 9)
    time.sleep(0.05)
    assert isinstance(trial(good, best_us=1e9), Measured)
    assert session.child_pid != pid


def test_warm_is_another_policy(session: MeasureSession, pool_path: Path, good: Built) -> None:
    outcome = session.trial(PROBLEM, good.plan, good.so_path, pool_path, {"cache": "warm"}, 11)
    assert isinstance(outcome, Measured)
    assert outcome.measurement.policy == {"cache": "warm", "launch": "eager"}
    assert outcome.measurement.environment["rotation"]["sets"] == 1


def test_a_tiny_kernel_has_a_time(session: MeasureSession, pool_path: Path, good: Built) -> None:
    tiny = Gemm(1, 4, 4, "f32")
    outcome = session.trial(tiny, good.plan, good.so_path, pool_path, POLICY, 11)
    assert isinstance(outcome, Measured)
    assert outcome.measurement.environment["rotation"]["flush_bytes"] >= 64e6
    assert 0.0 < outcome.measurement.median_us < 1000.0
