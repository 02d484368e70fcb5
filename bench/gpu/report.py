"""What has a check found so far? One JSON file, whole at every moment: a kill loses nothing that was
written."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Report:
    """Figures, rows and steps, rewritten after each change."""

    def __init__(self, path: Path | None, environment: Mapping[str, Any]) -> None:
        self._path = path
        self._started = time.monotonic()
        self.figures: dict[str, float | int | None] = {}
        self.rows: list[dict[str, Any]] = []
        self.steps: dict[str, dict[str, Any]] = {}
        self.left_out: list[str] = []
        self.environment = dict(environment)
        self.write()

    def step(self, name: str, **found: Any) -> None:
        """What a step has found, so far or at its end."""
        self.steps.setdefault(name, {}).update(found)
        self.write()

    def row(self, **row: Any) -> None:
        """One candidate or problem."""
        self.rows.append(row)
        self.write()

    def leave_out(self, what: str) -> None:
        """Something that there was no time, tool or device for."""
        self.left_out.append(what)
        self.write()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def to_json(self) -> dict[str, Any]:
        return {
            "figures": {**self.figures, "seconds": round(self.seconds, 1)},
            "rows": self.rows,
            "steps": self.steps,
            "left_out": self.left_out,
            "environment": self.environment,
        }

    def write(self) -> None:
        if self._path is None:
            return
        text = json.dumps(plain(self.to_json()), indent=1, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(text + "\n")
        partial.replace(self._path)


def plain(value: Any) -> Any:
    """As strict JSON: no NaN, no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


class Budget:
    """How much of the whole time is left, and what a step may take of it."""

    def __init__(self, seconds: float, reserve_s: float) -> None:
        self._end = time.monotonic() + seconds - reserve_s
        self.reserve_s = reserve_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def share(self, part: float) -> float:
        """Seconds that are `part` of what is left."""
        return part * self.left_s
