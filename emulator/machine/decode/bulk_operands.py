"""What does a thread's bulk copy name: a box of a tensor, or bytes; a place in shared memory; an mbarrier?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.machine import access, tensor_maps
from emulator.machine.access import Access
from emulator.machine.decode.context import Context, Reader
from emulator.machine.mbarriers import Mbarrier
from emulator.machine.memory import RANK_SHIFT, Buffer
from emulator.machine.tensor_maps import Tensor
from emulator.machine.wave import Wave
from emulator.ptx.nodes import Address, Operand, Vector
from emulator.report import FaultKind

I64 = npt.NDArray[np.int64]

SIGNAL = "mbarrier::complete_tx::bytes"
_TENSOR_ALIGN = 128
"""Of shared memory that TMA touches; 16 for copies of bytes (PTX ISA 9.7.9.25.4.1, 9.7.9.25.5.2)."""


@dataclass(frozen=True)
class Tensors:
    """Reads the tensor and coordinates of `[map, {c0, c1}]`."""

    read: Reader
    coords: tuple[Reader, ...]
    site: int

    @classmethod
    def of(cls, c: Context, op: Operand) -> Tensors:
        if not isinstance(op, Address) or not isinstance(op.coords, Vector):
            raise c.error("no tensor with coordinates")
        ranks = [m for m in c.i.modifiers if m in ("1d", "2d", "3d", "4d", "5d")]
        if len(ranks) != 1:
            raise c.error("not one number of dimensions")
        rank = int(ranks[0][0])
        if len(op.coords.items) != rank:
            raise c.error(f"{len(op.coords.items)} coordinates of {rank} dimensions")
        where = c.address(Address(op.base, op.offset))
        return cls(where, tuple(c.value(item, 32) for item in op.coords.items), c.site)

    def at(self, w: Wave, row: int, lane: int) -> tuple[Tensor, list[int]] | None:
        address = int(w.whole(self.read(w))[row, lane])
        tensor = tensor_maps.tensor_at(w, address, row, lane, self.site)
        if tensor is None:
            return None
        if len(tensor.map.dims) != len(self.coords):
            text = f"{len(self.coords)} coordinates for a tensor of {len(tensor.map.dims)} dimensions"
            w.launch.fault(w, FaultKind.DESCRIPTOR, self.site, text, row=row, lane=lane)
            return None
        return tensor, [int(w.whole(r(w)).view(np.int32)[row, lane]) for r in self.coords]


def threads(w: Wave) -> list[tuple[int, int]]:
    row, lane = w.active()
    return list(zip(row.tolist(), lane.tolist(), strict=True))


def place_of(
    w: Wave, space: str, read: Reader, row: int, lane: int, width: int, align: int, site: int
) -> tuple[int, int] | None:
    """(CTA, offset) of shared memory that a thread names."""
    address = w.whole(read(w))[row, lane].reshape(1).astype(np.int64)
    cta = int(w.cta_of[w.warps[row]])
    rank, where = divmod(int(address[0]), 1 << RANK_SHIFT)
    inner = where - w.shared.base
    own = rank == (int(w.rank[cta]) if w.rank_base is not None else 0) and space != "generic"
    if own and 0 <= inner <= w.shared.size - width and where % align == 0:
        return cta, inner  # the usual case, without arrays of one
    a = Access(site, width, align)
    offset, fine = access.shared_places(w, space, a, address, np.array([row]), np.array([lane]))
    return divmod(int(offset[0]), w.shared.pitch) if fine[0] else None


def space_of(c: Context, op: Operand, name: str) -> str:
    return {"shared::cluster": "cluster", "shared::cta": "shared"}[name]


def size_of(w: Wave, read: Reader, row: int, lane: int, site: int) -> int | None:
    size = int(w.whole(read(w))[row, lane])
    if size % 16 or size == 0:
        text = f"a bulk copy of {size} bytes; it takes a multiple of 16"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        return None
    return size


@dataclass(frozen=True)
class Part:
    """What of global memory one thread's copy names: a box of a tensor at its coordinates, or bytes from an
    address on. `align`: of the other end, in shared memory."""

    tensor: Tensor | None
    at: tuple[int, ...]
    address: int
    size: int
    align: int


@dataclass(frozen=True)
class Parts:
    """Reads that part."""

    tensors: Tensors | None
    address: Reader | None
    number: Reader | None
    site: int

    @classmethod
    def of(cls, c: Context, op: Operand, length: Operand | None) -> Parts:
        """`length`: the operand that says how many bytes; None: `op` is a tensor with coordinates."""
        if length is None:
            return cls(Tensors.of(c, op), None, None, c.site)
        return cls(None, c.address(op), c.value(length, 32), c.site)

    def at(self, w: Wave, row: int, lane: int) -> Part | None:
        """That of one thread; None where it was accused."""
        if self.tensors is not None:
            named = self.tensors.at(w, row, lane)
            if named is None:
                return None
            tensor, at = named
            return Part(tensor, tuple(at), 0, tensor.box_bytes, _TENSOR_ALIGN)
        assert self.number is not None
        assert self.address is not None
        size = size_of(w, self.number, row, lane, self.site)
        if size is None:
            return None
        return Part(None, (), int(w.whole(self.address(w))[row, lane]), size, 16)


def chunks_of(w: Wave, offset: int, tensor: Tensor | None, size: int) -> I64:
    """Offsets, from the first byte, of the 16-byte pieces that lie in shared memory from `offset` on."""
    start = (offset + w.shared.base) % 1024
    return tensor_maps.swizzled(size // 16, tensor.map.swizzle if tensor is not None else 0, start)


def granules_of(w: Wave, buffer: Buffer, offset: I64, width: int) -> I64:
    """The watched pieces of a buffer that rows touch, each once a row."""
    size = w.launch.granule(buffer)
    first, last = offset // size, (offset + width - 1) // size
    n = int((last - first).max()) + 1
    found = first[:, None] + np.arange(n)
    return found.reshape(-1) if (last - first == n - 1).all() else found[found <= last[:, None]]


def targets_of(
    w: Wave, place: tuple[int, int], signal: tuple[int, int], mask: int | None, row: int, lane: int, site: int
) -> list[tuple[int, Mbarrier]]:
    """The CTAs that a copy goes to, each with its mbarrier."""
    warp = int(w.warps[row])
    if mask is None:
        if place[0] != signal[0]:
            text = "its destination and its mbarrier are not in the same CTA"
            w.launch.fault(w, FaultKind.PEER, site, text, row=row, lane=lane)
            return []
        ctas = [place[0]]
    else:
        ctas = []
        for rank in range(16):
            if not mask >> rank & 1:
                continue
            cta = w.clusters.target(row, rank)
            if cta is None:
                text = f"its mask {mask:#x} names rank {rank}, and the cluster has {w.cluster} CTAs"
                w.launch.fault(w, FaultKind.PEER, site, text, row=row, lane=lane)
                continue
            ctas.append(cta)
        if not ctas:
            w.launch.fault(w, FaultKind.PEER, site, f"its mask {mask:#x} names no CTA", row=row, lane=lane)
    found = []
    for cta in ctas:
        if cta in w.clusters.gone:
            text = f"it copies to CTA {w.launch.cta_name(w, cta)} of its cluster, which has ended"
            w.launch.fault(w, FaultKind.PEER, site, text, row=row, lane=lane)
            continue
        b = w.mbarriers.find(cta, signal[1], warp, site)
        if b is not None:
            found.append((cta, b))
    return found
