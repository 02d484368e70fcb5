"""Does a search worker look when it should, wait when it should, and get past a job that cannot go on?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hands import DEVICE, Hands, connect
from support.store import failed

from service.bus import HostGate
from service.jobs.control import cancel
from service.jobs.proposing import Ask, Proposal
from service.jobs.submit import submit
from service.search import worker as worker_module
from service.search.proposer import Proposer
from service.search.worker import SearchWorker, make_step
from service.settings import Settings
from service.store import jobs, trials, workers
from service.store.database import Database
from service.store.enums import (
    JobProblemReason,
    JobReason,
    JobState,
    TrialReason,
    WorkerKind,
    WorkerState,
)
from service.version import told

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    opened = Database(sqlite_url)
    connect(opened)
    yield opened
    opened.close()


def settings(db_file: Path) -> Settings:
    return Settings(home=db_file)


def post(db: Database, **body: Any) -> int:
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 4}, **body}
    return submit(db, body)[0].id


def state(db: Database, job_id: int) -> JobState:
    with db.read() as s:
        job = jobs.get(s, job_id)
    assert job is not None
    return job.state


class _Faulty(Proposer):
    """Fails for one problem."""

    def propose(self, ask: Ask) -> list[Proposal]:
        if ask.problem.sizes()["m"] == 13:
            raise ZeroDivisionError("thirteen")
        return super().propose(ask)


def test_a_fault_of_ours_ends_one_job_and_no_other(db: Database, tmp_path: Path) -> None:
    bad = post(db, problem={**PROBLEM, "m": 13})
    good = post(db)
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=_Faulty(scored=50))
    hands = Hands(db)
    deadline = time.monotonic() + 60
    ends = [JobState.FAILED, JobState.DONE]
    while [state(db, bad), state(db, good)] != ends and time.monotonic() < deadline:
        worker.step()
        hands.compile()
        hands.measure()
        hands.race()
    assert state(db, good) is JobState.DONE
    with db.read() as s:
        job = jobs.get(s, bad)
        row = jobs.problems(s, bad)[0]
    assert job is not None
    assert (job.state, job.reason) == (JobState.FAILED, JobReason.INTERNAL_ERROR)
    assert "ZeroDivisionError: thirteen" in job.message
    assert row.reason is JobProblemReason.INTERNAL_ERROR


def test_told_to_stop_it_begins_no_further_job(db: Database, tmp_path: Path) -> None:
    ids = [post(db, seed=seed) for seed in range(4)]
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=Proposer(scored=50))
    worker.stopping = lambda: state(db, ids[1]) is JobState.RUNNING
    worker.step()
    assert [state(db, one) for one in ids] == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 2
    worker.stopping = lambda: False
    # whoever goes on sees the others
    SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=Proposer(scored=50)).step()
    assert [state(db, one) for one in ids] == [JobState.RUNNING] * 4


class _Starved(Proposer):
    """Its host is short of memory for a while."""

    short = True

    def propose(self, ask: Ask) -> list[Proposal]:
        if self.short:
            raise MemoryError
        return super().propose(ask)


def test_memory_that_is_short_ends_no_job(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.search.worker.LOOK_S", 0.0)
    job_id = post(db)
    proposer = _Starved(scored=50)
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=proposer)
    for _ in range(5):
        with pytest.raises(MemoryError):  # the loop waits, and tries again
            worker.step()
    assert state(db, job_id) is JobState.RUNNING
    proposer.short = False
    worker.step()
    with db.read() as s:
        assert trials.counts(s, job_id=job_id)


def test_while_a_measurement_has_the_host_the_search_waits(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "QUIET_S", 60.0)
    gate = HostGate(tmp_path)
    worker = SearchWorker(db, settings(tmp_path), gate=gate, proposer=Proposer(scored=50))
    worker.step()
    job_id = post(db)
    inside, leave = threading.Event(), threading.Event()

    def measure() -> None:
        with gate.exclusive():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=measure)
    thread.start()
    assert inside.wait(10)
    assert not worker.step()
    assert state(db, job_id) is JobState.QUEUED
    leave.set()
    thread.join()
    assert worker.step()
    assert state(db, job_id) is JobState.RUNNING


def test_an_idle_worker_asks_the_database_little(db: Database, tmp_path: Path) -> None:
    job_id = post(db)
    step = make_step(db, settings(tmp_path))
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=Proposer(scored=50))
    assert worker.step()
    assert state(db, job_id) is JobState.RUNNING
    worker.step()
    start = time.process_time()
    for _ in range(20):
        assert not worker.step()
    assert (time.process_time() - start) / 20 < 0.02
    assert callable(step)


def test_the_heartbeat_is_a_row_that_goes_with_the_worker(db: Database, tmp_path: Path) -> None:
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path))
    worker.beat()
    with db.read() as s:
        row = workers.get(s, worker.name)
    assert row is not None
    assert (row.kind, row.state, row.alive) == (WorkerKind.SEARCH, WorkerState.IDLE, True)
    assert row.data == told()
    worker.close()
    with db.read() as s:
        assert workers.get(s, worker.name) is None


def test_a_trial_that_ended_makes_its_own_job_looked_at_and_no_other(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LOOK_S", 600.0)
    first, second = (post(db, seed=seed, budget={"trials": 16}) for seed in (1, 2))
    worker = SearchWorker(db, settings(tmp_path), gate=HostGate(tmp_path), proposer=Proposer(scored=50))
    while worker.step():
        pass
    looked: list[int] = []
    real = worker_module.advance

    def advance(db: Database, job_id: int, *args: Any, **more: Any) -> bool:
        looked.append(job_id)
        return real(db, job_id, *args, **more)

    monkeypatch.setattr(worker_module, "advance", advance)
    hands = Hands(db)
    assert hands.compile(16) == 16
    worker.step()
    assert looked == []  # what was compiled asks nothing of a job
    assert hands.measure(6) == 6
    worker.step()
    assert looked == []  # of eight under way three have ended, in each: enough is left
    assert hands.measure(1) == 1
    worker.step()
    assert len(looked) == 1
    hands.on_measure = lambda schedule: failed(TrialReason.CRASH)
    assert hands.measure(1) == 1
    worker.step()
    assert len(looked) == 2  # a failure is looked at, however many are left
    # The end of a job may let another begin: everybody is looked at, at rest or not.
    looked.clear()
    worker._rest_s = 0.0
    assert cancel(db, first).state is JobState.CANCELLED
    worker.step()
    assert second in looked
