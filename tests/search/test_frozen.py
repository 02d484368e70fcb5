"""Does a search worker go on when a measurement on its host is frozen, and wait while one is at work?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.hands import DEVICE, connect

from service import periods
from service.bus import HostGate, Loop
from service.jobs.proposing import Ask, Proposal
from service.jobs.submit import submit
from service.paths import shared_dir
from service.search import wayin
from service.search import worker as worker_module
from service.search.proposer import Proposer
from service.search.worker import SearchWorker
from service.settings import Settings
from service.store import jobs, trials
from service.store.database import Database
from service.store.enums import JobState, TrialState

ROOT = Path(__file__).resolve().parent.parent.parent
PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}
LEASE_S = 4.0
WAIT_S = 60.0
LOOK_ON_S = 1.0

HOLD = """
import sys, time
from pathlib import Path
from service.bus import HostGate
print("here", flush=True)
with getattr(HostGate(Path(sys.argv[1])), sys.argv[2])():
    print("in", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(periods.VARIABLE, str(LEASE_S))


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    opened = Database(sqlite_url)
    connect(opened)
    yield opened
    opened.close()


@pytest.fixture
def gate(tmp_path: Path) -> HostGate:
    return HostGate(shared_dir(tmp_path / "locks"))


class _Watched(Proposer):
    """Keeps when it was asked, and whether somebody was alone on the host then."""

    def __init__(self, gate: HostGate) -> None:
        super().__init__(scored=50)
        self.gate = gate
        self.asked: list[tuple[float, bool]] = []

    def propose(self, ask: Ask) -> list[Proposal]:
        self.asked.append((time.monotonic(), self.gate.measuring()))
        return super().propose(ask)


@contextmanager
def holder(tmp_path: Path, how: str, seconds: float, *, inside: bool = True) -> Iterator[int]:
    """Another process at the gate; its number."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks"), how, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "here\n"
        if inside:
            assert process.stdout.readline() == "in\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def going(worker: SearchWorker, db: Database) -> Iterator[None]:
    """Its loop, in a thread that cannot keep the test; and the device's worker reports."""
    loop = Loop(worker.step, sweep_s=0.02, name="search")
    worker.stopping = lambda: loop.stopping

    def beat() -> bool:
        connect(db)
        return False

    heart = Loop(beat, sweep_s=0.5, name="heart")
    heart.start()
    loop.start()
    try:
        yield
    finally:
        for one in (loop, heart):
            one.stop()
        for one in (loop, heart):
            one.join(WAIT_S)


def until(so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def post(db: Database, m: int) -> int:
    body = {"problem": {**PROBLEM, "m": m}, "target": {"device": DEVICE}, "budget": {"trials": 4}}
    return submit(db, body)[0].id


def proposed(db: Database, job_id: int) -> int:
    """How many schedules nobody has claimed."""
    with db.read() as s:
        rows = trials.listing(s, job_id=job_id, states=[TrialState.PROPOSED]).rows
    return sum(row.lease_owner is None for row in rows)


def running(db: Database, job_id: int) -> bool:
    with db.read() as s:
        job = jobs.get(s, job_id)
    return job is not None and job.state is JobState.RUNNING


def test_past_a_frozen_measurement_the_dead_are_buried_and_jobs_go_on(
    db: Database, gate: HostGate, tmp_path: Path
) -> None:
    proposer = _Watched(gate)
    worker = SearchWorker(db, Settings(home=tmp_path), gate=gate, proposer=proposer)
    first = post(db, 8)
    assert until(lambda: worker.step() or proposed(db, first) > 0)
    before, asked = proposed(db, first), len(proposer.asked)
    with db.begin() as s:
        assert trials.claim_compile(s, "soon dead", 1, 0.2, ["x86-64-v4"])
    assert proposed(db, first) == before - 1
    others = [post(db, m) for m in (16, 24)]
    with holder(tmp_path, "exclusive", 600) as pid:
        os.kill(pid, signal.SIGSTOP)
        frozen_s = time.monotonic()
        with going(worker, db):
            assert until(lambda: all(running(db, one) for one in others))
            assert until(lambda: proposed(db, first) == before)  # given back by the reaper
            assert until(lambda: all(proposed(db, one) > 0 for one in others))
        # for as long as it may only be slow, nobody disturbs it
        assert all(at_s - frozen_s >= LEASE_S for at_s, _ in proposer.asked[asked:])
        assert all(alone for _, alone in proposer.asked[asked:])
        asked = len(proposer.asked)
        os.kill(pid, signal.SIGCONT)  # it lives after all
        said = gate.said()
        assert until(lambda: gate.said() != said)
        last = post(db, 32)
        with going(worker, db):
            assert until(lambda: running(db, last))
            time.sleep(LOOK_ON_S)
        assert len(proposer.asked) == asked


def test_past_a_frozen_line_jobs_go_on_with_a_lock_of_their_own(
    db: Database, gate: HostGate, tmp_path: Path
) -> None:
    proposer = _Watched(gate)
    worker = SearchWorker(db, Settings(home=tmp_path), gate=gate, proposer=proposer)
    job_id = post(db, 8)
    with (
        holder(tmp_path, "shared", 600),
        holder(tmp_path, "exclusive", 600, inside=False) as waiting,
    ):
        assert until(gate.wanted)
        os.kill(waiting, signal.SIGSTOP)
        with going(worker, db):
            assert until(lambda: proposed(db, job_id) > 0)
    assert not any(alone for _, alone in proposer.asked)


def test_a_measurement_at_work_is_not_disturbed_however_long_it_lasts(
    db: Database, gate: HostGate, tmp_path: Path
) -> None:
    proposer = _Watched(gate)
    worker = SearchWorker(db, Settings(home=tmp_path), gate=gate, proposer=proposer)
    with holder(tmp_path, "exclusive", 2.25 * LEASE_S), going(worker, db):
        jobs_there = [post(db, m) for m in (8, 16)]
        assert until(lambda: all(running(db, one) for one in jobs_there))
        assert gate.measuring()
        assert until(lambda: all(proposed(db, one) > 0 for one in jobs_there))
    assert proposer.asked
    assert not any(alone for _, alone in proposer.asked)


def test_a_measurement_that_comes_back_at_once_does_not_shut_the_search_out(
    db: Database, gate: HostGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns longer than the search waits in a step, and nothing between them."""
    monkeypatch.setattr(wayin, "WAIT_S", 0.3)
    monkeypatch.setattr(worker_module, "QUIET_S", 0.0)
    monkeypatch.setattr(worker_module, "LOOK_S", 600.0)  # who was put aside is not forgotten meanwhile
    code = HOLD.replace("with getattr", "while True:\n  with getattr").replace("    ", "      ")
    worker = SearchWorker(db, Settings(home=tmp_path), gate=gate, proposer=_Watched(gate))
    job_id = post(db, 8)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "locks"), "exclusive", "2"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "here\n"
        assert process.stdout.readline() == "in\n"
        with going(worker, db):
            assert until(lambda: proposed(db, job_id) > 0)
    finally:
        process.kill()
        process.wait()
