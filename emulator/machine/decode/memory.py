"""Loads, stores, atomics, prefetches and conversions of addresses (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.kernel import BITS
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import SIGNED, UNSIGNED, Context
from emulator.machine.memory import CONST_WINDOW, FIRST_SLOT, LOCAL_WINDOW, SHARED_WINDOW, SLOT_BITS
from emulator.machine.wave import Array, Step, Wave
from emulator.ptx.nodes import Address, Operand, Reg, Sink, Symbol, Vector

_SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry")
_STRENGTH = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "nc")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_HINTS = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last",
    "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B", "unified",
)  # fmt: skip


def _shape(c: Context) -> tuple[str, str, int]:
    """(space, type, elements) of a load or store."""
    c.allow(*_SPACES, *_STRENGTH, *_SCOPES, *_VECTORS, *_HINTS, *BITS)
    kind = c.i.modifiers[-1]
    if kind not in BITS or kind == "pred":
        raise c.error("no type at its end")
    space = next((m.split("::")[0] for m in c.i.modifiers if m in _SPACES), "generic")
    if c.has("shared::cluster"):
        raise c.error("distributed shared memory is not known here yet")
    count = next((_VECTORS[m] for m in c.i.modifiers if m in _VECTORS), 1)
    return space, kind, count


def _items(c: Context, op: Operand, count: int) -> tuple[Operand, ...]:
    items = op.items if isinstance(op, Vector) else (op,)
    if len(items) != count:
        raise c.error(f"{len(items)} registers for {count} elements")
    return items


def _strong(c: Context) -> tuple[bool, bool, bool]:
    """(strong, acquires, releases)."""
    return (
        c.has("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"),
        c.has("acquire", "acq_rel"),
        c.has("release", "acq_rel"),
    )


def load(c: Context) -> Step:
    """ld{.weak .volatile .relaxed .acquire}{.space}{hints}{.vec}.type d, [a]."""
    space, kind, count = _shape(c)
    ops = c.operands(2, 3)  # the third is a cache policy
    where = ops[1]
    if space == "generic" and isinstance(where, Address) and isinstance(where.base, Symbol):
        at = c.kernel.variables.get(where.base.name)
        space = at.space if at is not None else "global"
    read_address = c.address(where)
    bits = BITS[kind]
    if bits == 128:
        raise c.error("type .b128 is not known here")
    width = bits // 8 * count
    writers = [c.dest(op, bits, kind[0] == "s", wider=True) for op in _items(c, ops[0], count)]
    strong, acquire, _ = _strong(c)
    a = Access(c.site, width, width, strong)
    element = UNSIGNED[bits]
    if space == "param" and not isinstance(where.base, Reg):  # type: ignore[union-attr]
        return _load_param(read_address, writers, a, element)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        data = access.read(w, space, a, address, row, lane)
        if strong:
            for n, at in enumerate(address.tolist()):
                w.clocks.read_mark(int(w.warps[row[n]]), w.launch.key(w, space, at, int(row[n])), acquire)
        values: Array = data.view(element).reshape(len(address), count)
        for n, write in enumerate(writers):
            write(w, w.spread(np.ascontiguousarray(values[:, n]), row, lane))

    return step


def _load_param(read_address: Any, writers: list[Any], a: Access, element: Any) -> Step:
    """Parameters are the same for all: one read."""

    def step(w: Wave) -> None:
        at = int(read_address(w)[0, 0])
        data = w.launch.params[at : at + a.width]
        for write, value in zip(writers, np.frombuffer(data, element), strict=True):
            write(w, np.full((1, 1), value))

    return step


def store(c: Context) -> Step:
    """st{.weak .volatile .relaxed .release}{.space}{hints}{.vec}.type [a], b."""
    space, kind, count = _shape(c)
    ops = c.operands(2, 3)
    read_address = c.address(ops[0])
    bits = BITS[kind]
    if bits == 128:
        raise c.error("type .b128 is not known here")
    if space == "param":
        raise c.error("parameters of calls are not written here: functions have to be inlined")
    width = bits // 8 * count
    readers = [c.value(op, bits, kind, wider=True) for op in _items(c, ops[1], count)]
    strong, _, release = _strong(c)
    a = Access(c.site, width, width, strong)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        data: Array = np.empty((len(address), count), UNSIGNED[bits])
        for n, read in enumerate(readers):
            data[:, n] = w.pick(read(w), row, lane)
        access.write(w, space, a, address, row, lane, data.view(np.uint8))
        if strong:
            for n, at in enumerate(address.tolist()):
                w.clocks.write_mark(
                    int(w.warps[row[n]]), w.launch.key(w, space, at, int(row[n])), release, keep=False
                )

    return step


# -- atomics -------------------------------------------------------------------------------------------------

_INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_ATOMIC = ("add", "and", "or", "xor", "min", "max", "exch", "cas", "inc", "dec")


def atomic(c: Context) -> Step:
    """atom and red: one lane after the other, in the order of warps and lanes."""
    c.allow(*_SPACES, *_STRENGTH, *_SCOPES, *_HINTS, *BITS, *_ATOMIC, "noftz", *_VECTORS)
    if c.has(*_VECTORS):
        raise c.error("vectors of atomics are not known here")
    kind = c.i.modifiers[-1]
    op = next((m for m in c.i.modifiers if m in _ATOMIC), None)
    if op is None or kind not in BITS:
        raise c.error("no operation or type")
    space = next((m.split("::")[0] for m in c.i.modifiers if m in _SPACES), "generic")
    ops = list(c.i.operands)
    gives = c.i.opcode == "atom"
    target: Operand = ops.pop(0) if gives else Sink()
    bits = BITS[kind]
    read_address, read_b = c.address(ops[0]), c.value(ops[1], bits, kind)
    read_c = c.value(ops[2], bits, kind) if op == "cas" else None
    write = c.dest(target, bits)
    apply = _atomic_function(c, op, kind)
    _, acquire, release = _strong(c)
    a = Access(c.site, bits // 8, bits // 8, strong=True)

    def step(w: Wave) -> None:
        row, lane = w.active()
        address = w.pick(read_address(w), row, lane)
        b = w.pick(read_b(w), row, lane)
        swap = b if read_c is None else w.pick(read_c(w), row, lane)
        old = np.zeros_like(b)
        one = slice(0, 1)
        # Lanes that meet at one address take turns; there are few, so each takes its own.
        for n in range(len(address)):
            one = slice(n, n + 1)
            warp, key = int(w.warps[row[n]]), w.launch.key(w, space, int(address[n]), int(row[n]))
            w.clocks.read_mark(warp, key, acquire)
            now = access.read(w, space, a, address[one], row[one], lane[one]).view(b.dtype)[:, 0]
            old[n] = now[0]
            new = np.asarray(apply(now, b[one], swap[one])).astype(b.dtype)
            access.write(w, space, a, address[one], row[one], lane[one], new.view(np.uint8).reshape(1, -1))
            w.clocks.write_mark(warp, key, release, keep=True)
        write(w, w.spread(old, row, lane))

    return step


def _atomic_function(c: Context, op: str, kind: str) -> Callable[[Any, Any, Any], Any]:
    bits = BITS[kind]
    if op == "exch":
        return lambda now, b, s: b
    if op == "cas":
        return lambda now, b, s: np.where(now == b, s, now)
    if op == "inc":
        return lambda now, b, s: np.where(now >= b, 0, now + 1)
    if op == "dec":
        return lambda now, b, s: np.where((now == 0) | (now > b), b, now - 1)
    function = _INTEGER[op]
    if kind in ("f32", "f64"):
        real = np.float32 if bits == 32 else np.float64
        return lambda now, b, s: np.asarray(function(now.view(real), b.view(real))).view(now.dtype)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        raise c.error(f"atomics of type .{kind} are not known here")
    if kind[0] == "s":
        signed: Any = SIGNED[bits]
        return lambda now, b, s: np.asarray(function(now.view(signed), b.view(signed))).view(now.dtype)
    return lambda now, b, s: function(now, b)


# -- order and addresses -------------------------------------------------------------------------------------


def fence(c: Context) -> Step:
    """fence{.sem}.scope, membar.level; what orders other proxies alone has no effect here."""
    c.allow("sc", "acq_rel", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl", "proxy", "async",
            "alias", "mbarrier_init", "async::generic", "async.global",
            "sync_restrict::shared::cta")  # fmt: skip
    if c.has("proxy"):
        return lambda w: None
    if c.has("mbarrier_init"):
        raise c.error("mbarriers are not known here yet")

    def step(w: Wave) -> None:
        w.counters.add("waits.fence", w.warps)
        for warp in w.warps.tolist():
            w.clocks.fence(warp)

    return step


def prefetch(c: Context) -> Step:
    """A hint: nothing happens, and no address is refused."""
    return lambda w: None


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}


def convert_address(c: Context) -> Step:
    """cvta{.to}.space.size d, a."""
    c.allow("to", *_SPACES, "u32", "u64")
    space = next(m.split("::")[0] for m in c.i.modifiers if m in _SPACES)
    bits = BITS[c.i.modifiers[-1]]
    target, source = c.operands(2)
    read, write = c.value(source, bits), c.dest(target, bits)
    window = UNSIGNED[bits](_WINDOWS[space])
    if c.has("to"):
        return lambda w: write(w, read(w) - window)
    return lambda w: write(w, read(w) + window)


def is_space(c: Context) -> Step:
    """isspacep.space p, a."""
    c.allow(*_SPACES)
    space = c.i.modifiers[-1].split("::")[0]
    target, source = c.operands(2)
    read, write = c.value(source, 64), c.dest(target, 1)

    def step(w: Wave) -> None:
        address = read(w).astype(np.int64)
        window = address >> 40
        slot = address >> SLOT_BITS
        answers: dict[str, Array] = {
            "shared": window == SHARED_WINDOW >> 40,
            "local": window == LOCAL_WINDOW >> 40,
            "global": slot >= FIRST_SLOT,
            "const": window == CONST_WINDOW >> 40,
            "param": np.zeros(address.shape, np.bool_),
        }
        write(w, answers[space])

    return step
