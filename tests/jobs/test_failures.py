"""Does a job go on, or end with a reason, when its trials fail?"""

from __future__ import annotations

from typing import Any

from support.hands import Hands, drive
from support.job_views import LAYER, PROBLEM, fell, post, rows_of, served, trials_of
from support.store import failed

from search_space.schedule import Schedule
from service.search.proposer import Proposer
from service.store import events
from service.store.enums import (
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    ReleaseState,
    TrialReason,
)


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


def test_a_device_that_is_sick_from_the_first_trial_on_is_found_by_what_is_served(
    both: Hands, proposer: Proposer
) -> None:
    """The canary comes from another problem's release, which keeps its place whatever a sick device does."""
    first = post(both.db, budget={"trials": 8})
    assert drive(both, first, proposer).state is JobState.DONE
    good = served(both.db, rows_of(both.db, first)[0])
    assert good is not None
    both.on_measure = lambda schedule: failed(TrialReason.CRASH)
    both.on_entrant = lambda entrant: fell(entrant, TrialReason.WRONG_RESULT)
    job_id = post(both.db, problem={**PROBLEM, "m": 3}, budget={"trials": 100})
    job = drive(both, job_id, proposer)
    assert (job.state, job.reason) == (JobState.FAILED, JobReason.DEVICE_OUT_OF_SERVICE)
    assert both.races[-1] == ["canary"]
    assert both.raced_problems[-1]["m"] == PROBLEM["m"]
    assert len(trials_of(both.db, job_id)) <= 24
    still = served(both.db, rows_of(both.db, first)[0])
    assert still is not None
    assert (still.id, still.state) == (good.id, ReleaseState.PUBLISHED)


def test_when_nothing_ever_ran_ten_crashes_are_enough(hands: Hands, proposer: Proposer) -> None:
    hands.on_measure = lambda schedule: failed(TrialReason.CRASH)
    job_id = post(hands.db, budget={"trials": 100})
    job = drive(hands, job_id, proposer)
    assert job.state is JobState.FAILED
    assert "crash" in job.message
    assert len(trials_of(hands.db, job_id)) <= 24
