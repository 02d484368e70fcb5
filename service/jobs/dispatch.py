"""Which schedule at which size: where does the winner change, where should one look closer, and what is lost?

Pure functions of what was measured at the tuned sizes. At each of them it is known who won and what some
others lose there (their time over the best, less one). Between two tuned sizes a candidate's loss is taken to
change evenly with the logarithm of the size; a candidate that was never measured at one of the two is taken
to lose 10 % there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rooftile.problem.bucket import bucket

BASELINE = "baseline"
"""The candidate that is the vendor's kernel; the others are named by their schedule's key."""
UNKNOWN_LOSS = 0.10
# Within the noise a neighbour's winner is as good; over one percent it is not, however noisy the machine.
TIE_MOST = 0.01
TIE_LEAST = 0.005
# That the same schedule won at both ends says less the farther they are apart: half a percent an octave.
LOSS_OCTAVE = 0.005
WORTH_LEAST = 0.01
"""A gap whose estimated loss is below is not divided."""
EACH_MOST = 64
"""Up to so many sizes each is looked at; of more only those that end a bucket."""


@dataclass(frozen=True)
class Known:
    """One tuned size: who won, and what was measured of others."""

    size: int
    winner: str
    losses: Mapping[str, float]
    """By candidate, the winner's own about 0."""
    noise: float = 0.0


@dataclass(frozen=True)
class Interval:
    """Sizes from low to high, both included."""

    low: int
    high: int
    choice: str
    tuned_at: int
    """The size at which the choice won: one of the interval, or the nearest to it."""
    mean_loss: float | None
    worst_loss: float | None


Usable = Callable[[str, int, int], bool]
"""Whether a candidate may be used at each size from one to another."""


def settled(known: Sequence[Known]) -> list[Known]:
    """By size; where a neighbour's winner is as good within the noise, it wins here too, so that the table
    has no changes that mean nothing."""
    found: list[Known] = []
    for one in sorted(known, key=lambda k: k.size):
        if found and found[-1].winner != one.winner:
            before = found[-1].winner
            loss = one.losses.get(before)
            tie = min(max(one.noise, TIE_LEAST), TIE_MOST)
            if loss is not None and loss <= one.losses.get(one.winner, 0.0) + tie:
                one = replace(one, winner=before)
        found.append(one)
    return found


def changes(known: Sequence[Known]) -> list[tuple[int, int]]:
    """The neighbouring tuned sizes between which another schedule begins to win."""
    rows = settled(known)
    return [(a.size, b.size) for a, b in itertools.pairwise(rows) if a.winner != b.winner]


def loss_at(low: Known, high: Known, candidate: str, size: int) -> float:
    """What a candidate is expected to lose at a size between two tuned ones."""
    if low.size == high.size:
        return _loss(low, candidate)
    part = math.log(size / low.size) / math.log(high.size / low.size)
    return (1 - part) * _loss(low, candidate) + part * _loss(high, candidate)


def _loss(one: Known, candidate: str) -> float:
    if candidate in one.losses:
        return max(0.0, one.losses[candidate])
    return 0.0 if candidate == one.winner else UNKNOWN_LOSS


# ---------------------------------------------------------------- where to look next


def gap_losses(known: Sequence[Known]) -> list[tuple[float, int, int]]:
    """(estimated worst loss between, size, next size) of each two neighbouring tuned sizes."""
    rows, found = settled(known), []
    for low, high in itertools.pairwise(rows):
        worst = 0.0
        if low.winner != high.winner:
            for i in range(1, 16):
                size = round(low.size * (high.size / low.size) ** (i / 16))
                worst = max(worst, min(loss_at(low, high, one.winner, size) for one in (low, high)))
        octaves = math.log2(high.size / low.size)
        found.append((worst + LOSS_OCTAVE * octaves, low.size, high.size))
    return found


def next_size(
    known: Sequence[Known], between: Callable[[int, int], int | None], failed: Sequence[int] = ()
) -> int | None:
    """The size to tune next: within the gap where most is lost by what is known; None where none is worth
    it. `failed`: sizes that gave no answer, where it is no use to look again."""
    for loss, low, high in sorted(gap_losses(known), key=lambda gap: (-gap[0], gap[1])):
        if loss < WORTH_LEAST:
            return None
        size = between(low, high)
        if size is not None and size not in failed:
            return size
    return None


def held_out(known: Sequence[Known], between: Callable[[int, int], int | None], count: int) -> list[int]:
    """Sizes that were not tuned, one in a gap, first where the loss is expected to be worst: what is measured
    there says rather too much than too little of the table's loss."""
    found: list[int] = []
    for _, low, high in sorted(gap_losses(known), key=lambda gap: (-gap[0], gap[1])):
        size = between(low, high)
        if len(found) < count and size is not None:
            found.append(size)
    return sorted(found)


# ---------------------------------------------------------------- the table


def build(known: Sequence[Known], low: int, high: int, usable: Usable) -> list[Interval]:
    """The table from low to high. Sizes for which no candidate may be used are in no interval."""
    rows = settled(known)
    if not rows:
        return []
    found: list[Interval] = []
    losses: list[float | None] = []
    begin = low
    for end in _ends([one.size for one in rows], low, high):
        picked = _pick(rows, begin, end, usable)
        last = found[-1] if found else None
        if picked is not None:
            choice, loss = picked
            if last is not None and (last.choice, last.high) == (choice, begin - 1):
                losses.append(loss)
                found[-1] = replace(last, high=end)
            else:
                losses = [loss]
                found.append(Interval(begin, end, choice, 0, None, None))
            told = [one for one in losses if one is not None]
            if told:
                found[-1] = replace(found[-1], mean_loss=sum(told) / len(told), worst_loss=max(told))
        begin = end + 1
    return [replace(one, tuned_at=_tuned_at(known, one)) for one in found]


def choice_at(intervals: Sequence[Interval], size: int) -> str | None:
    """What the table says for a size."""
    return next((one.choice for one in intervals if one.low <= size <= one.high), None)


def _ends(tuned: Sequence[int], low: int, high: int) -> list[int]:
    """The last size of each piece that is decided on as a whole."""
    if high - low < EACH_MOST:
        return list(range(low, high + 1))
    ends = {high, *(size for size in tuned if low <= size <= high)}
    ends |= {size - 1 for size in tuned if low < size <= high}
    size = low
    while size < high:
        size = bucket(size)
        ends.add(min(size, high))
        size += 1
    return sorted(ends)


def _pick(rows: Sequence[Known], begin: int, end: int, usable: Usable) -> tuple[str, float | None] | None:
    below = [one for one in rows if one.size <= end]
    above = [one for one in rows if one.size >= end]
    low, high = (below or above)[-1 if below else 0], (above or below)[0 if above else -1]
    names = dict.fromkeys((low.winner, high.winner))
    names |= dict.fromkeys(one.winner for one in rows)
    best: tuple[str, float | None] | None = None
    for name in names:
        measured = name in low.losses and name in high.losses
        if not (measured or name in (low.winner, high.winner)) or not usable(name, begin, end):
            continue
        inside = low.size <= end <= high.size
        loss = loss_at(low, high, name, end) if inside else None
        if best is None or (loss is not None and best[1] is not None and loss < best[1] - 1e-9):
            best = (name, loss)
    if best is None:  # one from farther away rather than nothing, its loss unknown
        far = next((one for one in names if usable(one, begin, end)), None)
        best = None if far is None else (far, None)
    return best


def _tuned_at(rows: Sequence[Known], one: Interval) -> int:
    """A size inside the interval where it can be."""
    middle = math.sqrt(max(one.low, 1) * max(one.high, 1))
    sizes = [row.size for row in rows if row.winner == one.choice]
    return min(sizes, key=lambda size: (not one.low <= size <= one.high, abs(math.log(size / middle)), size))
