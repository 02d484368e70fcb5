"""Tensor cores and what feeds them: ldmatrix, stmatrix, movmatrix, mma.sync, wmma (PTX ISA 9.7.14)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from emulator.arith import fragments
from emulator.arith import matrix as products
from emulator.checks.shadow import WHOLE
from emulator.kernel import BITS
from emulator.machine import access
from emulator.machine.access import Access
from emulator.machine.decode.context import UNSIGNED, Context, Reader
from emulator.machine.wave import WARP, Array, Step, Wave
from emulator.ptx.nodes import Operand, Reg, Vector
from emulator.report import FaultKind

if TYPE_CHECKING:
    from emulator.checks.clocks import Index

_SHAPE = re.compile(r"m\d+n\d+k\d+")
_ELEMENTS = ("f64", "f32", "f16", "bf16", "tf32", "s32", "s8", "u8", "s4", "u4", "b1",
             "e4m3", "e5m2", "e2m3", "e3m2", "e2m1")  # fmt: skip


def _items(op: Operand) -> tuple[Operand, ...]:
    return op.items if isinstance(op, Vector) else (op,)


def _width(op: Operand) -> int:
    return 64 if isinstance(op, Reg) and op.type in ("f64", "b64", "u64", "s64") else 32


def _readers(c: Context, op: Operand) -> list[Reader]:
    return [c.value(item, _width(item)) for item in _items(op)]


def _values(w: Wave, readers: Sequence[Reader]) -> list[Array]:
    return [w.whole(read(w)) for read in readers]


# -- ldmatrix and its kind ------------------------------------------------------------------------------


def _number(c: Context) -> int:
    c.one_of("m8n8")
    return int(c.one_of("x1", "x2", "x4")[1])


def load_matrix(c: Context) -> Step:
    """ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16 {d}, [a]."""
    c.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    target, source = c.operands(2)
    count = _number(c)
    writers = [c.dest(op, 32) for op in _items(target)]
    if len(writers) != count:
        raise c.error(f"{len(writers)} registers for {count} matrices")
    address, trans, site = c.address(source), c.has("trans"), c.site
    space = "shared" if c.has("shared", "shared::cta") else "generic"
    a = Access(site, 16, 16)
    lanes = np.arange(8 * count)

    def step(w: Wave) -> None:
        w.need(site)
        at = w.whole(address(w))[:, : 8 * count].reshape(-1)
        row = np.repeat(np.arange(w.rows), 8 * count)
        data = access.read(w, space, a, at, row, np.tile(lanes, w.rows))
        words = data.view(np.uint32).reshape(w.rows, count, 8, 4)
        for write, value in zip(writers, fragments.ldmatrix(words, trans), strict=True):
            write(w, value)

    return step


def store_matrix(c: Context) -> Step:
    """stmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16 [a], {b}."""
    c.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    target, source = c.operands(2)
    count = _number(c)
    readers = _readers(c, source)
    if len(readers) != count:
        raise c.error(f"{len(readers)} registers for {count} matrices")
    address, trans, site = c.address(target), c.has("trans"), c.site
    space = "shared" if c.has("shared", "shared::cta") else "generic"
    a = Access(site, 16, 16)
    lanes = np.arange(8 * count)

    def step(w: Wave) -> None:
        w.need(site)
        at = w.whole(address(w))[:, : 8 * count].reshape(-1)
        row = np.repeat(np.arange(w.rows), 8 * count)
        words = np.ascontiguousarray(fragments.stmatrix(_values(w, readers), trans))
        data = words.view(np.uint8).reshape(-1, 16)
        access.write(w, space, a, at, row, np.tile(lanes, w.rows), data)

    return step


def move_matrix(c: Context) -> Step:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a."""
    c.allow("sync", "aligned", "m8n8", "trans", "b16")
    target, source = c.operands(2)
    read, write, site = c.value(source, 32), c.dest(target, 32), c.site

    def step(w: Wave) -> None:
        w.need(site)
        write(w, fragments.movmatrix(w.whole(read(w))))

    return step


# -- mma.sync -------------------------------------------------------------------------------------------


def _shape(c: Context) -> str:
    found = next((m for m in c.i.modifiers if _SHAPE.fullmatch(m)), None)
    if found is None:
        raise c.error("no shape")
    return found


def _layouts(c: Context) -> list[str]:
    found = [m for m in c.i.modifiers if m in ("row", "col")]
    if len(found) != 2:
        raise c.error(f"{len(found)} layouts, not 2")
    return found


@cache
def _tried(
    shape: str, a_type: str, b_type: str, c_type: str, d_type: str, a_layout: str, b_layout: str,
    a_count: int, b_count: int, c_count: int, width: int,
) -> int:  # fmt: skip
    """How many registers the product has, found by doing it once with zeros. ValueError where there is
    none."""
    zeros: Array = np.zeros((1, WARP), UNSIGNED[width])
    found = products.mma(
        shape, a_type, b_type, c_type, d_type, a_layout, b_layout,
        [zeros] * a_count, [zeros] * b_count, [zeros] * c_count,
    )  # fmt: skip
    if sum(r.dtype.itemsize for r in found) != c_count * width // 8 and c_type == d_type:
        raise ValueError(f"{c_count} registers of C")
    return len(found)


def multiply(c: Context) -> Step:
    """mma.sync.aligned.shape.alayout.blayout{.satfinite}.dtype.atype.btype.ctype d, a, b, c."""
    shape = _shape(c)
    c.allow("sync", "aligned", shape, "row", "col", "satfinite", "kind::f8f6f4", "rn", "rz", "rm", "rp",
            *_ELEMENTS)  # fmt: skip
    if len([m for m in c.i.modifiers if m in _ELEMENTS]) != 4:
        raise c.error("not four types")
    d_type, a_type, b_type, c_type = c.i.modifiers[-4:]
    layouts = _layouts(c)
    d, a, b, e = c.operands(4)
    read_a, read_b, read_c = _readers(c, a), _readers(c, b), _readers(c, e)
    writers = [c.dest(op, _width(op)) for op in _items(d)]
    saturate, site = c.has("satfinite"), c.site
    if saturate and d_type != "s32":
        raise c.error("modifier .satfinite goes with .s32")
    rnd = next((m for m in c.i.modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    m, n, k = products.dimensions(shape)
    try:
        results = _tried(
            shape, a_type, b_type, c_type, d_type, *layouts, *(len(_items(op)) for op in (a, b, e)),
            _width(_items(a)[0]),
        )  # fmt: skip
    except ValueError as error:
        raise c.error(f"no such product or registers ({error})") from None
    if len(writers) != results:
        raise c.error(f"{len(writers)} registers of D, not {results}")
    # Volta's m8n8k4 is four products, one for each quarter of the warp.
    flops = 2 * m * n * k * (4 if shape == "m8n8k4" and a_type == "f16" else 1)
    name = f"mma.{shape}.{a_type}" + ("" if a_type == b_type else f".{b_type}")

    def step(w: Wave) -> None:
        w.need(site)
        found = products.mma(
            shape, a_type, b_type, c_type, d_type, layouts[0], layouts[1],
            _values(w, read_a), _values(w, read_b), _values(w, read_c), saturate, rnd,
        )  # fmt: skip
        for write, value in zip(writers, found, strict=True):
            write(w, value)
        w.counters.add(name, w.warps)
        w.counters.add("mma_flops", w.warps, flops)

    return step


# -- wmma -----------------------------------------------------------------------------------------------


def wmma(c: Context) -> Step:
    """wmma.load, wmma.store, wmma.mma. Which lane holds which element is unspecified, so the run's seed
    chooses."""
    if c.has("load"):
        return _wmma_load(c)
    if c.has("store"):
        return _wmma_store(c)
    return _wmma_mma(c)


def _tile(c: Context, role: str) -> tuple[str, str, str, str]:
    """(shape, layout, type, space)."""
    shape = _shape(c)
    c.allow(role, "load", "store", "sync", "aligned", shape, "row", "col", "shared", "shared::cta", "global",
            *_ELEMENTS)  # fmt: skip
    layout = c.one_of("row", "col")
    if c.i.modifiers[-1] not in _ELEMENTS:
        raise c.error("no type at its end")
    space = "shared" if c.has("shared", "shared::cta") else "global" if c.has("global") else "generic"
    return shape, layout, c.i.modifiers[-1], space


def _bytes_of(kind: str) -> int:
    return 4 if kind in ("f32", "s32", "tf32") else 8 if kind == "f64" else 1 if kind in ("s8", "u8") else 2


def _places(
    w: Wave, at: Array, ldm: Array, rows: int, columns: int, layout: str, size: int
) -> tuple[Array, Index, int]:
    """(addresses, rows of the group, bytes) of the lines of a tile in memory, one access a line."""
    lines, length = (rows, columns) if layout == "row" else (columns, rows)
    pitch = np.broadcast_to(ldm.astype(np.int64), (w.rows, WARP))[:, :1] * size
    address = at[:, :1] + pitch * np.arange(lines)
    return address.reshape(-1), np.repeat(np.arange(w.rows), lines), length * size


def _wmma_load(c: Context) -> Step:
    role = c.one_of("a", "b", "c")
    shape, layout, kind, space = _tile(c, role)
    target, source, *more = c.operands(2, 3)
    size = _bytes_of(kind)
    m, n, k = products.dimensions(shape)
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n)}[role]
    default = columns if layout == "row" else rows
    ldm = c.value(more[0], 32) if more else (lambda w: np.array([[default]], np.uint32))
    writers = [c.dest(op, _width(op)) for op in _items(target)]
    address, site = c.address(source), c.site
    aligned = _check_fragment(c, shape, role, kind, len(writers))

    def step(w: Wave) -> None:
        w.need(site)
        at = w.whole(address(w))
        pitch = ldm(w)
        _same_in_warp(w, at, pitch, size, aligned, site)
        where, row, width = _places(w, at, pitch, rows, columns, layout, size)
        a = _line(site, width, size)
        found = _split_read(w, space, a, where, row)
        tile: Array = found.view(UNSIGNED[size * 8]).reshape(w.rows, -1, width // size)
        if layout == "col":
            tile = tile.transpose(0, 2, 1)
        held = fragments.scatter(fragments.wmma_layout(shape, role, kind, w.order.seed, layout), tile)
        for write, value in zip(writers, _packed(held, size), strict=True):
            write(w, value)

    return step


def _wmma_store(c: Context) -> Step:
    shape, layout, kind, space = _tile(c, "d")
    target, source, *more = c.operands(2, 3)
    size = _bytes_of(kind)
    rows, columns, _ = products.dimensions(shape)
    default = columns if layout == "row" else rows
    ldm = c.value(more[0], 32) if more else (lambda w: np.array([[default]], np.uint32))
    readers, address, site = _readers(c, source), c.address(target), c.site
    aligned = _check_fragment(c, shape, "d", kind, len(readers))

    def step(w: Wave) -> None:
        w.need(site)
        at = w.whole(address(w))
        pitch = ldm(w)
        _same_in_warp(w, at, pitch, size, aligned, site)
        where, row, width = _places(w, at, pitch, rows, columns, layout, size)
        held = np.stack(_values(w, readers), axis=-1)
        elements: Array = np.ascontiguousarray(held).view(UNSIGNED[size * 8])
        tile = fragments.gather(fragments.wmma_layout(shape, "d", kind, w.order.seed), elements)
        if layout == "col":
            tile = tile.transpose(0, 2, 1)
        data = np.ascontiguousarray(tile).view(np.uint8).reshape(-1, width)
        a = _line(site, width, size)
        for part, piece, first in _pieces(w, a, width):
            access.write(
                w,
                space,
                part,
                where + first,
                row,
                np.full(len(row), WHOLE),
                np.ascontiguousarray(data[:, piece]),
            )

    return step


def _check_fragment(c: Context, shape: str, role: str, kind: str, registers: int) -> int:
    """The registers are as many as there are; the size of the fragment in bytes."""
    elements = fragments.wmma_elements(shape, role, kind)
    wanted = elements if kind in ("f32", "s32", "tf32", "f64") else elements * _bytes_of(kind) // 4
    if registers != wanted:
        raise c.error(f"{registers} registers, not {wanted}")
    return wanted * (8 if kind == "f64" else 4)


def _line(site: int, width: int, size: int) -> Access:
    return Access(site, width, size, what="line of a fragment")


def _pieces(w: Wave, a: Access, width: int) -> list[tuple[Access, slice, int]]:
    """A line as accesses of at most 16 bytes."""
    each = min(width, 16)
    part = Access(a.site, each, a.align, what=a.what)
    return [(part, slice(first, first + each), first) for first in range(0, width, each)]


def _split_read(w: Wave, space: str, a: Access, where: Array, row: Index) -> Array:
    found = np.empty((len(where), a.width), np.uint8)
    lane = np.full(len(where), WHOLE)
    for part, piece, first in _pieces(w, a, a.width):
        found[:, piece] = access.read(w, space, part, where + first, row, lane)
    return found


def _same_in_warp(w: Wave, at: Array, pitch: Array, size: int, aligned: int, site: int) -> None:
    """All lanes must name one tile, whose base is a multiple of the fragment's size (PTX ISA 9.7.14.4.2) and
    whose rows are of 16 bytes, or of that (CUDA C++ Programming Guide, load_matrix_sync: what the library
    asks for, which is less than the PTX text does)."""
    differ = (at != at[:, :1]).any(axis=1)
    if differ.any():
        text = "lanes of a warp name different tiles"
        w.launch.fault(w, FaultKind.DIVERGENCE, site, text, row=int(np.nonzero(differ)[0][0]))
    wrong = at[:, 0] % aligned != 0
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0])
        text = f"its tile at {int(at[row, 0]):#x} is no multiple of {aligned} bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row)
    step = min(aligned, 16)
    wide = np.broadcast_to(pitch, at.shape)[:, 0].astype(np.int64) * size
    wrong = wide % step != 0
    if wrong.any():
        row = int(np.nonzero(wrong)[0][0])
        text = f"the rows of its tile are {int(wide[row])} bytes apart, which is no multiple of {step} bytes"
        w.launch.fault(w, FaultKind.MISALIGNED, site, text, row=row)


def _packed(held: Array, size: int) -> list[Array]:
    """(warps, 32, elements) as registers of 32 (or 64) bits."""
    kind = np.uint64 if size == 8 else np.uint32
    words = np.ascontiguousarray(held).view(kind)
    return [words[..., i] for i in range(words.shape[-1])]


def _wmma_mma(c: Context) -> Step:
    shape = _shape(c)
    c.allow("mma", "sync", "aligned", shape, "row", "col", "satfinite", "rn", *_ELEMENTS)
    layouts = _layouts(c)
    types = [m for m in c.i.modifiers if m in _ELEMENTS]
    # wmma.mma...dtype.ctype for f16 (A and B are f16); dtype.atype.btype.ctype for the others.
    if len(types) == 2:
        d_type, c_type = types
        a_type = b_type = "f16"
    elif len(types) == 4:
        d_type, a_type, b_type, c_type = types
    else:
        raise c.error("neither two types nor four")
    d, a, b, e = c.operands(4)
    read_a, read_b, read_c = _readers(c, a), _readers(c, b), _readers(c, e)
    writers = [c.dest(op, _width(op)) for op in _items(d)]
    for role, kind, op in (("a", a_type, a), ("b", b_type, b), ("c", c_type, e), ("d", d_type, d)):
        _check_fragment(c, shape, role, kind, len(_items(op)))
    saturate, site = c.has("satfinite"), c.site
    m, n, k = products.dimensions(shape)
    name = f"mma.wmma_{shape}.{a_type}"

    def step(w: Wave) -> None:
        w.need(site)
        found = products.wmma(
            shape, a_type, b_type, c_type, d_type, layouts[0], layouts[1],
            _values(w, read_a), _values(w, read_b), _values(w, read_c), saturate, seed=w.order.seed,
        )  # fmt: skip
        for write, value in zip(writers, found, strict=True):
            write(w, value)
        w.counters.add(name, w.warps)
        w.counters.add("mma_flops", w.warps, 2 * m * n * k)

    return step


__all__ = ["BITS", "load_matrix", "move_matrix", "multiply", "store_matrix", "wmma"]
