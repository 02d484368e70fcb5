"""Who goes next where several wait for the same workers?

Start-time fair queueing, kept in the database. Priority first: of what waits, only the highest is looked at.
Within it the token that was served least goes next (jobs without one are one owner), within the token its
job that was served least. Each queue has its own account: `compile`, `emulate`, `measure.<device>`.

`served_s` of an owner grows by what its work really took, when the outcome is written. Until then a claim
counts as what one usually takes, by counting the claims that are under way: a worker that dies leaves no
false charge behind, and claimers write no row that another would wait for. `start_s` is what an owner had
been served before its last outcome. The largest of a queue is its clock: who is new starts there, and who
comes back after idling is brought up to it, less CREDIT pieces of work, which is how far outcomes that come
in another order than their claims may be apart. So idling saves nothing up, and nobody pays for work that
was done while nobody else wanted the place.

Rows are written after all others of a transaction, one outcome in each, a job's before its token's, so nobody
waits in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, TypeVar

from sqlalchemy import ScalarSelect, case, delete, func, literal, select
from sqlalchemy.orm import Session

from . import clock
from .models import Job, Share
from .sql import changed, insert_or

T = TypeVar("T")

COMPILE = "compile"
EMULATE = "emulate"

CREDIT = 2
"""Pieces of work, of its usual length, that an owner may be behind the clock of its queue."""
USUAL_S = 1.0
"""What a piece of work is taken to take before one has ended."""
_NEWEST = 0.25
"""Part of the newest outcome in what a piece of work usually takes."""
FORGOTTEN_S = 3600.0
"""A token that had nothing done for so long is as good as new."""


class Waiter(NamedTuple):
    """A job that has work waiting in a queue (or, of `under_way`, a claim on it)."""

    job_id: int
    token_id: int | None
    priority: int


def measure(device_key: str) -> str:
    """Name of a device's queue."""
    return f"measure.{device_key}"


# ---------------------------------------------------------------- who is next


def deal(
    s: Session,
    queue: str,
    waiting: Sequence[Waiter],
    under_way: Callable[[], Iterable[Waiter]],
    limit: int,
    take: Callable[[int, int], Sequence[T]],
    *,
    stop_at: Collection[Waiter] = (),
) -> list[T]:
    """Up to `limit` pieces of work, each of the job whose turn it is; those of a job stand together.

    `under_way`: a waiter for each claim that is held. `take(job_id, n)` locks up to n more of a job; fewer
    means that there are no more. `stop_at`: jobs that wait for something else of the queue's: when a turn is
    theirs, the rest is left to it, but one piece of work is always dealt.
    """
    taken: list[T] = []
    for priority in sorted({one.priority for one in waiting}, reverse=True):
        left = {one.job_id: one for one in waiting if one.priority == priority}
        others = [one for one in stop_at if one.priority == priority]
        alone = len(left) == 1 and not others
        order = None if alone else _Order(s, queue, under_way())
        while left and len(taken) < limit:
            turns = {next(iter(left)): limit - len(taken)}
            if order is not None:
                turns = order.turns(left.values(), limit - len(taken), others, first=not taken)
            if not turns:
                return taken
            for job_id, count in turns.items():
                got = take(job_id, count)
                taken += got
                if order is not None:
                    order.charge(left[job_id], len(got))
                if len(got) < count:
                    del left[job_id]
        if len(taken) >= limit:
            break
    return taken


def first(
    s: Session, queue: str, waiting: Sequence[Waiter], under_way: Callable[[], Iterable[Waiter]]
) -> int | None:
    """The job whose turn it is; None where nobody waits."""
    highest = max((one.priority for one in waiting), default=0)
    group = [one for one in waiting if one.priority == highest]
    if len(group) < 2:
        return group[0].job_id if group else None
    return _Order(s, queue, under_way()).next(group).job_id


@dataclass
class _Account:
    served_s: float
    each_s: float


class _Order:
    """The accounts of a queue at one moment, and what the turns that are being dealt will cost."""

    def __init__(self, s: Session, queue: str, under_way: Iterable[Waiter]) -> None:
        rows = s.execute(
            select(Share.owner, Share.parent, Share.served_s, Share.start_s, Share.each_s).where(
                Share.queue == queue
            )
        ).all()
        self._clocks: dict[str, float] = {}
        for row in rows:
            self._clocks[row.parent] = max(self._clocks.get(row.parent, 0.0), row.start_s)
        self._accounts: dict[str, _Account] = {}
        for row in rows:
            lifted = max(row.served_s, self._clocks[row.parent] - CREDIT * row.each_s)
            self._accounts[row.owner] = _Account(lifted, row.each_s)
        for one in under_way:
            self.charge(one, 1)

    def next(self, waiting: Iterable[Waiter]) -> Waiter:
        """Of jobs of one priority, the one whose turn it is."""
        return min(waiting, key=self._rank)

    def turns(
        self, waiting: Iterable[Waiter], limit: int, others: Sequence[Waiter], *, first: bool
    ) -> dict[int, int]:
        """How many of the next `limit` turns each job has, in the order of their first."""
        group = list(waiting)
        kept = {name: _Account(one.served_s, one.each_s) for name, one in self._accounts.items()}
        found: dict[int, int] = {}
        for _ in range(limit):
            chosen = self.next(group)
            if not (first and not found) and others:
                rival = self.next(others)
                if self._rank(rival) < self._rank(chosen):
                    break
            found[chosen.job_id] = found.get(chosen.job_id, 0) + 1
            self.charge(chosen, 1)
        self._accounts = kept
        return found

    def charge(self, one: Waiter, count: int) -> None:
        """Count so many claims as served."""
        job, token = self._of(one)
        usual_s = job.each_s
        job.served_s += count * usual_s
        token.served_s += count * usual_s

    def _rank(self, one: Waiter) -> tuple[float, float, int]:
        job, token = self._of(one)
        return token.served_s, job.served_s, one.job_id

    def _of(self, one: Waiter) -> tuple[_Account, _Account]:
        parent = _token(one.token_id)
        token = self._accounts.get(parent)
        if token is None:
            token = self._accounts[parent] = _Account(self._clocks.get(_TOP, 0.0), USUAL_S)
        name = _job(one.job_id)
        job = self._accounts.get(name)
        if job is None:
            job = self._accounts[name] = _Account(self._clocks.get(parent, 0.0), token.each_s)
        return job, token


# ---------------------------------------------------------------- accounts


_TOP = ""


def settle(s: Session, queue: str, job_id: int, used_s: float | None, *, usual: bool = True) -> None:
    """Charge a job and its token for work that ended. None: nobody knows how long it took, so as long as one
    usually does. `usual`: others that are under way will take about as long. The last write of a
    transaction but its events."""
    token_id = s.scalar(select(Job.token_id).where(Job.id == job_id))
    charge(s, queue, job_id, token_id, used_s, usual=usual)


def charge(
    s: Session, queue: str, job_id: int, token_id: int | None, used_s: float | None, *, usual: bool = True
) -> None:
    """`settle`, of a job whose token is known."""
    now = clock.now(s)
    token = _token(token_id)
    used = USUAL_S if used_s is None else max(0.0, used_s)
    # one statement: it is written once for every trial
    values = [
        {
            "queue": queue,
            "owner": owner,
            "parent": parent,
            "served_s": _clock(queue, parent) + used,
            "start_s": _clock(queue, parent),
            "each_s": used if usual else USUAL_S,
            "updated_at": now,
        }
        for owner, parent in ((_job(job_id), token), (token, _TOP))
    ]
    statement = insert_or(s, Share).values(values)
    new = statement.excluded
    cost = Share.each_s if used_s is None else literal(used)
    floor = new.start_s - CREDIT * Share.each_s
    start = case((Share.served_s > floor, Share.served_s), else_=floor)
    each = (1 - _NEWEST) * Share.each_s + _NEWEST * cost if usual else Share.each_s
    s.execute(
        statement.on_conflict_do_update(
            index_elements=["queue", "owner"],
            set_={
                "parent": new.parent,
                "start_s": start,
                "served_s": start + cost,
                "each_s": each,
                "updated_at": new.updated_at,
            },
        )
    )


def served(s: Session, queue: str) -> dict[str, float]:
    """Seconds on the account of each owner (`token:7`, `token:` for jobs without one, `job:31`)."""
    rows = s.execute(select(Share.owner, Share.served_s).where(Share.queue == queue)).all()
    return {row.owner: row.served_s for row in rows}


def forget(s: Session) -> int:
    """Removes the accounts of jobs that ended and of tokens that idle; returns how many."""
    rows = s.execute(select(Share.queue, Share.owner, Share.updated_at)).all()
    ids = {int(row.owner.partition(":")[2]) for row in rows if row.owner.startswith("job:")}
    alive = set(s.scalars(select(Job.id).where(Job.id.in_(ids), Job.finished_at.is_(None))))
    long_ago = clock.now(s) - timedelta(seconds=FORGOTTEN_S)
    gone = 0
    for row in sorted(rows):
        kind, _, number = row.owner.partition(":")
        if (row.updated_at < long_ago) if kind == "token" else (int(number) not in alive):
            # unless it was charged in between
            same = (Share.queue == row.queue) & (Share.owner == row.owner)
            gone += changed(s, delete(Share).where(same, Share.updated_at == row.updated_at))
    return gone


def _clock(queue: str, parent: str) -> ScalarSelect[float]:
    rows = select(func.coalesce(func.max(Share.start_s), 0.0))
    return rows.where(Share.queue == queue, Share.parent == parent).scalar_subquery()


def _job(job_id: int) -> str:
    return f"job:{job_id}"


def _token(token_id: int | None) -> str:
    return "token:" if token_id is None else f"token:{token_id}"
