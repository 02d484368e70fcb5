"""What is compiled for a schedule of gemm_sm90, how is it launched, and which warps have which role?"""

from __future__ import annotations

from dataclasses import replace

from rooftile.plan import (
    Arg,
    Expr,
    Fill,
    Launch,
    LaunchPlan,
    SizeRange,
    TensorMap,
    ValidFor,
    Workspace,
)
from rooftile.problem import Problem

from search_space.family import BuildSpec, SharedArea
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_plan
from search_space.plan.expressions import add, ceil_div, floor_div, least, most, mul, round_up
from search_space.plan.gemm_cuda_plan import LAST, REDUCE, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import Shape, Side
from search_space.plan.gemm_sm90_space import MOST_EXTENT, NAME
from search_space.plan.gemm_sm90_tile import ALIGN, BLOCK_ROWS, DIRECT, STAGED, TMA, Panel, Tile
from search_space.schedule import Schedule, Value

SOURCE = "cuda/gemm/gemm_sm90.cu"
_STORES = {DIRECT: 0, STAGED: 1, TMA: 2}
_UNIT = 16
"""Bytes of TMA's bases, pitches and the ends of the rows it writes."""
_COUNTERS_ALIGN = 256


def grid_of(shape: Shape, s: Schedule) -> Grid:
    """What of a schedule the list of arguments and its validity depend on."""
    t, splits = Tile.of(s), s.integer("split_k")
    return Grid(
        bm=t.bm,
        bn=t.bn,
        threads=t.threads,
        smem_bytes=t.smem_bytes(shape),
        splits=splits,
        split=WHOLE if splits == 1 else LAST if s.text("split_sum") == "last" else REDUCE,
        group=s.integer("group"),
        along_m=s.text("raster") == "m",
        copy_a_bytes=_UNIT,
        copy_b_bytes=_UNIT,
        out_bytes=_UNIT if t.store == TMA else t.vector * shape.out_size,
    )


def build(problem: Problem, device: GpuDevice, s: Schedule) -> BuildSpec:
    """The template with its macros. Band, count of splits, and raster but for Hilbert's are arguments, L2
    promotion is the tensor maps': many schedules share one."""
    shape, t = Shape.of(problem), Tile.of(s)
    g, (left, right) = grid_of(shape, s), t.sides(shape)
    defines = shape.defines() | {
        "RT_A": left.dtype.upper(),
        "RT_B": right.dtype.upper(),
        "RT_A_K_CONTIGUOUS": int(left.k_contiguous),
        "RT_B_K_CONTIGUOUS": int(right.k_contiguous),
        "RT_BM": t.bm,
        "RT_BN": t.bn,
        "RT_BK": t.bk,
        "RT_STAGES": t.stages,
        "RT_PINGPONG": int(t.pingpong),
        "RT_PERSISTENT": int(t.persistent),
        "RT_TRANSPOSED": int(t.swap),
        "RT_CONSUMERS_M": 1 if t.pingpong else t.consumers_m,
        "RT_CONSUMERS_N": 1 if t.pingpong else t.consumers_n,
        "RT_PRODUCER_REGISTERS": t.producer_registers,
        "RT_CONSUMER_REGISTERS": t.consumer_registers,
        "RT_CONSUMERS_TAKE": int(t.consumers_take),
        "RT_CLUSTER_M": t.cluster_m,
        "RT_CLUSTER_N": t.cluster_n,
        "RT_SWIZZLE_A": t.swizzle_a,
        "RT_SWIZZLE_B": t.swizzle_b,
        "RT_HINT_A": t.hint_a,
        "RT_HINT_B": t.hint_b,
        "RT_WGMMA_EIGHTHS": t.wn // 8,
        "RT_STORE": _STORES[t.store],
        "RT_STORE_COLUMNS": t.store_columns,
        "RT_STORE_PART": t.store_part(shape),
        "RT_STORE_PANELS": t.store_panels,
        "RT_VECTOR": t.vector,
        "RT_HILBERT": int(s.text("raster") == "hilbert"),
        "RT_SPLIT": g.split,
        "RT_SMEM_BYTES": g.smem_bytes,
    }
    pairs = tuple((name, str(value)) for name, value in defines.items())
    return BuildSpec(source=SOURCE, arch=device.arch.name, defines=pairs, entries=gemm_cuda_plan.entries(g))


def plan(problem: Problem, device: GpuDevice, s: Schedule) -> LaunchPlan:
    """The launch of `gemm`, after its counters are zeroed and before `reduce`, where the schedule needs
    them."""
    shape, t = Shape.of(problem), Tile.of(s)
    g = grid_of(shape, s)
    counters, at, total = _workspace(shape, t, g)
    given = gemm_cuda_plan.arguments(shape, g, at)
    steps: list[Fill | Launch] = [Fill(0, counters)] if g.split == LAST else []
    steps.append(
        Launch(
            "gemm",
            (*_maps(shape, t), *given),
            grid=(_blocks(shape, t, g), 1, 1),
            block=(t.threads, 1, 1),
            cluster=(t.cluster, 1, 1),
            smem=g.smem_bytes,
        )
    )
    if g.split == REDUCE:
        steps.append(gemm_cuda_plan.reduce_launch(shape, given))
    return LaunchPlan(
        family=NAME,
        arch=device.arch.name,
        kind="cuda",
        entries=gemm_cuda_plan.entries(g),
        sizes=gemm_cuda_plan.sizes(),
        workspace=Workspace(bytes=total),
        steps=tuple(steps),
        deterministic=True,
        valid_for=_valid_for(shape, t, g),
    )


def roles(s: Schedule) -> dict[str, range]:
    """Warps of a block by role."""
    consumers = {f"consumer{i}": range(4 + 4 * i, 8 + 4 * i) for i in range(Tile.of(s).consumers)}
    return {"producer": range(4)} | consumers


def shared_map(problem: Problem, s: Schedule) -> tuple[SharedArea, ...]:
    """The rings, what is on its way out, and the barriers; from the first multiple of 1024 on."""
    shape, t = Shape.of(problem), Tile.of(s)
    a, b = t.stage_bytes
    areas = [("a", 0, a, t.stages), ("b", t.stages * a, b, t.stages)]
    if out := t.out_bytes(shape):
        pieces = t.store_panels if t.store == TMA else 4
        areas.append(("out", t.out_at, out // pieces, t.sharers * pieces))
    barriers = t.out_at + t.sharers * t.out_bytes(shape)
    areas.append(("full", barriers, 8, t.stages))
    areas.append(("empty", barriers + 8 * t.stages, 8, t.stages))
    return tuple(SharedArea(*area, align=ALIGN) for area in areas)


def structure(problem: Problem, device: GpuDevice, s: Schedule) -> dict[str, Value]:
    """What a proof depends on: the code that is there, not the sizes it is unrolled to. Stages: 2 have no
    room between the one that is read and the one that is filled, more are alike."""
    shape, t = Shape.of(problem), Tile.of(s)
    g, (left, right) = grid_of(shape, s), t.panels(shape)
    facets = {name.removeprefix("RT_").lower(): value for name, value in shape.defines().items()}
    return facets | {
        "arch": device.arch.name,
        "hand_off": "pingpong" if t.pingpong else "cooperative",
        "consumers_m": t.consumers_m,
        "consumers_n": t.consumers_n,
        "persistent": t.persistent,
        "registers": s.text("registers"),
        "swap_ab": t.swap,
        "cluster_m": t.cluster_m,
        "cluster_n": t.cluster_n,
        "swizzle_a": t.swizzle_a,
        "swizzle_b": t.swizzle_b,
        "several_panels_a": left.along > left.width,
        "several_panels_b": right.along > right.width,
        "hint_a": t.hint_a > 0,
        "hint_b": t.hint_b > 0,
        "filled_up": t.bm < BLOCK_ROWS,
        "several_blocks": t.wm > BLOCK_ROWS,
        "several_steps": t.bk > 16,
        "stages": min(t.stages, 3),
        "store": t.store,
        "store_row": t.store_columns * shape.out_size,
        "store_parts": t.wn > t.store_columns,
        "store_panels": t.store_panels,
        "vector": t.vector,
        "hilbert": s.text("raster") == "hilbert",
        "split": ("whole", "second", "last")[g.split],
    }


# -- parts of a launch ----------------------------------------------------------------------------------


def _cluster_tiles(shape: Shape, t: Tile) -> tuple[Expr, Expr]:
    """Below and beside each other; what of a cluster lies outside takes part all the same."""
    m, n = _product_names(shape, t)
    return ceil_div(m, t.bm * t.cluster_m), ceil_div(n, t.bn * t.cluster_n)


def _blocks(shape: Shape, t: Tile, g: Grid) -> Expr:
    clusters = mul(*_cluster_tiles(shape, t), "batch", g.splits)
    if t.persistent:
        # One block an SM: each takes all of its shared memory, or nearly.
        clusters = least(clusters, most(floor_div("sm_count", t.cluster), 1))
    return mul(clusters, t.cluster)


def _workspace(shape: Shape, t: Tile, g: Grid) -> tuple[Expr, Expr, Expr]:
    """Bytes of the counters, where the parts of k begin, and bytes in all."""
    if g.split != LAST:
        return gemm_cuda_plan.workspace(shape, g)
    tiles = mul(*_cluster_tiles(shape, t), "batch", t.cluster)
    counters = mul(tiles, 4)
    at = round_up(counters, _COUNTERS_ALIGN)
    return counters, at, add(at, mul(tiles, g.splits * t.rows * t.bn * 4))


def _product_names(shape: Shape, t: Tile) -> tuple[str, str]:
    """The sizes that the product's rows and columns run over."""
    names = shape.names
    return (names["n"], names["m"]) if t.swap else (names["m"], names["n"])


def _maps(shape: Shape, t: Tile) -> tuple[Arg, ...]:
    """Tensor maps come first in the list of arguments."""
    found = [
        Arg.tensor_map(f"map_{x}", _operand_map(side, size, panel, t.promotion))
        for x, side, size, panel in zip(
            "ab", t.sides(shape), _product_names(shape, t), t.panels(shape), strict=True
        )
    ]
    if t.store == TMA:
        row = t.store_columns * shape.out_size
        out = TensorMap(
            buffer="out",
            dtype=shape.out,
            dims=(shape.names["n"], shape.names["m"], "batch"),
            strides=(mul("ld_out", shape.out_size), mul("stride_out", shape.out_size)),
            box=(t.store_columns, min(BLOCK_ROWS, t.bm), 1),
            swizzle=row if row >= 32 else 0,
        )
        found.append(Arg.tensor_map("map_out", out))
    return tuple(found)


def _operand_map(side: Side, size: str, panel: Panel, promotion: int) -> TensorMap:
    """`size`: the one of the operand that is not k. Without k there is nothing to load, but a map has no
    dimension of 0."""
    dims: tuple[Expr, Expr] = (most("k", 1), size) if panel.k_contiguous else (size, most("k", 1))
    width, rows = panel.box
    return TensorMap(
        buffer=side.operand,
        dtype=side.dtype,
        dims=(*dims, "batch"),
        strides=(mul(f"ld_{side.operand}", side.size), mul(f"stride_{side.operand}", side.size)),
        box=(width, rows, 1),
        swizzle=panel.swizzle,
        l2_promotion=promotion,
    )


def _valid_for(shape: Shape, t: Tile, g: Grid) -> ValidFor:
    valid = gemm_cuda_plan.valid_for(shape, g)
    sizes = dict(valid.sizes)
    for name in ("m", "n", "k"):
        sizes[name] = SizeRange(0, MOST_EXTENT)
    if t.store == TMA:
        sizes[shape.names["n"]] = replace(sizes[shape.names["n"]], multiple_of=_UNIT // shape.out_size)
    return ValidFor(sizes=sizes, align=valid.align)
