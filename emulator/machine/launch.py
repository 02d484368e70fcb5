"""How does one launch run: its CTAs in waves, its faults collected, its memory watched?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.checks.clocks import Clocks, Mark
from emulator.checks.shadow import Shadow
from emulator.counters import Counters
from emulator.errors import EmulatorError
from emulator.kernel import Kernel
from emulator.machine.memory import RANK_SHIFT, SLOT_BITS, Buffer, GlobalMemory
from emulator.machine.wave import AT_CONVERGE, EXITED, PARKED, Stop, Wave
from emulator.report import Fault, FaultKind, Limits, Order, Region

if TYPE_CHECKING:
    from emulator.kernel import Location
    from emulator.machine.tensor_maps import Tensor

# Warps that run together at most: more make the arrays leave the cache, fewer make them not worth a call.
RESIDENT_WARPS = 192
# Pieces of shared memory that are watched, and bytes of local memory, of all resident CTAs together.
_WATCHED = 1 << 23
_LOCAL_BYTES = 1 << 28
_MOST_VARIABLES = 1 << 26
"""Bytes of all variables of a module in global and constant memory."""
_MOST_PIECES = 1 << 25
"""Pieces of global memory that are watched, of all buffers that are written: 36 bytes each."""


@dataclass
class Watch:
    """What all launches of a plan share: memory with its shadows, faults, limits, counters."""

    memory: GlobalMemory
    order: Order
    limits: Limits
    regions: Sequence[Region]
    roles: Mapping[str, range] | None
    sm_count: int
    granule: int
    stop_at_first: bool
    counting: bool = True
    strict: bool = True
    fp8_bits: int | None = None
    """Bits of the mantissa that WGMMA keeps of sums of fp8 products; None: all."""
    faults: dict[tuple[Any, ...], Fault] = field(default_factory=dict)
    shadows: dict[str, Shadow] = field(default_factory=dict)
    pieces: int = 0
    """Of all watched buffers."""
    clocks: Clocks = field(default_factory=lambda: Clocks(1, 1, True))
    """Of the wave that runs."""
    _untouched: dict[str, Callable[[], Shadow]] = field(default_factory=dict)
    """Makes the shadows of buffers that nobody has touched: most variables of a module."""
    counters: Counters | None = None
    instructions: int = 0
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def deadline(self) -> float:
        """When the seconds are used up, by time.monotonic()."""
        return self.started + self.limits.seconds

    def buffer_granule(self, buffer: Buffer) -> int:
        """Bytes of a watched piece of a buffer: no access may straddle two."""
        base = buffer.base & -buffer.base
        return math.gcd(self.granule, base, *(buffer.run_bytes,) if buffer.run_bytes else ())

    def shadow(self, buffer: Buffer) -> Shadow | None:
        """The watch over a buffer that is written; inputs need none."""
        found = self.shadows.get(buffer.name)
        if found is None and buffer.name in self._untouched:
            found = self.shadows[buffer.name] = self._untouched.pop(buffer.name)()
        return found

    def watch(self, buffer: Buffer, written: bool, later: bool = False) -> None:
        """Begin to watch; `later`: when it is first touched."""
        piece = self.buffer_granule(buffer)
        granules = buffer.data.size // piece + 1
        self.pieces += granules
        if self.pieces > _MOST_PIECES:
            raise EmulatorError(
                f"{buffer.name} has {buffer.size} bytes, watched in pieces of {piece}: with the others that"
                f" makes {self.pieces} pieces, over {_MOST_PIECES}: emulate smaller sizes"
            )
        if later:
            self._untouched[buffer.name] = lambda: Shadow(granules, 0, self.clocks, written)
        else:
            self.shadows[buffer.name] = Shadow(granules, 0, self.clocks, written)

    def follow(self, clocks: Clocks) -> None:
        """The clocks of the wave that runs now."""
        self.clocks = clocks
        for shadow in self.shadows.values():
            shadow.clocks = clocks


class Launching:
    """One launch of one kernel."""

    def __init__(
        self,
        kernel: Kernel,
        watch: Watch,
        step: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_bytes: int,
        params: bytes,
        cluster: tuple[int, int, int] = (1, 1, 1),
        tensors: Sequence[Tensor] = (),
    ) -> None:
        self.kernel = kernel
        self.watch = watch
        self.memory = watch.memory
        self.order = watch.order
        self.roles = watch.roles
        self.sm_count: int = watch.sm_count
        self.counting = watch.counting
        self.step = step
        self.grid = grid
        self.block = block
        self.dynamic_bytes: int = dynamic_bytes
        self.shared_bytes: int = kernel.shared_bytes(dynamic_bytes)
        self.params = params
        self.param_data = np.frombuffer(params + bytes(-len(params) % 16 + 16), np.uint8)
        self.symbols: dict[str, int] = {}
        self.const_slots: list[int] = []
        """Where variables in constant memory lie."""
        self.marks: dict[int, Mark] = {}
        self.cluster = cluster
        self.cluster_size: int = math.prod(cluster)
        self.order_of_ctas = ctas_by_cluster(grid, cluster)
        """CTAs as they become resident, those of a cluster one after the other; clocks count by this."""
        said = kernel.function.directives
        names = {"explicitcluster", "reqnctapercluster"}
        self.explicit_cluster = cluster != (1, 1, 1) or not names.isdisjoint(said)
        self.tensors = tensors
        self.resident = 0
        """CTAs of a wave, but of the last, which may have fewer."""

    @property
    def instructions(self) -> int:
        """Warp instructions of the whole plan so far."""
        return self.watch.instructions

    @instructions.setter
    def instructions(self, value: int) -> None:
        self.watch.instructions = value

    def run(self) -> None:
        """All CTAs, wave after wave. Stop is raised where the run is over."""
        names = {v.name for v in self.kernel.module_data if v.space == "const"}
        self.const_slots = [self.symbols[n] >> SLOT_BITS for n in names if n in self.symbols]
        x, y, z = self.grid
        total = x * y * z
        bx, by, bz = self.block
        per_cta = -(-bx * by * bz // 32)
        pieces = self.shared_bytes // self.kernel.shared_granule * (
            per_cta * (self.cluster_size if self.kernel.reads_peers else 1) + per_cta // 4
        )
        local = self.kernel.local_bytes * per_cta * 32
        resident = min(RESIDENT_WARPS // per_cta, _WATCHED // (pieces + 1), _LOCAL_BYTES // (local + 1))
        resident = self.resident = max(resident // self.cluster_size, 1) * self.cluster_size
        for shadow in self.watch.shadows.values():
            shadow.settle()
        old = np.seterr(all="ignore")
        try:
            for first in range(0, total, resident):
                wave = Wave(self, self.kernel, range(first, min(first + resident, total)))
                self.watch.follow(wave.clocks)
                try:
                    wave.run()
                finally:
                    if self.watch.counters is None:
                        self.watch.counters = wave.counters
                    else:
                        self.watch.counters.merge(wave.counters)
        finally:
            np.seterr(**old)

    # -- for the instructions ---------------------------------------------------------------------------

    def shadow(self, buffer: Buffer) -> Shadow | None:
        """See Watch."""
        return self.watch.shadow(buffer)

    def granule(self, buffer: Buffer) -> int:
        """See Watch."""
        return self.watch.buffer_granule(buffer)

    def key(self, w: Wave, space: str, address: int, row: int) -> int:
        """One number for a word in memory, whichever CTA names it."""
        if space in ("shared", "cluster"):
            cta = int(w.cta_of[w.warps[row]])
            if w.rank_base is not None:
                cta += (address >> RANK_SHIFT) - int(w.rank[cta])
                address &= (1 << RANK_SHIFT) - 1
            return -1 - (int(w.ctas[cta]) << 32) - address
        return address

    def area(self, offset: int) -> tuple[str | None, int | None, str]:
        """(buffer, stage, text) for a byte of a CTA's shared memory."""
        inner = offset - self.kernel.dynamic_start
        if inner >= 0:
            for region in self.watch.regions:
                at = inner - region.offset
                if 0 <= at < region.stage_bytes * region.stages:
                    stage, byte = divmod(at, region.stage_bytes)
                    where = f"`{region.name}` stage {stage}" if region.stages > 1 else f"`{region.name}`"
                    return region.name, stage if region.stages > 1 else None, f"{where} byte {byte}"
            return None, None, f"dynamic byte {inner}"
        for name, location in self.kernel.variables.items():
            if location.space == "shared" and 0 <= offset - location.offset < location.size:
                return name, None, f"{name} byte {offset - location.offset}"
        return None, None, f"byte {offset}"

    def cta_name(self, w: Wave, cta: int) -> str:
        """`(1, 0, 0)`."""
        return str(self.cta_at(int(w.ctas[cta])))

    def cta_of_number(self, number: int) -> int:
        """The CTA of a warp's number in clocks."""
        bx, by, bz = self.block
        return int(self.order_of_ctas[number // -(-bx * by * bz // 32)])

    def cta_at(self, linear: int) -> tuple[int, int, int]:
        """The coordinates of a CTA in the grid, from its number."""
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)

    # -- trouble ----------------------------------------------------------------------------------------

    def fault(
        self,
        w: Wave,
        kind: FaultKind,
        site: int,
        text: str,
        *,
        row: int | None = None,
        warp: int | None = None,
        lane: int | None = None,
        buffer: str | None = None,
        stage: int | None = None,
        other_site: int | None = None,
    ) -> None:
        """Write an accusation down, once for each place; `row` of the group, or `warp` of the wave. Raises
        Stop where the first is enough."""
        known = self.watch.faults.get((kind, self.step, site, buffer))
        if known is not None:
            self.watch.faults[(kind, self.step, site, buffer)] = replace(known, count=known.count + 1)
            return
        if warp is None and row is not None:
            warp = int(w.warps[row])
        cta = None if warp is None else self.cta_at(int(w.ctas[w.cta_of[warp]]))
        who = ""
        if warp is not None:
            at = "" if lane is None or lane >= 32 else f" lane {lane}"
            who = f"warp {warp % w.per_cta}{at} of CTA {cta}: "
        chain = self.kernel.chain(site)
        others = self.kernel.chain(other_site) if other_site is not None and other_site >= 0 else []
        body = self.kernel.body
        self.watch.faults[(kind, self.step, site, buffer)] = Fault(
            kind=kind,
            message=f"{self.kernel.where(site)}: {who}{text}",
            file=chain[0].file if chain else None,
            line=chain[0].line if chain else None,
            ptx_line=body[site].line if 0 <= site < len(body) else None,
            step=self.step,
            cta=cta,
            warp=None if warp is None else warp % w.per_cta,
            lane=None if lane is None or lane >= 32 else lane,
            buffer=buffer,
            stage=stage,
            other_line=others[0].line if others else None,
        )
        if self.watch.stop_at_first:
            raise Stop

    def check_limits(self, site: int) -> None:
        """Give up where instructions or seconds are used up; `site`: the instruction that is next."""
        watch = self.watch
        if watch.instructions <= watch.limits.instructions and time.monotonic() <= watch.deadline:
            return
        which = (
            f"{watch.limits.instructions} warp instructions"
            if watch.instructions > watch.limits.instructions
            else f"{watch.limits.seconds:g} s"
        )
        place = self.kernel.where(site)
        chain = self.kernel.chain(site)
        watch.faults[(FaultKind.LIMIT,)] = Fault(
            FaultKind.LIMIT,
            f"it did not end within {which}; it is at {place}",
            file=chain[0].file if chain else None,
            line=chain[0].line if chain else None,
            ptx_line=self.kernel.body[min(site, len(self.kernel.body) - 1)].line,
            step=self.step,
        )
        raise Stop

    def deadlock(self, w: Wave) -> None:
        """Nothing can run: tell who waits for what."""
        # Those that wait for what others do not do, first: mbarriers wait for them in their turn.
        told = [line for unit in reversed(w.units) for line in unit.describe()] + w.barriers.describe()
        first = next(iter(np.argwhere(w.status != EXITED)), None)
        site = 0 if first is None else int(w.pc[tuple(first)]) - 1
        if w.status[tuple(first)] in (AT_CONVERGE, PARKED) if first is not None else False:
            site += 1
        warp = None if first is None else int(first[0])
        ended = (w.status == EXITED).all(axis=1)
        more = f"; {int(ended.sum())} of {w.count} warps have ended" if ended.any() else ""
        text = "no thread can go on. " + "; ".join(told[:4]) + more
        self.fault(w, FaultKind.DEADLOCK, max(site, 0), text, warp=warp)
        raise Stop

    def divergence(self, w: Wave, waiting: npt.NDArray[np.bool_]) -> None:
        """Lanes wait at an instruction for lanes that will not come."""
        warp = int(np.nonzero(waiting.any(axis=1))[0][0])
        lanes = np.nonzero(waiting[warp])[0]
        site = int(w.pc[warp, lanes[0]])
        here = waiting[warp] & (w.pc[warp] == site)
        rest = ~here & w.exists[warp]
        ended = int((w.status[warp][rest] == EXITED).sum())
        missing = 32 - int(w.exists[warp].sum())
        elsewhere = sorted(
            {w.kernel.where(int(p) - 1) for p in w.pc[warp][rest & (w.status[warp] != EXITED)]}
        )
        why = [f"{missing} do not exist"] if missing else []
        why += [f"{ended} have ended"] if ended else []
        why += [f"others are at {', '.join(elsewhere[:3])}"] if elsewhere else []
        body = w.kernel.body[site]
        name = ".".join((body.opcode, *body.modifiers))
        self.fault(
            w, FaultKind.DIVERGENCE, site,
            f"{name} is for the whole warp, but only {int(here.sum())} of its"
            f" 32 lanes come ({'; '.join(why)})", warp=warp,
        )  # fmt: skip
        raise Stop


def ctas_by_cluster(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> npt.NDArray[np.intp]:
    """The numbers of all CTAs, those of a cluster one after the other, by rank."""
    (gx, gy, gz), (cx, cy, cz) = grid, cluster
    numbers = np.arange(gx * gy * gz).reshape(gz // cz, cz, gy // cy, cy, gx // cx, cx)
    return numbers.transpose(0, 2, 4, 1, 3, 5).reshape(-1)


def symbols_of(kernel: Kernel, memory: GlobalMemory, watch: Watch) -> dict[str, int]:
    """Variables of the module in global and constant memory, given buffers of their own."""
    found: dict[str, int] = {}
    made: list[tuple[Any, Buffer]] = []
    total = sum(v.size for v in kernel.module_data)
    if total > _MOST_VARIABLES:
        largest = max(kernel.module_data, key=lambda v: v.size)
        raise EmulatorError(
            f"the variables of the module have {total} bytes (variable {largest.name} alone {largest.size}),"
            f" over {_MOST_VARIABLES}"
        )
    there = {b.name: b for b in memory.buffers}
    for v in kernel.module_data:
        name = f"variable {v.name}"
        known = there.get(name)
        if known is None:
            known = Buffer.of(name, memory.next_slot, (max(v.size, 1),), (1,), 1, v.space == "global")
            data = v.data or b""
            known.data[: len(data)] = np.frombuffer(data, np.uint8)
            memory.add(known)
            made.append((v, known))
            if v.space == "global":
                watch.watch(known, written=True, later=True)
        found[v.name] = known.base
    for v, buffer in made:
        for r in v.relocations:
            if r.symbol.name not in found:
                raise EmulatorError(
                    f"{buffer.name} holds the address of {r.symbol.name}, which is not known here"
                )
            value = (found[r.symbol.name] + r.symbol.offset & (1 << 64) - 1) >> r.shift
            at = slice(r.offset, r.offset + r.size)
            buffer.data[at] = np.frombuffer(value.to_bytes(8, "little")[: r.size], np.uint8)
    return found


__all__ = ["Launching", "Location", "Watch", "symbols_of"]
