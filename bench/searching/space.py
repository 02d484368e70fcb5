"""How does the search see a whole recorded space, its failures too, without any cost model?

A family as any other: a schedule is legal where it was recorded, whether it ran or not. Nothing is expected
of any: predictions differ by a hash alone, and by so little that whoever looks at them learns nothing.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm, Problem

from search_space.device import Device
from search_space.family import BuildSpec, Estimate, Parameter, SharedArea
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

SPACES = Path(__file__).parents[1] / "data" / "spaces"
PROBLEM = Gemm(1, 1, 1, "f32")
"""Stands for whatever the recorded kernel computed: the search asks nothing of it but its key."""
_NO_PARAMETERS = ("time_ms", "failure")
_NOTHING = 1e-9


class RecordedFamily:
    """One recorded space; see search_space.family.Family for what each method answers."""

    version = 1

    def __init__(self, name: str) -> None:
        self.name = name
        with gzip.open(SPACES / f"{name}.csv.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        names = [column for column in rows[0] if column not in _NO_PARAMETERS]
        self.times_us: Mapping[tuple[int, ...], float | None] = {
            tuple(int(row[column]) for column in names): 1000 * float(row["time_ms"])
            if row["time_ms"]
            else None
            for row in rows
        }
        """None for a configuration that failed."""
        values = {column: tuple(sorted({int(row[column]) for row in rows})) for column in names}
        self._parameters = tuple(Parameter(name, "tile", values[name]) for name in names)
        self._names = tuple(names)
        ran = sorted((time, point) for point, time in self.times_us.items() if time is not None)
        self.best_us = ran[0][0]
        # A start that is neither good nor bad.
        self._default = dict(zip(names, ran[len(ran) // 2][1], strict=True))

    def time_us(self, schedule: Schedule) -> float | None:
        """As it was recorded."""
        return self.times_us[self._point(schedule)]

    def _point(self, schedule: Schedule) -> tuple[int, ...]:
        return tuple(schedule.integer(name) for name in self._names)

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return self._parameters

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        if self._point(schedule) in self.times_us:
            return []
        return [Violation("recorded", "this configuration was not recorded", {})]

    def default(self, problem: Problem, device: Device) -> Schedule:
        return Schedule.of(self.name, self._parameters, self._default)

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        return [self.default(problem, device)]

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        digest = hashlib.sha256(repr(self._point(schedule)).encode()).digest()
        return Estimate(1 + _NOTHING * int.from_bytes(digest[:4]) / 2**32, "nothing")

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        raise NotImplementedError("a recorded space is not compiled")

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        raise NotImplementedError("a recorded space is not run")

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        return ()

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {}

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        return ()

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        return {}


@cache
def recorded(name: str) -> RecordedFamily:
    """The space of that name under bench/data/spaces; read once."""
    return RecordedFamily(name)


def share(best_us: float, found_us: float) -> float:
    """Of the best speed that was recorded; 0 where nothing ran yet."""
    return best_us / found_us if math.isfinite(found_us) else 0.0
