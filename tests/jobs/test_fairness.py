"""Does every job get on, whatever else is there?"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.hands import OTHER_DEVICE, Hands
from support.job_views import job_of, post, rows_of

from service.jobs import budgets, lifecycle
from service.jobs.advance import advance
from service.search.proposer import Proposer
from service.store import jobs
from service.store.enums import JobState


def rounds(hands: Hands, ids: Sequence[int], proposer: Proposer, most: int = 80) -> list[int]:
    """The jobs in the order of their ends, with a worker of each kind that takes four at a time."""
    ended: list[int] = []
    after = 0
    for _ in range(most):
        with hands.db.read() as s:
            order, after = jobs.advanceable(s, after)
        for job_id in order:
            advance(hands.db, job_id, proposer)
        hands.compile(4)
        hands.race() or hands.measure(4)
        ended += [one for one in ids if one not in ended and not job_of(hands.db, one).open]
        if len(ended) == len(ids):
            break
    return ended


def test_a_higher_priority_goes_first_and_equals_share(both: Hands, proposer: Proposer) -> None:
    first = post(both.db, seed=1, budget={"trials": 12})
    second = post(both.db, seed=2, budget={"trials": 12})
    # As much work as theirs, and posted last: nothing but its priority can make it the first.
    urgent = post(both.db, seed=3, priority=5, budget={"trials": 12})
    ended = rounds(both, (first, second, urgent), proposer)
    assert ended[0] == urgent
    assert set(ended) == {first, second, urgent}


def test_a_short_job_is_not_stuck_behind_a_long_one(both: Hands, proposer: Proposer) -> None:
    long = post(both.db, seed=1, budget={"trials": 60})
    advance(both.db, long, proposer)
    both.compile(4)
    both.measure(4)
    before = len(both.measured)
    short = post(both.db, seed=2, budget={"trials": 12})
    assert rounds(both, [short], proposer) == [short]
    # about as much was done for the other meanwhile
    assert len(both.measured) - before <= 3 * 12
    assert job_of(both.db, long).state is JobState.RUNNING


def test_the_seconds_of_a_neighbour_are_not_counted(both: Hands, proposer: Proposer) -> None:
    one = post(both.db, seed=1, budget={"trials": 8})
    other = post(both.db, seed=2, budget={"trials": 8})
    for job_id in (one, other):
        advance(both.db, job_id, proposer)
    with both.db.begin() as s:
        jobs.stand_still(s, both.device_key, one, 100.0)
        jobs.stand_still(s, OTHER_DEVICE, one, 100.0)
    (mine,), (theirs,) = rows_of(both.db, one), rows_of(both.db, other)
    assert (mine.shared_s, theirs.shared_s) == (0.0, 100.0)
    assert budgets.elapsed_s(job_of(both.db, other), theirs) == 0.0


def test_so_many_of_a_token_share_a_device(
    hands: Hands, proposer: Proposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SHARERS_MOST", 2)
    ids = [post(hands.db, seed=seed, budget={"trials": 4}) for seed in range(4)]
    for job_id in ids:
        advance(hands.db, job_id, proposer)
    states = [job_of(hands.db, job_id).state for job_id in ids]
    assert states == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 2
    told = [job_of(hands.db, job_id).message for job_id in ids]
    assert told[:2] == ["", ""]
    assert all("under way on its device" in text for text in told[2:])
    assert not advance(hands.db, ids[2], proposer)  # and that is all: nothing is written again
    assert len(rounds(hands, ids, proposer)) == 4


def test_a_crowd_that_waits_starves_nobody(both: Hands, proposer: Proposer) -> None:
    for seed in range(300):
        post(both.db, seed=seed, target={"device": OTHER_DEVICE})
    late = post(both.db, seed=1, budget={"trials": 4})
    assert rounds(both, [late], proposer, most=20) == [late]
    with both.db.read() as s:
        seen: set[int] = set()
        after = 0
        for _ in range(4):
            ids, after = jobs.advanceable(s, after)
            assert len(ids) <= 100
            seen |= set(ids)
    assert len(seen) == 300
