"""Where does tuning of a gemm_sm80 problem begin: the default schedule and a handful of other good starts?

The tiles are those of the best public kernels (CUTLASS's sm_80 defaults, quack, gau-nernst); which of them
come first for a problem is the cost model's choice. Copies and stores are as wide as the problem's alignment
allows."""

from __future__ import annotations

from rooftile.problem import Problem

from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_rules import widest
from search_space.plan.gemm_cuda_shape import Shape, Side
from search_space.plan.gemm_sm80_cost import predict
from search_space.plan.gemm_sm80_space import NAME, check, parameters
from search_space.plan.gemm_sm80_tile import COPIES, STEP_BYTES
from search_space.schedule import Schedule, Value

_TILES = (
    # bm, bn, steps of 32 bytes of k, warps_m, warps_n, stages
    (128, 128, 4, 2, 2, 3),
    (128, 128, 2, 2, 2, 4),
    (256, 128, 2, 4, 2, 3),
    (128, 256, 2, 2, 4, 3),
    (128, 64, 4, 2, 2, 3),
    (64, 128, 4, 2, 2, 3),
    (64, 64, 4, 2, 2, 4),
    (64, 64, 2, 2, 2, 6),
    (32, 64, 4, 2, 2, 5),
    (64, 32, 4, 2, 2, 5),
    (32, 128, 4, 1, 4, 4),
    (16, 64, 4, 1, 4, 6),
    (16, 128, 4, 1, 4, 5),
    (16, 32, 4, 1, 2, 8),
)
_SPLITS = (1, 2, 4, 8)
_MOST = 8


def default(problem: Problem, device: GpuDevice) -> Schedule:
    """The first start."""
    return candidates(problem, device)[0]


def candidates(problem: Problem, device: GpuDevice) -> list[Schedule]:
    """Good starts, the one expected to be fastest first; each tile once, with the best split of it."""
    shape, space = Shape.of(problem), parameters(problem, device)
    step = STEP_BYTES // shape.a.size
    wide = {f"copy_{x}": _copy(side) for x, side in (("a", shape.a), ("b", shape.b))}
    plain = set(wide.values()) == {"plain"}
    found: list[tuple[float, int, Schedule]] = []
    for i, (bm, bn, steps, warps_m, warps_n, stages) in enumerate(_TILES):
        values: dict[str, Value] = {
            "bm": bm, "bn": bn, "bk": steps * step, "warps_m": warps_m, "warps_n": warps_n,
            "stages": 2 if plain else stages, **wide, "store": "staged",
            "vector": widest(shape.out_pitch, shape.out_size, shape.out_align_bytes, bn // warps_n)
            // shape.out_size,
            "banks": "swizzle", "resident": 1, "lookahead": False,
            "raster": "m", "group": 8, "split_k": 1, "split_sum": "last",
        }  # fmt: skip
        legal = [
            s
            for splits in _SPLITS
            if not check(problem, device, s := Schedule.of(NAME, space, values | {"split_k": splits}))
        ]
        timed = [(predict(problem, device, s).time_us, i, s) for s in legal]
        found += [min(timed, key=lambda x: x[:2])] if timed else []
    return [s for _, _, s in sorted(found, key=lambda x: x[:2])][:_MOST]


def _copy(side: Side) -> str:
    """The widest cp.async that base and pitch are a multiple of."""
    width = widest(side.pitch, side.size, side.align_bytes, 16)
    return next((name for name, w in COPIES.items() if w and w == width), "plain")
