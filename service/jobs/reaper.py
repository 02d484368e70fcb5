"""Who gives back what a dead worker held, and clears away what nobody needs any more?

Whichever search worker holds the reaper's lease, every two seconds (a tenth of ROOFTILE_LEASE_S).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from sqlalchemy.orm import Session

from service import periods
from service.host import host_name
from service.jobs import releases as publishing
from service.settings import get_settings
from service.store import (
    audit,
    clock,
    emulation_claims,
    events,
    idempotency,
    jobs,
    leases,
    logins,
    races,
    shares,
    trials,
    workers,
)
from service.store.database import Database
from service.store.enums import EventKind, JobState
from service.store.records import WorkerRecord

_log = structlog.get_logger("rooftile.reaper")

TIDY_EVERY_S = 300.0
ALARM_EVERY_S = 10.0
# Without any event of a running job for so long, something that it needs is missing or stuck.
STALLED_S = 120.0
STALLED = "stalled"


@dataclass
class Reaper:
    """One per search worker; `reap` does nothing unless it is time and the lease is ours."""

    db: Database
    owner: str
    one_host: bool
    """All workers run on this host in one tree (embedded): a process id that is gone is a dead worker."""
    _first: bool = field(default=True, init=False)
    _next_s: float = field(default=-math.inf, init=False)
    _next_tidy_s: float = field(default=0.0, init=False)
    _next_alarm_s: float = field(default=-math.inf, init=False)

    def reap(self, now_s: float) -> bool:
        """`now_s` is a monotonic clock. True when something was given back or ended."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + periods.reap_every_s()
        if self._first:
            # The reaper before this one may be among the dead, and its lease would hold us up.
            self._first = False
            dead = self._dead_workers() if self.one_host else []
            if dead:
                self.db.run(lambda s: _bury(s, dead))
        held = self.db.run(lambda s: leases.acquire(s, leases.REAPER, self.owner, periods.reaper_lease_s()))
        if held is None:
            return False
        dead = self._dead_workers() if self.one_host else []
        did = self.db.run(lambda s: _reap(s, dead))
        if now_s >= self._next_alarm_s:
            self._next_alarm_s = now_s + ALARM_EVERY_S
            self.db.run(_alarm)
        if now_s >= self._next_tidy_s:
            self._next_tidy_s = now_s + TIDY_EVERY_S
            self.db.run(_tidy)
        return did

    def _dead_workers(self) -> list[WorkerRecord]:
        here = host_name()
        with self.db.read() as s:
            known = workers.listing(s)
        return [one for one in known if one.host == here and one.id != self.owner and not _lives(one.pid)]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reap(s: Session, dead: list[WorkerRecord]) -> bool:
    touched = _bury(s, dead)
    touched += len(trials.expire(s)) + len(races.expire(s)) + len(emulation_claims.expire(s))
    touched += len(publishing.withdraw_quarantined(s))
    return touched > 0


def _bury(s: Session, dead: list[WorkerRecord]) -> int:
    """Give back what dead workers held, and forget them."""
    touched = 0
    for worker in dead:
        touched += len(trials.expire(s, owner=worker.id)) + len(races.expire(s, owner=worker.id))
        touched += len(emulation_claims.expire(s, owner=worker.id))
        touched += leases.release_all(s, worker.id)
        workers.remove(s, worker.id)
        _log.info("gave back what a dead worker held", worker=worker.id, pid=worker.pid)
    return touched


def _alarm(s: Session) -> None:
    """Say once that a running job has stood still: the no-progress alarm."""
    now = clock.now(s)
    for job in jobs.listing(s, states=[JobState.RUNNING], limit=200).rows:
        last = events.after(s, events.latest_id(s, job.id) - 1, job_id=job.id, limit=1)
        if not last or now - last[0].at < timedelta(seconds=STALLED_S):
            continue
        if last[0].kind is EventKind.NOTE and last[0].to == STALLED:
            continue
        told = {"seconds": STALLED_S, "text": "Nothing has happened; is every worker it needs running?"}
        events.note(s, job.id, STALLED, told)
        _log.warning("a job stands still", job=job.id)


def _tidy(s: Session) -> None:
    idempotency.forget(s)
    logins.forget(s)
    workers.forget(s)
    shares.forget(s)
    audit.forget(s, get_settings().audit_days * 86400.0)
