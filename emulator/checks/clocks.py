"""What happens before what? Vector clocks, one a warp.

`epoch[w]` counts the releases of warp w; an access is stamped with it. `known[w, v]` is the last epoch of
warp v whose accesses are ordered before what w does now. Lanes of one warp are ordered among each other only
by a barrier too: that is what `known[w, w]` says, and a lane knows its own accesses without it.

Epoch 0 is never, 1 is "before this launch"; warps start in epoch 2. Resident warps are counted from 0, and
have rows; columns (`other` below) are for all warps of the launch, the resident ones from `base` on. Where no
instruction of a kernel orders threads but barriers, `known` has columns for the warps of the own CTA (or
cluster) alone (`full` False): all else is unordered.

Agents are what works beside the warps: an mbarrier, whose stamps are its phases, orders what the copies wrote
that it counts; a warpgroup's tensor core, whose stamps are its groups, what they read. They have columns, and
no rows: who observes a phase or waits for a group knows it, and hands it on. Their numbers (`agent`) follow
those of all warps.

The async proxy (tensor copies, bulk copies, WGMMA) sees what threads wrote only behind a fence.proxy.async.
So with `proxies` two more rows a warp travel along, for shared and for global memory: the last epoch of each
other warp whose writes such a fence has handed to the async proxy. A fence takes over what is known then, and
what barriers carry is carried in these rows too: so it may stand anywhere on the way (PTX ISA 8.5,
9.7.15.4)."""

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
    base: int
    """Of the wave that wrote it."""


class Clocks:
    """Clocks of `ctas` CTAs of `warps` warps each, the first of them being warp `base` of `total`.

    With `full` four more rows a warp travel along: `fenced`, what a fence has made visible to all and any
    later relaxed write therefore publishes; `seen`, what relaxed reads brought and a later fence acquires;
    and both for the own CTA alone. All are handed on by barriers: that `write; fence; barrier; atomic by one
    thread` orders is what code that is right on silicon relies on, though the PTX text promises it only where
    the fence follows the barrier. `marks` are those of the launch, by word.

    `agents` of each CTA; `domain`: CTAs of a cluster, which know of each other. `room`: CTAs of the largest
    wave of the launch: the rows of all its waves are alike, since marks carry them from one to the next."""

    def __init__(
        self,
        ctas: int,
        warps: int,
        full: bool,
        base: int = 0,
        total: int | None = None,
        marks: dict[int, Mark] | None = None,
        agents: int = 0,
        domain: int = 1,
        proxies: bool = False,
        room: int = 0,
    ) -> None:
        count = ctas * warps
        self.warps = warps
        self.full = full
        self.base = base
        self.total: int = base + count if total is None else total
        self.agents = agents
        self.near_warps = warps * domain
        """Of a cluster."""
        self._near_agents = agents * domain
        self.plain = not agents and domain == 1
        self.epoch: I32 = np.full(count, FIRST, np.int32)
        self.touched: I32 = np.zeros(count, np.int32)
        """The epoch in which each warp last touched watched memory."""
        self._of_warps: int = (count if total is None else total) if full else self.near_warps
        width = self._width = self._of_warps + (agents * max(ctas, room) if full else self._near_agents)
        self.proxies = proxies
        core = self._core = width * (3 if proxies else 1)
        self._state: I32 = np.full((count, core * (5 if full else 1)), BEFORE, np.int32)
        self._handed, self._fenced, self._fenced_near, self._seen, self._seen_near = (
            self._state[:, i * core : (i + 1) * core] for i in range(5)
        )
        self.known = self._state[:, :width]
        self._proxy = {
            "shared": self._state[:, width : 2 * width], "global": self._state[:, 2 * width : 3 * width]
        }  # fmt: skip
        self._own: Index = base + np.arange(count) if full else np.arange(count) % self.near_warps
        self._marks = {} if marks is None else marks

    def agent(self, cta: int, slot: int) -> int:
        """The number of an agent of a resident CTA."""
        return self.total + cta * self.agents + slot

    def column(self, other: int) -> int:
        """Where rows have a warp of the launch, or an agent."""
        if other >= self.total:
            place = other - self.total
            return self._of_warps + (place if self.full else place % self._near_agents)
        return other if self.full else other % self.near_warps

    def ordered(
        self, warp: Index, other: Index, stamp: I32, rows: I32 | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether accesses of warps `other` stamped `stamp` happen before what `warp` does now. One shape.
        `rows`: other rows than what is known."""
        known = self.known if rows is None else rows
        if self.full:
            return np.less_equal(stamp, known[warp, other])
        if self.plain:
            seen = known[warp, other % self.warps]
            same = (warp + self.base) // self.warps == other // self.warps
            return np.less_equal(stamp, np.where(same, seen, BEFORE))
        near = self.near_warps
        column, group = other % near, (other - self.base) // near
        if self._near_agents:
            agent = other >= self.total
            place = other - self.total
            column = np.where(agent, near + place % self._near_agents, column)
            group = np.where(agent, place // self._near_agents, group)
        seen = np.where(warp // near == group, known[warp, column], BEFORE)
        return np.less_equal(stamp, seen)

    def handed_to_async(self, space: str) -> I32:
        """The rows of what the async proxy may read of what threads wrote to a space."""
        return self._proxy[space]

    def readers(self, warp: Index, cta: Index | None, columns: Index) -> I32:
        """(n, columns): what each of `warp` knows of `columns` (ctas, k) of the CTA `cta` (its own)."""
        which = columns[warp // self.warps if cta is None else cta]
        found: I32 = self.known[warp[:, None], which]
        return found

    def reader_columns(self, ctas: int, near: int, slots: int, first: int) -> Index:
        """(ctas, near * warps + slots): where rows have the warps of each CTA (of `near` CTAs, its cluster,
        where others may read its memory too) and its agents from slot `first` on."""
        found = np.empty((ctas, near * self.warps + slots), np.intp)
        for cta in range(ctas):
            start = self.base + cta // near * near * self.warps
            warps = [self.column(start + i) for i in range(near * self.warps)]
            found[cta] = warps + [self.column(self.agent(cta, first + i)) for i in range(slots)]
        return found

    def row_of_cta(self, warp: Index) -> I32:
        """(n, warps): what each of `warp` knows of the warps of its own CTA."""
        if not self.full and self.plain:
            return self.known[warp]
        first = self._own[warp // self.warps * self.warps]
        mine: I32 = self.known[warp[:, None], first[:, None] + np.arange(self.warps)]
        return mine

    # -- agents and the async proxy ---------------------------------------------------------------------

    def nothing(self) -> I32:
        """A row that knows nothing."""
        return np.full(self._state.shape[1], BEFORE, np.int32)

    def know(self, warp: int, number: int, stamp: int) -> None:
        """`warp` has seen that agent `number` came to `stamp`."""
        column = self.column(number)
        self.known[warp, column] = max(int(self.known[warp, column]), stamp)

    def knows(self, warp: int, other: int, stamp: int) -> bool:
        """Whether what `other` stamped happens before what `warp` does now."""
        if not self.full and warp // self.near_warps != self._domain(other):
            return stamp <= BEFORE
        return bool(self.known[warp, self.column(other)] >= stamp)

    def seen(self, warp: Index, other: int, rows: I32 | None = None) -> I32:
        """(n,) of one warp or agent `other`, what each of `warp` knows. `rows`: see ordered."""
        found: I32 = (self.known if rows is None else rows)[warp, self.column(other)]
        if self.full:
            return found
        return np.where(warp // self.near_warps == self._domain(other), found, BEFORE)

    def _domain(self, other: int) -> int:
        """Among the resident ones, the cluster of a warp of the launch or an agent."""
        if other >= self.total:
            return (other - self.total) // self._near_agents
        return (other - self.base) // self.near_warps

    def agents_only(self, row: I32) -> I32:
        """Of a row, what is known of agents alone."""
        found = self.nothing()
        found[self._of_warps : self._width] = row[self._of_warps : self._width]
        return found

    def proxy_fence(self, warp: int, spaces: tuple[str, ...]) -> None:
        """What `warp` knows of, and did itself, is handed to the async proxy; a new epoch begins."""
        row = self.known[warp].copy()
        row[self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        if not self.proxies:
            return
        for space in spaces:
            np.maximum(self._proxy[space][warp], row, out=self._proxy[space][warp])

    # -- barriers ---------------------------------------------------------------------------------------

    def release(self, warp: Index) -> I32:
        """What `warp` (n,) brings to a barrier now; a new epoch begins."""
        rows: I32 = self._state[warp]
        rows[np.arange(len(warp)), self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        return rows

    def release_one(self, warp: int) -> I32:
        """The same of one warp."""
        row: I32 = self._state[warp].copy()
        row[self._own[warp]] = self.epoch[warp]
        self.epoch[warp] += 1
        return row

    def acquire_one(self, warp: int, row: I32) -> None:
        """One warp is ordered after what `row` brought."""
        np.maximum(self._state[warp], row, out=self._state[warp])

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

    # -- words in memory that order (only with `full`): one at a time, for they are few -----------------

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
        np.maximum(self._handed[warp], seen[warp], out=self._handed[warp])
        row = self.publish(warp)
        self._fenced_near[warp] = row
        if not near:
            self._fenced[warp] = row

    def publish(self, warp: int) -> I32:
        """What a write that releases hands on; a new epoch begins."""
        return self.release_one(warp)[: self._core]

    def write_mark(self, warp: int, word: int, row: I32 | None, keep: bool, near: bool) -> None:
        """A strong write to `word`. `row`: what it hands on, of one that releases; `keep`: a
        read-modify-write, which continues a release sequence; `near`: of scope .cta."""
        cta = (warp + self.base) // self.warps
        old = self._marks.get(word) if keep else None
        if row is not None:
            made = Mark(self._fenced[warp].copy() if near else row, row, cta, self.base)
        elif self._fenced_near[warp].max() > BEFORE:
            made = Mark(self._fenced[warp].copy(), self._fenced_near[warp].copy(), cta, self.base)
        elif old is None:
            self._marks.pop(word, None)
            return
        else:
            made = Mark(self._fenced[warp], self._fenced_near[warp], cta, self.base)
        if old is not None:
            older = self._still(old, old.near if old.cta == cta else old.all)
            all_ = np.maximum(made.all, self._still(old, old.all))
            made = Mark(all_, np.maximum(made.near, older), cta, self.base)
        self._marks[word] = made

    def read_mark(self, warp: int, word: int, acquire: bool, near: bool) -> None:
        """A strong read of `word`."""
        mark = self._marks.get(word)
        if mark is None:
            return
        own = mark.cta == (warp + self.base) // self.warps
        row = self._still(mark, mark.near if own else mark.all)
        if acquire and (own or not near):
            np.maximum(self._handed[warp], row, out=self._handed[warp])
        else:
            np.maximum(self._seen[warp], row, out=self._seen[warp])
            if own:
                np.maximum(self._seen_near[warp], row, out=self._seen_near[warp])

    def _still(self, mark: Mark, row: I32) -> I32:
        """What a row of a mark still says. Agents are those of the resident CTAs: of an earlier wave's
        nothing is left to order."""
        if not self.agents or mark.base == self.base:
            return row
        row = row.copy()
        row[self._of_warps : self._width] = BEFORE
        return row
