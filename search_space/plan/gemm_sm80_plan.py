"""What is compiled for a schedule of gemm_sm80, how is it launched, and what of it does a proof depend on?"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space.family import BuildSpec, SharedArea
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_plan, gemm_cuda_proof
from search_space.plan.gemm_cuda_rules import copy_class
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm80_space import NAME, grid_of
from search_space.plan.gemm_sm80_tile import STEP_BYTES, Tile
from search_space.schedule import Schedule, Value

SOURCE = "cuda/gemm/gemm_sm80.cu"


def build(problem: Problem, device: GpuDevice, s: Schedule) -> BuildSpec:
    """The template with its macros. Raster, band and the count of splits are arguments: many schedules share
    one."""
    shape, t, g = Shape.of(problem), Tile.of(s), grid_of(Shape.of(problem), s)
    defines = shape.defines() | {
        "RT_BM": t.bm,
        "RT_BN": t.bn,
        "RT_BK": t.bk,
        "RT_STAGES": t.stages,
        "RT_WARPS_M": t.warps_m,
        "RT_WARPS_N": t.warps_n,
        "RT_COPY_A": t.copy_a,
        "RT_COPY_B": t.copy_b,
        "RT_SWIZZLE": int(t.swizzle),
        "RT_STAGED": int(t.staged),
        "RT_VECTOR": t.vector,
        "RT_LOOKAHEAD": int(t.lookahead),
        "RT_RESIDENT": t.resident,
        "RT_SPLIT": g.split,
        "RT_SMEM_BYTES": g.smem_bytes,
    }
    pairs = tuple((name, str(value)) for name, value in defines.items())
    return BuildSpec(source=SOURCE, arch=device.arch.name, defines=pairs, entries=gemm_cuda_plan.entries(g))


def plan(problem: Problem, device: GpuDevice, s: Schedule) -> LaunchPlan:
    """How to run it."""
    shape = Shape.of(problem)
    return gemm_cuda_plan.plan(NAME, shape, device, grid_of(shape, s))


def shared_map(problem: Problem, s: Schedule) -> tuple[SharedArea, ...]:
    """The ring. What the epilogue puts into the same bytes comes after it."""
    shape, t = Shape.of(problem), Tile.of(s)
    a, b = t.stage_bytes(shape)
    return (SharedArea("a", 0, a, t.stages), SharedArea("b", t.stages * a, b, t.stages))


def structure(problem: Problem, device: GpuDevice, s: Schedule) -> dict[str, Value]:
    """What a proof depends on: the code that is there, not the sizes it is unrolled to. Stages: 2 and 3 are
    special (nothing, one group under way at a wait), more are alike."""
    shape, t, g = Shape.of(problem), Tile.of(s), grid_of(Shape.of(problem), s)
    facets = {name.removeprefix("RT_").lower(): value for name, value in shape.defines().items()}
    return facets | {
        "arch": device.arch.name,
        "copy_a": t.copy_a,
        "copy_b": t.copy_b,
        "shared_a": copy_class(*t.rows(shape.a, t.bm), t.copy_a or 16, t.threads),
        "shared_b": copy_class(*t.rows(shape.b, t.bn), t.copy_b or 16, t.threads),
        "swizzle": t.swizzle,
        "span_a": t.span(shape.a, t.bm),
        "span_b": t.span(shape.b, t.bn),
        "stages": min(t.stages, 4),
        "steps": min(t.bk * shape.a.size // STEP_BYTES, 2),
        "several_warps": t.warps > 1,
        "odd_fragments": t.wn % 16 != 0,
        "lookahead": t.lookahead,
        "staged": t.staged,
        "vector": t.vector,
        "split": ("whole", "second", "last")[g.split],
    }


def proof_problems(problem: Problem, s: Schedule) -> tuple[Problem, ...]:
    """Small problems for the emulator."""
    shape, t, g = Shape.of(problem), Tile.of(s), grid_of(Shape.of(problem), s)
    return gemm_cuda_proof.problems(problem, shape, g, t.bk, t.stages)
