"""What is kept of a long run: the best known schedules of a device, and the parts of a run that are done.

The reference (bench/data/cpu_reference.json) is recorded once for a device: the answer of a search of twenty
times as many trials. Only its schedule is used afterwards: it is built anew and raced, so that no time of
another day is compared with one of today.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftile.problem import Problem

ABOUT = (
    "The fastest schedules that a search of many trials found, by device and problem; recorded by "
    "`python -m bench.cpu_search --only reference`, each with its toolchain, date and commit."
)


class Reference:
    """The file of best known schedules; written after each problem."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []

    def of(self, device: str, problem: Problem, trials: int) -> dict[str, Any] | None:
        """The record of this device and problem; None where there is none of at least so many trials."""
        for row in self._rows:
            if (row["device"], row["problem_key"]) == (device, problem.key) and row["trials"] >= trials:
                return row
        return None

    def put(self, device: str, problem: Problem, row: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a record, in place of the one there was."""
        mine = (device, problem.key)
        fresh = {"device": device, "problem_key": problem.key, "problem": problem.to_json(), **row}
        self._rows = [one for one in self._rows if (one["device"], one["problem_key"]) != mine] + [fresh]
        replace_json(self._path, {"about": ABOUT, "rows": self._rows})
        return fresh


class Parts:
    """Answers of one run, a file each, so that a run that was broken off goes on where it was. The folder is
    named by the commit: parts of other code are none of this run."""

    def __init__(self, folder: Path, commit: str | None) -> None:
        self.folder = folder / (commit or "unknown")

    def get(self, name: str) -> dict[str, Any] | None:
        path = self._path(name)
        return json.loads(path.read_text()) if path.is_file() else None

    def put(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        replace_json(self._path(name), row)
        return dict(row)

    def _path(self, name: str) -> Path:
        plain = "".join(c if c.isalnum() or c in ".-=" else "_" for c in name)
        return self.folder / f"{plain}.json"


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    partial.replace(path)
