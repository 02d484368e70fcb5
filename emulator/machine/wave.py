"""Which threads are resident, what are they doing, and what do they execute?

A wave is the CTAs that are on the device at once. Threads of all its warps that are at the same instruction
are run together, as one numpy operation over (warps, 32) arrays: that is what makes it quick. Every lane has
its own program counter; lanes of a warp that went different ways come together again because the least
program counter runs first, and because an instruction for a whole warp waits for the lanes it names.
group.py: the threads that run now, and registers; turns.py: whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from emulator.checks.clocks import Clocks
from emulator.checks.shadow import Shadow
from emulator.counters import Counters
from emulator.errors import EmulatorError
from emulator.kernel import STRETCH
from emulator.machine.group import WARP, Array, Group, Index
from emulator.machine.memory import RANK_SHIFT, SharedMemory
from emulator.machine.turns import Turns
from emulator.report import FaultKind, Order

if TYPE_CHECKING:
    from emulator.kernel import Block, Kernel
    from emulator.machine.copies import Copies
    from emulator.machine.launch import Launching
    from emulator.machine.units import Unit

RUN, AT_BARRIER, AT_CONVERGE, EXITED, PARKED = 0, 1, 2, 3, 4
"""What a lane is doing. PARKED: an asynchronous unit will wake it, to try the same instruction again."""
_CANNOT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What numpy and Python say of operands that do not fit an instruction; becomes an EmulatorError with its
line. Not MemoryError: that tells of the host, and is for whoever set the limit."""
class Stop(Exception):  # ends a run, for whoever asked for the first fault only or a limit
    """The run is over; the faults say why."""


class Converge(Exception):  # caught by the wave: the lanes wait for the others of their warps
    """Lanes of `warps` that the instruction at `site` wants are elsewhere. `passing`: lanes of the group
    (rows, 32) whose guard says that they go on behind it."""

    def __init__(self, site: int, warps: Index) -> None:
        super().__init__()
        self.site = site
        self.warps = warps
        self.passing: npt.NDArray[np.bool_] | None = None


class Wave(Group):
    """The state of resident CTAs, and the loop that runs them."""

    def __init__(self, launch: Launching, kernel: Kernel, ctas: Sequence[int]) -> None:
        from emulator.machine import clusters
        from emulator.machine.barriers import Barriers
        from emulator.machine.bulk import Bulk
        from emulator.machine.copies import Copies
        from emulator.machine.fences import Fences
        from emulator.machine.mbarriers import MBARRIERS, Mbarriers
        from emulator.machine.register_pool import RegisterPool
        from emulator.machine.warpgroups import Warpgroups

        bx, by, bz = launch.block
        threads = bx * by * bz
        self.per_cta: int = -(-threads // WARP)
        super().__init__(kernel, len(ctas) * self.per_cta)
        count = self.count
        self.launch: Launching = launch
        self.order: Order = launch.order
        self.rng = np.random.default_rng((launch.order.seed, launch.step, ctas[0] if len(ctas) else 0))
        self.ctas = launch.order_of_ctas[np.asarray(ctas, np.intp)]
        self.cluster: int = launch.cluster_size
        self.rank: Index = np.arange(len(ctas)) % self.cluster
        """Of each resident CTA in its cluster."""
        self.cta_of: Index = self.all_warps // self.per_cta

        tid = (np.arange(self.per_cta * WARP).reshape(1, self.per_cta, WARP)).repeat(len(ctas), 0)
        tid = tid.reshape(count, WARP)
        exists = tid < threads
        self.exists = exists
        gx, gy, gz = launch.grid
        linear = self.ctas[self.cta_of]
        self.special: dict[str, Array] = {
            "%tid.x": (tid % bx).astype(np.uint32),
            "%tid.y": (tid // bx % by).astype(np.uint32),
            "%tid.z": (tid // (bx * by)).astype(np.uint32),
            "%laneid": np.broadcast_to(np.arange(WARP, dtype=np.uint32), (count, WARP)),
            "%warpid": _column(self.all_warps % self.per_cta),
            "%ctaid.x": _column(linear % gx),
            "%ctaid.y": _column(linear // gx % gy),
            "%ctaid.z": _column(linear // (gx * gy)),
            "%smid": _column(linear % max(launch.sm_count, 1)),
        }
        clusters.special_registers(self, linear)
        self.rank_base: Array | None = None
        """What shared addresses of each warp carry beside their offset: the rank of its CTA."""
        if self.cluster > 1:
            self.rank_base = self.rank[self.cta_of].astype(np.int64) << RANK_SHIFT
        lanes = np.arange(WARP, dtype=np.uint64)
        for name, bits in (
            ("eq", 1 << lanes), ("lt", (1 << lanes) - 1), ("le", (2 << lanes) - 1),
            ("ge", 0xFFFFFFFF - ((1 << lanes) - 1)), ("gt", 0xFFFFFFFF - ((2 << lanes) - 1)),
        ):  # fmt: skip
            self.special[f"%lanemask_{name}"] = np.broadcast_to(
                (bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), (count, WARP)
            )

        self.pc = np.zeros((count, WARP), np.int32)
        self.status = np.where(exists, RUN, EXITED).astype(np.uint8)
        self.local: npt.NDArray[np.uint8] | None = None
        self.shared = SharedMemory(len(ctas), launch.shared_bytes, kernel.shared_base)
        first = ctas[0] * self.per_cta if len(ctas) else 0
        agents = MBARRIERS + -(-self.per_cta // 4) if kernel.asynchronous else 0
        self.clocks = Clocks(
            len(ctas), self.per_cta, kernel.orders_threads, first, gx * gy * gz * self.per_cta, launch.marks,
            agents, self.cluster, kernel.asynchronous, launch.resident,
        )  # fmt: skip
        granules = self.shared.data.size // kernel.shared_granule + 1
        readers = None
        near = self.cluster if kernel.reads_peers else 1
        if agents or near > 1:
            readers = self.clocks.reader_columns(len(ctas), near, max(agents - MBARRIERS, 0), MBARRIERS)
        self.shared_shadow = Shadow(
            granules, self.per_cta, self.clocks, False, readers, near * self.per_cta,
            self.shared.pitch // kernel.shared_granule,
        )  # fmt: skip
        self.copies: Copies = Copies(self)
        self.barriers = Barriers(self)
        self.mbarriers = Mbarriers(self)
        self.clusters = clusters.Clusters(self)
        self.fences = Fences(self) if agents or self.cluster > 1 else None
        self.bulk = Bulk(self)
        self.warpgroups = Warpgroups(self)
        self.pool = RegisterPool(self)
        self.units: tuple[Unit, ...] = (
            self.copies, self.mbarriers, self.clusters, self.bulk, self.warpgroups, self.pool
        )  # fmt: skip
        """What works beside the warps, or makes them wait."""
        self.events = 0
        """Counts what may let a parked lane go on."""
        self.counters = Counters(launch.roles, self.per_cta)
        self.cycle: int = 0
        self._block: Block = kernel.block(0)
        self._at = 0

        self._turns = Turns(self)
        self._held = False
        """Whether any lane waits for the rest of its warp."""
        self._tried: dict[int, bytes] = {}
        """How the lanes of a warp stood when it was last tried to let those go on."""

    # -- control ----------------------------------------------------------------------------------------

    @property
    def site(self) -> int:
        """The instruction that is executed now."""
        return min(self._block.start + self._at, len(self.kernel.body) - 1)

    def jump(self, target: int, where: npt.NDArray[np.bool_] | None = None) -> None:
        """Set the program counter of the group's active lanes (of those in `where`)."""
        self._set(self.pc, target, where)

    def set_status(self, status: int) -> None:
        """Set what the active lanes are doing."""
        self._set(self.status, status, None)

    def _set(self, state: Array, value: int, where: npt.NDArray[np.bool_] | None) -> None:
        mask = self.mask if where is None else (where if self.mask is None else where & self.mask)
        if mask is None:
            state[self.warps if self.idx is None else self.idx] = value
        elif isinstance(self.idx, slice):
            state[self.idx][mask] = value
        else:
            rows, lanes = np.nonzero(mask)
            state[self.warps[rows], lanes] = value

    def need(self, site: int, members: npt.NDArray[np.bool_] | None = None) -> None:
        """All 32 lanes of the group's warps (or those in `members`, (rows, 32)) must be here, or the
        instruction waits for them."""
        if self.mask is None:
            return
        missing = ~self.mask if members is None else members & ~self.mask
        rows = missing.any(axis=1)
        if rows.any():
            raise Converge(site, self.warps[rows])

    def park(self, row: int, lanes: npt.NDArray[np.bool_], site: int) -> tuple[int, npt.NDArray[np.bool_]]:
        """Lanes of a row of the group wait before the instruction at `site` until they are woken: (warp,
        lanes)."""
        warp = int(self.warps[row])
        self.pc[warp, lanes] = site
        self.status[warp, lanes] = PARKED
        return warp, lanes.copy()

    def wake(self, warp: int, lanes: npt.NDArray[np.bool_]) -> None:
        """Parked lanes try again."""
        self.status[warp, lanes & (self.status[warp] == PARKED)] = RUN

    def present(self) -> npt.NDArray[np.bool_]:
        """The lanes of the group's warps that have not ended, (rows, 32)."""
        alive: npt.NDArray[np.bool_] = self.status[self.warps] != EXITED
        return alive

    def released(self, row: int) -> None:
        """The active lanes of a row of the group have released what they did."""
        if self.mask is None:
            return
        warp = int(self.warps[row])
        lanes = self.mask[row]
        if self.clocks.touched[warp] < self.clocks.epoch[warp] - 1:
            return
        if (lanes | (self.status[warp] == EXITED)).all():
            return
        self.shared_shadow.postpone(warp, lanes)
        for shadow in self.launch.watch.shadows.values():
            shadow.postpone(warp, lanes)

    # -- the loop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every thread has ended. Faults go to the launch."""
        while True:
            live = self.status == RUN
            able = live.any(axis=1)
            if self._held and self._retry(able):
                continue
            if not np.count_nonzero(able):
                if (self.status == EXITED).all():
                    for unit in self.units:
                        unit.finish()
                    return
                if any(unit.force() for unit in self.units) or any(unit.give_up() for unit in self.units):
                    continue
                self._stop()
            if self.order.kind == "random":
                for unit in self.units:
                    unit.tick()
            self._execute(*self._turns.next(live, able))

    def _execute(self, start: int, warps: Index, mask: npt.NDArray[np.bool_]) -> None:
        """Run the block at `start` for some lanes, `mask` (rows, 32), of some warps, which have at least one
        each."""
        if len(warps) == self.count:
            self.idx, self.warps, self.rows = None, self.all_warps, self.count
        else:
            self.focus(warps)
        self.mask = None if np.count_nonzero(mask) == mask.size else mask
        group = self.idx, self.warps, self.rows, self.mask
        block = self.kernel.block(start)
        launch = self.launch
        launch.instructions += self.rows * block.length
        launch.check_limits(start)
        deadline = launch.watch.deadline
        self.cycle += block.length
        self.counters.block(block.start, block.classes, self.warps)
        self._block, self._at = block, 0
        try:
            for first in range(0, block.inner, STRETCH):
                for self._at, step in enumerate(block.steps(first), first):
                    # One instruction may take long: atomics of all lanes on one word.
                    if monotonic() > deadline:
                        launch.check_limits(start + self._at)
                    step(self)
            self._at = block.inner
            warps = self.warps
            block.finish(self)
            if self._tried:
                # They went on: at this very place they may wait again, in the next turn of a loop.
                for warp in warps.tolist():
                    self._tried.pop(warp, None)
        except Converge as wait:
            # What was done of the block stays done; all lanes stand before the instruction that waits, and
            # only those of warps that are not complete wait there.
            self.idx, self.warps, self.rows, self.mask = group
            self.jump(wait.site)
            held = self.mask_full() & np.isin(self.warps, wait.warps)[:, None]
            if wait.passing is not None:
                self.jump(wait.site + 1, wait.passing)
                held = held & ~wait.passing
            self._set(self.status, AT_CONVERGE, held)
            self._held = True
        except _CANNOT as error:
            line = self.kernel.body[min(block.start + self._at, len(self.kernel.body) - 1)].line
            message = f"PTX line {line}: the instruction cannot be run as it stands"
            raise EmulatorError(f"{message} ({type(error).__name__}: {error})") from error

    def _retry(self, able: npt.NDArray[np.bool_]) -> bool:
        """Let lanes that wait for the rest of their warp try again where none of it runs any more: the rest
        may have come, or ended. Whether any does."""
        waiting = self.status == AT_CONVERGE
        rows = waiting.any(axis=1)
        self._held = bool(rows.any())
        changed = False
        for warp in np.nonzero(rows & ~able)[0].tolist():
            signature = self.status[warp].tobytes() + self.pc[warp].tobytes()
            if self._tried.get(warp) != signature:
                self._tried[warp] = signature
                self.status[warp][waiting[warp]] = RUN
                changed = True
        return changed

    # -- trouble ----------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Nothing can run."""
        # Lanes that stand still at an mbarrier hold up the rest of their warp: no mistake of the warp's.
        waiting = (self.status == AT_CONVERGE) & ~(self.status == PARKED).any(axis=1, keepdims=True)
        if waiting.any():
            self.launch.divergence(self, waiting)
        self.launch.deadlock(self)


def _column(values: Array) -> Array:
    return np.broadcast_to(values.astype(np.uint32)[:, None], (len(values), WARP))


Step: TypeAlias = Callable[[Wave], None]
__all__ = [
    "AT_BARRIER",
    "AT_CONVERGE",
    "EXITED",
    "PARKED",
    "RUN",
    "WARP",
    "Array",
    "Converge",
    "FaultKind",
    "Index",
    "Step",
    "Stop",
    "Wave",
]
