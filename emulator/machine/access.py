"""What happens when lanes read or write memory: is it there, aligned, ordered, and what does it cost?

All functions take flat lists: address (n,), row of the group (n,), lane (n,), in row order. Accesses that are
refused are told as faults and left out; what they would have read is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.machine.conflicts import global_conflict, shared_conflict, two_lanes
from emulator.machine.copies import load, store
from emulator.machine.memory import (
    FIRST_SLOT,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    SLOT_BITS,
    WINDOW_BITS,
    Buffer,
)
from emulator.machine.traffic import count_global, count_shared
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index
    from emulator.machine.wave import Wave

I64: TypeAlias = npt.NDArray[np.int64]
U8: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Access:
    """What the instruction says of its access."""

    site: int
    width: int
    """Bytes of each lane."""
    align: int
    strong: bool = False
    """Volatile, relaxed or stronger: such accesses do not race with each other."""
    what: str = "access"
    unwritten_ok: bool = False


def read(w: Wave, space: str, a: Access, address: I64, row: Index, lane: Index) -> U8:
    """(n, width) bytes."""
    if space == "generic":
        return _by_space(w, a, address, row, lane, None)
    found = np.full((len(address), a.width), 0xFF, np.uint8)
    ok = _aligned(w, a, address, row, lane)
    if space in ("shared", "cluster"):
        offset, fine = _shared(w, a, address, row, lane, ok, space == "cluster")
        sel = slice(None) if fine.all() else fine
        offset, row, lane, address = offset[sel], row[sel], lane[sel], address[sel]
        if len(offset):
            granule = _granules(offset, a.width, w.kernel.shared_granule)
            conflict = w.shared_shadow.read(granule, w.warps[row], lane, a.site, a.strong)
            shared_conflict(w, conflict, a.site)
            count_shared(w, "load", a.width, address, row)
            w.counters.add("bytes.shared_to_register", w.warps[row], a.width)
            found[sel] = load(w.shared.data, offset, a.width)
        return found
    if space == "global":
        count_global(w, "load", address[ok], a.width, row[ok])
        w.counters.add("bytes.global_to_register", w.warps[row[ok]], a.width)
        for buffer, which in _buffers(w, a, address, row, lane, ok):
            offset, inside = buffer.offsets(address[which], a.width)
            which = _inside(w, a, buffer, address, row, lane, which, inside)
            offset = offset[inside]
            if len(offset):
                shadow = w.launch.shadow(buffer)
                if shadow is not None:
                    granule = _granules(offset, a.width, w.launch.granule(buffer))
                    conflict = shadow.read(granule, w.warps[row[which]], lane[which], a.site, a.strong)
                    global_conflict(w, conflict, a.site, buffer)
                found[which] = load(buffer.data, offset, a.width)
        return found
    if space == "param":
        data = w.launch.params
        inside = ok & (address >= 0) & (address + a.width <= len(data))
        _refuse(w, a, inside | ~ok, address, row, lane, f"the {len(data)} bytes of parameters")
        found[inside] = load(w.launch.param_data, address[inside], a.width)
        return found
    if space == "local":
        offset, inside = _local(w, a, address, row, lane, ok)
        assert w.local is not None
        found[inside] = load(w.local, offset[inside], a.width)
        return found
    assert space == "const"
    return read(w, "global", a, address, row, lane)


def write(w: Wave, space: str, a: Access, address: I64, row: Index, lane: Index, data: U8) -> None:
    """`data` (n, width)."""
    if space == "generic":
        _by_space(w, a, address, row, lane, data)
        return
    ok = _aligned(w, a, address, row, lane)
    if space in ("shared", "cluster"):
        offset, fine = _shared(w, a, address, row, lane, ok, space == "cluster")
        if not fine.all():
            offset, row, lane, address, data = offset[fine], row[fine], lane[fine], address[fine], data[fine]
        if len(offset):
            granule = _granules(offset, a.width, w.kernel.shared_granule)
            same = _unchanged(w.shared.data, offset, data, granule.shape[1])
            conflict, twice = w.shared_shadow.write(
                granule, w.warps[row], lane, a.site, same=same, strong=a.strong
            )
            shared_conflict(w, conflict, a.site)
            if twice is not None and not a.strong:
                two_lanes(w, a.site, a.width, granule, twice, data, row, lane)
            count_shared(w, "store", a.width, address, row)
            w.counters.add("bytes.register_to_shared", w.warps[row], a.width)
            store(w.shared.data, offset, data)
        return
    if space == "global":
        count_global(w, "store", address[ok], a.width, row[ok])
        w.counters.add("bytes.register_to_global", w.warps[row[ok]], a.width)
        for buffer, which in _buffers(w, a, address, row, lane, ok):
            offset, inside = buffer.offsets(address[which], a.width)
            which = _inside(w, a, buffer, address, row, lane, which, inside)
            offset = offset[inside]
            if not len(offset):
                continue
            if not buffer.writable:
                i = int(which[0])
                w.launch.fault(
                    w, FaultKind.OUT_OF_BOUNDS, a.site, f"it writes to {buffer.name}, which is an input",
                    row=int(row[i]), lane=int(lane[i]), buffer=buffer.name,
                )  # fmt: skip
                continue
            shadow = w.launch.shadow(buffer)
            assert shadow is not None
            granule = _granules(offset, a.width, w.launch.granule(buffer))
            same = _unchanged(buffer.data, offset, data[which], granule.shape[1])
            conflict, twice = shadow.write(
                granule, w.warps[row[which]], lane[which], a.site, same=same, strong=a.strong
            )
            global_conflict(w, conflict, a.site, buffer)
            if twice is not None and not a.strong:
                two_lanes(w, a.site, a.width, granule, twice, data[which], row[which], lane[which])
            store(buffer.data, offset, data[which])
        return
    if space == "local":
        offset, inside = _local(w, a, address, row, lane, ok)
        assert w.local is not None
        store(w.local, offset[inside], data[inside])
        return
    i = 0
    w.launch.fault(
        w, FaultKind.OUT_OF_BOUNDS, a.site, f"it writes to .{space}", row=int(row[i]), lane=int(lane[i])
    )


# -- spaces ---------------------------------------------------------------------------------------------


def _by_space(w: Wave, a: Access, address: I64, row: Index, lane: Index, data: U8 | None) -> U8:
    """Generic addresses: each space's in turn."""
    slot = address >> SLOT_BITS
    window = address >> WINDOW_BITS
    found = np.full((len(address), a.width), 0xFF, np.uint8)
    parts = (
        ("global", slot >= FIRST_SLOT, 0),
        ("cluster", window == SHARED_WINDOW >> WINDOW_BITS, SHARED_WINDOW),
        ("local", window == LOCAL_WINDOW >> WINDOW_BITS, LOCAL_WINDOW),
        ("param", window == PARAM_WINDOW >> WINDOW_BITS, PARAM_WINDOW),
    )
    known = np.zeros(len(address), np.bool_)
    for space, which, base in parts:
        if not which.any():
            continue
        known |= which
        if data is None:
            found[which] = read(w, space, a, address[which] - base, row[which], lane[which])
        else:
            write(w, space, a, address[which] - base, row[which], lane[which], data[which])
    _refuse(w, a, known, address, row, lane, "every space")
    return found


def _aligned(w: Wave, a: Access, address: I64, row: Index, lane: Index) -> Bools:
    ok: Bools = (address & (a.align - 1)) == 0
    if not ok.all():
        i = int(np.nonzero(~ok)[0][0])
        w.launch.fault(
            w, FaultKind.MISALIGNED, a.site,
            f"its address {int(address[i]):#x} is no multiple of {a.align} bytes",
            row=int(row[i]), lane=int(lane[i]), buffer=_buffer_at(w, int(address[i])),
        )  # fmt: skip
    return ok


def _buffer_at(w: Wave, address: int) -> str | None:
    buffer = w.launch.memory.find(address >> SLOT_BITS)
    return None if buffer is None else buffer.name


def _shared(
    w: Wave, a: Access, address: I64, row: Index, lane: Index, ok: Bools, cluster: bool = False,
    visits: bool = True,
) -> tuple[I64, Bools]:  # fmt: skip
    """Offsets into the wave's shared memory, and which are fine. `cluster`: that of any CTA of the cluster.
    `visits`: what is touched there is noted, as the peer must live."""
    target = w.cta_of[w.warps[row]]
    if w.rank_base is not None:
        ok, target = _ranks(w, a, address, row, lane, ok, target, cluster, visits)
        address = address & (1 << RANK_SHIFT) - 1
    inner = address - w.shared.base
    fine = ok & (inner >= 0) & (inner + a.width <= w.shared.size)
    if not fine.all() and not (fine | ~ok).all():
        i = int(np.nonzero(~fine & ok)[0][0])
        w.launch.fault(
            w, FaultKind.OUT_OF_BOUNDS, a.site,
            f"{a.width} bytes at {int(inner[i])} of shared memory leave the {w.shared.size} bytes of the CTA",
            row=int(row[i]), lane=int(lane[i]),
        )  # fmt: skip
    return target * w.shared.pitch + inner, fine


def _ranks(
    w: Wave, a: Access, address: I64, row: Index, lane: Index, ok: Bools, own: Index, cluster: bool,
    visits: bool,
) -> tuple[Bools, Index]:  # fmt: skip
    """In a cluster: whose shared memory is meant."""
    rank = address >> RANK_SHIFT
    mine = w.rank[own]
    if (rank == mine).all():
        return ok, own
    wrong = (rank != mine) & (not cluster or (rank < 0) | (rank >= w.cluster))
    if (wrong & ok).any():
        i = int(np.nonzero(wrong & ok)[0][0])
        text = (
            f"{int(address[i]):#x} is shared memory of rank {int(rank[i])} of its cluster, and it is of rank"
            f" {int(mine[i])}" + (f" of {w.cluster}" if cluster else ": that wants shared::cluster")
        )
        kind = FaultKind.PEER if cluster else FaultKind.OUT_OF_BOUNDS
        w.launch.fault(w, kind, a.site, text, row=int(row[i]), lane=int(lane[i]))
    ok = ok & ~wrong
    target = np.where(ok, own - mine + rank, own)
    for i in np.nonzero(ok & (target != own))[0].tolist() if visits else ():
        if not w.clusters.visit(int(target[i]), int(w.warps[row[i]]), a.site, "it touches shared memory of"):
            ok[i] = False
    return ok, target


def _local(w: Wave, a: Access, address: I64, row: Index, lane: Index, ok: Bools) -> tuple[I64, Bools]:
    size = w.kernel.local_bytes
    pitch = size + (-size % 16)
    if w.local is None:
        w.local = np.full(max(w.count * 32 * pitch, 16), 0xFF, np.uint8)
    inside = ok & (address >= 0) & (address + a.width <= size)
    _refuse(w, a, inside | ~ok, address, row, lane, f"the {size} bytes of local memory")
    return (w.warps[row] * 32 + lane) * pitch + address, inside


def _buffers(
    w: Wave, a: Access, address: I64, row: Index, lane: Index, ok: Bools
) -> list[tuple[Buffer, Index]]:
    """The buffers that addresses lie in, with the accesses of each."""
    slot = address >> SLOT_BITS
    if len(slot) and (slot == slot[0]).all():
        groups = [(int(slot[0]), np.nonzero(ok)[0])]
    else:
        groups = [(int(s), np.nonzero(ok & (slot == s))[0]) for s in np.unique(slot)]
    found = []
    for number, which in groups:
        buffer = w.launch.memory.find(number)
        if buffer is not None:
            found.append((buffer, which))
        elif len(which):
            i = int(which[0])
            w.launch.fault(
                w, FaultKind.OUT_OF_BOUNDS, a.site, f"the address {int(address[i]):#x} is in no buffer",
                row=int(row[i]), lane=int(lane[i]),
            )  # fmt: skip
    return found


def _inside(
    w: Wave, a: Access, buffer: Buffer, address: I64, row: Index, lane: Index, which: Index, inside: Bools
) -> Index:
    if inside.all():
        return which
    i = int(which[np.nonzero(~inside)[0][0]])
    at = int(address[i]) - buffer.base
    where = (
        f"{at} bytes from its start"
        if at < 0 or at >= buffer.extent
        else f"byte {at}, in the gap behind a row"
    )
    w.launch.fault(
        w, FaultKind.OUT_OF_BOUNDS, a.site,
        f"{a.width} bytes of {buffer.name} at {where} leave its {buffer.extent} bytes",
        row=int(row[i]), lane=int(lane[i]), buffer=buffer.name,
    )  # fmt: skip
    return which[inside]


def _refuse(w: Wave, a: Access, fine: Bools, address: I64, row: Index, lane: Index, whole: str) -> None:
    if fine.all():
        return
    i = int(np.nonzero(~fine)[0][0])
    w.launch.fault(
        w, FaultKind.OUT_OF_BOUNDS, a.site, f"{a.width} bytes at {int(address[i]):#x} are outside {whole}",
        row=int(row[i]), lane=int(lane[i]),
    )  # fmt: skip


def _granules(offset: I64, width: int, granule: int) -> Index:
    n = max(width // granule, 1)
    return (offset // granule)[:, None] + np.arange(n)


def _unchanged(memory: U8, offset: I64, data: U8, pieces: int) -> Callable[[], Bools]:
    """Where each piece of what is written is what lies there already."""

    def compare() -> Bools:
        now = load(memory, offset, data.shape[1])
        same: Bools = (now == data).reshape(len(data), pieces, -1).all(axis=2)
        return same

    return compare


def shared_granules(w: Wave, offset: I64, width: int) -> Index:
    """The watched pieces of shared memory that accesses touch, (n, pieces)."""
    return _granules(offset, width, w.kernel.shared_granule)


def shared_offsets(w: Wave, a: Access, address: I64, row: Index, lane: Index) -> tuple[I64, Bools]:
    """For copies: offsets into the wave's shared memory, and which accesses are aligned and inside."""
    return _shared(w, a, address, row, lane, _aligned(w, a, address, row, lane))


def shared_places(
    w: Wave, space: str, a: Access, address: I64, row: Index, lane: Index
) -> tuple[I64, Bools]:
    """The same, of mbarriers and for TMA, for a space that may be generic ("shared": the own CTA's,
    "cluster": of all of the cluster)."""
    if space == "generic":
        known = address >> WINDOW_BITS == SHARED_WINDOW >> WINDOW_BITS
        _refuse(w, a, known, address, row, lane, "shared memory")
        offset, fine = _shared(w, a, address - SHARED_WINDOW, row, lane, known, True, False)
        return offset, fine & _aligned(w, a, address, row, lane)
    ok = _aligned(w, a, address, row, lane)
    return _shared(w, a, address, row, lane, ok, space == "cluster", False)


def buffer_of(w: Wave, a: Access, address: I64, row: int, lane: int) -> Buffer | None:
    """The one buffer that all of these addresses lie in; a fault where there is none."""
    n = len(address)
    found = _buffers(w, a, address, np.full(n, row), np.full(n, lane), np.ones(n, np.bool_))
    return found[0][0] if len(found) == 1 else None


def outside(w: Wave, a: Access, buffer: Buffer, address: I64, inside: Bools, row: int, lane: int) -> None:
    """Tell the first access that leaves a buffer, if any does."""
    n = len(address)
    _inside(w, a, buffer, address, np.full(n, row), np.full(n, lane), np.arange(n), inside)
