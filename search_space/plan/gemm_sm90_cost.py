"""How long should a schedule of gemm_sm90 take? A roofline with tiles, waves and the ring's depth.

It orders candidates before any ran; nothing is promised of its microseconds. An SM runs one block. A wgmma
m64nNk16 takes N/2 cycles, or as long as its operands take through the shared-memory port (128 bytes a cycle);
a stage is loaded through L2, of which a cluster asks once for what its blocks share.
"""

from __future__ import annotations

from math import ceil

from rooftile.problem import Problem

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_plan import REDUCE, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm90_plan import grid_of
from search_space.plan.gemm_sm90_tile import DIRECT, STEP, TMA, Tile
from search_space.schedule import Schedule

_LAUNCH_US = 2.5
_SECOND_LAUNCH_US = 1.5
_START_US = 0.8
"""Of a block: barriers, registers, the first copies' way from memory."""
_CLUSTER_US = 0.15
"""More of it where the blocks of a cluster wait for each other."""
_LATENCY_US = 0.9
"""From the issue of a copy to its data, memory busy."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 64
"""Of an SM (public GEMM heuristics count with the same)."""
_L2_ALL_BYTES_PER_CYCLE = 6000
"""Of all SMs together."""
_TURN_CYCLES = 30
"""Of a tile of k beside its products: waiting for the stage, telling that it is read."""


def predict(problem: Problem, device: GpuDevice, schedule: Schedule) -> Estimate:
    """The time, what bounds it, and the time of each part."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    g = grid_of(shape, schedule)
    m, n = (max(x, 1) for x in t.extents(shape))
    rows, columns = -(-m // (t.bm * t.cluster_m)), -(-n // (t.bn * t.cluster_n))
    clusters = rows * columns * shape.batch * g.splits
    at_once = max(device.sms // t.cluster, 1)
    waves = -(-clusters // at_once)
    busy = min(clusters, at_once) * t.cluster
    turns = ceil(ceil(shape.k_work / t.bk) / g.splits)
    us = 1.0 / (device.ghz * 1e3)

    steps, blocks = t.bk // STEP, t.rows // 64 * (t.bn // t.wn)
    product = max(t.wn / 2, (2048 + 32 * t.wn) / _SMEM_BYTES_PER_CYCLE)
    mma = steps * blocks * product * us
    fill = (t.bm + t.bn) * t.bk * 2 / _SMEM_BYTES_PER_CYCLE * us
    asked = (t.bm / t.cluster_n + t.bn / t.cluster_m) * t.bk * 2
    l2 = max(asked / _L2_BYTES_PER_CYCLE, asked * busy / _L2_ALL_BYTES_PER_CYCLE) * us
    # With one stage more than is read at once, copies have the time of all the others to arrive.
    wait = _LATENCY_US / max(t.stages - 1, 1)
    step = max(mma + _TURN_CYCLES * us * (0.3 if t.pingpong else 1.0), fill, l2, wait)

    out = t.bm * t.bn * shape.out_size * (1 + (shape.beta > 0) + shape.residual)
    leaving = out * (1.3 if t.store == DIRECT else 1.0 if t.store == TMA else 1.05) / _L2_BYTES_PER_CYCLE * us
    leaving += t.sums * (0.02 if t.store == TMA else 0.03) * 8 * us
    hidden = 1.0 if not t.persistent else 0.25 if t.pingpong else 0.9
    start = _START_US + (_CLUSTER_US if t.cluster > 1 else 0.0)
    one = turns * step + leaving * hidden
    main = start + waves * one if t.persistent else waves * (start + one)

    results = shape.batch * shape.m * shape.n * shape.out_size * (1 + (shape.beta > 0) + shape.residual)
    parts = 0 if g.split == WHOLE else 2 * _part_bytes(shape, t, g, rows * columns * t.cluster)
    operands = _operand_bytes(shape, device, t, g, m, n, rows, columns)
    dram = (operands + results + parts) / (device.dram_gbs * 1e3)
    terms = {
        "launch": _LAUNCH_US + (_SECOND_LAUNCH_US if g.split != WHOLE else 0.0),
        "main": main,
        "dram": dram,
        "epilogue": waves * leaving * hidden,
    }
    # They overlap, but not wholly.
    total = terms["launch"] + max(main, dram) + 0.1 * min(main, dram)
    names = {"tensor cores": mma, "shared memory": fill, "L2": l2, "latency": wait}
    bound = "memory" if dram > main else max(names, key=lambda name: names[name])
    return Estimate(total, bound, terms)


def _part_bytes(shape: Shape, t: Tile, g: Grid, tiles: int) -> int:
    if g.split == REDUCE:
        return shape.batch * shape.m * shape.n * 4 * g.splits
    return shape.batch * tiles * t.rows * t.bn * 4 * g.splits


def _operand_bytes(
    shape: Shape, device: GpuDevice, t: Tile, g: Grid, m: int, n: int, rows: int, columns: int
) -> float:
    """A and B as often as they leave L2 between two bands of tiles."""
    a, b = m * shape.k_work * 2, n * shape.k_work * 2
    # A band of `group` tiles keeps its own operand; the other passes by once for each band.
    along, across = (b, rows) if g.along_m else (a, columns)
    bands = -(-across // g.group) if along > device.l2_bytes / 2 else 1
    return float(shape.batch * (a + b + along * (bands - 1)))
