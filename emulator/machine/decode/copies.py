"""cp.async and its groups (PTX ISA, data movement and conversion instructions: asynchronous copy)."""

from __future__ import annotations

import numpy as np

from emulator.machine import access, conflicts, traffic
from emulator.machine.access import Access
from emulator.machine.copies import Issue
from emulator.machine.decode.bulk import bulk
from emulator.machine.decode.context import Context
from emulator.machine.decode.mbarrier import copies_arrive
from emulator.machine.wave import WARP, Step, Wave
from emulator.ptx.nodes import Imm, Reg

_HINTS = ("L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "L1::evict_last", "L1::evict_first")


def copy(c: Context) -> Step:
    """cp.async...: copies, commit_group, wait_group, wait_all."""
    if c.i.opcode == "cp" and not c.has("async"):
        raise c.error("only cp.async is known here")
    if c.has("bulk"):
        return bulk(c)
    if c.has("commit_group"):
        c.allow("async", "commit_group")
        return lambda w: w.copies.commit()
    if c.has("wait_all", "wait_group"):
        c.allow("async", "wait_all", "wait_group")
        site = c.site
        pending = None if c.has("wait_all") else c.integer(c.operands(1)[0])
        return lambda w: w.copies.wait(pending, site)
    if c.has("mbarrier"):
        return copies_arrive(c)
    return _copy(c)


def _copy(c: Context) -> Step:
    """cp.async.{ca,cg}.shared.global{hints} [dst], [src], size{, src-size | ignore-src}{, policy}."""
    c.allow("async", "ca", "cg", "shared", "shared::cta", "global", *_HINTS)
    ops = list(c.i.operands)
    if c.has("L2::cache_hint"):
        ops.pop()
    if not 3 <= len(ops) <= 4:
        raise c.error(f"{len(ops)} operands")
    size = c.integer(ops[2])
    if size not in ((16,) if c.has("cg") else (4, 8, 16)):
        raise c.error(f"a copy of {size} bytes")
    to, source = c.address(ops[0]), c.address(ops[1])
    short = ignore = None
    if len(ops) == 4:
        if isinstance(ops[3], Reg) and ops[3].type == "pred":
            ignore = c.predicate(ops[3])
        else:
            assert isinstance(ops[3], (Reg, Imm))
            short = c.value(ops[3], 32)
    site = c.site
    landing = Access(site, size, size, what="copy")

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(to(w), row, lane)
        offset, fine = access.shared_offsets(w, landing, address, row, lane)
        at = w.pick(source(w), row, lane)
        sizes = np.full(len(row), size, np.int64)
        if short is not None:
            sizes = np.minimum(w.pick(short(w), row, lane).astype(np.int64), size)
        elif ignore is not None:
            sizes = np.where(w.pick(ignore(w), row, lane), 0, size)
        data = np.zeros((len(row), size), np.uint8)
        misaligned = (at & (size - 1)) != 0
        if misaligned.any():
            # Even a copy of no bytes wants an aligned source (PTX ISA, cp.async).
            access.read(w, "global", landing, at[misaligned], row[misaligned], lane[misaligned])
            sizes = np.where(misaligned, 0, sizes)
        for n in np.unique(sizes[sizes > 0]).tolist():
            which = sizes == n
            part = Access(site, int(n), 1, what="copy")
            data[which, :n] = access.read(w, "global", part, at[which], row[which], lane[which])
        if w.launch.counting:
            w.counters.add("bytes.global_to_register", w.warps[row], -sizes)
            w.counters.add("bytes.global_to_shared", w.warps[row], sizes)
        if not fine.all():
            row, lane, offset, data, address = row[fine], lane[fine], offset[fine], data[fine], address[fine]
        if not len(row):
            return
        warp = w.warps[row]
        granule = access.shared_granules(w, offset, size)
        conflict, twice = w.shared_shadow.write(granule, warp, lane, site, copy=True)
        conflicts.shared_conflict(w, conflict, site)
        if twice is not None:
            conflicts.two_lanes(w, site, size, granule, twice, data, row, lane)
        traffic.count_shared(w, "copy", size, address, row)
        nothing = np.zeros(len(row), np.int32)
        landed = np.zeros(len(row), np.bool_)
        w.copies.issue(Issue(site, warp, lane, nothing, offset, granule, data, landed))

    return step


__all__ = ["WARP", "copy"]
