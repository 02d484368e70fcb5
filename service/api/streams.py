"""Who follows which job, and who hands each of them the events that the process hears of?

One listener of the tail serves all streams: an event is written as JSON once, however many follow its job,
and an open stream costs neither a thread nor a query.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from fastapi.sse import format_sse_event

from service.api import render
from service.api.tail import BATCH
from service.store import events
from service.store.database import Database
from service.store.enums import EventKind
from service.store.errors import StoreError
from service.store.records import EventRecord
from service.store.transitions import JOB, final

_ENDED = {state.value for state in final(JOB)}
MOST_BEHIND = 2000
"""Events that are held for a client that does not read; it gets the rest from the database, at its pace."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it is sent."""

    id: int
    text: bytes


class Following:
    """One open stream; used in its event loop alone."""

    def __init__(self) -> None:
        self._rows: list[Told] = []
        self._woken = asyncio.Event()
        self.over = False
        """No event will come any more: the job has ended, or the service stops."""
        self.behind = False
        """Some were dropped: they have to be read from the database."""

    def push(self, rows: Sequence[Told], over: bool) -> None:
        if len(self._rows) + len(rows) > MOST_BEHIND:
            self.lose()
        elif not self.behind:
            self._rows += rows
        self.over = self.over or over
        self._woken.set()

    def lose(self) -> None:
        """What is held is dropped, and read from the database instead."""
        self._rows, self.behind = [], True
        self._woken.set()

    async def wait(self, most_s: float) -> list[Told]:
        """What has come, at latest after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._woken.wait()
        self._woken.clear()
        rows, self._rows = self._rows, []
        return rows


class Streams:
    """All open streams of this process. `told` runs in the tail's thread, the rest in the event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._followers: dict[int, set[Following]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def following(self, job_id: int) -> Iterator[Following]:
        """Hear the events of a job from now on."""
        self._loop = asyncio.get_running_loop()
        one = Following()
        self._followers.setdefault(job_id, set()).add(one)
        try:
            yield one
        finally:
            rest = self._followers[job_id]
            rest.discard(one)
            if not rest:
                del self._followers[job_id]

    def told(self, rows: Sequence[EventRecord]) -> None:
        """A listener of the tail."""
        loop = self._loop
        if loop is None or not self._followers:
            return
        by_job: dict[int, list[EventRecord]] = defaultdict(list)
        for row in rows:
            if row.job_id is not None and row.job_id in self._followers:
                by_job[row.job_id].append(row)
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

    def _lose(self, jobs: frozenset[int]) -> None:
        for job_id in jobs:
            for one in self._followers.get(job_id, ()):
                one.lose()

    def _deliver(self, told: Mapping[int, Sequence[Told]], over: set[int], stopping: bool) -> None:
        if stopping:
            for ones in self._followers.values():
                for one in ones:
                    one.push((), True)
        for job_id, rows in told.items():
            for one in self._followers.get(job_id, ()):
                one.push(rows, job_id in over)


def written(row: EventRecord) -> bytes:
    """An event on the wire."""
    data = json.dumps(render.event(row), allow_nan=False)
    return format_sse_event(event=str(row.kind), id=str(row.id), data_str=data)
