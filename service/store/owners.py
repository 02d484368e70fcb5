"""Who wants a job, and who of them pays for it?

A request that equals an open job's joins it. Its first owner is the job's own `token_id`: the work is
charged to that one. The others stand in `job_joins`; who leaves is remembered there, so that a leave that
is sent twice is one leave. An owner whose token was revoked or has expired wants nothing any more.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from . import clock
from .models import Job, JobJoin, Token
from .sql import changed, upsert

_NO_TOKEN = 0
"""Stands for None in a key: a browser's session, a command, the embedded shape."""


def of(s: Session, job_id: int) -> list[int | None]:
    """Tokens (None: somebody without one) that want the job. The first pays for it, where its token lives;
    the others in the order they came. Empty where there is no such job."""
    first = select(Job.token_id).where(Job.id == job_id, _lives(s, Job.token_id))
    return [*s.scalars(first), *_others(s, job_id)]


def was_of(s: Session, job_id: int, token_id: int | None) -> bool:
    """Whether this one asked for the job at any time."""
    key = token_id or _NO_TOKEN
    first = select(Job.id).where(Job.id == job_id, func.coalesce(Job.token_id, _NO_TOKEN) == key)
    return s.scalar(first) is not None or s.get(JobJoin, {"job_id": job_id, "token_id": key}) is not None


def has(s: Session, job: Job, token_id: int | None) -> bool:
    """Whether it is an owner of the job now."""
    return job.token_id == token_id or token_id in _others(s, job.id)


def join(s: Session, job: Job, token_id: int | None) -> None:
    """One owner more for an open job, which must be locked; again where he had left it."""
    now = clock.now(s)
    new = {"job_id": job.id, "token_id": token_id or _NO_TOKEN, "at": now, "left_at": None}
    upsert(s, JobJoin, new, key=("job_id", "token_id"), update={"at": now, "left_at": None})


def leave(s: Session, job: Job, token_id: int | None) -> bool:
    """Somebody no longer wants an open job, which must be locked. Where he paid for it the next one does.
    False where nobody else wants it, and nothing was changed: then it is to be cancelled."""
    others = [one for one in of(s, job.id) if one != token_id]
    if not others:
        return False
    if job.token_id == token_id:
        job.token_id = others[0]
        s.flush()
        heir = (JobJoin.job_id == job.id) & (JobJoin.token_id == (others[0] or _NO_TOKEN))
        changed(s, delete(JobJoin).where(heir))
    now = clock.now(s)
    gone = {"job_id": job.id, "token_id": token_id or _NO_TOKEN, "at": now, "left_at": now}
    upsert(s, JobJoin, gone, key=("job_id", "token_id"), update={"left_at": now})
    return True


def count_open(s: Session, token_id: int | None) -> int:
    """Open jobs that this one pays for or joined."""
    joined = select(JobJoin.job_id).where(
        JobJoin.job_id == Job.id, JobJoin.token_id == (token_id or _NO_TOKEN), JobJoin.left_at.is_(None)
    )
    pays = Job.token_id.is_(None) if token_id is None else Job.token_id == token_id
    query = select(func.count()).select_from(Job).where(Job.finished_at.is_(None))
    return s.scalar(query.where(or_(pays, joined.exists()))) or 0


def _others(s: Session, job_id: int) -> list[int | None]:
    mine = select(JobJoin.token_id).where(
        JobJoin.job_id == job_id, JobJoin.left_at.is_(None), _lives(s, JobJoin.token_id)
    )
    return [one or None for one in s.scalars(mine.order_by(JobJoin.at, JobJoin.token_id))]


def _lives(s: Session, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Whether the owner can still want anything: who has no token always can."""
    stands = and_(
        Token.id == column,
        Token.revoked_at.is_(None),
        or_(Token.expires_at.is_(None), Token.expires_at > clock.now(s)),
    )
    return or_(column.is_(None), column == _NO_TOKEN, select(Token.id).where(stands).exists())
