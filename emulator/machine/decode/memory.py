"""Loads, stores, atomics, prefetches and conversions of addresses (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.kernel import BITS
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import UNSIGNED, Context, Writer
from emulator.machine.decode.order import SCOPES, Strength
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
from emulator.ptx.nodes import Address, Operand, Symbol, Vector

if TYPE_CHECKING:
    pass

_SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry")
_STRENGTH = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "nc")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last",
    "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B", "unified",
)  # fmt: skip


def _shape(c: Context) -> tuple[str, int]:
    """(type, elements) of a load or store."""
    c.allow(*_SPACES, *_STRENGTH, *SCOPES, *VECTORS, *_HINTS, *BITS)
    kind = c.i.modifiers[-1] if c.i.modifiers else ""
    if kind not in BITS or kind in ("pred", "b128") or kind.endswith("x2") or kind[0] == "e":
        raise c.error(f"type .{kind} is not known here")
    count = next((VECTORS[m] for m in c.i.modifiers if m in VECTORS), 1)
    if count * BITS[kind] > 256:
        raise c.error("more than 32 bytes at once")
    return kind, count


def space_of_access(c: Context, where: Operand) -> str:
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


def load(c: Context) -> Step:
    """ld{.weak .volatile .relaxed .acquire}{.space}{hints}{.vec}.type d, [a]."""
    kind, count = _shape(c)
    ops = c.operands(2, 3)  # the third is a cache policy
    where = ops[1]
    space = space_of_access(c, where)
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
    space = space_of_access(c, ops[0])
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


# -- addresses ------------------------------------------------------------------------------------------


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
