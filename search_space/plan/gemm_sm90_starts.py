"""Where does tuning of a gemm_sm90 problem begin: the default schedule and a handful of other good starts?

The tiles are those that the best public kernels for H100 are used with (CUTLASS, DeepGEMM, fast.cu,
ThunderKittens, quack); which of them come first for a problem is the cost model's choice. The ring is as deep
as shared memory allows, stores are what the problem's alignment allows."""

from __future__ import annotations

from collections.abc import Iterator

from rooftile.problem import Problem

from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_rules import widest
from search_space.plan.gemm_cuda_shape import FP8, Shape
from search_space.plan.gemm_sm90_cost import predict
from search_space.plan.gemm_sm90_rules import legality
from search_space.plan.gemm_sm90_space import NAME, parameters
from search_space.plan.gemm_sm90_tile import HEAVY, Tile
from search_space.schedule import Schedule, Value

_COOPERATIVE, _PINGPONG = "cooperative", "pingpong"
_TILES = (
    # bm, bn, bk, hand-off, consumers_m, cluster_m, cluster_n, registers, swap_ab
    (128, 256, 64, _COOPERATIVE, 2, 2, 1, "40/232", False),
    (256, 128, 64, _COOPERATIVE, 2, 1, 2, "40/232", False),
    (128, 256, 64, _COOPERATIVE, 2, 1, 1, "40/232", False),
    (128, 128, 64, _PINGPONG, 2, 2, 1, "40/232", False),
    (128, 128, 64, _PINGPONG, 2, 1, 1, "40/232", False),
    (128, 192, 64, _COOPERATIVE, 2, 2, 1, "40/232", False),
    (64, 256, 64, _PINGPONG, 2, 1, 1, "40/232", False),
    (128, 128, 64, _COOPERATIVE, 2, 1, 1, "40/232", False),
    (128, 64, 64, _COOPERATIVE, 2, 1, 1, "40/232", False),
    (64, 128, 64, _COOPERATIVE, 1, 1, 2, "40/248", False),
    (64, 128, 64, _COOPERATIVE, 1, 1, 1, "40/248", False),
    (64, 64, 64, _COOPERATIVE, 1, 1, 1, "40/248", False),
    (64, 32, 128, _COOPERATIVE, 1, 1, 1, "40/248", False),
    (16, 64, 128, _COOPERATIVE, 1, 1, 1, "40/248", False),
    (64, 8, 128, _COOPERATIVE, 1, 1, 1, "40/248", True),
    (64, 16, 128, _COOPERATIVE, 1, 1, 1, "40/248", True),
    (128, 32, 64, _COOPERATIVE, 2, 1, 1, "40/232", True),
    (128, 64, 64, _COOPERATIVE, 2, 1, 1, "40/232", True),
)
_SPLITS = (1, 2, 4, 8, 16)
_MOST = 8
_DEEPEST = 8


def default(problem: Problem, device: GpuDevice) -> Schedule:
    """The first start."""
    return candidates(problem, device)[0]


def candidates(problem: Problem, device: GpuDevice) -> list[Schedule]:
    """Good starts, the one expected to be fastest first; each tile once, with the best split of it."""
    shape, space = Shape.of(problem), parameters(problem, device)
    found: list[tuple[float, int, Schedule]] = []
    for i, row in enumerate(_TILES):
        timed: list[tuple[float, Schedule]] = []
        for splits in _SPLITS:
            for values in _ways(shape, row, splits):
                schedule = _deepest(shape, device, Schedule.of(NAME, space, values))
                if schedule is not None:
                    timed.append((predict(problem, device, schedule).time_us, schedule))
                    break
        if timed:
            time, schedule = min(timed, key=lambda x: x[0])
            found.append((time, i, schedule))
    return [s for _, _, s in sorted(found, key=lambda x: x[:2])][:_MOST]


def _ways(
    shape: Shape, row: tuple[int, int, int, str, int, int, int, str, bool], splits: int
) -> Iterator[dict[str, Value]]:
    """Values for a tile, by the ways results can leave, the best first."""
    bm, bn, bk, hand_off, consumers_m, cluster_m, cluster_n, registers, swap = row
    part = 16 if shape.activation in HEAVY else 32
    for store in ("tma", "staged", "direct"):
        columns = _columns(bn, 128 // shape.out_size if store == "tma" else part)
        wide = widest(shape.out_pitch, shape.out_size, shape.out_align_bytes, 16 if swap else columns)
        vector = wide // shape.out_size
        if store == "tma" and (swap or shape.out in FP8):
            continue
        if store != "staged":
            vector = min(vector, 1 if swap else 2)
        yield {
            "bm": bm, "bn": bn, "bk": bk, "cluster_m": cluster_m, "cluster_n": cluster_n,
            "store": store, "vector": vector, "store_columns": columns,
            "store_panels": 2 if store == "tma" and columns < bn else 1,
            "promotion": 256, "hint_a": "none", "hint_b": "none",
            "swizzle_a": 128 if bm >= 64 else 2 * bm if _left_along_m(shape, swap) else 128,
            "swizzle_b": 128 if not _right_along_n(shape, swap) else _row(bn),
            "swap_ab": swap, "hand_off": hand_off, "consumers_m": consumers_m, "consumers_n": 1,
            "registers": registers, "stages": _DEEPEST, "persistent": True,
            "raster": "m", "group": 8, "split_k": splits, "split_sum": "last",
        }  # fmt: skip


def _left_along_m(shape: Shape, swap: bool) -> bool:
    return not (shape.b if swap else shape.a).k_contiguous


def _right_along_n(shape: Shape, swap: bool) -> bool:
    return not (shape.a if swap else shape.b).k_contiguous


def _row(extent: int) -> int:
    """The widest swizzle whose rows of 16-bit elements an extent is a multiple of."""
    return next((s for s in (128, 64, 32) if extent % (s // 2) == 0), 32)


def _columns(bn: int, most: int) -> int:
    return next(c for c in (64, 32, 16, 8) if c <= most and bn % c == 0)


def _deepest(shape: Shape, device: GpuDevice, schedule: Schedule) -> Schedule | None:
    """The schedule with as many stages as fit; None where it is not legal for another reason."""
    for stages in range(_DEEPEST, 1, -1):
        deep = schedule.replace(stages=stages)
        found = legality(shape, device, Tile.of(deep), deep)
        if not found:
            return deep
        if {v.rule for v in found} != {"shared_memory"}:
            return None
    return None
