"""Is what an asynchronous unit reads or writes ordered after what others did there, and visible to it?

For TMA and WGMMA, which work beside the warps. Their accesses are checked for the thread that issues them, as
of the issue: order by what its warp knows, visibility by what a proxy fence has handed to the async proxy.
What they wrote is stamped UNDER_WAY, behind which nothing is ordered, until they end; then with the phase of
the mbarrier that counts it (an agent of the clocks), or, of bulk stores, as their issuer's once it has
waited. What they read belongs to an agent (WGMMA), or counts as being read until the issuer has waited (bulk
stores). """

from __future__ import annotations

import numpy as np

from emulator.checks.clocks import BEFORE, I32, NEVER, Index
from emulator.checks.shadow import ASYNC, OBJECT, UNDER_WAY, Conflict, Shadow


def after_writes(
    shadow: Shadow, space: str, granule: Index, warps: Index, reads: bool, what: str, strong: bool = False
) -> Conflict | None:
    """The first of `granule` (g,) whose last write is not ordered before what each of `warps` issues now, or
    not visible to the async proxy. `reads`: then something must have been written. `strong`: it does not race
    with strong writes."""
    if shadow.copying:
        flying = shadow.copy_site[granule]
        if flying.max(initial=-1) >= 0:
            at = int(np.argmax(flying >= 0))
            return _conflict(
                "copy under way", granule, at, warps[0], int(shadow.copy_thread[granule[at]]), int(flying[at])
            )
    epoch = shadow.write_epoch[granule]
    if reads and epoch.min(initial=BEFORE) == NEVER:
        none = epoch == NEVER
        if shadow._strong is not None:
            none &= shadow._strong.write_epoch[granule] == NEVER
        if none.any():
            return _conflict("unwritten", granule, int(np.argmax(none)), warps[0], -1, -1)
    if shadow._strong is not None and not strong:
        found = after_writes(strong_of(shadow), space, granule, warps, False, what)
        if found is not None:
            return found
    if epoch.max(initial=BEFORE) <= BEFORE:
        return None
    thread = shadow.write_thread[granule]
    judged: dict[tuple[int, bool, int], tuple[int, str] | None] = {}
    for who, stamp, at in _kinds(thread, epoch):
        if stamp <= BEFORE:
            continue
        key = who >> 6, who & 63 >= ASYNC, stamp
        if key not in judged:
            judged[key] = _judge(shadow, space, who, stamp, warps)
        bad = judged[key]
        if bad is not None:
            warp, verdict = bad
            return _conflict(verdict or what, granule, at, warp, who, int(shadow.write_site[granule[at]]))
    return None


def _kinds(thread: I32, epoch: I32) -> list[tuple[int, int, int]]:
    """(who, when, first place) of each kind of write: a tile is the work of few, and each is judged once."""
    if len(thread) and (thread == thread[0]).all() and (epoch == epoch[0]).all():
        return [(int(thread[0]), int(epoch[0]), 0)]
    kinds, first = np.unique((thread.astype(np.int64) << 32) | epoch, return_index=True)
    return [(k >> 32, k & 0xFFFFFFFF, at) for k, at in zip(kinds.tolist(), first.tolist(), strict=True)]


def _judge(shadow: Shadow, space: str, thread: int, stamp: int, warps: Index) -> tuple[int, str] | None:
    """(warp, "" or "no proxy fence") where a write is unordered or unseen."""
    clocks = shadow.clocks
    other = thread >> 6
    known = clocks.seen(warps, other) >= stamp
    asynchronous = thread & 63 >= ASYNC
    # A thread knows its own writes without a barrier.
    if stamp < UNDER_WAY and not asynchronous:
        known |= warps + clocks.base == other
    if not known.all():
        return int(warps[int(np.argmin(known))]), ""
    if asynchronous or not clocks.proxies:
        return None
    seen = clocks.seen(warps, other, clocks.handed_to_async(space)) >= stamp
    return None if seen.all() else (int(warps[int(np.argmin(seen))]), "no proxy fence")


def after_reads(shadow: Shadow, granule: Index, warp: int, lane: int) -> Conflict | None:
    """The first of `granule` (of shared memory: of one CTA) that someone may still read, or has read
    unordered before this thread."""
    n = len(granule)
    if n and not shadow.reading and shadow.columns:
        # What each reader did last there, all together, against what this warp knows of it.
        last = shadow.read_epoch[granule].max(axis=0)
        if (last <= shadow.known_of_readers(warp, int(granule[0]))).all():
            return None
    return shadow._after_reads(granule[:, None], np.full(n, warp), np.full(n, lane))


def write(
    shadow: Shadow, space: str, granule: Index, warp: int, lane: int, site: int, number: int
) -> Conflict | None:
    """A write under way into `granule`, issued by a thread; `number`: the agent or warp it will belong to."""
    found = after_writes(shadow, space, granule, np.array([warp]), False, "write after write")
    found = found or after_reads(shadow, granule, warp, lane)
    shadow.write_epoch[granule] = UNDER_WAY
    shadow.write_thread[granule] = number * 64 + ASYNC
    shadow.write_site[granule] = site
    return found


def landed(shadow: Shadow, granule: Index, number: int, site: int, stamp: int, lane: int = ASYNC) -> None:
    """A write has ended, as of `stamp` of the agent or warp that it belongs to."""
    mine = granule[
        (shadow.write_thread[granule] == number * 64 + ASYNC) & (shadow.write_site[granule] == site)
    ]
    shadow.write_epoch[mine] = stamp
    shadow.write_thread[mine] = number * 64 + lane


def strong_of(shadow: Shadow) -> Shadow:
    """Its watch over strong writes: those do not race with each other."""
    if shadow._strong is None:
        shadow._strong = Shadow(len(shadow.write_epoch), 0, shadow.clocks, written=False)
    shadow._strong.clocks = shadow.clocks
    return shadow._strong


def reduce(
    shadow: Shadow, space: str, granule: Index, warp: int, lane: int, site: int, number: int
) -> Conflict | None:
    """As `write`, of a reduction: those of several do not race with each other (PTX ISA 9.7.9.25.5)."""
    found = after_writes(shadow, space, granule, np.array([warp]), True, "write after write", strong=True)
    found = found or after_reads(shadow, granule, warp, lane)
    strong = strong_of(shadow)
    strong.write_epoch[granule] = UNDER_WAY
    strong.write_thread[granule] = number * 64 + ASYNC
    strong.write_site[granule] = site
    return found


def begin_read(
    shadow: Shadow, space: str, granule: Index, warp: int, lane: int, site: int
) -> Conflict | None:
    """A read under way, issued by a thread."""
    found = after_writes(shadow, space, granule, np.array([warp]), True, "read after write")
    if not len(shadow.reads):
        for name in ("reads", "reads_site", "reads_thread"):
            setattr(shadow, name, np.zeros(len(shadow.write_epoch), np.int32))
    shadow.reading += 1
    np.add.at(shadow.reads, granule, 1)
    shadow.reads_site[granule] = site
    shadow.reads_thread[granule] = (warp + shadow.clocks.base) * 64 + lane
    return found


def end_read(shadow: Shadow, granule: Index, warp: int, lane: int, site: int) -> None:
    """It has ended, and its issuer has waited for it: it is a read of that thread's, as of now."""
    shadow.reading -= 1
    np.add.at(shadow.reads, granule, -1)
    clocks = shadow.clocks
    clocks.touched[warp] = clocks.epoch[warp]
    if shadow.columns:
        column = warp % shadow._warps
        shadow.read_epoch[granule, column] = clocks.epoch[warp]
        shadow.read_lane[granule, column] = lane
        shadow.read_site[granule, column] = site


def agent_read(shadow: Shadow, granule: Index, slot: int, stamp: int, site: int) -> None:
    """A read by the agent that has the reader's column `slot`, as of its `stamp`."""
    shadow.read_epoch[granule, slot] = stamp
    shadow.read_site[granule, slot] = site


def place_object(shadow: Shadow, granule: Index, number: int, site: int) -> None:
    """An mbarrier lies in `granule`: nobody may touch its bytes but through it."""
    shadow.write_epoch[granule] = UNDER_WAY
    shadow.write_thread[granule] = number * 64 + OBJECT
    shadow.write_site[granule] = site


def _conflict(what: str, granule: Index, at: int, warp: int, thread: int, site: int) -> Conflict:
    return Conflict(
        what, at, int(granule[at]), int(warp), ASYNC,
        thread >> 6 if thread >= 0 else -1, thread & 63 if thread >= 0 else -1, site,
    )  # fmt: skip


__all__ = [
    "after_reads",
    "after_writes",
    "agent_read",
    "begin_read",
    "end_read",
    "landed",
    "place_object",
    "reduce",
    "strong_of",
    "write",
]
