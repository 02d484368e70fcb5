"""How does a run move the clock of one process? With libfaketime, preloaded, and a file with the offset.

Only the wall clock moves, as when a machine's time is set; monotonic time goes on.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Faketime:
    """The library to preload."""

    path: Path

    def environment(self, clock: Path) -> dict[str, str]:
        """Variables for a process whose clock follows `clock`."""
        set_clock(clock, 0)
        return {
            "LD_PRELOAD": str(self.path),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }


def set_clock(clock: Path, offset_s: int) -> None:
    """Move the clock of the processes that follow this file, within a second."""
    partial = clock.with_suffix(".part")
    partial.write_text(f"{offset_s:+d}\n")
    partial.replace(clock)


def preload() -> Faketime | None:
    """The library of the `libfaketime` wheel (extra `test`), or the system's; None: no clock can be moved."""
    spec = importlib.util.find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.rglob("libfaketime.so*")):
            return Faketime(found)
    for found in sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")):
        return Faketime(found)
    return None
