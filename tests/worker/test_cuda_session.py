"""Does a GPU's session survive every candidate, blame the right one, and take honest times? On a host
backend."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rooftile.errors import DeviceError
from rooftile.gpu_detect import GpuReading, describe, local_gpus
from rooftile.plan import SizeRange
from rooftile.problem import Gemm, parse_problem
from support.host_backend import plan, write_cubin

from service.jobs.canary import SUSPICIOUS
from service.store.enums import EntrantRole, TrialReason, TrialState
from service.store.records import Failed, Measured, RaceOutcome
from worker.errors import DeviceMismatchError, DeviceUnhealthyError, TrialCancelled
from worker.measure import cuda_session, limits
from worker.measure.cuda_backend import verdict_of_status
from worker.measure.cuda_device import find_gpu
from worker.measure.cuda_problems import FLOOR_BYTES, MOST_SETS, device_rotation
from worker.measure.cuda_session import CudaSession
from worker.measure.cuda_watch import GpuChange, GpuState, GpuWatch, others_of, own_of, throttle_words
from worker.measure.policy import Policy
from worker.measure.session import RaceEntrant
from worker.verify.device_cases import device_mains

WARM = {"cache": "warm", "launch": "graph"}
COLD = {"cache": "cold", "launch": "graph"}
KEY = "gpu-2335-132sm-141g-p700"


def gemm(m: int = 24, n: int = 32, k: int = 40, **more: Any) -> Gemm:
    problem = parse_problem({"op": "gemm", "m": m, "n": n, "k": k, "dtype": "f32", **more})
    assert isinstance(problem, Gemm)
    return problem


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaSession]:
    """One for all: each test also shows that the one before left nothing behind."""
    folder = tmp_path_factory.mktemp("flags")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_LAUNCH_BLOCKING", "1")
        patch.setenv("ROOFTILE_TEST_OTHERS", str(folder / "others"))
        patch.setenv("ROOFTILE_TEST_BUSY", str(folder / "busy"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        with CudaSession(
            KEY, "GPU-test", backend="support.host_backend:make", budget_s=0.05, race_budget_s=0.4,
            idle_wait_s=0.5,
            roof={"gflops": {"f32": 67_000.0}, "read_gbps": 10.0},
        ) as one:  # fmt: skip
            yield one


def trial(
    session: CudaSession, path: Path, *, policy: Any = WARM, best_us: float | None = None, **what: Any
) -> Any:
    its_plan = what.pop("its_plan", None) or plan()
    return session.trial(gemm(), its_plan, write_cubin(path / "k.cubin", **what), None, policy, 7, best_us)


@pytest.mark.parametrize("policy", [COLD, {"cache": "warm", "launch": "eager"}])
def test_a_right_kernel_is_measured(session: CudaSession, tmp_path: Path, policy: dict[str, str]) -> None:
    us = 200.0 if policy["cache"] == "warm" else 20.0
    outcome = trial(session, tmp_path, us=us, policy=policy)
    assert isinstance(outcome, Measured), outcome
    assert outcome.verdict.passed
    names = [check["case"] for check in outcome.verdict.checks]
    assert {"main/end", "main/start", "k0", "batched", "after timing"} <= set(names)
    measurement = outcome.measurement
    assert us * 0.9 < measurement.median_us < 1000
    assert measurement.environment["method"] == "wall clock"
    assert measurement.environment["gpu"] == {"name": "host"}
    sets = measurement.environment["rotation"]["sets"]
    assert sets == 1 if policy["cache"] == "warm" else sets == MOST_SETS
    assert not measurement.contended


@pytest.mark.parametrize(
    ("fault", "reason", "says"),
    [
        ("wrong value", TrialReason.WRONG_RESULT, "elements are wrong"),
        ("writes an input", TrialReason.OUT_OF_BOUNDS, "read-only a"),
        ("illegal address", TrialReason.OUT_OF_BOUNDS, "cudaError 700"),
        ("refused", TrialReason.LAUNCH_ERROR, "cudaError 1"),
        ("out of memory", TrialReason.OUT_OF_MEMORY, "cudaError 2"),
        ("abort", TrialReason.CRASH, "SIGABRT"),
        ("stops after a while", TrialReason.NOT_WRITTEN, "were not written"),
    ],
)
def test_each_end_is_named_and_the_next_is_unharmed(
    session: CudaSession, tmp_path: Path, fault: str, reason: TrialReason, says: str
) -> None:
    outcome = trial(session, tmp_path, fault=fault, us=20.0)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.state) == (reason, TrialState.FAILED)
    assert says in str(outcome.evidence)
    after = trial(session, tmp_path, us=20.0)
    assert isinstance(after, Measured), after


def test_a_hang_is_killed_with_its_whole_group(
    session: CudaSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(trial(session, tmp_path), Measured)
    first = session.child_pid
    assert first is not None
    started = time.monotonic()
    outcome = trial(session, tmp_path, fault="hang", best_us=1.0)
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.HANG
    assert outcome.evidence["step"]["case"]["case"] == "main/end"
    assert time.monotonic() - started < limits.LEAST_S + 6
    assert not Path(f"/proc/{first}").exists()
    assert isinstance(trial(session, tmp_path), Measured)


def test_a_plan_that_is_not_for_the_problem_is_rejected(session: CudaSession, tmp_path: Path) -> None:
    outcome = trial(session, tmp_path, its_plan=plan(m=SizeRange(multiple_of=64)))
    assert isinstance(outcome, Failed)
    assert (outcome.state, outcome.reason) == (TrialState.REJECTED, TrialReason.PLAN_INVALID)
    assert "m = 24" in str(outcome.evidence)


def test_a_slow_one_is_culled_after_a_first_look(session: CudaSession, tmp_path: Path) -> None:
    outcome = trial(session, tmp_path, us=2000.0, best_us=100.0)
    assert isinstance(outcome, Measured)
    assert outcome.culled
    assert len(outcome.measurement.samples_us) == 2


def test_a_time_beyond_the_roof_is_refused(session: CudaSession, tmp_path: Path) -> None:
    roof, session.roof = session.roof, {"gflops": {"f32": 1e-3}, "read_gbps": 10.0}
    try:
        outcome = trial(session, tmp_path, us=20.0)
    finally:
        session.roof = roof
    assert isinstance(outcome, Failed)
    assert outcome.reason is TrialReason.INVALID_TIME
    assert outcome.evidence["rule"] == "compute_roof"


def test_other_processes_void_the_samples(session: CudaSession, tmp_path: Path) -> None:
    flag = Path(os.environ["ROOFTILE_TEST_OTHERS"])
    flag.touch()
    try:
        outcome = trial(session, tmp_path, us=100.0)
    finally:
        flag.unlink()
    assert isinstance(outcome, Measured)
    assert outcome.measurement.contended
    assert "other processes" in outcome.measurement.environment["disturbances"]


def test_cancelling(session: CudaSession, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(TrialCancelled):
        session.trial(
            gemm(), plan(), write_cubin(tmp_path / "k.cubin", fault="hang"), None, WARM, 7,
            cancelled=lambda: time.monotonic() - started > 0.5,
        )  # fmt: skip
    assert time.monotonic() - started < 8
    assert isinstance(trial(session, tmp_path), Measured)


@pytest.mark.parametrize(("fault", "reason"), [("", None), ("wrong value", "wrong_result")])
def test_verifying_alone(session: CudaSession, tmp_path: Path, fault: str, reason: str | None) -> None:
    cases = [replace(case, name=f"case {i}") for i, case in enumerate(device_mains(gemm(m=7, n=40), 3))]
    answer = session.verify(plan(), write_cubin(tmp_path / "k.cubin", fault=fault, us=1.0), cases)
    if reason is None:
        assert [check["passed"] for check in answer["checks"]] == [True, True]
        assert answer["checks"][0]["case"] == "case 0"
    else:
        assert answer["reason"] == reason


# -- races ------------------------------------------------------------------------------------------------


def entrants(folder: Path, **faults: str) -> list[RaceEntrant]:
    found = []
    for name, role, us in (
        ("best", EntrantRole.FINALIST, 100.0), ("twin", EntrantRole.TWIN, 100.0),
        ("default", EntrantRole.DEFAULT, 400.0), ("baseline", EntrantRole.BASELINE, 0.0),
    ):  # fmt: skip
        if role is EntrantRole.BASELINE:
            found.append(RaceEntrant(name, role))
            continue
        file = "best" if name == "twin" else name
        path = write_cubin(folder / f"{file}.cubin", us=us, fault=faults.get(file, ""))
        found.append(RaceEntrant(name, role, 1, plan(), path))
    return found


def test_a_race(session: CudaSession, tmp_path: Path) -> None:
    outcome = session.race(gemm(), entrants(tmp_path), WARM, 7, rounds=5)
    assert isinstance(outcome, RaceOutcome), outcome
    by_name = {one.name: one for one in outcome.entrants}
    assert [one.name for one in outcome.entrants] == ["best", "twin", "default", "baseline"]
    times = {name: one.measurement.median_us for name, one in by_name.items() if one.measurement is not None}
    assert times["best"] < times["default"]
    assert outcome.noise["pair"] == ["best", "twin"]
    facts = by_name["baseline"].measurement
    assert facts is not None
    assert len(facts.environment["round_medians_us"]) == 5
    # The fastest of the vendor's that is right; the wrong one is told and not taken.
    assert facts.environment["baseline"] == "fast"
    assert facts.environment["kernels"] == ["host"]
    tried = {row["name"]: row for row in facts.environment["tried"]}
    assert tried["wrong"]["failed"]["reason"] == "wrong_result"
    assert tried["slow"]["time_us"] > tried["fast"]["time_us"]
    assert by_name["baseline"].verdict is not None
    assert by_name["baseline"].verdict.passed


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong value", TrialReason.WRONG_RESULT),
        ("abort", TrialReason.CRASH),
    ],
)
def test_an_entrant_that_dies_does_not_end_the_race(
    session: CudaSession, tmp_path: Path, fault: str, reason: TrialReason
) -> None:
    outcome = session.race(gemm(), entrants(tmp_path, default=fault), WARM, 7, rounds=3)
    assert isinstance(outcome, RaceOutcome), outcome
    by_name = {one.name: one for one in outcome.entrants}
    failure = by_name["default"].failure
    assert failure is not None
    assert failure.reason is reason
    for name in ("best", "twin", "baseline"):
        assert by_name[name].measurement is not None


def test_a_baseline_that_there_is_not(session: CudaSession, tmp_path: Path) -> None:
    problem = gemm(epilogue={"activation": "silu"})
    outcome = session.race(problem, [entrants(tmp_path)[3]], WARM, 7, rounds=1)
    assert isinstance(outcome, RaceOutcome)
    assert outcome.entrants[0].failure is not None
    assert "no activation silu" in str(outcome.entrants[0].failure.evidence)


# -- health -----------------------------------------------------------------------------------------------


def test_a_device_that_is_busy_without_us_is_not_measured_on(
    session: CudaSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.close()
    flag = Path(os.environ["ROOFTILE_TEST_BUSY"])
    flag.write_text("100")
    try:
        with pytest.raises(DeviceUnhealthyError, match=r"100 % busy"):
            trial(session, tmp_path)
    finally:
        flag.unlink()


def test_a_canary_far_below_the_data_sheet(session: CudaSession, tmp_path: Path) -> None:
    session.close()
    roof, session.roof = session.roof, {"gflops": {}, "read_gbps": 30.0}
    try:
        with pytest.raises(DeviceUnhealthyError, match="this product has"):
            trial(session, tmp_path)
    finally:
        session.roof = roof


# -- pure parts -------------------------------------------------------------------------------------------


def state(**more: Any) -> GpuState:
    base: dict[str, Any] = {
        "at_s": 1.0, "sm_mhz": 1980, "memory_mhz": 3201, "power_w": 690.0, "temperature_c": 60,
        "reasons": 0, "others": 0, "others_percent": None,
    }  # fmt: skip
    return GpuState(**{**base, **more})


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({}, {}, None),
        ({}, {"sm_mhz": 1965}, None),
        ({}, {"sm_mhz": 1755}, "clock changed"),
        ({"reasons": 0x4}, {"sm_mhz": 1755}, None),
        ({"reasons": 0x1, "sm_mhz": 345}, {}, None),
        ({"sm_mhz": None}, {}, None),
        ({}, {"reasons": 0x20}, "thermal slowdown"),
        ({"reasons": 0x8 | 0x40}, {}, "hardware slowdown"),
        ({}, {"reasons": 0x1}, None),
        ({}, {"others": 1, "others_percent": 80}, "other processes"),
        ({}, {"others": 1, "others_percent": 2}, None),
        ({}, {"others": 1}, "other processes"),
        ({}, {"others": None}, None),
    ],
)
def test_what_disturbs(before: dict[str, Any], after: dict[str, Any], wanted: str | None) -> None:
    assert GpuChange(state(**before), state(**after)).disturbed() == wanted


def test_throttle_reasons_by_name() -> None:
    assert throttle_words(0x4 | 0x8) == ["hardware slowdown", "power cap"]
    assert throttle_words(0x400) == ["0x400"]
    assert throttle_words(None) == []


def test_who_else_is_there() -> None:
    nobody: frozenset[int] = frozenset()
    assert others_of([10, 11], 10, nobody) == 1
    assert others_of([10], 10, nobody) == 0
    assert others_of([11], 10, nobody) == 1, "ours is not in the list, and this is another"
    assert others_of([], 10, nobody) == 0
    # Not known which is ours: one of the new ones, if there is one.
    assert others_of([4711], None, nobody) == 0
    assert others_of([4711], None, frozenset([4711])) == 1
    assert others_of([4711, 4712], None, nobody) == 1
    assert others_of([], None, nobody) == 0
    assert [own_of(*seen) for seen in (([4711], 10), ([10, 11], 10), ([11, 12], 10), ([], 10))] == [
        4711, 10, None, None
    ]  # fmt: skip


class Nvml:
    """What NVML answers about processes, by its own functions' names; it knows nothing else."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        self.sm_percent: dict[int, int] = {}
        self.ended: list[tuple[int, int, int]] = []
        """Samples of processes that are gone: number, percent, time."""
        self.now_us = 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.sm_percent]

    def nvmlDeviceGetProcessUtilization(self, _handle: str, since_us: int) -> list[Any]:  # noqa: N802
        self.now_us += 1
        samples = [*self.ended, *((pid, percent, self.now_us) for pid, percent in self.sm_percent.items())]
        return [SimpleNamespace(pid=p, smUtil=u, timeStamp=at) for p, u, at in samples if at > since_us]

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any) -> None:
            raise self.NVMLError(name)

        return refuse


HOSTS_NUMBER = 2**22 + 4711
"""Of this process, where it runs in a container: no process here has it."""


@pytest.mark.parametrize("own", [os.getpid(), HOSTS_NUMBER], ids=["our number", "the host's number"])
def test_our_own_load_is_nobody_elses_whatever_nvml_calls_us(own: int) -> None:
    nvml = Nvml()
    nvml.sm_percent = {99: 0}  # as a window system
    nvml.ended = [(98, 100, 1)]  # the measuring process before this one
    watch = GpuWatch.of_uuid(nvml, "GPU-1", {})
    nvml.sm_percent[own] = 100
    watch.find_self()
    calm = watch.snapshot()
    assert (calm.others, calm.others_percent) == (1, 0)
    assert GpuChange(calm, calm).disturbed() is None
    nvml.sm_percent[99] = 60
    loud = watch.snapshot()
    assert (loud.others, loud.others_percent) == (1, 60)
    assert GpuChange(calm, loud).disturbed() == "other processes"


def test_where_we_cannot_be_told_from_others_their_load_is_not_known() -> None:
    nvml = Nvml()
    watch = GpuWatch.of_uuid(nvml, "GPU-1", {})
    nvml.sm_percent = {HOSTS_NUMBER: 100, HOSTS_NUMBER + 1: 0}  # both came while our context was made
    watch.find_self()
    state = watch.snapshot()
    assert (state.others, state.others_percent) == (1, None)
    assert GpuChange(state, state).disturbed() == "other processes"
    del nvml.sm_percent[HOSTS_NUMBER + 1]
    assert watch.snapshot().others == 0  # who is left is us
    # A driver that lists nobody says nothing.
    nvml.sm_percent = {}
    assert watch.snapshot().others == 0


@pytest.mark.parametrize(
    "status", [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999]
)
def test_an_error_of_cuda_that_stays_ends_the_process(status: int) -> None:
    """By driver_types.h the process is in an inconsistent state, or the device itself has failed."""
    reason, goes_on = verdict_of_status(status)
    assert not goes_on
    assert TrialReason(reason) in SUSPICIOUS | {TrialReason.MISALIGNED, TrialReason.TRAP}
    assert (reason == "device_lost") is (status < 300)


@pytest.mark.parametrize(
    ("status", "reason"), [(1, "launch_error"), (2, "out_of_memory"), (720, "launch_error")]
)
def test_one_that_is_about_its_launch_alone_does_not(status: int, reason: str) -> None:
    assert verdict_of_status(status) == (reason, True)


def test_rotation_covers_twice_the_cache() -> None:
    cold, warm = Policy.parse(COLD), Policy.parse(WARM)
    l2 = 60 << 20
    for size in (1 << 20, 10 << 20, 500 << 20):
        turns = device_rotation(cold, size, l2, 100 << 30)
        assert turns.sets * size >= 2 * l2
        assert turns.sets >= 2
        assert turns.flush_bytes == 0
    tiny = device_rotation(cold, 1000, l2, 100 << 30)
    assert (tiny.sets, tiny.flush_bytes) == (MOST_SETS, 2 * l2)
    assert device_rotation(cold, 1000, 1 << 20, 100 << 30).flush_bytes == FLOOR_BYTES
    assert device_rotation(warm, 1000, l2, 100 << 30).sets == 1
    with pytest.raises(MemoryError):
        device_rotation(cold, 100, l2, 50)


def test_finding_the_gpu() -> None:
    one = describe(
        GpuReading(
            0,
            "GPU-aa",
            "NVIDIA H200",
            0x233510DE,
            "0",
            (9, 0),
            16896,
            143771 << 20,
            700_000,
            "570",
            None,
            1980,
        )
    )
    other = describe(
        GpuReading(1, "GPU-bb", "NVIDIA L4", 0x27B810DE, "1", (8, 9), 7424, 23034 << 20, 72_000, "570")
    )
    assert find_gpu("auto", [one]).key == KEY
    assert find_gpu("GPU-bb", [one, other]).key.startswith("gpu-27b8-58sm")
    with pytest.raises(DeviceMismatchError, match="several kinds"):
        find_gpu("auto", [one, other])
    with pytest.raises(DeviceMismatchError, match="GPUs are gpu-2335"):
        find_gpu("gpu-2330-132sm-80g-p700", [one])
    roof = find_gpu("auto", [one]).roof()
    assert roof is not None
    assert roof["read_gbps"] == 4800
    # The boost clock of the data sheet is 1830 MHz; this one may run at 1980.
    assert roof["gflops"]["bf16"] == pytest.approx(989_400 * 1.98 / 1.83)
    unknown = describe(
        GpuReading(0, "GPU-cc", "NVIDIA X", 0xFFFF10DE, "0", (9, 0), 16896, 143771 << 20, 700_000, "570")
    )
    assert find_gpu("auto", [unknown]).roof() is None
    record = find_gpu("auto", [one]).record()
    assert (record.kind, record.arch, record.data["l2_bytes"]) == ("gpu", "sm_90a", 60 << 20)


def test_without_a_driver_the_gpu_is_refused_by_name() -> None:
    try:
        local_gpus()
    except DeviceError:
        pass
    else:
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceMismatchError, match=rf"{KEY} is not here: no NVIDIA driver"):
        find_gpu(KEY)
    with pytest.raises(DeviceMismatchError, match="A GPU is not here"):
        find_gpu()


def test_limits_are_for_candidates_alone() -> None:
    assert {"start", "open", "prepare"} == cuda_session._OURS
