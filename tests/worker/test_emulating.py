"""Does the emulate worker prove real kernels, find planted faults, and survive whatever can go wrong?

Real compiles, real PTX, the real emulator. What is planted is planted in the PTX: that is what is run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rooftile.problem import Gemm, parse_problem
from sqlalchemy import text

from search_space.device import Device
from search_space.registry import get_family
from service.bus import Doorbell, HostGate
from service.jobs import control
from service.jobs.reaper import Reaper
from service.jobs.submit import submit
from service.settings import Settings
from service.store import emulation_claims, emulations, jobs, quarantines, trials
from service.store.database import Database
from service.store.enums import (
    EmulationState,
    JobProblemState,
    JobState,
    ProposalSource,
    TrialReason,
    TrialState,
    VerdictKind,
    WorkerKind,
)
from service.store.models import Emulation
from service.store.records import Compiled, NewTrial, TrialDetail
from worker.compile import Artifact, compile_kernel
from worker.emulating import EmulateWorker
from worker.keeper import Keeper
from worker.verify.proof import ProofLimits

DEVICE = Device.for_arch("sm_80")
PROBLEM = {"op": "gemm", "m": 256, "n": 256, "k": 256, "dtype": "f16"}
FAMILY: Any = get_family("gemm_sm80")


@dataclass(frozen=True)
class Built:
    """The default schedule of a small problem, compiled."""

    problem: Gemm
    schedule: Any
    artifact: Artifact

    @property
    def ptx(self) -> bytes:
        assert self.artifact.ptx is not None
        return self.artifact.ptx


@pytest.fixture(scope="module")
def built(worker_home: Path) -> Built:
    problem = parse_problem(PROBLEM)
    assert isinstance(problem, Gemm)
    schedule = FAMILY.default(problem, DEVICE)
    return Built(problem, schedule, compile_kernel(FAMILY.build(problem, DEVICE, schedule), home=worker_home))


@dataclass
class Bench:
    """A worker over a database in which one trial for sm_80 waits for its verdict."""

    database: Database
    worker: EmulateWorker
    keeper: Keeper
    gate: HostGate
    trial_id: int
    job_id: int

    def detail(self) -> TrialDetail:
        with self.database.read() as s:
            found = trials.detail(s, self.trial_id)
        assert found is not None
        return found


@pytest.fixture
def bench(sqlite_url: str, tmp_path: Path, built: Built) -> Iterator[Any]:
    database = Database(sqlite_url, name="rooftile-test")
    made: list[Keeper] = []

    def make(ptx: bytes | None = None, **limits: Any) -> Bench:
        trial_id, job_id = waiting(database, built, built.ptx if ptx is None else ptx)
        keeper = Keeper(database, WorkerKind.EMULATE)
        keeper.start()
        made.append(keeper)
        gate = HostGate(tmp_path)
        settings = Settings(home=tmp_path / "home", database_url=sqlite_url)
        worker = EmulateWorker(
            database, gate, Doorbell(settings), keeper, tmp_path, limits=ProofLimits(**limits)
        )
        return Bench(database, worker, keeper, gate, trial_id, job_id)

    yield make
    for keeper in made:
        keeper.stop()
    database.close()


def waiting(database: Database, built: Built, ptx: bytes, **more: Any) -> tuple[int, int]:
    """A running job whose first trial is compiled to this PTX."""
    body = {"problem": PROBLEM, "target": {"arch": "sm_80"}, "force": True, **more}
    with database.begin() as s:
        job, _ = submit(s, body)
        (row,) = jobs.problems(s, job.id)
        jobs.move(s, job.id, JobState.RUNNING)
        jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        schedule = built.schedule
        new = NewTrial(schedule.to_json(), schedule.key, FAMILY.name, ProposalSource.DEFAULT, 1.0)
        (trial,) = trials.propose(s, row.id, [new])
        (claim,) = trials.claim_compile(s, "compiler", 1, 60, ["sm_80"])
        artifact = built.artifact
        outcome = Compiled(
            artifact_sha256=artifact.sha256,
            artifact_bytes=artifact.data,
            recipe=artifact.recipe,
            pool_sha256=None,
            plan=FAMILY.plan(built.problem, DEVICE, schedule).to_json(),
            toolchain=artifact.toolchain,
            resources=artifact.resources,
            log="",
            compile_s=0.1,
            ptx=ptx,
            structure=FAMILY.structure(built.problem, DEVICE, schedule),
        )
        assert trials.finish_compile(s, claim.claim_id, outcome)
    return trial.id, job.id


def test_a_real_kernel_is_proven_with_counters(bench: Any) -> None:
    one: Bench = bench()
    assert one.worker.step()
    assert not one.worker.step()
    found = one.detail()
    assert (found.trial.state, found.trial.reason) == (TrialState.RANKED, None), found.evidence
    (verdict,) = found.verdicts
    assert (verdict.kind, verdict.passed) == (VerdictKind.EMULATED, True)
    assert {check["order"] for check in verdict.checks} == {"early", "late"}
    assert any(check["k"] == 0 for check in verdict.checks)
    assert found.emulation is not None
    assert found.emulation.counters is not None
    (sums,) = found.emulation.counters["roles"].values()
    assert sums["bytes"]["global_to_shared"] > 0
    assert sums["instructions"]["matrix"] > 0
    assert found.emulation.max_error is not None
    assert found.emulation.bound is not None
    assert 0 < found.emulation.max_error < found.emulation.bound


def test_a_dropped_wait_is_found_at_its_line_and_quarantined(bench: Any, built: Built) -> None:
    broken, count = re.subn(rb"\tcp\.async\.wait_group \d+;", b"\t", built.ptx)
    assert count > 0
    one: Bench = bench(broken)
    assert one.worker.step()
    found = one.detail()
    assert (found.trial.state, found.trial.reason) == (TrialState.FAILED, TrialReason.RACE), found.evidence
    fault = found.evidence["faults"][0]
    assert fault["kind"] == "race"
    assert fault["file"].startswith("/rooftile/kernels/cuda/")
    assert fault["line"] > 0
    assert fault["buffer"]
    assert {"warp", "stage"} <= set(fault)
    with one.database.read() as s:
        assert [row.trial_id for row in quarantines.listing(s)] == [one.trial_id]


def test_a_wrong_number_is_found_where_nothing_is_accused(bench: Any, built: Built) -> None:
    broken, count = re.subn(rb"(\tmul\.\S*f32 [^;]*), %f\d+;", rb"\1, 0f40000000;", built.ptx, count=1)
    assert count == 1
    one: Bench = bench(broken)
    assert one.worker.step()
    found = one.detail()
    assert (found.trial.state, found.trial.reason) == (TrialState.FAILED, TrialReason.WRONG_RESULT)
    assert "elements are wrong" in found.evidence["message"]
    assert found.evidence["on"]["seed"] >= 0


@pytest.mark.parametrize("ptx", [b"\x7f\x00 not PTX at all {", b""], ids=["noise", "empty"])
def test_corrupt_ptx_is_a_named_failure_and_the_worker_lives(bench: Any, ptx: bytes) -> None:
    one: Bench = bench(ptx)
    assert one.worker.step()
    found = one.detail()
    assert (found.trial.state, found.trial.reason) == (TrialState.FAILED, TrialReason.NOT_EMULATED)
    assert found.evidence["message"]
    assert "Traceback" not in str(found.evidence)
    with one.database.read() as s:
        assert quarantines.listing(s) == []


def test_an_unknown_instruction_is_told_with_its_line(bench: Any, built: Built) -> None:
    lines = built.ptx.split(b"\n")
    at = next(i for i, line in enumerate(lines) if b"\tmov." in line)
    lines[at] = b"\tfrobnicate.b32 %r1, %r2;"
    one: Bench = bench(b"\n".join(lines))
    assert one.worker.step()
    found = one.detail()
    assert found.trial.reason is TrialReason.NOT_EMULATED
    assert "frobnicate" in found.evidence["message"]
    assert str(at + 1) in found.evidence["message"]


def endless(ptx: bytes) -> bytes:
    """A kernel that never leaves its first block."""
    body = re.search(rb"\.entry [^{]*\{", ptx)
    assert body is not None
    end = body.end()
    return ptx[:end] + b"\n$forever:\n\tbra.uni $forever;\n" + ptx[end:]


def test_what_never_ends_is_killed_by_its_own_limit_or_by_ours(bench: Any, built: Built) -> None:
    one: Bench = bench(endless(built.ptx), run_s=0.5)
    assert one.worker.step()
    found = one.detail()
    assert (found.trial.state, found.trial.reason) == (TrialState.FAILED, TrialReason.EMULATE_TIMEOUT)
    started = time.monotonic()
    one = bench(endless(built.ptx), seconds=1.0)
    assert one.worker.step()
    assert time.monotonic() - started < 10.0
    found = one.detail()
    assert found.trial.reason is TrialReason.EMULATE_TIMEOUT
    assert "killed after 1 s" in found.evidence["message"]
    with one.database.read() as s:
        assert quarantines.listing(s) == []  # nothing was said about the kernel


def test_memory_is_limited(bench: Any) -> None:
    one: Bench = bench(memory_bytes=160 << 20)
    assert one.worker.step()
    found = one.detail()
    assert found.trial.state is TrialState.FAILED
    assert found.trial.reason in (TrialReason.EMULATE_MEMORY, TrialReason.EMULATE_CRASH), found.evidence


def test_a_run_that_somebody_kills_is_done_once_more(bench: Any, built: Built) -> None:
    """As a system short of memory does: that says nothing of the schedule."""
    one: Bench = bench()
    thread = threading.Thread(target=one.worker.step)
    thread.start()
    os.kill(child_of_ours(), signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert one.detail().trial.state is TrialState.RANKED, one.detail().evidence


def test_one_killed_twice_has_a_name_and_no_third_run(bench: Any, built: Built) -> None:
    one: Bench = bench(endless(built.ptx))
    thread = threading.Thread(target=one.worker.step)
    thread.start()
    first = child_of_ours()
    os.kill(first, signal.SIGKILL)
    os.kill(child_of_ours(beside=first), signal.SIGKILL)
    thread.join(10)
    assert not thread.is_alive()
    found = one.detail()
    assert found.trial.reason is TrialReason.EMULATE_CRASH
    assert "SIGKILL" in found.evidence["message"]


def test_one_that_crashes_by_itself_is_not_run_again(bench: Any, built: Built) -> None:
    one: Bench = bench(endless(built.ptx))
    thread = threading.Thread(target=one.worker.step)
    thread.start()
    os.kill(child_of_ours(), signal.SIGSEGV)  # its own doing would come again
    thread.join(10)
    assert not thread.is_alive()
    found = one.detail()
    assert found.trial.reason is TrialReason.EMULATE_CRASH
    assert "SIGSEGV" in found.evidence["message"]


def test_a_measurement_gets_the_host_while_a_run_is_under_way(bench: Any, built: Built) -> None:
    one: Bench = bench(endless(built.ptx), seconds=3.0)
    thread = threading.Thread(target=one.worker.step)
    thread.start()
    child = child_of_ours()
    time.sleep(0.3)
    asked = time.monotonic()
    with one.gate.exclusive(timeout_s=5.0):
        assert time.monotonic() - asked < 2.0
        # It stands still for as long as somebody measures, and that time is not counted.
        before = cpu_ticks(child)
        time.sleep(4.0)
        assert cpu_ticks(child) - before <= 2
        assert thread.is_alive()
    thread.join(20)
    assert one.detail().trial.reason is TrialReason.EMULATE_TIMEOUT


def test_a_cancelled_job_ends_the_run_within_seconds(bench: Any, built: Built) -> None:
    one: Bench = bench(endless(built.ptx))
    thread = threading.Thread(target=one.worker.step)
    thread.start()
    child = child_of_ours()
    control.cancel(one.database, one.job_id)
    asked = time.monotonic()
    thread.join(10)
    assert not thread.is_alive()
    assert time.monotonic() - asked < 5.0
    assert not Path(f"/proc/{child}").exists()
    found = one.detail()
    assert found.trial.state is TrialState.CANCELLED
    assert found.emulation is not None
    assert found.emulation.state is EmulationState.QUEUED  # for whoever wants it next
    assert not one.worker.step()


def test_a_worker_that_is_told_to_stop_gives_its_run_back(bench: Any, built: Built, tmp_path: Path) -> None:
    """At once, without a loss, and with its process gone."""
    one: Bench = bench(endless(built.ptx))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    url = f"sqlite:///{tmp_path}/rooftile.db"
    environment = kept | {"ROOFTILE_HOME": str(tmp_path / "other"), "ROOFTILE_DATABASE_URL": url}
    process = subprocess.Popen([sys.executable, "-m", "worker", "emulate"], env=environment)
    try:
        wait_for(lambda: bool(children_of(process.pid)))
        children = [int(pid) for pid in children_of(process.pid)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: all(not alive(child) for child in children))
    with one.database.read() as s:
        run = emulations.of_trial(s, one.trial_id)
        row = s.get_one(Emulation, run.id) if run is not None else None
    assert row is not None
    assert (row.state, row.lease_owner, row.losses, row.attempt) == (EmulationState.QUEUED, None, 0, 1)


def test_two_workers_and_one_is_killed_in_the_midst(bench: Any, built: Built, tmp_path: Path) -> None:
    """The process of a worker dies with its run; the reaper gives the run back; the next one does it."""
    one: Bench = bench()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    url = f"sqlite:///{tmp_path}/rooftile.db"
    environment = kept | {"ROOFTILE_HOME": str(tmp_path / "other"), "ROOFTILE_DATABASE_URL": url}
    process = subprocess.Popen([sys.executable, "-m", "worker", "emulate"], env=environment)
    try:

        def running() -> bool:
            with one.database.read() as s:
                run = emulations.of_trial(s, one.trial_id)
            return run is not None and run.state is EmulationState.RUNNING

        wait_for(running)
        children = [int(pid) for pid in children_of(process.pid)]
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: all(not alive(child) for child in children))
    reaper = Reaper(one.database, "search-test", one_host=True)

    def given_back() -> bool:
        reaper.reap(time.monotonic())
        with one.database.read() as s:
            return emulation_claims.waits(s, ["sm_80"])

    wait_for(given_back)
    assert one.worker.step()
    found = one.detail()
    assert found.trial.state is TrialState.RANKED, found.evidence
    assert found.emulation is not None
    assert found.emulation.attempt == 2
    with one.database.read() as s:
        assert not emulation_claims.waits(s, ["sm_80"])


def test_ptx_that_is_gone_is_made_again(bench: Any) -> None:
    one: Bench = bench()
    with one.database.begin() as s:
        s.execute(text("UPDATE artifacts SET ptx = NULL, data = NULL, stored = 0"))
    assert one.worker.step()
    assert one.detail().trial.state is TrialState.RANKED


# ---------------------------------------------------------------- processes


def children_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def child_of_ours(beside: int | None = None) -> int:
    """The emulator's process, once a thread of this one has started it; another than `beside`."""
    found: list[int] = []

    def look() -> bool:
        for task in Path("/proc/self/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                if pid != beside and b"worker.verify.proof_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return bool(found)

    wait_for(look)
    return found[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
