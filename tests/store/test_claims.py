"""Can two workers ever have the same work, and does lost work come back a bounded number of times?"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

from support.store import (
    ARCH,
    DEVICE,
    POLICY,
    compile_all,
    compiled,
    failed,
    measure_all,
    measured,
    running_job,
)

from service.store import artifacts, devices, events, jobs, leases, races, trials
from service.store.database import Database
from service.store.enums import (
    DeviceState,
    EntrantRole,
    JobProblemState,
    JobState,
    RaceState,
    TrialReason,
    TrialState,
)
from service.store.records import DeviceRecord, NewEntrant, RaceOutcome

ROOT = Path(__file__).parents[2]


def _work(url: str, name: str, sink: multiprocessing.SimpleQueue[tuple[str, list[int]]]) -> None:
    database = Database(url, name=name)
    mine: list[int] = []
    idle = 0
    while idle < 5:

        def step(s):  # type: ignore[no-untyped-def]
            return trials.claim_compile(s, name, 3, 60, [ARCH])

        claims = database.run(step)
        idle = 0 if claims else idle + 1
        for claim in claims:

            def end(s, claim=claim):  # type: ignore[no-untyped-def]
                return trials.finish_compile(s, claim.claim_id, compiled(f"k{claim.trial_id}".encode()))

            assert database.run(end)
            mine.append(claim.trial_id)
    sink.put((name, mine))


def test_processes_share_the_work_without_taking_any_twice(database_url: str) -> None:
    database = Database(database_url)
    with database.begin() as s:
        for size in (8, 16, 32):
            running_job(s, 20, size)
    context = multiprocessing.get_context("fork")
    sink: multiprocessing.SimpleQueue[tuple[str, list[int]]] = context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(database_url, f"worker-{number}", sink)) for number in range(3)
    ]
    for worker in workers:
        worker.start()
    shares = dict(sink.get() for _ in workers)
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    done = Counter(trial for share in shares.values() for trial in share)
    assert len(done) == 60
    assert set(done.values()) == {1}
    with database.read() as s:
        assert [(one.state, one.count) for one in trials.counts(s)] == [(TrialState.COMPILED, 60)]
        # ids of events are in the order in which they became visible, and there are exactly as many
        # as there were moves: 60 births and 60 ends of trials beside those of the jobs
        told = [one for one in events.after(s, 0, limit=10_000) if one.kind == "trial"]
        assert len(told) == 120
    database.close()


def test_a_claim_can_be_finished_once(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        claim = trials.claim_compile(s, "w", 1, 60, [ARCH])[0]
    with database.begin() as s:
        assert trials.finish_compile(s, claim.claim_id, compiled())
    with database.begin() as s:
        before = trials.get(s, claim.trial_id)
        assert not trials.finish_compile(s, claim.claim_id, failed(TrialReason.COMPILE_ERROR))
        assert trials.get(s, claim.trial_id) == before


def test_a_late_answer_after_the_lease_came_back_changes_nothing(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        late = trials.claim_compile(s, "slow", 1, -1, [ARCH])[0]
        assert [trial.id for trial in trials.expire(s)] == [late.trial_id]
    with database.begin() as s:
        # before anybody else has it, and after
        assert not trials.finish_compile(s, late.claim_id, compiled(b"late"))
        again = trials.claim_compile(s, "quick", 1, 60, [ARCH])[0]
        assert again.attempt == late.attempt + 1
        assert not trials.finish_compile(s, late.claim_id, compiled(b"late"))
        assert trials.renew(s, [late.claim_id, again.claim_id], 60) == [again.claim_id]
        assert trials.release(s, [late.claim_id]) == 0
        assert trials.finish_compile(s, again.claim_id, compiled(b"quick"))
    with database.read() as s:
        assert artifacts.get(s, compiled(b"late").artifact_sha256) is None


def test_a_trial_that_keeps_losing_its_worker_fails(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 1)
        compile_all(s)
    for attempt in range(1, 4):
        with database.begin() as s:
            claim = trials.claim_measure(s, "doomed", DEVICE, 1, 600)[0]
            assert trials.expire(s) == []  # its lease has not run out
            touched = trials.expire(s, owner="doomed")  # but its supervisor saw it die
            expected = TrialState.FAILED if attempt == 3 else TrialState.COMPILED
            assert [trial.state for trial in touched] == [expected]
            assert not trials.finish_measure(s, claim.claim_id, measured(1.0))
    with database.read() as s:
        detail = trials.detail(s, claim.trial_id)
        assert detail is not None
        assert detail.trial.reason is TrialReason.WORKER_LOST
        assert detail.evidence["losses"] == 3
        assert trials.in_flight(s, claim.job_problem_id) == 0
        job = jobs.get(s, job_id)
        assert job is not None
        assert job.state is JobState.RUNNING


def test_what_kills_its_worker_takes_no_others_along(database: Database) -> None:
    """The first of four kills whoever has it. The others, claimed with it once, are all measured."""
    with database.begin() as s:
        _, rows = running_job(s, 4)
        compile_all(s)
    poison = rows[0].id
    deaths = 0
    for _ in range(12):
        with database.begin() as s:
            claims = trials.claim_measure(s, "w", DEVICE, 4, 600)
            if any(claim.trial_id == poison for claim in claims):
                if deaths:
                    assert len(claims) == 1
                    assert trials.claim_measure(s, "w", DEVICE, 4, 600, ahead=True) == []
                deaths += 1
                trials.expire(s, owner="w")
                continue
            for claim in claims:
                assert trials.finish_measure(s, claim.claim_id, measured(1.0))
    with database.read() as s:
        found = [trials.get(s, row.id) for row in rows]
    states = [(one.state, one.reason) for one in found if one is not None]
    assert states == [(TrialState.FAILED, TrialReason.WORKER_LOST), *[(TrialState.MEASURED, None)] * 3]
    assert deaths == 3


def test_losses_of_the_compile_do_not_count_against_the_measure(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        for _ in range(2):
            trials.claim_compile(s, "w", 1, -1, [ARCH])
            trials.expire(s)
        compile_all(s)
        trials.claim_measure(s, "w", DEVICE, 1, -1)
        assert [trial.state for trial in trials.expire(s)] == [TrialState.COMPILED]


def test_claims_given_back_in_order_do_not_count_as_losses(database: Database) -> None:
    with database.begin() as s:
        running_job(s, 1)
        for _ in range(5):
            claim = trials.claim_compile(s, "w", 1, 60, [ARCH])[0]
            assert trials.release(s, [claim.claim_id]) == 1
        assert len(trials.claim_compile(s, "w", 1, 60, [ARCH])) == 1


def test_a_cancelled_job_ends_what_is_under_way(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 3)
        claim = trials.claim_compile(s, "w", 1, 60, [ARCH])[0]
    with database.begin() as s:
        jobs.move(s, job_id, JobState.CANCELLED)
        assert trials.cancel_open(s, job_id=job_id) == 3
    with database.begin() as s:
        assert not trials.finish_compile(s, claim.claim_id, compiled())
        assert trials.claim_compile(s, "w", 3, 60, [ARCH]) == []
        assert [one.state for one in trials.counts(s, job_id=job_id)] == [TrialState.CANCELLED]


def test_a_race_comes_back_too_and_fails_in_the_end(database: Database) -> None:
    with database.begin() as s:
        job_id, _ = running_job(s, 1)
        compile_all(s)
        (trial,) = measure_all(s, [5.0])
        problem = jobs.problems(s, job_id)[0]
        jobs.move_problem(s, problem.id, JobProblemState.RACING)
        entrant = NewEntrant("default", EntrantRole.DEFAULT, trial)
        race = races.create(s, problem.id, [entrant], POLICY, seed=1)
        given_back = races.claim(s, "w", DEVICE, 60)
        assert given_back is not None
        assert races.release(s, given_back.claim_id)
        for _ in range(3):
            assert races.waits(s, DEVICE)
            claim = races.claim(s, "w", DEVICE, -1)
            assert claim is not None
            assert races.renew(s, claim.claim_id, -1)
            assert races.expire(s) == [race.id]
            assert not races.renew(s, claim.claim_id, 60)
            assert not races.finish(s, claim.claim_id, RaceOutcome([], {}, {}))
        ended = races.get(s, race.id)
        assert ended is not None
        assert (ended.state, ended.reason) == (RaceState.FAILED, TrialReason.WORKER_LOST)
        assert not races.waits(s, DEVICE)


def test_a_device_out_of_service_gets_no_work(database: Database) -> None:
    with database.begin() as s:
        devices.upsert(s, DeviceRecord(DEVICE, "Test CPU", "cpu", ARCH))
        running_job(s, 1)
        compile_all(s)
        devices.set_state(s, DEVICE, DeviceState.OUT_OF_SERVICE, "too hot")
        assert not trials.measure_waits(s, DEVICE)
        assert trials.claim_measure(s, "w", DEVICE, 1, 60) == []
        devices.set_state(s, DEVICE, DeviceState.AVAILABLE)
        assert trials.measure_waits(s, DEVICE)
        assert len(trials.claim_measure(s, "w", DEVICE, 1, 60)) == 1


def test_named_leases_change_hands_when_they_run_out(database: Database) -> None:
    with database.begin() as s:
        first = leases.acquire(s, leases.REAPER, "a", 60)
        assert first is not None
        assert leases.acquire(s, leases.REAPER, "b", 60) is None
        again = leases.acquire(s, leases.REAPER, "a", -1)
        assert again is not None
        assert again.token == first.token
        assert not leases.renew(s, leases.REAPER, "a", 60)
        taken = leases.acquire(s, leases.REAPER, "b", 60)
        assert taken is not None
        assert taken.token == first.token + 1
        assert not leases.release(s, leases.REAPER, "a")
        assert leases.release_all(s, "b") == 1
        assert leases.holder(s, leases.REAPER) is None
        third = leases.acquire(s, leases.REAPER, "a", 60)
        assert third is not None
        assert third.token == taken.token + 1


KILLED = """
    import sys, time
    from service.store import trials
    from service.store.database import Database
    from support.store import ARCH, compiled

    database = Database(sys.argv[1])
    with database.begin() as s:
        claim = trials.claim_compile(s, "killed", 1, 60, [ARCH])[0]
    print(claim.trial_id, claim.attempt, flush=True)
    with database.begin() as s:
        assert trials.finish_compile(s, claim.claim_id, compiled(b"half"))
        s.flush()
        print("written, not committed", flush=True)
        time.sleep(60)
"""


def test_kill_9_in_a_transaction_leaves_nothing_half_written(database_url: str) -> None:
    database = Database(database_url)
    with database.begin() as s:
        running_job(s, 1)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), database_url],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert child.stdout is not None
    trial_id, attempt = map(int, child.stdout.readline().split())
    assert child.stdout.readline() == "written, not committed\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 20
    while True:  # the server notices a dead client when it talks to it next
        with database.begin() as s:
            trial = trials.get(s, trial_id)
            assert trial is not None
            assert (trial.state, trial.attempt, trial.lease_owner) == (
                TrialState.PROPOSED,
                attempt,
                "killed",
            )
            assert artifacts.get(s, compiled(b"half").artifact_sha256) is None
            assert "compiled" not in [one.to for one in events.after(s, 0)]
            touched = trials.expire(s, owner="killed")
        if touched:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with database.begin() as s:
        assert compile_all(s) == 1
    database.close()
