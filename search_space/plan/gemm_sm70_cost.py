"""How long should a schedule of gemm_sm70 take? Its part of the model in gemm_cuda_cost."""

from __future__ import annotations

from rooftile.problem import Problem

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_cost
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm70_space import grid_of
from search_space.plan.gemm_sm70_tile import Tile
from search_space.schedule import Schedule

_MMA_SHARE = {"sm_70": 0.75, "sm_90a": 0.4}
"""Of the peak that WMMA reaches: public measurements are 45 % on sm_120 and 8 % on H100 for simple kernels;
sm_70's own instruction is what WMMA was made for."""
_SINGLE = 0.85
"""With one buffer in shared memory all wait while it is filled; a guess."""
_READS = 1.5
"""Volta's fragments are held twice in a warp, and each half reads its own."""


def predict(problem: Problem, device: GpuDevice, schedule: Schedule) -> Estimate:
    """The time, what bounds it, and the time of each part."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    work = gemm_cuda_cost.Work(
        bk=t.bk,
        wm=t.wm,
        wn=t.wn,
        registers=t.registers(shape),
        tiles_ahead=1,
        staged=True,
        mma_share=_MMA_SHARE[device.arch.name] * (1.0 if t.stages == 2 else _SINGLE),
        # Narrower reads are more of them, and they go through registers to shared memory all the same.
        fill_a=16 / t.copy_a,
        fill_b=16 / t.copy_b,
        reads=_READS * (1.0 if t.pad else 4.0),  # rows of a multiple of 128 bytes meet in the same banks
    )
    return gemm_cuda_cost.predict(shape, device, grid_of(shape, schedule, t), work)
