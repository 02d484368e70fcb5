"""What does a fence make of the relaxed arrivals and waits at mbarriers and cluster barriers beside it?

A relaxed arrive hands on what its warp had done at its last fence; what a relaxed wait brought is ordered
before what its warp does behind its next fence (PTX ISA, 8.8: release and acquire patterns). A fence of scope
.cta does so among the threads of a CTA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from emulator.checks.clocks import I32
    from emulator.machine.wave import Wave


class Fences:
    """The last fence of each warp of a wave, and what relaxed waits have brought since."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._near: dict[int, I32] = {}
        """By warp: what it had done at its last fence of any scope."""
        self._far: dict[int, I32] = {}
        """The same of scope .cluster or wider."""
        self._seen: dict[int, tuple[I32, I32]] = {}
        """By warp: what a fence of scope .cta acquires, and one of a wider scope."""

    def fence(self, row: int, near: bool) -> None:
        """fence.acq_rel, fence.sc or membar by a row of the group; `near`: of scope .cta."""
        w = self._w
        warp = int(w.warps[row])
        if warp in self._seen:
            w.clocks.acquire_one(warp, self._seen[warp][not near])
            if not near:
                del self._seen[warp]
        made = w.clocks.release_one(warp)
        w.released(row)
        self._near[warp] = made
        if not near:
            self._far[warp] = made

    def handed(self, warp: int, near: bool) -> I32 | None:
        """What a relaxed arrive hands on, to its own CTA (`near`) or to the cluster; None: nothing."""
        return (self._near if near else self._far).get(warp)

    def relaxed_wait(self, warp: int, near: I32, far: I32) -> None:
        """A wait that acquires nothing by itself: what it saw of its own CTA, and of all."""
        old = self._seen.get(warp)
        self._seen[warp] = (near, far) if old is None else (np.maximum(old[0], near), np.maximum(old[1], far))


__all__ = ["Fences"]
