"""Do cancel, pause and resume do what a person expects, at any moment and twice?"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update
from support.hands import DEVICE, Hands, drive
from support.job_views import job_of

from service.jobs.advance import advance
from service.jobs.control import cancel, leave, pause, resume
from service.jobs.errors import IllegalMove, NotFound
from service.jobs.lifecycle import SHARERS_MOST
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.store import clock, devices, events, jobs, races, tokens, trials
from service.store import owners as owner_rows
from service.store.enums import (
    DeviceState,
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    RaceState,
    Scope,
    TrialState,
)
from service.store.models import Token

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}


def post(hands: Hands, **body: Any) -> int:
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 8}, **body}
    return submit(hands.db, body)[0].id


def test_cancel_ends_everything_and_keeps_what_was_found(both: Hands, proposer: Proposer) -> None:
    job_id = post(both)
    advance(both.db, job_id, proposer)
    both.compile(5)
    both.measure(3)
    with both.db.begin() as s:
        claim = trials.claim_measure(s, "measurer", DEVICE, 1, 60)[0]
    job = cancel(both.db, job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, JobReason.USER)
    with both.db.begin() as s:
        row = jobs.problems(s, job_id)[0]
        assert (row.state, row.reason) == (JobProblemState.CANCELLED, JobProblemReason.JOB_ENDED)
        found = trials.of_problem(s, row.id)
        assert {t.state for t in found[3:]} == {TrialState.CANCELLED}
        assert trials.best(s, row.id) is not None
        assert trials.renew(s, [claim.claim_id], 60) == []
        assert not trials.finish_measure(s, claim.claim_id, both.timed(_schedule(claim.schedule), None))
        last = events.after(s, 0, job_id=job_id)[-1]
    assert (last.kind.value, last.to) == ("job", "cancelled")
    assert both.compile() == both.measure() == 0
    assert cancel(both.db, job_id).state is JobState.CANCELLED


def test_what_was_cancelled_while_no_worker_was_there_is_not_run_when_they_return(
    both: Hands, proposer: Proposer
) -> None:
    """A message of the broker's that revokes would have been heard by nobody."""
    begun, queued = post(both), post(both, problem={**PROBLEM, "m": 16})
    advance(both.db, begun, proposer)
    both.compile(2)
    for job_id in (begun, queued):
        cancel(both.db, job_id)
    for job_id in (begun, queued):
        advance(both.db, job_id, proposer)
        with both.db.read() as s:
            rows = [row for one in jobs.problems(s, job_id) for row in trials.of_problem(s, one.id)]
            assert not jobs.advanceable(s)[0]
        assert {row.state for row in rows} <= {TrialState.CANCELLED}
        assert len(rows) > 0 or job_id == queued
    assert both.compile() == both.measure() == 0


def _schedule(obj: object) -> Any:
    from search_space.schedule import Schedule

    return Schedule.from_json(obj)


def test_cancel_stops_a_race(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands)
    while True:
        advance(hands.db, job_id, proposer)
        hands.compile()
        hands.measure()
        with hands.db.begin() as s:
            claim = races.claim(s, "measurer", DEVICE, 60)
        if claim is not None:
            break
    cancel(hands.db, job_id)
    with hands.db.begin() as s:
        race = races.get(s, claim.race_id)
        assert not races.renew(s, claim.claim_id, 60)
    assert race is not None
    assert race.state is RaceState.CANCELLED


def test_a_paused_job_claims_nothing_and_goes_on_where_it_was(both: Hands, proposer: Proposer) -> None:
    job_id = post(both, budget={"trials": 12})
    advance(both.db, job_id, proposer)
    both.compile(4)
    both.measure(2)
    assert pause(both.db, job_id).state is JobState.PAUSED
    assert pause(both.db, job_id).state is JobState.PAUSED
    assert both.compile() == both.measure() == 0
    assert not advance(both.db, job_id, proposer)
    assert resume(both.db, job_id).state is JobState.QUEUED
    resume(both.db, job_id)
    assert drive(both, job_id, proposer).state is JobState.DONE
    assert sorted(both.measured) == sorted(set(both.measured))
    assert len(both.measured) == 12


def test_a_paused_job_leaves_its_device_to_others(hands: Hands, proposer: Proposer) -> None:
    posted = [post(hands, seed=number, budget={"trials": 1}) for number in range(SHARERS_MOST + 1)]
    first, last = posted[0], posted[-1]
    for job_id in posted[:-1]:
        assert advance(hands.db, job_id, proposer)
    advance(hands.db, last, proposer)  # every place is taken, and it says so
    assert "under way on its device" in job_of(hands.db, last).message
    pause(hands.db, first)
    assert advance(hands.db, last, proposer)
    resume(hands.db, first)
    advance(hands.db, first, proposer)
    assert job_of(hands.db, first).state is JobState.QUEUED
    assert drive(hands, last, proposer).state is JobState.DONE
    assert drive(hands, first, proposer).state is JobState.DONE


def test_jobs_wait_while_their_device_is_out_of_service_and_go_on_afterwards(
    both: Hands, proposer: Proposer
) -> None:
    job_id = post(both, budget={"trials": 6})
    advance(both.db, job_id, proposer)
    both.compile()
    both.measure(2)
    with both.db.begin() as s:
        devices.set_state(s, DEVICE, DeviceState.OUT_OF_SERVICE, "its fan is being replaced")
    assert both.measure() == 0
    waiting = drive(both, job_id, proposer)
    assert (waiting.state, waiting.reason) == (JobState.WAITING, JobReason.DEVICE_OUT_OF_SERVICE)
    assert "fan" in waiting.message
    later = job_of(both.db, post(both, force=True))
    assert (later.state, later.reason, later.message) == (waiting.state, waiting.reason, waiting.message)
    cancel(both.db, later.id)
    with both.db.begin() as s:
        devices.set_state(s, DEVICE, DeviceState.AVAILABLE)
    assert drive(both, job_id, proposer).state is JobState.DONE
    assert len(both.measured) == len(set(both.measured)) == 6


def test_what_has_ended_cannot_be_steered(hands: Hands, proposer: Proposer) -> None:
    job_id = post(hands, budget={"trials": 1})
    drive(hands, job_id, proposer)
    for verb in (cancel, pause, resume):
        with pytest.raises(IllegalMove) as caught:
            verb(hands.db, job_id)
        assert "done" in str(caught.value)
        with pytest.raises(NotFound):
            verb(hands.db, 999)


def test_a_queued_job_can_be_cancelled_and_a_paused_one_too(hands: Hands) -> None:
    one, two = post(hands, seed=1), post(hands, seed=2)
    pause(hands.db, two)
    assert cancel(hands.db, one).state is JobState.CANCELLED
    assert cancel(hands.db, two).state is JobState.CANCELLED


# ---------------------------------------------------------------- several who asked for the same


def three_tokens(hands: Hands) -> tuple[int, int, int]:
    with hands.db.begin() as s:
        ids = [tokens.create(s, name, {Scope.SUBMIT})[0].id for name in ("ann", "bob", "cem")]
    return ids[0], ids[1], ids[2]


def ask(hands: Hands, token_id: int | None) -> int:
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 8}}
    return submit(hands.db, body, token_id)[0].id


def owners(hands: Hands, job_id: int) -> list[int | None]:
    with hands.db.read() as s:
        return owner_rows.of(s, job_id)


def test_a_job_ends_with_the_last_who_asked_for_it(both: Hands) -> None:
    ann, bob, cem = three_tokens(both)
    job_id = ask(both, ann)
    for one in (None, cem, bob, cem, ann):
        assert ask(both, one) == job_id
    assert owners(both, job_id) == [ann, None, cem, bob]
    left = leave(both.db, job_id, cem)
    assert (left.state, left.token_id) == (JobState.QUEUED, ann)
    # who paid for it goes: the next one pays, and is not among the others any more
    left = leave(both.db, job_id, ann)
    assert (left.state, left.token_id) == (JobState.QUEUED, None)
    assert leave(both.db, job_id, None).token_id == bob
    assert owners(both, job_id) == [bob]
    assert ask(both, ann) == job_id
    assert owners(both, job_id) == [bob, ann]
    assert leave(both.db, job_id, ann).open
    assert leave(both.db, job_id, bob).state is JobState.CANCELLED
    assert leave(both.db, job_id, bob).state is JobState.CANCELLED
    assert ask(both, cem) != job_id


def test_an_admins_cancel_ends_it_for_all(both: Hands) -> None:
    ann, bob, _ = three_tokens(both)
    job_id = ask(both, ann)
    ask(both, bob)
    assert cancel(both.db, job_id).state is JobState.CANCELLED
    with pytest.raises(NotFound):
        leave(both.db, 999, ann)


def test_of_all_who_leave_at_once_the_last_cancels(both: Hands) -> None:
    people = three_tokens(both)
    for _ in range(5):
        job_id = ask(both, people[0])
        for one in people[1:]:
            assert ask(both, one) == job_id
        barrier = threading.Barrier(3, timeout=60)

        def go(token_id: int, job_id: int = job_id, barrier: threading.Barrier = barrier) -> JobState:
            barrier.wait()
            return leave(both.db, job_id, token_id).state

        with ThreadPoolExecutor(3) as pool:
            ended = sorted(pool.map(go, people))
        assert ended == [JobState.CANCELLED, JobState.QUEUED, JobState.QUEUED]


def test_a_leave_that_is_sent_twice_takes_nothing_from_the_others(both: Hands) -> None:
    ann, bob, _ = three_tokens(both)
    for first in (True, False):
        job_id = ask(both, ann if first else bob)
        assert ask(both, bob if first else ann) == job_id
        barrier = threading.Barrier(4, timeout=60)

        def go(_: int, job_id: int = job_id, barrier: threading.Barrier = barrier) -> JobState:
            barrier.wait()
            return leave(both.db, job_id, ann).state

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(go, range(4))) == {JobState.QUEUED}
        assert leave(both.db, job_id, ann).state is JobState.QUEUED
        assert owners(both, job_id) == [bob]
        with both.db.read() as s:
            assert owner_rows.was_of(s, job_id, ann)
            assert not owner_rows.was_of(s, job_id, None)
        # he may come back, and leave again
        assert ask(both, ann) == job_id
        assert owners(both, job_id) == [bob, ann]
        assert leave(both.db, job_id, bob).token_id == ann
        assert leave(both.db, job_id, ann).state is JobState.CANCELLED


@pytest.mark.parametrize("end", ["revoked", "expired"])
@pytest.mark.parametrize("which", [0, 1])
def test_whose_token_has_ended_wants_nothing_any_more(both: Hands, end: str, which: int) -> None:
    people = three_tokens(both)[:2]
    job_id = ask(both, people[0])
    assert ask(both, people[1]) == job_id
    gone, left = people[which], people[1 - which]
    with both.db.begin() as s:
        if end == "revoked":
            assert tokens.revoke(s, gone)
        else:
            s.execute(update(Token).where(Token.id == gone).values(expires_at=clock.now(s)))
    assert owners(both, job_id) == [left]
    assert leave(both.db, job_id, left).state is JobState.CANCELLED


def test_who_joins_a_paused_job_has_it_go_on(both: Hands) -> None:
    ann, bob, _ = three_tokens(both)
    job_id = ask(both, ann)
    pause(both.db, job_id)
    assert ask(both, ann) == job_id  # who paused it himself may ask what became of it
    assert job_of(both.db, job_id).state is JobState.PAUSED
    assert ask(both, bob) == job_id
    assert job_of(both.db, job_id).state is JobState.QUEUED


def test_who_joined_a_job_has_it_among_his_open_ones(both: Hands) -> None:
    ann, bob, cem = three_tokens(both)
    job_id = ask(both, ann)
    ask(both, bob)

    def open_of() -> list[int]:
        with both.db.read() as s:
            return [owner_rows.count_open(s, one) for one in (ann, bob, cem, None)]

    assert open_of() == [1, 1, 0, 0]
    post(both, seed=5)
    leave(both.db, job_id, ann)
    assert open_of() == [0, 1, 0, 1]
    cancel(both.db, job_id)
    assert open_of() == [0, 0, 0, 1]


def test_who_joins_while_the_last_owner_cancels_has_a_job(both: Hands) -> None:
    """Either it goes on for him, or a new one is his: never one that was just cancelled."""
    ann, bob, _ = three_tokens(both)
    for _ in range(10):
        job_id = ask(both, ann)
        barrier = threading.Barrier(2, timeout=60)

        def join(barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return ask(both, bob)

        def go(job_id: int = job_id, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            leave(both.db, job_id, ann)

        with ThreadPoolExecutor(2) as pool:
            mine, gone = pool.submit(join), pool.submit(go)
            gone.result()
            assert job_of(both.db, mine.result()).open
        assert owners(both, mine.result()) == [bob]
        leave(both.db, mine.result(), bob)
