"""Who waits at which CTA barrier, and when may they go on?

A warp has come to a barrier when all its threads have that have not ended; it then counts for 32 threads (PTX
ISA, bar: counts are multiples of the warp size, and a thread waits for all non-exited threads of its warp).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import I32
    from emulator.checks.shadow import Bools
    from emulator.machine.wave import Wave

_WHOLE = (1 << 32) - 1
COUNT = 16
"""Barriers of a CTA: 0 to 15 (PTX ISA, bar)."""


@dataclass
class Barrier:
    """One barrier of one CTA between two completions."""

    expected: int | None = None
    """Threads, as an instruction named them; None: every thread that has not ended."""
    reduces: bool = False
    lanes: dict[int, int] = field(default_factory=dict)
    """Of each warp that came: bit mask of its lanes that did."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """(warp, bit mask of lanes) that wait."""
    sites: set[int] = field(default_factory=set)
    published: dict[int, I32] = field(default_factory=dict)
    """Of each warp that has come as a whole: its clock."""
    votes: list[tuple[int, int]] = field(default_factory=list)
    """bar.red: (threads that voted, how many of them true)."""
    results: list[tuple[int, int, int, str]] = field(default_factory=list)
    """bar.red: (warp, bit mask of lanes, register, operation) that want the outcome."""

    @property
    def arrived(self) -> int:
        """Threads, as far as they count."""
        return 32 * len(self.published)


class Barriers:
    """The barriers of every CTA of a wave."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._open: dict[tuple[int, int], Barrier] = {}
        self._last: dict[tuple[int, int], dict[int, int]] = {}
        """Who came to the last round of each barrier: stamps by column of the clocks. Whoever comes to the
        next one must know them: else it could as well come before the last is complete, in another's place.
        Rounds of one warp each do not mix with each other, and count as one."""
        self._alone: set[tuple[int, int]] = set()
        """Barriers whose last round was of one warp."""

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
        whole = w.per_cta * 32
        if not 0 <= number < COUNT:
            text = f"barrier {number} is not one of 0 to {COUNT - 1}"
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=0)
            w.jump(site + 1)
            return
        if expected is not None and (expected % 32 or not 0 < expected <= whole):
            w.launch.fault(
                w, FaultKind.BARRIER_COUNT, site,
                f"barrier {number} for {expected} threads: the count must be a multiple of 32, at most the"
                f" {whole} of the CTA", row=0,
            )  # fmt: skip
            w.jump(site + 1)
            return
        w.jump(site + 1)
        w.counters.add("waits.barrier" if wait else "waits.barrier_arrive", w.warps)
        if votes is None and wait and expected in (None, whole) and self._all_at_once(number, site):
            return
        if wait:
            w.set_status(AT_BARRIER)
        mask = w.mask_full()
        bits = np.packbits(mask, axis=1, bitorder="little").view(np.uint32)[:, 0].tolist()
        for row, warp in enumerate(w.warps.tolist()):
            key = (int(w.cta_of[warp]), number)
            barrier = self._open.get(key)
            if barrier is None:
                barrier = self._open[key] = Barrier(expected, votes is not None)
            self._check(barrier, number, expected, votes is not None, warp, bits[row], site, row)
            if not (expected == 32 and key in self._alone):
                self._check_round(key, warp, site, row)
            barrier.expected = barrier.expected or expected
            barrier.lanes[warp] = barrier.lanes.get(warp, 0) | bits[row]
            barrier.sites.add(site)
            if wait:
                barrier.waiting.append((warp, bits[row]))
                if result is not None:
                    barrier.results.append((warp, bits[row], *result))
            if votes is not None:
                barrier.votes.append((bits[row].bit_count(), int((votes[row] & mask[row]).sum())))
            self._complete(key)

    def _all_at_once(self, number: int, site: int) -> bool:
        """The usual case, without a loop: all warps of some CTAs, and nobody else, meet at a barrier of
        all."""
        w = self._wave
        if w.mask is not None or w.rows % w.per_cta:
            return False
        ctas = w.cta_of[w.warps].reshape(-1, w.per_cta)
        if (ctas != ctas[:, :1]).any() or (self._open and any(n == number for _, n in self._open)):
            return False
        if self._last:
            for row, warp in enumerate(w.warps.tolist()):
                self._check_round((int(w.cta_of[warp]), number), warp, site, row)
            for cta in set(w.cta_of[w.warps].tolist()):
                self._last.pop((cta, number), None)  # all know it now
                self._alone.discard((cta, number))
        w.clocks.join_ctas(w.warps)
        return True

    def _check(
        self, barrier: Barrier, number: int, expected: int | None, reduces: bool, warp: int, bits: int,
        site: int, row: int,
    ) -> None:  # fmt: skip
        w = self._wave
        text = None
        whole = w.per_cta * 32
        if (barrier.expected or whole) != (expected or whole):
            text = (
                f"barrier {number} is awaited for {_threads(expected)} here and for"
                f" {_threads(barrier.expected)} by those who came before"
            )
        elif barrier.lanes.get(warp, 0) & bits:
            text = f"it comes to barrier {number} once more before the barrier has completed"
        elif barrier.reduces != reduces:
            text = f"barrier {number} is used with bar.red and without at the same time"
        if text is not None:
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)

    def _check_round(self, key: tuple[int, int], warp: int, site: int, row: int) -> None:
        last = self._last.get(key)
        if last is None:
            return
        w = self._wave
        own = w.clocks.column(warp + w.clocks.base)
        known = w.clocks.known[warp]
        if any(known[at] < stamp for at, stamp in last.items() if at != own):
            text = (
                f"it comes to barrier {key[1]}, and nothing orders that after all that came to it last:"
                " threads of two rounds may mix"
            )
            w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)

    def exited(self) -> None:
        """Threads have ended: barriers may be complete without them."""
        for key in list(self._open):
            self._complete(key)

    def _complete(self, key: tuple[int, int]) -> None:
        from emulator.machine.wave import EXITED, RUN

        w = self._wave
        barrier = self._open[key]
        for warp, bits in barrier.lanes.items():
            if warp in barrier.published:
                continue
            if bits == _WHOLE or (_lanes(bits) | (w.status[warp] == EXITED)).all():
                barrier.published[warp] = w.clocks.release_one(warp)
        if not barrier.published:
            return
        if barrier.expected is None:
            first = key[0] * w.per_cta
            alive = (w.status[first : first + w.per_cta] != EXITED).any(axis=1)
            if any(first + p not in barrier.published for p in np.nonzero(alive)[0].tolist()):
                return
        elif barrier.arrived < barrier.expected:
            return
        del self._open[key]
        self._remember(key, barrier)
        waiting = np.array(sorted({warp for warp, _ in barrier.waiting}), np.intp)
        if len(waiting):
            w.clocks.join(waiting, np.stack(list(barrier.published.values())))
        for warp, bits in barrier.waiting:
            w.status[warp][_lanes(bits) & (w.status[warp] != EXITED)] = RUN
        threads, true = sum(n for n, _ in barrier.votes), sum(t for _, t in barrier.votes)
        for warp, bits, register, op in barrier.results:
            value = true if op == "popc" else true == threads if op == "and" else true > 0
            w.poke(register, warp, _lanes(bits), value)

    def _remember(self, key: tuple[int, int], barrier: Barrier) -> None:
        clocks = self._wave.clocks
        columns = {warp: clocks.column(warp + clocks.base) for warp in barrier.published}
        stamps = {columns[warp]: int(row[columns[warp]]) for warp, row in barrier.published.items()}
        if len(stamps) > 1:
            self._alone.discard(key)
        elif key in self._alone:
            stamps = self._last[key] | stamps
        else:
            self._alone.add(key)
        self._last[key] = stamps

    def describe(self) -> list[str]:
        """Every barrier that is not complete, in a sentence: for a deadlock's report."""
        w = self._wave
        told = []
        for (cta, number), barrier in sorted(self._open.items()):
            first = cta * w.per_cta
            here = sorted(warp - first for warp in barrier.lanes)
            others = [p for p in range(w.per_cta) if p not in here]
            line = (
                f"CTA {w.launch.cta_name(w, cta)}: barrier {number} has {barrier.arrived} of"
                f" {_threads(barrier.expected)}; warps {_list(here)} came"
                f" ({', '.join(sorted({w.kernel.where(site) for site in barrier.sites}))})"
            )
            told.append(line + (f", warps {_list(others)} did not" if others else ""))
        return told


def _lanes(bits: int) -> Bools:
    return np.unpackbits(np.array([bits], np.uint32).view(np.uint8), bitorder="little").view(np.bool_)


def _threads(count: int | None) -> str:
    return "all threads of the CTA" if count is None else f"{count} threads"


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
