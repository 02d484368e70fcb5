"""Where does a job whose problems have weights spend its budget next?

What a whole model costs is the sum of weight x time over its problems. Each problem has a floor of trials
first; from then on the next slice goes where that sum is expected to fall most: by how much the problem's
best fell over the later half of its trials, and a little for whatever was looked at less. One problem of a
device is searched at a time, the others rest; when nothing is left to give, each is raced in its turn. What
is expected depends on the rows alone, so whoever goes on after a crash decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.jobs import budgets, history, lines
from service.jobs.step import Step, Write
from service.store import jobs
from service.store.enums import JobProblemReason, JobProblemRole, JobProblemState, TrialState
from service.store.records import JobProblemRecord, JobRecord, Spent, TrialProgress

SLICE = 8
"""Trials that are given at once: as many as are asked for together."""
FLOOR_MOST = 16
FLOOR_SHARE = 0.25
"""Of an equal share, what each problem has first."""
FLOOR_UNLIMITED = 8
"""Of a job without a limit on trials."""
HOPE = 0.1
"""A problem is expected to gain this part of its time over as many trials as it has had, whatever it gained
until now: else one whose first trials brought nothing would never be looked at again."""
OPEN = (JobProblemState.QUEUED, JobProblemState.SEARCHING, JobProblemState.RESTING)


# ---------------------------------------------------------------- what is expected


@dataclass(frozen=True)
class Standing:
    """What the choice knows of one problem."""

    id: int
    weight: float
    best_us: tuple[float | None, ...]
    """The best time after each trial that has ended; None before the first time."""
    seconds: float = 1.0
    """What one of its trials takes."""


def gain(one: Standing) -> float:
    """By how much weight x time is expected to fall in a second of its search."""
    count = len(one.best_us)
    best = one.best_us[-1] if count else None
    if best is None:
        # Nothing ran yet: more trials while they are few, none for what never runs.
        return float("inf") if count < 2 * FLOOR_MOST else 0.0
    half = count // 2
    before = next((time_us for time_us in one.best_us[max(0, half - 1) :] if time_us is not None), best)
    each = (before - best) / max(1, count - half) + HOPE * best / count
    return one.weight * each / max(one.seconds, 1e-9)


def choose(standings: Sequence[Standing]) -> int:
    """The problem that is to have the next slice; of equals the first."""
    return max(standings, key=lambda one: gain(one)).id


def floor_trials(pool: int | None, count: int) -> int:
    """How many trials each of so many problems has first."""
    if pool is None:
        return FLOOR_UNLIMITED
    return max(1, min(FLOOR_MOST, int(FLOOR_SHARE * pool / count)))


def best_so_far(finished: Sequence[TrialProgress]) -> tuple[float | None, ...]:
    """The best time after each trial, in the order in which they ended."""
    found: list[float | None] = []
    best: float | None = None
    for row in finished:
        if row.state is TrialState.MEASURED and row.time_us is not None:
            best = row.time_us if best is None else min(best, row.time_us)
        found.append(best)
    return tuple(found)


# ---------------------------------------------------------------- what is left


@dataclass(frozen=True)
class Left:
    """Of the budget of a device's problems together, beyond what is kept for floors and races."""

    trials: int | None
    seconds: float | None
    device_seconds: float | None

    @property
    def over(self) -> bool:
        """Nothing is left to give."""
        parts = (self.trials, self.seconds, self.device_seconds)
        return any(one is not None and one <= 0 for one in parts)


def pool(job: JobRecord, rows: Sequence[JobProblemRecord], device_key: str | None) -> list[JobProblemRecord]:
    """The problems of a device that share a budget by what they gain; none where shares are fixed."""
    if not job.options.get("weighted") or device_key is None:
        return []
    chosen = {index for index, line in enumerate(lines.of_job(job)) if line.chosen}
    mine = [
        row
        for row in rows
        if row.device_key == device_key
        and row.role is JobProblemRole.SEARCH
        and row.line not in chosen
        and row.reason is not JobProblemReason.EMPTY_PROBLEM
        and row.search.get("share", row.budget_trials) != 0
    ]
    return mine if len(mine) > 1 else []


def shares(job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> bool:
    """Whether this problem shares its budget with others by what they gain."""
    return any(one.id == row.id for one in pool(job, rows, row.device_key))


def share_of(row: JobProblemRecord) -> int | None:
    """The trials that its weight alone would give it: what a search of it reckons with."""
    if "share" in row.search:
        share = row.search["share"]
        return None if share is None else max(int(share), row.budget_trials or 0)
    return row.budget_trials


def _left(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], mine: list[JobProblemRecord]) -> Left:
    spent = {row.id: _spent(s, job, row) for row in mine}
    queued = [row for row in mine if row.state is JobProblemState.QUEUED]
    total = _pool_trials(mine)
    trials = None
    if total is not None:
        trials = total - sum(one.trials for one in spent.values())
        trials -= len(queued) * floor_trials(total, len(mine))
    seconds = None
    if job.budget_seconds is not None:
        still = [row for row in mine if row.finished_at is None]
        seconds = sum(budgets.left_over(job, rows, row) or 0.0 for row in still)
        seconds -= sum(_race_s(job, mine) for _ in still) + sum(_floor_s(job, mine) for _ in queued)
    device = [row.search.get("device_share", row.budget_device_seconds) for row in mine]
    device_seconds = None
    if job.budget_device_seconds is not None:
        whole = sum(float(one) for one in device if one is not None)
        device_seconds = whole - sum(one.device_s for one in spent.values())
    return Left(trials, seconds, device_seconds)


def _pool_trials(mine: Sequence[JobProblemRecord]) -> int | None:
    given = [row.search.get("share", row.budget_trials) for row in mine]
    return None if any(one is None for one in given) else sum(int(one) for one in given if one is not None)


def _equal_s(job: JobRecord, mine: Sequence[JobProblemRecord]) -> float:
    return (job.budget_seconds or 0.0) / len(mine)


def _race_s(job: JobRecord, mine: Sequence[JobProblemRecord]) -> float:
    return min(budgets.RACE_LEAST_S, budgets.RACE_MOST_SHARE * _equal_s(job, mine))


def _floor_s(job: JobRecord, mine: Sequence[JobProblemRecord]) -> float:
    return FLOOR_SHARE * _equal_s(job, mine)


def _spent(s: Session, job: JobRecord, row: JobProblemRecord) -> Spent:
    return history.of_problem(s, job.id, row.id).spent


# ---------------------------------------------------------------- slices


def begin(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> None:
    """Give a problem that begins its floor; what its weight alone would give it is remembered."""
    mine = pool(job, rows, row.device_key)
    left = _left(s, job, rows, mine)
    seconds = (
        None if left.seconds is None else max(0.0, left.seconds) + _floor_s(job, mine) + _race_s(job, mine)
    )
    jobs.set_budget(
        s,
        row.id,
        trials=floor_trials(_pool_trials(mine), len(mine)),
        seconds=seconds,
        device_seconds=left.device_seconds,
    )
    known = jobs.problem(s, row.id)
    search = {} if known is None else dict(known.search)
    share = {"share": row.budget_trials, "device_share": row.budget_device_seconds}
    jobs.remember(s, row.id, {**search, **share})


def _give(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> None:
    """One slice more; nothing but the race where nothing is left."""
    mine = pool(job, rows, row.device_key)
    left, spent = _left(s, job, rows, mine), _spent(s, job, row)
    slice_trials = SLICE if left.trials is None else max(0, min(SLICE, left.trials))
    seconds = None
    if left.seconds is not None:
        seconds = budgets.elapsed_s(job, row) + max(0.0, left.seconds) + _race_s(job, mine)
    device = None
    if left.device_seconds is not None:
        device = spent.device_s + max(0.0, left.device_seconds)
    trials = spent.trials + (0 if left.over else slice_trials)
    jobs.set_budget(s, row.id, trials=trials, seconds=seconds, device_seconds=device)


def after_slice(
    s: Session, job: JobRecord, row: JobProblemRecord, reason: JobProblemReason, known: history.History
) -> Step | None:
    """What follows when the trials of a slice have ended: one more, or a rest; None: the search ends."""
    if reason is not JobProblemReason.BUDGET_TRIALS or not job.options.get("weighted"):
        return None
    rows = jobs.problems(s, job.id)
    mine = pool(job, rows, row.device_key)
    if all(one.id != row.id for one in mine) or _left(s, job, rows, mine).over:
        return None
    if job.options.get("early_stop", True) and budgets.converged(known.finished, share_of(row)):
        return None
    waits = any(one.state is JobProblemState.QUEUED for one in mine)
    if not waits and choose(_standings(s, job, mine)) == row.id:
        return Write("another slice", lambda w: _give(w, job, rows, row))
    return Write("rest", lambda w: _rest(w, job, row))


def resting(
    s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], ready: Sequence[JobProblemRecord]
) -> Write:
    """The step that goes on with one of these problems, which rest on one device."""
    mine = pool(job, rows, ready[0].device_key)
    chosen = ready[0]
    if not _left(s, job, rows, mine).over:
        wanted = choose(_standings(s, job, ready))
        chosen = next(row for row in ready if row.id == wanted)
    return Write("go on", lambda w: _resume(w, job, rows, chosen))


def _rest(s: Session, job: JobRecord, row: JobProblemRecord) -> None:
    search = {name: value for name, value in row.search.items() if name != "ran_s"}
    began_s = float(row.search.get("ran_s", job.ran_s))
    search["used_s"] = float(row.search.get("used_s", 0.0)) + job.ran_s - began_s
    jobs.remember(s, row.id, search)
    jobs.move_problem(s, row.id, JobProblemState.RESTING)


def _resume(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> None:
    _give(s, job, rows, row)
    jobs.remember(s, row.id, {**row.search, "ran_s": job.ran_s})
    jobs.move_problem(s, row.id, JobProblemState.SEARCHING)


def _standings(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> list[Standing]:
    found = []
    timed = job.budget_seconds is not None or job.budget_device_seconds is not None
    for row in rows:
        if row.state not in OPEN:
            continue
        known = history.of_problem(s, job.id, row.id)
        spent = known.spent
        each_s = (spent.compile_s + spent.device_s) / max(1, spent.trials) if timed else 1.0
        found.append(Standing(row.id, row.weight, best_so_far(known.finished), each_s))
    return found
