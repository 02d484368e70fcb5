"""What is one swept size of a job: which sizes may be tuned, how many, and with what of the budget?

A line is a Layer with all open sizes but one fixed. Where the request lists sizes each of them is tuned;
where it gives a range, or a list with a number, the sizes are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooftile.problem import Problem, parse_problem

from service.store.enums import JobProblemRole
from service.store.records import JobProblemRecord, JobRecord

PROBE_SCHEDULES = 4
"""At most so many schedules are measured at a held-out size."""
CROSS_SCHEDULES = 4
"""At a tuned size once more: its winner, those of its two neighbours, and what wins below it by a tie."""
PROBE_WEIGHT = 0.25
"""What a probe (a cross or held-out size) has of the time that a tuned size has."""
RESERVE_MOST = 0.25
"""Of a line's trials, kept for probes."""


@dataclass(frozen=True)
class Line:
    """One swept size."""

    axis: str
    fields: Mapping[str, Any]
    """The problem's JSON without the swept size."""
    low: int
    high: int
    sizes: tuple[int, ...] = ()
    """Those that may be tuned; none: each from low to high."""
    chosen: bool = False
    """The sizes to tune are chosen; else all of `sizes` are tuned."""
    tune: int = 0
    """At most so many are tuned."""
    hold_out: int = 0
    """So many others are measured in the end."""
    weight: float = 1.0
    trials: int | None = None
    """Of all its sizes on one device; of lists None, because each size has its own share."""
    device_seconds: float | None = None

    def problem(self, size: int) -> Problem:
        """The Problem at this size."""
        return parse_problem({**self.fields, self.axis: size})

    def to_json(self) -> dict[str, Any]:
        """As a job keeps it."""
        return {
            "axis": self.axis,
            "fields": dict(self.fields),
            "low": self.low,
            "high": self.high,
            "sizes": list(self.sizes),
            "chosen": self.chosen,
            "tune": self.tune,
            "hold_out": self.hold_out,
            "weight": self.weight,
            "trials": self.trials,
            "device_seconds": self.device_seconds,
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Line:
        """The line that `to_json` wrote."""
        return cls(**{**obj, "sizes": tuple(obj["sizes"])})

    def first_sizes(self) -> list[int]:
        """The sizes that a job begins with, in the order in which they are tuned: of a range about half of
        what may be tuned, evenly in log space and the ends first; the rest is chosen by what they show."""
        if not self.chosen:
            return list(self.sizes)
        count = min(self.tune, max(2, self.tune // 2 + 1))
        if count == 1:
            return [self.nearest(math.sqrt(self.low * self.high))]
        step = (math.log(self.high) - math.log(self.low)) / (count - 1)
        wanted = {self.nearest(math.exp(math.log(self.low) + i * step)) for i in range(count)}
        found: list[int] = []
        while wanted:
            size = farthest(found, sorted(wanted))
            found.append(size)
            wanted.remove(size)
        return found

    def nearest(self, size: float) -> int:
        """The size that may be tuned and is nearest in log space."""
        if not self.sizes:
            return min(self.high, max(self.low, round(size)))
        return min(self.sizes, key=lambda one: (distance(one, max(size, 1.0)), one))

    def between(self, low: int, high: int) -> int | None:
        """The size that may be tuned nearest to the middle between two others; None where there is none."""
        middle = math.sqrt(low * high)
        if self.sizes:
            inside = [one for one in self.sizes if low < one < high]
            return min(inside, key=lambda one: (distance(one, middle), one), default=None)
        size = round(middle)
        size = size if low < size < high else low + 1
        return size if low < size < high else None

    def reserve_trials(self) -> int:
        """Trials that are kept for probes."""
        if self.trials is None or not self.chosen:
            return 0
        wanted = self.hold_out * PROBE_SCHEDULES + self.tune * CROSS_SCHEDULES
        return min(wanted, int(RESERVE_MOST * self.trials))

    def share_trials(self) -> int | None:
        """Of the first sizes, each."""
        if self.trials is None:
            return None
        return max(1, (self.trials - self.reserve_trials()) // max(1, self.tune))

    def share_device_seconds(self) -> float | None:
        """Of a tuned size; the rest is the probes'."""
        if self.device_seconds is None:
            return None
        return (1 - RESERVE_MOST) * self.device_seconds / max(1, self.tune)

    def with_budget(self, trials: int | None, device_seconds: float | None) -> Line:
        """With what all its sizes have together."""
        return replace(self, trials=trials, device_seconds=device_seconds)


def distance(one: float, other: float) -> float:
    """In log space."""
    return abs(math.log(one) - math.log(other))


def farthest(done: Sequence[int], among: Sequence[int]) -> int:
    """The size that is farthest from all that are done: first the smallest, then the largest."""
    if not done:
        return min(among)
    return max(among, key=lambda size: (min(distance(size, one) for one in done), -size))


def of_job(job: JobRecord) -> tuple[Line, ...]:
    """The lines of a job; a problem's `line` is the place here."""
    return tuple(Line.from_json(one) for one in job.options.get("lines", ()))


def weight_to_come(job: JobRecord, mine: Sequence[JobProblemRecord]) -> float:
    """What sizes that will be added to this device's problems count when time is shared."""
    total = 0.0
    for index, line in enumerate(of_job(job)):
        rows = [row for row in mine if row.line == index]
        if not line.chosen or not rows:
            continue
        roles = {row.role for row in rows}
        probes = 0
        if JobProblemRole.HELD_OUT not in roles:
            probes += line.hold_out
            if JobProblemRole.CROSS not in roles:
                total += max(0, line.tune - len(rows)) * line.weight
                probes += line.tune
        total += probes * line.weight * PROBE_WEIGHT
    return total
