"""What do accesses to memory cost: requests, passes over the banks, sectors?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from emulator.checks.clocks import Index
    from emulator.machine.wave import Wave

I64 = npt.NDArray[np.int64]


def count_shared(w: Wave, what: str, width: int, address: I64, row: Index) -> None:
    """Requests, passes over the banks, and conflicts: passes beyond the least for that many bytes."""
    if not w.launch.counting:
        return
    # Rows come in order.
    begins = np.concatenate([[True], row[1:] != row[:-1]])
    rows, dense = row[begins], np.cumsum(begins) - 1
    passes = w.counters.shared(width, address - w.shared.base, dense, len(rows))
    lanes = np.bincount(dense)
    least = np.maximum(1, -(-lanes * max(width, 4) // 128))
    warps = w.warps[rows]
    w.counters.add(f"shared_requests.{what}", warps)
    w.counters.add(f"shared_wavefronts.{what}", warps, passes)
    w.counters.add(f"bank_conflicts.{what}", warps, np.maximum(passes - least, 0))


def count_global(w: Wave, what: str, address: I64, width: int, row: Index) -> None:
    """Requests and 32-byte sectors."""
    if not w.launch.counting or not len(address):
        return
    # Rows come in order.
    begins = np.concatenate([[True], row[1:] != row[:-1]])
    rows, dense = row[begins], np.cumsum(begins) - 1
    warps = w.warps[rows]
    w.counters.add(f"global_requests.{what}", warps)
    w.counters.add(f"global_sectors.{what}", warps, w.counters.sectors(address, width, dense, len(rows)))


__all__ = ["count_global", "count_shared"]
