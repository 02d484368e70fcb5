"""How do accesses and fences take part in the order of memory (PTX ISA 8, 9.7.13.4)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.machine.decode.context import Context
from emulator.machine.wave import Array, Step, Wave

if TYPE_CHECKING:
    from emulator.checks.clocks import I32

SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True)
class Strength:
    """How an access takes part in the order of memory (PTX ISA 8.4 to 8.8)."""

    strong: bool
    acquires: bool
    releases: bool
    near: bool
    """Of scope .cta."""

    @classmethod
    def of(cls, c: Context, atomic: bool = False) -> Strength:
        """From the modifiers. A red reads nothing that could acquire (PTX ISA 8.11.1)."""
        return cls(
            atomic or c.has("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"),
            c.has("acquire", "acq_rel") and c.i.opcode != "red",
            c.has("release", "acq_rel"),
            c.has("cta"),
        )

    def read(self, w: Wave, space: str, address: Array, row: Array) -> None:
        """Strong reads of words."""
        if not w.launch.marks:
            return
        for n, at in enumerate(address.tolist()):
            warp = int(w.warps[row[n]])
            w.clocks.read_mark(warp, w.launch.key(w, space, at, int(row[n])), self.acquires, self.near)

    def before_write(self, w: Wave, row: Array) -> dict[int, I32]:
        """By row of the group, what writes of its lanes hand on."""
        found: dict[int, I32] = {}
        if self.releases and w.clocks.full:
            for r in np.unique(row).tolist():
                found[r] = w.clocks.publish(int(w.warps[r]))
                w.released(r)
        return found

    def write(
        self, w: Wave, space: str, address: Array, row: Array, handed: dict[int, I32], keep: bool
    ) -> None:
        """Strong writes of words; `keep`: atomic ones."""
        for n, at in enumerate(address.tolist()):
            r = int(row[n])
            word = w.launch.key(w, space, at, r)
            w.clocks.write_mark(int(w.warps[r]), word, handed.get(r), keep, self.near)


def fence(c: Context) -> Step:
    """fence{.sem}.scope, membar.level, fence.mbarrier_init, fence.proxy."""
    if c.has("proxy"):
        return _proxy_fence(c)
    if c.has("mbarrier_init"):
        c.allow("mbarrier_init", "release", "cluster")
        return lambda w: None if w.fences is None else _barrier_fence(w, near=False)
    c.allow("sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl")
    if not c.has("cta", "cluster", "gpu", "sys", "gl"):
        raise c.error("no scope")
    near = c.has("cta")

    def step(w: Wave) -> None:
        w.counters.add("waits.fence", w.warps)
        for row, warp in enumerate(w.warps.tolist()):
            w.clocks.fence(warp, near)
            if w.clocks.full:
                w.released(row)
        if w.fences is not None:
            _barrier_fence(w, near)

    return step


def _barrier_fence(w: Wave, near: bool) -> None:
    """For the relaxed arrivals and waits at barriers beside it."""
    assert w.fences is not None
    for row in range(w.rows):
        w.fences.fence(row, near)


def _proxy_fence(c: Context) -> Step:
    """fence.proxy.async{.global, .shared::{cta, cluster}}, of one space where it names one (.sync_restrict
    names barriers in shared memory); .alias and .tensormap order nothing that is known here."""
    c.allow("proxy", "async", "async::generic", "alias", "tensormap", "tensormap::generic", "global",
            "shared::cta", "shared::cluster", "acquire", "release", "sync_restrict::shared::cta",
            "sync_restrict::shared::cluster", *SCOPES)  # fmt: skip
    if not c.has("async", "async::generic"):
        return lambda w: None
    spaces: tuple[str, ...] = ("shared", "global")
    if c.has("global"):
        spaces = ("global",)
    elif c.has("shared::cta", "shared::cluster") or any(m.startswith("sync_") for m in c.i.modifiers):
        spaces = ("shared",)

    def step(w: Wave) -> None:
        w.counters.add("waits.proxy_fence", w.warps)
        for row, warp in enumerate(w.warps.tolist()):
            w.clocks.proxy_fence(warp, spaces)
            w.released(row)

    return step


__all__ = ["SCOPES", "Strength", "fence"]
