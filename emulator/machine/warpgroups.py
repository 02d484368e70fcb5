"""Which WGMMAs are under way, and when do registers and shared memory belong to the threads again?

A WGMMA is one operation of the four warps of a warpgroup; it reads shared memory and registers, and writes
registers, at any moment between its issue and the wait for its group. Each warp's 16 rows can be computed
alone, so a warp that is ahead need not stand still; but its wait ends only when all four have issued.

What it reads in shared memory is read by an agent of the clocks (one a warpgroup, its stamps are the groups):
who waits for the group knows it, and may hand that on for all four warps. Registers of a WGMMA under way may
not be touched. Plain moves are excepted, since compilers put them there: they carry the result, and that it
is under way. """

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.arith import warpgroup as arith
from emulator.checks import async_shadow
from emulator.checks.clocks import FIRST
from emulator.machine import access
from emulator.machine.copies import load
from emulator.machine.mbarriers import MBARRIERS
from emulator.machine.units import Idle, lands_at_once
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.wave import Array, Wave

Bools = npt.NDArray[np.bool_]
Places = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Of an operand: offsets of its pieces, and the watched pieces of shared memory that they are."""

WARPS = 4


@dataclass(frozen=True)
class Form:
    """What an instruction says, but for its values."""

    site: int
    n: int
    d_type: str
    a_type: str
    b_type: str
    d: tuple[int, ...]
    """Registers."""
    a: tuple[int, ...]
    """Registers of A; none where it lies in shared memory."""
    signs: tuple[int, int]
    mn_major: tuple[bool, bool]
    satfinite: bool
    flops: int


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
class Group:
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
        tracked = sorted(w.kernel.warpgroup_registers)
        self._place = {register: at for at, register in enumerate(tracked)}
        shape = (len(tracked), w.count)
        self._busy = np.zeros(shape, np.int32)
        """Number behind the last operation that has the register."""
        self._touched = np.zeros(shape, np.int64)
        """When it was last touched by anything else."""
        self._now = 1
        self._fenced = np.zeros(w.count, np.int64)
        self._issued = np.zeros(w.count, np.int32)
        self._waited = np.zeros(w.count, np.int32)
        self._done = np.zeros(w.count, np.int32)
        """Operations of each warp: issued, waited for, computed."""
        self._forms: dict[int, Array] = {}
        """By instruction: see _registers_of."""
        self._commits: list[list[int]] = [[] for _ in range(w.count)]
        """Of each warp: operations issued at each commit."""
        self._groups: dict[int, Group] = {}
        self._places: dict[tuple[int, int, bool], tuple[Array, Array]] = {}
        """Where operands lie in a CTA: see _operand."""
        self._each = -(-w.per_cta // WARPS)

    # -- registers --------------------------------------------------------------------------------------

    def touched(self, index: int, write: bool) -> None:
        """An instruction reads or writes a register that WGMMAs have, in the group's rows."""
        w = self._w
        at = self._place[index]
        self._check(at, self._under_way(at), write)
        self._now += 1
        self._touched[at, w.warps] = self._now

    def _under_way(self, at: int) -> Bools:
        """Of each warp of the group: whether a WGMMA has the register."""
        rows = self._w.warps
        busy: Bools = self._busy[at, rows] > self._waited[rows]
        return busy

    def _check(self, at: int, wrong: Bools, write: bool) -> None:
        if np.count_nonzero(wrong):
            self._accuse(int(self._w.warps[int(np.argmax(wrong))]), at, write)

    def set(self, target: int, value: Array) -> None:
        """A plain move of a constant. Compilers put those behind the fence too: that is no touch."""
        at = self._place[target]
        self._check(at, self._under_way(at), write=True)
        self._w.put_quietly(target, self._w.whole(value))

    def _accuse(self, warp: int, at: int, write: bool) -> None:
        w = self._w
        number = int(self._busy[at, warp]) - 1
        made = self._groups[self._of(warp)].operations[number]
        assert made is not None
        site = w.site
        register = w.kernel.function.registers[sorted(w.kernel.warpgroup_registers)[at]].name
        what = "writes" if write else "reads"
        w.launch.fault(
            w, FaultKind.REGISTERS, site,
            f"it {what} {register}, which the WGMMA at {w.kernel.where(made.form.site)} has: no"
            " wgmma.wait_group covers that", warp=warp, other_site=made.form.site,
        )  # fmt: skip

    def move(self, target: int, source: int) -> None:
        """A plain move between two registers."""
        w = self._w
        rows = w.warps
        a, b = self._place[source], self._place[target]
        self._check(b, self._under_way(b) & ~self._under_way(a), write=True)
        if (self._busy[a, rows] > self._done[rows]).any() or (self._busy[b, rows] > self._done[rows]).any():
            self._compute(rows.tolist(), {p: int(self._issued[p]) for p in rows.tolist()})
        value = w.registers[source]
        if value is None:
            value = w.garbage(source)
        w.put_quietly(target, value if w.idx is None else value[w.idx])
        self._busy[b, rows] = self._busy[a, rows]
        self._touched[b, rows] = self._touched[a, rows]

    # -- instructions -----------------------------------------------------------------------------------

    def fence(self) -> None:
        """wgmma.fence by the group's warps."""
        self._now += 1
        self._fenced[self._w.warps] = self._now

    def _of(self, warp: int) -> int:
        w = self._w
        return int(w.cta_of[warp]) * self._each + warp % w.per_cta // WARPS

    def issue(self, form: Form, a: Sequence[int], b: Sequence[int], adds: Sequence[bool]) -> None:
        """wgmma.mma_async by the group's warps, with a descriptor (or 0) and scale-d of each."""
        w = self._w
        self._check_fence(form)
        together: dict[int, list[int]] = {}
        for row, warp in enumerate(w.warps.tolist()):
            together.setdefault(self._of(warp), []).append(row)
        for number, rows in together.items():
            self._issue(number, form, rows, a, b, adds)
        self._busy[self._registers_of(form), w.warps] = self._issued[w.warps]
        w.counters.add(f"mma.wgmma_m64n{form.n}k{form.flops // (128 * form.n)}.{form.a_type}", w.warps)
        w.counters.add("mma_flops", w.warps, form.flops // WARPS)
        if lands_at_once(w, copy=False):
            warps = w.warps.tolist()
            self._compute(warps, {p: int(self._issued[p]) for p in warps})

    def _registers_of(self, form: Form) -> Array:
        """(n, 1): the places of the registers of D and A."""
        found = self._forms.get(form.site)
        if found is None:
            found = self._forms[form.site] = np.array([[self._place[r]] for r in (*form.d, *form.a)])
        return found

    def _check_fence(self, form: Form) -> None:
        w = self._w
        fenced = self._fenced[w.warps]
        late = self._touched[self._registers_of(form), w.warps] > fenced[None, :]
        if (fenced == 0).any() or late.any():
            row = int(np.argmax(late.any(axis=0) | (fenced == 0)))
            name = ""
            if late[:, row].any():
                register = (*form.d, *form.a)[int(np.argmax(late[:, row]))]
                name = f" {w.kernel.function.registers[register].name} was touched behind the last one"
            w.launch.fault(
                w, FaultKind.REGISTERS, form.site, f"no wgmma.fence orders its"
                f" registers:{name or ' none came'}",
                row=row,
            )  # fmt: skip

    def _issue(
        self, number: int, form: Form, rows: list[int], a: Sequence[int], b: Sequence[int],
        adds: Sequence[bool],
    ) -> None:  # fmt: skip
        w = self._w
        g = self._groups.setdefault(number, Group())
        fresh: dict[int, list[int]] = {}
        for row in rows:
            warp = int(w.warps[row])
            place = int(self._issued[warp])
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
            self._issued[warp] = place + 1
            fresh.setdefault(place, []).append(warp)
        for place, warps in fresh.items():
            made = g.operations[place]
            assert made is not None
            self._read(number, made, warps)
        self._woken(g)

    def _woken(self, g: Group) -> None:
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

    def _operand(
        self, bits: int, extent: int, mn_major: bool, warp: int, site: int
    ) -> tuple[Array, Array] | None:
        """Offsets of an operand's pieces in the wave's shared memory, and all their granules; None, and a
        fault, where it cannot be."""
        w = self._w
        found = self._places.get((bits, extent, mn_major))
        if found is None:
            inner = self._in_cta(bits, extent, mn_major, warp, site)
            if inner is None:
                return None
            granules = access.shared_granules(w, inner.reshape(-1), 16).reshape(-1)
            found = self._places[bits, extent, mn_major] = inner, granules
        start = int(w.cta_of[warp]) * w.shared.pitch
        return found[0] + start, found[1] + start // w.kernel.shared_granule

    def _in_cta(self, bits: int, extent: int, mn_major: bool, warp: int, site: int) -> Array | None:
        w = self._w
        try:
            address = arith.pieces(bits, extent, mn_major)
        except ValueError as error:
            w.launch.fault(w, FaultKind.DESCRIPTOR, site, str(error), warp=warp)
            return None
        inner = address - w.shared.base
        if inner.min() < 0 or inner.max() + 16 > w.shared.size:
            bad = inner[(inner < 0) | (inner + 16 > w.shared.size)]
            w.launch.fault(
                w, FaultKind.OUT_OF_BOUNDS, site,
                f"its matrix of {extent} {'columns' if mn_major else 'rows'} reaches {int(bad[0])} bytes"
                f" into the"
                f" {w.shared.size} bytes of shared memory", warp=warp,
            )  # fmt: skip
            return None
        return inner

    def _operands(self, made: Operation, warp: int) -> tuple[Places | None, Places | None]:
        form = made.form
        a = None
        if not form.a:
            a = self._operand(made.a, arith.ROWS, form.mn_major[0], warp, form.site)
        return a, self._operand(made.b, form.n, form.mn_major[1], warp, form.site)

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
            access.shared_conflict(w, found, made.form.site)
            if first:
                slot = w.shared_shadow.columns - self._each + number % self._each
                async_shadow.agent_read(w.shared_shadow, granule, slot, FIRST + made.group, made.form.site)
            if w.launch.counting and first:
                w.counters.add("bytes.shared_to_wgmma", np.array(warps[:1]), offset.size * 16)

    def commit(self) -> None:
        """wgmma.commit_group by the group's warps."""
        for warp in self._w.warps.tolist():
            self._commits[warp].append(int(self._issued[warp]))

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
                self._waited[warp] = max(int(self._waited[warp]), wanted)
                w.clocks.know(warp, self._agent(warp), FIRST + over - 1)
        w.counters.add("waits.wgmma", w.warps)
        if going:
            self._compute(going, {p: int(self._waited[p]) for p in going})
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
        over = int(min(self._waited[first : first + WARPS].min(), self._done[first : first + WARPS].min()))
        at = over - 1
        while at >= 0 and g.operations[at] is not None:
            g.operations[at] = None
            at -= 1

    # -- computing --------------------------------------------------------------------------------------

    def _compute(self, warps: list[int], upto: dict[int, int]) -> None:
        """Bring the results of some warps up to so many operations of each."""
        left = [p for p in warps if self._done[p] < upto[p]]
        while left:
            by: dict[tuple[tuple[int, ...], str, int], list[int]] = {}
            for p in left:
                made = self._operation(p, int(self._done[p]))
                by.setdefault((made.form.d, made.form.d_type, made.form.n), []).append(p)
            for (d, kind, _), some in by.items():
                self._chains(d, kind, some, upto)
            left = [p for p in left if self._done[p] < upto[p]]

    def _operation(self, warp: int, place: int) -> Operation:
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
            together.setdefault((self._of(p), int(self._done[p])), []).append(p)
        for (_, first), some in together.items():
            index = [place[p] for p in some]
            at = first
            stop = min(upto[p] for p in some)
            while at < stop:
                made = self._operation(some[0], at)
                if made.form.d != d or made.form.d_type != kind:
                    break
                found = self._product(made, some, sums[index])
                if found is not None:
                    sums[index] = found
                at += 1
            self._done[some] = at
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
        late = self._issued[w.warps] > self._waited[w.warps]
        if late.any():
            warp = int(w.warps[int(np.argmax(late))])
            made = self._operation(warp, int(self._issued[warp]) - 1)
            text = f"it ends while its WGMMA at {w.kernel.where(made.form.site)} is not waited for"
            w.launch.fault(w, FaultKind.OUTSTANDING_WORK, site, text, warp=warp)

    def ended(self, cta: int, site: int) -> None:
        """See Unit."""
        w = self._w
        for part in range(self._each):
            first = cta * w.per_cta + part * WARPS
            some = self._issued[first : min(first + WARPS, (cta + 1) * w.per_cta)]
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


__all__ = ["Form", "Warpgroups"]
