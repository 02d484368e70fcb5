"""How does somebody follow a job: which events, from which one on, and when does the stream end?

What was before is read from the database (a few milliseconds, on threads of their own); what comes after is
heard from the tail, which asks once for all (streams.py): an open stream holds neither session nor thread.
Events are told in the order of their ids and the stream ends after the event by which the job ended.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import anyio.to_thread
import structlog
from fastapi.sse import format_sse_event

from service.api.auth import Principal, Standing
from service.api.errors import BadFieldError
from service.api.state import AppState
from service.api.streams import written
from service.store import events, jobs
from service.store.errors import StoreError
from service.store.records import EventRecord

_log = structlog.get_logger("rooftile.api.events")

PING_S = 15.0
RETRY_MS = 1000
_BATCH = 200

HEADERS = {
    "Cache-Control": "no-store, no-transform",
    # nginx would hold the events back until the stream ends.
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class _Look:
    rows: list[EventRecord]
    ended: bool
    """The job has ended, and `rows` holds all that was still to be told."""


def parse_last_event_id(header: str | None, query: int | None) -> int:
    """Where to go on: the header of a reconnecting browser, else ?after=, else the beginning."""
    if header is None or not header.strip():
        return query or 0
    text = header.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadFieldError(
            "Last-Event-ID has to be the id of an event of this stream.",
            field="Last-Event-ID",
            value=text,
            allowed="a whole number, the id of an event",
        )
    return int(text)


async def stream(state: AppState, principal: Principal, job_id: int, after: int) -> AsyncIterator[bytes]:
    """The events of a job as text/event-stream, for as long as the principal may read them."""
    last = after
    standing = Standing(state, principal)
    yield format_sse_event(comment="rooftile", retry=RETRY_MS)
    # First listen, then read what was before: nothing falls between, and what comes twice has an old id.
    with state.streams.following(job_id, principal.owner) as following:
        behind = True
        while not state.stopping.is_set():
            while behind:
                # here too: who reads a long history slowly stays for long
                if standing.doubtful(PING_S) and not await _holds(state, standing):
                    return
                try:
                    look = await anyio.to_thread.run_sync(_look, state, job_id, last, limiter=state.limiter())
                except StoreError as error:
                    # The client comes back with Last-Event-ID, and by then the database may answer again.
                    _log.warning("stream cut", job_id=job_id, error=str(error))
                    return
                if look.rows:
                    last = look.rows[-1].id
                    yield b"".join([written(row) for row in look.rows])
                if look.ended:
                    yield _end(job_id, last)
                    return
                behind = len(look.rows) >= _BATCH
            rows = await following.wait(PING_S)
            # at a ping, and as often where events come: a token may have run out
            if (standing.doubtful(PING_S) or not rows) and not await _holds(state, standing):
                return
            if following.behind:
                following.behind, behind = False, True
                continue
            text = b"".join([told.text for told in rows if told.id > last])
            if text:
                last = rows[-1].id
                yield text
            if following.over:
                if not state.stopping.is_set():
                    yield _end(job_id, last)
                return
            if not rows:
                yield format_sse_event(comment="ping")


async def _holds(state: AppState, standing: Standing) -> bool:
    try:
        return await anyio.to_thread.run_sync(standing.holds, limiter=state.limiter())
    except StoreError as error:
        _log.warning("stream cut", error=str(error))
        return False


def _end(job_id: int, last: int) -> bytes:
    return format_sse_event(event="end", id=str(last), data_str=json.dumps({"job_id": job_id}))


def _look(state: AppState, job_id: int, last: int) -> _Look:
    with state.database.read() as s:
        # First the job, then its events: one that ends in between is seen as ended by the next look.
        job = jobs.get(s, job_id)
        rows = events.after(s, last, job_id=job_id, limit=_BATCH)
        return _Look(rows=rows, ended=(job is None or not job.open) and len(rows) < _BATCH)
