"""How long did each schedule take for each problem on a device, over all jobs?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .enums import TrialState
from .models import Job, Trial
from .sql import usable

TIMED = (TrialState.MEASURED, TrialState.CULLED)
LOOKED_AT = 5_000
"""The newest timed trials of a family on a device: a search that begins asks, and must not wait."""


def of_family(s: Session, device_key: str, family: str, policy_key: str) -> dict[str, dict[str, float]]:
    """Problem key -> schedule key -> the shortest undisturbed time in microseconds, of the newest trials."""
    newest = (
        select(Trial.id)
        .where(Trial.device_key == device_key, Trial.family == family, Trial.state.in_(TIMED))
        .order_by(Trial.id.desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    query = (
        select(Trial.problem_key, Trial.schedule_key, func.min(Trial.time_us))
        .join(newest, newest.c.id == Trial.id)
        .join(Job, Job.id == Trial.job_id)
        .where(Job.policy_key == policy_key, Trial.contended.is_(False), usable(Trial.time_us))
        .group_by(Trial.problem_key, Trial.schedule_key)
    )
    found: dict[str, dict[str, float]] = {}
    for problem_key, schedule_key, time_us in s.execute(query):
        if time_us is not None:
            found.setdefault(problem_key, {})[schedule_key] = time_us
    return found


def schedules(s: Session, arch: str, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the schedules of these keys are, by key."""
    newest = select(func.max(Trial.id)).where(Trial.arch == arch, Trial.schedule_key.in_(keys))
    newest = newest.group_by(Trial.schedule_key)
    rows = s.execute(select(Trial.schedule_key, Trial.schedule).where(Trial.id.in_(newest)))
    return {row.schedule_key: row.schedule for row in rows}
