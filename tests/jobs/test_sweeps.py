"""Does a sweep choose its sizes, share what it learns, find where the winner changes, and say what its table
loses?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from support.hands import Hands, drive
from support.job_views import LAYER, job_of, post, rows_of, served, trials_of

from search_space.schedule import Schedule
from service.search.proposer import Proposer
from service.store import dispatch as tables
from service.store.enums import JobProblemRole, JobProblemState, JobState, ProposalSource, TrialState, Winner
from service.store.records import DispatchTableRecord

CHANGE = 40
"""Below it narrow tiles are best, from it on wide ones."""
SEARCH, CROSS, HELD_OUT = JobProblemRole.SEARCH, JobProblemRole.CROSS, JobProblemRole.HELD_OUT


def by_size(problem: Mapping[str, Any], schedule: Schedule) -> float:
    """The winner changes once, and each loses slowly more on the other side."""
    ideal = 2 if problem["m"] < CHANGE else 8
    far = 0.06 * abs(math.log2(problem["m"] / CHANGE)) + 0.02
    wrong = abs(math.log2(schedule.integer("mr") / ideal))
    time_us = 1000.0 * (1 + far * wrong)
    return time_us * (1.0 if schedule.flag("pack") else 1.3)


def table_of(hands: Hands, job_id: int) -> DispatchTableRecord:
    with hands.db.read() as s:
        (found,) = tables.of_job(s, job_id)
    return found


def sizes_of(hands: Hands, job_id: int, role: JobProblemRole = SEARCH) -> list[int]:
    return [int(row.problem["m"]) for row in rows_of(hands.db, job_id) if row.role is role]


# Eight schedules are left of the toy's space: all are tried, and what is asked here is what follows.
PARAMS = {"nr": 16, "kc": 128, "prefetch": 0, "way": "rows", "split": 1, "mr": [1, 2, 4, 8]}


def swept(hands: Hands, sweep: Mapping[str, Any], **body: Any) -> int:
    return post(hands.db, problem=LAYER, sweep=sweep, early_stop=False, params=PARAMS, **body)


RANGE = {"m": {"from": 1, "to": 512, "tune": 8, "hold_out": 3}}


def test_a_range_is_tuned_where_it_pays_and_ends_in_a_table(both: Hands, proposer: Proposer) -> None:
    both.time_at = by_size
    job_id = swept(both, RANGE, budget={"trials": 320})
    assert drive(both, job_id, proposer).state is JobState.DONE
    tuned = sizes_of(both, job_id)
    assert tuned[:2] == [1, 512]
    assert len(tuned) <= 8
    # the sizes added later are those around the change
    assert all(10 <= size <= 170 for size in tuned[5:])
    table = table_of(both, job_id)
    assert (table.axis, table.low, table.high, table.fixed) == ("m", 1, 512, {"batch": 1})
    assert [one.low for one in table.intervals] == [1, *(one.high + 1 for one in table.intervals[:-1])]
    assert table.intervals[-1].high == 512
    assert len(table.intervals) == 2
    change = table.intervals[1].low
    below, above = max(m for m in tuned if m < CHANGE), min(m for m in tuned if m >= CHANGE)
    assert below < change <= above
    for row in rows_of(both.db, job_id):
        if row.role is SEARCH:
            release = served(both.db, row)
            assert release is not None
            interval = next(one for one in table.intervals if one.low <= row.problem["m"] <= one.high)
            assert release.winner is Winner.TRIAL
            assert release.schedule is not None
            ideal = 2 if row.problem["m"] < CHANGE else 8
            assert release.schedule["tile"]["mr"] == ideal
            assert interval.schedule_key is not None
    assert len(trials_of(both.db, job_id)) <= 320


def test_what_is_lost_at_sizes_that_were_not_tuned_is_measured(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_size
    job_id = swept(hands, RANGE, budget={"trials": 320})
    drive(hands, job_id, proposer)
    table, held = table_of(hands, job_id), sizes_of(hands, job_id, HELD_OUT)
    assert len(held) == 3
    assert not set(held) & set(sizes_of(hands, job_id))
    assert [one["size"] for one in table.held_out] == sorted(held)
    for one in table.held_out:
        # as the hands know it: the better of the two winners is the reference
        wrong = (one["size"] < CHANGE) != (one["size"] < table.intervals[1].low)
        far = 0.06 * abs(math.log2(one["size"] / CHANGE)) + 0.02
        assert one["loss"] == pytest.approx(2 * far if wrong else 0.0, abs=0.02)
        assert one["raced"]
    # measured, and nothing more: no search and no release there
    for row in rows_of(hands.db, job_id):
        if row.role is not SEARCH:
            assert row.state is JobProblemState.DONE
            assert row.message == "Measured."
        if row.role is HELD_OUT:
            assert served(hands.db, row) is None


def test_each_size_begins_with_its_neighbours_winners(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_size
    job_id = swept(hands, RANGE, budget={"trials": 320})
    drive(hands, job_id, proposer)
    rows = [row for row in rows_of(hands.db, job_id) if row.role is SEARCH]
    won = {row.id: served(hands.db, row) for row in rows}
    last = rows[-1]
    size = int(last.problem["m"])
    near = [max((r for r in rows if r.problem["m"] < size), key=lambda r: int(r.problem["m"])),
            min((r for r in rows if r.problem["m"] > size), key=lambda r: int(r.problem["m"]))]  # fmt: skip
    early = [one for one in trials_of(hands.db, job_id) if one.job_problem_id == last.id][:8]
    keys = {one.schedule_key for one in early}
    assert early[0].source is ProposalSource.DEFAULT
    for row in near:
        release = won[row.id]
        assert release is not None
        assert release.schedule_key in keys


def test_what_the_vendor_wins_is_the_vendors_in_the_table(hands: Hands, proposer: Proposer) -> None:
    def vendor_above(problem: Mapping[str, Any], schedule: Schedule) -> float:
        return by_size(problem, schedule) * (0.5 if problem["m"] <= 64 else 2.0)

    hands.time_at, hands.baseline_us = vendor_above, 1000.0
    job_id = swept(hands, RANGE, budget={"trials": 320})
    drive(hands, job_id, proposer)
    table = table_of(hands, job_id)
    assert table.intervals[-1].schedule_key is None
    assert table.intervals[0].schedule_key is not None
    assert all(one["loss"] is not None for one in table.held_out)


def test_a_list_is_tuned_at_each_size_as_ever_and_has_a_table(both: Hands, proposer: Proposer) -> None:
    both.time_at = by_size
    job_id = swept(both, {"m": [8, 64, 512, 1]}, budget={"trials": 80})
    assert drive(both, job_id, proposer).state is JobState.DONE
    rows = rows_of(both.db, job_id)
    assert [int(row.problem["m"]) for row in rows] == [8, 64, 512, 1]
    assert {row.role for row in rows} == {SEARCH}
    assert [row.budget_trials for row in rows] == [20] * 4
    assert all(served(both.db, row) is not None for row in rows)
    # the ends first, so that those between have neighbours
    began = sorted(rows, key=lambda row: row.started_at or 0)  # type: ignore[arg-type,return-value]
    assert [int(row.problem["m"]) for row in began][:2] == [8, 512]
    table = table_of(both, job_id)
    assert (table.low, table.high, list(table.held_out)) == (1, 512, [])


def test_a_list_of_which_some_are_tuned(hands: Hands, proposer: Proposer) -> None:
    hands.time_at = by_size
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    job_id = swept(hands, {"m": {"sizes": sizes, "tune": 4, "hold_out": 2}}, budget={"trials": 160})
    assert drive(hands, job_id, proposer).state is JobState.DONE
    assert set(sizes_of(hands, job_id)) <= set(sizes)
    assert len(sizes_of(hands, job_id)) <= 4
    assert set(sizes_of(hands, job_id, HELD_OUT)) <= set(sizes) - set(sizes_of(hands, job_id))
    assert {1, 256} <= set(sizes_of(hands, job_id))


def test_seconds_of_a_sweep_hold(hands: Hands, proposer: Proposer) -> None:
    import time

    hands.time_at = by_size
    hands.on_measure = lambda schedule: time.sleep(0.02)  # type: ignore[assignment,return-value]
    sweep = {"m": {"from": 1, "to": 64, "tune": 4, "hold_out": 1}}
    job_id = swept(hands, sweep, budget={"seconds": 6.0})
    job = drive(hands, job_id, proposer, batch=2)
    assert job.state is JobState.DONE
    assert job.ran_s < 6.0 + 8.0  # a busy machine takes its time
    assert table_of(hands, job_id).intervals


def test_a_cancelled_sweep_has_no_table(hands: Hands, proposer: Proposer) -> None:
    from service.jobs.advance import advance
    from service.jobs.control import cancel

    job_id = swept(hands, RANGE, budget={"trials": 320})
    advance(hands.db, job_id, proposer)
    hands.compile()
    cancel(hands.db, job_id)
    advance(hands.db, job_id, proposer)
    with hands.db.read() as s:
        assert tables.of_job(s, job_id) == []
    assert job_of(hands.db, job_id).state is JobState.CANCELLED
    assert {one.state for one in trials_of(hands.db, job_id)} <= {TrialState.CANCELLED, TrialState.MEASURED}
