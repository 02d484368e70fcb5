"""mbarrier.* and cp.async.mbarrier.arrive (PTX ISA 9.7.13.15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import Context, Reader
from emulator.machine.mbarriers import BYTES, Mbarrier
from emulator.machine.wave import WARP, Array, Step, Wave
from emulator.ptx.nodes import Operand, Sink
from emulator.report import FaultKind

Bools = npt.NDArray[np.bool_]

_SPACES = ("shared", "shared::cta", "shared::cluster")
_ORDER = ("release", "acquire", "relaxed", "cta", "cluster")
_STATE = 0x6D62 << 48
"""In the bits of a state that mbarrier.arrive gives: above the phase and the pending count."""


def space_of(c: Context) -> str:
    """shared, cluster or generic."""
    if c.has("shared::cluster"):
        return "cluster"
    return "shared" if c.has("shared", "shared::cta") else "generic"


def objects(w: Wave, space: str, read: Reader, site: int) -> Iterator[tuple[int, Bools, int, int]]:
    """(row, lanes, CTA, offset) of the mbarriers that active lanes name."""
    row, lane = w.active()
    address = w.pick(read(w), row, lane)
    offset, fine = access.shared_places(w, space, Access(site, BYTES, BYTES), address, row, lane)
    if not fine.all():
        row, lane, offset = row[fine], lane[fine], offset[fine]
    begins = np.concatenate([[True], row[1:] != row[:-1]]) if len(row) else np.zeros(0, np.bool_)
    if fine.all() and (offset == offset[begins][np.cumsum(begins) - 1]).all():
        # The usual case: all lanes of a warp name one.
        mask = w.mask_full()
        for r, at in zip(row[begins].tolist(), offset[begins].tolist(), strict=True):
            yield r, mask[r], at // w.shared.pitch, at % w.shared.pitch
        return
    key = row.astype(np.int64) << 40 | offset
    # Rows come in order, so that equal keys of one row are together but for lanes that take turns.
    for value in dict.fromkeys(key.tolist()):
        lanes = np.zeros(WARP, np.bool_)
        lanes[lane[key == value]] = True
        at = value & (1 << 40) - 1
        yield value >> 40, lanes, at // w.shared.pitch, at % w.shared.pitch


def mbarrier(c: Context) -> Step:
    """mbarrier.*, but for what may wait."""
    c.allow("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "noComplete",
            "pending_count", "b64", *_SPACES, *_ORDER)  # fmt: skip
    if c.i.modifiers[-1] != "b64":
        raise c.error("its type is .b64")
    for name, build in _KINDS.items():
        if c.has(name):
            return build(c)
    raise c.error("no such operation")


def _init(c: Context) -> Step:
    target, count = c.operands(2)
    read, number, space, site = c.address(target), c.value(count, 32), space_of(c), c.site

    def step(w: Wave) -> None:
        values = w.whole(number(w))
        for row, lanes, cta, offset in objects(w, space, read, site):
            for lane in np.nonzero(lanes)[0].tolist():
                w.mbarriers.init(cta, offset, int(values[row, lane]), row, lane, site)

    return step


def _inval(c: Context) -> Step:
    read, space, site = c.address(c.operands(1)[0]), space_of(c), c.site

    def step(w: Wave) -> None:
        for row, lanes, cta, offset in objects(w, space, read, site):
            for lane in np.nonzero(lanes)[0].tolist():
                w.mbarriers.invalidate(cta, offset, row, lane, site)

    return step


def _expect(c: Context) -> Step:
    """expect_tx and complete_tx."""
    target, count = c.operands(2)
    read, number, space, site = c.address(target), c.value(count, 32), space_of(c), c.site
    sign = -1 if c.has("complete_tx") else 1

    def step(w: Wave) -> None:
        values = w.whole(number(w)).astype(np.int64)
        for row, lanes, cta, offset in objects(w, space, read, site):
            warp = int(w.warps[row])
            b = w.mbarriers.find(cta, offset, warp, site)
            what = "it counts bytes at an mbarrier of"
            if b is not None and w.clusters.visit(cta, warp, site, what, (b.agent, b.stamp)):
                w.mbarriers.expect(b, sign * int(values[row, lanes].sum()), warp, site)
                w.mbarriers.settle(b)

    return step


def _arrive(c: Context) -> Step:
    """arrive and arrive_drop, with .expect_tx or .noComplete."""
    state, ops = _state(c)
    expects, drop, completes = c.has("expect_tx"), c.has("arrive_drop"), not c.has("noComplete")
    if len(ops) != 2 and (expects or not completes or len(ops) != 1):
        raise c.error(f"{len(c.i.operands)} operands")
    if space_of(c) == "cluster" and not isinstance(state, Sink):
        raise c.error("an arrive in shared::cluster gives no state")
    read, space, site = c.address(ops[0]), space_of(c), c.site
    number = c.value(ops[1], 32) if len(ops) == 2 else None
    write = c.dest(state, 64)
    wanted = not isinstance(state, Sink)
    release, near = not c.has("relaxed"), not c.has("cluster")

    def step(w: Wave) -> None:
        values = None if number is None else w.whole(number(w)).astype(np.int64)
        found: Array = np.zeros((w.rows, WARP), np.uint64)
        w.counters.add("waits.mbarrier_arrive", w.warps)
        for row, lanes, cta, offset in objects(w, space, read, site):
            warp = int(w.warps[row])
            b = w.mbarriers.find(cta, offset, warp, site)
            if b is None:
                continue
            each = np.ones(WARP, np.int64) if values is None else values[row]
            if wanted or (values is not None and len(set(each[lanes].tolist())) > 1):
                parts = [np.arange(WARP) == lane for lane in np.nonzero(lanes)[0]]
            else:
                parts = [lanes]
            for part in parts:
                value = int(each[part][0])
                found[row, part] = _STATE | b.phase << 20 | b.pending
                if not expects and value < 1:
                    text = f"it arrives {value} times at the mbarrier {w.mbarriers.name(offset)}"
                    w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)
                    continue
                w.mbarriers.arrive(
                    b, row, part, 1 if expects else value, value if expects else 0, site,
                    release=release, near=near, drop=drop, completes=completes,
                )  # fmt: skip
        write(w, found)

    return step


def _state(c: Context) -> tuple[Operand, list[Operand]]:
    ops = list(c.i.operands)
    if len(ops) < 2:
        raise c.error(f"{len(ops)} operands")
    return ops[0], ops[1:]


def _pending(c: Context) -> Step:
    """mbarrier.pending_count.b64 count, state."""
    target, state = c.operands(2)
    read, write = c.value(state, 64), c.dest(target, 32)
    return lambda w: write(w, (read(w) & np.uint64(0xFFFFF)).astype(np.uint32))


_KINDS: dict[str, Callable[[Context], Step]] = {
    "init": _init, "inval": _inval, "pending_count": _pending, "arrive": _arrive, "arrive_drop": _arrive,
    "expect_tx": _expect, "complete_tx": _expect,
}  # fmt: skip


def wait(c: Context) -> Step:
    """mbarrier.test_wait and .try_wait{.parity}: the lanes that are told go on, the others stand still."""
    c.allow("test_wait", "try_wait", "parity", "b64", "shared", "shared::cta", "acquire", "relaxed", "cta",
            "cluster")  # fmt: skip
    ops = c.operands(3, 4) if c.has("try_wait") else c.operands(3)
    parity, space, site = c.has("parity"), space_of(c), c.site
    read, write = c.address(ops[1]), c.dest(ops[0], 1)
    wanted = c.value(ops[2], 32 if parity else 64)
    acquire, near = not c.has("relaxed"), not c.has("cluster")

    def step(w: Wave) -> None:
        values = w.whole(wanted(w))
        verdict = np.zeros((w.rows, WARP), np.bool_)
        going = w.mask_full().copy()
        w.counters.add("waits.mbarrier_try", w.warps)
        alike = (values == values[:, :1]).all()
        for row, lanes, cta, offset in objects(w, space, read, site):
            b = w.mbarriers.find(cta, offset, int(w.warps[row]), site)
            if b is None:
                verdict[row, lanes] = True
                continue
            for value in (int(values[row, 0]),) if alike else sorted(set(values[row, lanes].tolist())):
                some = lanes & (values[row] == value)
                phase = _phase(w, b, value, parity, row, site)
                told = w.mbarriers.ask(b, row, some, phase, site, acquire, near)
                if told is None:
                    going[row, some] = False
                else:
                    verdict[row, some] = told
        if not going.any():
            return
        rows = going.any(axis=1)
        w.mask = None if going.all() else going
        if not rows.all():
            w.focus(w.warps[rows])
            w.mask = None if going[rows].all() else going[rows]
        write(w, verdict[rows])
        w.jump(site + 1)

    return step


def _phase(w: Wave, b: Mbarrier, value: int, parity: bool, row: int, site: int) -> int:
    """The phase that is asked for."""
    text = None
    if parity:
        # 0 and 1 are what the text promises. Triton gives -1 too, and lives: the lowest bit counts.
        return_phase = b.phase if value & 1 == b.phase & 1 else b.phase - 1
    else:
        return_phase = (value >> 20) & (1 << 28) - 1
        if value >> 48 != _STATE >> 48:
            text = f"{value:#x} is no state of an mbarrier"
            return_phase = b.phase - 1
        elif return_phase < b.phase - 1:
            text = (
                f"it asks the mbarrier {w.mbarriers.name(b.offset)} for phase {return_phase}, and phase"
                f" {b.phase}"
                " is open: only the one before can be asked for"
            )
    if text is not None:
        w.launch.fault(w, FaultKind.BARRIER_COUNT, site, text, row=row)
    return return_phase


def copies_arrive(c: Context) -> Step:
    """cp.async.mbarrier.arrive{.noinc}: an arrival when the thread's copies have landed."""
    c.allow("async", "mbarrier", "arrive", "noinc", "b64", "shared", "shared::cta")
    read, space, site = c.address(c.operands(1)[0]), space_of(c), c.site
    increments = not c.has("noinc")

    def step(w: Wave) -> None:
        for row, lanes, cta, offset in objects(w, space, read, site):
            warp = int(w.warps[row])
            b = w.mbarriers.find(cta, offset, warp, site)
            if b is None:
                continue
            if increments:
                b.pending += int(lanes.sum())
            handed = w.clocks.release_one(warp)
            w.released(row)
            w.copies.arrive_on(b, warp, lanes, handed, site)

    return step


__all__ = ["copies_arrive", "mbarrier", "objects", "space_of", "wait"]
