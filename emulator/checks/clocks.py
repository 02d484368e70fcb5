"""What happens before what? Vector clocks, one a warp.

`epoch[w]` counts the releases of warp w; an access is stamped with it. `known[w, v]` is the last epoch of
warp v whose accesses are ordered before what w does now. Lanes of one warp are ordered among each other only
by a barrier too: that is what `known[w, w]` says, and a lane knows its own accesses without it.

Epoch 0 is never, 1 is "before this launch"; warps start in epoch 2. Resident warps are counted from 0, and
have rows; columns (`other` below) are for all warps of the launch, the resident ones from `base` on. Where no
instruction of a kernel orders threads but barriers, `known` has columns for the warps of the own CTA alone
(`full` False): all else is unordered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I32: TypeAlias = npt.NDArray[np.int32]
Index: TypeAlias = npt.NDArray[np.intp]

NEVER, BEFORE, FIRST = 0, 1, 2


@dataclass(frozen=True)
class Mark:
    """What a strong write to a word hands to those who read it: to all threads, and to those of its CTA (for
    whom a fence of scope .cta is enough)."""

    all: I32
    near: I32
    cta: int


class Clocks:
    """Clocks of `ctas` CTAs of `warps` warps each, the first of them being warp `base` of `total`.

    With `full` four more rows a warp travel along: `fenced`, what a fence has made visible to all and any
    later relaxed write therefore publishes; `seen`, what relaxed reads brought and a later fence acquires;
    and both for the own CTA alone. All are handed on by barriers: that `write; fence; barrier; atomic by one
    thread` orders is what code that is right on silicon relies on, though the PTX text promises it only where
    the fence follows the barrier. `marks` are those of the launch, by word."""

    def __init__(
        self,
        ctas: int,
        warps: int,
        full: bool,
        base: int = 0,
        total: int | None = None,
        marks: dict[int, Mark] | None = None,
    ) -> None:
        count = ctas * warps
        self.warps = warps
        self.full = full
        self.base = base
        self.epoch: I32 = np.full(count, FIRST, np.int32)
        width = self._width = (count if total is None else total) if full else warps
        self._state: I32 = np.full((count, width * (5 if full else 1)), BEFORE, np.int32)
        self.known, self._fenced, self._fenced_near, self._seen, self._seen_near = (
            self._state[:, i * width : (i + 1) * width] for i in range(5)
        )
        self._own: Index = base + np.arange(count) if full else np.arange(count) % warps
        self._marks = {} if marks is None else marks

    def ordered(self, warp: Index, other: Index, stamp: I32) -> npt.NDArray[np.bool_]:
        """Whether accesses of warps `other` stamped `stamp` happen before what `warp` does now. One shape."""
        if self.full:
            return np.less_equal(stamp, self.known[warp, other])
        known = self.known[warp, other % self.warps]
        same = (warp + self.base) // self.warps == other // self.warps
        return np.less_equal(stamp, np.where(same, known, BEFORE))

    def row_of_cta(self, warp: Index) -> I32:
        """(n, warps): what each of `warp` knows of the warps of its own CTA."""
        if not self.full:
            return self.known[warp]
        first = warp // self.warps * self.warps + self.base
        mine: I32 = self.known[warp[:, None], first[:, None] + np.arange(self.warps)]
        return mine

    # -- barriers --------------------------------------------------------------------------------------------

    def release(self, warp: Index) -> I32:
        """What `warp` (n,) brings to a barrier now; a new epoch begins."""
        rows: I32 = self._state[warp]
        rows[np.arange(len(warp)), self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        return rows

    def acquire(self, warp: Index, rows: I32) -> None:
        """`warp` (n,) is ordered after what `rows`, one each or one for all, brought."""
        self._state[warp] = np.maximum(self._state[warp], rows)

    def join(self, warps: Index, rows: I32) -> None:
        """All of `warps` meet at a barrier to which they brought `rows`."""
        self.acquire(warps, rows.max(axis=0)[None, :])

    def join_ctas(self, warps: Index) -> None:
        """All warps of some CTAs, `warps` in order, meet at a barrier of their CTA."""
        rows = self.release(warps).reshape(-1, self.warps, self._state.shape[1])
        self.acquire(warps, rows.max(axis=1).repeat(self.warps, axis=0))

    def join_lanes(self, warps: Index) -> None:
        """The lanes of each of `warps` meet at a barrier of their warp."""
        self.known[warps, self._own[warps]] = self.epoch[warps]
        self.epoch[warps] += 1

    # -- words in memory that order (only with `full`): one at a time, for they are few ----------------------

    def stamp(self, warp: Index) -> I32:
        """Stamps of strong writes. A fence and the write behind it are one release: who acquires it is
        ordered after the write too."""
        fenced = self._fenced_near[warp, self._own[warp]] if self.full else self.epoch[warp]
        return np.where(fenced >= FIRST, fenced, self.epoch[warp])

    def fence(self, warp: int, near: bool) -> None:
        """A fence (fence.acq_rel, fence.sc, membar). `near`: of scope .cta."""
        if not self.full:
            return
        seen = self._seen_near if near else self._seen
        np.maximum(self.known[warp], seen[warp], out=self.known[warp])
        row = self.publish(warp)
        self._fenced_near[warp] = row
        if not near:
            self._fenced[warp] = row

    def publish(self, warp: int) -> I32:
        """What a write that releases hands on; a new epoch begins."""
        row: I32 = self.release(np.array([warp]))[0, : self._width]
        return row

    def write_mark(self, warp: int, word: int, row: I32 | None, keep: bool, near: bool) -> None:
        """A strong write to `word`. `row`: what it hands on, of one that releases; `keep`: a
        read-modify-write, which continues a release sequence; `near`: of scope .cta."""
        cta = (warp + self.base) // self.warps
        old = self._marks.get(word) if keep else None
        if row is not None:
            made = Mark(self._fenced[warp].copy() if near else row, row, cta)
        elif self._fenced_near[warp].max() > BEFORE:
            made = Mark(self._fenced[warp].copy(), self._fenced_near[warp].copy(), cta)
        elif old is None:
            self._marks.pop(word, None)
            return
        else:
            made = Mark(self._fenced[warp], self._fenced_near[warp], cta)
        if old is not None:
            older = old.near if old.cta == cta else old.all
            made = Mark(np.maximum(made.all, old.all), np.maximum(made.near, older), cta)
        self._marks[word] = made

    def read_mark(self, warp: int, word: int, acquire: bool, near: bool) -> None:
        """A strong read of `word`."""
        mark = self._marks.get(word)
        if mark is None:
            return
        own = mark.cta == (warp + self.base) // self.warps
        row = mark.near if own else mark.all
        if acquire and (own or not near):
            np.maximum(self.known[warp], row, out=self.known[warp])
        else:
            np.maximum(self._seen[warp], row, out=self._seen[warp])
            if own:
                np.maximum(self._seen_near[warp], row, out=self._seen_near[warp])
