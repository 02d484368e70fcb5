"""Which schedules won for near problems on the same device?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rooftile.problem import Problem
from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.jobs import sweeping
from service.store import releases
from service.store.enums import Winner
from service.store.records import JobProblemRecord, JobRecord, ReleaseFilter, ReleaseRecord

MOST = 4
LOOKED_AT = 100


def winners(
    s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord, problem: Problem
) -> list[Mapping[str, Any]]:
    """Schedules, what is served for this very problem first, then of a sweep what won at the neighbouring
    sizes, then by distance of the sizes; then winners of this problem on other devices of the arch."""
    if row.device_key is None:
        return []
    where = ReleaseFilter(
        op=problem.op, device_key=row.device_key, policy_key=job.policy_key, winner=Winner.TRIAL
    )
    near = list(releases.listing(s, where, limit=LOOKED_AT).rows)
    sizes = problem.sizes()
    mine = problem.to_json()
    near.sort(key=lambda one: (_unlike(mine, one), _distance(sizes, one), one.id))
    other = [
        one
        for one in releases.for_problem(s, row.problem_key, job.policy_key, row.arch)
        if one.device_key != row.device_key
    ]
    found: dict[str, Mapping[str, Any]] = {}
    own = [one for one in near if one.problem_key == row.problem_key and one.schedule is not None]
    beside = [one.schedule for one in own if one.schedule is not None]
    for schedule in [*beside, *sweeping.neighbours(s, job, rows, row)]:
        found.setdefault(Schedule.from_json(schedule).key, schedule)
    for one in [*near, *other]:
        if one.schedule is not None and one.schedule_key is not None:
            found.setdefault(one.schedule_key, one.schedule)
    return list(found.values())[:MOST]


def _unlike(mine: Mapping[str, Any], one: ReleaseRecord) -> int:
    """How many fields that are no sizes differ: dtypes, layouts, epilogue."""
    return sum(
        1 for name, value in mine.items() if not isinstance(value, int) and value != one.problem.get(name)
    )


def _distance(sizes: Mapping[str, int], one: ReleaseRecord) -> float:
    """Sum of the sizes' ratios, as logarithms."""
    total = 0.0
    for name, size in sizes.items():
        other = one.problem.get(name)
        if isinstance(other, int) and not isinstance(other, bool):
            total += abs(math.log((size + 1) / (other + 1)))
    return total
