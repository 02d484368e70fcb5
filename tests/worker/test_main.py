"""Do the workers as processes do a job's work, stop when told, and say why they cannot start?"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rooftile.device import local_cpu
from rooftile.problem import Gemm

from bench.chaotic.process import children_of
from search_space.device import local_device
from search_space.registry import get_family
from service.paths import device_lock_path, open_lock_file
from service.store import artifacts, devices, jobs, migrate, trials, workers
from service.store.database import Database
from service.store.enums import (
    ArtifactKind,
    JobProblemState,
    JobState,
    ProposalSource,
    TrialState,
    WorkerKind,
)
from service.store.models import Trial
from service.store.records import Compiled, NewJob, NewJobProblem, NewTrial, ProblemRecord
from worker.compile import compile_pool

PROBLEM = Gemm(4, 96, 96, "f32")


@pytest.fixture
def free_device() -> None:
    """Another worker on this host may own the device (tests of another checkout): wait for its end."""
    descriptor = open_lock_file(device_lock_path(local_cpu().key))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    return kept | {
        "ROOFTILE_HOME": str(tmp_path / "home"),
        "ROOFTILE_DATABASE_URL": f"sqlite:///{tmp_path}/r.db",
    }


@pytest.fixture
def store(environment: dict[str, str]) -> Iterator[Database]:
    url = environment["ROOFTILE_DATABASE_URL"]
    migrate.upgrade(url)
    database = Database(url)
    yield database
    database.close()


def start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "worker", *words], env=environment, stderr=subprocess.PIPE, text=True
    )


def wait_for(what: str, condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def propose(store: Database) -> tuple[int, int]:
    device, family = local_device(), get_family("gemm_x86")
    problem = ProblemRecord(
        PROBLEM.key, PROBLEM.layer().key, "gemm", PROBLEM.title(), PROBLEM.to_json(), "f32"
    )
    schedule = family.default(PROBLEM, device)
    with store.begin() as s:
        new = NewJobProblem(problem, device.key, device.arch.name)
        policy = {"cache": "cold", "launch": "eager"}
        job, _ = jobs.create(s, NewJob({}, {"device": device.key}, policy, "cold-eager", [new]))
        jobs.move(s, job.id, JobState.RUNNING)
        row = jobs.problems(s, job.id)[0]
        jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        (trial,) = trials.propose(
            s, row.id, [NewTrial(schedule.to_json(), schedule.key, family.name, ProposalSource.DEFAULT)]
        )
    return job.id, trial.id


@pytest.mark.usefixtures("free_device")
def test_a_trial_goes_through_both_processes_and_survives_a_kill(
    store: Database, environment: dict[str, str]
) -> None:
    measuring = start(environment, "measure", "--device", "auto")
    compiling = start(environment, "compile", "--jobs", "1")
    running = [measuring, compiling]
    try:

        def registered() -> bool:
            with store.read() as s:
                return bool(devices.connected(s)) and len(workers.alive(s)) == 2

        wait_for("both workers report", registered)
        with store.read() as s:
            record = devices.get(s, local_cpu().key)
        assert record is not None
        assert record.roof is not None
        assert record.roof["gflops"] > 0
        # A worker that is killed loses nothing: the next one owns the device at once.
        measuring.kill()
        measuring.wait()
        _, trial_id = propose(store)
        measuring = start(environment, "measure", "--device", local_cpu().key)
        running.append(measuring)

        def ended() -> bool:
            with store.read() as s:
                row = trials.get(s, trial_id)
            return row is not None and row.finished_at is not None

        wait_for("the trial ends", ended)
        with store.read() as s:
            row, detail = trials.get(s, trial_id), trials.detail(s, trial_id)
        assert row is not None
        assert detail is not None
        assert (row.state, row.reason) == (TrialState.MEASURED, None), detail.evidence
        for process in (measuring, compiling):
            process.send_signal(signal.SIGTERM)
        for process in (measuring, compiling):
            assert process.wait(10.0) == 0
        with store.read() as s:
            assert all(row.pid not in (measuring.pid, compiling.pid) for row in workers.listing(s))
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_an_emulate_worker_reports_steps_back_and_stops_when_told(
    store: Database, environment: dict[str, str]
) -> None:
    process = start(environment, "emulate")
    try:

        def reports() -> bool:
            with store.read() as s:
                return [row.kind for row in workers.alive(s)] == [WorkerKind.EMULATE]

        wait_for("the emulate worker reports", reports)
        nice = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[16])
        assert nice == min(19, os.nice(0) + 10)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10.0) == 0
        with store.read() as s:
            assert workers.listing(s) == []
    finally:
        process.kill()
        process.wait()


def test_a_measure_worker_that_is_told_to_stop_in_a_trial_gives_it_back(
    store: Database, environment: dict[str, str], plant: Any
) -> None:
    """At once, without a loss, and with the candidate gone, which would have spun for half a minute."""
    hang = plant({"before": 'if (thread == 0) for (;;) __asm__ volatile("pause");'})
    environment |= {"ROOFTILE_TEST_HOST": "stopping"}
    process = start(environment, "measure", "--device", "alias")
    try:

        def connected() -> list[str]:
            with store.read() as s:
                return [device.key for device in devices.connected(s)]

        wait_for("the worker reports", connected)
        (key,) = connected()
        trial_id = propose_planted(store, key, hang)

        def candidates() -> list[int]:
            # below the measuring process, which forks them
            return [pid for pid in children_of(process.pid)[1:] if burns(pid)]

        wait_for("the candidate spins", candidates)
        below = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20.0) == 0
        wait_for("all of it is gone", lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below))
        with store.read() as s:
            row = s.get_one(Trial, trial_id)
            assert (row.state, row.lease_owner, row.losses) == (TrialState.COMPILED, None, 0)
            assert workers.listing(s) == []
    finally:
        process.kill()
        process.wait()


def propose_planted(store: Database, key: str, built: Any) -> int:
    """A compiled trial for the device, of a problem so large that a run of it may take long."""
    big = Gemm(1536, 1536, 1536, "f32")
    problem = ProblemRecord(big.key, big.layer().key, "gemm", big.title(), big.to_json(), "f32")
    artifact = built.artifact
    with store.begin() as s:
        new = NewJobProblem(problem, key, artifact.arch)
        policy = {"cache": "cold", "launch": "eager"}
        job, _ = jobs.create(s, NewJob({}, {"device": key}, policy, "cold-eager", [new]))
        jobs.move(s, job.id, JobState.RUNNING)
        (row,) = jobs.problems(s, job.id)
        jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
        (trial,) = trials.propose(
            s, row.id, [NewTrial({"schema": 1}, "0" * 64, "planted_x86", ProposalSource.DEFAULT)]
        )
        pool = compile_pool(artifact.arch, home=built.so_path.parents[4])
        artifacts.put(s, pool.sha256, pool.data, ArtifactKind.POOL, pool.recipe, pool.arch)
        (claim,) = trials.claim_compile(s, "compiler", 1, 60, [artifact.arch])
        outcome = Compiled(
            artifact_sha256=artifact.sha256,
            artifact_bytes=artifact.data,
            recipe=artifact.recipe,
            pool_sha256=pool.sha256,
            plan=built.plan.to_json(),
            toolchain=artifact.toolchain,
            resources={},
            log="",
            compile_s=0.1,
        )
        assert trials.finish_compile(s, claim.claim_id, outcome)
    return trial.id


def burns(pid: int) -> bool:
    """Whether it has spent half a second of CPU time in its own code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return 2 * int(fields[11]) > os.sysconf("SC_CLK_TCK")


def said(process: subprocess.Popen[str], seconds: float = 40.0) -> str:
    _, text = process.communicate(timeout=seconds)
    assert process.returncode == 1
    assert "Traceback" not in text
    return text


def test_why_a_worker_cannot_start_is_one_sentence(store: Database, environment: dict[str, str]) -> None:
    text = said(start({**environment, "CC": "no-such-compiler"}, "compile"))
    assert "no-such-compiler" in text
    assert len(text.strip().splitlines()) == 1
    text = said(start(environment, "measure", "--device", "cpu-test-1-1-1c-x86-64-v3"))
    assert local_cpu().key in text
    assert len(text.strip().splitlines()) == 1
    # A GPU that is not in this machine is refused by its name, before anything else is looked at.
    text = said(start(environment, "measure", "--device", "gpu-20b2-108sm-80g-p400"))
    assert "The device gpu-20b2-108sm-80g-p400 is not here" in text
    assert len(text.strip().splitlines()) == 1
    text = said(start(environment, "measure", "--device", "alias"))
    assert "for tests alone: ROOFTILE_TEST_HOST is not set" in text
    text = said(start({**environment, "ROOFTILE_TEST_HOST": "Not-A-Word"}, "measure", "--device", "alias"))
    assert "ROOFTILE_TEST_HOST: must be up to 16 small letters and digits" in text
    text = said(start({**environment, "ROOFTILE_DATABASE_URL": "sqlite:////nowhere/at/all.db"}, "emulate"))
    assert len(text.strip().splitlines()) == 1
    text = said(start({**environment, "ROOFTILE_DATABASE_URL": "sqlite:////nowhere/at/all.db"}, "compile"))
    assert len(text.strip().splitlines()) == 1


def test_one_machine_plays_two(store: Database, environment: dict[str, str]) -> None:
    """Two workers own the same CPU under two names, each with host locks of its own."""
    words = ("measure", "--device", "alias")
    both = [start({**environment, "ROOFTILE_TEST_HOST": host}, *words) for host in ("one", "two")]
    try:
        deadline = time.monotonic() + 60
        found: list[str] = []
        while len(found) < 2:
            assert all(process.poll() is None for process in both)
            assert time.monotonic() < deadline
            time.sleep(0.1)
            with store.read() as s:
                found = sorted(device.key for device in devices.connected(s))
        cpu = local_cpu().device_key
        assert found == [str(replace(cpu, vendor=host)) for host in ("one", "two")]
        with store.read() as s:
            assert {row.host for row in workers.alive(s)} == {"one", "two"}
    finally:
        for process in both:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(20) for process in both] == [0, 0]
