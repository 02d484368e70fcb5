"""Do entrants of a race take turns in processes of their own, and is what goes wrong in one only its own?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rooftile.problem import Gemm
from support.planted import Built

from service.store.enums import EntrantRole, TrialReason
from service.store.records import EntrantResult, Failed, RaceOutcome
from worker.errors import TrialCancelled
from worker.measure.blas import HANDICAPS, clean_environment
from worker.measure.session import MeasureSession, RaceEntrant

Plant = Callable[..., Built]

PROBLEM = Gemm(8, 256, 256, "f32")
POLICY = {"cache": "cold", "launch": "eager"}


def entrant(name: str, role: str, built: Built, pool_path: Path, trial_id: int = 1) -> RaceEntrant:
    return RaceEntrant(name, role, trial_id, built.plan, built.so_path, pool_path)


def by_name(outcome: RaceOutcome | Failed) -> dict[str, EntrantResult]:
    assert isinstance(outcome, RaceOutcome), outcome
    return {one.name: one for one in outcome.entrants}


def test_finalists_twin_and_baseline_race_and_a_bad_one_only_loses_itself(
    session: MeasureSession, plant: Plant, pool_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A handicap in our own environment must not reach the Baseline's process.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    good, slow = plant(), plant({"before": "for (volatile long w = 0; w < 1500000; w++) {}"})
    outcome = session.race(
        PROBLEM,
        [
            entrant("best", "finalist", good, pool_path, 1),
            entrant("slow", "default", slow, pool_path, 2),
            entrant("wrong", "finalist", plant({"last": "row[0] += 1.0f;"}), pool_path, 3),
            entrant(
                "late crash",
                "finalist",
                plant({"before": "if (calls > 60) *(volatile int *)8 = 1;"}),
                pool_path,
                4,
            ),
            entrant("twin", "twin", good, pool_path, 1),
            RaceEntrant("numpy", "baseline"),
        ],
        POLICY,
        3,
        rounds=4,
    )
    found = by_name(outcome)
    assert isinstance(outcome, RaceOutcome)
    best, slow_one, baseline = found["best"], found["slow"], found["numpy"]
    for one in (best, slow_one, baseline, found["twin"]):
        assert one.failure is None, one
        assert one.measurement is not None
        assert one.verdict is not None
        assert one.verdict.passed
        rounds = one.measurement.environment["round_medians_us"]
        assert len(rounds) == 4
        assert all(value > 0 for value in rounds)
    assert best.measurement is not None
    assert slow_one.measurement is not None
    assert slow_one.measurement.median_us > 1.5 * best.measurement.median_us
    assert found["wrong"].failure is not None
    assert found["wrong"].failure.reason is TrialReason.WRONG_RESULT
    assert found["late crash"].failure is not None
    assert found["late crash"].failure.reason is TrialReason.CRASH
    assert found["twin"].role is EntrantRole.TWIN
    assert baseline.measurement is not None
    facts = baseline.measurement.environment
    assert facts["threads"] == session.threads
    assert facts["blas_architecture"] not in (None, "Prescott")
    assert outcome.noise["pair"] == ["best", "twin"]
    assert len(outcome.noise["ratios"]) == 4
    assert outcome.noise["relative"] > 0
    assert outcome.environment["rounds"] == 4


def test_a_race_may_have_one_entrant(session: MeasureSession, plant: Plant, pool_path: Path) -> None:
    outcome = session.race(PROBLEM, [entrant("canary", "default", plant(), pool_path)], POLICY, 3, rounds=3)
    (only,) = by_name(outcome).values()
    assert only.failure is None
    assert isinstance(outcome, RaceOutcome)
    assert outcome.noise["pair"] is None


def test_the_baseline_does_an_epilogue_too(session: MeasureSession) -> None:
    problem = Gemm(
        8,
        96,
        64,
        "f32",
        beta="any",
        layout={"b": "nk"},
        epilogue={"bias": "n", "activation": "silu", "residual": True},
    )
    (only,) = by_name(session.race(problem, [RaceEntrant("numpy", "baseline")], POLICY, 3, rounds=3)).values()
    assert only.failure is None
    assert only.verdict is not None
    assert only.verdict.passed


def test_a_race_can_be_cancelled(session: MeasureSession, plant: Plant, pool_path: Path) -> None:
    built = plant()
    entrants = [entrant(f"n{i}", "finalist", built, pool_path, i) for i in range(3)]
    started = time.monotonic()
    with pytest.raises(TrialCancelled):
        session.race(
            PROBLEM, entrants, POLICY, 3, rounds=10_000, cancelled=lambda: time.monotonic() - started > 1.0
        )
    assert time.monotonic() - started < 4.0


def test_nobody_is_left_after_a_race(session: MeasureSession, plant: Plant, pool_path: Path) -> None:
    session.race(
        PROBLEM,
        [entrant("a", "finalist", plant(), pool_path), RaceEntrant("numpy", "baseline")],
        POLICY,
        3,
        rounds=1,
    )
    assert session.child_pid is not None
    assert children_of(session.child_pid) == []


def test_candidates_die_with_their_measuring_process(
    plant: Plant, pool_path: Path, session: MeasureSession
) -> None:
    """CE-26: SIGKILL of the parent leaves no grandchild spinning."""
    import threading

    hang = plant({"before": 'if (thread == 0) for (;;) __asm__ volatile("pause");'})
    result: list[object] = []

    def run() -> None:
        try:
            session.trial(
                PROBLEM,
                hang.plan,
                hang.so_path,
                pool_path,
                POLICY,
                3,
                limit_s=20.0,
                cancelled=lambda: bool(result),
            )
        except Exception as error:  # noqa: BLE001 - looked at below
            result.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    deadline = time.monotonic() + 10.0
    grandchildren: list[int] = []
    while not grandchildren and time.monotonic() < deadline:
        time.sleep(0.02)
        if session.child_pid is not None:
            grandchildren = children_of(session.child_pid)
    assert grandchildren
    assert session.child_pid is not None
    os.kill(session.child_pid, 9)
    result.append("stop")
    while any(alive(pid) for pid in grandchildren) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in grandchildren)
    worker.join(15.0)
    assert not worker.is_alive()


def test_the_clean_environment_has_no_handicaps() -> None:
    dirty = dict.fromkeys(HANDICAPS, "x") | {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    clean = clean_environment(6, dirty)
    assert not set(HANDICAPS) & clean.keys()
    assert clean["PATH"] == "/bin"
    assert clean["OMP_NUM_THREADS"] == clean["OPENBLAS_NUM_THREADS"] == "6"


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
