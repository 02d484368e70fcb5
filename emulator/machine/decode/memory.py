"""Loads, stores, atomics, prefetches and conversions of addresses (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.arith import floats, halves
from emulator.kernel import BITS
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import SIGNED, UNSIGNED, Context, Writer
from emulator.machine.memory import (
    FIRST_SLOT,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    SLOT_BITS,
    WINDOW_BITS,
)
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Address, Operand, Sink, Symbol, Vector

if TYPE_CHECKING:
    from emulator.checks.clocks import I32

_SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry")
_STRENGTH = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "nc")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last",
    "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B", "unified",
)  # fmt: skip


def _shape(c: Context) -> tuple[str, int]:
    """(type, elements) of a load or store."""
    c.allow(*_SPACES, *_STRENGTH, *_SCOPES, *_VECTORS, *_HINTS, *BITS)
    kind = c.i.modifiers[-1] if c.i.modifiers else ""
    if kind not in BITS or kind in ("pred", "b128") or kind.endswith("x2") or kind[0] == "e":
        raise c.error(f"type .{kind} is not known here")
    count = next((_VECTORS[m] for m in c.i.modifiers if m in _VECTORS), 1)
    if count * BITS[kind] > 256:
        raise c.error("more than 32 bytes at once")
    return kind, count


def _space(c: Context, where: Operand) -> str:
    """The space of an access; a variable named without one is where it is declared."""
    if c.has("shared::cluster"):
        return "cluster"
    space = next((m.split("::")[0] for m in c.i.modifiers if m in _SPACES), "generic")
    if space == "generic" and isinstance(where, Address) and isinstance(where.base, Symbol):
        at = c.kernel.variables.get(where.base.name)
        space = at.space if at is not None else "global"
    return space


def _items(c: Context, op: Operand, count: int) -> tuple[Operand, ...]:
    items = op.items if isinstance(op, Vector) else (op,)
    if len(items) != count:
        raise c.error(f"{len(items)} registers for {count} elements")
    return items


@dataclass(frozen=True)
class Strength:
    """How an access takes part in the order of memory (PTX ISA 8.4 to 8.8)."""

    strong: bool
    acquires: bool
    releases: bool
    near: bool
    """Of scope .cta."""

    @classmethod
    def of(cls, c: Context, atomic: bool = False) -> Strength:
        """From the modifiers. A red reads nothing that could acquire (PTX ISA 8.11.1)."""
        return cls(
            atomic or c.has("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"),
            c.has("acquire", "acq_rel") and c.i.opcode != "red",
            c.has("release", "acq_rel"),
            c.has("cta"),
        )

    def read(self, w: Wave, space: str, address: Array, row: Array) -> None:
        """Strong reads of words."""
        if not w.launch.marks:
            return
        for n, at in enumerate(address.tolist()):
            warp = int(w.warps[row[n]])
            w.clocks.read_mark(warp, w.launch.key(w, space, at, int(row[n])), self.acquires, self.near)

    def before_write(self, w: Wave, row: Array) -> dict[int, I32]:
        """By row of the group, what writes of its lanes hand on."""
        found: dict[int, I32] = {}
        if self.releases and w.clocks.full:
            for r in np.unique(row).tolist():
                found[r] = w.clocks.publish(int(w.warps[r]))
                w.released(r)
        return found

    def write(
        self, w: Wave, space: str, address: Array, row: Array, handed: dict[int, I32], keep: bool
    ) -> None:
        """Strong writes of words; `keep`: atomic ones."""
        for n, at in enumerate(address.tolist()):
            r = int(row[n])
            word = w.launch.key(w, space, at, r)
            w.clocks.write_mark(int(w.warps[r]), word, handed.get(r), keep, self.near)


def load(c: Context) -> Step:
    """ld{.weak .volatile .relaxed .acquire}{.space}{hints}{.vec}.type d, [a]."""
    kind, count = _shape(c)
    ops = c.operands(2, 3)  # the third is a cache policy
    where = ops[1]
    space = _space(c, where)
    read_address = c.address(where)
    bits = BITS[kind]
    width = bits // 8 * count
    writers = [c.dest(op, bits, kind[0] == "s", wider=True) for op in _items(c, ops[0], count)]
    strength = Strength.of(c)
    if c.has("release", "acq_rel"):
        raise c.error("a load does not release")
    a = Access(c.site, width, width, strength.strong)
    element = UNSIGNED[bits]
    if space == "param" and isinstance(where, Address) and isinstance(where.base, Symbol):
        at = c.kernel.variables[where.base.name].offset + where.base.offset + where.offset
        if at % width or not 0 <= at <= c.kernel.function.param_bytes - width:
            raise c.error(f"{width} bytes at {at} of {c.kernel.function.param_bytes} bytes of parameters")
        return _load_param(at, writers, width, element)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        data = access.read(w, space, a, address, row, lane)
        if strength.strong:
            strength.read(w, space, address, row)
        values: Array = data.view(element).reshape(len(address), count)
        for n, write in enumerate(writers):
            write(w, w.spread(np.ascontiguousarray(values[:, n]), row, lane))

    return step


def _load_param(at: int, writers: list[Writer], width: int, element: Any) -> Step:
    """Parameters are the same for all: one read."""

    def step(w: Wave) -> None:
        data = w.launch.params[at : at + width]
        for write, value in zip(writers, np.frombuffer(data, element), strict=True):
            write(w, np.full((1, 1), value))

    return step


def store(c: Context) -> Step:
    """st{.weak .volatile .relaxed .release}{.space}{hints}{.vec}.type [a], b."""
    kind, count = _shape(c)
    ops = c.operands(2, 3)
    space = _space(c, ops[0])
    read_address = c.address(ops[0])
    bits = BITS[kind]
    if space == "param":
        raise c.error("parameters of calls are not written here: functions have to be inlined")
    if space == "const" or c.has("acquire", "acq_rel", "nc"):
        raise c.error("there is no such store")
    width = bits // 8 * count
    readers = [c.value(op, bits, kind, wider=True) for op in _items(c, ops[1], count)]
    strength = Strength.of(c)
    a = Access(c.site, width, width, strength.strong)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        data: Array = np.empty((len(address), count), UNSIGNED[bits])
        for n, read in enumerate(readers):
            data[:, n] = w.pick(read(w), row, lane)
        access.write(w, space, a, address, row, lane, data.view(np.uint8))
        if strength.strong:
            strength.write(w, space, address, row, strength.before_write(w, row), keep=False)

    return step


# -- atomics --------------------------------------------------------------------------------------------

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
            "noftz", "L2::cache_hint", *_SCOPES, *_VECTORS, *kinds, *_ATOMIC)  # fmt: skip
    if c.has(*_VECTORS):
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
    space = _space(c, ops[0])
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


# -- order and addresses --------------------------------------------------------------------------------


def fence(c: Context) -> Step:
    """fence{.sem}.scope, membar.level, fence.mbarrier_init, fence.proxy."""
    if c.has("proxy"):
        return _proxy_fence(c)
    if c.has("mbarrier_init"):
        c.allow("mbarrier_init", "release", "cluster")
        return _cluster_fence
    c.allow("sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl")
    if not c.has("cta", "cluster", "gpu", "sys", "gl"):
        raise c.error("no scope")
    near = c.has("cta")

    def step(w: Wave) -> None:
        w.counters.add("waits.fence", w.warps)
        for row, warp in enumerate(w.warps.tolist()):
            w.clocks.fence(warp, near)
            if w.clocks.full:
                w.released(row)
        if not near and w.cluster > 1:
            _cluster_fence(w)

    return step


def _cluster_fence(w: Wave) -> None:
    """What a relaxed arrive behind it hands to the cluster."""
    for row in range(w.rows):
        w.clusters.fence(row)


def _proxy_fence(c: Context) -> Step:
    """fence.proxy.async{.global, .shared::{cta, cluster}}; .alias and .tensormap order nothing that is known
    here."""
    c.allow("proxy", "async", "async::generic", "alias", "tensormap", "tensormap::generic", "global",
            "shared::cta", "shared::cluster", "acquire", "release", "sync_restrict::shared::cta",
            "sync_restrict::shared::cluster", *_SCOPES)  # fmt: skip
    if not c.has("async", "async::generic"):
        return lambda w: None
    spaces: tuple[str, ...] = ("shared", "global")
    if c.has("global"):
        spaces = ("global",)
    elif c.has("shared::cta", "shared::cluster"):
        spaces = ("shared",)

    def step(w: Wave) -> None:
        w.counters.add("waits.proxy_fence", w.warps)
        for row, warp in enumerate(w.warps.tolist()):
            w.clocks.proxy_fence(warp, spaces)
            w.released(row)

    return step


def prefetch(c: Context) -> Step:
    """A hint: nothing happens, and no address is refused."""
    return lambda w: None


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}


def convert_address(c: Context) -> Step:
    """cvta{.to}.space.size d, a."""
    c.allow("to", *_WINDOWS, "shared::cta", "shared::cluster", "param::entry", "u32", "u64")
    space = next((m.split("::")[0] for m in c.i.modifiers if m.split("::")[0] in _WINDOWS), "")
    if not space or c.i.modifiers[-1] != "u64":
        raise c.error("no space, or a type other than .u64")
    target, source = c.operands(2)
    read, write = c.value(source, 64), c.dest(target, 64)
    window = np.uint64(_WINDOWS[space])
    if c.has("to"):
        return lambda w: write(w, read(w) - window)
    return lambda w: write(w, read(w) + window)


def is_space(c: Context) -> Step:
    """isspacep.space p, a."""
    c.allow(*_WINDOWS, "shared::cta", "shared::cluster", "param::entry")
    own = not c.has("shared::cluster")
    space = c.i.modifiers[-1].split("::")[0] if c.i.modifiers else ""
    target, source = c.operands(2)
    read, write = c.value(source, 64), c.dest(target, 1)

    def step(w: Wave) -> None:
        address = read(w).astype(np.int64)
        if space in ("global", "const"):
            slot = address >> SLOT_BITS
            const = np.isin(slot, w.launch.const_slots)
            write(w, const if space == "const" else (slot >= FIRST_SLOT) & ~const)
        else:
            found = address >> WINDOW_BITS == _WINDOWS[space] >> WINDOW_BITS
            if space == "shared" and own and w.rank_base is not None:
                rank = (address & (1 << WINDOW_BITS) - 1) >> RANK_SHIFT
                found = found & (rank == w.rank_base[w.warps, None] >> RANK_SHIFT)
            write(w, found)

    return step
