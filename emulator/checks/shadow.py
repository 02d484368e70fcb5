"""Who touched each byte last, and is the next access ordered after it?

Memory is watched in granules: as many bytes as the narrowest access of the kernel to that space. For each
granule: the last write (epoch, thread, place), and the reads since. Shared memory keeps the last read of each
warp of the CTA, global memory the last one of all: enough to see that a buffer is overwritten while it is
read. Strong accesses (volatile, relaxed, atomic) do not race with each other, only with others; their reads
are not kept."""

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
with it without a barrier. A thread's number here is 64 * (warp of the launch, or agent) + lane."""
ASYNC, OBJECT = 33, 34
"""In place of a lane: the asynchronous unit that a warp set to work, or an agent; an mbarrier that lies
there."""
UNDER_WAY = 2**31 - 2
"""Stamp of what has not ended, and of mbarriers: nothing is ordered behind it."""


@dataclass(frozen=True)
class Conflict:
    """An access that nothing orders after an earlier one. `at` indexes the flat list of accesses checked."""

    what: str
    """`write after write`, `read after write`, `write after read`, `copy under way`, `read under way`,
    `no proxy fence`, `unwritten`."""
    at: int
    granule: int
    warp: int
    """Among the resident ones."""
    lane: int
    other_warp: int
    """Of the launch; or an agent."""
    other_lane: int
    other_site: int


class Shadow:
    """The watch over a space of `granules`; `columns`: warps of a CTA, or 0 to keep only the last read.
    `readers` (ctas, k), where CTAs have more readers than their warps: the columns of clocks that have them,
    of which `warps` are warps, `pitch` granules a CTA."""

    def __init__(
        self,
        granules: int,
        columns: int,
        clocks: Clocks,
        written: bool,
        readers: Index | None = None,
        warps: int = 0,
        pitch: int = 0,
    ) -> None:
        self.clocks = clocks
        self._readers = readers
        self._warps = warps or columns
        self._pitch = pitch
        if readers is not None:
            columns = readers.shape[1]
        self.columns = columns
        first = BEFORE if written else NEVER
        self.write_epoch: I32 = np.full(granules, first, np.int32)
        self.write_thread: I32 = np.full(granules, -1, np.int32)
        self.write_site: I32 = np.full(granules, -1, np.int32)
        self._strong: Shadow | None = None
        """The last strong writes, once there are any: they do not hide the last other write."""
        reads = (granules, columns) if columns else (granules,)
        self.read_epoch: I32 = np.zeros(reads, np.int32)
        self.read_lane: I32 = np.zeros(reads, np.int32)
        self.read_site: I32 = np.zeros(reads, np.int32)
        self.read_warp: I32 = np.zeros(0 if columns else granules, np.int32)
        self.copy_site: I32 = np.full(granules, -1, np.int32)
        self.copy_thread: I32 = np.zeros(granules, np.int32)
        """Place of the asynchronous copy that will write the granule, -1 for none, and who issued it."""
        self.copying = 0
        """Copies under way: what is issued and has not landed."""
        self.reading = 0
        self.reads: I32 = np.zeros(0, np.int32)
        self.reads_site: I32 = self.reads
        self.reads_thread: I32 = self.reads
        """Of each granule how many bulk stores under way will read it; place and issuer of the last."""

    def settle(self) -> None:
        """A launch has ended: all it did happens before the next."""
        self.write_epoch[self.write_epoch != NEVER] = BEFORE
        self.read_epoch[:] = 0
        if self._strong is not None:
            self._strong.settle()

    def never(self, count: int) -> Bools:
        """Of the first `count` granules: those that no thread has written."""
        none: Bools = self.write_thread[:count] < 0
        return none if self._strong is None else none & self._strong.never(count)

    def postpone(self, warp: int, lanes: Bools) -> None:
        """Some lanes of `warp` release what they did in its last epoch: what other lanes did then is not of
        it, and counts as done in the epoch that begins."""
        clocks = self.clocks
        epoch, number = int(clocks.epoch[warp]) - 1, clocks.base + warp
        if clocks.touched[warp] < epoch:
            return
        clocks.touched[warp] = epoch + 1
        others = np.append(~lanes, np.ones(32, np.bool_))
        # A warp writes to shared memory of its own cluster alone.
        mine = self._part(warp, clocks.near_warps) if self.columns else slice(None)
        epochs, threads = self.write_epoch[mine], self.write_thread[mine]
        at = np.nonzero((epochs == epoch) & (threads >> 6 == number))[0]
        epochs[at[others[threads[at] & 63]]] = epoch + 1
        if self.columns:
            # Rows of other CTAs have other warps in this column; those are not touched.
            mine, column = self._part(warp, self._warps), warp % self._warps
            reads, lane = self.read_epoch[mine, column], self.read_lane[mine, column]
            reads[(reads == epoch) & others[lane]] = epoch + 1
        else:
            at = np.nonzero((self.read_epoch == epoch) & (self.read_warp == number))[0]
            self.read_epoch[at[others[self.read_lane[at]]]] = epoch + 1
        if self._strong is not None:
            self._strong.postpone(warp, lanes)

    def _part(self, warp: int, warps: int) -> slice:
        """The granules of the CTAs that the `warps` warps around a warp are of."""
        number, count = warp // warps, len(self.clocks.epoch) // warps
        size = len(self.write_epoch)
        return slice(size * number // count, size * (number + 1) // count)

    # Every method takes `granule` (n, g), `warp` and `lane` (n,), and gives the first conflict or None.

    def read(
        self, granule: Index, warp: Index, lane: Index, site: int, strong: bool = False
    ) -> Conflict | None:
        """Reads by instruction `site`."""
        found = self._after_writes(granule, warp, lane, "read after write", unwritten=True, strong=strong)
        if strong:
            return found
        at: tuple[Index, ...] = (granule, (warp % self._warps)[:, None]) if self.columns else (granule,)
        self.clocks.touched[warp] = self.clocks.epoch[warp]
        epoch = np.broadcast_to(self.clocks.epoch[warp][:, None], granule.shape)
        lanes = np.broadcast_to(lane[:, None], granule.shape)
        same = self.read_epoch[at] == epoch
        if not self.columns:
            number = (warp + self.clocks.base)[:, None]
            same &= self.read_warp[granule] == number
            self.read_warp[granule] = number
        many = same & (self.read_lane[at] != lanes)
        self.read_epoch[at] = epoch
        self.read_site[at] = site
        self.read_lane[at] = np.where(many, WHOLE, lanes)
        # Of lanes that read one granule together only the last is kept: then it was several.
        shared = self.read_lane[at] != lanes
        if shared.any():
            if self.columns:
                column = np.broadcast_to((warp % self._warps)[:, None], granule.shape)
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
        strong: bool = False,
    ) -> tuple[Conflict | None, Bools | None]:
        """Writes. Second: where several lanes write one granule together (their values must then be equal).
        `copy`: an asynchronous copy issued now; the granules are then under way until `land`. `same()` says
        where the bytes are what lies there already: to write those again harms nobody."""
        found = self._after_writes(
            granule, warp, lane, "write after write", unwritten=False, same=same, strong=strong
        )
        found = found or self._after_reads(granule, warp, lane)
        thread = self._thread(warp, lane)
        self.clocks.touched[warp] = self.clocks.epoch[warp]
        if copy:
            self.copying += granule.size
            self.copy_site[granule] = site
            self.copy_thread[granule] = thread
            twice = self.copy_thread[granule] != thread
        elif strong:
            if self._strong is None:
                self._strong = Shadow(len(self.write_epoch), 0, self.clocks, written=False)
            self._strong._stamp(granule, self.clocks.stamp(warp), thread, site)
            return found, None
        else:
            self._stamp(granule, self.clocks.epoch[warp], thread, site)
            twice = self.write_thread[granule] != thread
        return found, twice if twice.any() else None

    def land(self, granule: Index, warp: Index, lane: Index, site: int) -> None:
        """Copies have ended and their issuer has waited for them: from here on they are its writes."""
        self.copying -= granule.size
        self.copy_site[granule] = -1
        self._stamp(granule, self.clocks.epoch[warp], self._thread(warp, lane), site)

    def _thread(self, warp: Index, lane: Index) -> I32:
        return ((warp + self.clocks.base) * 64 + lane).astype(np.int32)[:, None]

    def _stamp(self, granule: Index, epoch: I32, thread: I32, site: int) -> None:
        self.write_epoch[granule] = epoch[:, None]
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
        strong: bool = False,
    ) -> Conflict | None:
        if self.copying:
            under_way = self.copy_site[granule]
            if under_way.max(initial=-1) >= 0:
                at = tuple(np.argwhere(under_way >= 0)[0])
                issuer = int(self.copy_thread[granule[at]])
                return self._conflict("copy under way", at, granule, warp, lane, issuer, int(under_way[at]))
        epoch = self.write_epoch[granule]
        others = self._strong
        if unwritten and epoch.min(initial=BEFORE) == NEVER:
            none = epoch == NEVER
            if others is not None:
                none &= others.write_epoch[granule] == NEVER
            if none.any():
                at = tuple(np.argwhere(none)[0])
                return self._conflict("unwritten", at, granule, warp, lane, -1, -1)
        if others is not None and not strong:
            others.clocks = self.clocks
            found = others._after_writes(granule, warp, lane, what, False, same)
            if found is not None:
                return found
        late = epoch > BEFORE
        if not late.any():
            return None
        thread = self.write_thread[granule]
        warps = np.broadcast_to(warp[:, None], granule.shape)
        other = np.where(late, thread >> 6, 0)
        bad = late & ~self.clocks.ordered(warps, other, epoch)
        if not bad.any():
            return None
        bad &= (thread != self._thread(warp, lane)) | (lane == WHOLE)[:, None]
        if same is not None and bad.any():
            bad &= ~same()
        if not bad.any():
            return None
        at = tuple(np.argwhere(bad)[0])
        return self._conflict(
            what, at, granule, warp, lane, int(thread[at]), int(self.write_site[granule[at]])
        )

    def _after_reads(self, granule: Index, warp: Index, lane: Index) -> Conflict | None:
        if self.reading:
            busy = self.reads[granule] > 0
            if busy.any():
                at = tuple(np.argwhere(busy)[0])
                thread, site = int(self.reads_thread[granule[at]]), int(self.reads_site[granule[at]])
                return self._conflict("read under way", at, granule, warp, lane, thread, site)
        epoch = self.read_epoch[granule]
        if epoch.max(initial=0) <= BEFORE:
            return None
        base = self.clocks.base
        if self.columns:
            if self._readers is None:
                known = self.clocks.row_of_cta(warp)[:, None, :]
            else:
                cta = granule[:, 0] // self._pitch
                known = self.clocks.readers(warp, cta, self._readers)[:, None, :]
            bad = epoch > known
            if not bad.any():
                return None
            own = np.arange(self.columns) == (warp % self._warps)[:, None]
            same = (self.read_lane[granule] == lane[:, None, None]) & (lane != WHOLE)[:, None, None]
            bad &= ~(own[:, None, :] & same)
            if not bad.any():
                return None
            i, j, column = (int(x) for x in np.argwhere(bad)[0])
            g = int(granule[i, j])
            other = self._reader(int(warp[i]), g, column)
            reader = int(self.read_lane[g, column]) if column < self._warps else ASYNC
            site = int(self.read_site[g, column])
        else:
            warps = np.broadcast_to(warp[:, None], granule.shape)
            late = epoch > BEFORE
            readers = np.where(late, self.read_warp[granule], 0)
            bad = late & ~self.clocks.ordered(warps, readers, epoch)
            same = (self.read_lane[granule] == lane[:, None]) & (lane != WHOLE)[:, None]
            bad &= ~((readers == warps + base) & same)
            if not bad.any():
                return None
            i, j = (int(x) for x in np.argwhere(bad)[0])
            g = int(granule[i, j])
            other, reader, site = int(readers[i, j]), int(self.read_lane[g]), int(self.read_site[g])
        thread = other * 64 + reader
        return self._conflict("write after read", (i, j), granule, warp, lane, thread, site)

    def known_of_readers(self, warp: int, granule: int) -> I32:
        """(columns,): what `warp` knows of those who read the CTA that a granule is of."""
        one = np.array([warp])
        if self._readers is None:
            rows = self.clocks.row_of_cta(one)
        else:
            rows = self.clocks.readers(one, np.array([granule // self._pitch]), self._readers)
        return rows.reshape(-1)

    def _reader(self, warp: int, granule: int, column: int) -> int:
        """The number of who has a column of the reads of a granule."""
        if column >= self._warps:
            return self.clocks.agent(granule // self._pitch, self.clocks.agents - self.columns + column)
        return self.clocks.base + warp // self._warps * self._warps + column

    @staticmethod
    def _conflict(
        what: str, at: tuple[int, ...], granule: Index, warp: Index, lane: Index, thread: int, site: int
    ) -> Conflict:
        i = int(at[0])
        return Conflict(
            what, i, int(granule[at]), int(warp[i]), int(lane[i]),
            thread >> 6 if thread >= 0 else -1, thread & 63 if thread >= 0 else -1, site,
        )  # fmt: skip
