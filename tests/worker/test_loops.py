"""Does every trial of a job end under its own name through the real loops, and is nothing ever lost?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from rooftile.device import local_cpu
from rooftile.problem import Gemm
from sqlalchemy import update
from support.planted import (
    FAMILY,
    KINDS,
    NAME,
    SOURCE,
    PlantedFamily,
    family_source,
    only_family,
    write_template,
)
from support.store import DEVICE, compile_all, measure_all, running_job

from search_space.device import local_device
from service.bus import Doorbell, HostGate
from service.jobs.retention import Retention
from service.settings import Settings
from service.store import artifacts, clock, devices, jobs, leases, races, trials, workers
from service.store.database import Database
from service.store.enums import (
    ArtifactKind,
    DeviceState,
    EntrantRole,
    JobProblemState,
    JobState,
    ProposalSource,
    RaceState,
    TrialReason,
    TrialState,
    WorkerKind,
    WorkerState,
)
from service.store.models import Artifact, Job
from service.store.records import (
    DeviceRecord,
    NewEntrant,
    NewJob,
    NewJobProblem,
    NewTrial,
    ProblemRecord,
    TrialRecord,
)
from service.version import told
from worker.compiling import CompileWorker
from worker.errors import CompilerMissingError, DeviceBusyError
from worker.keeper import Keeper
from worker.measure.roof import device_roof
from worker.measure.session import MeasureSession, Tools
from worker.measuring import MeasureWorker
from worker.ownership import DeviceOwnership, own_device, wait_for_device

POLICY = {"cache": "cold", "launch": "eager"}
PROBLEM = Gemm(8, 128, 128, "f32")
ENDS = {
    "good": (TrialState.MEASURED, None),
    "wrong value": (TrialState.FAILED, TrialReason.WRONG_RESULT),
    "null pointer": (TrialState.FAILED, TrialReason.CRASH),
    "computes nothing": (TrialState.FAILED, TrialReason.NOT_WRITTEN),
    "hang": (TrialState.FAILED, TrialReason.HANG),
    "refused": (TrialState.REJECTED, TrialReason.ILLEGAL),
    "does not compile": (TrialState.FAILED, TrialReason.COMPILE_ERROR),
}


# What the database has no part in is tested on one of the two.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass
class Bench:
    """Both loops on one database, with what they share."""

    database: Database
    compile: CompileWorker
    measure: MeasureWorker
    compile_keeper: Keeper
    measure_keeper: Keeper
    family: PlantedFamily
    home: Path

    def job(self, kinds: list[tuple[str, int]], problem: Gemm = PROBLEM) -> tuple[int, list[TrialRecord]]:
        device = local_device()
        record = ProblemRecord(
            problem.key, problem.layer().key, "gemm", problem.title(), problem.to_json(), "f32"
        )
        with self.database.begin() as s:
            devices.upsert(
                s, DeviceRecord(device.key, device.name, "cpu", device.arch.name, device.to_json())
            )
            new = NewJob(
                request={},
                target={"device": device.key},
                policy=POLICY,
                policy_key="cold-eager",
                problems=[NewJobProblem(record, device.key, device.arch.name, seed=7)],
            )
            job, _ = jobs.create(s, new)
            jobs.move(s, job.id, JobState.RUNNING)
            row = jobs.problems(s, job.id)[0]
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
            wanted = []
            for kind, number in kinds:
                schedule = FAMILY.make(problem, device, kind, number)
                source = ProposalSource.DEFAULT if not wanted else ProposalSource.RANDOM
                wanted.append(NewTrial(schedule.to_json(), schedule.key, NAME, source))
            return job.id, trials.propose(s, row.id, wanted)

    def end(self, trial: TrialRecord) -> TrialRecord:
        with self.database.read() as s:
            found = trials.get(s, trial.id)
        assert found is not None
        return found

    def run(self) -> None:
        """Both loops until neither finds anything."""
        while self.compile.step() or self.measure.step():
            pass


@pytest.fixture
def bench(database: Database, worker_home: Path, tools: Tools, tmp_path: Path) -> Iterator[Bench]:
    write_template(tmp_path / "kernels", family_source())
    gate = HostGate(tmp_path)
    doorbell = Doorbell(Settings(home=tmp_path / "home"))
    first = Keeper(database, WorkerKind.COMPILE)
    second = Keeper(database, WorkerKind.MEASURE, local_cpu().key)
    first.start()
    second.start()
    with (
        only_family() as family,
        MeasureSession(local_cpu().key, tools=tools, budget_s=0.02, race_budget_s=0.3) as session,
    ):
        yield Bench(
            database,
            CompileWorker(database, gate, doorbell, first, worker_home, root=tmp_path / "kernels"),
            MeasureWorker(database, gate, doorbell, second, session, worker_home, root=tmp_path / "kernels"),
            first,
            second,
            family,
            worker_home,
        )
    first.stop()
    second.stop()


def test_every_kind_of_trial_ends_as_what_it_is(bench: Bench) -> None:
    assert set(ENDS) | {"slow"} == set(KINDS)
    _, rows = bench.job([("good", 0), *((kind, 0) for kind in ENDS if kind != "good"), ("good", 1)])
    bench.run()
    for kind, row in zip([*("good",), *(k for k in ENDS if k != "good"), "good"], rows, strict=True):
        ended = bench.end(row)
        if kind == "good":
            assert ended.state in (TrialState.MEASURED, TrialState.CULLED), kind
            assert ended.time_us is not None
        else:
            assert (ended.state, ended.reason) == ENDS[kind], kind
        assert ended.attempt <= 2
        assert ended.lease_owner is None
    with bench.database.read() as s:
        detail = trials.detail(s, rows[0].id)
        assert detail is not None
        assert detail.verdicts[0].passed
        assert detail.measurements[0].samples_us
        assert detail.toolchain is not None
        assert detail.pool_sha256 is not None
        pool = artifacts.get(s, detail.pool_sha256)
        assert pool is not None
        assert (pool.kind, pool.stored) == (ArtifactKind.POOL, True)
        wrong = next(row for row in rows if bench.end(row).reason is TrialReason.COMPILE_ERROR)
        told = trials.detail(s, wrong.id)
        assert told is not None
        assert "planted.c" in told.evidence["log"]


def test_a_race_is_run_and_written(bench: Bench) -> None:
    job_id, rows = bench.job([("good", 0), ("slow", 0)])
    bench.run()
    with bench.database.begin() as s:
        row = jobs.problems(s, job_id)[0]
        jobs.move_problem(s, row.id, JobProblemState.RACING)
        race = races.create(
            s,
            row.id,
            [
                NewEntrant("best", EntrantRole.FINALIST, rows[0].id),
                NewEntrant("twin", EntrantRole.TWIN, rows[0].id),
                NewEntrant("numpy", EntrantRole.BASELINE),
            ],
            POLICY,
            7,
        )
    bench.run()
    with bench.database.read() as s:
        done = races.get(s, race.id)
    assert done is not None
    assert done.state is RaceState.DONE
    assert all(one.measurement is not None for one in done.entrants)
    assert done.noise is not None
    assert done.noise["pair"] == ["best", "twin"]


@on_sqlite
@pytest.mark.parametrize("changed", [False, True], ids=["same sources", "changed sources"])
def test_bytes_that_were_pruned_are_built_again_to_the_same_hash(
    bench: Bench, tmp_path: Path, changed: bool
) -> None:
    _, (row,) = bench.job([("good", 40 + changed)])
    assert bench.compile.step()
    sha256 = bench.end(row).artifact_sha256
    assert sha256 is not None
    # Neither the cache nor the database has the bytes any more; only the recipe is left.
    blob = next((bench.home / "cache").rglob(f"{sha256}.so"))
    blob.unlink()
    with bench.database.begin() as s:
        s.execute(update(Artifact).where(Artifact.sha256 == sha256).values(data=None))
    template = tmp_path / "kernels" / SOURCE
    template.write_text(template.read_text() + ("\n" if changed else ""))
    bench.measure.step()
    ended = bench.end(row)
    if changed:
        assert (ended.state, ended.reason) == (TrialState.FAILED, TrialReason.ARTIFACT_LOST)
        return
    assert ended.state is TrialState.MEASURED
    assert ended.artifact_sha256 == sha256
    assert blob.is_file()


def test_what_compact_dropped_is_built_again_to_its_hash_where_it_is_needed(bench: Bench) -> None:
    """By a measure worker that is sent an old trial, as a canary is; and for everybody, clients too, once
    another job proposes the schedule."""
    job_id, (row,) = bench.job([("good", 60)])
    bench.run()
    sha256 = bench.end(row).artifact_sha256
    assert sha256 is not None
    with bench.database.begin() as s:
        kept = artifacts.get_bytes(s, sha256)
        jobs.move(s, job_id, JobState.FINISHING)
        jobs.move(s, job_id, JobState.DONE)
        long_ago = clock.now(s) - timedelta(days=40)
        s.execute(update(Job).where(Job.id == job_id).values(finished_at=long_ago))
    assert kept is not None
    settings = Settings(home=bench.home, keep_details_days=30)
    assert Retention(bench.database, settings).run()["artifacts"] == 1
    blob = next((bench.home / "cache").rglob(f"{sha256}.so"))
    blob.unlink()
    with bench.database.read() as s:
        assert artifacts.get_bytes(s, sha256) is None

    second, (again,) = bench.job([("good", 60)], Gemm(8, 96, 96, "f32"))
    with bench.database.begin() as s:
        (problem,) = jobs.problems(s, second)
        canary = [NewEntrant("canary", EntrantRole.CANARY, row.id)]
        race = races.create(s, problem.id, canary, POLICY, 7)
    assert bench.measure.step()
    with bench.database.read() as s:
        done = races.get(s, race.id)
        assert artifacts.get_bytes(s, sha256) is None
    assert done is not None
    assert done.state is RaceState.DONE
    assert done.entrants[0].measurement is not None
    assert blob.read_bytes() == kept

    blob.unlink()
    assert bench.compile.step()
    with bench.database.read() as s:
        assert artifacts.get_bytes(s, sha256) == kept
        found = artifacts.get(s, sha256)
    assert found is not None
    assert found.stored
    bench.run()
    assert bench.end(again).artifact_sha256 == sha256
    assert bench.end(again).state is TrialState.MEASURED


def test_a_cancelled_job_is_left_within_seconds_and_the_next_one_runs(bench: Bench) -> None:
    job_id, (row,) = bench.job([("hang", 0)])
    assert bench.compile.step()
    thread = threading.Thread(target=bench.measure.step)
    thread.start()
    deadline = time.monotonic() + 10.0
    while bench.end(row).state is not TrialState.MEASURING and time.monotonic() < deadline:
        time.sleep(0.02)
    with bench.database.begin() as s:
        jobs.move(s, job_id, JobState.CANCELLED)
        trials.cancel_open(s, job_id=job_id)
    thread.join(8.0)
    assert not thread.is_alive()
    assert bench.end(row).state is TrialState.CANCELLED
    _, (after,) = bench.job([("good", 9)], Gemm(8, 96, 96, "f32"))
    bench.run()
    assert bench.end(after).state is TrialState.MEASURED


@on_sqlite
def test_a_stop_gives_back_what_is_held(bench: Bench) -> None:
    class Stopped:
        stopping = True

    _, rows = bench.job([("good", 2), ("good", 3), ("good", 4)])
    bench.compile.stopper = Stopped()
    bench.compile.step()
    for row in rows:
        ended = bench.end(row)
        assert ended.lease_owner is None
        assert ended.state is TrialState.PROPOSED
    bench.compile.stopper = None
    bench.run()
    assert all(bench.end(row).state in (TrialState.MEASURED, TrialState.CULLED) for row in rows)


@on_sqlite
def test_without_a_compiler_claims_go_back_and_the_sentence_comes_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (row,) = bench.job([("good", 50)])
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerMissingError):
        bench.compile.step()
    assert bench.end(row).state is TrialState.PROPOSED
    assert bench.end(row).lease_owner is None
    monkeypatch.delenv("CC")
    bench.run()
    assert bench.end(row).state is TrialState.MEASURED


@on_sqlite
def test_a_worker_that_needs_no_c_compiler_says_so_of_a_cpus_trials(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is there for its GPUs goes on compiling for them."""
    _, (row,) = bench.job([("good", 0)])
    monkeypatch.setenv("CC", "no-such-compiler")
    bench.compile._without_c = True
    assert bench.compile.step()
    assert (bench.end(row).state, bench.end(row).reason) == (TrialState.FAILED, TrialReason.COMPILER_MISSING)


@on_sqlite
def test_the_roof_is_measured_once_and_kept_with_what_it_belongs_to(bench: Bench, tools: Tools) -> None:
    bench.job([("good", 0)])
    key = local_cpu().key
    with MeasureSession(key, tools=tools) as session:
        first = device_roof(bench.database, session)
        assert first is not None
        assert first["gflops"] > 1.0
        assert first["read_gbps"] > 0.1
    with bench.database.read() as s:
        record = devices.get(s, key)
    assert record is not None
    assert record.roof is not None
    assert record.roof["gflops"] == first["gflops"]
    with MeasureSession(key, tools=tools) as session:
        started = time.monotonic()
        again = device_roof(bench.database, session)
        assert time.monotonic() - started < 0.2
        assert session.child_pid is None
    assert again is not None
    assert again["measured_at"] == first["measured_at"]


def test_a_device_has_one_owner(database: Database) -> None:
    key = "cpu-test-6-85-4c-x86-64-v3"
    first = Keeper(database, WorkerKind.MEASURE, key)
    second = Keeper(database, WorkerKind.MEASURE, key)
    owned = own_device(database, first, key)
    try:
        with pytest.raises(DeviceBusyError, match=key):
            own_device(database, second, key)
    finally:
        owned.close()
    # The first one's process is gone (its lock is), its lease row is not: the next on this host takes over.
    again = own_device(database, second, key)
    again.close()
    with database.read() as s:
        held = leases.holder(s, leases.device_lease(key))
    assert held is not None
    assert held.owner == second.owner


def test_who_takes_over_a_device_gives_back_what_the_dead_held(database: Database) -> None:
    """At once: a trial and a race need not wait until their leases are over."""
    first = Keeper(database, WorkerKind.MEASURE, DEVICE)
    second = Keeper(database, WorkerKind.MEASURE, DEVICE)
    owned = own_device(database, first, DEVICE)
    with database.begin() as s:
        job_id, _ = running_job(s, 2)
        compile_all(s)
        (timed,) = measure_all(s, [5.0])
        (claim,) = trials.claim_measure(s, first.owner, DEVICE, 1, 600)
        (problem,) = jobs.problems(s, job_id)
        jobs.move_problem(s, problem.id, JobProblemState.RACING)
        race = races.create(s, problem.id, [NewEntrant("a", EntrantRole.DEFAULT, timed)], POLICY, 1)
        assert races.claim(s, first.owner, DEVICE, 600) is not None
    owned.close()  # it died
    own_device(database, second, DEVICE).close()
    with database.read() as s:
        trial, found = trials.get(s, claim.trial_id), races.get(s, race.id)
    assert trial is not None
    assert (trial.state, trial.lease_owner) == (TrialState.COMPILED, None)
    assert found is not None
    assert found.state is RaceState.QUEUED


def test_another_hosts_lease_is_respected(database: Database) -> None:
    key = "cpu-test-6-85-4c-x86-64-v3"
    with database.begin() as s:
        leases.acquire(s, leases.device_lease(key), "measure@elsewhere/1-abc", 60.0)
    mine = Keeper(database, WorkerKind.MEASURE, key)
    with pytest.raises(DeviceBusyError, match="elsewhere"):
        own_device(database, mine, key)


def test_of_two_hosts_with_equal_devices_the_second_is_a_spare_that_says_so(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the device's list; and it takes over when the first one is gone, without a hand."""
    monkeypatch.setenv("ROOFTILE_LEASE_S", "4")
    key = local_cpu().key
    monkeypatch.setenv("ROOFTILE_TEST_HOST", "first")
    first = Keeper(database, WorkerKind.MEASURE, key)
    owned = own_device(database, first, key)
    monkeypatch.setenv("ROOFTILE_TEST_HOST", "second")  # with locks of its own
    second = Keeper(database, WorkerKind.MEASURE, key)
    taken: list[DeviceOwnership] = []
    waiting = threading.Thread(target=lambda: taken.append(wait_for_device(database, second, key)))
    waiting.start()

    def told() -> str:
        with database.read() as s:
            rows = [row for row in workers.alive(s, WorkerKind.MEASURE) if row.host == "second"]
        return str(rows[0].data["waits_for"]) if rows else ""

    _until(lambda: bool(told()))
    assert told().startswith(f"A worker on first owns {key}; only one may, also of hosts with equal devices.")
    assert "This one is its spare: it begins within 6 s of the other's end." in told()
    owned.close()  # it died, with its host: nobody gives its lease back
    waiting.join(30)
    with database.read() as s:
        held = leases.holder(s, second.device_lease)
    assert held is not None
    assert held.owner == second.owner
    taken[0].close()


def test_a_host_of_the_same_name_is_another_host(database: Database) -> None:
    """Two machines may give their containers one name; their locks are two."""
    key = "cpu-test-6-85-4c-x86-64-v3"
    mine = Keeper(database, WorkerKind.MEASURE, key)
    with database.begin() as s:
        leases.acquire(s, leases.device_lease(key), f"measure@{mine.host}/0badb001-7-abc", 60.0)
    with pytest.raises(DeviceBusyError, match=f"A worker on {mine.host} owns"):
        own_device(database, mine, key)


def test_a_worker_reports_and_leaves_no_row(database: Database) -> None:
    keeper = Keeper(database, WorkerKind.COMPILE)
    keeper.data = {"slots": 2}
    keeper.start()
    with database.read() as s:
        (row,) = workers.alive(s, WorkerKind.COMPILE)
    assert row.id == keeper.owner
    assert row.data == {"slots": 2, **told()}
    keeper.stop()
    with database.read() as s:
        assert workers.alive(s, WorkerKind.COMPILE) == []


@on_sqlite
def test_nothing_is_claimed_while_somebody_else_has_the_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was away for longer than its lease: another one measures on its device by now."""
    monkeypatch.setenv("ROOFTILE_LEASE_S", "4")
    keeper, other = bench.measure_keeper, "measure@elsewhere/1-abc"
    _, (row,) = bench.job([("good", 0)])
    assert bench.compile.step()
    with bench.database.begin() as s:
        leases.release(s, keeper.device_lease, keeper.owner)
        assert leases.acquire(s, keeper.device_lease, other, 600.0) is not None
    _until(lambda: keeper.device_lost)
    assert not bench.measure.step()
    assert bench.end(row).state is TrialState.COMPILED
    with bench.database.begin() as s:
        mine = next(one for one in workers.listing(s) if one.id == keeper.owner)
        assert mine.state is WorkerState.WAITING
        assert "elsewhere owns" in mine.data["waits_for"]
        leases.release(s, keeper.device_lease, other)
    _until(lambda: not keeper.device_lost)
    with bench.database.begin() as s:
        mine = next(one for one in workers.listing(s) if one.id == keeper.owner)
        assert mine.state is WorkerState.IDLE
        assert "waits_for" not in mine.data
    assert bench.measure.step()
    assert bench.end(row).state is TrialState.MEASURED


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@on_sqlite
def test_nothing_is_claimed_for_a_device_out_of_service(bench: Bench) -> None:
    _, (row,) = bench.job([("good", 0)])
    assert bench.compile.step()
    with bench.database.begin() as s:
        devices.set_state(s, local_cpu().key, DeviceState.OUT_OF_SERVICE, "test")
    assert not bench.measure.step()
    assert bench.end(row).state is TrialState.COMPILED
