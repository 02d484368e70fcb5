"""What did a run do, in the numbers that explain speed? Counted for each role, by warp instructions.

shared_requests, shared_wavefronts   requests of a warp to shared memory, and the passes over the 32 banks
                                     they need: a pass serves each bank one 4-byte word (CUDA C++ Programming
                                     Guide, shared memory); 8- and 16-byte accesses go by half and quarter
                                     warps. bank_conflicts is what is over the least possible.
global_requests, global_sectors      requests to global memory and the 32-byte sectors they touch
bytes                                by path: global_to_shared, global_to_register, register_to_global,
                                     shared_to_register, register_to_shared
mma                                  matrix instructions by shape and type; mma_flops
instructions                         warp instructions by class
waits                                barriers and waits for copies, by kind
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

I64: TypeAlias = npt.NDArray[np.int64]
Index: TypeAlias = npt.NDArray[np.intp]
Classes: TypeAlias = tuple[tuple[str, int], ...]
"""Of instructions: names of counters, with how many there are."""

SECTOR_BYTES = 32
BANKS = 32
_SECTOR_BITS = 46
_SECTORS = (1 << _SECTOR_BITS) - 1


class Counters:
    """Sums of one run, by role."""

    def __init__(self, roles: Mapping[str, range] | None, warps: int) -> None:
        """`roles`: warps of a CTA by name; without any, all warps are `all`."""
        self.names = tuple(roles) if roles else ("all",)
        self._role = np.zeros(max(warps, 1), np.intp)
        if roles:
            for i, members in enumerate(roles.values()):
                for warp in members:
                    if warp < warps:
                        self._role[warp] = i
        self.warps = warps
        self._alone = len(self.names) == 1
        self._sums: list[Counter[str]] = [Counter() for _ in self.names]
        self._counted: tuple[Index, list[int]] | None = None
        """The warps that were counted last, and how many of each role they are."""
        self._blocks: dict[int, tuple[Classes, list[int]]] = {}
        """How often each block of instructions was executed, by role: summed up when asked for."""

    def add(self, name: str, warp: Index, amount: int | npt.NDArray[Any] = 1) -> None:
        """`amount` (one number, or one for each) of `name` for warps (numbers within the wave)."""
        if isinstance(amount, int):
            for sums, n in zip(self._sums, self._by_role(warp), strict=True):
                if n or self._alone:
                    sums[name] += n * amount
            return
        each = np.bincount(self._role[warp % self.warps], amount, len(self.names))
        for sums, n in zip(self._sums, each.tolist(), strict=True):
            if n or self._alone:
                sums[name] += int(n)

    def _by_role(self, warp: Index) -> list[int]:
        """How many of some warps have each role."""
        if self._alone:
            return [len(warp)]
        # Arrays of warps are never changed, and one group of warps is counted several times in a row.
        if self._counted is None or self._counted[0] is not warp:
            each = [0] * len(self.names)
            if len(warp) == 1:
                each[int(self._role[int(warp[0]) % self.warps])] = 1
            else:
                each = np.bincount(self._role[warp % self.warps], minlength=len(self.names)).tolist()
            self._counted = warp, each
        return self._counted[1]

    def block(self, start: int, classes: Classes, warp: Index) -> None:
        """A block of instructions, so many of each class, executed by some warps."""
        known = self._blocks.get(start)
        if known is None:
            known = self._blocks[start] = classes, [0] * len(self.names)
        for i, n in enumerate(self._by_role(warp)):
            known[1][i] += n

    @property
    def sums(self) -> list[Counter[str]]:
        """Of each role."""
        for classes, each in self._blocks.values():
            for sums, n in zip(self._sums, each, strict=True):
                if n:
                    sums.update({name: n * times for name, times in classes})
        self._blocks.clear()
        return self._sums

    def shared(self, word_bytes: int, address: I64, row: Index, rows: int) -> I64:
        """Passes over the banks that each of `rows` requests needs. `address` (n,) of accesses of
        `word_bytes` bytes each, `row` (n,) the request they belong to. Accesses of a request come in lane
        order."""
        words = max(word_bytes // 4, 1)
        word = address[:, None] // 4 + np.arange(words)
        # 4 bytes or less: the warp at once; 8: half warps; 16: quarter warps.
        start = np.searchsorted(row, np.arange(rows))
        within = np.arange(len(row)) - start[row]
        phase = row * words + within // (32 // words)
        key = _distinct((phase[:, None] << 40) + word)
        slot = (key >> 40) * BANKS + (key & (BANKS - 1))
        load = np.bincount(slot, minlength=rows * words * BANKS).reshape(rows, words, BANKS)
        passes: I64 = load.max(axis=2).sum(axis=1)
        return passes

    @staticmethod
    def sectors(address: I64, width: int, row: Index, rows: int) -> I64:
        """32-byte sectors that each of `rows` requests touches."""
        # Addresses may be wild: those of buffers have 51 bits at most.
        first = address // SECTOR_BYTES & _SECTORS
        last = (address + width - 1) // SECTOR_BYTES & _SECTORS
        high = row.astype(np.int64) << _SECTOR_BITS
        key = high ^ first
        if (first != last).any():
            key = np.concatenate([key, high ^ last])
        return np.bincount(_distinct(key) >> _SECTOR_BITS, minlength=rows)

    def to_json(self) -> dict[str, Any]:
        """{role: {name: number}}, names with a dot as nested objects."""
        found: dict[str, Any] = {}
        for role, sums in zip(self.names, self.sums, strict=True):
            mine: dict[str, Any] = {}
            for name in sorted(sums):
                group, _, leaf = name.partition(".")
                if leaf:
                    mine.setdefault(group, {})[leaf] = sums[name]
                else:
                    mine[name] = sums[name]
            found[role] = mine
        return found

    def merge(self, other: Counters) -> None:
        """Add the sums of another wave or launch."""
        for mine, its in zip(self.sums, other.sums, strict=True):
            mine.update(its)


def _distinct(key: I64) -> I64:
    """Each value once. Sorting a few thousand numbers is quicker than np.unique's table."""
    key = np.sort(key, axis=None)
    first = np.ones(len(key), np.bool_)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    found: I64 = key[first]
    return found
