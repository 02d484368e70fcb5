"""What happens before what? Vector clocks, one a warp.

`epoch[w]` counts the releases of warp w; an access is stamped with it. `known[w, v]` is the last epoch of warp v
whose accesses are ordered before what w does now. Lanes of one warp are ordered among each other only by a
barrier too: `known[w, w]` is always one less than `epoch[w]`, and a lane knows its own accesses without it.

Epoch 0 is never, 1 is "before this launch"; warps start in epoch 2. Where no instruction of a kernel orders CTAs among
each other, `known` has columns for the warps of the own CTA alone (`full` False): all else is unordered.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I32: TypeAlias = npt.NDArray[np.int32]
Index: TypeAlias = npt.NDArray[np.intp]

NEVER, BEFORE, FIRST = 0, 1, 2


class Clocks:
    """Clocks of `ctas` CTAs of `warps` warps each."""

    def __init__(self, ctas: int, warps: int, full: bool) -> None:
        count = ctas * warps
        self.warps = warps
        self.full = full
        self.epoch: I32 = np.full(count, FIRST, np.int32)
        self.known: I32 = np.full((count, count if full else warps), BEFORE, np.int32)
        self._own: Index = np.arange(count) if full else np.arange(count) % warps
        # What a fence has made ready to be released by a later relaxed write, and what relaxed reads brought
        # that a later fence will acquire (PTX ISA, memory consistency model: release and acquire patterns).
        self._fenced: dict[int, I32] = {}
        self._seen: dict[int, I32] = {}
        self._marks: dict[int, I32] = {}

    def ordered(self, warp: Index, other: Index, stamp: I32) -> npt.NDArray[np.bool_]:
        """Whether accesses of warps `other` stamped `stamp` happen before what `warp` does now (one shape)."""
        if self.full:
            return np.less_equal(stamp, self.known[warp, other])
        known = self.known[warp, other % self.warps]
        same = warp // self.warps == other // self.warps
        return np.less_equal(stamp, np.where(same, known, BEFORE))

    def row_of_cta(self, warp: Index) -> I32:
        """(n, warps): what each of `warp` knows of the warps of its own CTA."""
        if not self.full:
            return self.known[warp]
        first = warp // self.warps * self.warps
        return self.known[warp[:, None], first[:, None] + np.arange(self.warps)]

    # -- events -----------------------------------------------------------------------------------------

    def release(self, warp: Index) -> I32:
        """What `warp` (n,) publishes now: rows of `known` with its present epoch; a new epoch begins."""
        rows = self.known[warp].copy()
        rows[np.arange(len(warp)), self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        self.known[warp, self._own[warp]] = self.epoch[warp] - 1
        return rows

    def acquire(self, warp: Index, rows: I32) -> None:
        """`warp` (n,) is ordered after what `rows` (n, columns), or one row for all, published."""
        own = self._own[warp]
        self.known[warp] = np.maximum(self.known[warp], rows)
        self.known[warp, own] = self.epoch[warp] - 1

    def join(self, warps: Index, rows: I32) -> None:
        """All of `warps` meet at a barrier to which they brought `rows`."""
        self.acquire(warps, rows.max(axis=0)[None, :])

    # -- words in memory that order: one at a time, for they are few ---------------------------------------

    def fence(self, warp: int) -> None:
        """A fence (fence.acq_rel, membar): releases what later relaxed writes publish, acquires what earlier
        relaxed reads saw."""
        one = np.array([warp])
        seen = self._seen.pop(warp, None)
        if seen is not None:
            self.acquire(one, seen[None, :])
        self._fenced[warp] = self.release(one)[0]

    def write_mark(self, warp: int, address: int, release: bool, keep: bool) -> None:
        """A strong write to `address`; `keep`: a read-modify-write, which continues a release sequence."""
        row = self.release(np.array([warp]))[0] if release else self._fenced.get(warp)
        old = self._marks.get(address) if keep else None
        if row is None:
            if not keep:
                self._marks.pop(address, None)
            return
        self._marks[address] = row if old is None else np.maximum(row, old)

    def read_mark(self, warp: int, address: int, acquire: bool) -> None:
        """A strong read of `address`."""
        row = self._marks.get(address)
        if row is None:
            return
        if acquire:
            self.acquire(np.array([warp]), row[None, :])
        else:
            seen = self._seen.get(warp)
            self._seen[warp] = row if seen is None else np.maximum(seen, row)
