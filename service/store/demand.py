"""What do clients look for and not find?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, delete, func, literal, select, tuple_
from sqlalchemy.orm import Session

from . import clock, problems
from .models import Demand, Problem
from .records import DemandRecord, NewDemand, Page
from .sql import changed, upsert

MOST = 2**53
"""A count stays there: more than that no reader of JSON holds exactly, and 64 bits would not for ever."""
MOST_ROWS = 10_000
"""More are not begun: who may read may tell of misses, and each makes a row here and one of its problem."""
LEFT_BY_TIDYING = 9_000
"""So many are left once an hour (retention.py), so that a thousand problems an hour come this way at most."""


def add(s: Session, rows: Sequence[NewDemand]) -> int:
    """Adds to the counts of (problem, device, policy); of how many, for there may be no room for new ones."""
    now = clock.now(s)
    known = _known(s, rows)
    new = {_key(one) for one in rows} - known
    room = MOST_ROWS - total(s) if new else 0
    known.update(sorted(new)[: max(0, room)])
    rows = [one for one in rows if _key(one) in known]
    # in one order for all, so that two posts never wait for each other's rows in a circle
    for one in sorted(rows, key=_key):
        problems.put(s, one.problem)
        values = {
            "problem_key": one.problem.key,
            "device_key": one.device_key,
            "policy_key": one.policy_key,
            "level": one.level,
            "count": min(one.count, MOST),
            "first_seen_at": now,
            "last_seen_at": now,
        }
        summed = case((Demand.count > MOST - min(one.count, MOST), MOST), else_=Demand.count + one.count)
        more = {"count": summed, "level": one.level, "last_seen_at": now}
        upsert(s, Demand, values, key=["problem_key", "device_key", "policy_key"], update=more)
    return len(rows)


def total(s: Session) -> int:
    """Rows."""
    return s.scalar(select(func.count()).select_from(Demand)) or 0


def _key(row: NewDemand) -> tuple[str, str, str]:
    return row.problem.key, row.device_key, row.policy_key


def _known(s: Session, rows: Sequence[NewDemand]) -> set[tuple[str, str, str]]:
    found = s.execute(
        select(Demand.problem_key, Demand.device_key, Demand.policy_key).where(
            Demand.problem_key.in_({one.problem.key for one in rows}),
            Demand.device_key.in_({one.device_key for one in rows}),
        )
    )
    return {(problem, device, policy) for problem, device, policy in found}


def ranked(
    s: Session,
    *,
    device_key: str | None = None,
    after: tuple[int, str, str, str] | None = None,
    limit: int = 100,
) -> Page[DemandRecord]:
    """Most wanted first. `after`: count and key of the last row seen; one whose count grew may come twice."""
    query = select(Demand, Problem).join(Problem, Problem.key == Demand.problem_key)
    if device_key is not None:
        query = query.where(Demand.device_key == device_key)
    if after is not None:
        key = tuple_(Demand.problem_key, Demand.device_key, Demand.policy_key)
        # the first half alone lets the index jump to the place
        rest = (Demand.count < after[0]) | (key > tuple_(*map(literal, after[1:])))
        query = query.where(Demand.count <= after[0], rest)
    query = query.order_by(Demand.count.desc(), Demand.problem_key, Demand.device_key, Demand.policy_key)
    found = s.execute(query.limit(limit + 1).execution_options(populate_existing=True)).all()
    rows = [
        DemandRecord(
            problem_key=row.problem_key,
            layer_key=problem.layer_key,
            problem=problem.spec,
            title=problem.title,
            device_key=row.device_key,
            policy_key=row.policy_key,
            level=row.level,
            count=row.count,
            first_seen_at=row.first_seen_at,
            last_seen_at=row.last_seen_at,
        )
        for row, problem in found[:limit]
    ]
    edge = rows[-1] if len(found) > limit else None
    more = None if edge is None else (edge.count, edge.problem_key, edge.device_key, edge.policy_key)
    return Page(tuple(rows), more)


def clear(s: Session, problem_key: str, device_key: str, policy_key: str) -> bool:
    """Forgets it: it is served now."""
    this = (
        (Demand.problem_key == problem_key)
        & (Demand.device_key == device_key)
        & (Demand.policy_key == policy_key)
    )
    return changed(s, delete(Demand).where(this)) == 1
