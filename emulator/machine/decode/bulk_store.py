"""Bulk copies and reductions from shared to global memory, of bytes and of boxes of tensors (PTX ISA
9.7.9.25)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from emulator.machine import access, tensor_maps
from emulator.machine.access import Access
from emulator.machine.bulk import Piece, Source, Store
from emulator.machine.decode.bulk_operands import Parts, chunks_of, granules_of, place_of, threads
from emulator.machine.decode.bulk_reduce import reduction
from emulator.machine.decode.context import Context
from emulator.machine.tensor_maps import Rows, Tensor
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Operand
from emulator.report import FaultKind

I64 = npt.NDArray[np.int64]


def to_global(c: Context, ops: list[Operand], op: str, kind: str) -> Step:
    """cp.{reduce.}async.bulk{.tensor}...global.shared::cta...bulk_group [dst], [src]{, size}. `op`: of a
    reduction; `kind`: its type, unless the tensor says."""
    if not c.has("bulk_group"):
        raise c.error("no .bulk_group")
    tensor = c.has("tensor")
    if len(ops) != (2 if tensor else 3):
        raise c.error(f"{len(c.i.operands)} operands")
    source, site = c.address(ops[1]), c.site
    parts_of = Parts.of(c, ops[0], None if tensor else ops[2])
    apply = None
    if op and not tensor:
        apply = reduction(op, kind, "global")
        if apply is None:
            raise c.error(f"there is no reduction .{op} of .{kind} into global memory")

    def step(w: Wave) -> None:
        for row, lane in threads(w):
            part = parts_of.at(w, row, lane)
            if part is None:
                continue
            found, at, size = part.tensor, part.at, part.size
            place = place_of(w, "shared", source, row, lane, size, part.align, site)
            if place is None:
                continue
            chunks = chunks_of(w, place[1], found, size) + place[0] * w.shared.pitch + place[1]
            used = np.ones(len(chunks), np.bool_)
            use = apply
            if found is not None:
                rows = tensor_maps.rows_of(found, at)
                _check_store(w, found, at, row, lane, site)
                pieces = _box_pieces(w, found, rows, row, lane, site)
                used = _used(found, rows)
                if op:
                    use = reduction(op, found.map.dtype, "tensor")
                    if use is None:
                        text = f"there is no reduction .{op} of a tensor of {found.map.dtype}"
                        w.launch.fault(w, FaultKind.DESCRIPTOR, site, text, row=row, lane=lane)
                        continue
            else:
                pieces = _byte_pieces(w, part.address, size, row, lane, site)
            warp = int(w.warps[row])
            read = access.shared_granules(w, chunks[used], 16).reshape(-1)
            w.bulk.issue_store(Store(site, warp, lane, 0, Source(lane, chunks, read), pieces, use))
            w.counters.add("bytes.shared_to_global", w.warps[[row]], size)
            w.counters.add("bulk.reductions" if op else "bulk.stores", w.warps[[row]])

    return step


def _used(tensor: Tensor, rows: Rows) -> Array:
    """Which 16-byte pieces of a box are stored: what is clipped is not read."""
    each = tensor.row_bytes // 16
    at = np.arange(each) * 16
    inner = (at < rows.high) & (at + 16 > rows.low)
    used: Array = (rows.exists[:, None] & inner[None, :]).reshape(-1)
    return used


def _check_store(w: Wave, tensor: Tensor, at: Sequence[int], row: int, lane: int, site: int) -> None:
    if min(at) < 0:
        text = f"it stores a box at {tuple(at)}: a store may not begin before the tensor"
        w.launch.fault(w, FaultKind.OUT_OF_BOUNDS, site, text, row=row, lane=lane, buffer=tensor.map.buffer)


def _box_pieces(w: Wave, tensor: Tensor, rows: Rows, row: int, lane: int, site: int) -> list[Piece]:
    """Where the part of a box that exists goes. The end of a row is rounded up to 16 bytes: what lies there
    is overwritten (H100, measured by others: a store of 466 bytes a row clobbers 14 more)."""
    some = rows.exists
    if not some.any():
        return []
    at = (np.arange(len(some)) * tensor.row_bytes + rows.low)[some]
    address = rows.address[some]
    width = rows.high - rows.low
    pieces = _write_rows(w, address, width, at, row, lane, site)
    more = -(int(address[0]) + width) % 16
    if more and tensor.map.dims[0] * tensor.map.element_bytes % 16:
        pieces += _write_rows(w, address + width, more, at + width, row, lane, site, "the end of its rows")
    return pieces


def _byte_pieces(w: Wave, address: int, size: int, row: int, lane: int, site: int) -> list[Piece]:
    if address % 16:
        text = f"its destination at {address:#x} is no multiple of 16 bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        return []
    at = np.arange(0, size, 16, dtype=np.int64)
    return _write_rows(w, address + at, 16, at, row, lane, site)


def _write_rows(
    w: Wave, address: I64, width: int, at: I64, row: int, lane: int, site: int, rounding: str = ""
) -> list[Piece]:
    a = Access(site, width, 1, what="bulk store")
    buffer = access.buffer_of(w, a, address, row, lane)
    if buffer is None:
        return []
    offset, inside = buffer.offsets(address, width)
    if rounding and not inside.all():
        i = int(np.argmin(inside))
        beyond = int(address[i]) - buffer.base
        text = (
            f"a tensor store is rounded up to 16 bytes at {rounding}, and writes {width} bytes of"
            f" {buffer.name} at"
            f" byte {beyond} that are not of it"
        )
        w.launch.fault(w, FaultKind.OUT_OF_BOUNDS, site, text, row=row, lane=lane, buffer=buffer.name)
    elif not rounding:
        access.outside(w, a, buffer, address, inside, row, lane)
    if not buffer.writable:
        text = f"it writes to {buffer.name}, which is an input"
        w.launch.fault(w, FaultKind.OUT_OF_BOUNDS, site, text, row=row, lane=lane, buffer=buffer.name)
        return []
    if not inside.any():
        return []
    shadow = w.launch.shadow(buffer)
    assert shadow is not None
    offset = offset[inside]
    return [Piece(buffer, shadow, offset, width, at[inside], granules_of(w, buffer, offset, width))]


__all__ = ["to_global"]
