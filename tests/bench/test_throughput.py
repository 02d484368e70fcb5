"""Does the replayed run do a whole job over the real loops, marked as what it is, and add up its time?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from bench import throughput
from bench.replay import family
from bench.replay.compiling import ReplayCompiler
from bench.replay.device import HOST, MARK, TRIAL_S, ReplaySession, replayed_cpu, replayed_key
from bench.replay.recording import recording
from search_space import registry
from search_space.device import device_of
from service.bus import Doorbell, HostGate, Kind
from service.host import VARIABLE
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.search.worker import SearchWorker
from service.settings import Settings
from service.store import devices, jobs, releases, trials
from service.store.database import Database
from service.store.enums import TrialState, WorkerKind
from service.store.errors import StoreError
from service.store.models import Trial
from service.store.records import DeviceRecord
from worker import measuring
from worker.errors import DeviceMismatchError
from worker.keeper import Keeper
from worker.measure.cuda_device import SharedGate
from worker.measuring import MeasureWorker


class Desk:
    """The loops of a replayed run in this process."""

    def __init__(self, db: Database, home: Path) -> None:
        self.db, self.folder = db, home
        settings = Settings(home=home, database_url="sqlite:////nowhere.db")
        cpu = replayed_cpu()
        described = {**device_of(cpu).to_json(), **MARK}
        record = DeviceRecord(key=cpu.key, name=cpu.name, kind="cpu", arch=cpu.arch, data=described)
        db.run(lambda s: devices.upsert(s, record))
        bell = Doorbell(settings)
        self.keeper = Keeper(db, WorkerKind.MEASURE, cpu.key)
        self.keeper.start()
        compiling = Keeper(db, WorkerKind.COMPILE)
        gate = HostGate(home)
        self.search = SearchWorker(db, settings, gate=gate, proposer=Proposer(scored=50))
        self.compiler = ReplayCompiler(db, gate, bell, compiling, home, slots=2, archs=[cpu.arch])
        self.measurer = MeasureWorker(db, SharedGate(gate), bell, self.keeper, ReplaySession(cpu.key), home)

    def submit(self, count: int) -> int:
        body = {
            "problem": family.PROBLEM.to_json(),
            "target": {"device": replayed_key()},
            "families": [family.NAME],
            "budget": {"trials": count},
        }
        return submit(self.db, body)[0].id

    def held(self, job_id: int) -> int:
        return self.states(job_id).count(TrialState.MEASURING)

    def states(self, job_id: int) -> list[TrialState]:
        with self.db.read() as s:
            return [one.state for one in trials.of_problem(s, jobs.problems(s, job_id)[0].id)]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, sqlite_url: str, tmp_path: Path) -> Iterator[Desk]:
    monkeypatch.setenv(VARIABLE, HOST)
    monkeypatch.setenv(TRIAL_S, "0.05")
    modules, ops = dict(registry._MODULES), dict(registry._OP_OF)
    family.register()
    db = Database(sqlite_url)
    made = Desk(db, tmp_path)
    yield made
    made.keeper.stop()
    db.close()
    for table, before in ((registry._MODULES, modules), (registry._OP_OF, ops)):
        table.clear()
        table.update(before)
    registry.get_family.cache_clear()


def test_a_replayed_job_ends_with_a_release_that_says_so(desk: Desk) -> None:
    job_id = desk.submit(12)
    deadline = time.monotonic() + 120
    while True:
        desk.search.step()
        desk.compiler.step()
        desk.measurer.step()
        with desk.db.read() as s:
            job = jobs.get(s, job_id)
        assert job is not None
        if not job.open:
            break
        assert time.monotonic() < deadline
    assert (job.state, job.message[:7]) == ("done", "Release")
    with desk.db.read() as s:
        rows = trials.of_problem(s, jobs.problems(s, job_id)[0].id)
        found = [trials.detail(s, one.id) for one in rows]
        (release,) = releases.listing(s).rows
    assert len(found) == 12
    for one in found:
        assert one is not None
        times = [measurement.environment for measurement in one.measurements]
        assert all(environment == MARK for environment in times)
        assert one.trial.time_us == recording().time_us(
            {
                name: value
                for group in one.trial.schedule.values()
                if isinstance(group, dict)
                for name, value in group.items()
            }
        )
    assert release.device_key.startswith(f"cpu-{HOST}-")


def test_the_search_is_woken_once_a_batch_when_its_results_are_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = desk.submit(8)
    while desk.states(job_id).count(TrialState.COMPILED) < 8:
        desk.search.step()
        desk.compiler.step()
    told: list[tuple[Kind | str, int]] = []

    def ring(kind: Kind | str, *args: object, device_key: str | None = None) -> None:
        told.append((kind, desk.states(job_id).count(TrialState.COMPILED)))

    monkeypatch.setattr(desk.measurer._doorbell, "ring", ring)
    while desk.states(job_id).count(TrialState.COMPILED) + desk.states(job_id).count(TrialState.MEASURING):
        desk.measurer.step()
    assert told
    assert len(told) <= 3  # of eight trials, by fours
    assert told[-1] == (Kind.SEARCH, 0)


def test_the_next_trial_runs_while_the_last_result_is_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = desk.submit(8)
    while desk.states(job_id).count(TrialState.COMPILED) < 4:
        desk.search.step()
        desk.compiler.step()
    order: list[str] = []
    finish, trial, gate = trials.finish_measure, ReplaySession.trial, threading.Event()

    def slow(*args: Any) -> bool:
        assert gate.wait(30)
        order.append("written")
        return finish(*args)

    def note(*args: Any, **more: Any) -> Any:
        order.append("runs")
        if order.count("runs") == 2:
            gate.set()  # the second runs before the first is written
        return trial(*args, **more)

    monkeypatch.setattr(measuring.trials, "finish_measure", slow)
    monkeypatch.setattr(ReplaySession, "trial", note)
    assert desk.measurer.step()
    assert order[:3] == ["runs", "runs", "written"]
    # nothing is left half done when a turn ends
    assert (
        order.count("written")
        == order.count("runs")
        == desk.states(job_id).count(TrialState.MEASURED) + (desk.states(job_id).count(TrialState.CULLED))
    )


def _eight_compiled(desk: Desk) -> int:
    job_id = desk.submit(8)
    while desk.states(job_id).count(TrialState.COMPILED) < 8:
        desk.search.step()
        desk.compiler.step()
    return job_id


def test_the_next_batch_is_claimed_while_the_last_trial_of_this_one_runs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = _eight_compiled(desk)
    monkeypatch.setattr(measuring, "LONG_TURN_S", 600.0)
    monkeypatch.setattr(desk.measurer, "_gate", SharedGate(HostGate(desk.folder, "quiet")))
    trial, seen = ReplaySession.trial, []

    def note(*args: Any, **more: Any) -> Any:
        seen.append(1)
        if len(seen) == measuring.MOST_CLAIMS:
            _until(lambda: desk.held(job_id) > measuring.MOST_CLAIMS)
        return trial(*args, **more)

    monkeypatch.setattr(ReplaySession, "trial", note)
    assert desk.measurer.step()
    ended = desk.states(job_id)
    assert len(seen) == 8 == ended.count(TrialState.MEASURED) + ended.count(TrialState.CULLED)


def test_what_was_claimed_ahead_is_renewed_and_goes_back_unharmed_at_a_stop(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopper:
        stopping = False

    job_id = _eight_compiled(desk)
    stopper = desk.measurer.stopper = Stopper()
    trial, seen = ReplaySession.trial, []

    def stop_at_the_last(*args: Any, **more: Any) -> Any:
        seen.append(1)
        if len(seen) == measuring.MOST_CLAIMS:
            _until(lambda: desk.held(job_id) == measuring.MOST_CLAIMS + 1)
            with desk.db.begin() as s:
                s.execute(update(Trial).values(lease_expires_at=func.datetime("2000-01-01")))
            desk.keeper._renew()
            with desk.db.begin() as s:
                assert trials.expire(s) == []
            stopper.stopping = True
        return trial(*args, **more)

    monkeypatch.setattr(ReplaySession, "trial", stop_at_the_last)
    assert desk.measurer.step()
    assert desk.states(job_id).count(TrialState.COMPILED) == 5
    with desk.db.read() as s:
        assert set(s.execute(select(Trial.lease_owner, Trial.losses))) == {(None, 0)}
    stopper.stopping = False
    assert desk.measurer.step()
    assert desk.held(job_id) == 0


def test_a_turn_ends_where_somebody_else_wants_the_host(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = _eight_compiled(desk)
    monkeypatch.setattr(measuring, "TURN_S", 0.0)
    monkeypatch.setattr(SharedGate, "wanted", lambda _self: True)
    assert desk.measurer.step()
    assert desk.states(job_id).count(TrialState.COMPILED) == 4


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_result_that_cannot_be_written_is_told_and_the_work_given_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = desk.submit(8)
    while desk.states(job_id).count(TrialState.COMPILED) < 4:
        desk.search.step()
        desk.compiler.step()

    def refuse(*_: Any) -> bool:
        raise StoreError("the database is away")

    monkeypatch.setattr(measuring.trials, "finish_measure", refuse)
    with pytest.raises(StoreError, match="away"):
        desk.measurer.step()
    assert TrialState.MEASURING not in desk.states(job_id)


def test_nothing_is_replayed_outside_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DeviceMismatchError, match="for tests alone"):
        replayed_cpu()
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "bench.replay", "measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert VARIABLE in done.stderr


@pytest.mark.alone
def test_the_bench_measures_a_cluster() -> None:
    figures, rows = throughput.measure(16, 0.1, quick=True, only=True)
    (row,) = rows
    assert (row["jobs"], row["done"], row["trials"]) == (1, 1, 16)
    assert row["wall_s"] == pytest.approx(row["device_s"] + 16 * row["overhead_ms_per_trial"] / 1000)
    assert 0 < (figures["device_busy_share"] or 0) < 1
    assert (figures["search_share"] or 0) > 0
    assert set(row["cpu_ms_per_trial"]) == {"api", "search", "compile", "measure", "postgres", "valkey"}
    assert all(value > 0 for value in row["cpu_ms_per_trial"].values())
    assert set(row["statements_per_trial"]) == {"api", "search", "compile", "measure"}
    assert 0 < sum(row["statements_per_trial"].values()) < 120
