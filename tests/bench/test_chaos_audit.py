"""Does the audit of the chaos run see each thing that may be wrong, and nothing else? Do its helpers work?"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session
from support.store import beat, compile_all, measure_all, running_job

from bench.chaos import plan
from bench.chaotic.audit import Findings, audit_leases, audit_store
from bench.chaotic.clock import preload, set_clock
from bench.chaotic.faults import FAULTS, limited
from bench.chaotic.process import Process, children_of, processes_of
from bench.chaotic.work import Posted
from service.store import jobs, leases, moves, trials
from service.store.database import Database
from service.store.enums import JobProblemReason, JobProblemState, JobReason, JobState, TrialState
from service.store.models import Job, JobProblem, Trial, Verdict


@pytest.fixture
def store(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url, name="rooftile-test")
    yield database
    database.close()


def whole(s: Session) -> Posted:
    """A job that ended well, and the person who was told of it."""
    job_id, _ = running_job(s, 3)
    compile_all(s)
    measure_all(s, [10.0, 20.0, 30.0])
    (problem,) = jobs.problems(s, job_id)
    jobs.move_problem(s, problem.id, JobProblemState.DONE, JobProblemReason.BUDGET_TRIALS, "all were tried")
    jobs.move(s, job_id, JobState.FINISHING)
    jobs.move(s, job_id, JobState.DONE, JobReason.BUDGET_SPENT, "done")
    return Posted({}, "key", "token", job_id, answers={job_id})


def look(store: Database, *posted: Posted) -> Findings:
    found = Findings()
    with store.read() as s:
        audit_store(s, posted, found)
        audit_leases(s, found)
    return found


def wrongs(found: Findings) -> list[str]:
    return [*found.jobs_unexplained, *found.trials_lost, *found.trials_double, *found.orphans]


def test_what_ended_well_is_not_accused(store: Database) -> None:
    with store.begin() as s:
        one = whole(s)
    found = look(store, one)
    assert wrongs(found) == []
    assert (found.jobs, found.trials) == (1, 3)
    assert found.ends["trial", "measured", ""] == 3


def again(s: Session) -> None:
    """A late reply was taken as a second result."""
    trial = s.get_one(Trial, 1)
    trial.state = TrialState.MEASURING
    s.flush()
    moves.transition(s, trial, TrialState.CULLED)


def forgotten(s: Session) -> None:
    """A claim that nobody gave back."""
    s.execute(update(Trial).where(Trial.id == 2).values(state=TrialState.MEASURING, lease_owner="gone"))


def unproved(s: Session) -> None:
    s.execute(update(Verdict).where(Verdict.trial_id == 3).values(passed=False))


def too_many(s: Session) -> None:
    s.execute(update(JobProblem).values(budget_trials=2))


def poisoned(s: Session) -> None:
    s.execute(update(Trial).where(Trial.id == 1).values(attempt=1000))


def silent(s: Session) -> None:
    s.execute(update(JobProblem).values(reason=None, message=""))


def stuck(s: Session) -> None:
    s.execute(update(Job).values(state=JobState.RUNNING))


def second(s: Session) -> None:
    """The same request made two jobs."""
    running_job(s, 0, 9)


def lease(s: Session) -> None:
    leases.acquire(s, leases.job_lease(1), "search-x-1", 60.0)


@pytest.mark.parametrize(
    ("spoil", "where", "says"),
    [
        (again, "trials_double", "2 accepted results"),
        (too_many, "trials_double", "3 trials, and 2 were asked for"),
        (poisoned, "trials_double", "claimed 1000 times"),
        (forgotten, "trials_lost", "is measuring though its job has ended"),
        (forgotten, "orphans", "trials 2 is still claimed by gone"),
        (unproved, "trials_lost", "a time and no verdict"),
        (silent, "jobs_unexplained", "does not say how it ended"),
        (stuck, "jobs_unexplained", "is still running"),
        (second, "jobs_unexplained", "was made, and nobody was told"),
        (lease, "orphans", "the lease job:1 is still held"),
        (beat, "orphans", "listed as a worker that lives"),
    ],
)
def test_what_is_wrong_is_named(
    store: Database, spoil: Callable[[Session], None], where: str, says: str
) -> None:
    with store.begin() as s:
        one = whole(s)
    with store.begin() as s:
        spoil(s)
    assert any(says in sentence for sentence in getattr(look(store, one), where))


def test_a_person_who_got_two_ids_or_none_is_heard(store: Database) -> None:
    with store.begin() as s:
        one = whole(s)
    one.answers.add(7)
    found = look(store, one, Posted({}, "lost", "token"))
    assert len(found.jobs_unexplained) == 2


def test_a_seed_is_a_plan_in_which_every_kind_has_its_turn() -> None:
    first = list(islice(plan(3), 40))
    assert first == list(islice(plan(3), 40))
    assert first != list(islice(plan(4), 40))
    assert all({kind for kind, _ in first[at : at + 10]} == set(FAULTS) for at in (0, 10, 20, 30))


def test_processes_of_a_run_are_found_by_mark_and_by_home(tmp_path: Path) -> None:
    mark = f"ROOFTILE_TEST_MARK={os.urandom(6).hex()}"
    name, _, value = mark.partition("=")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        subprocess.Popen(sleep, env={**os.environ, name: value}) as marked,
        subprocess.Popen(sleep, env={}, cwd=tmp_path) as at_home,
    ):
        try:
            assert {marked.pid, at_home.pid} <= set(children_of(os.getpid()))
            assert wait(lambda: set(processes_of(mark, [tmp_path])) == {marked.pid, at_home.pid})
        finally:
            marked.kill()
            at_home.kill()
    assert processes_of(mark, [tmp_path]) == []


def test_the_clock_of_one_process_moves_and_time_that_passed_does_not(tmp_path: Path) -> None:
    library = preload()
    if library is None:
        pytest.skip("NO CLOCK IS MOVED: there is no libfaketime for this machine")
    clock = tmp_path / "clock"
    text = (
        "import time\nfor _ in range(60): print(time.time(), time.monotonic(), flush=True); time.sleep(0.1)"
    )
    environment = {**os.environ, **library.environment(clock)}
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = ([float(word) for word in line.split()] for line in process.stdout)
        wall, steady = next(lines)
        assert abs(wall - time.time()) < 30
        set_clock(clock, -86_400)
        moved = next(line for line in lines if line[0] < wall - 80_000)
        assert 0 <= moved[1] - steady < 30
        process.kill()


def test_limits_are_those_of_before_when_a_fault_is_over(tmp_path: Path) -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    environment = dict(os.environ)
    process = Process("one", "compile", ("timeit",), environment, tmp_path, None, tmp_path / "log")
    with subprocess.Popen([sys.executable, "-c", text]) as running:
        process.running = running
        before = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
        try:
            with limited(process, running.pid, resource.RLIMIT_FSIZE, 4096):
                assert wait(lambda: len(children_of(running.pid)) == 1)
                (child,) = children_of(running.pid)
                for pid in (running.pid, child):
                    assert resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] in (4096, before[0])
                assert resource.prlimit(running.pid, resource.RLIMIT_FSIZE)[0] == 4096
            for pid in (running.pid, child):
                assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == before
        finally:
            for pid in (*children_of(running.pid), running.pid):
                os.kill(pid, signal.SIGKILL)


def wait(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_lease_that_ran_out_is_no_orphan(store: Database) -> None:
    with store.begin() as s:
        one = whole(s)
        leases.acquire(s, leases.REAPER, "search-x-1", 0.0)
        assert trials.counts(s, job_id=one.job_id)
    assert look(store, one).orphans == []
