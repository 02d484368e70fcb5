"""Does a job survive kill -9 of its search worker anywhere, with nothing lost and nothing counted twice?"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import search_process
from support.hands import DEVICE, Hands, connect

from service.jobs.submit import submit
from service.store import jobs, races, releases, trials
from service.store.database import Database
from service.store.enums import JobProblemState, JobState, RaceState, TrialState

LAYER: dict[str, Any] = {"op": "gemm", "n": 64, "k": 64, "dtype": "f32"}
TRIALS = 24
LIMIT_S = 120.0


class Run:
    """One job, worked on by the test's hands and advanced by a process that is killed again and again."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home
        self.db = Database(url, name="rooftile-test")
        connect(self.db)
        self.hands = Hands(self.db)
        body = {"problem": LAYER, "sweep": {"m": [1, 2]}, "target": {"device": DEVICE}}
        job, _ = submit(self.db, {**body, "budget": {"trials": 2 * TRIALS}, "early_stop": False})
        self.job_id = job.id
        self.kills = 0
        self.beaten = time.monotonic()

    def until(self, reached: Callable[[], bool], *, race: bool = True) -> None:
        """A new search process runs until `reached`, and is killed then."""
        process = search_process.start(self.url, self.home)
        try:
            deadline = time.monotonic() + LIMIT_S
            while not reached():
                assert process.poll() is None, _stderr(process)
                assert time.monotonic() < deadline, f"{self.job().state}: {self.job().message}"
                if time.monotonic() - self.beaten > 5.0:
                    connect(self.db)
                    self.beaten = time.monotonic()
                self.hands.compile(3)
                self.hands.measure(2)
                if race:
                    self.hands.race()
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            _stderr(process)
            self.kills += 1

    def job(self) -> Any:
        with self.db.read() as s:
            return jobs.get(s, self.job_id)

    def rows(self) -> list[Any]:
        with self.db.read() as s:
            return jobs.problems(s, self.job_id)

    def tried(self, index: int = 0) -> list[Any]:
        with self.db.read() as s:
            return trials.of_problem(s, jobs.problems(s, self.job_id)[index].id)

    def racing(self, *states: RaceState) -> bool:
        with self.db.read() as s:
            return any(race.state in states for race in races.of_job(s, self.job_id))


def _stderr(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    if process.poll() is None or process.stderr.closed:
        return ""
    with process.stderr as stream:
        return stream.read().decode()[-2000:]


def test_killed_at_every_stage_the_job_ends_as_if_nothing_had_been(database_url: str, tmp_path: Path) -> None:
    run = Run(database_url, tmp_path)
    run.until(lambda: len(run.tried()) > 0)
    run.until(lambda: sum(t.state in (TrialState.MEASURED, TrialState.CULLED) for t in run.tried()) >= 10)
    run.until(lambda: run.racing(RaceState.QUEUED), race=False)
    run.until(lambda: run.racing(RaceState.DONE))
    run.until(lambda: run.rows()[1].state is JobProblemState.SEARCHING and len(run.tried(1)) > 0)
    run.until(lambda: not run.job().open)
    assert run.kills == 6
    assert run.job().state is JobState.DONE
    for index in (0, 1):
        tried = run.tried(index)
        assert [t.number for t in tried] == list(range(TRIALS))
        assert len({t.schedule_key for t in tried}) == TRIALS
        assert {t.state for t in tried} <= {TrialState.MEASURED, TrialState.CULLED}
        assert {t.attempt for t in tried} == {2}  # one claim to compile, one to measure
    assert len(run.hands.measured) == len(set(run.hands.measured)) == 2 * TRIALS
    with run.db.read() as s:
        for row in run.rows():
            assert row.state is JobProblemState.DONE
            line = releases.history(s, row.problem_key, DEVICE, "cold-eager")
            assert len(line) == 1
        assert [race.number for race in races.of_job(s, run.job_id)] == [0, 0]
    run.db.close()


def test_a_search_worker_that_is_stopped_ends_in_order(sqlite_url: str, tmp_path: Path) -> None:
    from service.store import workers

    db = Database(sqlite_url)
    process = search_process.start(sqlite_url, tmp_path)
    deadline = time.monotonic() + LIMIT_S
    alive: list[Any] = []
    while not alive and time.monotonic() < deadline:
        with db.read() as s:
            alive = workers.alive(s)
        time.sleep(0.05)
    assert [w.pid for w in alive] == [process.pid]
    process.terminate()
    assert process.wait(10) == 0, _stderr(process)
    _stderr(process)
    with db.read() as s:
        assert workers.alive(s) == []
    db.close()


def test_without_a_database_there_is_one_sentence(tmp_path: Path) -> None:
    process = search_process.start("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    assert process.wait(60) == 1
    text = _stderr(process)
    assert text.startswith("rooftile: ")
    assert len(text.strip().splitlines()) == 1
    assert "Traceback" not in text
