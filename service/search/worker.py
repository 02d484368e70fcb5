"""What does a search worker do, over and over: reap, then advance every job that can move."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import structlog
from rooftile.errors import RooftileError
from sqlalchemy.orm import Session

from service.bus import Doorbell, GateInterrupted, HostGate, Kind, about
from service.errors import host_is_short
from service.host import host_name
from service.jobs.advance import advance
from service.jobs.control import close
from service.jobs.reaper import Reaper
from service.jobs.step import Rest
from service.search.proposer import Proposer
from service.search.wayin import WayIn
from service.settings import Settings
from service.store import events, jobs, leases, workers
from service.store.database import Database
from service.store.enums import (
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    WorkerKind,
    WorkerState,
)
from service.store.errors import IllegalTransition, NotFound, StoreError
from service.version import told

_log = structlog.get_logger("rooftile.search")

# Budgets in seconds and devices that come or go write no event, so all jobs are looked at this often anyway;
# where that takes long (200 running jobs: half a second), for a quarter of the time at most.
LOOK_S = 1.0
LOOK_MOST_S = 3.0
LOOK_REST = 4.0
# While a measurement has the host to itself, looking at jobs waits, but no longer than this: budgets and
# ends must hold within seconds.
QUIET_S = 1.0
FAULTS_MOST = 3
"""A job that cannot get on for a fault of ours ends after so many tries."""
_JOB_FAULTS = (IllegalTransition, NotFound)


def worker_id() -> str:
    """A name of this process that no other has, also after a restart."""
    return f"search-{host_name()}-{os.getpid()}-{secrets.token_hex(3)}"


class SearchWorker:
    """One search worker; `step` is what its Loop calls."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        name: str | None = None,
        gate: HostGate | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.name = name or worker_id()
        self._db = db
        self._gate = HostGate() if gate is None else gate
        self._way_in = WayIn(self._gate)
        self._proposer = Proposer() if proposer is None else proposer
        self._doorbell = Doorbell(settings)
        self._embedded = settings.embedded
        self._reaper = Reaper(db, self.name, one_host=settings.embedded)
        self._seen_event = -1
        self._looked_s = -1e9
        self._looked_at_all_s = -1e9
        self._rest_s = 0.0
        self._owed = False
        self._busy = False
        self._after = 0
        self._looked_at: dict[int, float] = {}
        self._rests: dict[int, Rest] = {}
        """Of jobs that were looked at and had nothing to do, where they said for how long."""
        self._faults: Counter[int] = Counter()
        self.stopping: Callable[[], bool] = lambda: False
        """Asked between jobs: what is left then is seen by whoever goes on, as work that was never begun."""

    def step(self) -> bool:
        """True when something moved, or waits for the host: then there is more to do at once."""
        now_s = time.monotonic()
        did = self._reaper.reap(now_s)
        aside = self._way_in.new_step()
        with self._db.glance() as s:
            if self._seen_event < 0:
                news = events.News(events.latest_id(s), frozenset(), wider=True)
            else:
                news = events.news(s, self._seen_event)
        self._owed |= news.wider
        waited_s = now_s - self._looked_at_all_s
        all_of_them = waited_s >= self._rest_s and (self._owed or waited_s >= LOOK_S)
        if news.latest == self._seen_event and not all_of_them and not aside:
            return did
        if now_s - self._looked_s < QUIET_S and self._measuring():
            return did
        self._seen_event, self._looked_s = news.latest, now_s
        told = self._told(news)
        if all_of_them:
            moved = self._look_at_all(now_s, told, aside)
        else:
            moved = self._advance_all([*aside, *sorted(told.difference(aside))])
        self._busy = bool(moved)
        if moved and not self._embedded:
            self._ring(moved)
        return did or bool(moved) or self._way_in.waits

    def _look_at_all(self, now_s: float, told: Collection[int], aside: Collection[int]) -> list[int]:
        with self._db.glance() as s:
            ids, self._after = jobs.advanceable(s, self._after)
        if not self._owed:
            # a job whose trials end twice a second was looked at just now
            ids = [one for one in ids if one in told or not self._rested(one, now_s)]
        ids = [*aside, *(one for one in ids if one not in aside)]
        self._looked_at_all_s, self._owed = now_s, False
        self._looked_at = {one: at_s for one, at_s in self._looked_at.items() if self._rested(one, now_s)}
        self._rests = {one: rest for one, rest in self._rests.items() if one in self._looked_at}
        moved = self._advance_all(ids)
        self._rest_s = min(LOOK_REST * (time.monotonic() - now_s), LOOK_MOST_S)
        return moved

    def _told(self, news: events.News) -> set[int]:
        """The jobs that the news may take on; of the others' rests remembers what is left."""
        found = set()
        for job_id in news.jobs:
            rest, ended = self._rests.get(job_id), news.ended.get(job_id)
            if rest is None or ended is None or ended >= rest.ends:
                found.add(job_id)
            else:
                self._rests[job_id] = replace(rest, ends=rest.ends - ended)
        return found

    def _rested(self, job_id: int, now_s: float) -> bool:
        """It was looked at lately."""
        rest = self._rests.get(job_id)
        seconds = LOOK_S if rest is None else rest.seconds
        return now_s - self._looked_at.get(job_id, -1e9) < seconds

    def _advance_all(self, ids: Sequence[int]) -> list[int]:
        return [job_id for job_id in ids if not self.stopping() and self._advance(job_id)]

    def beat(self) -> bool:
        """The heartbeat, called from a thread of its own."""
        state = WorkerState.BUSY if self._busy else WorkerState.IDLE
        self._db.run(
            lambda s: workers.heartbeat(
                s, self.name, WorkerKind.SEARCH, host_name(), os.getpid(), None, state, told()
            )
        )
        return False

    def close(self) -> None:
        """An orderly end takes the worker's row and leases with it."""
        self._doorbell.close()

        def leave(s: Session) -> None:
            workers.remove(s, self.name)
            leases.release_all(s, self.name)

        try:
            self._db.run(leave)
        except StoreError as error:
            _log.warning("could not say goodbye", error=str(error))

    def _measuring(self) -> bool:
        """A measurement has the host, or waits for it. Asked without waiting: the gate is not re-entrant."""
        try:
            with self._gate.shared(timeout_s=0.0):
                return False
        except TimeoutError:
            return True

    def _advance(self, job_id: int) -> bool:
        self._looked_at[job_id] = time.monotonic()
        self._rests.pop(job_id, None)
        self._way_in.forget(job_id)

        def rests(rest: Rest) -> None:
            self._rests[job_id] = rest

        try:
            with about(job_id=job_id):
                did = advance(
                    self._db,
                    job_id,
                    self._proposer,
                    owner=self.name,
                    gate=lambda: self._way_in.take(job_id),
                    rests=rests,
                )
        except GateInterrupted:
            raise
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, _JOB_FAULTS):
                raise  # the database's trouble is every job's
            if host_is_short(error):
                raise  # and so is this host's
            self._faults[job_id] += 1
            expected = isinstance(error, RooftileError)
            _log.error("cannot advance", job=job_id, error=str(error), exc_info=not expected)
            if self._faults[job_id] >= FAULTS_MOST:
                self._fail(job_id, error)
                return True
            return False
        if did:
            self._faults.pop(job_id, None)
        return did

    def _fail(self, job_id: int, error: Exception) -> None:
        sentence = f"A fault of ours: {type(error).__name__}: {error}"[:500]

        def end(s: Session) -> None:
            jobs.lock(s, job_id)
            job = jobs.get(s, job_id)
            if job is not None and job.open:
                fault = JobProblemReason.INTERNAL_ERROR
                close(s, job_id, sentence, JobProblemState.FAILED, fault)
                jobs.move(s, job_id, JobState.FAILED, JobReason.INTERNAL_ERROR, sentence)

        self._db.run(end)
        self._faults.pop(job_id, None)

    def _ring(self, moved: list[int]) -> None:
        """Say that there may be something to compile or emulate, and to measure on these jobs' devices."""
        self._doorbell.ring(Kind.COMPILE)
        self._doorbell.ring(Kind.EMULATE)
        with self._db.glance() as s:
            keys = {row.device_key for job_id in moved for row in jobs.problems(s, job_id)}
        for key in keys - {None}:
            self._doorbell.ring(Kind.MEASURE, device_key=key)


def make_step(db: Database, settings: Settings) -> Callable[[], bool]:
    """The step of a new search worker."""
    return SearchWorker(db, settings).step
