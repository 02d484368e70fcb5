"""Which CTAs form a cluster, when do they meet at its barrier, and may one end while another still needs it?

CTAs of a cluster are resident together, one after the other by rank. A peer's shared memory and mbarriers may
be touched only while the peer lives: an access that comes too late is seen directly; one that came in time by
luck, since nothing orders it before the peer's end, is seen at that end. """

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emulator.machine.units import Idle
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import I32
    from emulator.machine.wave import Array, Wave

Bools = npt.NDArray[np.bool_]


def special_registers(w: Wave, linear: Array) -> None:
    """%clusterid and its kin, of each warp; `linear`: its CTA's number."""
    (gx, gy, _), (cx, cy, cz) = w.launch.grid, w.launch.cluster
    place = (linear % gx, linear // gx % gy, linear // (gx * gy))
    for axis, at, size, count in zip("xyz", place, (cx, cy, cz), w.launch.grid, strict=True):
        w.special[f"%clusterid.{axis}"] = _column(at // size)
        w.special[f"%cluster_ctaid.{axis}"] = _column(at % size)
        w.special[f"%nclusterid.{axis}"] = _column(np.full(len(linear), count // size))
        w.special[f"%cluster_nctaid.{axis}"] = _column(np.full(len(linear), size))
    w.special["%cluster_ctarank"] = _column(w.rank[w.cta_of])
    w.special["%cluster_nctarank"] = _column(np.full(len(linear), w.cluster))


def _column(values: Array) -> Array:
    return np.broadcast_to(values.astype(np.uint32)[:, None], (len(values), 32))


@dataclass
class ClusterBarrier:
    """The barrier of one cluster (barrier.cluster), between two completions."""

    arrived: Bools
    """(warps of the cluster, 32): lanes that have come."""
    row: I32
    """What they released."""
    done: I32
    """The same as of the last completion."""
    came: Bools
    """(warps of the cluster, 32): lanes that have come and not waited since."""
    sites: set[int] = field(default_factory=set)
    parked: list[tuple[int, Bools]] = field(default_factory=list)


class Clusters(Idle):
    """The clusters of a wave: barriers, and who needs whom."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._open: dict[int, ClusterBarrier] = {}
        self.gone: set[int] = set()
        """Resident CTAs that have ended."""
        self._visits: dict[int, dict[tuple[int, int, int], tuple[int, int]]] = {}
        """Of each CTA, by (warp of a peer, place, agent): epoch of the warp and stamp of the agent, of the
        last."""

    # -- the barrier ------------------------------------------------------------------------------------

    def _barrier(self, cluster: int) -> ClusterBarrier:
        found = self._open.get(cluster)
        if found is None:
            w = self._w
            shape = (w.cluster * w.per_cta, 32)
            nothing = w.clocks.nothing()
            found = self._open[cluster] = ClusterBarrier(
                np.zeros(shape, np.bool_), nothing, nothing, np.zeros(shape, np.bool_)
            )
        return found

    def _place(self, warp: int) -> tuple[int, int]:
        return divmod(warp, self._w.cluster * self._w.per_cta)

    def arrive(self, relaxed: bool, site: int) -> None:
        """The active lanes come to the barrier of their cluster."""
        w = self._w
        w.counters.add("waits.cluster_arrive", w.warps)
        for row, (warp, lanes) in enumerate(zip(w.warps.tolist(), w.mask_full(), strict=True)):
            cluster, at = self._place(warp)
            b = self._barrier(cluster)
            if (b.arrived[at] & lanes).any():
                text = "it comes to the barrier of the cluster once more before that has completed"
                w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)
            b.arrived[at] |= lanes
            b.came[at] |= lanes
            b.sites.add(site)
            if not relaxed:
                b.row = np.maximum(b.row, w.clocks.release_one(warp))
                w.released(row)
            elif w.fences is not None and (handed := w.fences.handed(warp, near=False)) is not None:
                b.row = np.maximum(b.row, handed)
            self._complete(cluster)

    def wait(self, site: int) -> None:
        """The active lanes wait for the completion of the barrier they last came to."""
        w = self._w
        for row, (warp, lanes) in enumerate(zip(w.warps.tolist(), w.mask_full(), strict=True)):
            cluster, at = self._place(warp)
            b = self._barrier(cluster)
            lanes = lanes.copy()
            waits = lanes & b.arrived[at]
            if (lanes & ~b.came[at]).any():
                text = "it waits at the barrier of the cluster without having come to it"
                w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)
            if waits.any():
                b.parked.append(w.park(row, waits, site))
            done = lanes & ~waits
            if done.any():
                b.came[at] &= ~done
                w.pc[warp, done] = site + 1
                w.clocks.acquire_one(warp, b.done)
                w.counters.add("waits.cluster", np.array([warp]))

    def _complete(self, cluster: int) -> None:
        from emulator.machine.wave import EXITED

        w = self._w
        b = self._open[cluster]
        first = cluster * w.cluster * w.per_cta
        gone = w.status[first : first + len(b.arrived)] == EXITED
        if not b.arrived.any() or not (b.arrived | gone).all():
            return
        b.done, b.row = b.row, w.clocks.nothing()
        b.arrived[:] = False
        b.sites.clear()
        for warp, lanes in b.parked:
            w.wake(warp, lanes)
        b.parked.clear()
        w.events += 1

    # -- peers ------------------------------------------------------------------------------------------

    def target(self, row: int, rank: int) -> int | None:
        """The resident CTA of a rank in the cluster of a row's CTA; None where there is none."""
        w = self._w
        cta = int(w.cta_of[w.warps[row]])
        return cta - int(w.rank[cta]) + rank if 0 <= rank < w.cluster else None

    def visit(
        self, cta: int, warp: int, site: int, what: str, seen_as: tuple[int, int] | None = None
    ) -> bool:
        """`warp` touches CTA `cta` in some way; whether that still lives. Faults are told here. `seen_as`:
        the agent and stamp by which that CTA may see it too, for what counts at an mbarrier of it."""
        w = self._w
        if int(w.cta_of[warp]) == cta:
            return True
        if cta in self.gone:
            w.launch.fault(
                w, FaultKind.PEER, site, f"{what} CTA {w.launch.cta_name(w, cta)} of its cluster, which has"
                f" ended",
                warp=warp,
            )  # fmt: skip
            return False
        number, stamp = seen_as or (-1, 0)
        epoch = int(w.clocks.epoch[warp])
        self._visits.setdefault(cta, {})[(warp, site, number)] = (epoch, stamp)
        return True

    def ended(self, cta: int, site: int) -> None:
        """See Unit: every access of a peer must be ordered before this end."""
        w = self._w
        self.gone.add(cta)
        own = np.arange(cta * w.per_cta, (cta + 1) * w.per_cta)
        for (warp, at, number), (epoch, stamp) in self._visits.get(cta, {}).items():
            seen = any(w.clocks.knows(mine, warp + w.clocks.base, epoch) for mine in own.tolist())
            if not seen and number >= 0:
                seen = any(w.clocks.knows(mine, number, stamp) for mine in own.tolist())
            if not seen:
                other = w.launch.cta_name(w, int(w.cta_of[warp]))
                w.launch.fault(
                    w, FaultKind.PEER, site,
                    f"the CTA ends, and nothing orders that after what warp {warp % w.per_cta} of CTA {other}"
                    f" does to it at {w.kernel.where(at)}", warp=int(own[0]), other_site=at,
                )  # fmt: skip
        cluster = cta // w.cluster
        if cluster in self._open:
            self._complete(cluster)

    def exited(self, site: int) -> None:
        """See Unit."""

    def lanes_gone(self) -> None:
        """Threads have ended: barriers may be complete without them."""
        for cluster in list(self._open):
            self._complete(cluster)

    def describe(self) -> list[str]:
        """See Unit."""
        from emulator.machine.wave import EXITED

        w = self._w
        told = []
        for cluster, b in sorted(self._open.items()):
            first = cluster * w.cluster * w.per_cta
            missing = ~b.arrived & (w.status[first : first + len(b.arrived)] != EXITED)
            if not b.arrived.any():
                continue
            who = np.nonzero(missing.any(axis=1))[0].tolist()
            names = [
                f"warp {p % w.per_cta} of CTA {w.launch.cta_name(w, (first + p) // w.per_cta)}"
                for p in who[:4]
            ]
            places = ", ".join(sorted({w.kernel.where(s) for s in b.sites}))
            told.append(
                f"the barrier of cluster {w.launch.cta_name(w, cluster * w.cluster)} ({places}) waits for"
                f" {', '.join(names)}" + (" and others" if len(who) > 4 else "")
            )
        return told


__all__ = ["Clusters", "special_registers"]
