"""Are releases pinned, rolled back and withdrawn as a person asks?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.hands import DEVICE, Hands, drive
from support.toy_family import true_us

from service.jobs import releases as decisions
from service.jobs.errors import IllegalMove, NotFound, NothingToRollBack
from service.jobs.submit import submit
from service.search.proposer import Proposer
from service.store import quarantines, releases
from service.store.database import Database
from service.store.enums import ReleaseState, TrialReason
from service.store.records import ReleaseRecord

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}


def tune(hands: Hands, faster: float = 1.0) -> ReleaseRecord | None:
    """One more search in which each new schedule is so many times as fast; what is served after it."""
    served = best(hands)
    known = None if served is None else served.schedule_key
    hands.time_us = lambda s: true_us(s) / (1.0 if s.key == known else faster)
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 3}, "force": True}
    job, _ = submit(hands.db, body)
    drive(hands, job.id, Proposer(scored=50))
    return best(hands)


def best(hands: Hands) -> ReleaseRecord | None:
    with hands.db.read() as s:
        rows = releases.listing(s).rows
        found = [releases.best(s, r.problem_key, r.device_key, r.policy_key) for r in rows]
    return found[0] if found else None


def two(hands: Hands) -> tuple[ReleaseRecord, ReleaseRecord]:
    first = tune(hands)
    second = tune(hands, 3.0)
    assert first is not None
    assert second is not None
    assert second.generation == first.generation + 1
    return first, second


def test_rollback_serves_the_one_before_and_can_itself_be_overtaken(hands: Hands) -> None:
    first, second = two(hands)
    with hands.db.begin() as s:
        back = decisions.rollback(s, second.id)
    assert (back.id, back.state) == (first.id, ReleaseState.PUBLISHED)
    with hands.db.begin() as s:
        with pytest.raises(NothingToRollBack):
            decisions.rollback(s, first.id)
        with pytest.raises(IllegalMove):
            decisions.rollback(s, second.id)


def test_rollback_passes_over_what_was_withdrawn_or_is_quarantined(hands: Hands) -> None:
    first, second = two(hands)
    third = tune(hands, 9.0)
    assert third is not None
    with hands.db.begin() as s:
        assert second.schedule_key is not None
        assert second.toolchain_key is not None
        quarantines.add(
            s,
            family=second.family or "",
            arch=second.arch,
            schedule_key=second.schedule_key,
            toolchain_key=second.toolchain_key,
            reason=TrialReason.WRONG_RESULT,
        )
    with hands.db.begin() as s:
        assert decisions.rollback(s, third.id).id == first.id


def test_a_pinned_release_stays_and_the_new_one_waits(hands: Hands) -> None:
    first = tune(hands)
    assert first is not None
    with hands.db.begin() as s:
        assert decisions.pin(s, first.id).pinned
        assert decisions.pin(s, first.id).pinned
    now = tune(hands, 3.0)
    assert now is not None
    assert now.id == first.id
    with hands.db.begin() as s:
        newest = releases.history(s, first.problem_key, DEVICE, first.policy_key)[0]
        assert newest.state is ReleaseState.CANDIDATE
        assert not decisions.unpin(s, first.id).pinned
        assert not decisions.unpin(s, first.id).pinned


def test_only_what_is_served_can_be_pinned(hands: Hands) -> None:
    first, _ = two(hands)
    with hands.db.begin() as s:
        with pytest.raises(IllegalMove):
            decisions.pin(s, first.id)
        with pytest.raises(NotFound):
            decisions.pin(s, 999)


def test_withdrawn_is_for_good_and_twice_is_once(hands: Hands) -> None:
    first = tune(hands)
    assert first is not None
    for _ in range(2):
        with hands.db.begin() as s:
            assert decisions.withdraw(s, first.id).state is ReleaseState.WITHDRAWN
    assert best(hands) is None
    again = tune(hands)
    assert again is not None
    assert again.id != first.id


def test_what_is_quarantined_is_taken_back(hands: Hands) -> None:
    first = tune(hands)
    assert first is not None
    with hands.db.begin() as s:
        assert decisions.withdraw_quarantined(s) == []
        quarantines.add(
            s,
            family=first.family or "",
            arch=first.arch,
            schedule_key=first.schedule_key or "",
            toolchain_key=first.toolchain_key or "",
            reason=TrialReason.WRONG_RESULT,
        )
        assert [r.id for r in decisions.withdraw_quarantined(s)] == [first.id]
        assert decisions.withdraw_quarantined(s) == []
    assert best(hands) is None


# ---------------------------------------------------------------- by several at once

Act = Callable[[Any, int], ReleaseRecord]


def waiting(hands: Hands) -> tuple[ReleaseRecord, ReleaseRecord, ReleaseRecord]:
    """A superseded one, the one that is served, and a candidate that waits for a person."""
    first, second = two(hands)
    hands.db.run(lambda s: decisions.pin(s, second.id))
    tune(hands, 9.0)
    hands.db.run(lambda s: decisions.unpin(s, second.id))
    with hands.db.read() as s:
        newest = releases.history(s, first.problem_key, DEVICE, first.policy_key)[0]
    assert newest.state is ReleaseState.CANDIDATE
    return first, second, newest


class Other(threading.Thread):
    """Somebody who steers a release at the same time, in a transaction of its own."""

    def __init__(self, db: Database, act: Act, release_id: int) -> None:
        super().__init__(daemon=True)
        self._do = lambda: db.run(lambda s: act(s, release_id))
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._do()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


@contextmanager
def between(monkeypatch: pytest.MonkeyPatch, write: str, other: Other) -> Iterator[None]:
    """`other` acts after the look and before the write, unless it has to wait for who looked."""
    real = getattr(releases, write)

    def late(*args: Any, **more: Any) -> Any:
        if other.ident is None:
            other.start()
            other.join(0.5)
        return real(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(releases, write, late)
        yield
    other.join(60.0)
    assert not other.is_alive()


def states(hands: Hands, *rows: ReleaseRecord) -> list[str]:
    with hands.db.read() as s:
        return [row.state.value for row in releases.several(s, [one.id for one in rows])]


@pytest.mark.parametrize("verb", [decisions.withdraw, decisions.rollback])
def test_who_pins_what_another_takes_away_meanwhile_gets_one_or_the_other(
    both: Hands, monkeypatch: pytest.MonkeyPatch, verb: Act
) -> None:
    _, second = two(both)
    other = Other(both.db, verb, second.id)
    with between(monkeypatch, "pin", other):
        assert both.db.run(lambda s: decisions.pin(s, second.id)).pinned
    assert other.error is None
    assert states(both, second) != ["published"]


@pytest.mark.parametrize("verb", [decisions.pin, decisions.rollback])
def test_who_comes_while_it_is_taken_away_is_told_so(both: Hands, verb: Act) -> None:
    _, second = two(both)
    other = Other(both.db, verb, second.id)
    with both.db.begin() as s:
        decisions.withdraw(s, second.id)
        other.start()
        time.sleep(0.3)
    other.join(60.0)
    assert isinstance(other.error, IllegalMove)
    assert states(both, second) == ["withdrawn"]


def test_a_rollback_takes_back_the_release_it_was_asked_for_and_no_newer_one(
    both: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, newest = waiting(both)
    other = Other(both.db, decisions.publish_candidate, newest.id)
    with between(monkeypatch, "history", other):
        assert both.db.run(lambda s: decisions.rollback(s, second.id)).id == first.id
    assert other.error is None
    # the rollback, then the newer one: never the other way round
    assert states(both, first, second, newest) == ["superseded", "superseded", "published"]


def test_a_rollback_does_not_go_to_what_is_withdrawn_meanwhile(both: Hands) -> None:
    first, second = two(both)
    third = tune(both, 9.0)
    assert third is not None
    other = Other(both.db, decisions.rollback, third.id)
    with both.db.begin() as s:
        decisions.withdraw(s, second.id)
        other.start()
        time.sleep(0.3)
    other.join(60.0)
    assert other.error is None
    assert states(both, first, second, third) == ["published", "withdrawn", "superseded"]
