"""Which lookups were answered before, and does the answer still hold?

An answer that stands on a release is kept as the bytes that were sent. Events drop it: its release or a newer
one of the same problem, device and policy changed, or its family was built by another toolchain on its
device. That there is no release is kept too, since a new fleet asks for little else: a release drops it, and
so do, for the reason that it gives, any move of any job and `MISS_S`. While events cannot be read nothing is
taken from here for longer than `FRESH_S`: a withdrawal is seen within that.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from sqlalchemy.orm import Session

from service.api.tail import Tail
from service.store import releases, trials
from service.store.database import Database
from service.store.enums import EventKind
from service.store.errors import StoreError
from service.store.records import EventRecord

_log = structlog.get_logger("rooftile.api.index")

FRESH_S = 5.0
MISS_S = 5.0
MOST_BYTES = 128 * 2**20
MOST_BODIES = 50_000
MOST_BODY_BYTES = 4096
"""Of a body that is remembered: whoever pads a question pays for its answer himself."""

Key: TypeAlias = tuple[str, str, str]
"""problem_key, device key, policy key."""


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: bytes
    family: str | None
    toolchain_key: str | None
    stale: bool
    until_s: float
    """By the monotonic clock; infinite where events alone end it."""


class ReleaseIndex:
    """Safe to use from any thread."""

    def __init__(self, database: Database, tail: Tail) -> None:
        self._database = database
        self._tail = tail
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._keys: OrderedDict[bytes, Key] = OrderedDict()
        self._misses: set[Key] = set()
        self._bytes = 0
        self._epoch = 0

    # -- asking -----------------------------------------------------------------------------------------

    def answer(self, body: bytes) -> bytes | None:
        """What was answered to exactly this body, if it still holds."""
        key = self._keys.get(body)
        if key is None or not self._tail.fresh(FRESH_S):
            return None
        kept = self._kept.get(key)
        return None if kept is None or time.monotonic() > kept.until_s else kept.answer

    def epoch(self) -> int:
        """To be asked before the database is, and handed to `keep` with what it said."""
        return self._epoch

    def keep(
        self,
        body: bytes,
        key: Key,
        epoch: int,
        answer: bytes,
        *,
        family: str | None,
        toolchain_key: str | None,
        stale: bool,
    ) -> None:
        """Answer the same from now on. Nothing is kept when something was dropped since `epoch`: it may have
        been this."""
        self._keep(body, key, epoch, _Kept(answer, family, toolchain_key, stale, math.inf))

    def keep_miss(self, body: bytes, key: Key, epoch: int, answer: bytes) -> None:
        """As `keep`, of an answer that there is no release."""
        self._keep(body, key, epoch, _Kept(answer, None, None, False, time.monotonic() + MISS_S))

    def _keep(self, body: bytes, key: Key, epoch: int, kept: _Kept) -> None:
        if len(body) > MOST_BODY_BYTES:
            return
        with self._lock:
            if epoch != self._epoch or not self._tail.fresh(FRESH_S):
                return
            self._drop(key)
            self._kept[key] = kept
            if kept.until_s < math.inf:
                self._misses.add(key)
            self._bytes += len(kept.answer)
            self._keys[body] = key
            self._keys.move_to_end(body)
            while len(self._keys) > MOST_BODIES:
                self._keys.popitem(last=False)
            while self._bytes > MOST_BYTES or len(self._kept) > MOST_BODIES:
                self._drop(next(iter(self._kept)))

    def forget(self, keys: Sequence[Key]) -> None:
        """This process has just changed these."""
        with self._lock:
            self._epoch += 1
            for key in keys:
                self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._epoch += 1
            self._kept.clear()
            self._misses.clear()
            self._bytes = 0

    # -- hearing ----------------------------------------------------------------------------------------

    def told(self, rows: Sequence[EventRecord]) -> None:
        """A listener of the tail."""
        if not rows:
            return
        changed = [row.subject_id for row in rows if row.kind is EventKind.RELEASE]
        # also one that is no longer: found to be wrong later, it counts for no toolchain any more
        timed = any(row.kind is EventKind.TRIAL and {row.to, row.source} & _TIMED for row in rows)
        if any(row.kind in _MOVES_OF_JOBS for row in rows):
            with self._lock:
                misses = tuple(self._misses)
            self.forget(misses)
        if not changed and not timed:
            return
        self.forget(())  # what is being read at this moment may be from before
        try:
            if changed:
                with self._database.read() as s:
                    self.forget(releases.lines(s, changed))
            if timed:
                self._forget_stale()
        except StoreError as error:
            _log.warning("what changed cannot be read; every answer is dropped", error=str(error))
            self.clear()

    def _forget_stale(self) -> None:
        """Drop what is stale, and what was not built by the newest toolchain of its family on its device:
        whether it is stale hangs on the trials that come and go now."""
        with self._lock:
            pairs = {(key[1], kept.family) for key, kept in self._kept.items() if kept.family is not None}
        with self._database.read() as s:
            newest = {pair: _newest_toolchain(s, *pair) for pair in pairs}
        with self._lock:
            stale = [
                key
                for key, kept in self._kept.items()
                if kept.family is not None
                and (kept.stale or kept.toolchain_key != newest.get((key[1], kept.family)))
            ]
        if stale:
            self.forget(stale)

    def _drop(self, key: Key) -> None:
        self._misses.discard(key)
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._bytes -= len(gone.answer)


_MOVES_OF_JOBS = (EventKind.JOB, EventKind.JOB_PROBLEM)
_TIMED = {state.value for state in trials.TIMED}


def _newest_toolchain(s: Session, device_key: str, family: str) -> str | None:
    newest = trials.toolchains(s, device_key, family, 1)
    return newest[0].toolchain_key if newest else None
