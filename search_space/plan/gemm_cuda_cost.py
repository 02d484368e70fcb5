"""How long should a schedule of gemm_sm70 or gemm_sm80 take? What a block does; gemm_cuda_time adds it up.

It orders candidates before any ran; nothing is promised of its microseconds. Such a block copies, multiplies
and stores one tile; an SM holds as many of them as shared memory and registers allow.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_time as time
from search_space.plan.gemm_cuda_plan import LAST, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import Shape

LATENCY_US = 0.7
"""From the issue of a copy to its data, memory busy; idle 0.4 to 0.5 (microbenchmarks of V100, A100)."""
_BEGIN_US = 0.3
"""A block's start beside its first copies."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 64
"""From L2 to an SM (white papers of V100, A100)."""
_L2_ALL_BYTES_PER_CYCLE = {"sm_70": 0.7 * 2048, "sm_80": 0.6 * 5120, "sm_90a": 6000}
"""From L2 to all SMs: V100 2048, A100 5120 at most (NVIDIA's white papers), of which a V100 reaches 2155 GB/s
(Jia et al. 2018); that an A100, whose L2 has two halves, reaches less is a guess. sm_90a: gemm_sm90_cost."""
_L2_OVER_DRAM = 3.0
"""L2's rate over memory's where the white paper is silent: 2 to 4 in public microbenchmarks."""
_TURN_CYCLES = 40
"""Of a tile of k beside its products: a barrier, waiting for copies, addresses."""
_STORE_CYCLES = 0.3
"""Of a sum on its way out, beside its bytes."""
_DIRECT = 1.3
"""Bytes that move for a byte of result that leaves straight from fragments: half-filled sectors."""
STEP_BYTES = 32
"""Of k that fragments hold at once."""


class Work(NamedTuple):
    """What of a schedule the model looks at, beside its grid."""

    bk: int
    wm: int
    wn: int
    registers: int
    tiles_ahead: int
    """Tiles of k whose copies are under way while one is multiplied; 0: none."""
    staged: bool
    """Results leave in whole vectors."""
    mma_share: float
    """Of the device's peak that the instruction reaches."""
    fill_a: float
    """What a byte of A costs of the shared-memory port on its way in: 1 in copies of 16 bytes."""
    fill_b: float
    reads: float = 1.0
    """How often shared memory is read beyond what fragments hold."""


def occupancy(device: GpuDevice, g: Grid, w: Work) -> int:
    """Blocks that an SM holds at once, at least 1."""
    limits = device.arch.limits
    smem = g.smem_bytes + limits.smem_reserved_bytes
    registers = min(max(w.registers, 32), limits.registers_thread) * g.threads
    fits = (
        limits.smem_sm_bytes // max(smem, 1),
        limits.threads_sm // g.threads,
        limits.registers_sm // registers,
        limits.blocks_sm,
    )
    return max(1, min(fits))


def predict(shape: Shape, device: GpuDevice, g: Grid, w: Work) -> Estimate:
    """The time, what bounds it, and the time of each part."""
    rates = _rates(device, shape.a.dtype, w.mma_share)
    m, n = max(shape.m, 1), max(shape.n, 1)
    rows, columns = -(-m // g.bm), -(-n // g.bn)
    steps = ceil(ceil(shape.k_work / w.bk) / g.splits)
    at_once = device.sms * occupancy(device, g, w)
    blocks = time.Blocks(rows * columns * shape.batch * g.splits, 1, at_once, device.sms, False)
    operands = shape.batch * time.operand_bytes(
        (m * shape.k_work * shape.a.size, n * shape.k_work * shape.b.size),
        (rows, columns),
        at_once,
        g.group,
        g.along_m,
        device.l2_bytes,
    )
    read = (shape.beta > 0) + shape.residual
    outs = g.bm * g.bn * shape.out_size * ((1.0 if w.staged else _DIRECT) + read)
    reduce_us = 0.0
    if g.split != WHOLE:
        outs, read = g.bm * g.bn * 4.0, 0
        reduce_us = time.reduce_us(blocks.units * outs, g.split == LAST, rates)
    kernel = time.Kernel(
        blocks=blocks,
        steps=steps,
        step=_step(shape, device, g, w, rates, operands / (blocks.units * max(steps, 1))),
        start_us=_BEGIN_US + LATENCY_US,
        out_bytes=outs,
        out_share=time.MIXED_SHARE if read else 1.0,
        store_us=g.bm * g.bn / 128 * _STORE_CYCLES / (device.ghz * 1e3),
        exposed=1.0,
        flops=2.0 * shape.batch * m * n * shape.k_work,
        operand_bytes=operands,
        cold_bytes=min(operands, device.l2_bytes),
        launch_us=time.LAUNCH_US,
        reduce_us=reduce_us,
    )
    return time.predict(kernel, rates)


@lru_cache(maxsize=64)
def _rates(device: GpuDevice, dtype: str, mma_share: float) -> time.Rates:
    mhz = device.ghz * 1e3
    l2 = _L2_ALL_BYTES_PER_CYCLE.get(device.arch.name)
    return time.Rates(
        flops=device.peak_gflops(dtype) * 1e3 * mma_share / device.sms,
        smem=_SMEM_BYTES_PER_CYCLE * mhz,
        l2_sm=_L2_BYTES_PER_CYCLE * mhz,
        l2_all=l2 * mhz if l2 else device.dram_gbs * 1e3 * _L2_OVER_DRAM,
        memory=device.dram_gbs * 1e3 * time.MEMORY_SHARE,
    )


def _step(
    shape: Shape, device: GpuDevice, g: Grid, w: Work, rates: time.Rates, memory_bytes: float
) -> time.Step:
    """A tile of k of one block."""
    warps = g.threads // 32
    pieces = w.bk * shape.a.size // STEP_BYTES
    read = warps * pieces * (w.wm + w.wn) * STEP_BYTES * w.reads
    a, b = g.bm * w.bk * shape.a.size, g.bn * w.bk * shape.b.size
    mma = 2.0 * g.bm * g.bn * w.bk / rates.flops
    return time.Step(
        mma_us=mma,
        warps=warps,
        beside_us=_TURN_CYCLES / (device.ghz * 1e3),
        smem_bytes=read + a * w.fill_a + b * w.fill_b,
        l2_bytes=a + b,
        memory_bytes=memory_bytes,
        latency_us=LATENCY_US / w.tiles_ahead if w.tiles_ahead else LATENCY_US + mma,
    )
