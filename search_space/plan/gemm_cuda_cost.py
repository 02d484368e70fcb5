"""How long should a schedule of a CUDA GEMM family take? A roofline with tile quantisation and waves.

It orders candidates before any ran; nothing is promised of its microseconds. An SM's blocks share its tensor
cores, its shared-memory port (128 bytes a cycle) and its part of L2; a wave ends with its slowest block.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from search_space.family import Estimate
from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_plan import REDUCE, WHOLE, Grid
from search_space.plan.gemm_cuda_shape import Shape

_LAUNCH_US = 2.5
_SECOND_LAUNCH_US = 1.5
_LATENCY_US = 0.7
"""From the issue of a copy to its data, memory busy."""
_SMEM_BYTES_PER_CYCLE = 128
_L2_OVER_DRAM = 3.0
"""L2's rate over memory's: 2 to 4 in public microbenchmarks of V100, A100 and H100."""
_WARPS_TO_FILL = 4
"""Tensor cores of an SM; each needs a warp, and two hide its latency better."""
_STEP_BYTES = 32
"""Of k that fragments hold at once."""


@dataclass(frozen=True)
class Work:
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
    rows, columns = -(-max(shape.m, 1) // g.bm), -(-max(shape.n, 1) // g.bn)
    blocks = rows * columns * shape.batch * g.splits
    k_tiles = ceil(ceil(shape.k_work / w.bk) / g.splits)
    held = min(occupancy(device, g, w), -(-blocks // device.sms))
    waves = -(-blocks // (device.sms * held))

    mma = _mma_us(shape, device, g, w, held)
    smem = _smem_us(shape, device, g, w, held)
    l2 = held * sum(_tile_bytes(shape, g, w)) * device.sms / (device.dram_gbs * _L2_OVER_DRAM * 1e3)
    wait = _LATENCY_US / max(w.tiles_ahead, 1)
    step = max(mma, smem, l2, wait)
    main = waves * (k_tiles * step + _LATENCY_US)

    out = shape.batch * shape.m * shape.n * shape.out_size
    reads = out * ((shape.beta > 0) + shape.residual)
    scattered = 1.0 if w.staged else 1.3  # direct stores fill half a sector's worth of a line at a time
    sums = 0 if g.split == WHOLE else 2 * _split_bytes(shape, g, rows * columns)
    tail = (out * scattered + reads + sums) / (device.dram_gbs * 1e3)
    dram = _dram_bytes(shape, device, g, rows, columns) / (device.dram_gbs * 1e3)

    terms = {
        "launch": _LAUNCH_US + (_SECOND_LAUNCH_US if g.split != WHOLE else 0.0),
        "main": main,
        "dram": dram,
        "epilogue": tail,
    }
    total = terms["launch"] + max(main, dram) + tail
    parts = {"tensor cores": mma, "shared memory": smem, "L2": l2, "latency": wait}
    bound = "memory" if dram > main else max(parts, key=lambda name: parts[name])
    return Estimate(total, bound, terms)


def _mma_us(shape: Shape, device: GpuDevice, g: Grid, w: Work, held: int) -> float:
    """One tile of k of the blocks that an SM holds, on its tensor cores."""
    warps = g.threads // 32
    rate = device.peak_gflops(shape.a.dtype) * w.mma_share / device.sms * 1e3
    busy = min(1.0, held * warps / _WARPS_TO_FILL) * (0.9 if held * warps < 2 * _WARPS_TO_FILL else 1.0)
    return held * 2.0 * g.bm * g.bn * w.bk / (rate * busy)


def _smem_us(shape: Shape, device: GpuDevice, g: Grid, w: Work, held: int) -> float:
    """The same through the shared-memory port: fragments out of it, copies into it."""
    warps = g.threads // 32
    steps = w.bk * shape.a.size // _STEP_BYTES
    read = warps * steps * (w.wm + w.wn) * _STEP_BYTES * w.reads
    return held * (read + sum(_tile_bytes(shape, g, w))) / (_SMEM_BYTES_PER_CYCLE * device.ghz * 1e3)


def _tile_bytes(shape: Shape, g: Grid, w: Work) -> tuple[int, int]:
    return g.bm * w.bk * shape.a.size, g.bn * w.bk * shape.b.size


def _split_bytes(shape: Shape, g: Grid, tiles: int) -> int:
    if g.split == REDUCE:
        return shape.batch * shape.m * shape.n * 4 * g.splits
    return shape.batch * tiles * g.bm * g.bn * 4 * g.splits


def _dram_bytes(shape: Shape, device: GpuDevice, g: Grid, rows: int, columns: int) -> float:
    """A and B as often as they leave L2 between two bands of tiles."""
    a = shape.m * shape.k_work * shape.a.size
    b = shape.n * shape.k_work * shape.b.size
    # A band of `group` tiles keeps its own operand; the other one passes by once for each band.
    along, across = (b, rows) if g.along_m else (a, columns)
    band = -(-across // g.group)
    again = min(band, rows if g.along_m else columns) if along > device.l2_bytes / 2 else 1
    return shape.batch * (a + b + along * (again - 1))
