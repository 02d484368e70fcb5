"""Which problems and schedules does gemm_sm90 have?"""

from __future__ import annotations

from rooftile.problem import Gemm, Problem

from search_space.family import Parameter
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_rules as rules
from search_space.plan.gemm_cuda_shape import FP8, Shape, Side, refused_scales
from search_space.plan.gemm_sm90_rules import MOST_PITCH, legality
from search_space.plan.gemm_sm90_tile import HINTS, REGISTERS, Tile
from search_space.schedule import Schedule
from search_space.violation import Number, Violation

NAME = "gemm_sm90"
ARCHS = ("sm_90a",)
_DTYPES = ("f16", "bf16")
_OUTPUTS = ("f32", "f16", "bf16", *FP8)
_SUMS_LEFT_OUT = (
    *rules.SUMS_LEFT_OUT,
    (
        "tma_reduce",
        "TMA adds f32 to global memory in the order of arrival, as atomics do, and before the epilogue, which"
        " needs the whole sum",
    ),
)
_TILES_LEFT_OUT = (
    (
        "stream_k",
        "a part of k as long as a block's share of the work, and so another one for each number of blocks, is"
        " not built; split_k cuts k into parts that are alike",
    ),
    (
        "dynamic",
        "tiles from a counter, which may even out SMs that are slower, are not built: they want a counter to"
        " zero before each launch, and an atomic before each tile",
    ),
    (
        "fewer_blocks",
        "a grid of fewer blocks than SMs, which may spare L2 and clocks, is not built: the plan's grid is the"
        " device's SMs or the tiles",
    ),
    (
        "dependent_launch",
        "a launch that begins before the one before it has ended is not built: the launcher does not know"
        " what else is in the caller's stream",
    ),
    (
        "sizes_compiled_in",
        "an artifact with n and k in it serves no sweep, and the emulator, which runs small problems, could"
        " not run that very artifact",
    ),
)
_ROLES_LEFT_OUT = (
    (
        "none",
        "threads that multiply and copy as well are not built: a stage could not be filled while they wait"
        " for its neighbour's product or store results; a warp of the producer copies ahead",
    ),
    (
        "epilogue_warp",
        "a warp that loads C or the residual by TMA ahead of the epilogue is not built: consumers load their"
        " own elements",
    ),
)
_STORES_LEFT_OUT = (
    (
        "tma_in_ring",
        "results in the ring's memory are not built: a block's next tile is loaded there while they leave",
    ),
)
_UNIT = 16
"""Bytes that TMA wants bases and pitches to be multiples of."""
MOST_EXTENT = 2**31 - 2**13
"""Coordinates have 31 bits, and a cluster's tiles go up to 8 * 256 past the end."""


def unsupported(problem: Problem, arch_name: str) -> list[Violation]:
    """Why the family cannot compute the problem on that arch; empty: it can."""
    if not isinstance(problem, Gemm):
        return [Violation("op", f"it computes gemm, not {problem.op}", {"op": problem.op})]
    if arch_name not in ARCHS:
        return [Violation("arch", f"it runs on {', '.join(ARCHS)}, not on {arch_name}", {"arch": arch_name})]
    dtype = problem.dtype
    found = [
        Violation("dtype", f"dtype.{x}: it multiplies f16 and bf16, not {value}", {f"dtype.{x}": value})
        for x, value in (("a", dtype.a), ("b", dtype.b))
        if value not in _DTYPES
    ]
    if found:
        return found
    if dtype.a != dtype.b:
        message = f"dtype.b: wgmma multiplies operands of one type, not {dtype.a} by {dtype.b}"
        found.append(Violation("dtype", message, {"dtype.a": dtype.a, "dtype.b": dtype.b}))
    if dtype.acc == "f16":
        found.append(Violation("dtype", "dtype.acc: it sums in f32, not in f16", {"dtype.acc": "f16"}))
    if dtype.c not in _OUTPUTS:
        message = f"dtype.c: it writes {', '.join(_OUTPUTS)}, not {dtype.c}"
        found.append(Violation("dtype", message, {"dtype.c": dtype.c}))
    for name in ("m", "n", "k"):
        size = getattr(problem, name)
        if size > MOST_EXTENT:
            message = f"{name} = {size} is over {MOST_EXTENT}: coordinates of TMA have 31 bits"
            found.append(Violation("size", message, {name: size, "most": MOST_EXTENT}))
    found += rules.too_large(problem)
    shape = Shape.of(problem)
    sizes = problem.plan_names()
    for side in (shape.a, shape.b):
        found += _reached_by_tma(side, sizes[f"stride_{side.operand}"])
    return found + refused_scales(problem)


def _reached_by_tma(side: Side, stride: int) -> list[Violation]:
    """TMA wants base and pitches in 16 bytes, those of batch entries of a single one too (CUDA driver API,
    cuTensorMapEncodeTiled)."""
    found: list[Violation] = []
    pitch = side.pitch * side.size
    numbers: dict[str, Number] = {"pitch_bytes": pitch, "unit_bytes": _UNIT}
    if pitch % _UNIT:
        message = f"rows of {side.operand} are {pitch} bytes apart, no multiple of {_UNIT} (TMA)"
        found.append(Violation("tma", message, numbers))
    for what, elements in (("rows", side.pitch), ("batch entries", stride)):
        pitch = elements * side.size
        if pitch >= MOST_PITCH:
            message = f"{what} of {side.operand} are {pitch} bytes apart, not below 2^40 (TMA)"
            found.append(Violation("tma", message, {"pitch_bytes": pitch, "most": MOST_PITCH}))
    if side.align_bytes % _UNIT:
        message = f"{side.operand} is aligned to {side.align_bytes} bytes, not to {_UNIT} (TMA)"
        found.append(Violation("tma", message, {"align_bytes": side.align_bytes, "unit_bytes": _UNIT}))
    return found


def parameters(problem: Problem, device: GpuDevice) -> tuple[Parameter, ...]:
    """The space's dimensions."""
    shape = Shape.of(problem)
    vectors = tuple(v for v in (1, 2, 4, 8, 16) if v * shape.out_size <= 16)
    hints = tuple(HINTS)
    return (
        Parameter("bm", "tile", (16, 32, 64, 128, 192, 256), "rows of a block's tile"),
        Parameter("bn", "tile", tuple(range(8, 257, 8)), "columns of a block's tile"),
        Parameter("bk", "tile", (16, 32, 64, 128, 256), "depth of a stage"),
        Parameter("cluster_m", "movement", (1, 2, 4, 8), "blocks of a cluster below each other: share B"),
        Parameter("cluster_n", "movement", (1, 2, 4, 8), "blocks of a cluster beside each other: share A"),
        Parameter("store", "movement", ("direct", "staged", "tma"), "straight, by shared memory, by TMA",
                  _STORES_LEFT_OUT),
        Parameter("vector", "movement", vectors, "results that one access moves"),
        Parameter("store_columns", "movement", (8, 16, 32, 64), "columns of sums that leave at once"),
        Parameter("store_panels", "movement", (1, 2, 3, 4), "stores by TMA that are under way at once"),
        Parameter("promotion", "movement", (0, 64, 128, 256), "bytes that L2 fetches at least of A and B"),
        Parameter("hint_a", "movement", hints, "what of A L2 gives up first, or keeps"),
        Parameter("hint_b", "movement", hints, "the same of B"),
        Parameter("swizzle_a", "layout", (32, 64, 128), "bytes of A's rows in shared memory"),
        Parameter("swizzle_b", "layout", (32, 64, 128), "bytes of B's rows"),
        Parameter("swap_ab", "layout", (False, True), "its transpose is computed: B^T * A^T"),
        Parameter("hand_off", "roles", ("cooperative", "pingpong"), "consumers share a tile, or take turns",
                  _ROLES_LEFT_OUT),
        Parameter("consumers_m", "roles", (1, 2, 3), "warpgroups that multiply, below each other"),
        Parameter("consumers_n", "roles", (1, 2), "the same beside each other"),
        Parameter("registers", "roles", tuple(REGISTERS), "of the producer's and the consumers' threads"),
        Parameter("stages", "roles", tuple(range(2, 17)), "tiles of k in shared memory"),
        Parameter("persistent", "roles", (False, True), "a block computes tile after tile", _TILES_LEFT_OUT),
        Parameter("raster", "order", ("m", "n", "hilbert"), "how neighbouring blocks lie"),
        Parameter("group", "order", (1, 2, 4, 8, 12, 16, 32, 64), "tiles that a band is high or wide"),
        Parameter("split_k", "order", rules.SPLITS, "parts of k"),
        Parameter("split_sum", "order", ("last", "second"), "who adds parts: the last block, a second entry",
                  _SUMS_LEFT_OUT),
    )  # fmt: skip


def check(problem: Problem, device: GpuDevice, schedule: Schedule) -> list[Violation]:
    """Why the schedule is not legal; empty: it is."""
    return legality(Shape.of(problem), device, Tile.of(schedule), schedule)
