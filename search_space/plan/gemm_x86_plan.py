"""What is compiled for a schedule of gemm_x86, and how is it launched?

The grid of threads and the cache blocks are expressions over the sizes, evaluated at each launch: one
artifact
serves every size, and a plan is right for sizes other than the tuned ones.
"""

from __future__ import annotations

from rooftile.plan import Arg, Expr, Launch, LaunchPlan, SizeRange, ValidFor, Workspace
from rooftile.problem import Problem

from search_space.cpu_device import CpuDevice
from search_space.family import BuildSpec
from search_space.plan.expressions import add, ceil_div, floor_div, least, most, mul, round_up
from search_space.plan.gemm_x86_shape import Shape
from search_space.plan.gemm_x86_space import NAME, lanes
from search_space.schedule import Schedule

LINE_FLOATS = 16
"""Areas of the workspace begin on cache lines."""


def build(problem: Problem, device: CpuDevice, s: Schedule) -> BuildSpec:
    """The template with its macros. Block sizes and the grid are arguments, so many schedules share one."""
    shape, vectors = Shape.of(problem), s.integer("nr") // lanes(device)
    defines = {**shape.defines(), "RT_MR": s.integer("mr")}
    if s.text("path") == "blocked":
        source = "x86/gemm.c"
        defines |= {
            "RT_NV": vectors,
            "RT_UNROLL_K": s.integer("unroll"),
            "RT_PACK_A": int(s.text("pack_a") != "no"),
            "RT_PACK_B": int(s.flag("pack_b")),
            "RT_HOLD_A": int(s.text("hold") == "a"),
        }
    else:
        source = "x86/gemm_dots.c" if shape.b_nk else "x86/gemm_stream.c"
        defines["RT_PREFETCH"] = s.integer("ahead") * LINE_FLOATS
        if shape.b_nk:
            defines |= {"RT_NV": 1, "RT_NB": s.integer("nr")}
        else:
            defines |= {
                "RT_NV": vectors,
                "RT_STEP": s.integer("unroll"),
                "RT_HOLD_B": int(s.text("hold") == "b"),
            }
    pairs = tuple((name, str(value)) for name, value in defines.items())
    return BuildSpec(source=source, arch=device.arch.name, defines=pairs)


def plan(problem: Problem, device: CpuDevice, s: Schedule) -> LaunchPlan:
    """The launch: one entry on a grid of threads."""
    shape = Shape.of(problem)
    names = shape.names
    grid = _grid(s)
    areas = (
        _blocked(shape, device, s, grid) if s.text("path") == "blocked" else _stream(shape, device, s, grid)
    )
    sizes = ["m", "n", "k", "batch"]
    sizes += [f"{what}_{x}" for what in ("ld", "stride") for x in ("a", "b", "c", "out", "residual")]
    args = [
        Arg.ptr("a", names["a"]),
        Arg.ptr("b", names["b"]),
        *(Arg.ptr(x) for x in ("c", "out", "bias", "residual", "workspace")),
        *(Arg.i64(x, names.get(x, x)) for x in ("m", "n", "k", "batch")),
        *(Arg.i64(f"{w}_{x}", f"{w}_{names.get(x, x)}") for w in ("ld", "stride") for x in
          ("a", "b", "c", "out", "residual")),
        *(Arg.i64(f"grid_{x}", grid[x]) for x in ("batch", "k", "m", "n")),
        *(Arg.i64(x, areas[x]) for x in ("parts", "block_m", "block_n", "block_k")),
        Arg.i64("pad", s.integer("pad")),
        Arg.i64("rows_outer", int(s.text("inner") == "columns")),
        Arg.i64("k_outer", int(s.text("outer") == "k" or s.text("hand_out") == "tiles")),
        Arg.i64("share", int(s.flag("share"))),
        Arg.i64("whole_a", int(s.text("pack_a") == "whole")),
        Arg.i64("hand_out", ("no", "tiles", "columns", "parts").index(s.text("hand_out"))),
        Arg.i64("fetch_panels", int(s.text("prefetch") in ("panel", "both"))),
        Arg.i64("fetch_blocks", int(s.text("prefetch") in ("block", "both"))),
        *(
            Arg.i64(f"{w}_{x}", areas[f"{w}_{x}"])
            for x in ("a", "b", "partial", "edge")
            for w in ("at", "size")
        ),
        Arg.i64("at_counters", areas["at_counters"]),
        Arg.f32("alpha"),
        Arg.f32("beta"),
    ]  # fmt: skip
    threads = mul(grid["batch"], grid["k"], grid["m"], grid["n"])
    total = add(areas["at_edge"], mul(threads, areas["size_edge"]))
    return LaunchPlan(
        family=NAME,
        arch=device.arch.name,
        kind="x86",
        entries=("run",),
        sizes=tuple(sizes),
        workspace=Workspace(bytes=mul(4, total)),
        steps=(Launch("run", tuple(args), threads=threads),),
        deterministic=True,
        valid_for=ValidFor(
            sizes={"m": SizeRange(0), "n": SizeRange(0), "k": SizeRange(0), "batch": SizeRange(1)},
            align=dict.fromkeys(("a", "b", "c", "out", "bias", "residual"), 4) | {"workspace": 64},
        ),
    )


def _grid(s: Schedule) -> dict[str, Expr]:
    """Parts of batch, k, m and n among the threads. With fewer threads than the schedule has, first n, then k
    get fewer parts."""
    threads = least(s.integer("threads"), "threads")
    batch = least(s.integer("split_batch"), threads)
    left = floor_div(threads, batch)
    n = least(s.integer("split_n"), left)
    left = floor_div(left, n)
    if s.text("path") == "stream":
        # All threads that are left share k: parts of it are handed out, or each has one.
        return {"batch": batch, "n": n, "k": least(s.integer("split_k"), left), "m": 1}
    k = least(s.integer("split_k"), left)
    whole = s.integer("split_batch") * s.integer("split_n") * s.integer("split_k") == s.integer("threads")
    return {"batch": batch, "n": n, "k": k, "m": 1 if whole else floor_div(left, k)}


def _even(total: Expr, block: int) -> Expr:
    """Blocks of at most about `block` that are all of nearly one size; 0 is one block."""
    if block == 0:
        return most(1, total)
    return most(1, ceil_div(total, most(1, ceil_div(total, block))))


def _blocked(shape: Shape, device: CpuDevice, s: Schedule, grid: dict[str, Expr]) -> dict[str, Expr]:
    names, mr, nr, unroll = shape.names, s.integer("mr"), s.integer("nr"), s.integer("unroll")
    rows, cols = ceil_div(names["m"], mr), ceil_div(names["n"], nr)
    block_m = _even(ceil_div(rows, grid["m"]), _tiles(s.integer("mc"), mr))
    block_n = _even(ceil_div(cols, grid["n"]), _tiles(s.integer("nc"), nr))
    parts = grid["k"]
    if kc := s.integer("kc"):
        # As many blocks as a multiple of the parts, so that each part gets the same number.
        parts = mul(grid["k"], most(1, ceil_div(names["k"], mul(kc, grid["k"]))))
    block_k = most(unroll, round_up(ceil_div(names["k"], parts), unroll))
    pad, split = s.integer("pad"), s.integer("split_k") > 1
    size_a: Expr = 0
    if s.text("pack_a") != "no":
        # Kept are one block of rows; or all of them, with k outermost or A whole; handed out, all threads'.
        kept = block_m
        if s.text("outer") == "k" or s.text("pack_a") == "whole":
            kept = most(1, ceil_div(rows, grid["m"]))
        if s.text("hand_out") == "tiles":
            kept = most(1, rows)
        size_a = mul(kept, add(mul(mr, block_k), pad))
        if s.text("pack_a") == "whole":
            size_a = mul(size_a, ceil_div(ceil_div(names["k"], block_k), grid["k"]))
    size_b = mul(block_n, add(mul(nr, block_k), pad)) if s.flag("pack_b") else 0
    threads = mul(grid["batch"], grid["k"], grid["m"], grid["n"])
    shared = mul(2, grid["batch"], grid["k"])
    # The grid may have shrunk to where nothing is shared: one buffer each is then enough, and no more.
    copies = most(mul(shared, most(grid["m"], grid["n"])), threads) if s.flag("share") else threads
    sizes = {
        "a": (round_up(size_a, LINE_FLOATS), copies),
        "b": (round_up(size_b, LINE_FLOATS), copies),
        "partial": (
            round_up(mul(names["m"], cols, nr), LINE_FLOATS) if split else 0,
            mul(grid["batch"], grid["k"]),
        ),
        "counters": (2 * LINE_FLOATS if s.text("hand_out") != "no" else 0, mul(grid["batch"], grid["k"])),
        "edge": (0 if s.flag("pack_b") else round_up(mul(nr, block_k), LINE_FLOATS), 0),
    }
    return {"parts": 1, "block_m": block_m, "block_n": block_n, "block_k": block_k, **_areas(sizes)}


def _tiles(size: int, tile: int) -> int:
    """A block's size in tiles, at least one unless it is 0 (the whole)."""
    return max(1, size // tile) if size else 0


def _stream(shape: Shape, device: CpuDevice, s: Schedule, grid: dict[str, Expr]) -> dict[str, Expr]:
    names, mr, nr, step = shape.names, s.integer("mr"), s.integer("nr"), s.integer("unroll")
    strips = ceil_div(names["n"], nr)
    most_strips = ceil_div(strips, grid["n"])
    parts: Expr = s.integer("split_k") if s.text("hand_out") == "parts" else grid["k"]
    counters = (2 * LINE_FLOATS if s.text("hand_out") != "no" else 0, mul(grid["batch"], grid["n"]))
    if shape.b_nk:
        block_n: Expr = 1
        block_k: Expr = s.integer("kc") or most(lanes(device), names["k"])
        size_a = mul(names["m"], names["k"]) if shape.a_km else 0
        size_edge = mul(names["m"], nr * lanes(device))
        partial = (round_up(mul(names["m"], strips, nr), LINE_FLOATS), mul(grid["batch"], grid["k"]))
    else:
        deep = s.integer("kc") or step
        block_n, block_k = _even(most_strips, _tiles(s.integer("nc"), nr)), deep
        kept_rows = names["m"] if s.text("hold") == "b" else round_up(names["m"], mr)
        size_a = mul(round_up(names["k"], deep), kept_rows)
        split = s.integer("split_k") > 1
        # A padded copy of the last strip of B, before it the sums of a block.
        size_edge = add(deep * nr, mul(block_n, names["m"], nr))
        size_partial = round_up(mul(most_strips, names["m"], nr), LINE_FLOATS) if split else 0
        partial = (size_partial, mul(grid["batch"], grid["n"], parts))
    sizes = {
        "a": (round_up(size_a, LINE_FLOATS), mul(2, grid["batch"])),
        "b": (0, 0),
        "partial": partial,
        "counters": counters,
        "edge": (round_up(size_edge, LINE_FLOATS), 0),
    }
    parts = 1 if shape.b_nk else parts
    return {"parts": parts, "block_m": 1, "block_n": block_n, "block_k": block_k, **_areas(sizes)}


def _areas(sizes: dict[str, tuple[Expr, Expr]]) -> dict[str, Expr]:
    """One area after the other: (size of one buffer, number of buffers)."""
    found: dict[str, Expr] = {}
    at: Expr = 0
    for name, (size, count) in sizes.items():
        found[f"at_{name}"], found[f"size_{name}"] = at, size
        at = add(at, mul(size, count))
    return found
