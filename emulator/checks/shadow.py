"""Who touched each byte last, and is the next access ordered after it?

Memory is watched in granules: as many bytes as the narrowest access of the kernel to that space. For each
granule: the last write (epoch, thread, place), and the reads since. Shared memory keeps the last read of each
warp of the CTA, global memory the last one of all: enough to see that a buffer is overwritten while it is
read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.checks.clocks import BEFORE, NEVER, Clocks, Index

I32: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]

WHOLE = 32
"""In place of a lane: the warp as a whole, or several of its lanes. Nothing of the warp itself is ordered
with it without a barrier. A thread's number here is warp * 64 + lane."""


@dataclass(frozen=True)
class Conflict:
    """An access that nothing orders after an earlier one. `at` indexes the flat list of accesses checked."""

    what: str
    """`write after write`, `read after write`, `write after read`, `copy under way`, `unwritten`,
    `two lanes`."""
    at: int
    granule: int
    warp: int
    lane: int
    other_warp: int
    other_lane: int
    other_site: int


class Shadow:
    """The watch over a space of `granules`; `columns`: warps of a CTA, or 0 to keep only the last read."""

    def __init__(self, granules: int, columns: int, clocks: Clocks, written: bool) -> None:
        self.clocks = clocks
        self.columns = columns
        first = BEFORE if written else NEVER
        self.write_epoch: I32 = np.full(granules, first, np.int32)
        self.write_thread: I32 = np.full(granules, -1, np.int32)
        self.write_site: I32 = np.full(granules, -1, np.int32)
        reads = (granules, columns) if columns else (granules,)
        self.read_epoch: I32 = np.zeros(reads, np.int32)
        self.read_lane: I32 = np.zeros(reads, np.int32)
        self.read_site: I32 = np.full(reads, -1, np.int32)
        self.read_warp: I32 = np.zeros(0 if columns else granules, np.int32)
        self.copy_site: I32 = np.full(granules, -1, np.int32)
        self.copy_thread: I32 = np.zeros(granules, np.int32)
        """Place of the asynchronous copy that will write the granule, -1 for none, and who issued it."""

    def settle(self, clocks: Clocks) -> None:
        """A launch has ended: all it did happens before the next."""
        self.clocks = clocks
        self.write_epoch[self.write_epoch != NEVER] = BEFORE
        self.read_epoch[:] = 0

    # Every method takes `granule` (n, g), `warp` and `lane` (n,), and gives the first conflict or None.

    def read(self, granule: Index, warp: Index, lane: Index, site: int) -> Conflict | None:
        """Reads by instruction `site`."""
        found = self._after_writes(granule, warp, lane, "read after write", unwritten=True)
        if self.columns:
            at = (granule, (warp % self.columns)[:, None])
        else:
            at = (granule,)  # type: ignore[assignment]
        epoch = np.broadcast_to(self.clocks.epoch[warp][:, None], granule.shape)
        lanes = np.broadcast_to(lane[:, None], granule.shape)
        same = self.read_epoch[at] == epoch
        if not self.columns:
            same &= self.read_warp[granule] == warp[:, None]
            self.read_warp[granule] = warp[:, None]
        many = same & (self.read_lane[at] != lanes)
        self.read_epoch[at] = epoch
        self.read_site[at] = site
        self.read_lane[at] = np.where(many, WHOLE, lanes)
        # Of lanes that read one granule together only the last is kept: then it was several.
        shared = self.read_lane[at] != lanes
        if shared.any():
            if self.columns:
                column = np.broadcast_to((warp % self.columns)[:, None], granule.shape)
                self.read_lane[granule[shared], column[shared]] = WHOLE
            else:
                self.read_lane[granule[shared]] = WHOLE
        return found

    def write(
        self,
        granule: Index,
        warp: Index,
        lane: Index,
        site: int,
        copy: bool = False,
        same: Callable[[], Bools] | None = None,
    ) -> tuple[Conflict | None, Bools | None]:
        """Writes. Second: where several lanes write one granule together (their values must then be equal).
        `copy`: an asynchronous copy issued now; the granules are then under way until `land`. `same()` says
        where the bytes are what lies there already: to write those again harms nobody."""
        found = self._after_writes(granule, warp, lane, "write after write", unwritten=False, same=same)
        found = found or self._after_reads(granule, warp, lane)
        thread = (warp * 64 + lane).astype(np.int32)[:, None]
        if copy:
            self.copy_site[granule] = site
            self.copy_thread[granule] = thread
            twice = self.copy_thread[granule] != thread
        else:
            self._stamp(granule, warp, thread, site)
            twice = self.write_thread[granule] != thread
        return found, twice if twice.any() else None

    def land(self, granule: Index, warp: Index, lane: Index, site: int) -> None:
        """Copies have ended and their issuer has waited for them: from here on they are its writes."""
        self.copy_site[granule] = -1
        self._stamp(granule, warp, (warp * 64 + lane).astype(np.int32)[:, None], site)

    def _stamp(self, granule: Index, warp: Index, thread: I32, site: int) -> None:
        self.write_epoch[granule] = self.clocks.epoch[warp][:, None]
        self.write_thread[granule] = thread
        self.write_site[granule] = site

    def _after_writes(
        self,
        granule: Index,
        warp: Index,
        lane: Index,
        what: str,
        unwritten: bool,
        same: Callable[[], Bools] | None = None,
    ) -> Conflict | None:
        under_way = self.copy_site[granule]
        if under_way.max(initial=-1) >= 0:
            at = tuple(np.argwhere(under_way >= 0)[0])
            issuer = int(self.copy_thread[granule[at]])
            return self._conflict("copy under way", at, granule, warp, lane, issuer, int(under_way[at]))
        epoch = self.write_epoch[granule]
        if unwritten and epoch.min(initial=BEFORE) == NEVER:
            at = tuple(np.argwhere(epoch == NEVER)[0])
            return self._conflict("unwritten", at, granule, warp, lane, -1, -1)
        thread = self.write_thread[granule]
        mine = (warp * 64 + lane).astype(np.int32)[:, None]
        late = epoch > BEFORE
        if not late.any():
            return None
        warps = np.broadcast_to(warp[:, None], granule.shape)
        other = np.where(late, thread >> 6, warps)
        bad = late & ((thread != mine) | (lane == WHOLE)[:, None]) & ~self.clocks.ordered(warps, other, epoch)
        if same is not None and bad.any():
            bad &= ~same()
        if not bad.any():
            return None
        at = tuple(np.argwhere(bad)[0])
        return self._conflict(
            what, at, granule, warp, lane, int(thread[at]), int(self.write_site[granule[at]])
        )

    def _after_reads(self, granule: Index, warp: Index, lane: Index) -> Conflict | None:
        epoch = self.read_epoch[granule]
        if epoch.max(initial=0) <= BEFORE:
            return None
        if self.columns:
            known = self.clocks.row_of_cta(warp)[:, None, :]
            bad = epoch > known
            if not bad.any():
                return None
            own = np.arange(self.columns) == (warp % self.columns)[:, None]
            same = (self.read_lane[granule] == lane[:, None, None]) & (lane != WHOLE)[:, None, None]
            bad &= ~(own[:, None, :] & same)
            if not bad.any():
                return None
            i, j, column = (int(x) for x in np.argwhere(bad)[0])
            g = int(granule[i, j])
            other = int(warp[i]) // self.columns * self.columns + column
            reader, site = int(self.read_lane[g, column]), int(self.read_site[g, column])
        else:
            warps = np.broadcast_to(warp[:, None], granule.shape)
            readers = np.where(epoch > BEFORE, self.read_warp[granule], warps)
            bad = (epoch > BEFORE) & ~self.clocks.ordered(warps, readers, epoch)
            same = (self.read_lane[granule] == lane[:, None]) & (lane != WHOLE)[:, None]
            bad &= ~((readers == warps) & same)
            if not bad.any():
                return None
            i, j = (int(x) for x in np.argwhere(bad)[0])
            g = int(granule[i, j])
            other, reader, site = int(readers[i, j]), int(self.read_lane[g]), int(self.read_site[g])
        thread = other * 64 + reader
        return self._conflict("write after read", (i, j), granule, warp, lane, thread, site)

    @staticmethod
    def _conflict(
        what: str, at: tuple[int, ...], granule: Index, warp: Index, lane: Index, thread: int, site: int
    ) -> Conflict:
        i = int(at[0])
        return Conflict(
            what, i, int(granule[at]), int(warp[i]), int(lane[i]),
            thread >> 6 if thread >= 0 else -1, thread & 63 if thread >= 0 else -1, site,
        )  # fmt: skip
