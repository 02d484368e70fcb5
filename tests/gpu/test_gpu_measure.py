"""Does a session on this GPU survive what kernels do to it, and are its times those of the kernel?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rooftile.device import parse_device_key
from rooftile.problem import Gemm
from support import gpu_toy

from service.store.enums import EntrantRole, TrialReason
from service.store.records import Failed, Measured, RaceOutcome
from worker.measure.session import RaceEntrant

COLD = {"cache": "cold", "launch": "graph"}
PROBLEM = Gemm(128, 128, 128, "f32")


@pytest.fixture(scope="module")
def session(gpu: Any) -> Iterator[Any]:
    with gpu.local.session(budget_s=0.1, race_budget_s=1.0) as one:
        yield one


def trial(session: Any, gpu: Any, folder: Path, fault: str = "none", policy: Any = None, **more: Any) -> Any:
    _, path = gpu_toy.build(folder, gpu.arch, fault)
    return session.trial(PROBLEM, gpu_toy.plan(gpu.arch), path, None, policy or COLD, 5, **more)


def test_the_device_describes_itself(gpu: Any, session: Any) -> None:
    key = gpu.local.key
    assert str(parse_device_key(key)) == key
    assert gpu.local.identity.device_key.sms == gpu.runtime.facts(0).sm_count
    found = session.open()
    if found:
        assert found["l2_bytes"] > 1 << 20
        assert found["canary_gbs"] > 0


@pytest.mark.parametrize(
    "policy", [COLD, {"cache": "warm", "launch": "graph"}, {"cache": "cold", "launch": "eager"}]
)
def test_a_right_kernel_is_measured(gpu: Any, session: Any, folder: Path, policy: dict[str, str]) -> None:
    outcome = trial(session, gpu, folder, policy=policy)
    assert isinstance(outcome, Measured), outcome
    environment = outcome.measurement.environment
    assert 0.5 < outcome.measurement.median_us < 5000
    assert environment["state"]["sm_mhz"]
    assert ("graph" in environment["method"]) == (policy["launch"] == "graph")
    assert environment["host_us"] < 200


def test_warm_is_not_slower_than_cold(gpu: Any, session: Any, folder: Path) -> None:
    cold = trial(session, gpu, folder, policy=COLD)
    warm = trial(session, gpu, folder, policy={"cache": "warm", "launch": "graph"})
    assert warm.measurement.median_us < 1.1 * cold.measurement.median_us


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        ("wrong value", {TrialReason.WRONG_RESULT}),
        ("illegal address", {TrialReason.OUT_OF_BOUNDS}),
        ("trap", {TrialReason.CRASH, TrialReason.TRAP}),
        ("hang", {TrialReason.HANG}),
    ],
)
def test_each_end_is_named_and_the_next_is_unharmed(
    gpu: Any, session: Any, folder: Path, fault: str, reasons: set[TrialReason]
) -> None:
    outcome = trial(session, gpu, folder, fault, best_us=20.0)
    assert isinstance(outcome, Failed)
    assert outcome.reason in reasons, outcome
    after = trial(session, gpu, folder)
    assert isinstance(after, Measured), after


def test_a_race_with_the_vendor(gpu: Any, session: Any, folder: Path) -> None:
    _, path = gpu_toy.build(folder, gpu.arch)
    plan = gpu_toy.plan(gpu.arch)
    entrants = [
        RaceEntrant("toy", EntrantRole.DEFAULT, 1, plan, path),
        RaceEntrant("twin", EntrantRole.TWIN, 1, plan, path),
        RaceEntrant("baseline", EntrantRole.BASELINE),
    ]
    problem = Gemm(512, 512, 512, "f32")
    outcome = session.race(problem, entrants, COLD, 5, rounds=7)
    assert isinstance(outcome, RaceOutcome), outcome
    toy, twin, vendor = outcome.entrants
    assert toy.measurement is not None
    assert twin.measurement is not None
    assert vendor.measurement is not None, vendor.failure
    assert vendor.measurement.environment["tried"]
    assert toy.measurement.environment["kernels"] in (["gemm"], [])
    assert len(vendor.measurement.environment["kernels"]) <= 3
    assert vendor.measurement.median_us < toy.measurement.median_us
    assert twin.measurement.median_us == pytest.approx(toy.measurement.median_us, rel=0.1)
