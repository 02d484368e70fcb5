"""Branches, ends and barriers of a CTA: the instructions that end a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from emulator.kernel import BITS
from emulator.machine.decode import cluster
from emulator.machine.decode.context import Context
from emulator.machine.wave import EXITED, Array, Converge, Step, Wave
from emulator.ptx.nodes import Imm, Label, Operand, Reg
from emulator.ptx.printer import print_operand
from emulator.report import FaultKind


def branch(c: Context) -> Step:
    """bra{.uni} target."""
    c.allow("uni")
    (op,) = c.operands(1)
    if not isinstance(op, Label) or op.name not in c.kernel.function.labels:
        raise c.error(f"no label {print_operand(op)}")
    target, behind = c.kernel.function.labels[op.name], c.site + 1
    guard = c.i.guard
    if guard is None:
        return lambda w: w.jump(target)
    read = c.predicate(guard)
    negated = c.i.negated

    def step(w: Wave) -> None:
        taken = w.whole(read(w))
        if negated:
            taken = ~taken
        active = taken if w.mask is None else taken & w.mask
        count = np.count_nonzero(active)
        if count == np.count_nonzero(w.mask) if w.mask is not None else count == active.size:
            w.jump(target)
            return
        w.jump(behind)
        if count:
            w.jump(target, taken)

    return step


def branch_indexed(c: Context) -> Step:
    """brx.idx index, targets."""
    c.allow("idx", "uni")
    if c.i.guard is not None:
        return _guarded(c, branch_indexed)
    index, table = c.operands(2)
    name = getattr(table, "name", "")
    targets = c.kernel.function.branch_targets.get(name)
    if targets is None:
        raise c.error(f"no table of targets {name}")
    places = np.array([c.kernel.function.labels[t] for t in targets], np.int32)
    read, site = c.value(index, 32), c.site

    def step(w: Wave) -> None:
        at = w.whole(read(w)).astype(np.int64)
        bad = (at >= len(places)) & w.mask_full()
        if bad.any():
            w.launch.fault(
                w, FaultKind.OUT_OF_BOUNDS, site, f"branch {int(at[bad][0])} of {len(places)} targets"
            )
        where = places[np.minimum(at, len(places) - 1)]
        for place in np.unique(where):
            w.jump(int(place), where == place)

    return step


def exit_threads(w: Wave, site: int) -> None:
    """The active lanes end."""
    for unit in w.units:
        unit.exited(site)
    w.set_status(EXITED)
    w.barriers.exited()
    w.clusters.lanes_gone()
    for cta in np.unique(w.cta_of[w.warps]).tolist():
        if (w.status[cta * w.per_cta : (cta + 1) * w.per_cta] == EXITED).all():
            for unit in w.units:
                unit.ended(cta, site)


def leave(c: Context) -> Step:
    """exit, and ret of an entry."""
    c.allow("uni")
    site, guard, negated = c.site, c.i.guard, c.i.negated
    if guard is None:
        return lambda w: exit_threads(w, site)
    read = c.predicate(guard)

    def step(w: Wave) -> None:
        leaving = w.whole(read(w))
        leaving = (~leaving if negated else leaving) & w.mask_full()
        staying = ~leaving & w.mask_full()
        if staying.any():
            w.jump(site + 1, staying)
        if leaving.any():
            w.mask = leaving
            exit_threads(w, site)

    return step


def trap(c: Context) -> Step:
    """trap: the kernel gives up."""
    site, guard, negated = c.site, c.i.guard, c.i.negated
    read = None if guard is None else c.predicate(guard)

    def step(w: Wave) -> None:
        if read is not None:
            hit = w.whole(read(w))
            hit = (~hit if negated else hit) & w.mask_full()
            staying = w.mask_full() & ~hit
            if staying.any():
                w.jump(site + 1, staying)
            if not hit.any():
                return
            w.mask = hit
        w.launch.fault(w, FaultKind.TRAP, site, "the kernel executed a trap")
        w.set_status(EXITED)
        w.barriers.exited()

    return step


def call(c: Context) -> Step:
    """Calls are inlined by the compilers whose output is run here; only a failed assertion is known."""
    if c.i.guard is not None:
        return _guarded(c, call)
    target = getattr(c.i.operands[1], "name", "") if len(c.i.operands) > 1 else ""
    site = c.site
    if target == "__assertfail":

        def failed(w: Wave) -> None:
            w.launch.fault(w, FaultKind.TRAP, site, "an assertion of the kernel failed")
            w.set_status(EXITED)
            w.barriers.exited()

        return failed
    raise c.error(f"calls (here of {target}) are not run: functions have to be inlined")


def barrier(c: Context) -> Step:
    """bar{.cta}.sync/.arrive/.red, barrier{.cta}.sync/.arrive/.red{.aligned}."""
    if c.has("cluster"):
        build = cluster.wait if c.has("wait") else cluster.arrive
        return build(c) if c.i.guard is None else _guarded(c, build)
    c.allow("cta", "sync", "arrive", "red", "aligned", "popc", "and", "or", "u32", "pred")
    kind = "sync" if c.has("sync") else "arrive" if c.has("arrive") else "red" if c.has("red") else ""
    if not kind:
        raise c.error("neither sync, arrive nor red")
    if c.i.guard is not None:
        return _guarded(c, barrier)
    if kind == "red":
        _one_vote(c)
    elif c.has("popc", "and", "or", "u32", "pred"):
        raise c.error("an operation without .red")
    ops = list(c.i.operands)
    if len(ops) < (3 if kind == "red" else 1):
        raise c.error(f"{len(ops)} operands of a barrier")
    aligned = c.i.opcode == "bar" or c.has("aligned")
    site = c.site
    votes = result = None
    if kind == "red":
        result, ops = ops[0], ops[1:]
        votes, ops = c.predicate(ops[-1]), ops[:-1]
    if not 1 <= len(ops) <= 2 or (kind == "arrive" and len(ops) != 2):
        raise c.error(f"{len(ops)} operands of a barrier")
    number = c.value(ops[0], 32)
    count = c.value(ops[1], 32) if len(ops) == 2 else None
    where = None if result is None else (_register(c, result), _one_vote(c))

    def step(w: Wave) -> None:
        if aligned:
            _same_place(w, site)
        n, size = _one(w, number, site), None if count is None else _one(w, count, site)
        if n is None or (count is not None and size is None):
            return
        said = None if votes is None else w.whole(votes(w))
        w.barriers.arrive(n, size, kind != "arrive", site, said, where)

    return step


_VOTES = ("popc", "and", "or")


def _one_vote(c: Context) -> str:
    """popc, and, or; with the type that goes with it."""
    found = [m for m in c.i.modifiers if m in _VOTES]
    if len(found) != 1 or c.has("u32") != (found[0] == "popc") or c.has("pred") == (found[0] == "popc"):
        raise c.error("neither .popc.u32, .and.pred nor .or.pred")
    return found[0]


def _register(c: Context, op: Operand) -> int:
    if not isinstance(op, Reg) or (op.type == "pred") != c.has("pred") or BITS[op.type] not in (1, 32):
        raise c.error(f"operand {print_operand(op)} cannot be written")
    return op.index


def _one(w: Wave, read: object, site: int) -> int | None:
    """The value, which must be the same for all that came together here."""
    value = read(w)  # type: ignore[operator]
    if value.size == 1:
        return int(value.flat[0])
    seen = np.unique(value if w.mask is None else value[w.mask])
    if len(seen) == 1:
        return int(seen[0])
    # Warps name different barriers at one instruction (a barrier each for two roles): take them in turns.
    _split(w, value, site)
    return None


def _split(w: Wave, value: Array, site: int) -> None:
    """Let only the warps with the first value go now; the others stay before the instruction."""
    mask = w.mask_full()
    value = np.broadcast_to(value, mask.shape)
    first = value[mask][0]
    w.jump(site)
    now = mask & (value == first)
    rows = now.any(axis=1)
    block = w.kernel.block(site)
    w.focus(w.warps[rows])
    w.mask = None if now[rows].all() else now[rows]
    block.finish(w)


def _same_place(w: Wave, site: int) -> None:
    """An aligned barrier is for whole warps: the others of a warp must come to this very one."""
    w.need(site, w.present())


def _guarded(c: Context, build: Callable[[Context], Step]) -> Step:
    """@p bar...: the others go on behind it."""
    assert c.i.guard is not None
    read, negated, site = c.predicate(c.i.guard), c.i.negated, c.site
    inner = build(Context(c.kernel, replace(c.i, guard=None), c.site))

    def step(w: Wave) -> None:
        coming = w.whole(read(w))
        coming = (~coming if negated else coming) & w.mask_full()
        staying = w.mask_full() & ~coming
        if staying.any():
            w.jump(site + 1, staying)
        if not coming.any():
            return
        rows = coming.any(axis=1)
        w.focus(w.warps[rows])
        w.mask = None if coming[rows].all() else coming[rows]
        try:
            inner(w)
        except Converge as wait:
            wait.passing = staying
            raise

    return step


guarded_end = _guarded
__all__ = [
    "Imm",
    "barrier",
    "branch",
    "branch_indexed",
    "call",
    "exit_threads",
    "guarded_end",
    "leave",
    "trap",
]
