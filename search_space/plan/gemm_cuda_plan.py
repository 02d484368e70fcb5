"""How are the CUDA GEMM templates launched: grid, arguments, workspace, and for which sizes is that right?

The families share one list of arguments and one way of splitting k; what gemm_sm90 has besides (tensor maps,
clusters, blocks that compute several tiles) is in gemm_sm90_plan.py. Grids are in x alone: y and z end at
65535 blocks. Everything is an expression over the sizes; one plan and one artifact serve a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from rooftile.plan import Arg, Expr, Fill, Launch, LaunchPlan, SizeRange, ValidFor, Workspace

from search_space.device import Device
from search_space.plan.expressions import add, ceil_div, mul, round_up
from search_space.plan.gemm_cuda_rules import REDUCE_THREADS
from search_space.plan.gemm_cuda_shape import Shape

_PARTIALS_ALIGN = 256
WHOLE, REDUCE, LAST = 0, 1, 2
"""RT_SPLIT: k is not split; a second entry adds up the parts; the last block of a tile does."""


@dataclass(frozen=True)
class Grid:
    """What of a schedule the launch depends on."""

    bm: int
    bn: int
    threads: int
    smem_bytes: int
    splits: int
    split: int
    """WHOLE, REDUCE or LAST."""
    group: int
    along_m: bool
    copy_a_bytes: int
    """What addresses and pitches of A must be multiples of; that of an element at least."""
    copy_b_bytes: int
    out_bytes: int
    """The same of out, C and residual."""


def tiles(shape: Shape, g: Grid) -> Expr:
    """Tiles of the result, of all batch entries."""
    names = shape.names
    return mul(ceil_div(names["m"], g.bm), ceil_div(names["n"], g.bn), "batch")


def workspace(shape: Shape, g: Grid) -> tuple[Expr, Expr, Expr]:
    """Bytes of the counters, where the parts of k begin, and bytes in all."""
    names = shape.names
    if g.split == LAST:
        counters = mul(tiles(shape, g), 4)
        at = round_up(counters, _PARTIALS_ALIGN)
        return counters, at, add(at, mul(tiles(shape, g), g.splits * g.bm * g.bn * 4))
    if g.split == REDUCE:
        return 0, 0, mul(names["m"], ceil_div(names["n"], 4), "batch", g.splits * 16)
    return 0, 0, 0


def plan(family: str, shape: Shape, device: Device, g: Grid) -> LaunchPlan:
    """The launch of `gemm`, after its counters are zeroed and before `reduce`, where the schedule needs
    them."""
    counters, at, total = workspace(shape, g)
    given = arguments(shape, g, at)
    grid = mul(tiles(shape, g), g.splits)
    steps: list[Fill | Launch] = []
    if g.split == LAST:
        steps.append(Fill(0, counters))
    steps.append(Launch("gemm", given, grid=(grid, 1, 1), block=(g.threads, 1, 1), smem=g.smem_bytes))
    if g.split == REDUCE:
        steps.append(reduce_launch(shape, given))
    return LaunchPlan(
        family=family,
        arch=device.arch.name,
        kind="cuda",
        entries=entries(g),
        sizes=sizes(),
        workspace=Workspace(bytes=total),
        steps=tuple(steps),
        deterministic=True,
        valid_for=valid_for(shape, g),
    )


def reduce_launch(shape: Shape, given: tuple[Arg, ...]) -> Launch:
    """The second entry, which adds up parts of k."""
    names = shape.names
    blocks = ceil_div(mul(names["m"], ceil_div(names["n"], 4), "batch"), REDUCE_THREADS)
    return Launch("reduce", given, grid=(blocks, 1, 1), block=(REDUCE_THREADS, 1, 1))


def entries(g: Grid) -> tuple[str, ...]:
    """The entries that are built."""
    return ("gemm", "reduce") if g.split == REDUCE else ("gemm",)


def sizes() -> tuple[str, ...]:
    """Every named size of a GEMM."""
    found = ["m", "n", "k", "batch"]
    found += [f"{what}_{x}" for what in ("ld", "stride") for x in ("a", "b", "c", "out", "residual")]
    return tuple(found)


def arguments(shape: Shape, g: Grid, at: Expr) -> tuple[Arg, ...]:
    """In the order of RT_ARGUMENTS (kernels/cuda/gemm)."""
    names = shape.names
    a, b = names["a"], names["b"]
    return (
        Arg.ptr("a", a),
        Arg.ptr("b", b),
        *(Arg.ptr(x) for x in ("c", "out", "bias", "residual")),
        Arg.ptr("scale_a", f"scale_{a}"),
        Arg.ptr("scale_b", f"scale_{b}"),
        Arg.ptr("workspace"),
        *(Arg.i64(x, names.get(x, x)) for x in ("m", "n", "k", "batch")),
        *(
            Arg.i64(f"{what}_{x}", f"{what}_{names.get(x, x)}")
            for what in ("ld", "stride")
            for x in ("a", "b", "c", "out", "residual")
        ),
        Arg.i64("splits", g.splits),
        Arg.i64("group", g.group),
        Arg.i64("along_m", int(g.along_m)),
        Arg.i64("partials_at", at),
        Arg.f32("alpha"),
        Arg.f32("beta"),
    )


def valid_for(shape: Shape, g: Grid) -> ValidFor:
    """For which sizes and addresses the accesses of `g` are right."""
    ranges = {"m": SizeRange(0), "n": SizeRange(0), "k": SizeRange(0), "batch": SizeRange(1)}
    align = {"workspace": 16, "bias": element_align(shape.bias_type), "scale_a": 4, "scale_b": 4}
    wanted = {
        shape.names["a"]: (g.copy_a_bytes, shape.a.size),
        shape.names["b"]: (g.copy_b_bytes, shape.b.size),
        "out": (g.out_bytes, shape.out_size),
    }
    if shape.beta:
        wanted["c"] = wanted["out"]
    if shape.residual:
        wanted["residual"] = wanted["out"]
    for x, (bytes_, size) in wanted.items():
        align[x] = bytes_
        if (multiple := bytes_ // gcd(bytes_, size)) > 1:
            ranges |= {f"{what}_{x}": SizeRange(0, 2**63 - 1, multiple) for what in ("ld", "stride")}
    return ValidFor(sizes=ranges, align=align)


def element_align(dtype: str) -> int:
    """Bytes of one element, as an alignment."""
    from rooftile.problem import DTYPE_BITS

    return DTYPE_BITS[dtype] // 8
