"""atom and red (PTX ISA 9.7.13.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arith import floats, halves
from emulator.kernel import BITS
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import SIGNED, Context
from emulator.machine.decode.memory import VECTORS, space_of_access
from emulator.machine.decode.order import SCOPES, Strength
from emulator.machine.memory import SHARED_WINDOW, WINDOW_BITS
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Operand, Sink

_INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_ATOMIC: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "add": ("u32", "s32", "u64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
}
"""Operations with their types (PTX ISA 9.7.13.5)."""


def atomic(c: Context) -> Step:
    """atom and red: one lane after the other, in the order of warps and lanes."""
    kinds = sorted({t for types in _ATOMIC.values() for t in types})
    c.allow("global", "shared", "shared::cta", "shared::cluster", "relaxed", "acquire", "release", "acq_rel",
            "noftz", "L2::cache_hint", *SCOPES, *VECTORS, *kinds, *_ATOMIC)  # fmt: skip
    if c.has(*VECTORS):
        raise c.error("vectors of atomics are not known here")
    kind = next((m for m in reversed(c.i.modifiers) if m in kinds), "")
    op = next((m for m in c.i.modifiers if m in _ATOMIC), "")
    gives = c.i.opcode == "atom"
    if not op or kind not in _ATOMIC[op] or (not gives and op in ("cas", "exch")):
        raise c.error("there is no such operation on such a type")
    if c.has("noftz") != (kind in ("f16", "f16x2", "bf16", "bf16x2")):
        raise c.error("modifier .noftz goes with halves")
    ops = list(c.i.operands)
    if c.has("L2::cache_hint"):
        ops.pop()
    if len(ops) != 2 + gives + (op == "cas"):
        raise c.error(f"{len(c.i.operands)} operands")
    target: Operand = ops.pop(0) if gives else Sink()
    space = space_of_access(c, ops[0])
    bits = BITS[kind]
    read_address, read_b = c.address(ops[0]), c.value(ops[1], bits, kind)
    read_c = c.value(ops[2], bits, kind) if op == "cas" else None
    write = c.dest(target, bits)
    apply = _atomic_function(op, kind)
    strength = Strength.of(c, atomic=True)
    a = Access(c.site, bits // 8, bits // 8, strong=True)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        b = w.pick(read_b(w), row, lane)
        swap = b if read_c is None else w.pick(read_c(w), row, lane)
        old: Array = np.zeros_like(b)
        # Lanes that meet at one address take turns: one round for the first of each address, and so on.
        for turn in _turns(w, space, address, row):
            r, at, lanes = row[turn], address[turn], lane[turn]
            if gives:
                strength.read(w, space, at, r)
            handed = strength.before_write(w, r)
            now = access.read(w, space, a, at, r, lanes).view(b.dtype)[:, 0]
            old[turn] = now
            new = np.ascontiguousarray(apply(now, b[turn], swap[turn])).astype(b.dtype)
            access.write(w, space, a, at, r, lanes, new.view(np.uint8).reshape(len(at), -1))
            strength.write(w, space, at, r, handed, keep=True)
        write(w, w.spread(old, row, lane))

    return step


def _turns(w: Wave, space: str, address: Array, row: Array) -> list[Array]:
    """Indices of accesses in rounds, no two of a round to one word."""
    word = address
    if space != "global":
        # One address in shared memory is another word in each CTA.
        near = space in ("shared", "cluster")
        shared = near or address >> WINDOW_BITS == SHARED_WINDOW >> WINDOW_BITS
        # In a cluster the address says whose, within the cluster.
        whose = w.cta_of[w.warps[row]].astype(np.int64) // w.cluster
        word = np.where(shared, address ^ (whose << 48), address)
    order = np.argsort(word, kind="stable")
    same = word[order]
    first = np.concatenate([[True], same[1:] != same[:-1]]) if len(same) else np.zeros(0, np.bool_)
    start = np.maximum.accumulate(np.where(first, np.arange(len(same)), 0))
    rank = np.empty(len(same), np.intp)
    rank[order] = np.arange(len(same)) - start
    return [np.nonzero(rank == n)[0] for n in range(int(rank.max(initial=-1)) + 1)]


def _atomic_function(op: str, kind: str) -> Callable[[Any, Any, Any], Any]:
    bits = BITS[kind]
    if op == "exch":
        return lambda now, b, s: b
    if op == "cas":
        return lambda now, b, s: np.where(now == b, s, now)
    if op == "inc":
        return lambda now, b, s: np.where(now >= b, 0, now + 1)
    if op == "dec":
        return lambda now, b, s: np.where((now == 0) | (now > b), b, now - 1)
    if kind in ("f32", "f64"):
        return lambda now, b, s: floats.add(kind, now, b)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return lambda now, b, s: halves.add(kind, now, b)
    function = _INTEGER[op]
    if kind[0] == "s":
        signed: Any = SIGNED[bits]
        return lambda now, b, s: np.asarray(function(now.view(signed), b.view(signed))).view(now.dtype)
    return lambda now, b, s: function(now, b)


__all__ = ["atomic"]
