"""Are streams woken a few at a time, in order, each with all that waits for it, and none forgotten?"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from service.api.streams import MOST_BEHIND, WOKEN_AT_ONCE, Following, Streams
from service.store import tokens
from service.store.database import Database
from service.store.enums import EventKind
from service.store.records import EventRecord

STREAMS = 100
LONG_S = 30.0


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    database = Database(f"sqlite:///{tmp_path / 'streams.db'}")
    yield Streams(database)
    database.close()


def event(number: int, job_id: int = 1, to: str = "told") -> EventRecord:
    kind = EventKind.JOB if to == "done" else EventKind.NOTE
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    return EventRecord(number, kind, job_id, job_id, None, to, None, {}, at)


async def told(streams: Streams, rows: list[EventRecord]) -> None:
    """By a thread of its own, as the tail tells it."""
    await asyncio.to_thread(streams.told, rows)


class Crowd:
    """So many streams of one job; notes what each hears, and in which pass of the loop."""

    def __init__(self, streams: Streams) -> None:
        self.passes = 0
        self.heard: list[list[list[int]]] = [[] for _ in range(STREAMS)]
        self.sent: Counter[int] = Counter()
        self.order: list[int] = []
        """Who heard something, one after another."""
        self._streams = streams
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crowd:
        self._stack = ExitStack()
        for number in range(STREAMS):
            one = self._stack.enter_context(self._streams.following(1, "token:1"))
            self._tasks.append(asyncio.create_task(self._hear(number, one)))
        self._tasks.append(asyncio.create_task(self._count()))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stack.close()

    async def _hear(self, number: int, one: Following) -> None:
        while not one.over:
            rows = await one.wait(LONG_S)
            self.heard[number].append([row.id for row in rows])
            self.sent[self.passes] += 1
            self.order.append(number)

    def most_others_meanwhile(self) -> int:
        """How often another heard something while one waited for its next piece. In strict turns once; a
        time more where two wakes fell together, for which it had all that was there at once."""
        most = 0
        since: list[Counter[int]] = [Counter() for _ in range(STREAMS)]
        for number in self.order:
            most = max(most, *since[number].values(), 0)
            since[number].clear()
            for other, counter in enumerate(since):
                if other != number:
                    counter[number] += 1
        return most

    async def _count(self) -> None:
        while True:
            self.passes += 1
            await asyncio.sleep(0)

    async def all_heard(self, last: int) -> None:
        async with asyncio.timeout(LONG_S):
            while any(last not in chain.from_iterable(one[-2:]) for one in self.heard):
                await asyncio.sleep(0.01)


def test_a_few_send_in_one_pass_of_the_loop_and_all_in_the_end(streams: Streams) -> None:
    async def run() -> None:
        async with Crowd(streams) as crowd:
            await told(streams, [event(1), event(2)])
            await crowd.all_heard(2)
            assert crowd.heard == [[[1, 2]]] * STREAMS
            assert max(crowd.sent.values()) <= WOKEN_AT_ONCE
            # in between the loop has passes for everybody else
            assert len(crowd.sent) >= STREAMS // WOKEN_AT_ONCE
            assert max(crowd.sent) - min(crowd.sent) >= 2 * (STREAMS // WOKEN_AT_ONCE)

    asyncio.run(run())


def test_what_comes_before_a_stream_is_woken_is_sent_as_one_piece_in_order(streams: Streams) -> None:
    async def run() -> None:
        async with Crowd(streams) as crowd:
            for number in range(1, 41):
                streams.told([event(number)])  # the loop has no turn in between
            await crowd.all_heard(40)
            for pieces in crowd.heard:
                assert list(chain.from_iterable(pieces)) == list(range(1, 41))
                assert len(pieces) == 1

    asyncio.run(run())


def test_each_has_its_turn_however_much_is_told(streams: Streams) -> None:
    async def run() -> None:
        async with Crowd(streams) as crowd:
            last = 0
            for _ in range(60):
                await told(streams, [event(last + 1), event(last + 2)])
                last += 2
            await crowd.all_heard(last)
            for pieces in crowd.heard:
                assert list(chain.from_iterable(pieces)) == list(range(1, last + 1))
            assert crowd.most_others_meanwhile() <= 3

    asyncio.run(run())


def test_the_end_of_a_job_and_of_the_service_reach_all(streams: Streams) -> None:
    async def run(rows: list[EventRecord]) -> list[list[list[int]]]:
        async with Crowd(streams) as crowd:
            await told(streams, [event(1)])
            await crowd.all_heard(1)
            await told(streams, rows)
            async with asyncio.timeout(LONG_S):
                await asyncio.gather(*crowd._tasks[:STREAMS])
            return crowd.heard

    assert asyncio.run(run([event(2), event(3, to="done")])) == [[[1], [2, 3]]] * STREAMS
    assert asyncio.run(run([])) == [[[1], []]] * STREAMS


def test_one_that_does_not_read_holds_so_many_and_then_none(streams: Streams) -> None:
    async def run() -> None:
        with streams.following(1, "token:1") as slow:
            first = [event(number) for number in range(1, MOST_BEHIND + 1)]
            await told(streams, first[:-1])
            await asyncio.sleep(0.1)
            assert not slow.behind
            await told(streams, [event(MOST_BEHIND), event(MOST_BEHIND + 1)])
            await asyncio.sleep(0.1)
            assert slow.behind
            assert await slow.wait(LONG_S) == []

    asyncio.run(run())


def test_whose_token_has_ended_is_woken_and_nobody_else(streams: Streams) -> None:
    async def run() -> None:
        with streams.following(1, "token:1") as one, streams.following(1, "token:2") as other:
            data = {"owner": "token:1"}
            await told(streams, [replace(event(1), job_id=None, to=tokens.REVOKED, data=data)])
            async with asyncio.timeout(LONG_S):
                assert await one.wait(2 * LONG_S) == []
            await asyncio.sleep(0.1)
            assert not other._woken

    asyncio.run(run())


def test_who_left_while_waiting_for_its_turn_holds_up_nobody(streams: Streams) -> None:
    async def run() -> None:
        async with Crowd(streams) as crowd:
            with ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(streams.following(1, "token:1"))
                streams.told([event(1)])
                await asyncio.sleep(0)  # lined up, and now they go
            await crowd.all_heard(1)
            await told(streams, [event(2)])
            await crowd.all_heard(2)

    asyncio.run(run())
