"""What of the past is not kept for ever, and how is it let go a little at a time?

Results stay: every trial with its schedule, outcome, evidence, verdicts and statistics. What goes, in batches
of one short transaction each, is the bulk: single samples, long logs, bytes that can be built again, events.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, func, or_, select, tuple_, update
from sqlalchemy.orm import Session, undefer

from . import artifacts, clock, demand
from .models import Demand, Event, Job, Measurement, RaceEntrant, Release, Trial
from .sql import changed

LOG_CHARACTERS = 1000
"""So much of a log is kept, half of it from either end."""
COMPACTED = "compacted"
"""Member of a measurement's environment that says what its samples were."""


def next_job(s: Session, before: datetime, after: int = 0) -> int | None:
    """A job that ended before then and still has all its details; the next after this id."""
    due = (Job.finished_at < before) & Job.compacted_at.is_(None) & (Job.id > after)
    return s.scalar(select(Job.id).where(due).order_by(Job.id).limit(1))


def compact_trials(s: Session, job_id: int, after: int, limit: int) -> tuple[int, int, int | None]:
    """The job's next trials after this id: how many measurements and logs were cut, and where to go on (None:
    that was all). Trials that were in a race or released keep their samples."""
    ids = s.scalars(
        select(Trial.id).where(Trial.job_id == job_id, Trial.id > after).order_by(Trial.id).limit(limit)
    ).all()
    if not ids:
        return 0, 0, None
    served = or_(
        exists().where(RaceEntrant.trial_id == Trial.id),
        exists().where(Release.trial_id == Trial.id),
    )
    plain = s.scalars(select(Trial.id).where(Trial.id.in_(ids), ~served)).all()
    return _cut_samples(s, plain), _cut_logs(s, ids), ids[-1]


def finish_job(s: Session, job_id: int) -> int:
    """All trials of the job are done: drop the bytes that can be built again (see artifacts.prune), and say
    so. Returns how many artifacts that were."""
    dropped = artifacts.prune(s, job_id)
    changed(s, update(Job).where(Job.id == job_id).values(compacted_at=clock.now(s)))
    return dropped


def forget_events(s: Session, before: datetime, after: int, limit: int) -> tuple[int, int | None]:
    """Of the next events after this id drop those from before then: how many, and where to go on. Those of
    open jobs stay, and so does the newest of all: readers go by its number."""
    rows = s.execute(select(Event.id, Event.at).where(Event.id > after).order_by(Event.id).limit(limit)).all()
    if not rows or rows[0].at >= before:
        return 0, None
    newest = s.scalar(select(func.max(Event.id)))
    is_open = exists().where(Job.id == Event.job_id, Job.finished_at.is_(None))
    old = (Event.id > after) & (Event.id <= rows[-1].id) & (Event.id < newest) & (Event.at < before)
    return changed(s, delete(Event).where(old, ~is_open)), rows[-1].id


def forget_demand(s: Session, before: datetime | None) -> int:
    """Drops what nobody has asked for since then, and where nearly as many rows as may be are left, those
    that were asked for longest ago, the least asked of them first; returns how many."""
    old = 0 if before is None else changed(s, delete(Demand).where(Demand.last_seen_at < before))
    over = demand.total(s) - demand.LEFT_BY_TIDYING
    if over <= 0:
        return old
    key = (Demand.problem_key, Demand.device_key, Demand.policy_key)
    oldest = select(*key).order_by(Demand.last_seen_at, Demand.count).limit(over)
    return old + changed(s, delete(Demand).where(tuple_(*key).in_(oldest)))


def _cut_samples(s: Session, trial_ids: Sequence[int]) -> int:
    count = 0
    for row in s.scalars(select(Measurement).where(Measurement.trial_id.in_(trial_ids))):
        if not row.samples_us:
            continue
        row.environment = {**row.environment, COMPACTED: _statistics(row.samples_us)}
        row.samples_us = []
        count += 1
    s.flush()
    return count


def _statistics(samples_us: Sequence[float]) -> dict[str, Any]:
    """Median and quantiles are columns of their own."""
    return {
        "samples": len(samples_us),
        "least_us": min(samples_us),
        "most_us": max(samples_us),
        "mean_us": statistics.fmean(samples_us),
        "deviation_us": statistics.pstdev(samples_us),
    }


def _cut_logs(s: Session, trial_ids: Sequence[int]) -> int:
    long = Trial.id.in_(trial_ids) & (func.length(Trial.log) > 2 * LOG_CHARACTERS)
    rows = s.scalars(select(Trial).where(long).options(undefer(Trial.log))).all()
    for row in rows:
        half = LOG_CHARACTERS // 2
        left_out = len(row.log) - LOG_CHARACTERS
        row.log = f"{row.log[:half]}\n... {left_out} characters left out ...\n{row.log[-half:]}"
    s.flush()
    return len(rows)
