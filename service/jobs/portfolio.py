"""Which few schedules are good for many problems, and what is lost with them?

Of the times that were measured on a device, whatever job they are of: a schedule covers a problem when it
takes at most the stated share longer there than the best that was measured. The fewest that cover all
problems are looked for, at most ten: exactly where up to three may do, else greedily, which takes at most
1 + ln(problems) times as many as are needed. They are among the first that a search of another problem tries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SCHEDULES_MOST = 10
LOSS = 0.05
EXACT_MOST = 3
EXACT_TRIES = 20_000
"""Sets of schedules that are looked at before the greedy way is taken."""

Times = Mapping[str, Mapping[str, float]]
"""Problem -> schedule -> its time in microseconds."""


@dataclass(frozen=True)
class Member:
    """One schedule, and the problems for which it is the one to take."""

    schedule_key: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Portfolio:
    """The schedules, those first that cover most."""

    members: tuple[Member, ...]
    loss: float
    """The stated one: covered problems lose at most so much of their best known time."""
    mean_loss: float | None
    """Over the covered problems, with the better of the schedules for each."""
    worst_loss: float | None
    uncovered: tuple[str, ...]
    """Problems for which none of them is within the stated loss."""
    exact: bool
    """No smaller set covers as many."""


def cover(times: Times, *, most: int = SCHEDULES_MOST, loss: float = LOSS) -> Portfolio:
    """The portfolio of these times; the same for the same times, in whatever order they come."""
    losses = {problem: _losses(row) for problem, row in sorted(times.items()) if row}
    covers: dict[str, set[str]] = {}
    for problem, row in losses.items():
        for schedule, lost in row.items():
            if lost <= loss:
                covers.setdefault(schedule, set()).add(problem)
    found = _exact(covers, losses, min(most, EXACT_MOST))
    chosen = _greedy(covers, losses, most) if found is None else found
    return _told(chosen, losses, loss, exact=found is not None)


def _losses(row: Mapping[str, float]) -> dict[str, float]:
    best = min(row.values())
    return {schedule: time_us / best - 1 for schedule, time_us in row.items()}


def _mean(names: Iterable[str], losses: Mapping[str, Mapping[str, float]]) -> float:
    """What is lost with these, a problem that none of them was measured for as if it were doubled."""
    known, total = list(names), 0.0
    for row in losses.values():
        total += min((row[name] for name in known if name in row), default=1.0)
    return total


def _exact(
    covers: Mapping[str, set[str]], losses: Mapping[str, Mapping[str, float]], most: int
) -> list[str] | None:
    """The smallest set that covers all, of equal ones the one that loses least; None where it is larger, or
    where too many would have to be looked at."""
    names = sorted(covers, key=lambda name: (-len(covers[name]), name))
    # what covers no more than another one does, and that one too, is never needed
    names = [n for i, n in enumerate(names) if not any(covers[n] < covers[other] for other in names[:i])]
    if not losses:
        return []
    tries = 0
    for count in range(1, most + 1):
        tries += math.comb(len(names), count)
        if tries > EXACT_TRIES:
            return None
        sets = [
            one
            for one in itertools.combinations(names, count)
            if len(set().union(*(covers[name] for name in one))) == len(losses)
        ]
        if sets:
            return list(min(sets, key=lambda one: (_mean(one, losses), one)))
    return None


def _greedy(
    covers: Mapping[str, set[str]], losses: Mapping[str, Mapping[str, float]], most: int
) -> list[str]:
    chosen: list[str] = []
    left = set(losses)
    while left and len(chosen) < most:
        rest = [name for name in covers if name not in chosen and covers[name] & left]
        if not rest:
            break
        gained = max(len(covers[name] & left) for name in rest)
        best = min(
            (name for name in rest if len(covers[name] & left) == gained),
            key=lambda name: (_mean([*chosen, name], losses), name),
        )
        chosen.append(best)
        left -= covers[best]
    return chosen


def _told(
    chosen: Sequence[str], losses: Mapping[str, Mapping[str, float]], loss: float, *, exact: bool
) -> Portfolio:
    taken: dict[str, list[str]] = {name: [] for name in chosen}
    lost: list[float] = []
    uncovered: list[str] = []
    for problem, row in losses.items():
        best = min((name for name in chosen if name in row), key=lambda n: (row[n], n), default=None)
        if best is None or row[best] > loss:
            uncovered.append(problem)
            continue
        taken[best].append(problem)
        lost.append(row[best])
    members = [Member(name, tuple(problems)) for name, problems in taken.items() if problems]
    members.sort(key=lambda one: (-len(one.problems), one.schedule_key))
    return Portfolio(
        members=tuple(members),
        loss=loss,
        mean_loss=sum(lost) / len(lost) if lost else None,
        worst_loss=max(lost, default=None),
        uncovered=tuple(uncovered),
        exact=exact,
    )
