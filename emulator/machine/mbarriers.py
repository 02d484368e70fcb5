"""Which mbarriers are there, what do they still wait for, and who waits for them?

An mbarrier counts pending arrivals and bytes; when both are nothing its phase is over (PTX ISA 9.7.13.15).
Bytes may be told before they are expected: then the count is below zero, and a pending arrival keeps the
phase open.

A thread that asks for a phase that is not over is told "not yet" once, and then stands still until it is
over: so a loop of try_wait costs nothing, and a single try_wait that nobody repeats is still seen. Where
nothing else can run, those that stand still are told "not yet" once more; if nothing has changed when they
come back, it is a deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.checks import async_shadow
from emulator.checks.clocks import FIRST
from emulator.machine.units import Idle
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import I32
    from emulator.machine.wave import Wave

Bools = npt.NDArray[np.bool_]

MBARRIERS = 64
"""Of a CTA, at most: each is an agent of the clocks."""
BYTES = 8
MOST = (1 << 20) - 1
"""Arrivals, and bytes above or below nothing, that it can count (PTX ISA 9.7.13.15.2)."""


@dataclass
class Mbarrier:
    """One valid mbarrier object."""

    cta: int
    offset: int
    """Of its first byte, in the CTA's shared memory."""
    agent: int
    count: int
    """Arrivals that the next phase will wait for."""
    pending: int
    init: tuple[int, int, int]
    """(warp, epoch, place) of its initialisation."""
    near: I32
    """What arrivals of its CTA released, and all that is known of agents."""
    far: I32
    """What arrivals released at scope .cluster."""
    done: tuple[I32, I32]
    """Both as of the last completion."""
    bytes: int = 0
    """Bytes expected that have not come."""
    phase: int = 0
    """Phases that are over: the number of the one that is open."""
    arrived: dict[int, int] = field(default_factory=dict)
    """Arrivals of the open phase, by warp."""
    parked: list[tuple[int, Bools, int]] = field(default_factory=list)
    """(warp, lanes, phase) that wait."""
    written: int = 0
    """Stamp of the last bytes it counted."""

    @property
    def stamp(self) -> int:
        """Of what belongs to the open phase."""
        return FIRST + self.phase


class Mbarriers(Idle):
    """The mbarriers of all CTAs of a wave."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self._at: dict[tuple[int, int], Mbarrier] = {}
        self._used: dict[int, int] = {}
        """Agents given out, by CTA."""
        self._told: dict[tuple[int, int], int] = {}
        """(warp, agent) -> the phase of which it was told "not yet"."""
        self._gave_up = -1

    # -- objects ----------------------------------------------------------------------------------------

    def find(self, cta: int, offset: int, warp: int, site: int) -> Mbarrier | None:
        """The object at an offset, that `warp` may use; None, and a fault, where there is none."""
        w = self._w
        found = self._at.get((cta, offset))
        if found is None:
            where = self.name(offset)
            text = f"no mbarrier lies at {where} of shared memory: it is not initialised, or is invalidated"
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, warp=warp, **self._area(offset))
            return None
        by, epoch, place = found.init
        if by != warp and not w.clocks.knows(warp, by + w.clocks.base, epoch):
            w.launch.fault(
                w, FaultKind.RACE, site,
                f"it uses the mbarrier {self.name(offset)}, which {self._who(by)} initialises at"
                f" {w.kernel.where(place)}: nothing orders the two",
                warp=warp, other_site=place, **self._area(offset),
            )  # fmt: skip
        return found

    def init(self, cta: int, offset: int, count: int, row: int, lane: int, site: int) -> None:
        """mbarrier.init by one thread."""
        w = self._w
        warp = int(w.warps[row])
        if not 1 <= count <= MOST:
            text = f"the mbarrier {self.name(offset)} for {count} arrivals; 1 to {MOST} are possible"
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row, lane=lane, **self._area(offset))
            return
        old = self._at.get((cta, offset))
        if old is not None:
            text = f"the mbarrier {self.name(offset)} is initialised again without mbarrier.inval before"
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row, lane=lane, **self._area(offset))
            agent = old.agent
        else:
            self._write(offset, cta, row, lane, site)
            slot = self._used.get(cta, 0)
            if slot >= MBARRIERS:
                raise ValueError(f"more than {MBARRIERS} mbarriers in a CTA are not known here")
            self._used[cta] = slot + 1
            agent = w.clocks.agent(cta, slot)
        nothing = w.clocks.nothing()
        init = (warp, int(w.clocks.epoch[warp]), site)
        self._at[cta, offset] = Mbarrier(
            cta, offset, agent, count, count, init, nothing, nothing, (nothing, nothing)
        )
        async_shadow.place_object(w.shared_shadow, self._granules(cta, offset), agent, site)

    def invalidate(self, cta: int, offset: int, row: int, lane: int, site: int) -> None:
        """mbarrier.inval by one thread: its bytes are ordinary ones again."""
        w = self._w
        warp = int(w.warps[row])
        found = self.find(cta, offset, warp, site)
        if found is None:
            return
        del self._at[cta, offset]
        shadow, granule = w.shared_shadow, self._granules(cta, offset)
        shadow.write_epoch[granule] = w.clocks.epoch[warp]
        shadow.write_thread[granule] = (warp + w.clocks.base) * 64 + lane
        shadow.write_site[granule] = site

    def _write(self, offset: int, cta: int, row: int, lane: int, site: int) -> None:
        """The bytes that it will lie in, written by a thread."""
        from emulator.machine import access

        w = self._w
        at = np.array([offset + w.shared.base], np.int64)
        if w.rank_base is not None:
            at += int(w.rank[cta]) << 24
        a = access.Access(site, BYTES, BYTES)
        access.write(
            w, "shared", a, at, np.array([row]), np.array([lane]), np.full((1, BYTES), 0xFF, np.uint8)
        )

    def _granules(self, cta: int, offset: int) -> npt.NDArray[np.intp]:
        w = self._w
        size = w.kernel.shared_granule
        first = (cta * w.shared.pitch + offset) // size
        return np.arange(first, first + max(BYTES // size, 1))

    # -- counting ---------------------------------------------------------------------------------------

    def arrive(
        self, b: Mbarrier, row: int, lanes: Bools, count: int, more_bytes: int, site: int, *,
        release: bool, near: bool, drop: bool = False, completes: bool = True,
    ) -> None:  # fmt: skip
        """Each of some lanes arrives `count` times and expects `more_bytes` before. `near`: at scope .cta."""
        w = self._w
        warp = int(w.warps[row])
        number = int(lanes.sum())
        peer = int(w.cta_of[warp]) != b.cta
        what = "it arrives at an mbarrier of"
        if peer and not w.clusters.visit(b.cta, warp, site, what, (b.agent, b.stamp)):
            return
        self.expect(b, more_bytes * number, warp, site)
        if release:
            made = w.clocks.release_one(warp)
            w.released(row)
            self._hand(b, made, peer, near)
        elif w.fences is not None:
            for scope in (True, False):
                handed = w.fences.handed(warp, scope)
                if handed is not None:
                    self._hand(b, handed, peer, scope)
        if drop:
            b.count -= count * number
        self.count(b, count * number, warp, site, completes)

    def _hand(self, b: Mbarrier, made: I32, peer: bool, near: bool) -> None:
        if not peer:
            b.near = np.maximum(b.near, made)
            return
        # At scope .cta a peer hands on nothing of its own but that its asynchronous reads have ended.
        b.near = np.maximum(b.near, self._w.clocks.agents_only(made))
        if not near:
            b.far = np.maximum(b.far, made)

    def expect(self, b: Mbarrier, more: int, warp: int, site: int) -> None:
        """More bytes of the open phase; of fewer, -more have come."""
        b.bytes += more
        if abs(b.bytes) > MOST:
            where = self.name(b.offset)
            text = f"the mbarrier {where} expects {b.bytes} bytes; at most {MOST} can be counted"
            self._w.launch.fault(
                self._w, FaultKind.BARRIER_COUNT, site, text, warp=warp, **self._area(b.offset)
            )

    def count(self, b: Mbarrier, number: int, warp: int, site: int, completes: bool = True) -> None:
        """Arrivals, maybe of several threads at once."""
        while number:
            now = min(number, b.pending)
            if b.pending <= 0:
                w = self._w
                w.launch.fault(
                    w, FaultKind.BARRIER_COUNT, site,
                    f"it arrives at the mbarrier {self.name(b.offset)}, whose phase {b.phase} has had all its"
                    f" {b.count} arrivals and waits for {b.bytes} bytes", warp=warp, **self._area(b.offset),
                )  # fmt: skip
                return
            b.pending -= now
            b.arrived[warp] = b.arrived.get(warp, 0) + now
            number -= now
            if not completes and b.pending == 0 and b.bytes == 0:
                text = f".noComplete, and it completes phase {b.phase} of the mbarrier {self.name(b.offset)}"
                self._w.launch.fault(self._w, FaultKind.BARRIER_COUNT, site, text, warp=warp)
            self.settle(b)

    def settle(self, b: Mbarrier) -> None:
        """End the phase if it is over."""
        w = self._w
        w.events += 1
        if b.pending or b.bytes:
            return
        b.near[w.clocks.column(b.agent)] = b.stamp
        b.done = (b.near.copy(), np.maximum(b.near, b.far))
        b.phase += 1
        b.pending = b.count
        b.arrived.clear()
        for warp, lanes, _ in b.parked:
            w.wake(warp, lanes)
        b.parked.clear()

    def came(self, b: Mbarrier, number: int, warp: int, site: int) -> int:
        """Bytes that it counts have been written: the stamp that they get."""
        stamp = b.written = b.stamp
        self.expect(b, -number, warp, site)
        self.settle(b)
        return stamp

    # -- waiting ----------------------------------------------------------------------------------------

    def ask(
        self, b: Mbarrier, row: int, lanes: Bools, phase: int, site: int, acquire: bool, near: bool
    ) -> bool | None:
        """Whether `phase` (the open one, or the one before) is over; None: the lanes stand still until it
        is."""
        w = self._w
        warp = int(w.warps[row])
        if phase < b.phase:
            if acquire:
                w.clocks.acquire_one(warp, b.done[not near])
            elif w.fences is not None:
                w.fences.relaxed_wait(warp, b.done[0], b.done[1])
            self._told.pop((warp, b.agent), None)
            return True
        # Twice the chance to be wrong where "not yet" is not looked at.
        if self._told.get((warp, b.agent)) != b.phase:
            self._told[warp, b.agent] = b.phase
            return False
        parked, where = w.park(row, lanes, site)
        b.parked.append((parked, where, phase))
        return None

    def give_up(self) -> bool:
        """See Unit."""
        w = self._w
        waiting = [b for b in self._at.values() if b.parked]
        if not waiting or self._gave_up == w.events:
            return False
        self._gave_up = w.events
        for b in waiting:
            for warp, lanes, _ in b.parked:
                w.wake(warp, lanes)
                self._told.pop((warp, b.agent), None)
            b.parked.clear()
        return True

    def waited_for(self) -> set[int]:
        """Agents that parked threads wait for."""
        return {b.agent for b in self._at.values() if b.parked}

    # -- ends -------------------------------------------------------------------------------------------

    def ended(self, cta: int, site: int) -> None:
        """See Unit: what an mbarrier counted must have been waited for by someone of the CTA."""
        w = self._w
        own = range(cta * w.per_cta, (cta + 1) * w.per_cta)
        for (at, offset), b in self._at.items():
            if at != cta or not b.written:
                continue
            if not any(w.clocks.knows(warp, b.agent, b.written) for warp in own):
                w.launch.fault(
                    w, FaultKind.OUTSTANDING_WORK, site,
                    f"the CTA ends, and nobody has waited for the bytes that the mbarrier {self.name(offset)}"
                    " counts", warp=own[0], **self._area(offset),
                )  # fmt: skip

    # -- telling ----------------------------------------------------------------------------------------

    def name(self, offset: int) -> str:
        """Where it lies, for people."""
        return self._w.launch.area(offset)[2]

    def _area(self, offset: int) -> dict[str, Any]:
        name, stage, _ = self._w.launch.area(offset)
        return {"buffer": name, "stage": stage}

    def _who(self, warp: int) -> str:
        return f"warp {warp % self._w.per_cta}"

    def of_agent(self, agent: int) -> Mbarrier | None:
        """The object that an agent is."""
        return next((b for b in self._at.values() if b.agent == agent), None)

    def describe(self) -> list[str]:
        """See Unit."""
        w = self._w
        told = []
        for (cta, offset), b in sorted(self._at.items(), key=lambda item: item[0]):
            if not b.parked:
                continue
            places: dict[str, list[str]] = {}
            for warp, lanes, _ in b.parked:
                site = int(w.pc[warp, int(np.argmax(lanes))])
                places.setdefault(w.kernel.where(site), []).append(str(warp % w.per_cta))
            who = "; ".join(f"warp {', '.join(sorted(set(n)))} at {at}" for at, n in places.items())
            came = ", ".join(f"{n} of warp {p % w.per_cta}" for p, n in sorted(b.arrived.items()))
            told.append(
                f"CTA {w.launch.cta_name(w, cta)}: the mbarrier {self.name(offset)} is in phase {b.phase},"
                f" with"
                f" {b.pending} of {b.count} arrivals pending"
                + (f" ({came} came)" if came else "")
                + f" and {b.bytes} bytes missing; there waits {who}"
            )
        return told


__all__ = ["BYTES", "MBARRIERS", "Mbarrier", "Mbarriers"]
