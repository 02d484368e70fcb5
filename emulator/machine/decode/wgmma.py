"""wgmma.mma_async, .fence, .commit_group, .wait_group and setmaxnreg (PTX ISA 9.7.15, 9.7.19.5)."""

from __future__ import annotations

import re

import numpy as np

from emulator.kernel import BITS
from emulator.machine.decode.context import Context, Reader
from emulator.machine.wave import Step, Wave
from emulator.machine.wgmma_operands import Form
from emulator.ptx.nodes import Imm, Operand, Reg, Vector
from emulator.report import FaultKind

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip
_REGISTERS = {"f16": ("b32", "f16x2"), "f32": ("b32", "f32"), "s32": ("b32", "s32", "u32")}
"""Types that registers of D may have, by its type (PTX ISA 9.7.15.5.1.1)."""
_ALIKE = ({"e4m3", "e5m2"}, {"s8", "u8"})


def wgmma(c: Context) -> Step:
    """Every wgmma but wait_group."""
    if c.has("fence"):
        c.allow("fence", "sync", "aligned")
        return _whole(c, lambda w: w.warpgroups.held.fence())
    if c.has("commit_group"):
        c.allow("commit_group", "sync", "aligned")
        return _whole(c, lambda w: w.warpgroups.commit())
    if c.has("mma_async"):
        return _multiply(c)
    raise c.error("no such operation")


def _whole(c: Context, step: Step) -> Step:
    site = c.site
    _check_whole(c)

    def run(w: Wave) -> None:
        w.need(site)
        step(w)

    return run


def _check_whole(c: Context) -> None:
    """An instruction for a whole warpgroup says so."""
    if not c.has("sync") or not c.has("aligned"):
        raise c.error("it takes .sync.aligned")


def _multiply(c: Context) -> Step:
    shape = next((m for m in c.i.modifiers if _SHAPE.fullmatch(m)), None)
    if shape is None:
        raise c.error("no shape")
    if c.has("b1"):
        raise c.error("products of single bits are not known here")
    c.allow("mma_async", "sync", "aligned", shape, "satfinite", "f32", "s32", *_BYTES)
    _check_whole(c)
    kinds = [m for m in c.i.modifiers if m in (*_BYTES, "f32", "s32")]
    if len(kinds) != 3:
        raise c.error("not three types")
    d_type, a_type, b_type = kinds
    n, k = (int(x) for x in re.findall(r"\d+", shape)[1:])
    _check_form(c, n, k, d_type, a_type, b_type)
    if len(c.i.operands) < 4:
        raise c.error(f"{len(c.i.operands)} operands")
    d, a, b, scale, *more = c.i.operands
    whole = a_type in ("s8", "u8")
    in_registers = isinstance(a, Vector)
    transposes = (1 if in_registers else 2) if _BYTES[a_type] == 2 else 0
    if len(more) != (0 if whole else 2 + transposes):
        raise c.error(f"{len(c.i.operands)} operands")
    signs = (1, 1) if whole else (c.integer(more[0]), c.integer(more[1]))
    flips = [c.integer(op) for op in more[2:]]
    if not {*signs} <= {1, -1} or not {*flips} <= {0, 1}:
        raise c.error("a scale that is neither 1 nor -1, or a transposition that is neither 0 nor 1")
    mn_major = (False, bool(flips[0])) if len(flips) == 1 else tuple(map(bool, flips)) or (False, False)
    sums = _registers(c, d, n // 4 if d_type == "f16" else n // 2)
    for item in d.items if isinstance(d, Vector) else ():
        if isinstance(item, Reg) and item.type not in _REGISTERS[d_type]:
            raise c.error(f"{item.name} is .{item.type}: no register of D in .{d_type}")
    form = Form(
        c.site, n, d_type, a_type, b_type, sums, _registers(c, a, 4) if in_registers else (),
        (signs[0], signs[1]), (mn_major[0], mn_major[1]), c.has("satfinite"), 2 * 64 * n * k,
    )  # fmt: skip
    read_a = None if in_registers else c.value(a, 64)
    read_b, read_scale, site = c.value(b, 64), c.predicate(scale), c.site

    def step(w: Wave) -> None:
        w.need(site)
        if not _is_warpgroup(w, site):
            return
        zeros = [0] * w.rows
        first = zeros if read_a is None else _one_a_warp(w, read_a, site, "descriptors of A")
        second = _one_a_warp(w, read_b, site, "descriptors of B")
        adds = [bool(x) for x in _one_a_warp(w, read_scale, site, "scale-d")]
        w.warpgroups.issue(form, first, second, adds)

    return step


def _check_form(c: Context, n: int, k: int, d_type: str, a_type: str, b_type: str) -> None:
    """Legal shapes and types (PTX ISA 9.7.15.5.2)."""
    if a_type not in _BYTES or d_type not in _RESULTS[a_type]:
        raise c.error(f"no product of .{a_type} in .{d_type}")
    if a_type != b_type and not any({a_type, b_type} <= kinds for kinds in _ALIKE):
        raise c.error(f"no product of .{a_type} and .{b_type}")
    whole = a_type in ("s8", "u8")
    if k * _BYTES[a_type] != 32 or not 8 <= n <= 256 or n % 8 or (whole and n > 32 and n % 16):
        raise c.error(f"no shape m64n{n}k{k} for .{a_type}")
    if c.has("satfinite") and not whole:
        raise c.error("modifier .satfinite goes with .s32")


def _registers(c: Context, op: Operand, count: int) -> tuple[int, ...]:
    items = op.items if isinstance(op, Vector) else (op,)
    if len(items) != count:
        raise c.error(f"{len(items)} registers, not {count}")
    found = []
    for item in items:
        if not isinstance(item, Reg) or BITS[item.type] != 32:
            raise c.error("a fragment is of registers of 32 bits")
        found.append(item.index)
    return tuple(found)


def _is_warpgroup(w: Wave, site: int) -> bool:
    """The warps of the group belong to whole warpgroups."""
    if w.per_cta % 4 == 0:
        return True
    at = w.warps % w.per_cta
    alone = at >= w.per_cta // 4 * 4
    if alone.any():
        text = f"a WGMMA takes four warps, and the CTA has {w.per_cta}"
        w.launch.fault(w, FaultKind.DIVERGENCE, site, text, row=int(np.argmax(alone)))
        return False
    return True


def _one_a_warp(w: Wave, read: Reader, site: int, what: str) -> list[int]:
    values = w.whole(read(w))
    differ = (values != values[:, :1]).any(axis=1)
    if differ.any():
        text = f"lanes of a warp have different {what}"
        w.launch.fault(w, FaultKind.DIVERGENCE, site, text, row=int(np.argmax(differ)))
    found: list[int] = values[:, 0].tolist()
    return found


def wait(c: Context) -> Step:
    """wgmma.wait_group.sync.aligned N."""
    c.allow("wait_group", "sync", "aligned")
    _check_whole(c)
    pending, site = c.integer(c.operands(1)[0]), c.site
    if pending < 0:
        raise c.error(f"{pending} groups")

    def step(w: Wave) -> None:
        w.need(site)
        w.warpgroups.wait(pending, site)

    return step


def _count(c: Context) -> int:
    c.allow("inc", "dec", "sync", "aligned", "u32")
    (op,) = c.operands(1)
    count = c.integer(op) if isinstance(op, Imm) else -1
    if not 24 <= count <= 256 or count % 8:
        raise c.error("its count is a constant multiple of 8, 24 to 256")
    return count


def give_registers(c: Context) -> Step:
    """setmaxnreg.dec.sync.aligned.u32 count."""
    count, site = _count(c), c.site
    return _whole(c, lambda w: w.pool.give(count, site))


def take_registers(c: Context) -> Step:
    """setmaxnreg.inc.sync.aligned.u32 count."""
    count, site = _count(c), c.site
    return _whole(c, lambda w: w.pool.take(count, site))


__all__ = ["give_registers", "take_registers", "wait", "wgmma"]
