"""Which schedules has gemm_sm70, and which of them are legal?

Sources: PTX ISA (wmma: shapes, alignment of 32 bytes, strides of 16), CUDA C++ programming guide (limits by
compute capability).
"""

from __future__ import annotations

from rooftile.problem import Gemm, Problem

from search_space.arch import get_arch
from search_space.family import Parameter
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_rules as rules
from search_space.plan.gemm_cuda_plan import LAST, REDUCE, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import FP8, Shape, Side, refused_scales
from search_space.plan.gemm_sm70_tile import FRAGMENTS, Tile
from search_space.schedule import Schedule
from search_space.violation import Violation

NAME = "gemm_sm70"
ARCHS = ("sm_70", "sm_90a")
_OUT_NEEDS = {"bf16": "cvt.bf16"} | dict.fromkeys(FP8, "cvt.fp8")


def unsupported(problem: Problem, arch_name: str) -> list[Violation]:
    """Why the family cannot compute the problem on that arch; empty: it can."""
    if not isinstance(problem, Gemm):
        return [Violation("op", f"it computes gemm, not {problem.op}", {"op": problem.op})]
    if arch_name not in ARCHS:
        return [Violation("arch", f"it runs on {', '.join(ARCHS)}, not on {arch_name}", {"arch": arch_name})]
    found = []
    for x in "ab":
        dtype = getattr(problem.dtype, x)
        if dtype != "f16":
            message = f"dtype.{x}: WMMA of sm_70 multiplies f16, not {dtype}"
            found.append(Violation("dtype", message, {f"dtype.{x}": dtype}))
    if problem.dtype.acc == "f16":
        found.append(Violation("dtype", "dtype.acc: it sums in f32, not in f16", {"dtype.acc": "f16"}))
    needs, out = _OUT_NEEDS.get(problem.dtype.c), problem.dtype.c
    if needs is not None and needs not in get_arch(arch_name).limits.instructions:
        since = "sm_80" if out == "bf16" else "sm_89"
        message = f"dtype.c: conversion to {out} (cvt) needs {since}, not {arch_name}"
        found.append(Violation("dtype", message, {"dtype.c": out, "arch": arch_name}))
    return found + rules.too_large(problem) + refused_scales(problem)


def parameters(problem: Problem, device: GpuDevice) -> tuple[Parameter, ...]:
    """The space's dimensions."""
    vectors = tuple(v for v in (1, 2, 4, 8, 16) if v * Shape.of(problem).out_size <= 16)
    return (
        Parameter("bm", "tile", (32, 64, 96, 128, 256), "rows of a block's tile"),
        Parameter("bn", "tile", (32, 64, 96, 128, 256), "columns of a block's tile"),
        Parameter("bk", "tile", (16, 32, 64), "depth of a stage"),
        Parameter("fragment", "tile", tuple(FRAGMENTS), "shape of one WMMA product"),
        Parameter("warps_m", "tile", (1, 2, 4, 8), "warps of a block below each other"),
        Parameter("warps_n", "tile", (1, 2, 4, 8), "warps of a block beside each other"),
        Parameter("copy_a", "movement", (2, 4, 8, 16), "bytes of a global read of A"),
        Parameter("copy_b", "movement", (2, 4, 8, 16), "the same of B"),
        Parameter("vector", "movement", vectors, "results that one access moves"),
        Parameter("pad", "layout", (0, 8, 16), "elements between rows in shared memory"),
        Parameter("stages", "roles", (1, 2), "tiles of k in shared memory, beside the one in registers"),
        Parameter("resident", "roles", (1, 2, 3, 4), "blocks that an SM is to hold at once, at least"),
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
        copy_a_bytes=t.copy_a,
        copy_b_bytes=t.copy_b,
        out_bytes=t.vector * shape.out_size,
    )


def check(problem: Problem, device: GpuDevice, schedule: Schedule) -> list[Violation]:
    """Why the schedule is not legal; empty: it is."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    extents = (("bm", t.bm, t.warps_m, t.fm), ("bn", t.bn, t.warps_n, t.fn))
    if found := rules.warps(extents, f"wmma {t.fragment}"):
        return found  # the rest would divide what does not divide
    a, b = t.stage_bytes(shape)
    what = f"{t.stages} stages of {a} + {b} bytes"
    found += rules.memory(device, t.smem_bytes(shape), what, t.threads, t.resident)
    what = f"warp tiles of {t.wm} x {t.wn}"
    found += rules.registers(device, t.registers(shape), what, t.threads * t.resident)
    for side, name, width in ((shape.a, "copy_a", t.copy_a), (shape.b, "copy_b", t.copy_b)):
        rows = f"rows of {side.operand}"
        found += rules.aligned(name, rows, side.pitch * side.size, side.align_bytes, width)
    found += _fragments("a", shape.a, t.fm, "m", t.fragment) + _fragments("b", shape.b, t.fn, "n", t.fragment)
    found += rules.grid(shape, -(-shape.m // t.bm), -(-shape.n // t.bn), schedule)
    return found + rules.store(shape, t.wn, t.vector) + rules.split(shape, t.bk, schedule)


def _fragments(name: str, side: Side, extent: int, letter: str, fragment: str) -> list[Violation]:
    if side.k_contiguous or extent >= 16:
        return []
    message = (
        f"{fragment} begins every {extent} of {letter}, {2 * extent} bytes apart where {name} is contiguous "
        f"along {letter}; wmma.load wants multiples of 32"
    )
    return [Violation("fragment", message, {"bytes": 2 * extent, "wanted": 32})]
