"""What has become of a problem's trials so far, without reading all of them again at each step?

Each move of a trial writes an event in the same transaction, and ids of events become visible in their order
(store/events.py). So who has read up to an id has only to read the trials that moved since, and a step of a
job of 5,000 trials costs what one of 50 does. Kept by process; made again from the rows where it is missing.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.jobs.proposing import Tried
from service.store import events, races, trials
from service.store.enums import TrialReason, TrialState
from service.store.records import OutcomeCount, Spent, TrialProgress
from service.store.transitions import TRIAL_OPEN

TRIALS_KEPT = 20_000
"""Of all histories of a process together, some 2 KB each; those that were not asked for longest go first."""
FRESH_S = 600.0
"""Not asked for so long, it is made again: old events do not stay for ever."""
_TIMED = (TrialState.MEASURED, TrialState.CULLED)
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class History:
    """The trials of one job problem, as of event `upto`."""

    upto: int = 0
    races_s: float = 0.0
    finished: list[TrialProgress] = field(default_factory=list)
    """Ended with something to learn (not cancelled), in the order in which they ended."""
    done: list[Tried] = field(default_factory=list)
    """`finished` as the proposer is told of it."""
    cancelled: set[str] = field(default_factory=set)
    """Keys of schedules."""
    read_s: float = field(default=0.0)
    _rows: dict[int, TrialProgress] = field(default_factory=dict)
    _open: dict[int, Tried] = field(default_factory=dict)
    _outcomes: Counter[tuple[TrialState, TrialReason | None]] = field(default_factory=Counter)
    _compile_s: float = 0.0
    _device_s: float = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def in_flight(self) -> list[Tried]:
        """Proposed and not ended, by number."""
        return [self._open[key] for key in sorted(self._open)]

    @property
    def spent(self) -> Spent:
        """As `trials.spent`."""
        return Spent(len(self._rows), len(self._open), self._compile_s, self._device_s + self.races_s)

    @property
    def counts(self) -> list[OutcomeCount]:
        """As `trials.counts`."""
        found = [OutcomeCount(*outcome, count) for outcome, count in self._outcomes.items() if count]
        return sorted(found, key=lambda one: (one.state.value, one.reason.value if one.reason else ""))

    def learn(self, rows: Iterable[TrialProgress]) -> None:
        """These are new, or have moved."""
        for row in rows:
            before = self._rows.get(row.id)
            if before is not None:
                self._forget(before)
            self._rows[row.id] = row
            self._outcomes[row.state, row.reason] += 1
            self._compile_s += row.compile_s or 0.0
            self._device_s += row.device_s or 0.0
            if row.state in TRIAL_OPEN:
                self._open[row.id] = Tried(Schedule.from_json(row.schedule), row.schedule_key)
            elif row.state is TrialState.CANCELLED:
                self.cancelled.add(row.schedule_key)
            else:
                at = bisect.bisect(self.finished, _when(row), key=_when)
                self.finished.insert(at, row)
                self.done.insert(at, Tried(Schedule.from_json(row.schedule), row.schedule_key, _time(row)))

    def _forget(self, row: TrialProgress) -> None:
        self._outcomes[row.state, row.reason] -= 1
        self._compile_s -= row.compile_s or 0.0
        self._device_s -= row.device_s or 0.0
        if row.state in TRIAL_OPEN:
            del self._open[row.id]
        elif row.state is not TrialState.CANCELLED:
            at = bisect.bisect_left(self.finished, _when(row), key=_when)
            del self.finished[at], self.done[at]


def _when(row: TrialProgress) -> tuple[datetime, int]:
    return row.finished_at or _NEVER, row.id


def _time(row: TrialProgress) -> float | None:
    """A ranked trial has the cost model's word only; a culled one the time of its first look."""
    if row.state is TrialState.RANKED:
        return row.predicted_us
    return row.time_us if row.state in _TIMED else None


# ---------------------------------------------------------------- what is kept


class _Kept:
    """The histories of one database, the latest asked for last."""

    def __init__(self) -> None:
        self.by_problem: OrderedDict[int, History] = OrderedDict()

    def trim(self) -> None:
        total = sum(len(one) for one in self.by_problem.values())
        while total > TRIALS_KEPT and len(self.by_problem) > 1:
            total -= len(self.by_problem.popitem(last=False)[1])


# by the pool of connections: a process may work with several databases, whose ids are the same numbers
_kept: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()


def of_problem(s: Session, job_id: int, job_problem_id: int) -> History:
    """The history as this session sees it; nobody else's to change."""
    kept = _kept.setdefault(s.get_bind().engine.pool, _Kept())
    known = kept.by_problem.pop(job_problem_id, None)
    now_s = time.monotonic()
    if known is not None and now_s - known.read_s > FRESH_S:
        known = None
    if known is None:
        known = History(upto=events.latest_id(s, job_id), races_s=races.device_s(s, job_problem_id))
        known.learn(trials.progress(s, job_problem_id))
    else:
        _catch_up(s, job_id, job_problem_id, known)
    known.read_s = now_s
    kept.by_problem[job_problem_id] = known
    kept.trim()
    return known


def _catch_up(s: Session, job_id: int, job_problem_id: int, known: History) -> None:
    upto, moved, raced = events.moved(s, job_id, known.upto)
    if moved:
        known.learn(trials.progress(s, job_problem_id, moved))
    if raced:
        known.races_s = races.device_s(s, job_problem_id)
    known.upto = upto
