"""Does the search know of a job's trials what the rows say, and read only those that moved?"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session
from support.hands import Hands, drive
from support.job_views import job_of, post, rows_of
from support.store import failed

from search_space.schedule import Schedule
from service.jobs import history
from service.jobs.advance import advance
from service.search.proposer import Proposer
from service.store import trials
from service.store.database import Database
from service.store.enums import EntrantRole, JobState, TrialReason, TrialState
from service.store.records import Entrant, EntrantResult, TrialRecord
from service.store.transitions import TRIAL_OPEN


def check(db: Database, job_id: int) -> None:
    """What is kept, caught up, is what a look at all rows says."""
    problem = rows_of(db, job_id)[0]
    with db.read() as s:
        known = history.of_problem(s, job_id, problem.id)
        rows = trials.of_problem(s, problem.id)
        spent, counts = trials.spent(s, problem.id), trials.counts(s, job_problem_id=problem.id)
    assert known.counts == counts
    assert (known.spent.trials, known.spent.open_trials) == (spent.trials, spent.open_trials)
    assert known.spent.device_s == pytest.approx(spent.device_s)
    assert known.spent.compile_s == pytest.approx(spent.compile_s)
    ended = [row for row in rows if row.state not in TRIAL_OPEN and row.state is not TrialState.CANCELLED]
    ended.sort(key=lambda row: (row.finished_at, row.id))
    assert [(one.key, one.time_us) for one in known.done] == [(row.schedule_key, time(row)) for row in ended]
    assert [one.schedule for one in known.done] == [Schedule.from_json(row.schedule) for row in ended]
    assert [one.key for one in known.in_flight] == [r.schedule_key for r in rows if r.state in TRIAL_OPEN]
    assert known.cancelled == {row.schedule_key for row in rows if row.state is TrialState.CANCELLED}


def time(row: TrialRecord) -> float | None:
    return row.time_us if row.state in (TrialState.MEASURED, TrialState.CULLED) else None


def test_it_keeps_up_with_every_move(both: Hands, proposer: Proposer) -> None:
    """Failures, culled ones, a time that is taken back in the race, what is cancelled at the end."""
    hands, db = both, both.db
    hands.on_compile = lambda s: failed(TrialReason.COMPILE_ERROR) if s.integer("kc") == 64 else None
    beaten: list[int] = []

    def wrong(entrant: Entrant) -> EntrantResult | None:
        if entrant.role is not EntrantRole.FINALIST or beaten:
            return None
        assert entrant.trial_id is not None
        beaten.append(entrant.trial_id)
        failure = failed(TrialReason.WRONG_RESULT)
        return EntrantResult(entrant.name, entrant.role, entrant.trial_id, None, None, failure)

    hands.on_entrant = wrong
    job_id = post(db, budget={"trials": 24}, early_stop=False)
    for _ in range(200):
        moved = advance(db, job_id, proposer, owner="test")
        moved |= bool(hands.compile(3)) | bool(hands.measure(2)) | bool(hands.race())
        check(db, job_id)
        if not job_of(db, job_id).open:
            break
    assert job_of(db, job_id).state is JobState.DONE
    assert beaten
    check(db, job_id)


def test_a_step_reads_only_what_moved(
    hands: Hands, proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counting(s: Session, *args: Any, real: Any = trials.progress) -> Any:
        found = real(s, *args)
        read.append(len(found))
        return found

    monkeypatch.setattr(trials, "progress", counting)
    count = 60
    job_id = post(hands.db, budget={"trials": count}, early_stop=False)
    assert drive(hands, job_id, proposer, batch=2).state is JobState.DONE
    # Each trial moves four times: all of them read at each step would be thousands.
    assert sum(read) <= 4 * count


def test_another_process_starts_from_the_rows(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"trials": 16}, early_stop=False)
    for _ in range(4):
        advance(hands.db, job_id, proposer, owner="test")
        hands.compile(4)
        hands.measure(4)
    check(hands.db, job_id)
    problem = rows_of(hands.db, job_id)[0]
    with hands.db.read() as s:
        before = history.of_problem(s, job_id, problem.id)
    hands.db.close()  # another pool of connections: nothing is known there
    with hands.db.read() as s:
        after = history.of_problem(s, job_id, problem.id)
    assert after is not before
    assert (after.done, after.in_flight, after.upto) == (before.done, before.in_flight, before.upto)


def test_what_is_kept_is_bounded(hands: Hands, proposer: Proposer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "TRIALS_KEPT", 10)
    first, second = (post(hands.db, budget={"trials": 8}, seed=seed) for seed in (1, 2))
    for job_id in (first, second):
        advance(hands.db, job_id, proposer, owner="test")
        check(hands.db, job_id)
    kept = history._kept[hands.db.engine().pool].by_problem
    assert list(kept) == [rows_of(hands.db, second)[0].id]
