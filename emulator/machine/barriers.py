"""Who waits at which CTA barrier, and when may they go on?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import I32
    from emulator.checks.shadow import Bools
    from emulator.machine.wave import Wave

COUNT = 16
"""Barriers of a CTA: 0 to 15 (PTX ISA, bar)."""


@dataclass
class Barrier:
    """One barrier of one CTA between two completions. Counts are of threads."""

    expected: int | None = None
    """As an instruction named it; None: every thread that has not ended."""
    arrived: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """(warp, bit mask of lanes) that wait."""
    came: list[tuple[int, int]] = field(default_factory=list)
    """(warp, site) of every arrival."""
    warps: list[int] = field(default_factory=list)
    published: list[I32] = field(default_factory=list)
    votes: list[tuple[int, int]] = field(default_factory=list)
    """bar.red: (threads that voted, how many of them true)."""
    results: list[tuple[int, int, int, str]] = field(default_factory=list)
    """bar.red: (warp, bit mask of lanes, register, operation) that want the outcome."""


class Barriers:
    """The barriers of every CTA of a wave."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._open: dict[tuple[int, int], Barrier] = {}

    def arrive(
        self,
        number: int,
        expected: int | None,
        wait: bool,
        site: int,
        votes: Bools | None = None,
        result: tuple[int, str] | None = None,
    ) -> None:
        """The active lanes of the group come to barrier `number`; `wait`: they stay until it completes.
        `votes` (rows, 32) and `result` (register; popc, and, or) are those of bar.red."""
        from emulator.machine.wave import AT_BARRIER

        w = self._wave
        if wait:
            w.set_status(AT_BARRIER)
        w.jump(site + 1)
        if not 0 <= number < COUNT:
            w.launch.fault(
                w, FaultKind.BARRIER_COUNT, site, f"barrier {number} is not one of 0 to {COUNT - 1}"
            )
            return
        if expected is not None and (expected % 32 or not 0 < expected <= w.per_cta * 32):
            w.launch.fault(
                w, FaultKind.BARRIER_COUNT, site,
                f"barrier {number} for {expected} threads: the count must be a multiple of 32, at most the"
                f" {w.per_cta * 32} of the CTA",
            )  # fmt: skip
            return
        mask = w.mask_full()
        lanes = mask.sum(axis=1)
        published = w.clocks.release(w.warps)
        w.counters.add("waits.barrier" if wait else "waits.barrier_arrive", w.warps)
        touched = []
        for row, warp in enumerate(w.warps.tolist()):
            key = (int(w.cta_of[warp]), number)
            barrier = self._open.get(key)
            if barrier is None:
                barrier = self._open[key] = Barrier(expected)
            if barrier.expected != expected:
                w.launch.fault(
                    w, FaultKind.BARRIER_COUNT, site,
                    f"barrier {number} is awaited for {_threads(expected)} here and for"
                    f" {_threads(barrier.expected)} by those who came before", row=row,
                )  # fmt: skip
            barrier.arrived += int(lanes[row])
            if expected is not None and barrier.arrived > expected:
                w.launch.fault(
                    w, FaultKind.BARRIER_COUNT, site,
                    f"{barrier.arrived} threads came to barrier {number}, which is for {expected}", row=row,
                )  # fmt: skip
            if wait:
                bits = int(np.packbits(mask[row], bitorder="little").view(np.uint32)[0])
                barrier.waiting.append((warp, bits))
                if result is not None:
                    barrier.results.append((warp, bits, *result))
            barrier.came.append((warp, site))
            barrier.warps.append(warp)
            barrier.published.append(published[row])
            if votes is not None:
                barrier.votes.append((int(lanes[row]), int((votes[row] & mask[row]).sum())))
            touched.append(key)
        for key in dict.fromkeys(touched):
            self._complete(key)

    def exited(self) -> None:
        """Threads have ended: barriers for `every thread` may be complete without them."""
        for key in list(self._open):
            self._complete(key)

    def _complete(self, key: tuple[int, int]) -> None:
        from emulator.machine.wave import EXITED, RUN

        w = self._wave
        barrier = self._open[key]
        expected = barrier.expected
        if expected is None:
            first = key[0] * w.per_cta
            status = w.status[first : first + w.per_cta]
            expected = int((status != EXITED).sum())
        if barrier.arrived < expected or not barrier.came:
            return
        del self._open[key]
        rows = np.stack(barrier.published)
        waiting = np.array([warp for warp, _ in barrier.waiting], np.intp)
        if len(waiting):
            w.clocks.join(np.unique(waiting), rows)
        for warp, bits in barrier.waiting:
            w.status[warp][_lanes(bits)] = RUN
        threads, true = sum(n for n, _ in barrier.votes), sum(t for _, t in barrier.votes)
        for warp, bits, register, op in barrier.results:
            value = true if op == "popc" else true == threads if op == "and" else true > 0
            w.poke(register, warp, _lanes(bits), value)

    def describe(self) -> list[str]:
        """Every barrier that is not complete, in a sentence: for a deadlock's report."""
        w = self._wave
        told = []
        for (cta, number), barrier in sorted(self._open.items()):
            first = cta * w.per_cta
            here = sorted({warp - first for warp in barrier.warps})
            others = [p for p in range(w.per_cta) if p not in here]
            wanted = barrier.expected
            line = (
                f"CTA {w.launch.cta_name(w, cta)}: barrier {number} has {barrier.arrived} of"
                f" {_threads(wanted)}; warps {_list(here)} came"
                f" ({', '.join(sorted({w.kernel.where(site) for _, site in barrier.came}))})"
            )
            told.append(line + (f", warps {_list(others)} did not" if others else ""))
        return told


def _lanes(bits: int) -> Bools:
    return np.unpackbits(np.array([bits], np.uint32).view(np.uint8), bitorder="little").view(np.bool_)


def _threads(count: int | None) -> str:
    return "all threads of the CTA" if count is None else f"{count} threads"


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
