"""Do the reader of events and the shared query of lookups outlive what nobody expected?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import event as sa_event
from starlette.testclient import TestClient
from support.api import CPU, gemm

from service.api import lookup
from service.api.asking import Asking
from service.api.tail import Tail
from service.store import events
from service.store.database import Database
from service.store.records import EventRecord

LONG_S = 30.0


@contextmanager
def failing(database: Database, on: str, error: type[BaseException]) -> Iterator[list[str]]:
    """Statements that hold these words fail, before the driver has them. Yields those that did."""
    failed: list[str] = []

    def fail(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if on in statement:
            failed.append(statement)
            raise error("planted")

    engine = database.engine()
    sa_event.listen(engine, "before_cursor_execute", fail)
    try:
        yield failed
    finally:
        sa_event.remove(engine, "before_cursor_execute", fail)


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def tail(seed: Any) -> Iterator[Tail]:
    stopping = threading.Event()
    made = Tail(seed.database, stopping)
    made.start()
    wait_for(lambda: made.seen is not None)
    yield made
    stopping.set()
    made.join()


def note(seed: Any) -> int:
    with seed.database.begin() as s:
        events.note(s, None, "test")
    with seed.database.read() as s:
        return events.latest_id(s)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, UnicodeDecodeError])
def test_the_reader_goes_on_after_errors_and_tells_what_happened_meanwhile(
    tail: Tail, seed: Any, error: type[BaseException]
) -> None:
    told: list[int] = []
    planted: Any = error
    if error is UnicodeDecodeError:
        planted = lambda text: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text)  # noqa: E731
    with tail.listening(lambda rows: told.extend(row.id for row in rows)):
        first = note(seed)
        wait_for(lambda: first in told)
        with failing(seed.database, "FROM events", planted) as failed:
            wait_for(lambda: len(failed) >= 3)  # it looks again and again
            assert not tail.fresh(0.0)
        second = note(seed)
        wait_for(lambda: second in told)
    assert told == sorted(set(told))
    assert tail.fresh(LONG_S)


def test_a_listener_that_fails_keeps_nobody_from_hearing(tail: Tail, seed: Any) -> None:
    before: list[int] = []
    after: list[int] = []
    calls: list[int] = []

    def broken(rows: Sequence[EventRecord]) -> None:
        calls.append(len(rows))
        raise KeyError("planted")

    with ExitStack() as stack:
        stack.enter_context(tail.listening(lambda rows: before.extend(row.id for row in rows)))
        stack.enter_context(tail.listening(broken))
        stack.enter_context(tail.listening(lambda rows: after.extend(row.id for row in rows)))
        for _ in range(2):
            number = note(seed)
            wait_for(lambda number=number: number in after)
    assert len(calls) >= 2  # it is told again
    assert before == after == sorted(set(after))


def question(m: int) -> lookup.Question:
    return lookup.parse({"problem": gemm(m), "device": CPU})


def test_an_error_of_the_shared_query_is_told_to_those_who_wait_and_the_next_is_answered(
    client: TestClient, seed: Any
) -> None:
    seed.device()
    state = client.app.state.rooftile  # type: ignore[attr-defined]

    async def run() -> None:
        asking = Asking(seed.database, state.index)
        for error in (MemoryError, RuntimeError):
            with failing(seed.database, "FROM", error):
                asked = [asking.ask(b"%d" % m, question(m)) for m in range(1, 100)]  # more than one batch
                async with asyncio.timeout(LONG_S):
                    answers = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(answer) for answer in answers} == {error}
            async with asyncio.timeout(LONG_S):
                assert b'"level"' in await asking.ask(b"", question(1))

    asyncio.run(run())


@pytest.mark.parametrize("begun", [False, True])
def test_a_shared_query_that_is_ended_leaves_room_for_the_next(
    client: TestClient, seed: Any, begun: bool
) -> None:
    seed.device()
    state = client.app.state.rooftile  # type: ignore[attr-defined]

    async def run() -> None:
        asking = Asking(seed.database, state.index)
        lost = asyncio.ensure_future(asking.ask(b"1", question(1)))
        for _ in range(1 + 2 * begun):
            await asyncio.sleep(0)
        assert asking._task is not None
        asking._task.cancel()
        async with asyncio.timeout(LONG_S):
            await asyncio.wait([asking._task])
            gone = asyncio.ensure_future(asking.ask(b"2", question(2)))  # goes away before it is answered
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait([gone])
            assert b'"level"' in await asking.ask(b"3", question(3))
            await asyncio.wait([lost])
        assert lost.cancelled() == begun  # one that had not begun is answered with the next

    asyncio.run(run())
