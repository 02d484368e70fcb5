"""Where does tuning of a gemm_sm70 problem begin: the default schedule and a handful of other good starts?"""

from __future__ import annotations

from rooftile.problem import Problem

from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_rules import widest
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm70_cost import predict
from search_space.plan.gemm_sm70_space import NAME, check, parameters
from search_space.schedule import Schedule, Value

_TILES = (
    # bm, bn, bk, warps_m, warps_n
    (128, 128, 32, 2, 4),
    (128, 128, 32, 2, 2),
    (128, 64, 32, 2, 2),
    (64, 128, 32, 2, 2),
    (64, 64, 32, 2, 2),
    (32, 64, 64, 2, 2),
    (32, 128, 32, 1, 4),
    (32, 32, 64, 2, 2),
)
_SPLITS = (1, 2, 4, 8)


def default(problem: Problem, device: GpuDevice) -> Schedule:
    """The first start."""
    return candidates(problem, device)[0]


def candidates(problem: Problem, device: GpuDevice) -> list[Schedule]:
    """Good starts, the one expected to be fastest first; each tile once, with the best split of it."""
    shape, space = Shape.of(problem), parameters(problem, device)
    found: list[tuple[float, int, Schedule]] = []
    for i, (bm, bn, bk, warps_m, warps_n) in enumerate(_TILES):
        values: dict[str, Value] = {
            "bm": bm, "bn": bn, "bk": bk, "fragment": "m16n16k16", "warps_m": warps_m, "warps_n": warps_n,
            "copy_a": widest(shape.a.pitch, shape.a.size, shape.a.align_bytes, bk),
            "copy_b": widest(shape.b.pitch, shape.b.size, shape.b.align_bytes, bk),
            "vector": widest(shape.out_pitch, shape.out_size, shape.out_align_bytes, bn // warps_n)
            // shape.out_size,
            "pad": 8, "stages": 2, "resident": 1, "raster": "m", "group": 8, "split_k": 1,
            "split_sum": "last",
        }  # fmt: skip
        legal = [
            s
            for splits in _SPLITS
            if not check(problem, device, s := Schedule.of(NAME, space, values | {"split_k": splits}))
        ]
        timed = [(predict(problem, device, s).time_us, i, s) for s in legal]
        found += [min(timed, key=lambda x: x[:2])] if timed else []
    return [s for _, _, s in sorted(found, key=lambda x: x[:2])]
