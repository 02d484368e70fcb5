"""Which tensor does an instruction name, and where do the rows of a box lie in memory?

The emulator has tensor maps of its own, 128 bytes that only say which one of the launch they are: a kernel
can do nothing with a map but hand on its address.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rooftile.plan.tensor_map import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, ConcreteTensorMap

from emulator.machine.memory import PARAM_WINDOW, SLOT_BITS, WINDOW_BITS
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.wave import Wave

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MAGIC = b"rooftile tensor "


@dataclass(frozen=True)
class Tensor:
    """A tensor map with the address of its tensor."""

    map: ConcreteTensorMap
    address: int

    @property
    def row_bytes(self) -> int:
        """Of a row of the box, in shared memory."""
        return self.map.box[0] * self.map.element_bytes

    @property
    def box_bytes(self) -> int:
        """Of the whole box."""
        rows = 1
        for size in self.map.box[1:]:
            rows *= size
        return rows * self.row_bytes


class TensorMaps:
    """The tensor maps of a launch, as they are packed."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def encode(self, tensor: ConcreteTensorMap, address: int) -> bytes:
        """Its 128 bytes (`rooftile.plan.Encode`)."""
        self.tensors.append(Tensor(tensor, address))
        head = _MAGIC + struct.pack("<I", len(self.tensors) - 1)
        return (head + struct.pack("<I", zlib.crc32(head))).ljust(TENSOR_MAP_BYTES, b"\xa5")


def tensor_at(w: Wave, address: int, row: int, lane: int, site: int) -> Tensor | None:
    """The tensor whose map lies at a generic address. Faults are told here."""
    text = None
    if address % TENSOR_MAP_ALIGN:
        text = f"its tensor map at {address:#x} is no multiple of {TENSOR_MAP_ALIGN} bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        return None
    data = b""
    if address >> WINDOW_BITS == PARAM_WINDOW >> WINDOW_BITS:
        at = address - PARAM_WINDOW
        data = w.launch.params[at : at + TENSOR_MAP_BYTES]
    else:
        buffer = w.launch.memory.find(address >> SLOT_BITS)
        if buffer is not None:
            offset, inside = buffer.offsets(np.array([address], np.int64), TENSOR_MAP_BYTES)
            if inside[0]:
                data = buffer.data[int(offset[0]) : int(offset[0]) + TENSOR_MAP_BYTES].tobytes()
    head = data[:20]
    if (
        len(data) == TENSOR_MAP_BYTES
        and data[:16] == _MAGIC
        and data[20:24] == struct.pack("<I", zlib.crc32(head))
    ):
        number: int = struct.unpack("<I", data[16:20])[0]
        if number < len(w.launch.tensors):
            return w.launch.tensors[number]
    text = f"no tensor map of this launch lies at {address:#x}"
    w.launch.fault(w, FaultKind.DESCRIPTOR, site, text, row=row, lane=lane)
    return None


@dataclass(frozen=True)
class Rows:
    """The rows of a box in memory: address of the first element that exists, whether the row exists, and
    which bytes of it do, `low` to `high` - 1 (the same for all)."""

    address: I64
    exists: Bools
    low: int
    high: int


@lru_cache(4096)
def rows_of(t: Tensor, at: tuple[int, ...]) -> Rows:
    """The box at coordinates `at` (elements, innermost first). Read-only: CTAs ask for the same ones."""
    m = t.map
    address: I64 = np.zeros(1, np.int64)
    exists: Bools = np.ones(1, np.bool_)
    for size, dim, stride, first in zip(m.box[1:], m.dims[1:], m.strides, at[1:], strict=True):
        index = np.arange(first, first + size)
        inside = (index >= 0) & (index < dim)
        address = ((index * stride)[:, None] + address[None, :]).reshape(-1)
        exists = (inside[:, None] & exists[None, :]).reshape(-1)
    low, high = max(0, -at[0]), min(m.box[0], m.dims[0] - at[0])
    low = min(low, m.box[0])
    high = max(high, low)
    each = m.element_bytes
    address = t.address + address + (at[0] + low) * each
    exists = exists & (high > low)
    for found in (address, exists):
        found.setflags(write=False)
    return Rows(address, exists, low * each, high * each)


@cache
def swizzled(chunks: int, swizzle: int, start: int) -> I64:
    """Where the 16-byte pieces of a box lie in shared memory, relative to its first byte; `start`: that
    byte's address modulo 1024. Pieces of 128 (64, 32) bytes of address are exchanged by the address bits
    above (PTX ISA 5.5.7, tensor swizzling modes)."""
    found = np.arange(chunks, dtype=np.int64) * 16 + start
    if swizzle:
        found = swizzle_address(found, swizzle)
    found -= start
    found.setflags(write=False)
    return found


def swizzle_address(address: I64, swizzle: int, base: int = 0) -> I64:
    """The address bits 4 up exchanged as the swizzle of 32, 64 or 128 bytes says; `base`: the row (128 bytes)
    that its pattern begins with."""
    mask = {32: 0x10, 64: 0x30, 128: 0x70}[swizzle]
    return address ^ (((address >> 3) - (base << 4)) & mask)


__all__ = ["Rows", "Tensor", "TensorMaps", "rows_of", "swizzle_address", "swizzled", "tensor_at"]
