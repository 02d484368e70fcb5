"""Which schedules won for near problems on the same device?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rooftile.problem import Problem
from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.jobs import portfolio, sweeping
from service.store import measured_times, releases
from service.store.enums import Winner
from service.store.records import JobProblemRecord, JobRecord, ReleaseFilter, ReleaseRecord

MOST = 4
NEAREST = 2
"""Winners of near problems that come before the portfolio."""
PORTFOLIO_MOST = 4
LOOKED_AT = 100


def winners(
    s: Session,
    job: JobRecord,
    rows: Sequence[JobProblemRecord],
    row: JobProblemRecord,
    problem: Problem,
    families: Sequence[str],
) -> list[Mapping[str, Any]]:
    """Schedules, what is served for this very problem first; of a sweep what won at the neighbouring sizes;
    the nearest problems' winners by distance of the sizes; what is good for several problems of the device;
    then more of the near, and winners of this problem on other devices of the arch."""
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
    own = [one.schedule for one in near if one.problem_key == row.problem_key]
    beside = sweeping.neighbours(s, job, rows, row)
    ranked = [one.schedule for one in [*near, *other]]
    found: dict[str, Mapping[str, Any]] = {}
    _add(found, [*own, *beside, *ranked[:NEAREST]], MOST)
    few = MOST - len(found) + PORTFOLIO_MOST
    _add(found, of_portfolio(s, job, row, families)[:few], MOST + PORTFOLIO_MOST)
    _add(found, ranked, MOST + PORTFOLIO_MOST)
    return list(found.values())


def of_portfolio(
    s: Session, job: JobRecord, row: JobProblemRecord, families: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The schedules that are good for several problems of the device, those first that are for most."""
    assert row.device_key is not None
    found: list[tuple[int, str]] = []
    for family in families:
        times = measured_times.of_family(s, row.device_key, family, job.policy_key)
        found += [
            (-len(one.problems), one.schedule_key)
            for one in portfolio.cover(times).members
            if len(one.problems) > 1
        ]
    keys = [key for _, key in sorted(found)[:PORTFOLIO_MOST]]
    known = measured_times.schedules(s, row.arch, keys)
    return [known[key] for key in keys if key in known]


def _add(
    found: dict[str, Mapping[str, Any]], schedules: Sequence[Mapping[str, Any] | None], most: int
) -> None:
    for one in schedules:
        if one is not None and len(found) < most:
            found.setdefault(Schedule.from_json(one).key, one)


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
