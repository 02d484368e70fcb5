"""Which WGMMAs are under way, and when do registers and shared memory belong to the threads again?

A WGMMA is one operation of the four warps of a warpgroup; it reads shared memory and registers, and writes
registers, at any moment between its issue and the wait for its group. Each warp's 16 rows can be computed
alone, so a warp that is ahead need not stand still; but its wait ends only when all four have issued.

What it reads in shared memory is read by an agent of the clocks (one a warpgroup, its stamps are the groups):
who waits for the group knows it, and may hand that on for all four warps. held_registers.py: who touches
registers of a WGMMA under way. """

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.arith import warpgroup as arith
from emulator.checks import async_shadow
from emulator.checks.clocks import FIRST
from emulator.machine import conflicts
from emulator.machine.copies import load
from emulator.machine.held_registers import HeldRegisters
from emulator.machine.mbarriers import MBARRIERS
from emulator.machine.units import Idle, lands_at_once
from emulator.machine.wgmma_operands import Form, OperandPlaces, Places
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.wave import Array, Wave

Bools = npt.NDArray[np.bool_]
WARPS = 4


@dataclass
class Operation:
    """One WGMMA of one warpgroup."""

    form: Form
    a: int
    b: int
    """Descriptors."""
    adds: bool
    """Whether to the accumulator (scale-d)."""
    group: int
    issued: int = 0
    """Bit mask of the warps that have come."""
    registers: dict[int, Array] = field(default_factory=dict)
    """By warp: A, (4, 32)."""


@dataclass
class Operations:
    """The operations of one warpgroup, in order; of those that are long over, None is kept."""

    operations: list[Operation | None] = field(default_factory=list)
    whole: int = 0
    """How many all four warps have issued."""
    parked: list[tuple[int, Bools, int]] = field(default_factory=list)
    """(warp, lanes, operations that it waits for)."""


class Warpgroups(Idle):
    """The tensor cores of all warpgroups of a wave."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        self.held = HeldRegisters(w, self)
        self.issued = np.zeros(w.count, np.int32)
        self.waited = np.zeros(w.count, np.int32)
        self.done = np.zeros(w.count, np.int32)
        """Operations of each warp: issued, waited for, computed."""
        self._commits: list[list[int]] = [[] for _ in range(w.count)]
        """Of each warp: operations issued at each commit."""
        self._groups: dict[int, Operations] = {}
        self._places = OperandPlaces(w)
        self._each = -(-w.per_cta // WARPS)

    # -- instructions -----------------------------------------------------------------------------------

    def _of(self, warp: int) -> int:
        w = self._w
        return int(w.cta_of[warp]) * self._each + warp % w.per_cta // WARPS

    def issue(self, form: Form, a: Sequence[int], b: Sequence[int], adds: Sequence[bool]) -> None:
        """wgmma.mma_async by the group's warps, with a descriptor (or 0) and scale-d of each."""
        w = self._w
        self.held.check_fence(form)
        together: dict[int, list[int]] = {}
        for row, warp in enumerate(w.warps.tolist()):
            together.setdefault(self._of(warp), []).append(row)
        for number, rows in together.items():
            self._issue(number, form, rows, a, b, adds)
        self.held.hold(form)
        w.counters.add(f"mma.wgmma_m64n{form.n}k{form.flops // (128 * form.n)}.{form.a_type}", w.warps)
        w.counters.add("mma_flops", w.warps, form.flops // WARPS)
        if lands_at_once(w, copy=False):
            warps = w.warps.tolist()
            self.compute(warps, {p: int(self.issued[p]) for p in warps})

    def _issue(
        self, number: int, form: Form, rows: list[int], a: Sequence[int], b: Sequence[int],
        adds: Sequence[bool],
    ) -> None:  # fmt: skip
        w = self._w
        g = self._groups.setdefault(number, Operations())
        fresh: dict[int, list[int]] = {}
        for row in rows:
            warp = int(w.warps[row])
            place = int(self.issued[warp])
            if place == len(g.operations):
                g.operations.append(Operation(form, a[row], b[row], adds[row], len(self._commits[warp])))
            made = g.operations[place]
            if made is None or (made.form.site, made.a, made.b, made.adds, made.group) != (
                form.site, a[row], b[row], adds[row], len(self._commits[warp]),
            ):  # fmt: skip
                other = "another" if made is None else f"that at {w.kernel.where(made.form.site)}"
                w.launch.fault(
                    w, FaultKind.DIVERGENCE, form.site,
                    f"the warps of its warpgroup do not execute the same WGMMA with the same operands:"
                    f" {other} was"
                    " begun by another warp", row=row,
                )  # fmt: skip
            assert made is not None
            made.issued |= 1 << warp % w.per_cta % WARPS
            if form.a:
                made.registers[warp] = np.stack([self._register(r)[warp] for r in form.a])
            self.issued[warp] = place + 1
            fresh.setdefault(place, []).append(warp)
        for place, warps in fresh.items():
            made = g.operations[place]
            assert made is not None
            self._read(number, made, warps)
        self._woken(g)

    def _woken(self, g: Operations) -> None:
        """All four warps may have issued more."""
        w = self._w
        while g.whole < len(g.operations):
            made = g.operations[g.whole]
            if made is not None and made.issued != (1 << WARPS) - 1:
                break
            g.whole += 1
        left = []
        for warp, lanes, wanted in g.parked:
            if wanted <= g.whole:
                w.wake(warp, lanes)
                w.events += 1
            else:
                left.append((warp, lanes, wanted))
        g.parked = left

    def _register(self, index: int) -> Array:
        value = self._w.registers[index]
        return self._w.garbage(index) if value is None else value

    def _operands(self, made: Operation, warp: int) -> tuple[Places | None, Places | None]:
        form = made.form
        a = None
        if not form.a:
            a = self._places.find(made.a, arith.ROWS, form.mn_major[0], warp, form.site)
        return a, self._places.find(made.b, form.n, form.mn_major[1], warp, form.site)

    def _read(self, number: int, made: Operation, warps: list[int]) -> None:
        """Check what an operation reads, for warps that issue it now."""
        w = self._w
        first = made.issued.bit_count() == len(warps)
        for places in self._operands(made, warps[0]):
            if places is None:
                continue
            offset, granule = places
            found = async_shadow.after_writes(
                w.shared_shadow, "shared", granule, np.array(warps), True, "read after write"
            )
            conflicts.shared_conflict(w, found, made.form.site)
            if first:
                slot = w.shared_shadow.columns - self._each + number % self._each
                async_shadow.agent_read(w.shared_shadow, granule, slot, FIRST + made.group, made.form.site)
            if w.launch.counting and first:
                w.counters.add("bytes.shared_to_wgmma", np.array(warps[:1]), offset.size * 16)

    def commit(self) -> None:
        """wgmma.commit_group by the group's warps."""
        for warp in self._w.warps.tolist():
            self._commits[warp].append(int(self.issued[warp]))

    def wait(self, pending: int, site: int) -> None:
        """wgmma.wait_group by the group's warps: those whose warpgroup has not issued yet stand still."""
        w = self._w
        going: list[int] = []
        for row, warp in enumerate(w.warps.tolist()):
            commits = self._commits[warp]
            over = len(commits) - pending
            wanted = commits[over - 1] if over > 0 else 0
            g = self._groups.get(self._of(warp))
            lanes = w.mask_full()[row]
            if g is not None and wanted > g.whole:
                g.parked.append((*w.park(row, lanes, site), wanted))
                continue
            going.append(warp)
            w.pc[warp, lanes] = site + 1
            if over > 0:
                self.waited[warp] = max(int(self.waited[warp]), wanted)
                w.clocks.know(warp, self._agent(warp), FIRST + over - 1)
        w.counters.add("waits.wgmma", w.warps)
        if going:
            self.compute(going, {p: int(self.waited[p]) for p in going})
            for number in {self._of(p) for p in going}:
                self._forget(number)

    def _agent(self, warp: int) -> int:
        w = self._w
        return w.clocks.agent(int(w.cta_of[warp]), MBARRIERS + warp % w.per_cta // WARPS)

    def _forget(self, number: int) -> None:
        """Operations that all four warps have waited for."""
        g = self._groups.get(number)
        if g is None:
            return
        w = self._w
        cta, part = divmod(number, self._each)
        first = cta * w.per_cta + part * WARPS
        over = int(min(self.waited[first : first + WARPS].min(), self.done[first : first + WARPS].min()))
        at = over - 1
        while at >= 0 and g.operations[at] is not None:
            g.operations[at] = None
            at -= 1

    # -- computing --------------------------------------------------------------------------------------

    def compute(self, warps: list[int], upto: dict[int, int]) -> None:
        """Bring the results of some warps up to so many operations of each."""
        left = [p for p in warps if self.done[p] < upto[p]]
        while left:
            by: dict[tuple[tuple[int, ...], str, int], list[int]] = {}
            for p in left:
                made = self.operation(p, int(self.done[p]))
                by.setdefault((made.form.d, made.form.d_type, made.form.n), []).append(p)
            for (d, kind, _), some in by.items():
                self._chains(d, kind, some, upto)
            left = [p for p in left if self.done[p] < upto[p]]

    def operation(self, warp: int, place: int) -> Operation:
        """The operation that a warp came to as its `place`th, which not all have waited for."""
        made = self._groups[self._of(warp)].operations[place]
        assert made is not None
        return made

    def _chains(self, d: tuple[int, ...], kind: str, warps: list[int], upto: dict[int, int]) -> None:
        """All next operations of some warps that go to the registers `d`."""
        w = self._w
        # Slices cost a fraction of selections, and this is done for a hundred registers.
        low, high = warps[0], warps[0] + len(warps)
        rows: Any = slice(low, high) if warps == list(range(low, high)) else np.array(warps)
        held = np.stack([self._register(r)[rows] for r in d])
        sums = arith.from_registers(kind, held)
        place = {p: i for i, p in enumerate(warps)}
        together: dict[tuple[int, int], list[int]] = {}
        for p in warps:
            together.setdefault((self._of(p), int(self.done[p])), []).append(p)
        for (_, first), some in together.items():
            index = [place[p] for p in some]
            at = first
            stop = min(upto[p] for p in some)
            while at < stop:
                made = self.operation(some[0], at)
                if made.form.d != d or made.form.d_type != kind:
                    break
                found = self._product(made, some, sums[index])
                if found is not None:
                    sums[index] = found
                at += 1
            self.done[some] = at
        values = arith.to_registers(kind, sums)
        for register, value in zip(d, values, strict=True):
            new = self._register(register).copy()
            new[rows] = value
            w.registers[register] = new

    def _product(self, made: Operation, warps: list[int], sums: Array) -> Array | None:
        """D of some warps (of one warpgroup) behind an operation."""
        w = self._w
        form = made.form
        a_places, b_places = self._operands(made, warps[0])
        if b_places is None or (a_places is None and not form.a):
            return None
        b_at = b_places[0]
        b = arith.elements(
            form.b_type, load(w.shared.data, b_at.reshape(-1), 16).reshape(*b_at.shape, 16), form.mn_major[1]
        )
        if a_places is None:
            a = arith.a_matrix(form.a_type, np.stack([made.registers[p] for p in warps], axis=1))
            a = a.reshape(-1, a.shape[-1])
        else:
            a_at = a_places[0]
            data = load(w.shared.data, a_at.reshape(-1), 16).reshape(*a_at.shape, 16)
            parts = [p % w.per_cta % WARPS for p in warps]
            whole = arith.elements(form.a_type, data, form.mn_major[0])
            a = whole.reshape(WARPS, 16, -1)[parts].reshape(len(parts) * 16, -1)
        bits = w.launch.watch.fp8_bits if form.a_type in ("e4m3", "e5m2") else None
        c = sums.reshape(-1, form.n) if made.adds else None
        found = arith.accumulate(form.d_type, a, b, c, form.signs, form.satfinite, bits)
        return found.reshape(sums.shape)

    # -- ends -------------------------------------------------------------------------------------------

    def exited(self, site: int) -> None:
        """See Unit."""
        w = self._w
        late = self.issued[w.warps] > self.waited[w.warps]
        if late.any():
            warp = int(w.warps[int(np.argmax(late))])
            made = self.operation(warp, int(self.issued[warp]) - 1)
            text = f"it ends while its WGMMA at {w.kernel.where(made.form.site)} is not waited for"
            w.launch.fault(w, FaultKind.OUTSTANDING_WORK, site, text, warp=warp)

    def ended(self, cta: int, site: int) -> None:
        """See Unit."""
        w = self._w
        for part in range(self._each):
            first = cta * w.per_cta + part * WARPS
            some = self.issued[first : min(first + WARPS, (cta + 1) * w.per_cta)]
            if some.max(initial=0) and (len(some) < WARPS or some.min() != some.max()):
                g = self._groups[cta * self._each + part]
                made = next((m for m in g.operations[int(some.min()) :] if m is not None), None)
                at = site if made is None else made.form.site
                text = f"warps of its warpgroup have issued {', '.join(map(str, some.tolist()))} WGMMAs"
                w.launch.fault(w, FaultKind.DIVERGENCE, at, text + "; it takes all four", warp=first)

    def describe(self) -> list[str]:
        """See Unit."""
        w = self._w
        told = []
        for number, g in sorted(self._groups.items()):
            for warp, lanes, _ in g.parked:
                site = int(w.pc[warp, int(np.argmax(lanes))])
                cta = w.launch.cta_name(w, number // self._each)
                told.append(
                    f"CTA {cta}: warp {warp % w.per_cta} waits for a WGMMA at {w.kernel.where(site)} that not"
                    " all warps of its warpgroup have issued"
                )
        return told


__all__ = ["Warpgroups"]
