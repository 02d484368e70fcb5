"""When is old bulk let go, by whom, and how much at a time?

Once an hour, however many search workers there are: whichever holds the lease then. One batch after the
other, each a transaction of milliseconds, and not while somebody on its host measures. `rooftile compact`
does the same by hand.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from service.settings import Settings
from service.store import clock, leases, retention
from service.store.database import Database

_log = structlog.get_logger("rooftile.retention")

LEASE = "retention"
DONE = "retention done"
"""The mark of the last time that it was gone through to the end."""
LEASE_S = 60.0
EVERY_S = 3600.0
TRIALS = 100
EVENTS = 1000
PAUSE_S = 0.05
"""Between two batches, so that others get their turn at the database."""

T = TypeVar("T")


class _Undo(Exception):  # not a failure: how a dry run leaves nothing behind
    """Rolls a batch back."""


@dataclass
class Retention:
    """Goes through all that is due once, batch by batch."""

    db: Database
    settings: Settings
    dry: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, go_on: Callable[[], bool] = lambda: True) -> Counter[str]:
        """What was let go, by kind. Ends early where `go_on` says no."""
        with self.db.read() as s:
            now = clock.now(s)
        details = self._before(now, self.settings.keep_details_days)
        if details is not None:
            self._jobs(details, go_on)
        events = self._before(now, self.settings.keep_events_days)
        if events is not None:
            self._events(events, go_on)
        if go_on():
            demand = self._before(now, self.settings.keep_demand_days)
            self.counts["demand"] += self._batch(lambda s: retention.forget_demand(s, demand))
        return self.counts

    def _before(self, now: datetime, days: int) -> datetime | None:
        return now - timedelta(days=days) if days else None

    def _jobs(self, before: datetime, go_on: Callable[[], bool]) -> None:
        last = 0
        while go_on():
            after = last
            with self.db.read() as s:
                job_id = retention.next_job(s, before, after)
            if job_id is None:
                return
            last = job_id
            if not self._trials(job_id, go_on):
                return
            self.counts["artifacts"] += self._batch(partial(retention.finish_job, job_id=job_id))
            self.counts["jobs"] += 1

    def _trials(self, job_id: int, go_on: Callable[[], bool]) -> bool:
        after: int | None = 0
        while after is not None:
            if not go_on():
                return False
            done = self._batch(partial(retention.compact_trials, job_id=job_id, after=after, limit=TRIALS))
            self.counts["measurements"] += done[0]
            self.counts["logs"] += done[1]
            after = done[2]
        return True

    def _events(self, before: datetime, go_on: Callable[[], bool]) -> None:
        after: int | None = 0
        while after is not None and go_on():
            done = self._batch(partial(retention.forget_events, before=before, after=after, limit=EVENTS))
            self.counts["events"] += done[0]
            after = done[1]

    def _batch(self, do: Callable[[Session], T]) -> T:
        if not self.dry:
            time.sleep(PAUSE_S)
            return self.db.run(do)
        found: list[T] = []

        def and_undo(s: Session) -> None:
            found.append(do(s))
            raise _Undo

        with contextlib.suppress(_Undo):
            self.db.run(and_undo)
        return found[-1]


@dataclass
class Tidying:
    """The step of a search worker's second loop."""

    db: Database
    settings: Settings
    owner: str
    stopping: Callable[[], bool] = lambda: False
    measuring: Callable[[], bool] = lambda: False
    _next_s: float = field(default=0.0, init=False)

    def step(self) -> bool:
        """Always False: there is no hurry."""
        if time.monotonic() < self._next_s:
            return False
        rest_s = self._rest_s()
        if rest_s > 0:
            self._next_s = time.monotonic() + rest_s
            return False
        if not self._hold():
            return False
        if self._rest_s() > 0:  # another one was quicker, and has ended
            self.db.run(lambda s: leases.release(s, LEASE, self.owner))
            return False
        self._next_s = time.monotonic() + EVERY_S
        counts = Retention(self.db, self.settings).run(self._go_on)
        if +counts:
            _log.info("let go", **{kind: count for kind, count in counts.items() if count})
        self.db.run(self._end)
        return False

    def _rest_s(self) -> float:
        """For how long nobody need do it again."""
        with self.db.read() as s:
            since_s = leases.since_mark_s(s, DONE)
        return 0.0 if since_s is None else EVERY_S - since_s

    def _end(self, s: Session) -> None:
        if leases.release(s, LEASE, self.owner) and not self.stopping():
            leases.mark(s, DONE, self.owner)

    def _go_on(self) -> bool:
        while self.measuring() and not self.stopping():
            time.sleep(0.5)
        return not self.stopping() and self._hold()

    def _hold(self) -> bool:
        return self.db.run(lambda s: leases.acquire(s, LEASE, self.owner, LEASE_S)) is not None
