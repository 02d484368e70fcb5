"""Bulk copies from global to shared memory, and prefetches into the L2 cache, of bytes and of boxes of
tensors (PTX ISA 9.7.9.25)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.checks import async_shadow
from emulator.machine import access, conflicts, tensor_maps
from emulator.machine.access import Access
from emulator.machine.bulk import Load
from emulator.machine.copies import load
from emulator.machine.decode.bulk_operands import (
    SIGNAL,
    Parts,
    chunks_of,
    granules_of,
    place_of,
    space_of,
    targets_of,
    threads,
)  # fmt: skip
from emulator.machine.decode.context import Context
from emulator.machine.mbarriers import BYTES
from emulator.machine.memory import Bools, Buffer
from emulator.machine.tensor_maps import Tensor
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Operand
from emulator.report import FaultKind

I64 = npt.NDArray[np.int64]

_SPACES = ("shared::cluster", "shared::cta", "global")


def to_shared(c: Context, ops: list[Operand]) -> Step:
    """...shared::cluster.global...mbarrier::complete_tx::bytes{.multicast::cluster} [dst], [src], ...,
    [mbar]."""
    multicast = ops.pop() if c.has("multicast::cluster") else None
    if not c.has(SIGNAL):
        raise c.error("no way to tell that it ends")
    tensor = c.has("tensor")
    if len(ops) != (3 if tensor else 4):
        raise c.error(f"{len(c.i.operands)} operands")
    space = space_of(c, ops[0], c.i.modifiers[min(i for i, m in enumerate(c.i.modifiers) if m in _SPACES)])
    to, barrier, site = c.address(ops[0]), c.address(ops[-1]), c.site
    parts_of = Parts.of(c, ops[1], None if tensor else ops[2])
    mask = None if multicast is None else c.value(multicast, 16)

    def step(w: Wave) -> None:
        for row, lane in threads(w):
            part = parts_of.at(w, row, lane)
            if part is None:
                continue
            found, at, size = part.tensor, part.at, part.size
            place = place_of(w, space, to, row, lane, size, part.align, site)
            signal = place_of(w, space, barrier, row, lane, BYTES, BYTES, site)
            if place is None or signal is None:
                continue
            if found is not None:
                data = _box(w, found, at, row, lane, site)
            else:
                data = _bytes(w, part.address, size, row, lane, site)
            ranks = None if mask is None else int(w.whole(mask(w))[row, lane])
            parts = targets_of(w, place, signal, ranks, row, lane, site)
            chunks = chunks_of(w, place[1], found, size)
            warp = int(w.warps[row])
            for cta, b in parts:
                offset = cta * w.shared.pitch + place[1] + chunks
                granule = access.shared_granules(w, offset, 16).reshape(-1)
                w.bulk.issue_load(Load(site, warp, b, offset, data, granule), lane)
            _count_load(w, warp, size, found is not None, len(parts))

    return step


def prefetch(c: Context, ops: list[Operand]) -> Step:
    """cp.async.bulk.prefetch{.tensor}.L2.global [src]{, size}: nothing happens but that its operands are
    looked at."""
    tensor, site = c.has("tensor"), c.site
    if len(ops) != (1 if tensor else 2):
        raise c.error(f"{len(c.i.operands)} operands")
    parts_of = Parts.of(c, ops[0], None if tensor else ops[1])

    def step(w: Wave) -> None:
        w.counters.add("bulk.prefetches", w.warps)
        for row, lane in threads(w):
            part = parts_of.at(w, row, lane)
            if part is None:
                continue
            if part.tensor is None:
                address, width = _pieces(w, part.address, part.size, row, lane, site), 16
            else:
                rows = tensor_maps.rows_of(part.tensor, part.at)
                address, width = rows.address[rows.exists], rows.high - rows.low
            if len(address):
                _places(w, Access(site, width, 1, what="bulk prefetch"), address, row, lane)

    return step


def _count_load(w: Wave, warp: int, size: int, boxes: bool, parts: int) -> None:
    one = np.array([warp])
    w.counters.add("bytes.global_to_shared", one, size)
    w.counters.add("bulk.load_boxes" if boxes else "bulk.loads", one)
    if parts > 1:
        w.counters.add("bytes.multicast_to_shared", one, size * parts)


def _fill(tensor: Tensor, count: int) -> Array:
    """`count` bytes of what stands for elements outside a tensor."""
    if tensor.map.fill == "nan":
        value = {"f16": b"\xff\x7f", "bf16": b"\xff\x7f", "f64": b"\xff" * 7 + b"\x7f"}.get(
            tensor.map.dtype, b"\xff\xff\xff\x7f"
        )
        return np.frombuffer(value * (count // len(value)), np.uint8).copy()
    return np.zeros(count, np.uint8)


def _box(w: Wave, tensor: Tensor, at: tuple[int, ...], row: int, lane: int, site: int) -> Array:
    """The bytes of a box, (n, 16), rows one after the other."""
    rows = tensor_maps.rows_of(tensor, at)
    count = len(rows.address)
    data = _fill(tensor, tensor.box_bytes).reshape(count, tensor.row_bytes)
    width = rows.high - rows.low
    if rows.exists.any():
        found = _read_rows(w, rows.address[rows.exists], width, row, lane, site)
        data[rows.exists, rows.low : rows.high] = found
    return data.reshape(-1, 16)


def _bytes(w: Wave, address: int, size: int, row: int, lane: int, site: int) -> Array:
    """`size` bytes at an address, (n, 16)."""
    return _read_rows(w, _pieces(w, address, size, row, lane, site), 16, row, lane, site)


def _pieces(w: Wave, address: int, size: int, row: int, lane: int, site: int) -> I64:
    """Addresses of the 16-byte pieces of `size` bytes of global memory."""
    if address % 16:
        text = f"its source at {address:#x} is no multiple of 16 bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        address -= address % 16
    return address + np.arange(0, size, 16, dtype=np.int64)


def _places(w: Wave, a: Access, address: I64, row: int, lane: int) -> tuple[Buffer, I64, Bools] | None:
    """The buffer that rows lie in, their offsets, and which are inside; None where there is none. Faults are
    told here."""
    buffer = access.buffer_of(w, a, address, row, lane)
    if buffer is None:
        return None
    offset, inside = buffer.offsets(address, a.width)
    access.outside(w, a, buffer, address, inside, row, lane)
    return buffer, offset, inside


def _read_rows(w: Wave, address: I64, width: int, row: int, lane: int, site: int) -> Array:
    """(n, width) bytes of global memory, read by the async proxy for a thread."""
    found = np.full((len(address), width), 0xFF, np.uint8)
    places = _places(w, Access(site, width, 1, what="bulk copy"), address, row, lane)
    if places is None:
        return found
    buffer, offset, inside = places
    offset = offset[inside]
    shadow = w.launch.shadow(buffer)
    if shadow is not None and len(offset):
        granule = granules_of(w, buffer, offset, width)
        warps = np.array([w.warps[row]])
        conflict = async_shadow.after_writes(shadow, "global", granule, warps, True, "read after write")
        conflicts.global_conflict(w, conflict, site, buffer)
        shadow.read_epoch[granule] = w.clocks.epoch[warps[0]]
        shadow.read_warp[granule] = warps[0] + w.clocks.base
        shadow.read_lane[granule] = lane
        shadow.read_site[granule] = site
    found[inside] = load(buffer.data, offset, width)
    return found


__all__ = ["prefetch", "to_shared"]
