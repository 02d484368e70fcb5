"""cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk and their groups (PTX ISA 9.7.9.25)."""

from __future__ import annotations

import numpy as np

from emulator.checks import async_shadow
from emulator.machine import access, conflicts
from emulator.machine.bulk import Load, Source
from emulator.machine.decode.bulk_load import prefetch, to_shared
from emulator.machine.decode.bulk_operands import SIGNAL, place_of, size_of, targets_of, threads
from emulator.machine.decode.bulk_reduce import TYPES, reduction
from emulator.machine.decode.bulk_store import to_global
from emulator.machine.decode.context import Context
from emulator.machine.mbarriers import BYTES
from emulator.machine.wave import Step, Wave
from emulator.ptx.nodes import Operand

_OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_SPACES = ("shared::cluster", "shared::cta", "global")
_WAYS = (("shared::cluster", "global"), ("shared::cta", "global"), ("global", "shared::cta"),
         ("shared::cluster", "shared::cta"))  # fmt: skip
_TENSOR = ("tensor", "1d", "2d", "3d", "4d", "5d", "tile")


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
    tensor = _TENSOR if c.has("tensor") else ()
    ops = list(c.i.operands)
    if c.has("L2::cache_hint"):
        # A policy is opaque, and no cache is here to keep to it.
        c.value(ops.pop(), 64)
    if c.has("prefetch"):
        c.allow("async", "bulk", "prefetch", "L2", "global", "L2::cache_hint", *tensor)
        if not (c.has("L2") and c.has("global")):
            raise c.error("a prefetch is of global memory, into L2")
        return prefetch(c, ops)
    reduces = c.has("reduce")
    way = tuple(m for m in c.i.modifiers if m in _SPACES)
    if way not in _WAYS or (reduces and way[1] == "global"):
        raise c.error("there is no way between such spaces")
    known = ["async", "bulk", *_SPACES, *tensor, "bulk_group" if way[0] == "global" else SIGNAL]
    if "global" in way:
        known.append("L2::cache_hint")
    if way[1] == "global":
        known.append("multicast::cluster")
    if not reduces:
        c.allow(*known)
        op = kind = ""
    else:
        op, kind = _operation(c, known)
    if way[1] == "global":
        return to_shared(c, ops)
    if way[0] == "global":
        return to_global(c, ops, op, kind)
    return _to_peer(c, ops, op, kind)


def _operation(c: Context, known: list[str]) -> tuple[str, str]:
    """Of a reduction: what it does, and the type, which a tensor map says itself."""
    tensor = c.has("tensor")
    c.allow("reduce", *_OPS, *known, *(() if tensor else (*TYPES, "noftz")))
    ops = [m for m in c.i.modifiers if m in _OPS]
    kinds = [m for m in c.i.modifiers if m in TYPES]
    if len(ops) != 1 or len(kinds) != (not tensor):
        raise c.error("a reduction has one operation, and one type unless it is of a tensor")
    kind = kinds[0] if kinds else ""
    if c.has("noftz") != (ops[0] == "add" and kind in ("f16", "bf16")):
        raise c.error("modifier .noftz goes with sums of halves")
    return ops[0], kind


def _to_peer(c: Context, ops: list[Operand], op: str, kind: str) -> Step:
    """cp.{reduce.}async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes... [dst], [src], size,
    [mbar]."""
    if c.has("tensor") or not c.has(SIGNAL) or len(ops) != 4:
        raise c.error(f"{len(c.i.operands)} operands, or what such a copy has not")
    apply = reduction(op, kind, "shared") if op else None
    if op and apply is None:
        raise c.error(f"there is no reduction .{op} of .{kind} into shared memory")
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
                own_bytes = Source(lane, read, granule)
                w.bulk.issue_load(Load(site, warp, b, offset, None, into, own_bytes, apply), lane)
                w.counters.add("bytes.shared_to_peer", w.warps[[row]], size)
            if op:
                w.counters.add("bulk.reductions", w.warps[[row]])

    return step


__all__ = ["bulk"]
