"""Who follows which job, and who hands each of them the events that the process hears of?

One listener of the tail serves all streams: an event is written as JSON once, however many follow its job,
and an open stream costs neither a thread nor a query. Streams are woken a few at a time, with the rest of the
loop's work in between: five hundred that are told at once would hold up every lookup for 30 ms. Who is woken
later finds more events waiting, and sends them as one piece.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from fastapi.sse import format_sse_event

from service.api import render
from service.api.errors import TooManyError, UnavailableError
from service.api.files import for_streams
from service.api.tail import BATCH
from service.store import events, tokens
from service.store.database import Database
from service.store.enums import EventKind
from service.store.errors import StoreError
from service.store.records import EventRecord
from service.store.transitions import JOB, final

_Key = TypeVar("_Key", int, str)
_ENDED = {state.value for state in final(JOB)}
MOST_BEHIND = 2000
"""Events that are held for a client that does not read; it gets the rest from the database, at its pace."""

MOST_OF_ONE, MOST_OPEN = 1000, 4000
"""Open streams of one token, or session, and of all, in a process; some 30 KB each. Fewer where the process
may not open as many files (files.py): one has a quarter of what all have."""
WOKEN_AT_ONCE = 8
"""Streams that send in one pass of the loop: half a millisecond of it."""
LEAST_PAUSE_S = 0.0005
MOST_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it is sent."""

    id: int
    text: bytes


class Following:
    """One open stream; used in its event loop alone."""

    def __init__(self) -> None:
        self._rows: list[Told] = []
        self._waiting: asyncio.Future[None] | None = None
        self._woken = False
        self.over = False
        """No event will come any more: the job has ended, or the service stops."""
        self.behind = False
        """Some were dropped: they have to be read from the database."""

    def push(self, rows: Sequence[Told], over: bool) -> None:
        """Hold these until it is woken."""
        if len(self._rows) + len(rows) > MOST_BEHIND:
            self.lose()
        elif not self.behind:
            self._rows += rows
        self.over = self.over or over

    def lose(self) -> None:
        """What is held is dropped, and read from the database instead."""
        self._rows, self.behind = [], True

    def wake(self) -> None:
        self._woken = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, most_s: float) -> list[Told]:
        """What has come, at latest after so long."""
        if not self._woken:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            late = loop.call_later(most_s, self.wake)
            try:
                await self._waiting
            finally:
                late.cancel()
                self._waiting = None
        self._woken = False
        rows, self._rows = self._rows, []
        return rows


class Streams:
    """All open streams of this process. `told` runs in the tail's thread, the rest in the event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._of_owner: dict[str, set[Following]] = {}
        self._followers: dict[int, set[Following]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_wake: deque[Following] = deque()
        self._in_line: set[Following] = set()
        self._waker: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """Streams."""
        return sum(map(len, self._of_owner.values()))

    def check_room(self, owner: str) -> None:
        """TooManyError, or UnavailableError, where this process has as many streams open as it should."""
        files = for_streams()
        most_of_one, most_open = min(MOST_OF_ONE, files // 4), min(MOST_OPEN, files)
        of_one = len(self._of_owner.get(owner, ()))
        if of_one >= most_of_one:
            raise TooManyError(
                f"This token has {most_of_one} event streams open; close some.",
                value=of_one,
                allowed=f"at most {most_of_one}",
                headers={"Retry-After": "5", "Connection": "close"},  # it would hold a file too
            )
        if self.open >= most_open:
            raise UnavailableError(
                f"{most_open} event streams are open here; ask again.",
                headers={"Retry-After": "5", "Connection": "close"},
            )

    @contextmanager
    def following(self, job_id: int, owner: str) -> Iterator[Following]:
        """Hear the events of a job from now on; `owner` is who does."""
        self._loop = asyncio.get_running_loop()
        one = Following()
        self._followers.setdefault(job_id, set()).add(one)
        self._of_owner.setdefault(owner, set()).add(one)
        try:
            yield one
        finally:
            _drop(self._of_owner, owner, one)
            _drop(self._followers, job_id, one)

    def told(self, rows: Sequence[EventRecord]) -> None:
        """A listener of the tail."""
        loop = self._loop
        if loop is None or not self._followers:
            return
        by_job: dict[int, list[EventRecord]] = defaultdict(list)
        for row in rows:
            if row.job_id is not None and row.job_id in self._followers:
                by_job[row.job_id].append(row)
        ends = [row.data for row in rows if row.kind is EventKind.NOTE and row.to == tokens.REVOKED]
        gone = {str(data["owner"]) for data in ends if "owner" in data}  # older services do not write it
        if gone:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._doubt, frozenset(gone))
        ended = {row.subject_id for row in rows if row.kind is EventKind.JOB and row.to in _ENDED}
        over = ended & by_job.keys()
        if over and len(rows) >= BATCH:
            # the transaction that ended the job may have told more than this batch holds
            try:
                with self._database.read() as s:
                    for job_id in over:
                        by_job[job_id] += events.after(s, rows[-1].id, job_id=job_id)
            except StoreError:
                # each looks for itself, and is cut if that fails too
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._lose, frozenset(over))
                over = set()
        told: dict[int, Sequence[Told]]
        told = {job_id: [Told(row.id, written(row)) for row in of] for job_id, of in by_job.items()}
        if told or not rows:
            with suppress(RuntimeError):  # the loop has ended, and with it all streams
                loop.call_soon_threadsafe(self._deliver, told, over, not rows)

    def _doubt(self, owners: frozenset[str]) -> None:
        """Their streams look whether they may stay, and no others."""
        for owner in owners:
            for one in self._of_owner.get(owner, ()):
                self._line_up(one)

    def _lose(self, jobs: frozenset[int]) -> None:
        for job_id in jobs:
            for one in self._followers.get(job_id, ()):
                one.lose()
                self._line_up(one)

    def _deliver(self, told: Mapping[int, Sequence[Told]], over: set[int], stopping: bool) -> None:
        if stopping:
            for ones in self._followers.values():
                for one in ones:
                    one.push((), True)
                    one.wake()  # at once: nobody looks anything up any more
        for job_id, rows in told.items():
            for one in self._followers.get(job_id, ()):
                one.push(rows, job_id in over)
                self._line_up(one)

    def _line_up(self, one: Following) -> None:
        """It is woken in its turn, once, however much comes before."""
        if one not in self._in_line:
            self._in_line.add(one)
            self._to_wake.append(one)
            if self._waker is None:
                self._waker = asyncio.get_running_loop().create_task(self._wake_in_turn())

    async def _wake_in_turn(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._to_wake:
                started_s = loop.time()
                for _ in range(min(WOKEN_AT_ONCE, len(self._to_wake))):
                    one = self._to_wake.popleft()
                    self._in_line.discard(one)
                    one.wake()
                await asyncio.sleep(0)  # they send now
                # as long for all others as these took: streams have half of the loop at most
                took_s = loop.time() - started_s
                await asyncio.sleep(min(max(took_s, LEAST_PAUSE_S), MOST_PAUSE_S))
        finally:
            self._waker = None


def _drop(sets: dict[_Key, set[Following]], key: _Key, one: Following) -> None:
    rest = sets[key]
    rest.discard(one)
    if not rest:
        del sets[key]


def written(row: EventRecord) -> bytes:
    """An event on the wire."""
    data = json.dumps(render.event(row), allow_nan=False)
    return format_sse_event(event=str(row.kind), id=str(row.id), data_str=data)
