"""Which problems are known?"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from . import clock
from .models import Problem
from .records import Page, ProblemRecord
from .sql import insert_ignoring


def put(s: Session, problem: ProblemRecord) -> None:
    """Stores it unless its key is known."""
    if s.get(Problem, problem.key) is not None:
        return
    values = {
        "key": problem.key,
        "layer_key": problem.layer_key,
        "op": problem.op,
        "dtype": problem.dtype,
        "title": problem.title,
        "spec": dict(problem.spec),
        "created_at": clock.now(s),
    }
    insert_ignoring(s, Problem, values)


def get(s: Session, key: str) -> ProblemRecord | None:
    row = s.get(Problem, key)
    return None if row is None else _record(row)


def of_layer(s: Session, layer_key: str) -> list[ProblemRecord]:
    rows = s.scalars(select(Problem).where(Problem.layer_key == layer_key).order_by(Problem.key))
    return [_record(row) for row in rows]


def listing(
    s: Session, *, op: str | None = None, after: tuple[str] | None = None, limit: int = 50
) -> Page[ProblemRecord]:
    """By key."""
    query = select(Problem).order_by(Problem.key).limit(limit + 1)
    if op is not None:
        query = query.where(Problem.op == op)
    if after is not None:
        query = query.where(Problem.key > after[0])
    rows = s.scalars(query).all()
    more = len(rows) > limit
    return Page(tuple(_record(row) for row in rows[:limit]), (rows[limit - 1].key,) if more else None)


def _record(row: Problem) -> ProblemRecord:
    return ProblemRecord(
        key=row.key, layer_key=row.layer_key, op=row.op, title=row.title, spec=row.spec, dtype=row.dtype
    )
