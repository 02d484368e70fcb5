"""cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk and their groups (PTX ISA 9.7.9.25)."""

from __future__ import annotations

import numpy as np

from emulator.checks import async_shadow
from emulator.machine import access, conflicts
from emulator.machine.bulk import Load, Source
from emulator.machine.decode.bulk_load import to_shared
from emulator.machine.decode.bulk_operands import Tensors, place_of, size_of, targets_of, threads
from emulator.machine.decode.bulk_store import TYPES, to_global
from emulator.machine.decode.context import Context
from emulator.machine.mbarriers import BYTES
from emulator.machine.wave import Step, Wave
from emulator.ptx.nodes import Operand

_OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_SPACES = ("shared::cluster", "shared::cta", "global")
_COMMON = ("async", "bulk", "tensor", "1d", "2d", "3d", "4d", "5d", "tile", "mbarrier::complete_tx::bytes",
           "multicast::cluster", "L2::cache_hint", "bulk_group", *_SPACES)  # fmt: skip


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
    c.allow(*_COMMON, *(("reduce", *_OPS, *TYPES, "noftz") if reduces else ()))
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
        return to_shared(c, ops)
    if spaces[0] == "global":
        return to_global(c, ops, op)
    if reduces:
        raise c.error("reductions into shared memory are not known here")
    return _to_peer(c, ops)


def _to_peer(c: Context, ops: list[Operand]) -> Step:
    """cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dst], [src], size, [mbar]."""
    if c.has("tensor", "multicast::cluster") or len(ops) != 4:
        raise c.error(f"{len(c.i.operands)} operands, or what such a copy has not")
    to, source, barrier, site = c.address(ops[0]), c.address(ops[1]), c.address(ops[3]), c.site
    number = c.value(ops[2], 32)

    def step(w: Wave) -> None:
        for row, lane in threads(w):
            size = size_of(w, number, row, lane, site)
            if size is None:
                continue
            place = place_of(w, "cluster", to, row, lane, size, 16, site)
            own = place_of(w, "shared", source, row, lane, size, 16, site)
            signal = place_of(w, "cluster", barrier, row, lane, BYTES, BYTES, site)
            if place is None or own is None or signal is None:
                continue
            warp = int(w.warps[row])
            parts = targets_of(w, place, signal, None, row, lane, site)
            at = np.arange(0, size, 16, dtype=np.int64)
            read = own[0] * w.shared.pitch + own[1] + at
            granule = access.shared_granules(w, read, 16).reshape(-1)
            for cta, b in parts:
                found = async_shadow.begin_read(w.shared_shadow, "shared", granule, warp, lane, site)
                conflicts.shared_conflict(w, found, site)
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
    tensors = Tensors.of(c, op)

    def step(w: Wave) -> None:
        w.counters.add("bulk.prefetches", w.warps)
        for row, lane in threads(w):
            tensors.at(w, row, lane)

    return step


__all__ = ["bulk"]
