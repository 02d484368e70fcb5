"""Is the right one served after a race, and nothing that failed or was disturbed?"""

from __future__ import annotations

import time
from typing import Any

from support.hands import DEVICE, Hands, drive
from support.job_views import PROBLEM, fell, job_of, post, rows_of, served, trials_of
from support.store import failed

from search_space.schedule import Schedule
from service.jobs.advance import advance
from service.search.proposer import Proposer
from service.store import events, races, releases, trials
from service.store.enums import (
    EntrantRole,
    JobState,
    TrialReason,
    TrialState,
    Winner,
)


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
    assert f"trial-{fastest[0]} " in notes[0]["text"]  # by its id, as everywhere


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


def test_out_of_time_a_disturbed_race_is_run_once_more(hands: Hands, proposer: Proposer) -> None:
    hands.on_entrant = lambda entrant: hands.raced(entrant, contended=True)
    job_id = post(hands.db, budget={"seconds": 2.0, "trials": 2})

    def slow(schedule: Schedule) -> None:
        time.sleep(1.2)

    hands.on_measure = slow  # type: ignore[assignment]
    job = drive(hands, job_id, proposer)
    assert len(hands.races) == 2
    assert job.state is JobState.FAILED


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
