"""What happens before what? Vector clocks, one a warp.

`epoch[w]` counts the releases of warp w; an access is stamped with it. `known[w, v]` is the last epoch of
warp v whose accesses are ordered before what w does now. Lanes of one warp are ordered among each other only
by a barrier too: `known[w, w]` is always one less than `epoch[w]`, and a lane knows its own accesses without
it.

Epoch 0 is never, 1 is "before this launch"; warps start in epoch 2. Where no instruction of a kernel orders
CTAs among each other, `known` has columns for the warps of the own CTA alone (`full` False): all else is
unordered.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I32: TypeAlias = npt.NDArray[np.int32]
Index: TypeAlias = npt.NDArray[np.intp]

NEVER, BEFORE, FIRST = 0, 1, 2


class Clocks:
    """Clocks of `ctas` CTAs of `warps` warps each.

    With `full` two more rows a warp travel along: `fenced`, what a fence has made visible to all and any
    later relaxed write therefore publishes; `seen`, what relaxed reads brought and a later fence acquires.
    Both are handed on by barriers: that `write; fence; barrier; atomic by one thread` orders is what code
    that is right on silicon relies on, though the PTX text promises it only where the fence follows the
    barrier.
    """

    def __init__(self, ctas: int, warps: int, full: bool) -> None:
        count = ctas * warps
        self.warps = warps
        self.full = full
        self.epoch: I32 = np.full(count, FIRST, np.int32)
        self._width = count if full else warps
        self._state: I32 = np.full((count, self._width * (3 if full else 1)), BEFORE, np.int32)
        self.known: I32 = self._state[:, : self._width]
        self._fenced = self._state[:, self._width : 2 * self._width]
        self._seen = self._state[:, 2 * self._width :]
        self._own: Index = np.arange(count) if full else np.arange(count) % warps
        self._marks: dict[int, I32] = {}

    def ordered(self, warp: Index, other: Index, stamp: I32) -> npt.NDArray[np.bool_]:
        """Whether accesses of warps `other` stamped `stamp` happen before what `warp` does now. One shape."""
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
        mine: I32 = self.known[warp[:, None], first[:, None] + np.arange(self.warps)]
        return mine

    # -- barriers -----------------------------------------------------------------------------------------

    def release(self, warp: Index) -> I32:
        """What `warp` (n,) brings to a barrier now; a new epoch begins."""
        rows: I32 = self._state[warp]
        rows[np.arange(len(warp)), self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        self.known[warp, self._own[warp]] = self.epoch[warp] - 1
        return rows

    def acquire(self, warp: Index, rows: I32) -> None:
        """`warp` (n,) is ordered after what `rows`, one each or one for all, brought."""
        self._state[warp] = np.maximum(self._state[warp], rows)
        self.known[warp, self._own[warp]] = self.epoch[warp] - 1

    def join(self, warps: Index, rows: I32) -> None:
        """All of `warps` meet at a barrier to which they brought `rows`."""
        self.acquire(warps, rows.max(axis=0)[None, :])

    # -- words in memory that order (only with `full`): one at a time, for they are few --------------------

    def fence(self, warp: int) -> None:
        """A fence (fence.acq_rel, fence.sc, membar)."""
        if not self.full:
            return
        np.maximum(self.known[warp], self._seen[warp], out=self.known[warp])
        self.known[warp, self._own[warp]] = self.epoch[warp] - 1
        one = np.array([warp])
        self._fenced[warp] = self.release(one)[0, : self._width]

    def write_mark(self, warp: int, address: int, release: bool, keep: bool) -> None:
        """A strong write to `address`; `keep`: a read-modify-write, which continues a release sequence."""
        if not self.full:
            return
        if release:
            row = self.release(np.array([warp]))[0, : self._width]
        else:
            row = self._fenced[warp].copy()
        old = self._marks.get(address) if keep else None
        self._marks[address] = row if old is None else np.maximum(row, old)

    def read_mark(self, warp: int, address: int, acquire: bool) -> None:
        """A strong read of `address`."""
        row = self._marks.get(address)
        if row is None:
            return
        to = self.known if acquire else self._seen
        np.maximum(to[warp], row, out=to[warp])
        self.known[warp, self._own[warp]] = self.epoch[warp] - 1
