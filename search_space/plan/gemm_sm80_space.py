"""Which schedules has gemm_sm80, and which of them are legal?

Every rule names what refuses the schedule: shared memory and registers of the arch, the fragments of mma.sync
and ldmatrix, the alignment that cp.async wants. Sources: PTX ISA (mma.sync, ldmatrix, cp.async), CUDA C++
programming guide (limits by compute capability).
"""

from __future__ import annotations

from rooftile.problem import Gemm, Problem

from search_space.arch import get_arch
from search_space.family import Parameter
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_rules as rules
from search_space.plan.gemm_cuda_plan import LAST, REDUCE, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import FP8, Shape, refused_scales
from search_space.plan.gemm_sm80_tile import COPIES, STEP_BYTES, Tile
from search_space.schedule import Schedule
from search_space.violation import Number, Violation

NAME = "gemm_sm80"
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a")
_DTYPES = {
    "f16": "mma.f16",
    "bf16": "mma.bf16",
    "tf32": "mma.tf32",
    "s8": "mma.s8",
    "u8": "mma.s8",
} | dict.fromkeys(FP8, "mma.fp8")


def unsupported(problem: Problem, arch_name: str) -> list[Violation]:
    """Why the family cannot compute the problem on that arch; empty: it can."""
    if not isinstance(problem, Gemm):
        return [Violation("op", f"it computes gemm, not {problem.op}", {"op": problem.op})]
    if arch_name not in ARCHS:
        return [Violation("arch", f"it runs on {', '.join(ARCHS)}, not on {arch_name}", {"arch": arch_name})]
    has = get_arch(arch_name).limits.instructions
    found = [v for x in "ab" for v in _operand(problem, x, arch_name, has)]
    if problem.dtype.acc == "f16":
        found.append(Violation("dtype", "dtype.acc: it sums in f32, not in f16", {"dtype.acc": "f16"}))
    if problem.dtype.c in FP8 and "cvt.fp8" not in has:
        numbers: dict[str, Number] = {"dtype.c": problem.dtype.c, "arch": arch_name}
        message = f"dtype.c: conversion to {problem.dtype.c} (cvt) needs sm_89, not {arch_name}"
        found.append(Violation("dtype", message, numbers))
    return found + rules.too_large(problem) + refused_scales(problem)


def _operand(problem: Gemm, x: str, arch_name: str, has: frozenset[str]) -> list[Violation]:
    dtype, layout = getattr(problem.dtype, x), getattr(problem.layout, x)
    if dtype not in _DTYPES:
        message = f"dtype.{x}: mma.sync multiplies {', '.join(_DTYPES)} here, not {dtype}"
        return [Violation("dtype", message, {f"dtype.{x}": dtype})]
    if _DTYPES[dtype] not in has:
        message = f"dtype.{x}: mma.sync multiplies {dtype} from sm_89 on, not on {arch_name}"
        return [Violation("dtype", message, {f"dtype.{x}": dtype, "arch": arch_name})]
    if layout[1] != "k" and dtype in (*FP8, "s8", "u8"):
        wanted = {"a": "mk", "b": "nk"}[x]
        message = (
            f"layout.{x}: 8-bit operands must be contiguous along k ({wanted}), not {layout}: ldmatrix "
            "transposes 16-bit elements, not bytes"
        )
        return [Violation("layout", message, {f"layout.{x}": layout, f"dtype.{x}": dtype})]
    return []


def parameters(problem: Problem, device: GpuDevice) -> tuple[Parameter, ...]:
    """The space's dimensions."""
    shape = Shape.of(problem)
    step = STEP_BYTES // shape.a.size
    vectors = tuple(v for v in (1, 2, 4, 8, 16) if v * shape.out_size <= 16)
    copies = tuple(COPIES)
    return (
        Parameter("bm", "tile", (16, 32, 48, 64, 96, 128, 160, 192, 256), "rows of a block's tile"),
        Parameter("bn", "tile", (32, 64, 96, 128, 160, 192, 224, 256), "columns of a block's tile"),
        Parameter("bk", "tile", (step, 2 * step, 4 * step), "depth of a stage"),
        Parameter("warps_m", "tile", (1, 2, 4, 8), "warps of a block below each other"),
        Parameter("warps_n", "tile", (1, 2, 4, 8), "warps of a block beside each other"),
        Parameter("copy_a", "movement", copies, "cp.async of so many bytes of A, or through registers"),
        Parameter("copy_b", "movement", copies, "the same of B"),
        Parameter("store", "movement", ("direct", "staged"), "results straight, or through shared memory"),
        Parameter("vector", "movement", vectors, "results that one access moves"),
        Parameter("banks", "layout", ("swizzle", "pad"), "rows: chunks exchanged by XOR, or moved apart"),
        Parameter("stages", "roles", tuple(range(2, 11)), "tiles of k in shared memory"),
        Parameter("resident", "roles", (1, 2, 3, 4), "blocks that an SM is to hold at once, at least"),
        Parameter("lookahead", "order", (False, True), "fragments are read a step before their product"),
        Parameter("raster", "order", ("m", "n"), "neighbouring blocks lie below, or beside each other"),
        Parameter("group", "order", (1, 2, 4, 8, 16), "tiles that a band of blocks is high or wide"),
        Parameter("split_k", "order", rules.SPLITS, "parts of k"),
        Parameter("split_sum", "order", ("last", "second"), "who adds parts: the last block, a second entry",
                  rules.SUMS_LEFT_OUT),
    )  # fmt: skip


def grid_of(shape: Shape, s: Schedule, tile: Tile | None = None) -> Grid:
    """What of a schedule the launch depends on."""
    t, splits = tile or Tile.of(s), s.integer("split_k")
    return Grid(
        bm=t.bm,
        bn=t.bn,
        threads=t.threads,
        smem_bytes=t.smem_bytes(shape),
        splits=splits,
        split=WHOLE if splits == 1 else LAST if s.text("split_sum") == "last" else REDUCE,
        group=s.integer("group"),
        along_m=s.text("raster") == "m",
        copy_a_bytes=t.copy_a or shape.a.size,
        copy_b_bytes=t.copy_b or shape.b.size,
        out_bytes=t.vector * shape.out_size,
    )


def check(problem: Problem, device: GpuDevice, schedule: Schedule) -> list[Violation]:
    """Why the schedule is not legal; empty: it is."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    extents = (("bm", t.bm, t.warps_m, 16), ("bn", t.bn, t.warps_n, 8))
    if found := rules.warps(extents, "mma.sync m16n8"):
        return found  # the rest would divide what does not divide
    if t.bk * shape.a.size % STEP_BYTES:
        message = f"bk = {t.bk} of {shape.a.dtype} is no whole steps of {STEP_BYTES} bytes (mma.sync)"
        found.append(Violation("depth", message, {"bk": t.bk, "step": STEP_BYTES // shape.a.size}))
    a, b = t.stage_bytes(shape)
    what = f"{t.stages} stages of {a} + {b} bytes"
    found += rules.memory(device, t.smem_bytes(shape), what, t.threads, t.resident)
    what = f"warp tiles of {t.wm} x {t.wn}"
    found += rules.registers(device, t.registers(shape, device.arch.name), what, t.threads * t.resident)
    for side, name, width in ((shape.a, "copy_a", t.copy_a), (shape.b, "copy_b", t.copy_b)):
        if width:
            pitch = side.pitch * side.size
            found += rules.aligned(name, f"rows of {side.operand}", pitch, side.align_bytes, width)
    if t.copy_a == t.copy_b == 0 and t.stages > 2:
        message = "copies through registers have one tile under way: over 2 stages wait for nothing"
        found.append(Violation("stages", message, {"stages": t.stages}))
    if not t.staged and t.vector > 2:
        message = f"a lane has 2 neighbours of a row, not {t.vector} (fragments of mma.sync)"
        found.append(Violation("vector", message, {"vector": t.vector}))
    found += rules.grid(shape, -(-shape.m // t.bm), -(-shape.n // t.bn), schedule)
    return found + rules.store(shape, t.wn, t.vector) + rules.split(shape, t.bk, schedule)
