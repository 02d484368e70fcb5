"""Which cp.async copies are under way, and when do their bytes land?

A copy's bytes may land at any moment between its issue and the wait that covers it (PTX ISA, cp.async). Which
moment is the order's choice: at once, as late as can be, or by chance; touching them in between is a race
whatever the choice. Groups are counted for each thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.checks.shadow import WHOLE
from emulator.machine.units import Idle, lands_at_once
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import I32, Index
    from emulator.machine.mbarriers import Mbarrier
    from emulator.machine.wave import Wave


@dataclass
class Issue:
    """The copies that one instruction issued for some threads. All arrays are (n, ...)."""

    site: int
    warp: Index
    lane: Index
    group: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    """Into the data of shared memory."""
    granule: Index
    """(n, g)"""
    data: npt.NDArray[np.uint8]
    """(n, bytes), zero-filled where the source was short."""
    landed: npt.NDArray[np.bool_]

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Forget the others."""
        for name in ("warp", "lane", "group", "offset", "granule", "data", "landed"):
            setattr(self, name, getattr(self, name)[which])


@dataclass
class Arrival:
    """An arrival at an mbarrier that comes when copies of some lanes of a warp have landed."""

    barrier: Mbarrier
    warp: int
    lanes: npt.NDArray[np.bool_]
    handed: I32
    site: int
    issues: list[Issue]


class Copies(Idle):
    """Of all threads of a wave."""

    def __init__(self, wave: Wave) -> None:
        self._w = wave
        self._group = np.zeros((wave.count, 32), np.int32)
        """The group that a thread's next copy belongs to: as many as it has committed."""
        self._under_way: list[Issue] = []
        self._arrivals: list[Arrival] = []

    def issue(self, made: Issue) -> None:
        """Copies begin; `group` is filled in here."""
        w = self._w
        made.group = self._group[made.warp, made.lane]
        kind = w.order.kind
        if kind in ("early", "mixed"):
            now = np.ones(len(made.warp), np.bool_)
        elif kind == "random":
            now = w.rng.random(len(made.warp)) < 0.4
        else:
            now = np.zeros(len(made.warp), np.bool_)
        self._land(made, now)
        self._under_way.append(made)

    def commit(self) -> None:
        """The active lanes close a group."""
        w = self._w
        row, lane = w.active()
        self._group[w.warps[row], lane] += 1

    def wait(self, pending: int | None, site: int) -> None:
        """The active lanes wait until at most `pending` of their groups are under way; None: until everything
        they issued has landed, committed or not."""
        w = self._w
        w.counters.add("waits.copies", w.warps)
        if not self._under_way:
            return
        awaited = np.zeros((w.count, 32), np.bool_)
        row, lane = w.active()
        awaited[w.warps[row], lane] = True
        left = []
        # In the order of their groups: of two copies to the same bytes the later one must win.
        for made in self._under_way:
            mine = awaited[made.warp, made.lane]
            if pending is not None:
                mine &= made.group < self._group[made.warp, made.lane] - pending
            if mine.any():
                self._land(made, mine & ~made.landed)
                warp, lanes, granule = made.warp[mine], made.lane[mine], made.granule[mine]
                w.shared_shadow.land(granule, warp, lanes, made.site)
                made.keep(~mine)
            if w.order.kind == "random" and len(made.warp):
                self._land(made, ~made.landed & (w.rng.random(len(made.warp)) < 0.3))
            if len(made.warp):
                left.append(made)
        self._under_way = left

    def arrive_on(
        self, b: Mbarrier, warp: int, lanes: npt.NDArray[np.bool_], handed: I32, site: int
    ) -> None:
        """cp.async.mbarrier.arrive by some lanes: what they have issued, and an arrival of each behind it.
        `handed`: what they release."""
        made = Arrival(b, warp, lanes, handed, site, [])
        left = []
        for issue in self._under_way:
            mine = (issue.warp == warp) & lanes[issue.lane]
            if mine.any():
                part = replace(issue)
                part.keep(mine)
                issue.keep(~mine)
                made.issues.append(part)
            if len(issue.warp):
                left.append(issue)
        self._under_way = left
        if lands_at_once(self._w, copy=True):
            self._arrive(made)
        else:
            self._arrivals.append(made)

    def _arrive(self, made: Arrival) -> None:
        w, b = self._w, made.barrier
        for issue in made.issues:
            self._land(issue, ~issue.landed)
            shadow = w.shared_shadow
            shadow.land(issue.granule, issue.warp, issue.lane, issue.site)
            # They are known to who sees the phase, and are of the generic proxy all the same.
            shadow.write_epoch[issue.granule] = b.stamp
            shadow.write_thread[issue.granule] = b.agent * 64 + WHOLE
        b.near = np.maximum(b.near, made.handed)
        w.mbarriers.count(b, int(made.lanes.sum()), made.warp, made.site)

    def force(self) -> bool:
        """See Unit."""
        wanted = self._w.mbarriers.waited_for()
        now = [made for made in self._arrivals if made.barrier.agent in wanted]
        self._arrivals = [made for made in self._arrivals if made.barrier.agent not in wanted]
        for made in now:
            self._arrive(made)
        return bool(now)

    def tick(self) -> None:
        """See Unit."""
        w = self._w
        if self._arrivals and w.rng.random() < 0.3:
            self._arrive(self._arrivals.pop(int(w.rng.integers(len(self._arrivals)))))

    def _land(self, made: Issue, which: npt.NDArray[np.bool_]) -> None:
        if not which.any():
            return
        w = self._w
        store(w.shared.data, made.offset[which], made.data[which])
        made.landed |= which

    def exited(self, site: int) -> None:
        """The active lanes end: nothing of theirs may be under way."""
        w = self._w
        if not self._under_way:
            return
        row, lane = w.active()
        ending = np.zeros((w.count, 32), np.bool_)
        ending[w.warps[row], lane] = True
        for made in self._under_way:
            mine = ending[made.warp, made.lane]
            if mine.any():
                first = int(np.nonzero(mine)[0][0])
                w.launch.fault(
                    w, FaultKind.OUTSTANDING_WORK, site,
                    f"it ends while its copy to shared memory from {w.kernel.where(made.site)} is not waited"
                    " for",
                    warp=int(made.warp[first]), lane=int(made.lane[first]),
                )  # fmt: skip
                made.keep(~mine)
        self._under_way = [made for made in self._under_way if len(made.warp)]


def store(data: npt.NDArray[np.uint8], offset: npt.NDArray[np.int64], values: npt.NDArray[np.uint8]) -> None:
    """Write rows of bytes `values` (n, bytes) at `offset` (n,)."""
    width = values.shape[1]
    unit = _unit(offset, width)
    words: Any = np.dtype(f"u{unit}")
    view = data.view(words)
    index = (offset // unit)[:, None] + np.arange(width // unit)
    view[index] = np.ascontiguousarray(values).view(words)


def load(data: npt.NDArray[np.uint8], offset: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Rows of `width` bytes at `offset` (n,)."""
    unit = _unit(offset, width)
    words: Any = np.dtype(f"u{unit}")
    index = (offset // unit)[:, None] + np.arange(width // unit)
    found: npt.NDArray[np.uint8] = data.view(words)[index].view(np.uint8)
    return found


def _unit(offset: npt.NDArray[np.int64], width: int) -> int:
    """Bytes that may be moved together."""
    for unit in (8, 4, 2):
        if width % unit == 0 and not (offset & (unit - 1)).any():
            return unit
    return 1
