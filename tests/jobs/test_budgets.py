"""Does every part of a budget hold?"""

from __future__ import annotations

import time

from support.hands import Hands, drive
from support.job_views import LAYER, job_of, post, rows_of, served, trials_of

from service.jobs.advance import advance
from service.search.proposer import Proposer
from service.store import jobs, trials
from service.store.enums import (
    JobProblemReason,
    JobProblemState,
    JobState,
    TrialReason,
    TrialState,
)


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
    assert 1.5 < job.ran_s < 3.0 + 6.0  # a busy machine takes its time to race
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
