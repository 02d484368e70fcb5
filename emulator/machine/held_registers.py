"""Which registers belong to WGMMAs under way, and who touches them?

A register of a WGMMA may not be touched until its group has been waited for, nor between the last
wgmma.fence and the WGMMA. Plain moves are excepted, since compilers put them there: they carry the result,
and that it is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.warpgroups import Warpgroups
    from emulator.machine.wave import Array, Wave
    from emulator.machine.wgmma_operands import Form

Bools = npt.NDArray[np.bool_]


class HeldRegisters:
    """The registers of a wave that WGMMAs read or write, or plain moves bring to or from those."""

    def __init__(self, w: Wave, of: Warpgroups) -> None:
        self._w = w
        self._of = of
        tracked = sorted(w.kernel.warpgroup_registers)
        self._place = {register: at for at, register in enumerate(tracked)}
        shape = (len(tracked), w.count)
        self._busy = np.zeros(shape, np.int32)
        """Number behind the last operation that has the register."""
        self._touched = np.zeros(shape, np.int64)
        """When it was last touched by anything else."""
        self._now = 1
        self._fenced = np.zeros(w.count, np.int64)
        self._forms: dict[int, Array] = {}
        """By instruction: see _registers_of."""

    def fence(self) -> None:
        """wgmma.fence by the group's warps."""
        self._now += 1
        self._fenced[self._w.warps] = self._now

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
        busy: Bools = self._busy[at, rows] > self._of.waited[rows]
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
        made = self._of.operation(warp, number)
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
        done = self._of.done[rows]
        if (self._busy[a, rows] > done).any() or (self._busy[b, rows] > done).any():
            self._of.compute(rows.tolist(), {p: int(self._of.issued[p]) for p in rows.tolist()})
        value = w.registers[source]
        if value is None:
            value = w.garbage(source)
        w.put_quietly(target, value if w.idx is None else value[w.idx])
        self._busy[b, rows] = self._busy[a, rows]
        self._touched[b, rows] = self._touched[a, rows]

    def hold(self, form: Form) -> None:
        """The group's warps have issued a WGMMA."""
        warps = self._w.warps
        self._busy[self._registers_of(form), warps] = self._of.issued[warps]

    def _registers_of(self, form: Form) -> Array:
        """(n, 1): the places of the registers of D and A."""
        found = self._forms.get(form.site)
        if found is None:
            found = self._forms[form.site] = np.array([[self._place[r]] for r in (*form.d, *form.a)])
        return found

    def check_fence(self, form: Form) -> None:
        """A WGMMA is about to be issued: its registers must not have been touched behind the last fence."""
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


__all__ = ["HeldRegisters"]
