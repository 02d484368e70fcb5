"""Between the lanes of a warp: shuffles, votes, reductions, warp barriers (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from emulator.arith import shuffle as lanes
from emulator.kernel import BITS
from emulator.machine.decode.context import Context
from emulator.machine.wave import Step, Wave
from emulator.ptx.nodes import Imm, Sink


def shuffle(c: Context) -> Step:
    """shfl.sync.mode.b32 d{|p}, a, b, c, membermask."""
    c.allow("sync", "up", "down", "bfly", "idx", "b32")
    if not c.has("sync"):
        raise c.error("only shfl.sync is known: the other form is gone since PTX 6.4 (sm_70)")
    mode = c.one_of("up", "down", "bfly", "idx")
    target, a, b, bounds, mask = c.operands(5)
    d, p = c.two(target)
    read_a, read_b, read_c = c.value(a, 32), c.value(b, 32), c.value(bounds, 32)
    read_mask, members = c.value(mask, 32), c.members(mask)
    write_d, write_p = c.dest(d, 32), c.dest(p, 1)

    def step(w: Wave) -> None:
        members(w)
        found, inside, _ = lanes.shfl(
            mode,
            w.whole(read_a(w)),
            w.whole(read_b(w)),
            w.whole(read_c(w)),
            read_mask(w),
            w.mask_full(),
        )
        write_d(w, found)
        write_p(w, inside)

    return step


def vote(c: Context) -> Step:
    """vote.sync.{all,any,uni}.pred p, a, membermask; vote.sync.ballot.b32."""
    c.allow("sync", "all", "any", "uni", "ballot", "pred", "b32")
    if not c.has("sync"):
        raise c.error("only vote.sync is known: the other form is gone since PTX 6.4 (sm_70)")
    mode = c.one_of("all", "any", "uni", "ballot")
    if c.i.modifiers[-1] != ("b32" if mode == "ballot" else "pred"):
        raise c.error("the type is .b32 for .ballot and .pred for the others")
    target, a, mask = c.operands(3)
    read, members, read_mask = c.predicate(a), c.members(mask), c.value(mask, 32)
    write = c.dest(target, 32 if mode == "ballot" else 1)

    def step(w: Wave) -> None:
        members(w)
        write(w, lanes.vote(mode, w.whole(read(w)), read_mask(w), w.mask_full()))

    return step


def match(c: Context) -> Step:
    """match.{any,all}.sync.type d{|p}, a, membermask."""
    c.allow("sync", "any", "all", "b32", "b64")
    mode, kind = c.one_of("any", "all"), c.one_of("b32", "b64")
    target, a, mask = c.operands(3)
    d, p = c.two(target)
    if mode == "any" and not isinstance(p, Sink):
        raise c.error("match.any has no predicate")
    read, members, read_mask = c.value(a, BITS[kind]), c.members(mask), c.value(mask, 32)
    write_d, write_p = c.dest(d, 32), c.dest(p, 1)

    def step(w: Wave) -> None:
        members(w)
        found, agree = lanes.match(mode, kind, w.whole(read(w)), read_mask(w), w.mask_full())
        write_d(w, found)
        write_p(w, agree)

    return step


def reduce(c: Context) -> Step:
    """redux.sync.op.type d, a, membermask."""
    c.allow("sync", "add", "min", "max", "and", "or", "xor", "abs", "NaN", "u32", "s32", "b32", "f32")
    operation = c.one_of("add", "min", "max", "and", "or", "xor")
    kind = c.one_of("u32", "s32", "b32", "f32")
    types = {"add": ("u32", "s32"), "min": ("u32", "s32", "f32"), "max": ("u32", "s32", "f32")}
    if kind not in types.get(operation, ("b32",)) or (c.has("abs", "NaN") and kind != "f32"):
        raise c.error("there is no such reduction (redux) of such a type")
    target, a, mask = c.operands(3)
    read, members, read_mask = c.value(a, 32, kind), c.members(mask), c.value(mask, 32)
    write, absolute, nan = c.dest(target, 32), c.has("abs"), c.has("NaN")

    def step(w: Wave) -> None:
        members(w)
        value = w.whole(read(w))
        write(w, lanes.redux(operation, kind, value, read_mask(w), w.mask_full(), absolute, nan))

    return step


def active_mask(c: Context) -> Step:
    """activemask.b32 d."""
    c.allow("b32")
    (target,) = c.operands(1)
    write = c.dest(target, 32)
    return lambda w: write(w, lanes.activemask(w.mask_full()))


def elect(c: Context) -> Step:
    """elect.sync d|p, membermask."""
    c.allow("sync")
    target, mask = c.operands(2)
    d, p = c.two(target)
    if isinstance(p, Sink):
        raise c.error("the predicate is missing")
    members, read_mask = c.members(mask), c.value(mask, 32)
    write_d, write_p = c.dest(d, 32), c.dest(p, 1)

    def step(w: Wave) -> None:
        members(w)
        leader, chosen = lanes.elect(read_mask(w), w.mask_full())
        write_d(w, leader)
        write_p(w, w.whole(chosen))

    return step


def sync(c: Context) -> Step:
    """bar.warp.sync membermask: what the lanes named did before is ordered before what they do after."""
    c.allow("warp", "sync")
    (mask,) = c.operands(1)
    members = c.members(mask)

    def step(w: Wave) -> None:
        members(w)
        w.counters.add("waits.warp", w.warps)
        # Lanes are not told apart: a barrier of some orders all.
        w.clocks.join_lanes(w.warps)

    return step


__all__ = ["Imm", "active_mask", "elect", "match", "reduce", "shuffle", "sync", "vote"]
