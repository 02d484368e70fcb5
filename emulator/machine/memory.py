"""Where do bytes lie: global buffers at far addresses, shared memory of each CTA, parameters, constants?

A buffer is described by nested strides, as a tensor is, and keeps only the bytes that exist: a matrix whose
rows are 2^31 bytes apart costs what its elements cost, and an access between two rows is out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
I64: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

SLOT_BITS = 44
"""Each global buffer begins in a slot of 2^44 bytes of its own: no overrun can reach the next one."""
WINDOW_BITS = 40
SHARED_WINDOW = 1 << WINDOW_BITS
LOCAL_WINDOW = 2 << WINDOW_BITS
PARAM_WINDOW = 3 << WINDOW_BITS
"""Generic addresses of the other spaces; below the first slot."""
FIRST_SLOT = 4
RANK_SHIFT = 24
"""Shared addresses carry the rank of their CTA in its cluster from this bit on, as they do on the device: one
that should have gone through mapa is still the own CTA's."""
# 256 bytes into the slot, as a driver's allocations are aligned; more must be asked for by the plan.
SLOT_START = 256


@dataclass
class Buffer:
    """Global memory that a launch may touch.

    base         address of the first element
    dims         (stride in bytes, count) outermost first; inside them runs of `run_bytes` bytes
    data         the bytes that exist, packed in that order
    writable     False for inputs
    """

    name: str
    base: int
    dims: tuple[tuple[int, int], ...]
    run_bytes: int
    data: U8
    writable: bool

    @classmethod
    def of(
        cls,
        name: str,
        slot: int,
        shape: Sequence[int],
        strides: Sequence[int],
        itemsize: int,
        writable: bool,
        misalign: int = 0,
    ) -> Buffer:
        """An empty buffer for elements of `itemsize` bytes at these strides (bytes). Strides that interleave
        (two dimensions whose extents overlap) are refused."""
        dims = sorted(((s, n) for s, n in zip(strides, shape, strict=True) if n > 1), reverse=True)
        run = itemsize
        if 0 in shape:
            dims, run = [], 0
        while dims and dims[-1][0] == run:
            run *= dims.pop()[1]
        inner = run
        for stride, count in reversed(dims):
            if stride < inner:
                raise ValueError(f"{name}: strides {tuple(strides)} of shape {tuple(shape)} overlap")
            inner = stride * (count - 1) + inner
        total = run
        for _, count in dims:
            total *= count
        base = (slot << SLOT_BITS) + SLOT_START + misalign
        # Room for a view of whole 16-byte words, whatever the size.
        data = np.zeros(total + (-total % 16), np.uint8)
        return cls(name, base, tuple(dims), run, data, writable)

    @property
    def size(self) -> int:
        """Bytes that exist."""
        total = self.run_bytes
        for _, count in self.dims:
            total *= count
        return total

    @property
    def extent(self) -> int:
        """Bytes from the first to behind the last that exists."""
        if self.run_bytes == 0:
            return 0
        return self.run_bytes + sum(stride * (count - 1) for stride, count in self.dims)

    def offsets(self, address: I64, width: int) -> tuple[I64, Bools]:
        """Offset into `data` of each address, and whether `width` bytes from there exist."""
        rest = address - self.base
        ok = rest >= 0
        if not self.dims:
            return rest, ok & (rest + width <= self.run_bytes)
        packed = self.size
        offset = np.zeros_like(rest)
        for stride, count in self.dims:
            packed //= count
            index = rest // stride
            ok &= index < count
            offset += index * packed
            rest = rest - index * stride
        return offset + rest, ok & (rest + width <= self.run_bytes)

    def index_of(self, offset: int) -> str:
        """How a person finds an offset into `data`: `row 3 + 12 bytes`, or `byte 12`."""
        if not self.dims:
            return f"byte {offset}"
        packed, words = self.size, []
        for _, count in self.dims:
            packed //= count
            words.append(str(offset // packed))
            offset %= packed
        return f"row {', '.join(words)}, byte {offset}"


class GlobalMemory:
    """The buffers of one plan, found by address."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(self, buffer: Buffer) -> None:
        """A buffer in the slot that its base names: the next one."""
        assert buffer.base >> SLOT_BITS == self.next_slot
        self.buffers.append(buffer)

    @property
    def next_slot(self) -> int:
        """The slot of the next buffer."""
        return FIRST_SLOT + len(self.buffers)

    def find(self, slot: int) -> Buffer | None:
        """The buffer of a slot."""
        at = slot - FIRST_SLOT
        return self.buffers[at] if 0 <= at < len(self.buffers) else None


class SharedMemory:
    """Shared memory of the resident CTAs: `size` bytes each, after a base that nothing may be assumed of."""

    def __init__(self, ctas: int, size: int, base: int) -> None:
        self.base = base
        self.size = size
        self.pitch = size + (-size % 16)
        # Garbage that is a NaN in every float format: what nobody wrote shows in any result.
        self.data = np.full(max(ctas * self.pitch, 16), 0xFF, np.uint8)
