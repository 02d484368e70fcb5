"""cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk and their groups (PTX ISA 9.7.9.25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.machine import access, tensor_maps
from emulator.machine.access import Access
from emulator.machine.bulk import Load, Piece, Source, Store
from emulator.machine.decode.bulk_reduce import reduction
from emulator.machine.decode.context import Context, Reader
from emulator.machine.mbarriers import BYTES, Mbarrier
from emulator.machine.memory import Buffer
from emulator.machine.tensor_maps import Rows, Tensor
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Address, Operand, Vector
from emulator.report import FaultKind

I64 = npt.NDArray[np.int64]

_OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_TYPES = ("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
_SPACES = ("shared::cluster", "shared::cta", "global")
_COMMON = ("async", "bulk", "tensor", "1d", "2d", "3d", "4d", "5d", "tile", "mbarrier::complete_tx::bytes",
           "multicast::cluster", "L2::cache_hint", "bulk_group", *_SPACES)  # fmt: skip
_TENSOR_ALIGN = 128
"""Of shared memory that TMA touches; 16 for copies of bytes (PTX ISA 9.7.9.25.4.1, 9.7.9.25.5.2)."""


def bulk(c: Context) -> Step:
    """Every cp.async.bulk and cp.reduce.async.bulk."""
    if c.has("commit_group"):
        c.allow("async", "bulk", "commit_group")
        c.operands(0)
        return lambda w: w.bulk.commit()
    if c.has("wait_group"):
        c.allow("async", "bulk", "wait_group", "read")
        pending, read = c.integer(c.operands(1)[0]), c.has("read")
        return lambda w: w.bulk.wait(pending, read)
    if c.has("prefetch"):
        return _prefetch(c)
    reduces = c.has("reduce")
    op = next((m for m in c.i.modifiers if m in _OPS), "")
    c.allow(*_COMMON, *(("reduce", *_OPS, *_TYPES, "noftz") if reduces else ()))
    if reduces != bool(op):
        raise c.error("a reduction has an operation, and nothing else has one")
    spaces = [m for m in c.i.modifiers if m in _SPACES]
    if len(spaces) != 2:
        raise c.error("not two spaces")
    ops = list(c.i.operands)
    if c.has("L2::cache_hint"):
        ops.pop()
    if spaces[1] == "global":
        if reduces:
            raise c.error("there is no reduction from global memory")
        return _to_shared(c, ops)
    if spaces[0] == "global":
        return _to_global(c, ops, op)
    if reduces:
        raise c.error("reductions into shared memory are not known here")
    return _to_peer(c, ops)


# -- what one thread asks for ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensors:
    """Reads the tensor and coordinates of `[map, {c0, c1}]`."""

    read: Reader
    coords: tuple[Reader, ...]
    site: int

    @classmethod
    def of(cls, c: Context, op: Operand) -> _Tensors:
        if not isinstance(op, Address) or not isinstance(op.coords, Vector):
            raise c.error("no tensor with coordinates")
        rank = int(c.one_of("1d", "2d", "3d", "4d", "5d")[0])
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


def _threads(w: Wave) -> list[tuple[int, int]]:
    row, lane = w.active()
    return list(zip(row.tolist(), lane.tolist(), strict=True))


def _place(
    w: Wave, space: str, read: Reader, row: int, lane: int, width: int, align: int, site: int
) -> tuple[int, int] | None:
    """(CTA, offset) of shared memory that a thread names."""
    address = w.whole(read(w))[row, lane].reshape(1).astype(np.int64)
    a = Access(site, width, align)
    offset, fine = access.shared_places(w, space, a, address, np.array([row]), np.array([lane]))
    return divmod(int(offset[0]), w.shared.pitch) if fine[0] else None


def _space(c: Context, op: Operand, name: str) -> str:
    return {"shared::cluster": "cluster", "shared::cta": "shared"}[name]


def _size(w: Wave, read: Reader, row: int, lane: int, site: int) -> int | None:
    size = int(w.whole(read(w))[row, lane])
    if size % 16 or size == 0:
        text = f"a bulk copy of {size} bytes; it takes a multiple of 16"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        return None
    return size


@dataclass(frozen=True)
class _Part:
    """What of global memory one thread's copy names: a box of a tensor at its coordinates, or bytes from an
    address on. `align`: of the other end, in shared memory."""

    tensor: Tensor | None
    at: tuple[int, ...]
    address: int
    size: int
    align: int


@dataclass(frozen=True)
class _Parts:
    """Reads that part."""

    tensors: _Tensors | None
    address: Reader | None
    number: Reader | None
    site: int

    @classmethod
    def of(cls, c: Context, op: Operand, length: Operand | None) -> _Parts:
        """`length`: the operand that says how many bytes; None: `op` is a tensor with coordinates."""
        if length is None:
            return cls(_Tensors.of(c, op), None, None, c.site)
        return cls(None, c.address(op), c.value(length, 32), c.site)

    def at(self, w: Wave, row: int, lane: int) -> _Part | None:
        """That of one thread; None where it was accused."""
        if self.tensors is not None:
            named = self.tensors.at(w, row, lane)
            if named is None:
                return None
            tensor, at = named
            return _Part(tensor, tuple(at), 0, tensor.box_bytes, _TENSOR_ALIGN)
        assert self.number is not None
        assert self.address is not None
        size = _size(w, self.number, row, lane, self.site)
        if size is None:
            return None
        return _Part(None, (), int(w.whole(self.address(w))[row, lane]), size, 16)


def _chunks(w: Wave, offset: int, tensor: Tensor | None, size: int) -> I64:
    """Offsets, from the first byte, of the 16-byte pieces that lie in shared memory from `offset` on."""
    start = (offset + w.shared.base) % 1024
    return tensor_maps.swizzled(size // 16, tensor.map.swizzle if tensor is not None else 0, start)


# -- global to shared -----------------------------------------------------------------------------------


def _to_shared(c: Context, ops: list[Operand]) -> Step:
    """...shared::cluster.global...mbarrier::complete_tx::bytes{.multicast::cluster} [dst], [src], ...,
    [mbar]."""
    multicast = ops.pop() if c.has("multicast::cluster") else None
    if not c.has("mbarrier::complete_tx::bytes"):
        raise c.error("no way to tell that it ends")
    tensor = c.has("tensor")
    if len(ops) != (3 if tensor else 4):
        raise c.error(f"{len(c.i.operands)} operands")
    space = _space(c, ops[0], c.i.modifiers[min(i for i, m in enumerate(c.i.modifiers) if m in _SPACES)])
    to, barrier, site = c.address(ops[0]), c.address(ops[-1]), c.site
    parts_of = _Parts.of(c, ops[1], None if tensor else ops[2])
    mask = None if multicast is None else c.value(multicast, 16)

    def step(w: Wave) -> None:
        for row, lane in _threads(w):
            part = parts_of.at(w, row, lane)
            if part is None:
                continue
            found, at, size = part.tensor, part.at, part.size
            place = _place(w, space, to, row, lane, size, part.align, site)
            signal = _place(w, space, barrier, row, lane, BYTES, BYTES, site)
            if place is None or signal is None:
                continue
            if found is not None:
                data = _box(w, found, at, row, lane, site)
            else:
                data = _bytes(w, part.address, size, row, lane, site)
            ranks = None if mask is None else int(w.whole(mask(w))[row, lane])
            parts = _targets(w, place, signal, ranks, row, lane, site)
            chunks = _chunks(w, place[1], found, size)
            warp = int(w.warps[row])
            for cta, b in parts:
                offset = cta * w.shared.pitch + place[1] + chunks
                granule = access.shared_granules(w, offset, 16).reshape(-1)
                w.bulk.issue_load(Load(site, warp, b, offset, data, granule), lane)
            _count_load(w, warp, size, found is not None, len(parts))

    return step


def _count_load(w: Wave, warp: int, size: int, boxes: bool, parts: int) -> None:
    one = np.array([warp])
    w.counters.add("bytes.global_to_shared", one, size)
    w.counters.add("bulk.load_boxes" if boxes else "bulk.loads", one)
    if parts > 1:
        w.counters.add("bytes.multicast_to_shared", one, size * parts)


def _targets(
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
    if address % 16:
        text = f"its source at {address:#x} is no multiple of 16 bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row, lane=lane)
        address -= address % 16
    at = address + np.arange(0, size, 16, dtype=np.int64)
    return _read_rows(w, at, 16, row, lane, site)


def _read_rows(w: Wave, address: I64, width: int, row: int, lane: int, site: int) -> Array:
    """(n, width) bytes of global memory, read by the async proxy for a thread."""
    from emulator.checks import async_shadow
    from emulator.machine.copies import load

    found = np.full((len(address), width), 0xFF, np.uint8)
    a = Access(site, width, 1, what="bulk copy")
    buffer = access.buffer_of(w, a, address, row, lane)
    if buffer is None:
        return found
    offset, inside = buffer.offsets(address, width)
    access.outside(w, a, buffer, address, inside, row, lane)
    offset = offset[inside]
    shadow = w.launch.shadow(buffer)
    if shadow is not None and len(offset):
        granule = _granules(w, buffer, offset, width)
        warps = np.array([w.warps[row]])
        conflict = async_shadow.after_writes(shadow, "global", granule, warps, True, "read after write")
        access.global_conflict(w, conflict, site, buffer, shadow)
        shadow.read_epoch[granule] = w.clocks.epoch[warps[0]]
        shadow.read_warp[granule] = warps[0] + w.clocks.base
        shadow.read_lane[granule] = lane
        shadow.read_site[granule] = site
    found[inside] = load(buffer.data, offset, width)
    return found


def _granules(w: Wave, buffer: Buffer, offset: I64, width: int) -> I64:
    """The watched pieces of a buffer that rows touch, each once a row."""
    size = w.launch.granule(buffer)
    first, last = offset // size, (offset + width - 1) // size
    n = int((last - first).max()) + 1
    found = first[:, None] + np.arange(n)
    return found.reshape(-1) if (last - first == n - 1).all() else found[found <= last[:, None]]


# -- shared to global -----------------------------------------------------------------------------------


def _to_global(c: Context, ops: list[Operand], op: str) -> Step:
    """cp.{reduce.}async.bulk{.tensor}...global.shared::cta...bulk_group [dst], [src]{, size}."""
    if not c.has("bulk_group"):
        raise c.error("no .bulk_group")
    tensor = c.has("tensor")
    if len(ops) != (2 if tensor else 3):
        raise c.error(f"{len(c.i.operands)} operands")
    source, site = c.address(ops[1]), c.site
    parts_of = _Parts.of(c, ops[0], None if tensor else ops[2])
    kind = None if tensor else next((m for m in reversed(c.i.modifiers) if m in _TYPES), None)
    apply = reduction(op, kind) if op and kind is not None else None
    if op and not tensor and apply is None:
        raise c.error("there is no such reduction of such a type")

    def step(w: Wave) -> None:
        for row, lane in _threads(w):
            part = parts_of.at(w, row, lane)
            if part is None:
                continue
            found, at, size = part.tensor, part.at, part.size
            place = _place(w, "shared", source, row, lane, size, part.align, site)
            if place is None:
                continue
            chunks = _chunks(w, place[1], found, size) + place[0] * w.shared.pitch + place[1]
            used = np.ones(len(chunks), np.bool_)
            use = apply
            if found is not None:
                rows = tensor_maps.rows_of(found, at)
                _check_store(w, found, at, row, lane, site)
                pieces = _box_pieces(w, found, rows, row, lane, site)
                used = _used(found, rows)
                if op:
                    use = reduction(op, found.map.dtype)
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
    return [Piece(buffer, shadow, offset, width, at[inside], _granules(w, buffer, offset, width))]


# -- shared to shared, prefetch -------------------------------------------------------------------------


def _to_peer(c: Context, ops: list[Operand]) -> Step:
    """cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst], [src], size, [mbar]."""
    if c.has("tensor", "multicast::cluster") or len(ops) != 4:
        raise c.error(f"{len(c.i.operands)} operands, or what such a copy has not")
    to, source, barrier, site = c.address(ops[0]), c.address(ops[1]), c.address(ops[3]), c.site
    number = c.value(ops[2], 32)

    def step(w: Wave) -> None:
        from emulator.checks import async_shadow

        for row, lane in _threads(w):
            size = _size(w, number, row, lane, site)
            if size is None:
                continue
            place = _place(w, "cluster", to, row, lane, size, 16, site)
            own = _place(w, "shared", source, row, lane, size, 16, site)
            signal = _place(w, "cluster", barrier, row, lane, BYTES, BYTES, site)
            if place is None or own is None or signal is None:
                continue
            warp = int(w.warps[row])
            parts = _targets(w, place, signal, None, row, lane, site)
            at = np.arange(0, size, 16, dtype=np.int64)
            read = own[0] * w.shared.pitch + own[1] + at
            granule = access.shared_granules(w, read, 16).reshape(-1)
            for cta, b in parts:
                found = async_shadow.begin_read(w.shared_shadow, "shared", granule, warp, lane, site)
                access.shared_conflict(w, found, site)
                offset = cta * w.shared.pitch + place[1] + at
                into = access.shared_granules(w, offset, 16).reshape(-1)
                w.bulk.issue_load(Load(site, warp, b, offset, None, into, Source(lane, read, granule)), lane)
                w.counters.add("bytes.shared_to_peer", w.warps[[row]], size)

    return step


def _prefetch(c: Context) -> Step:
    """cp.async.bulk.prefetch{.tensor}: nothing happens but that its operands are looked at."""
    c.allow("async", "bulk", "prefetch", "tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile",
            "L2::cache_hint")  # fmt: skip
    ops = list(c.i.operands)
    if c.has("L2::cache_hint"):
        ops.pop()
    if not c.has("tensor"):
        if len(ops) != 2:
            raise c.error(f"{len(ops)} operands")
        return lambda w: w.counters.add("bulk.prefetches", w.warps)
    (op,) = ops
    tensors = _Tensors.of(c, op)

    def step(w: Wave) -> None:
        w.counters.add("bulk.prefetches", w.warps)
        for row, lane in _threads(w):
            tensors.at(w, row, lane)

    return step


__all__ = ["bulk"]
