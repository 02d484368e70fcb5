"""Under which conditions is a time taken: how many sets of buffers, and is each of them cold when used?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Rotating buffers hold at least twice the last-level cache, and never less than this (AT-23: a machine, or a
# hypervisor, may report a smaller cache than there is).
FLOOR_BYTES = 64 << 20
# Kernels so small that even this many sets do not fill the cache have it flushed between rounds instead: some
# 5 ms a round, where binding a kernel to each set of hundreds would cost every trial more.
MOST_SETS = 32


@dataclass(frozen=True)
class Policy:
    """The MeasurementPolicy of a job, as far as a CPU knows it."""

    cold: bool
    launch: str

    @staticmethod
    def parse(value: Mapping[str, Any]) -> Policy:
        cache = value.get("cache", "cold")
        if cache not in ("cold", "warm"):
            raise ValueError(f"policy.cache is {cache!r}, not cold or warm")
        return Policy(cache == "cold", str(value.get("launch", "eager")))

    def to_json(self) -> dict[str, Any]:
        return {"cache": "cold" if self.cold else "warm", "launch": self.launch}


@dataclass(frozen=True)
class Rotation:
    """How many sets of buffers runs go round, and how much is streamed through the cache after each round."""

    sets: int
    flush_bytes: int

    def to_json(self, set_bytes: int) -> dict[str, Any]:
        return {"sets": self.sets, "set_bytes": set_bytes, "flush_bytes": self.flush_bytes}


def rotation(policy: Policy, set_bytes: int, llc_bytes: int | None, free_bytes: int) -> Rotation:
    """Sets for one problem. Between two uses of any byte at least twice the cache is read or written.

    Raises MemoryError where even the fewest sets do not fit.
    """
    if set_bytes > free_bytes:
        raise MemoryError(f"one set of buffers needs {set_bytes} bytes, {free_bytes} are free")
    if not policy.cold:
        return Rotation(1, 0)
    wanted = max(FLOOR_BYTES, 2 * (llc_bytes or 0))
    sets = min(MOST_SETS, max(2, -(-wanted // max(1, set_bytes))))
    sets = max(1, min(sets, free_bytes // max(1, set_bytes)))
    if sets * set_bytes >= wanted:
        return Rotation(sets, 0)
    return Rotation(sets, wanted)
