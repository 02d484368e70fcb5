"""What has happened since? One look at the events every quarter of a second, for everybody in this process.

However many streams are open and answers are kept, the database is asked once. Whoever listens is told each
event once, in the order of ids, in a thread of the tail's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from service.store import events
from service.store.database import Database
from service.store.records import EventRecord

_log = structlog.get_logger("rooftile.api.tail")

POLL_S = 0.25
BATCH = 500

AWAY_S = 10.0
"""A look that takes longer is not waited for by others."""

Told = Callable[[Sequence[EventRecord]], None]


class Tail:
    """Runs from `start` until `stopping` is set."""

    def __init__(self, database: Database, stopping: threading.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._listeners: list[Told] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked_s = float("-inf")
        self._answered_s = float("-inf")
        self._blind = False
        self.seen: int | None = None
        """Listeners were told all events up to this id; None before the first look."""

    def start(self) -> None:
        self._answered_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """After `stopping` was set."""
        if self._thread is not None:
            self._thread.join(5.0)

    def fresh(self, within_s: float) -> bool:
        """Whether everything is known that was written that long ago."""
        return time.monotonic() - self._looked_s <= within_s

    @property
    def away(self) -> bool:
        """The database did not answer the last look, or has not answered this one for long: whoever asks it
        now would wait for the same. On SQLite nobody waits, and the next one may be lucky."""
        if self._thread is None or self._database.dialect != "postgresql":
            return False
        return self._blind or time.monotonic() - self._answered_s > AWAY_S

    @contextmanager
    def listening(self, told: Told) -> Iterator[None]:
        """Tell `told` what happens from now on, in the tail's thread. An empty list: the service stops."""
        with self._lock:
            self._listeners.append(told)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(told)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                more = self._look()
            except Exception as error:  # noqa: BLE001 - short memory too: without this thread streams fall silent
                more = False
                if not self._blind:
                    self._blind = True
                    _log.warning("the events cannot be read", error=str(error))
            if not more:
                self._stopping.wait(POLL_S)
        self._tell([])

    def _look(self) -> bool:
        started_s = time.monotonic()
        with self._database.glance() as s:
            if self.seen is None:
                self.seen, rows = events.latest_id(s), []
            else:
                rows = events.after(s, self.seen, limit=BATCH)
        self._answered_s = time.monotonic()
        if rows:
            self._tell(rows)
            self.seen = rows[-1].id
        more = len(rows) == BATCH
        if not more:
            self._looked_s = started_s
        if self._blind:
            self._blind = False
            _log.info("the events can be read again")
        return more

    def _tell(self, rows: Sequence[EventRecord]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for told in listeners:
            try:
                told(rows)
            except Exception:  # noqa: BLE001 - one listener's fault must not keep the others from hearing
                _log.error("a listener failed", exc_info=True)
