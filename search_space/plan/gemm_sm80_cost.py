"""How long should a schedule of gemm_sm80 take? Its part of the model in gemm_cuda_cost."""

from __future__ import annotations

from rooftile.problem import Problem

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_cost
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm80_space import grid_of
from search_space.plan.gemm_sm80_tile import Tile
from search_space.schedule import Schedule

_MMA_SHARE = {"sm_90a": 0.62}
"""Of the peak that mma.sync reaches where the peak is wgmma's (public GEMMs of both kinds on H100)."""
_SUSTAINED = 0.9
"""Of the peak elsewhere: the best public GEMMs have 0.84 on A100, starts and tails included."""
_IN_TURNS = 0.93
"""Where fragments are read just before their product, and not a step ahead; a guess."""
_FILL = {16: 1.0, 8: 1.5, 4: 2.5, 0: 6.0}
"""What a byte costs of the shared-memory port by the size of its copy: narrow ones fill a part of
each of the port's cycles; through registers, an element at a time, they are instructions besides. Guesses."""


def predict(problem: Problem, device: GpuDevice, schedule: Schedule) -> Estimate:
    """The time, what bounds it, and the time of each part."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    work = gemm_cuda_cost.Work(
        bk=t.bk,
        wm=t.wm,
        wn=t.wn,
        registers=t.registers(shape, device.arch.name),
        tiles_ahead=t.stages - 1 if t.copy_a or t.copy_b else 0,
        staged=t.staged,
        mma_share=_MMA_SHARE.get(device.arch.name, _SUSTAINED) * (1.0 if t.lookahead else _IN_TURNS),
        fill_a=_FILL[t.copy_a],
        fill_b=_FILL[t.copy_b],
    )
    return gemm_cuda_cost.predict(shape, device, grid_of(shape, schedule, t), work)
