"""Clusters: barrier.cluster, mapa, getctarank; and what is only a hint here (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

import numpy as np

from emulator.machine.decode.context import Context
from emulator.machine.memory import RANK_SHIFT
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Address
from emulator.report import FaultKind

_LOW = (1 << RANK_SHIFT) - 1


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
    c.allow("launch_dependents", "wait")
    c.operands(0)
    return lambda w: None


def policy(c: Context) -> Step:
    """createpolicy: a cache policy that no cache is here to keep to."""
    write = c.dest(c.i.operands[0], 64)
    return lambda w: write(w, np.full((1, 1), 0x14F0000000000000, np.uint64))


__all__ = ["arrive", "launch_control", "map_address", "policy", "rank_of", "wait"]
