"""Does a job get from its request to its release, one step after another, whoever asks?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.hands import BASELINE_US, Hands, drive
from support.job_views import LAYER, job_of, post, rows_of, served, trials_of

from search_space.schedule import Schedule
from service.jobs import searching
from service.jobs.advance import advance, look
from service.jobs.proposing import Ask, Proposal
from service.jobs.step import Rest
from service.search.proposer import Proposer
from service.store import audit, events, jobs, trials
from service.store.enums import (
    AuditAction,
    JobProblemReason,
    JobProblemState,
    JobState,
    ProposalSource,
    Winner,
)


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
        noted = audit.listing(s, action=AuditAction.RELEASE_PUBLISHED).rows[-1]
        assert (noted.actor, noted.subject, noted.data["job"]) == ("service", f"release:{won.id}", job_id)
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


@pytest.mark.parametrize(("budget", "most", "few"), [(40, 8, 4), (600, 12, 6), (5000, 16, 8)])
def test_of_a_large_budget_more_are_in_flight(
    hands: Hands, proposer: Proposer, budget: int, most: int, few: int
) -> None:
    job_id = post(hands.db, budget={"trials": budget})
    rests: list[Rest] = []
    assert advance(hands.db, job_id, proposer, rests=rests.append)
    assert len(trials_of(hands.db, job_id)) == most
    assert rests == [Rest(most - few, 5.0)]


def test_where_seconds_count_a_rest_is_short(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands.db, budget={"trials": 40, "seconds": 600})
    rests: list[Rest] = []
    assert advance(hands.db, job_id, proposer, rests=rests.append)
    assert rests == [Rest(4, 1.0)]


def test_a_race_is_no_rest(hands: Hands, proposer: Proposer) -> None:
    """Of two problems, on two devices, the one that is raced may move at any event."""
    job_id = post(hands.db, budget={"trials": 8})
    rests: list[Rest] = []
    advance(hands.db, job_id, proposer)
    hands.compile(8)
    hands.measure(8)
    advance(hands.db, job_id, proposer, rests=rests.append)
    assert rows_of(hands.db, job_id)[0].state is JobProblemState.RACING
    assert rests == []


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
            jobs.raise_priority(s, job_id, 5)
        written.append(True)

    advance(both.db, job_id, _Slow(proposer, write))
    assert written


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
