"""Does a job with weights spend its budget where weight x time falls most, with a floor for each problem?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.hands import Hands, connect, drive
from support.job_views import LAYER, job_of, post, rows_of, served, trials_of
from support.toy_family import true_us

from search_space.schedule import Schedule
from service.jobs.advance import advance
from service.jobs.control import cancel, pause, resume
from service.jobs.spending import Standing, choose, floor_trials, gain
from service.search.proposer import Proposer
from service.store import migrate
from service.store.database import Database
from service.store.enums import JobProblemState, JobState, TrialState

FLAT, STEEP = 1, 2


def by_problem(problem: Mapping[str, Any], schedule: Schedule) -> float:
    """One problem for which all schedules are alike, and one whose schedules differ."""
    return 1000.0 if problem["m"] == FLAT else true_us(schedule)


def weighted(hands: Hands, weights: Mapping[int, float], **body: Any) -> int:
    problems = [{"problem": {**LAYER, "m": m}, "weight": weight} for m, weight in weights.items()]
    return post(hands.db, problems=problems, early_stop=False, **body)


def tried(db: Database, job_id: int) -> dict[int, int]:
    """m -> trials."""
    size = {row.id: int(row.problem["m"]) for row in rows_of(db, job_id)}
    return dict(Counter(size[one.job_problem_id] for one in trials_of(db, job_id)))


def test_the_budget_goes_to_what_is_heavy_and_still_gains(both: Hands, proposer: Proposer) -> None:
    both.time_at = by_problem
    job_id = weighted(both, {FLAT: 1.0, STEEP: 1.0, 3: 8.0}, budget={"trials": 120})
    assert drive(both, job_id, proposer).state is JobState.DONE
    found = tried(both.db, job_id)
    assert sum(found.values()) == 120
    floor = floor_trials(120, 3)
    assert floor == 10
    assert min(found.values()) >= floor
    # what weighs eight times as much and gains as the second does has most, what gains nothing the least
    assert found[3] > 60
    assert found[3] > found[STEEP] >= found[FLAT]
    for row in rows_of(both.db, job_id):
        assert row.state is JobProblemState.DONE
        assert served(both.db, row) is not None
    assert len(both.races) == 3


def test_without_weights_each_problem_has_an_equal_share(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_problem
    problems = [{"problem": {**LAYER, "m": m}} for m in (FLAT, STEEP)]
    job_id = post(hands.db, problems=problems, budget={"trials": 24}, early_stop=False)
    drive(hands, job_id, proposer)
    assert tried(hands.db, job_id) == {FLAT: 12, STEEP: 12}


def test_the_same_job_spends_the_same(tmp_path: Path) -> None:
    spent = []
    for number in range(2):
        url = f"sqlite:///{tmp_path}/{number}.db"
        migrate.upgrade(url)
        hands = Hands(Database(url), time_at=by_problem)
        connect(hands.db)
        job_id = weighted(hands, {5: 1.0, 6: 3.0}, budget={"trials": 40})
        drive(hands, job_id, Proposer(scored=100))
        places = {row.id: row.position for row in rows_of(hands.db, job_id)}
        in_order = sorted(trials_of(hands.db, job_id), key=lambda one: one.id)
        spent.append([(places[one.job_problem_id], one.schedule_key) for one in in_order])
        hands.db.close()
    assert len(spent[0]) == 40
    assert spent[0] == spent[1]


def test_seconds_are_shared_too_and_each_is_raced_in_time(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_problem
    hands.on_measure = lambda schedule: time.sleep(0.02)  # type: ignore[assignment,return-value]
    job_id = weighted(hands, {FLAT: 1.0, STEEP: 8.0}, budget={"seconds": 8.0})
    job = drive(hands, job_id, proposer, batch=2)
    assert job.state is JobState.DONE
    assert job.ran_s < 8.0 + 8.0  # a busy machine takes its time
    rows = rows_of(hands.db, job_id)
    assert [row.state for row in rows] == [JobProblemState.DONE] * 2
    assert all(served(hands.db, row) is not None for row in rows)
    found = tried(hands.db, job_id)
    assert found[STEEP] >= found[FLAT] > 0


def test_one_that_rests_is_paused_cancelled_and_gone_on_with(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_problem
    job_id = weighted(hands, {FLAT: 1.0, STEEP: 8.0}, budget={"trials": 64})

    def until_one_rests(job_id: int) -> None:
        for _ in range(100):
            advance(hands.db, job_id, proposer, owner="test")
            if any(row.state is JobProblemState.RESTING for row in rows_of(hands.db, job_id)):
                return
            hands.compile()
            hands.measure()
        raise AssertionError("none of them ever rested")

    until_one_rests(job_id)
    pause(hands.db, job_id)
    assert not advance(hands.db, job_id, proposer, owner="test")
    resume(hands.db, job_id)
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert sum(tried(hands.db, job_id).values()) == 64
    other = weighted(hands, {FLAT: 1.0, STEEP: 8.0}, budget={"trials": 64}, force=True)
    until_one_rests(other)
    cancel(hands.db, other)
    assert {row.state for row in rows_of(hands.db, other)} == {JobProblemState.CANCELLED}
    assert job_of(hands.db, other).state is JobState.CANCELLED
    assert TrialState.PROPOSED not in {one.state for one in trials_of(hands.db, other)}


# ---------------------------------------------------------------- what is expected


def test_gain_grows_with_weight_and_with_what_fell_lately() -> None:
    falling = Standing(1, 1.0, (100.0, 100.0, 90.0, 80.0))
    flat = Standing(2, 1.0, (80.0, 80.0, 80.0, 80.0))
    heavy = Standing(3, 100.0, (80.0, 80.0, 80.0, 80.0))
    assert gain(falling) > gain(flat) > 0
    assert choose([flat, falling]) == 1
    assert choose([falling, flat, heavy]) == 3
    # of equals the first; in seconds, what is quick to try
    assert choose([Standing(1, 1.0, (80.0,)), Standing(2, 1.0, (80.0,))]) == 1
    assert choose([Standing(1, 1.0, (80.0,), 2.0), Standing(2, 1.0, (80.0,), 1.0)]) == 2


def test_what_never_ran_is_looked_at_for_a_while_and_then_no_more() -> None:
    assert gain(Standing(1, 1.0, ())) == float("inf")
    assert gain(Standing(1, 1.0, (None,) * 8)) == float("inf")
    assert gain(Standing(1, 1.0, (None,) * 64)) == 0.0


def test_floors_leave_most_of_the_budget() -> None:
    assert floor_trials(120, 3) == 10
    assert floor_trials(10_000, 3) == 16
    assert floor_trials(3, 3) == 1
    assert floor_trials(None, 3) == 8
