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

from emulator.checks.shadow import ASYNC, OBJECT
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
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index
    from emulator.checks.shadow import Conflict, Shadow
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
            if conflict:
                _shared_conflict(w, conflict, a.site)
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
                    if conflict:
                        _global_conflict(w, conflict, a.site, buffer, shadow)
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
            if conflict:
                _shared_conflict(w, conflict, a.site)
            if twice is not None and not a.strong:
                two_lanes(w, a, granule, twice, data, row, lane)
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
            if conflict:
                _global_conflict(w, conflict, a.site, buffer, shadow)
            if twice is not None and not a.strong:
                two_lanes(w, a, granule, twice, data[which], row[which], lane[which])
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


# -- telling --------------------------------------------------------------------------------------------


def _buffer_at(w: Wave, address: int) -> str | None:
    buffer = w.launch.memory.find(address >> SLOT_BITS)
    return None if buffer is None else buffer.name


def _shared_conflict(w: Wave, c: Conflict, site: int) -> None:
    """A conflict over shared memory, told with the area and stage it is in."""
    offset = c.granule * w.kernel.shared_granule % w.shared.pitch
    name, stage, where = w.launch.area(offset)
    cta = c.granule * w.kernel.shared_granule // w.shared.pitch
    if cta != int(w.cta_of[c.warp]):
        where += f" of CTA {w.launch.cta_name(w, cta)}"
    if c.what == "no proxy fence":
        kind = FaultKind.PROXY
        text = (
            f"it reads or writes {where} of shared memory by the async proxy, which {_who(w, c)} wrote at"
            f" {w.kernel.where(c.other_site)}: there is no fence.proxy.async between the two"
        )
    elif c.other_lane == OBJECT:
        kind, text = FaultKind.RACE, f"it touches {where} of shared memory, where an mbarrier lies"
    elif c.what == "read under way":
        kind = FaultKind.RACE
        text = (
            f"it overwrites {where} of shared memory, which the bulk store of {_who(w, c)} at"
            f" {w.kernel.where(c.other_site)} may still read: no cp.async.bulk.wait_group covers it"
        )
    elif c.other_lane == ASYNC or c.other_warp >= w.clocks.total:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where} of shared memory, " + _agent(w, c)
    elif c.what == "unwritten":
        if not w.launch.watch.strict:
            return
        kind, text = FaultKind.READ_UNWRITTEN, f"it reads {where} of shared memory, which nobody has written"
    elif c.what == "copy under way":
        kind = FaultKind.RACE
        text = (
            f"it touches {where} of shared memory, which the copy of {_who(w, c)} at"
            f" {w.kernel.where(c.other_site)} is still writing: no wait covers that copy"
        )
    else:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where} of shared memory, " + _unordered(w, c)
    w.launch.fault(
        w, kind, site, text, warp=c.warp, lane=c.lane, buffer=name, stage=stage, other_site=c.other_site
    )


def shared_conflict(w: Wave, conflict: Conflict | None, site: int) -> None:
    """Tell a conflict that a copy or matrix load met."""
    if conflict is not None:
        _shared_conflict(w, conflict, site)


_RACES = {
    "write after write": "it overwrites",
    "read after write": "it reads",
    "write after read": "it overwrites",
}


def _unordered(w: Wave, c: Conflict) -> str:
    did = "reads" if c.what == "write after read" else "writes"
    return f"which {_who(w, c)} {did} at {w.kernel.where(c.other_site)}: nothing orders the two"


def _agent(w: Wave, c: Conflict) -> str:
    """Of something that an asynchronous unit does or did."""
    where = w.kernel.where(c.other_site)
    if c.other_warp < w.clocks.total:
        return (
            f"which the asynchronous work that {_who(w, c)} issues at {where} touches: nothing orders the"
            f" two"
        )
    barrier = w.mbarriers.of_agent(c.other_warp)
    if c.what == "write after read":
        return f"which the WGMMA at {where} reads: no wait for its group is known here"
    if barrier is None:
        return f"which the copy at {where} writes: nothing orders the two"
    return (
        f"which the copy at {where} writes that the mbarrier {w.mbarriers.name(barrier.offset)} counts: the"
        f" end of"
        " that phase is not known here"
    )


def _who(w: Wave, c: Conflict) -> str:
    if c.other_warp >= w.clocks.total:
        return "a copy"
    lane = "" if c.other_lane >= 32 else f" lane {c.other_lane}"
    if c.other_warp < 0:
        return "an earlier access"
    other = w.launch.cta_of_number(c.other_warp)
    cta = "" if other == int(w.ctas[w.cta_of[c.warp]]) else f" of CTA {w.launch.cta_at(other)}"
    return f"warp {c.other_warp % w.per_cta}{lane}{cta}"


def global_conflict(w: Wave, conflict: Conflict | None, site: int, buffer: Buffer, shadow: Shadow) -> None:
    """Tell a conflict that a bulk copy met in global memory."""
    if conflict is not None:
        _global_conflict(w, conflict, site, buffer, shadow)


def _global_conflict(w: Wave, c: Conflict, site: int, buffer: Buffer, shadow: Shadow) -> None:
    where = f"{buffer.name} {buffer.index_of(c.granule * w.launch.granule(buffer))}"
    if c.what == "unwritten":
        kind, text = FaultKind.READ_UNWRITTEN, f"it reads {where}, which nobody has written"
    elif c.what == "no proxy fence":
        kind = FaultKind.PROXY
        text = (
            f"it reads or writes {where} by the async proxy, which {_who(w, c)} wrote at"
            f" {w.kernel.where(c.other_site)}: there is no fence.proxy.async between the two"
        )
    elif c.other_lane == ASYNC:
        kind = FaultKind.RACE
        text = (
            f"{_RACES[c.what]} {where}, which the bulk copy that {_who(w, c)} issues at"
            f" {w.kernel.where(c.other_site)} touches: nothing orders the two"
        )
    else:
        kind, text = FaultKind.RACE, f"{_RACES[c.what]} {where}, " + _unordered(w, c)
    w.launch.fault(w, kind, site, text, warp=c.warp, lane=c.lane, buffer=buffer.name, other_site=c.other_site)


def two_lanes(w: Wave, a: Access, granule: Index, twice: Bools, data: U8, row: Index, lane: Index) -> None:
    """Several lanes wrote the same bytes at once: harmless only if all wrote the same."""
    per = max(a.width // granule.shape[1], 1)
    pieces = data[:, : per * granule.shape[1]].reshape(len(data), granule.shape[1], per)
    flat, values = granule.ravel(), pieces.reshape(-1, per)
    order = np.argsort(flat, kind="stable")
    same = flat[order][1:] == flat[order][:-1]
    differs = (values[order][1:] != values[order][:-1]).any(axis=1) & same
    if not differs.any():
        return
    pieces_each = granule.shape[1]
    i, j = int(order[1:][differs][0]) // pieces_each, int(order[:-1][differs][0]) // pieces_each
    if row[i] == row[j]:
        who = "several lanes write"
    else:
        other = int(w.warps[row[j]])
        cta = w.launch.cta_name(w, int(w.cta_of[other]))
        who = f"it and warp {other % w.per_cta} of CTA {cta} write"
    w.launch.fault(
        w, FaultKind.RACE, a.site, f"{who} different values to the same bytes, and nothing orders the two",
        row=int(row[i]), lane=int(lane[i]),
    )  # fmt: skip


# -- counting -------------------------------------------------------------------------------------------


def count_shared(w: Wave, what: str, width: int, address: I64, row: Index) -> None:
    """Requests, passes over the banks, and conflicts: passes beyond the least for that many bytes."""
    if not w.launch.counting:
        return
    # Rows come in order.
    begins = np.concatenate([[True], row[1:] != row[:-1]])
    rows, dense = row[begins], np.cumsum(begins) - 1
    passes = w.counters.shared(width, address - w.shared.base, dense, len(rows))
    lanes = np.bincount(dense)
    least = np.maximum(1, -(-lanes * max(width, 4) // 128))
    warps = w.warps[rows]
    w.counters.add(f"shared_requests.{what}", warps)
    w.counters.add(f"shared_wavefronts.{what}", warps, passes)
    w.counters.add(f"bank_conflicts.{what}", warps, np.maximum(passes - least, 0))


def count_global(w: Wave, what: str, address: I64, width: int, row: Index) -> None:
    """Requests and 32-byte sectors."""
    if not w.launch.counting or not len(address):
        return
    # Rows come in order.
    begins = np.concatenate([[True], row[1:] != row[:-1]])
    rows, dense = row[begins], np.cumsum(begins) - 1
    warps = w.warps[rows]
    w.counters.add(f"global_requests.{what}", warps)
    w.counters.add(f"global_sectors.{what}", warps, w.counters.sectors(address, width, dense, len(rows)))
