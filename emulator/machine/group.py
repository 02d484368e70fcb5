"""Which threads run now, and what do registers hold?

The group are the warps that run together, some of the wave's; all it reads and writes are arrays (rows, 32)
of its warps. Register arrays are never changed in place: a write makes a new one, so a `mov` may hand on the
array itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from emulator.kernel import Kernel
    from emulator.machine.warpgroups import Warpgroups

Array: TypeAlias = npt.NDArray[Any]
Index: TypeAlias = npt.NDArray[np.intp]

WARP = 32

GARBAGE = {
    "pred": np.bool_(True),
    8: np.uint8(0xFF),
    16: np.uint16(0x7FFF),
    32: np.uint32(0x7FFFDEAD),
    64: np.uint64(0x7FFFDEADDEADDEAD),
}
"""What registers hold that nobody wrote: NaN, or an address far from everything."""


class Group:
    """The group of a wave of `count` warps, and all registers of the wave."""

    warpgroups: Warpgroups
    special: dict[str, Array]
    """Special registers that differ between threads."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.kernel = kernel
        self.count = count
        self.all_warps: Index = np.arange(count)
        self.registers: list[Array | None] = [None] * len(kernel.function.registers)
        self._garbage: dict[int, Array] = {}
        self._tracked: frozenset[int] = kernel.warpgroup_registers
        self.idx: Index | slice | None = None
        """Where its warps lie among all: None for all of them, a slice where they lie side by side."""
        self.mask: npt.NDArray[np.bool_] | None = None
        self.rows = count
        self.warps: Index = self.all_warps
        self.lanes_full = np.tile(np.arange(WARP), count)
        self.rows_full = np.repeat(self.all_warps, WARP)
        self._everywhere = np.ones((count, WARP), np.bool_)
        self._everywhere.setflags(write=False)
        self._carry = np.zeros((count, WARP), np.bool_)

    def focus(self, warps: Index) -> None:
        """Let the group be some warps, in order; whoever calls this sets the mask."""
        first, count = int(warps[0]), len(warps)
        # Basic slices of registers are views, and cost a fraction of a selection.
        self.idx = slice(first, first + count) if int(warps[-1]) - first == count - 1 else warps
        self.warps, self.rows = warps, count

    def get(self, index: int) -> Array:
        """The register's value in the group's rows."""
        if index in self._tracked:
            self.warpgroups.held.touched(index, write=False)
        value = self.registers[index]
        if value is None:
            value = self.garbage(index)
        return value if self.idx is None else value[self.idx]

    def put(self, index: int, value: Array) -> None:
        """Write the group's active lanes."""
        if index in self._tracked:
            self.warpgroups.held.touched(index, write=True)
        if self.idx is None and self.mask is None:
            self.registers[index] = self.whole(value)
        else:
            self._put(index, value)

    def put_quietly(self, index: int, value: Array) -> None:
        """The same, of a register that a WGMMA may have: nobody is told."""
        if self.idx is None and self.mask is None:
            self.registers[index] = self.whole(value)
        else:
            self._put(index, value)

    def _put(self, index: int, value: Array) -> None:
        base = self.registers[index]
        new = (self.garbage(index) if base is None else base).copy()
        if self.mask is None:
            new[self.idx] = value
        elif self.idx is None or isinstance(self.idx, slice):
            np.copyto(new if self.idx is None else new[self.idx], value, where=self.mask)
        else:
            rows = new[self.idx]
            np.copyto(rows, value, where=self.mask)
            new[self.idx] = rows
        self.registers[index] = new

    def poke(self, index: int, warp: int, lanes: npt.NDArray[np.bool_], value: Any) -> None:
        """Write one value to lanes of one warp, whatever runs now."""
        base = self.registers[index]
        new = (self.garbage(index) if base is None else base).copy()
        new[warp, lanes] = value
        self.registers[index] = new

    def garbage(self, index: int) -> Array:
        """What a register holds that nobody wrote."""
        bits = self.kernel.register_bits[index]
        found = self._garbage.get(bits)
        if found is None:
            value = GARBAGE["pred" if bits == 1 else bits]
            found = self._garbage[bits] = np.full((self.count, WARP), value)
            found.setflags(write=False)
        return found

    def carry(self) -> npt.NDArray[np.bool_]:
        """The carry flags of the group's rows."""
        return self._carry[self.warps]

    def set_carry(self, value: npt.NDArray[np.bool_]) -> None:
        """Write the carry flags of the active lanes."""
        rows = self._carry[self.warps]
        np.copyto(rows, value, where=self.mask_full())
        self._carry[self.warps] = rows

    def special_value(self, name: str) -> Array:
        """A special register that differs between lanes or warps."""
        value = self.special[name]
        return value if self.idx is None else value[self.idx]

    def active(self) -> tuple[Index, Index]:
        """(row of the group, lane) of each active lane, rows in order."""
        if self.mask is None:
            n = self.rows * WARP
            return self.rows_full[:n], self.lanes_full[:n]
        found = np.nonzero(self.mask)
        return found[0], found[1]

    def pick(self, value: Array, row: Index, lane: Index) -> Array:
        """value[row, lane] of `active()`."""
        if value.shape != (self.rows, WARP):
            value = np.broadcast_to(value, (self.rows, WARP))
        return value.reshape(-1) if self.mask is None else value[row, lane]

    def spread(self, flat: Array, row: Index, lane: Index) -> Array:
        """The other way: (n,) of active lanes as (rows, 32)."""
        if self.mask is None:
            return flat.reshape(self.rows, WARP)
        value = np.zeros((self.rows, WARP), flat.dtype)
        value[row, lane] = flat
        return value

    def whole(self, value: Array) -> Array:
        """(rows, 32), also of what is the same everywhere."""
        if value.shape == (self.rows, WARP):
            return value
        # broadcast_to costs more than most instructions do.
        full = np.empty((self.rows, WARP), value.dtype)
        full[...] = value
        return full

    def mask_full(self) -> npt.NDArray[np.bool_]:
        """The active lanes as (rows, 32), also where all are."""
        return self._everywhere[: self.rows] if self.mask is None else self.mask


__all__ = ["GARBAGE", "WARP", "Array", "Group", "Index"]
