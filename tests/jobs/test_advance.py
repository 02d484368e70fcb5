"""Does a job get from its request to its release, within its budget, whatever its trials do?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.hands import BASELINE_US, DEVICE, OTHER_DEVICE, Hands, connect, disconnect, drive
from support.store import failed
from support.toy_family import true_us

from search_space.schedule import Schedule
from service.jobs import searching
from service.jobs.advance import advance, look
from service.jobs.proposing import Ask, Proposal
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.store import events, jobs, races, releases, trials
from service.store.database import Database
from service.store.enums import (
    EntrantRole,
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    ProposalSource,
    TrialReason,
    TrialState,
    Winner,
)
from service.store.records import (
    Entrant,
    EntrantResult,
    JobProblemRecord,
    JobRecord,
    ReleaseRecord,
    TrialRecord,
)

LAYER: dict[str, Any] = {"op": "gemm", "n": 64, "k": 64, "dtype": "f32"}
PROBLEM = {**LAYER, "m": 8}


def post(db: Database, **body: Any) -> int:
    if "sweep" not in body and "problems" not in body:
        body = {"problem": PROBLEM, **body}
    job, _ = submit(db, {"target": {"device": DEVICE}, "budget": {"trials": 8}, **body})
    return job.id


def rows_of(db: Database, job_id: int) -> list[JobProblemRecord]:
    with db.read() as s:
        return jobs.problems(s, job_id)


def trials_of(db: Database, job_id: int) -> list[TrialRecord]:
    with db.read() as s:
        return [t for row in jobs.problems(s, job_id) for t in trials.of_problem(s, row.id)]


def served(db: Database, row: JobProblemRecord) -> ReleaseRecord | None:
    with db.read() as s:
        return releases.best(s, row.problem_key, row.device_key or "", "cold-eager")


def job_of(db: Database, job_id: int) -> JobRecord:
    with db.read() as s:
        job = jobs.get(s, job_id)
    assert job is not None
    return job


def fell(entrant: Entrant, reason: TrialReason) -> EntrantResult:
    """An entrant that failed in the race."""
    return EntrantResult(entrant.name, entrant.role, entrant.trial_id, None, None, failed(reason))


def test_the_whole_way(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db, budget={"trials": 12})
    job = drive(both, job_id, proposer)
    assert (job.state, job.reason) == (JobState.DONE, None)
    tried = trials_of(both.db, job_id)
    assert len(tried) == 12
    assert (tried[0].number, tried[0].source) == (0, ProposalSource.DEFAULT)
    assert len({t.schedule_key for t in tried}) == 12
    row = rows_of(both.db, job_id)[0]
    assert (row.state, row.reason) == (JobProblemState.DONE, JobProblemReason.BUDGET_TRIALS)
    release = served(both.db, row)
    assert release is not None
    best = min(t.time_us for t in tried if t.time_us is not None)
    assert (release.time_us, release.baseline_time_us, release.winner) == (best, BASELINE_US, Winner.TRIAL)
    assert release.reason in row.message
    names = both.races[0]
    assert names[-2:] == ["twin", "baseline"]
    assert "default" in names
    assert 3 <= len(names) <= 7
    with both.db.read() as s:
        told = [(e.kind.value, e.source, e.to) for e in events.after(s, 0, job_id=job_id)]
    assert told[0] == ("job", None, "queued")
    assert told[-2:] == [("job", "running", "finishing"), ("job", "finishing", "done")]


def test_problems_run_one_after_another_and_learn_from_each_other(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, problem=LAYER, sweep={"m": [8, 16, 0]}, budget={"trials": 20})
    states = []

    def watch(schedule: Schedule) -> None:
        states.append([row.state for row in rows_of(hands.db, job_id)])

    hands.on_compile = watch  # type: ignore[assignment]
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.DONE
    active = (JobProblemState.SEARCHING, JobProblemState.RACING)
    assert all(sum(state in active for state in now) == 1 for now in states)
    first, second, empty = rows_of(hands.db, job_id)
    assert (empty.state, empty.reason) == (JobProblemState.DONE, JobProblemReason.EMPTY_PROBLEM)
    won = served(hands.db, first)
    assert won is not None
    with hands.db.read() as s:
        moved = [t for t in trials.of_problem(s, second.id) if t.source is ProposalSource.TRANSFER]
        assert trials.of_problem(s, empty.id) == []
    assert won.schedule_key in {t.schedule_key for t in moved}


def test_in_flight_trials_are_bounded(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"trials": 40})
    advance(hands.db, job_id, proposer)
    assert len(trials_of(hands.db, job_id)) == searching.IN_FLIGHT
    hands.compile(3)
    hands.measure(3)
    assert not advance(hands.db, job_id, proposer)
    hands.compile(1)
    hands.measure(1)
    assert advance(hands.db, job_id, proposer)
    with hands.db.read() as s:
        assert trials.in_flight(s, rows_of(hands.db, job_id)[0].id) == searching.IN_FLIGHT


def test_advancing_twice_is_advancing_once(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db)
    assert advance(both.db, job_id, proposer)
    before = trials_of(both.db, job_id)
    assert not advance(both.db, job_id, proposer)
    assert not advance(both.db, job_id, Proposer(scored=50), owner="another")
    assert trials_of(both.db, job_id) == before


def test_whoever_does_not_hold_the_lease_writes_nothing(both: Hands, proposer: Proposer) -> None:
    from service.store import leases

    job_id = post(both.db)
    with both.db.begin() as s:
        assert leases.acquire(s, leases.job_lease(job_id), "another", 60)
    assert not advance(both.db, job_id, proposer, owner="me")
    assert trials_of(both.db, job_id) == []
    assert job_of(both.db, job_id).state is JobState.QUEUED


class _Slow:
    """A proposer during whose answer the world changes."""

    def __init__(self, inner: Proposer, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._meanwhile = meanwhile

    def propose(self, ask: Ask) -> list[Proposal]:
        found = self._inner.propose(ask)
        self._meanwhile()
        return found

    def forget(self, name: str) -> None:
        self._inner.forget(name)


def test_an_answer_that_comes_after_the_cancel_changes_nothing(both: Hands, proposer: Proposer) -> None:
    from service.jobs.control import cancel

    job_id = post(both.db)
    slow = _Slow(proposer, lambda: cancel(both.db, job_id))
    advance(both.db, job_id, slow)
    assert trials_of(both.db, job_id) == []
    assert job_of(both.db, job_id).state is JobState.CANCELLED


def test_an_answer_that_comes_after_the_lease_ran_out_is_dropped(both: Hands, proposer: Proposer) -> None:
    from service.store import leases

    job_id = post(both.db)

    def lose() -> None:
        with both.db.begin() as s:
            leases.release_all(s, "me")
            assert leases.acquire(s, leases.job_lease(job_id), "another", 60)

    advance(both.db, job_id, _Slow(proposer, lose), owner="me")
    assert trials_of(both.db, job_id) == []


def test_no_session_is_open_while_the_proposer_thinks(both: Hands, proposer: Proposer) -> None:
    """Another writer gets through: SQLite has one writer, and Postgres would time out on the lock."""
    job_id = post(both.db)
    written = []

    def write() -> None:
        with both.db.begin() as s:
            jobs.set_priority(s, job_id, 5)
        written.append(True)

    advance(both.db, job_id, _Slow(proposer, write))
    assert written


# ---------------------------------------------------------------- budgets


def test_trials_of_the_budget_are_not_exceeded(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, problem=LAYER, sweep={"m": [1, 2]}, budget={"trials": 5})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    with hands.db.read() as s:
        counts = [len(trials.of_problem(s, row.id)) for row in jobs.problems(s, job_id)]
    assert counts == [3, 2]


def test_one_trial_is_the_default(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"trials": 1})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    release = served(hands.db, rows_of(hands.db, job_id)[0])
    assert release is not None
    assert release.tie_set[0]["trial_id"] == trials_of(hands.db, job_id)[0].id


def test_seconds_hold_on_the_jobs_own_clock(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db, budget={"seconds": 3.0}, early_stop=False)
    both.on_measure = lambda schedule: time.sleep(0.05)  # type: ignore[return-value]
    job = drive(both, job_id, proposer, batch=1)
    assert job.state is JobState.DONE
    assert 1.5 < job.ran_s < 3.0 + 3.0  # a busy machine takes a second to race
    row = rows_of(both.db, job_id)[0]
    assert row.reason is JobProblemReason.BUDGET_SECONDS
    left = [t for t in trials_of(both.db, job_id) if t.state is TrialState.CANCELLED]
    assert left
    assert {t.reason for t in left} == {TrialReason.BUDGET_SPENT}
    assert served(both.db, row) is not None


def test_a_pause_does_not_use_seconds_up(hands: Hands, proposer: Proposer) -> None:
    from service.jobs.control import pause, resume

    job_id = post(hands.db, budget={"seconds": 60.0, "trials": 3})
    advance(hands.db, job_id, proposer)
    pause(hands.db, job_id)
    ran_s = job_of(hands.db, job_id).ran_s
    time.sleep(1.0)
    resume(hands.db, job_id)
    assert job_of(hands.db, job_id).ran_s == ran_s > 0
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.DONE
    assert job.finished_at is not None
    assert job.started_at is not None
    assert job.ran_s <= (job.finished_at - job.started_at).total_seconds() - 1.0


def test_device_seconds_hold(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"device_seconds": 0.0065}, early_stop=False)
    assert drive(hands, job_id, proposer, batch=1).state is JobState.DONE
    assert rows_of(hands.db, job_id)[0].reason is JobProblemReason.BUDGET_DEVICE_SECONDS
    measured = [t for t in trials_of(hands.db, job_id) if t.device_s]
    assert len(measured) == 7


def test_what_no_longer_improves_is_stopped_if_wanted(hands: Hands, proposer: Proposer) -> None:
    hands.time_us = lambda schedule: 1000.0
    job_id = post(hands.db, budget={"trials": 60})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert rows_of(hands.db, job_id)[0].reason is JobProblemReason.CONVERGED
    assert 24 <= len(trials_of(hands.db, job_id)) < 40
    job_id = post(hands.db, budget={"trials": 44}, early_stop=False)
    drive(hands, job_id, proposer)
    assert len(trials_of(hands.db, job_id)) == 44


def test_a_small_space_is_exhausted_and_the_next_problem_goes_on(both: Hands, proposer: Proposer) -> None:
    params = {"mr": 4, "nr": 16, "kc": 128, "prefetch": 0, "way": "rows"}
    job_id = post(both.db, problem=LAYER, sweep={"m": [1, 2]}, budget={"trials": 40}, params=params)
    assert drive(both, job_id, proposer).state is JobState.DONE
    for row in rows_of(both.db, job_id):
        assert (row.state, row.reason) == (JobProblemState.DONE, JobProblemReason.SPACE_EXHAUSTED)
    assert len(trials_of(both.db, job_id)) == 8
    assert {t.schedule["tile"]["mr"] for t in trials_of(both.db, job_id)} == {4}


def test_limits_without_a_legal_schedule_are_said_so(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, params={"mr": 8, "nr": 48})
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.FAILED
    assert "no legal schedule" in job.message


# ---------------------------------------------------------------- failures


def test_the_default_is_served_where_nothing_else_works(hands: Hands, proposer: Proposer) -> None:
    default = {"mr": 4, "nr": 16, "kc": 128, "pack": False, "prefetch": 0, "split": 1, "way": "rows"}
    hands.on_compile = lambda s: None if s.values() == default else failed(TrialReason.COMPILE_ERROR)
    job_id = post(hands.db, budget={"trials": 10})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    release = served(hands.db, rows_of(hands.db, job_id)[0])
    assert release is not None
    assert Schedule.from_json(release.schedule).values() == default


def test_where_nothing_passes_the_failures_are_counted(hands: Hands, proposer: Proposer) -> None:
    def outcome(schedule: Schedule) -> Any:
        return failed(TrialReason.WRONG_RESULT if schedule.flag("pack") else TrialReason.NAN_RESULT)

    hands.on_measure = outcome
    job_id = post(hands.db, budget={"trials": 10})
    job = drive(hands, job_id, proposer)
    assert (job.state, job.reason) == (JobState.FAILED, JobReason.NO_PASSING_TRIAL)
    row = rows_of(hands.db, job_id)[0]
    assert (row.state, row.reason) == (JobProblemState.FAILED, JobProblemReason.NO_PASSING_TRIAL)
    assert "10 tried" in row.message
    assert "wrong_result" in row.message
    assert "nan_result" in row.message
    assert served(hands.db, row) is None
    assert hands.races == []


def test_one_failed_problem_does_not_fail_the_others(hands: Hands, proposer: Proposer) -> None:
    seen: list[str] = []

    def outcome(schedule: Schedule) -> Any:
        if rows_of(hands.db, job_id)[0].state is JobProblemState.SEARCHING:
            return failed(TrialReason.COMPILE_TIMEOUT)
        seen.append(schedule.key)
        return None

    hands.on_compile = outcome
    job_id = post(hands.db, problem=LAYER, sweep={"m": [1, 2]}, budget={"trials": 16})
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.DONE
    assert "1 of 2 problems failed" in job.message
    assert [row.state for row in rows_of(hands.db, job_id)] == [JobProblemState.FAILED, JobProblemState.DONE]
    assert seen


def test_a_missing_compiler_ends_the_job_at_once(hands: Hands, proposer: Proposer) -> None:
    hands.on_compile = lambda schedule: failed(TrialReason.COMPILER_MISSING)
    job_id = post(hands.db, budget={"trials": 60})
    job = drive(hands, job_id, proposer)
    assert (job.state, job.reason) == (JobState.FAILED, JobReason.COMPILER_MISSING)
    assert "compiler" in job.message
    assert len(trials_of(hands.db, job_id)) <= 16


def test_schedules_that_crash_do_not_hide_behind_a_well_device(hands: Hands, proposer: Proposer) -> None:
    """Five in a row crash: the canary runs well, so the search goes on and finds others."""
    count = 0

    def outcome(schedule: Schedule) -> Any:
        nonlocal count
        count += 1
        return failed(TrialReason.CRASH) if 6 <= count <= 11 else None

    hands.on_measure = outcome
    job_id = post(hands.db, budget={"trials": 20}, early_stop=False)
    assert drive(hands, job_id, proposer, batch=1).state is JobState.DONE
    assert ["canary"] in hands.races
    with hands.db.read() as s:
        assert "canary" in [e.to for e in events.after(s, 0, job_id=job_id)]
    assert served(hands.db, rows_of(hands.db, job_id)[0]) is not None


def test_a_sick_device_stops_the_job_before_the_budget_is_burnt(both: Hands, proposer: Proposer) -> None:
    count = 0

    def outcome(schedule: Schedule) -> Any:
        nonlocal count
        count += 1
        return failed(TrialReason.HANG) if count > 10 else None

    both.on_measure = outcome
    both.on_entrant = lambda entrant: fell(entrant, TrialReason.HANG)
    job_id = post(both.db, problem=LAYER, sweep={"m": [1, 2]}, budget={"trials": 400}, early_stop=False)
    job = drive(both, job_id, proposer)
    assert (job.state, job.reason) == (JobState.FAILED, JobReason.DEVICE_OUT_OF_SERVICE)
    assert "out of service" in job.message
    assert count < 40
    other = post(both.db, force=True)
    waiting = drive(both, other, proposer)
    assert (waiting.state, waiting.reason) == (JobState.WAITING, JobReason.DEVICE_OUT_OF_SERVICE)


def test_when_nothing_ever_ran_ten_crashes_are_enough(hands: Hands, proposer: Proposer) -> None:
    hands.on_measure = lambda schedule: failed(TrialReason.CRASH)
    job_id = post(hands.db, budget={"trials": 100})
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.FAILED
    assert "crash" in job.message
    assert len(trials_of(hands.db, job_id)) <= 24


# ---------------------------------------------------------------- devices and turns


def test_without_a_device_a_job_ranks_and_releases_nothing(database: Database, proposer: Proposer) -> None:
    hands = Hands(database)
    hands.on_compile = lambda s: failed(TrialReason.COMPILE_ERROR) if s.integer("kc") == 64 else None
    job_id = post(database, target={"arch": "x86-64-v3"}, budget={"trials": 12})
    job = drive(hands, job_id, proposer)
    assert (job.state, job.message) == (JobState.DONE, "compiled, not yet timed")
    states = {t.state for t in trials_of(database, job_id)}
    assert TrialState.RANKED in states
    assert states <= {TrialState.RANKED, TrialState.FAILED}
    with database.read() as s:
        assert releases.listing(s).rows == ()


def test_a_job_waits_for_its_device_and_runs_when_it_comes(database: Database, proposer: Proposer) -> None:
    job_id = post(database)
    assert job_of(database, job_id).state is JobState.WAITING
    assert not advance(database, job_id, proposer)
    connect(database)
    assert drive(Hands(database), job_id, proposer).state is JobState.DONE


def test_a_job_whose_device_goes_waits_and_goes_on(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db, budget={"trials": 12})
    advance(both.db, job_id, proposer)
    both.compile()
    both.measure(3)
    disconnect(both.db)
    assert drive(both, job_id, proposer).state is JobState.WAITING
    done = [t.id for t in trials_of(both.db, job_id) if t.state is TrialState.MEASURED]
    connect(both.db)
    assert drive(both, job_id, proposer).state is JobState.DONE
    assert len(trials_of(both.db, job_id)) == 12
    assert len(both.measured) == len(set(both.measured)) == 12
    assert set(done) <= set(both.measured)


def test_each_device_has_its_own_search_and_release(database: Database, proposer: Proposer) -> None:
    connect(database, DEVICE, OTHER_DEVICE)
    near, far = Hands(database), Hands(database, device_key=OTHER_DEVICE)
    far.time_us = lambda schedule: 0.5 * true_us(schedule)
    job_id = post(database, target={"devices": [DEVICE, OTHER_DEVICE]}, budget={"trials": 8})
    for _ in range(60):
        advance(database, job_id, proposer)
        for hands in (near, far):
            hands.compile()
            hands.measure()
            hands.race()
        if not job_of(database, job_id).open:
            break
    assert job_of(database, job_id).state is JobState.DONE
    first, second = (served(database, row) for row in rows_of(database, job_id))
    assert first is not None
    assert second is not None
    assert (first.device_key, second.device_key) == (DEVICE, OTHER_DEVICE)
    assert second.time_us < first.time_us


def test_jobs_take_turns_on_a_device_by_priority_then_age(both: Hands, proposer: Proposer) -> None:
    first = post(both.db, seed=1, budget={"trials": 4})
    second = post(both.db, seed=2, budget={"trials": 4})
    urgent = post(both.db, seed=3, priority=5, budget={"trials": 4})
    ids = (first, second, urgent)
    assert advance(both.db, first, proposer)
    assert not advance(both.db, second, proposer)
    assert job_of(both.db, second).state is JobState.QUEUED
    assert advance(both.db, urgent, proposer)
    ended: list[int] = []
    for _ in range(80):
        with both.db.read() as s:
            order = jobs.advanceable(s)
        for job_id in order:
            advance(both.db, job_id, proposer)
        both.compile(4)
        both.measure(4)
        both.race()
        ended += [i for i in ids if i not in ended and not job_of(both.db, i).open]
    assert ended == [urgent, first, second]


# ---------------------------------------------------------------- the race


def test_retuning_does_not_flip_the_winner(hands: Hands, proposer: Proposer) -> None:
    hands.noise = 0.004
    job_id = post(hands.db, budget={"trials": 10})
    drive(hands, job_id, proposer)
    row = rows_of(hands.db, job_id)[0]
    first = served(hands.db, row)
    assert first is not None
    for seed in (0, 0):
        again = post(hands.db, budget={"trials": 10}, force=True, seed=seed)
        assert drive(hands, again, Proposer(scored=100)).state is JobState.DONE
        now = served(hands.db, row)
        assert now is not None
        if now.id != first.id:
            assert now.time_us < first.time_us / 1.005
            first = now
    assert any(name.startswith("served-") for name in hands.races[-1])


def test_what_is_served_is_tried_early_and_raced(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"trials": 10})
    drive(hands, job_id, proposer)
    first = served(hands.db, rows_of(hands.db, job_id)[0])
    assert first is not None
    again = post(hands.db, budget={"trials": 4}, force=True)
    drive(hands, again, proposer)
    early = trials_of(hands.db, again)[:3]
    assert first.schedule_key in [t.schedule_key for t in early]
    now = served(hands.db, rows_of(hands.db, again)[0])
    assert now is not None
    assert now.id == first.id
    assert f"Release {first.id} stays" in rows_of(hands.db, again)[0].message


def test_the_vendor_is_served_where_it_wins(hands: Hands, proposer: Proposer) -> None:
    hands.baseline_us = 500.0
    job_id = post(hands.db)
    assert drive(hands, job_id, proposer).state is JobState.DONE
    row = rows_of(hands.db, job_id)[0]
    release = served(hands.db, row)
    assert release is not None
    assert (release.winner, release.artifact_sha256, release.time_us) == (Winner.BASELINE, None, 500.0)
    assert "vendor" in row.message


def test_a_finalist_that_fails_its_recheck_is_not_served(hands: Hands, proposer: Proposer) -> None:
    fastest: list[int] = []

    def outcome(entrant: Any) -> Any:
        if entrant.role is EntrantRole.FINALIST and not fastest:
            fastest.append(entrant.trial_id)
        if entrant.trial_id in fastest:
            return fell(entrant, TrialReason.WRONG_RESULT)
        return None

    hands.on_entrant = outcome
    job_id = post(hands.db, budget={"trials": 12})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    release = served(hands.db, rows_of(hands.db, job_id)[0])
    assert release is not None
    assert release.trial_id not in fastest
    with hands.db.read() as s:
        loser = trials.get(s, fastest[0])
        notes = [e.data for e in events.after(s, 0, job_id=job_id) if e.to == "finalist_failed"]
    assert loser is not None
    assert (loser.state, loser.reason) == (TrialState.FAILED, TrialReason.WRONG_RESULT)
    assert "wrong_result" in notes[0]["text"]


def test_when_all_finalists_fail_the_ones_behind_race(hands: Hands, proposer: Proposer) -> None:
    def outcome(entrant: Any) -> Any:
        if len(hands.races) == 1 and entrant.trial_id is not None:
            return fell(entrant, TrialReason.CRASH)
        return None

    hands.on_entrant = outcome
    hands.time_us = lambda schedule: 1000.0 + schedule.integer("kc")
    job_id = post(hands.db, budget={"trials": 16})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert len(hands.races) == 2
    assert served(hands.db, rows_of(hands.db, job_id)[0]) is not None


def test_a_disturbed_race_is_run_again_and_then_nothing_is_promoted(hands: Hands, proposer: Proposer) -> None:
    hands.on_entrant = lambda entrant: hands.raced(entrant, contended=len(hands.races) < 3)
    job_id = post(hands.db, budget={"trials": 4})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert len(hands.races) == 3
    hands.races.clear()
    hands.on_entrant = lambda entrant: hands.raced(entrant, contended=True)
    other = post(hands.db, problem={**PROBLEM, "m": 3}, budget={"trials": 4})
    job = drive(hands, other, proposer)
    assert len(hands.races) == 3
    assert job.state is JobState.FAILED
    assert "disturbed" in job.message
    assert served(hands.db, rows_of(hands.db, other)[0]) is None
    hands.races.clear()
    again = post(hands.db, force=True, budget={"trials": 4})
    assert drive(hands, again, proposer).state is JobState.DONE
    assert "stays" in rows_of(hands.db, again)[0].message


def test_a_race_that_loses_its_worker_is_run_once_more(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db)
    while not hands.races and job_of(hands.db, job_id).open:
        advance(hands.db, job_id, proposer)
        hands.compile()
        hands.measure()
        with hands.db.begin() as s:
            claim = races.claim(s, "measurer", DEVICE, 60)
            if claim is not None:
                races.finish(s, claim.claim_id, failed(TrialReason.WORKER_LOST))
                break
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert len(hands.races) == 1


def test_a_wrong_result_takes_its_release_back(both: Hands, proposer: Proposer) -> None:
    job_id = post(both.db, budget={"trials": 6})
    drive(both, job_id, proposer)
    row = rows_of(both.db, job_id)[0]
    first = served(both.db, row)
    assert first is not None

    def outcome(entrant: Any) -> Any:
        schedule = None if entrant.schedule is None else Schedule.from_json(entrant.schedule).key
        if schedule == first.schedule_key:
            return fell(entrant, TrialReason.WRONG_RESULT)
        return None

    both.on_entrant = outcome
    again = post(both.db, budget={"trials": 6}, force=True)
    drive(both, again, proposer)
    with both.db.read() as s:
        old = releases.get(s, first.id)
    now = served(both.db, row)
    assert old is not None
    assert old.state.value == "withdrawn"
    assert now is not None
    assert now.schedule_key != first.schedule_key
    third = post(both.db, budget={"trials": 6}, force=True, seed=9)
    drive(both, third, proposer)
    assert first.schedule_key not in {t.schedule_key for t in trials_of(both.db, third)}


@pytest.mark.parametrize("state", ["paused", "cancelled", "done"])
def test_nothing_is_to_be_done_for_a_job_at_rest(hands: Hands, proposer: Proposer, state: str) -> None:
    from service.jobs.control import cancel, pause

    job_id = post(hands.db)
    advance(hands.db, job_id, proposer)
    if state == "done":
        drive(hands, job_id, proposer)
    else:
        (pause if state == "paused" else cancel)(hands.db, job_id)
    with hands.db.read() as s:
        assert look(s, job_id) is None
    assert not advance(hands.db, job_id, proposer)
