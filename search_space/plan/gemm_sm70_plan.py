"""What is compiled for a schedule of gemm_sm70, how is it launched, and what of it does a proof depend on?"""

from __future__ import annotations

from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from search_space.family import BuildSpec, SharedArea
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_plan, gemm_cuda_proof
from search_space.plan.gemm_cuda_rules import copy_class
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm70_space import NAME, grid_of
from search_space.plan.gemm_sm70_tile import STEP, Tile
from search_space.schedule import Schedule, Value

SOURCE = "cuda/gemm/gemm_sm70.cu"


def build(problem: Problem, device: GpuDevice, s: Schedule) -> BuildSpec:
    """The template with its macros. Raster, band and the count of splits are arguments: many schedules share
    one."""
    shape, t = Shape.of(problem), Tile.of(s)
    g = grid_of(shape, s)
    defines = shape.defines() | {
        "RT_BM": t.bm,
        "RT_BN": t.bn,
        "RT_BK": t.bk,
        "RT_FRAGMENT_M": t.fm,
        "RT_FRAGMENT_N": t.fn,
        "RT_STAGES": t.stages,
        "RT_WARPS_M": t.warps_m,
        "RT_WARPS_N": t.warps_n,
        "RT_COPY_A": t.copy_a,
        "RT_COPY_B": t.copy_b,
        "RT_PAD": t.pad,
        "RT_VECTOR": t.vector,
        "RT_RESIDENT": t.resident,
        "RT_SPLIT": g.split,
        "RT_SMEM_BYTES": g.smem_bytes,
    }
    pairs = tuple((name, str(value)) for name, value in defines.items())
    entries = gemm_cuda_plan.entries(g)
    return BuildSpec(source=SOURCE, arch=device.arch.name, defines=pairs, entries=entries)


def plan(problem: Problem, device: GpuDevice, s: Schedule) -> LaunchPlan:
    """How to run it."""
    shape = Shape.of(problem)
    return gemm_cuda_plan.plan(NAME, shape, device, grid_of(shape, s))


def shared_map(problem: Problem, s: Schedule) -> tuple[SharedArea, ...]:
    """The stages. What the epilogue puts into the same bytes comes after them."""
    shape, t = Shape.of(problem), Tile.of(s)
    a, b = t.stage_bytes(shape)
    return (SharedArea("a", 0, a, t.stages), SharedArea("b", t.stages * a, b, t.stages))


def structure(problem: Problem, device: GpuDevice, s: Schedule) -> dict[str, Value]:
    """What a proof depends on: the code that is there, not the sizes it is unrolled to."""
    shape, t = Shape.of(problem), Tile.of(s)
    facets = {name.removeprefix("RT_").lower(): value for name, value in shape.defines().items()}
    return facets | {
        "arch": device.arch.name,
        "fragment": t.fragment,
        "copy_a": t.copy_a,
        "copy_b": t.copy_b,
        "shared_a": copy_class(*t.rows(shape.a, t.bm), 16, t.threads),
        "shared_b": copy_class(*t.rows(shape.b, t.bn), 16, t.threads),
        "pad": t.pad,
        "stages": t.stages,
        "steps": min(t.bk // STEP, 2),
        "several_warps": t.warps > 1,
        "vector": t.vector,
        "split": ("whole", "second", "last")[grid_of(shape, s).split],
    }


def proof_problems(problem: Problem, s: Schedule) -> tuple[Problem, ...]:
    """Small problems for the emulator."""
    shape, t = Shape.of(problem), Tile.of(s)
    return gemm_cuda_proof.problems(problem, shape, grid_of(shape, s), t.bk, t.stages)
