"""How long should a schedule of gemm_sm90 take? What a block does in a step of k; gemm_cuda_time adds it up.

It orders candidates before any ran; nothing is promised of its microseconds. An SM runs one block. A wgmma
m64nNk16 takes N/2 cycles, or as long as its operands take through the shared-memory port (128 bytes a cycle);
a stage is loaded through L2, of which a cluster asks once for what its blocks share.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from rooftile.problem import Problem

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_time as time
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm90_tile import STEP, Tile
from search_space.schedule import Schedule

_SUSTAINED = 0.92
"""Of the boost clock's peak that the tensor cores reach under full load and power limit: the best public
GEMMs have 0.80 to 0.83 of it on H100 SXM5, starts, tails and epilogues included (recorded_targets.csv)."""
_START_US = 0.8
"""Of a block: barriers, registers, the first copies' way from memory."""
_CLUSTER_US = 0.15
"""More of it where the blocks of a cluster wait for each other."""
_LATENCY_US = 0.9
"""From the issue of a copy to its data, memory busy; 0.6 to 0.7 idle in public microbenchmarks of H100."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_BYTES_PER_CYCLE = 64
"""Of an SM (public GEMM heuristics count with the same)."""
_L2_ALL_BYTES_PER_CYCLE = 6000
"""Of all SMs together."""
_TURN_CYCLES = 30
"""Of a tile of k beside its products: waiting for the stage, telling that it is read."""
_GPC_SMS = 18
"""Most SMs of a GPC, inside of which a cluster lies (CUTLASS counts with the same); those of a product have a
few less, and not all the same number: 132 SMs hold 66 clusters of 2, but only 32 of 4."""
_STORE_CYCLES = {"direct": 0.35, "staged": 0.25, "tma": 0.16}
"""Of a sum in a thread on its way out, beside the bytes: conversion, shared memory, addresses."""
_SECTORS = {"direct": 1.3, "staged": 1.05, "tma": 1.0}
"""Bytes that move for a byte of result: direct stores fill parts of sectors."""


def predict(problem: Problem, device: GpuDevice, schedule: Schedule) -> Estimate:
    """The time, what bounds it, and the time of each part."""
    shape, t = Shape.of(problem), Tile.of(schedule)
    rates, splits = _rates(device), schedule.integer("split_k")
    m, n = (max(x, 1) for x in t.extents(shape))
    rows, columns = -(-m // (t.bm * t.cluster_m)), -(-n // (t.bn * t.cluster_n))
    turns = ceil(ceil(shape.k_work / t.bk) / splits)
    at_once = _clusters(device.sms, t.cluster)
    blocks = time.Blocks(
        units=rows * columns * shape.batch * splits,
        blocks_a_unit=t.cluster,
        at_once=at_once,
        sms=at_once * t.cluster,
        persistent=t.persistent,
    )
    operands = shape.batch * time.operand_bytes(
        (m * shape.k_work * 2.0, n * shape.k_work * 2.0),
        (rows * t.cluster_m, columns * t.cluster_n),
        at_once * t.cluster,
        schedule.integer("group"),
        schedule.text("raster") == "m",
        device.l2_bytes,
    )
    read = (shape.beta > 0) + shape.residual
    outs = t.bm * t.bn * shape.out_size * (1 + read) * _SECTORS[t.store]
    reduce_us = 0.0
    if splits > 1:
        outs, read = t.rows * t.bn * 4.0, False
        parts = blocks.units * t.cluster * outs
        reduce_us = time.reduce_us(parts, schedule.text("split_sum") == "last", rates)
    kernel = time.Kernel(
        blocks=blocks,
        steps=turns,
        step=_step(device, t, operands / (blocks.units * t.cluster * max(turns, 1))),
        start_us=_START_US + (_CLUSTER_US if t.cluster > 1 else 0.0),
        out_bytes=outs,
        out_share=time.MIXED_SHARE if read else 1.0,
        store_us=t.sums * _STORE_CYCLES[t.store] * 8 / (device.ghz * 1e3),
        exposed=1.0 if not t.persistent else 0.15 if t.pingpong else 0.9,
        flops=2.0 * shape.batch * m * n * shape.k_work,
        operand_bytes=operands,
        cold_bytes=min(operands, device.l2_bytes),
        launch_us=time.LAUNCH_US,
        reduce_us=reduce_us,
    )
    return time.predict(kernel, rates)


@lru_cache(maxsize=16)
def _rates(device: GpuDevice) -> time.Rates:
    mhz = device.ghz * 1e3
    return time.Rates(
        flops=device.peak_gflops("f16") * 1e3 * _SUSTAINED / device.sms,
        smem=_SMEM_BYTES_PER_CYCLE * mhz,
        l2_sm=_L2_BYTES_PER_CYCLE * mhz,
        l2_all=_L2_ALL_BYTES_PER_CYCLE * mhz,
        memory=device.dram_gbs * 1e3 * time.MEMORY_SHARE,
    )


def _clusters(sms: int, cluster: int) -> int:
    """That run at once."""
    if cluster <= 2:
        return max(sms // cluster, 1)
    gpcs = -(-sms // _GPC_SMS)
    return max(gpcs * (sms // gpcs // cluster), 1)


def _step(device: GpuDevice, t: Tile, memory_bytes: float) -> time.Step:
    """A tile of k of one block."""
    steps, products = t.bk // STEP, t.rows // 64 * (t.bn // t.wn)
    read = 2048 + 32 * t.wn  # bytes of both operands of a wgmma
    cycles = max(t.wn / 2 / _SUSTAINED, read / _SMEM_BYTES_PER_CYCLE)
    us = 1.0 / (device.ghz * 1e3)
    filled = (t.bm + t.bn) * t.bk * 2.0
    return time.Step(
        mma_us=steps * products * cycles * us,
        warps=8,  # wgmma runs beside the warps that ask for it
        beside_us=_TURN_CYCLES * us * (0.3 if t.pingpong else 1.0),
        # Operands of wider products are read as they multiply; what is written comes on top.
        smem_bytes=steps * products * read + filled,
        l2_bytes=(t.bm / t.cluster_n + t.bn / t.cluster_m) * t.bk * 2,
        memory_bytes=memory_bytes,
        # With one stage more than is read at once, copies have the time of all the others to arrive.
        latency_us=_LATENCY_US / max(t.stages - 1, 1),
    )
