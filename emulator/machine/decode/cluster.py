"""Clusters: barrier.cluster, mapa, getctarank; and what is only a hint here (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

import numpy as np

from emulator.machine.decode.context import Context
from emulator.machine.memory import RANK_SHIFT
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Address, Imm, Operand
from emulator.report import FaultKind

_LOW = (1 << RANK_SHIFT) - 1
_PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")


def arrive(c: Context) -> Step:
    """barrier.cluster.arrive{.release, .relaxed}{.aligned}."""
    c.one_of("arrive")
    c.allow("cluster", "arrive", "release", "relaxed", "aligned")
    relaxed, aligned, site = c.has("relaxed"), c.has("aligned"), c.site

    def step(w: Wave) -> None:
        if aligned:
            w.need(site, w.present())
        w.clusters.arrive(relaxed, site)
        w.jump(site + 1)

    return step


def wait(c: Context) -> Step:
    """barrier.cluster.wait{.acquire}{.aligned}."""
    c.allow("cluster", "wait", "acquire", "aligned")
    aligned, site = c.has("aligned"), c.site

    def step(w: Wave) -> None:
        if aligned:
            w.need(site, w.present())
        w.clusters.wait(site)

    return step


def map_address(c: Context) -> Step:
    """mapa{.shared::cluster}.{u32, u64} d, a, rank."""
    c.allow("shared::cluster", "u32", "u64")
    target, source, rank = c.operands(3)
    bits = 64 if c.has("u64") else 32
    read = c.value(source, bits) if not isinstance(source, Address) else c.address(source)
    which, write, site = c.value(rank, 32), c.dest(target, bits), c.site

    def step(w: Wave) -> None:
        ranks = w.whole(which(w)).astype(np.int64)
        beyond = (ranks >= w.cluster) & w.mask_full()
        if beyond.any():
            row, lane = (int(x[0]) for x in np.nonzero(beyond))
            text = f"rank {int(ranks[row, lane])} of a cluster of {w.cluster} CTAs"
            w.launch.fault(w, FaultKind.PEER, site, text, row=row, lane=lane)
        address = w.whole(read(w)).astype(np.int64)
        # A generic address keeps its window.
        high = address >> 40 << 40
        mapped: Array = high | (address & _LOW) | ranks << RANK_SHIFT
        write(w, mapped.astype(np.uint64 if bits == 64 else np.uint32))

    return step


def rank_of(c: Context) -> Step:
    """getctarank{.shared::cluster}.{u32, u64} d, a: the rank of the CTA that an address is of."""
    c.allow("shared::cluster", "u32", "u64")
    target, source = c.operands(2)
    read, write = c.value(source, 64 if c.has("u64") else 32), c.dest(target, 32)

    def step(w: Wave) -> None:
        address = w.whole(read(w)).astype(np.int64)
        write(w, ((address & (1 << 40) - 1) >> RANK_SHIFT).astype(np.uint32))

    return step


def launch_control(c: Context) -> Step:
    """griddepcontrol: the grids before have ended, as all steps of a plan follow each other."""
    c.allow(c.one_of("launch_dependents", "wait"))
    c.operands(0)
    return lambda w: None


def _share(c: Context) -> Operand:
    """The target of `policy{, fraction}`."""
    target, *fraction = c.operands(1, 2)
    for op in fraction:
        c.value(op, 32, "f32")
        if isinstance(op, Imm) and not (op.kind != "int" and 0 < op.as_float() <= 1):
            raise c.error("a fraction is over 0.0 and up to 1.0")
    return target


def _range(c: Context) -> Operand:
    """The target of `policy, [a], primary, total`."""
    target, start, *sizes = c.operands(4)
    c.address(start)
    for op in sizes:
        c.value(op, 32)
    first, total = sizes
    if isinstance(first, Imm) and isinstance(total, Imm) and first.value > total.value:
        raise c.error("the primary size is greater than the whole")
    return target


def policy(c: Context) -> Step:
    """createpolicy.{fractional, range, cvt}: a cache policy, opaque bits that no cache is here to keep to."""
    form = c.one_of("fractional", "range", "cvt")
    if form == "cvt":
        c.allow("cvt", "b64", c.one_of("L2"))
        target, source = c.operands(2)
        c.value(source, 64)
    else:
        c.allow(form, "b64", *_PRIORITIES, *(("global",) if form == "range" else ()))
        first, *second = [m for m in c.i.modifiers if m in _PRIORITIES] or [""]
        if not first or second not in ([], ["L2::evict_first"], ["L2::evict_unchanged"]):
            raise c.error("no priority of L2, or for the rest another than evict_first and evict_unchanged")
        target = _share(c) if form == "fractional" else _range(c)
    if not c.has("b64"):
        raise c.error("a policy has .b64")
    write = c.dest(target, 64)
    return lambda w: write(w, np.full((1, 1), 0x14F0000000000000, np.uint64))


__all__ = ["arrive", "launch_control", "map_address", "policy", "rank_of", "wait"]
