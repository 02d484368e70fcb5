"""Which bulk copies and tensor copies are under way, and when do their bytes land?

Loads write shared memory (or reduce what lies there) and are counted by an mbarrier: they end by themselves,
at any moment. Stores and reductions into global memory read shared memory, and belong to a bulk group of the
thread that issued them: .read waits for the reading, the other form for all of it. Whatever the order, the
bytes are under way in the eyes of the checks until someone has waited. """

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.checks import async_shadow
from emulator.machine import conflicts
from emulator.machine.copies import load, store
from emulator.machine.units import Idle, lands_at_once
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index
    from emulator.checks.shadow import Shadow
    from emulator.machine.mbarriers import Mbarrier
    from emulator.machine.memory import Buffer
    from emulator.machine.wave import Wave

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Apply: TypeAlias = Callable[[U8, U8], U8]
"""A reduction's (what is there, what comes) -> what is there then, as bytes."""


@dataclass
class Load:
    """A copy into the shared memory of one CTA (of a multicast: one of its parts)."""

    site: int
    warp: int
    barrier: Mbarrier
    offset: I64
    """(n,) into the data of shared memory."""
    data: U8 | None
    """(n, 16); None: of `source`, when it lands."""
    granule: Index
    source: Source | None = None
    apply: Apply | None = None
    """Of a reduction."""


@dataclass
class Source:
    """Shared memory that a copy under way reads."""

    lane: int
    offset: I64
    granule: Index


@dataclass
class Piece:
    """Bytes of a store in one buffer: rows of `width` bytes at `offset` (n,) of its data, taken from `data`
    (boxes' bytes, flat) at `at` (n,)."""

    buffer: Buffer
    shadow: Shadow
    offset: I64
    width: int
    at: I64
    granule: Index


@dataclass
class Store:
    """A copy, or reduction, into global memory."""

    site: int
    warp: int
    lane: int
    group: int
    source: Source
    pieces: Sequence[Piece]
    apply: Apply | None
    """Of a reduction."""
    data: U8 | None = None
    written: bool = False
    released: bool = False
    """The thread has waited for its reading."""


class Bulk(Idle):
    """The bulk copies of all CTAs of a wave."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._loads: list[Load] = []
        self._stores: dict[tuple[int, int], list[Store]] = {}
        self._group: dict[tuple[int, int], int] = {}

    # -- into shared memory -----------------------------------------------------------------------------

    def issue_load(self, made: Load, lane: int) -> None:
        """A load begins."""
        w = self._w
        write = async_shadow.write if made.apply is None else async_shadow.reduce
        found = write(w.shared_shadow, "shared", made.granule, made.warp, lane, made.site, made.barrier.agent)
        conflicts.shared_conflict(w, found, made.site)
        if lands_at_once(w, copy=True):
            self._land(made)
        else:
            self._loads.append(made)

    def _land(self, made: Load) -> None:
        w = self._w
        b = made.barrier
        if b.cta in w.clusters.gone:
            text = f"its bytes land in CTA {w.launch.cta_name(w, b.cta)}, which has ended"
            w.launch.fault(w, FaultKind.PEER, made.site, text, warp=made.warp)
            return
        data = made.data
        if data is None:
            assert made.source is not None
            data = load(w.shared.data, made.source.offset, 16)
            async_shadow.end_read(
                w.shared_shadow, made.source.granule, made.warp, made.source.lane, made.site
            )
        shadow = w.shared_shadow
        if made.apply is not None:
            data = made.apply(load(w.shared.data, made.offset, 16), data)
            shadow = async_shadow.strong_of(shadow)
        store(w.shared.data, made.offset, data)
        stamp = w.mbarriers.came(b, data.size, made.warp, made.site)
        async_shadow.landed(shadow, made.granule, b.agent, made.site, stamp)

    def force(self) -> bool:
        """See Unit."""
        wanted = self._w.mbarriers.waited_for()
        now = [made for made in self._loads if made.barrier.agent in wanted]
        if not now:
            return False
        self._loads = [made for made in self._loads if made.barrier.agent not in wanted]
        for made in now:
            self._land(made)
        return True

    def tick(self) -> None:
        """See Unit."""
        w = self._w
        if self._loads and w.rng.random() < 0.3:
            self._land(self._loads.pop(int(w.rng.integers(len(self._loads)))))
        for mine in self._stores.values():
            for made in mine:
                if not made.written and w.rng.random() < 0.05:
                    self._read(made)
                    if w.rng.random() < 0.5:
                        self._write(made)

    # -- out of shared memory ---------------------------------------------------------------------------

    def issue_store(self, made: Store) -> None:
        """A store or reduction begins; `group` is filled in here."""
        w = self._w
        key = made.warp, made.lane
        made.group = self._group.get(key, 0)
        source = made.source
        found = async_shadow.begin_read(
            w.shared_shadow, "shared", source.granule, made.warp, made.lane, made.site
        )
        conflicts.shared_conflict(w, found, made.site)
        number = made.warp + w.clocks.base
        for piece in made.pieces:
            write = async_shadow.write if made.apply is None else async_shadow.reduce
            found = write(piece.shadow, "global", piece.granule, made.warp, made.lane, made.site, number)
            if found is not None and found.what == "write after write" and self._same(made, piece):
                continue
            conflicts.global_conflict(w, found, made.site, piece.buffer)
        if lands_at_once(w, copy=False):
            self._read(made)
            self._write(made)
        self._stores.setdefault(key, []).append(made)

    def _same(self, made: Store, piece: Piece) -> bool:
        """Whether a store writes what is there, or what one under way writes there: that harms nobody."""
        if made.apply is not None:
            return False
        now = self._bytes(made, piece)
        there = load(piece.buffer.data, piece.offset, piece.width)
        if np.array_equal(now, there):
            return True
        for mine in self._stores.values():
            for other in mine:
                for its in other.pieces:
                    if its.buffer is piece.buffer and np.array_equal(its.offset, piece.offset):
                        return its.width == piece.width and np.array_equal(self._bytes(other, its), now)
        return False

    def _bytes(self, made: Store, piece: Piece) -> U8:
        """What a store writes there, as far as is known now."""
        data = made.data
        if data is None:
            data = load(self._w.shared.data, made.source.offset, 16).reshape(-1)
        found: U8 = data[piece.at[:, None] + np.arange(piece.width)]
        return found

    def commit(self) -> None:
        """The active lanes close a bulk group."""
        w = self._w
        for row, lane in zip(*w.active(), strict=True):
            key = int(w.warps[row]), int(lane)
            self._group[key] = self._group.get(key, 0) + 1

    def wait(self, pending: int, read: bool) -> None:
        """The active lanes wait until at most `pending` of their groups are under way (`read`: still
        read)."""
        w = self._w
        w.counters.add("waits.bulk_read" if read else "waits.bulk", w.warps)
        if not self._stores:
            return
        for row, lane in zip(*w.active(), strict=True):
            key = int(w.warps[row]), int(lane)
            left = []
            for made in self._stores.get(key, ()):
                covered = made.group < self._group.get(key, 0) - pending
                if covered:
                    self._end(made, read)
                if read or not covered:
                    left.append(made)
            self._stores[key] = left

    def _end(self, made: Store, read: bool) -> None:
        w = self._w
        self._read(made)
        if not made.released:
            made.released = True
            async_shadow.end_read(w.shared_shadow, made.source.granule, made.warp, made.lane, made.site)
        if read:
            return
        self._write(made)
        number, epoch = made.warp + w.clocks.base, int(w.clocks.epoch[made.warp])
        w.clocks.touched[made.warp] = epoch
        for piece in made.pieces:
            shadow = piece.shadow if made.apply is None else async_shadow.strong_of(piece.shadow)
            async_shadow.landed(shadow, piece.granule, number, made.site, epoch, made.lane)

    def _read(self, made: Store) -> None:
        if made.data is None:
            made.data = load(self._w.shared.data, made.source.offset, 16).reshape(-1)

    def _write(self, made: Store) -> None:
        if made.written:
            return
        made.written = True
        assert made.data is not None
        for piece in made.pieces:
            data = self._bytes(made, piece)
            if made.apply is not None:
                data = made.apply(load(piece.buffer.data, piece.offset, piece.width), data)
            store(piece.buffer.data, piece.offset, data)

    # -- ends -------------------------------------------------------------------------------------------

    def exited(self, site: int) -> None:
        """See Unit."""
        w = self._w
        if not self._stores:
            return
        for row, lane in zip(*w.active(), strict=True):
            key = int(w.warps[row]), int(lane)
            for made in self._stores.get(key, ()):
                if made.released:
                    continue
                committed = made.group < self._group.get(key, 0)
                text = (
                    f"it ends while its bulk store from {w.kernel.where(made.site)} may still read shared"
                    f" memory: "
                    + ("no cp.async.bulk.wait_group covers it" if committed else "it is in no group")
                )
                w.launch.fault(w, FaultKind.OUTSTANDING_WORK, site, text, warp=key[0], lane=key[1])
                self._end(made, read=True)

    def finish(self) -> None:
        """See Unit: what is left ends with the wave."""
        for mine in self._stores.values():
            for made in mine:
                self._read(made)
                self._write(made)
        self._stores.clear()
        self._loads.clear()


__all__ = ["Bulk", "Load", "Piece", "Source", "Store"]
