"""Which times did somebody record on a real GPU, for every configuration of a kernel's space?"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SPACES = Path(__file__).parents[1] / "data" / "spaces"
NAME = "gemm_3090"
_NO_PARAMETERS = ("time_ms", "failure")

Point = tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """A whole space: its parameters with their values, and the time of each configuration that ran."""

    name: str
    parameters: Mapping[str, tuple[int, ...]]
    times_us: Mapping[Point, float]
    """By values in the order of `parameters`."""

    def time_us(self, values: Mapping[str, object]) -> float | None:
        """The recorded time; None for a configuration that is not in the recording, or failed."""
        point = tuple(values.get(name) for name in self.parameters)
        return self.times_us.get(point)  # type: ignore[arg-type]

    @property
    def best_us(self) -> float:
        return min(self.times_us.values())


@cache
def recording(name: str = NAME) -> Recording:
    """The space of that name under bench/data/spaces."""
    with gzip.open(SPACES / f"{name}.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [column for column in rows[0] if column not in _NO_PARAMETERS]
    times = {
        tuple(int(row[column]) for column in names): 1000.0 * float(row["time_ms"])
        for row in rows
        if row["time_ms"]
    }
    values = {column: tuple(sorted({int(row[column]) for row in rows})) for column in names}
    return Recording(name, values, times)
