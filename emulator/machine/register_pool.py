"""How many registers does each warp own, and when may one that asks for more go on?

A CTA begins with the registers of its threads, as many each as fit 64 Ki registers of 32 bits for its
warpgroups, in units of 8, at most 255 (facts by compiling: 384 threads get 168, 512 get 128). setmaxnreg.dec
gives to the pool of the CTA, setmaxnreg.inc waits until the pool has enough (PTX ISA 9.7.19.5). Warps that
end give nothing back. """

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emulator.machine.units import Idle
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.machine.wave import Wave

Bools = npt.NDArray[np.bool_]

_REGISTERS = 65536
_MOST = 256


def at_entry(threads: int, blocks: int = 1) -> int:
    """Registers that a thread owns when a CTA of so many threads begins, `blocks` of them on a
    multiprocessor."""
    warps = -(-threads // 128) * 4
    return min(_REGISTERS // blocks // (32 * warps) // 8 * 8, _MOST)


class RegisterPool(Idle):
    """The pools of all CTAs of a wave."""

    def __init__(self, w: Wave) -> None:
        self._w = w
        said = w.kernel.function.directives
        blocks = int(said["minnctapersm"][0]) if "minnctapersm" in said else 1
        entry = at_entry(math.prod(w.launch.block), blocks)
        if "maxnreg" in said:
            entry = min(entry, int(said["maxnreg"][0]))
        self._entry = entry
        self._owned = np.full(w.count, entry, np.int32)
        self._free = np.zeros(len(w.ctas), np.int64)
        """By CTA, in units of a warp's registers of one number."""
        self._said: dict[int, list[tuple[int, int]]] = {}
        """By warp: (place, count) of each setmaxnreg."""
        self._parked: list[tuple[int, Bools, int, int]] = []

    def give(self, count: int, site: int) -> None:
        """setmaxnreg.dec by the group's warps."""
        w = self._w
        for row, warp in enumerate(w.warps.tolist()):
            self._note(warp, site, count)
            if self._owned[warp] < count:
                text = f"setmaxnreg.dec to {count}, and its threads own {int(self._owned[warp])} registers"
                w.launch.fault(w, FaultKind.REGISTERS, site, text, row=row)
                continue
            self._free[w.cta_of[warp]] += int(self._owned[warp]) - count
            self._owned[warp] = count
        w.events += 1
        for warp, lanes, _, _ in self._parked:
            w.wake(warp, lanes)
        self._parked = []

    def take(self, count: int, site: int) -> None:
        """setmaxnreg.inc by the group's warps: those for whom the pool has not enough stand still."""
        w = self._w
        for row, warp in enumerate(w.warps.tolist()):
            lanes = w.mask_full()[row]
            more = count - int(self._owned[warp])
            cta = int(w.cta_of[warp])
            if more < 0:
                text = f"setmaxnreg.inc to {count}, and its threads own {int(self._owned[warp])} registers"
                w.launch.fault(w, FaultKind.REGISTERS, site, text, row=row)
                more = 0
            if more > self._free[cta]:
                self._parked.append((*w.park(row, lanes, site), site, count))
                continue
            self._note(warp, site, count)
            self._free[cta] -= more
            self._owned[warp] = max(count, int(self._owned[warp]))
            w.pc[warp, lanes] = site + 1

    def _note(self, warp: int, site: int, count: int) -> None:
        self._said.setdefault(warp, []).append((site, count))

    def ended(self, cta: int, site: int) -> None:
        """See Unit: all warps of a warpgroup must have executed the same."""
        self._agree(cta)

    def _agree(self, cta: int) -> None:
        w = self._w
        for group, site, missing in self._partial(cta):
            w.launch.fault(
                w, FaultKind.REGISTERS, site,
                f"setmaxnreg is executed by {4 - len(missing)} warps of its warpgroup, and not by warp"
                f" {', '.join(map(str, missing))}: it is for all four", warp=group,
            )  # fmt: skip

    def _partial(self, cta: int) -> Iterator[tuple[int, int, list[int]]]:
        """(first warp, place, warps of the CTA that lack it) of warpgroups that do not agree."""
        w = self._w
        first, end = cta * w.per_cta, (cta + 1) * w.per_cta
        for group in range(first, end, 4):
            said = [self._said.get(warp, []) for warp in range(group, min(group + 4, end))]
            if all(s == said[0] for s in said):
                continue
            at = next(n for n in range(max(map(len, said))) if len({tuple(s[n : n + 1]) for s in said}) > 1)
            most = Counter(s[at] for s in said if len(s) > at).most_common(1)[0][0]
            missing = [i for i, s in enumerate(said) if s[at : at + 1] != [most]]
            yield group, most[0], [group - first + i for i in missing]

    def describe(self) -> list[str]:
        """See Unit."""
        w = self._w
        told = []
        for cta in sorted({int(w.cta_of[warp]) for warp, _, _, _ in self._parked}):
            mine = [(warp, site, count) for warp, _, site, count in self._parked if w.cta_of[warp] == cta]
            warps = ", ".join(sorted({str(warp % w.per_cta) for warp, _, _ in mine}))
            _, site, count = mine[0]
            own = self._owned[cta * w.per_cta : (cta + 1) * w.per_cta]
            told.append(
                f"CTA {w.launch.cta_name(w, cta)}: warp {warps} waits at {w.kernel.where(site)} for {count}"
                f" registers"
                f" a thread; began with {self._entry}, warps own {', '.join(map(str, own.tolist()))}, and"
                f" {int(self._free[cta])} a thread of one warp are free"
                + "".join(
                    f"; warp {', '.join(map(str, missing))} of its warpgroup did not execute that at"
                    f" {w.kernel.where(at)}"
                    for _, at, missing in self._partial(cta)
                    if at != site
                )
            )
        return told


__all__ = ["RegisterPool", "at_entry"]
