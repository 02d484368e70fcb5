"""What do lanes of a warp tell each other? PTX ISA 9.7.9.6, 9.7.13.9 to 9.7.13.14.

Arrays are (warps, 32), or broadcast to that. `membermask` is the instruction's operand, bit i for lane i, and
may differ between lanes (diverged halves of a warp that come together); `active` (bool) are the lanes that
execute the instruction now. A lane hears of those lanes that are active and in its own membermask. What
inactive lanes get is of no meaning.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from emulator.arith.floats import NAN
from emulator.arith.types import Array, Bools, raw, typed

__all__ = ["activemask", "elect", "match", "redux", "shfl", "vote"]

LANES = 32
_LANE = np.arange(LANES, dtype=np.int64)
_BIT = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
_FULL = np.uint32(0xFFFFFFFF)


def shfl(
    mode: str, a: Any, b: Any, c: Any, membermask: Any = _FULL, active: Any = True
) -> tuple[Array, Bools, Bools]:
    """shfl.sync.up, .down, .bfly, .idx (9.7.9.6): d, p, and where d is undefined.

    Undefined is what comes from a lane that is not active or not in the membermask.
    """
    a = raw(a, 32)
    one = _same_for_all(b, c, membermask)
    if one is not None:
        return _shfl_same(mode, a, *one, active)
    amount = (raw(b, 32) & np.uint32(31)).astype(np.int64)
    bound = (raw(c, 32) & np.uint32(31)).astype(np.int64)
    segment = (raw(c, 32) >> np.uint32(8) & np.uint32(31)).astype(np.int64)
    shape = np.broadcast_shapes(a.shape, amount.shape, bound.shape, np.shape(active), np.shape(membermask))
    shape = (*shape[:-1], LANES)
    source, inside = _source(mode, amount, bound, segment)
    inside = np.broadcast_to(inside, shape)
    source = np.where(inside, source, _LANE)
    found = np.take_along_axis(np.broadcast_to(a, shape), source, -1)
    running = np.take_along_axis(np.broadcast_to(np.asarray(active, np.bool_), shape), source, -1)
    member = raw(membermask, 32) >> source.astype(np.uint32) & np.uint32(1) == 1
    return found, inside, ~(running & member)


def _source(mode: str, amount: Array, bound: Array, segment: Array) -> tuple[Array, Bools]:
    """The lane that each lane reads, and whether it is inside its segment."""
    least = _LANE & segment
    most = least | (bound & ~segment)
    match mode:
        case "up":
            source = _LANE - amount
            inside = source >= most
        case "down":
            source = _LANE + amount
            inside = source <= most
        case "bfly":
            source = _LANE ^ amount
            inside = source <= most
        case "idx":
            source = least | (amount & ~segment)
            inside = source <= most
        case _:
            raise ValueError(f"unknown mode {mode} of shfl")
    return np.asarray(source), np.asarray(inside)


def _same_for_all(b: Any, c: Any, membermask: Any) -> tuple[int, int, int] | None:
    """The three operands as numbers where all lanes have the same, as they mostly do."""
    arrays = [np.asarray(v) for v in (b, c, membermask)]
    if not all(v.size == 1 or not any(v.strides) for v in arrays) or not all(v.size for v in arrays):
        return None
    first, second, third = (int(v.flat[0]) for v in arrays)
    return first, second, third


def _shfl_same(mode: str, a: Array, b: int, c: int, mask: int, active: Any) -> tuple[Array, Bools, Bools]:
    source, inside, member = _shfl_plan(mode, b & 31, c & 31, c >> 8 & 31, mask & 0xFFFFFFFF)
    running = np.asarray(active, np.bool_)
    shape = (*np.broadcast_shapes(a.shape, running.shape)[:-1], LANES)
    if a.shape[-1:] != (LANES,):
        a = np.broadcast_to(a, shape)
    if running.shape[-1:] != (LANES,):
        running = np.broadcast_to(running, shape)
    undefined = ~(running[..., source] & member)
    return (
        np.broadcast_to(a[..., source], shape),
        np.broadcast_to(inside, shape),
        np.broadcast_to(undefined, shape),
    )


@lru_cache(maxsize=4096)
def _shfl_plan(mode: str, amount: int, bound: int, segment: int, mask: int) -> tuple[Array, Bools, Bools]:
    """For operands that all lanes share: the source lanes, which are inside, and which are members."""
    source, inside = _source(mode, np.asarray(amount), np.asarray(bound), np.asarray(segment))
    source = np.where(inside, source, _LANE)
    return source, inside, np.asarray(mask >> source & 1 == 1)


def vote(mode: str, a: Any, membermask: Any = _FULL, active: Any = True) -> Array:
    """vote.sync.all, .any, .uni (predicates) and .ballot (.b32) (9.7.13.9)."""
    a = np.asarray(a, np.bool_)
    heard = _heard(membermask, active, a.shape)
    true = _bits(a, heard) & heard
    match mode:
        case "ballot":
            return true
        case "all":
            return np.asarray(true == heard)
        case "any":
            return np.asarray(true != 0)
        case "uni":
            return np.asarray((true == heard) | (true == 0))
    raise ValueError(f"unknown mode {mode} of vote")


def match(mode: str, type_: str, a: Any, membermask: Any = _FULL, active: Any = True) -> tuple[Array, Bools]:
    """match.any.sync, match.all.sync of b32 or b64 (9.7.13.10): the mask, and whether all agree."""
    a = raw(a, 64 if type_ == "b64" else 32)
    heard = _heard(membermask, active, a.shape)
    a = np.broadcast_to(a, heard.shape)
    same = ((a[..., :, None] == a[..., None, :]) * _BIT).sum(-1, dtype=np.uint32) & heard
    if mode == "any":
        return same, same == heard
    if mode != "all":
        raise ValueError(f"unknown mode {mode} of match")
    # One's own lane may be none of those heard; then the first of them is the measure.
    first = _first(heard)
    agree = np.take_along_axis(same, first, -1) == heard
    return np.where(agree, heard, np.uint32(0)), agree


def redux(
    operation: str,
    type_: str,
    a: Any,
    membermask: Any = _FULL,
    active: Any = True,
    absolute: bool = False,
    nan: bool = False,
) -> Array:
    """redux.sync.add, .min, .max of u32 and s32, .and, .or, .xor of b32, .min, .max of f32 (9.7.13.12)."""
    a = raw(a, 32)
    heard = _heard(membermask, active, a.shape)
    a = np.broadcast_to(a, heard.shape)
    takes = (heard[..., None] & _BIT) != 0
    values = np.broadcast_to(a[..., None, :], takes.shape)
    if type_ == "f32":
        return _redux_float(operation, values, takes, absolute, nan)
    out: Array
    match operation:
        case "add":
            out = np.where(takes, values, np.uint32(0)).sum(-1, dtype=np.uint32)
        case "and":
            out = np.bitwise_and.reduce(np.where(takes, values, _FULL), axis=-1)
        case "or":
            out = np.bitwise_or.reduce(np.where(takes, values, np.uint32(0)), axis=-1)
        case "xor":
            out = np.bitwise_xor.reduce(np.where(takes, values, np.uint32(0)), axis=-1)
        case "min" | "max":
            number = typed(type_, values)
            info = np.iinfo(number.dtype)
            idle = number.dtype.type(info.max if operation == "min" else info.min)
            which = np.minimum if operation == "min" else np.maximum
            out = which.reduce(np.where(takes, number, idle), axis=-1).view(np.uint32)
        case _:
            raise ValueError(f"unknown operation {operation} of redux")
    return out


def _redux_float(operation: str, values: Array, takes: Bools, absolute: bool, nan: bool) -> Array:
    if operation not in ("min", "max"):
        raise ValueError(f"redux has no {operation} of f32")
    if absolute:
        values = values & np.uint32(0x7FFFFFFF)
    is_nan = values & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    # Ordered as floats are, -0 below +0: negative numbers turned around below the positive ones.
    order = np.where(values >> np.uint32(31) == 1, ~values, values | np.uint32(0x80000000))
    counts = takes & ~is_nan
    if operation == "min":
        best = np.where(counts, order, _FULL).min(-1)
    else:
        best = np.where(counts, order, np.uint32(0)).max(-1)
    found = np.where(best >> np.uint32(31) == 1, best & np.uint32(0x7FFFFFFF), ~best)
    canonical = (takes & is_nan).any(-1) if nan else ~counts.any(-1)
    out: Array = np.where(canonical, NAN["f32"], found)
    return out


def activemask(active: Any) -> Array:
    """activemask.b32: the lanes that execute it (9.7.13.11)."""
    active = np.asarray(active, np.bool_)
    return np.broadcast_to((active * _BIT).sum(-1, dtype=np.uint32)[..., None], active.shape).copy()


def elect(membermask: Any = _FULL, active: Any = True) -> tuple[Array, Bools]:
    """elect.sync (9.7.13.14): the leader's lane, and whether one is the leader: the lowest lane there is."""
    heard = _heard(membermask, active, ())
    leader = _first(heard)
    return leader.astype(np.uint32), np.asarray(leader == _LANE)


def _heard(membermask: Any, active: Any, shape: tuple[int, ...]) -> Array:
    """For each lane the mask of the lanes it hears of, (warps, 32)."""
    mask = raw(membermask, 32)
    active = np.asarray(active, np.bool_)
    shape = np.broadcast_shapes(mask.shape, active.shape, shape, (1, LANES))
    if not active.all():
        running = np.broadcast_to(active, shape)
        mask = mask & (running * _BIT).sum(-1, dtype=np.uint32)[..., None]
    return np.broadcast_to(mask, shape)


def _bits(a: Bools, like: Array) -> Array:
    """The predicates of all 32 lanes as one word each."""
    whole = np.broadcast_to(a, like.shape)
    out: Array = (whole * _BIT).sum(-1, dtype=np.uint32)[..., None]
    return out


def _first(mask: Array) -> Array:
    """The lowest bit set; 0 where there is none."""
    low = mask & (~mask + np.uint32(1))
    out: Array = np.maximum(np.frexp(low.astype(np.float64))[1] - 1, 0).astype(np.int64)
    return out
