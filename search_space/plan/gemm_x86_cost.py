"""How long should a schedule of gemm_x86 take? A roofline with tile quantisation, packing and cache levels.

Pure arithmetic on the device's typical numbers: it orders candidates before anything was measured. The
weights that
are not a datasheet's were fitted once on a Zen 3 with two cores, to the ratio of schedules, not to absolute
times.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooftile.problem import Problem

from search_space.device import Device
from search_space.family import Estimate
from search_space.plan.gemm_x86_shape import Shape
from search_space.plan.gemm_x86_space import lanes
from search_space.schedule import Schedule

_START_US = 1.5
"""Waking the pool's spinning threads and ending the run."""
_BARRIER_US = 0.7
_TILE_CYCLES = 14.0
"""Entering and leaving a register tile: call, empty pipeline, loop exit."""
_BUSY = 0.93
"""What the inner loop reaches of its bound by instruction counts."""
_L2_BYTES_A_CYCLE = 20.0
_L3_BYTES_A_CYCLE = 8.0
_WIDE_STREAM_BYTES = 4096.0
"""Half of memory's rate is lost where a stream is only this long before it jumps to another page."""


@dataclass(frozen=True)
class _Grid:
    batch: int
    n: int
    k: int
    m: int

    @property
    def threads(self) -> int:
        return self.batch * self.n * self.k * self.m


def _grid(s: Schedule, cores: int) -> _Grid:
    threads = min(s.integer("threads"), cores)
    batch, n, k = (s.integer(f"split_{x}") for x in ("batch", "n", "k"))
    m = 1 if s.text("path") == "stream" else max(1, threads // (batch * n * k))
    return _Grid(batch, n, k, m)


def _ceil(x: int, y: int) -> int:
    return -(-x // max(1, y))


def predict(problem: Problem, device: Device, s: Schedule) -> Estimate:
    """The expected time, its largest part, and all parts."""
    shape, grid = Shape.of(problem), _grid(s, device.cores)
    if 0 in (shape.m, shape.n):
        return Estimate(0.0, "empty", {})
    terms = (
        _stream(shape, device, s, grid) if s.text("path") == "stream" else _blocked(shape, device, s, grid)
    )
    turns = _ceil(shape.batch, grid.batch)
    terms = {name: us * turns for name, us in terms.items()}
    terms["start"] = _START_US if grid.threads > 1 else 0.3
    overlapped = min(terms["compute"], terms["memory"]) * terms.pop("overlap") / turns
    time_us = sum(terms.values()) - overlapped
    return Estimate(time_us, max(terms, key=lambda name: terms[name]), terms)


def _step_cycles(device: Device, rows: int, vectors: int) -> float:
    """Cycles of one step of k of a tile: multiply-adds, loads, or the latency of the sums."""
    units = device.fma_units * min(1.0, device.fma_bits / device.vector_bits)
    loads = device.load_bits / device.vector_bits
    return max(rows * vectors / units, (rows + vectors) / max(loads, 1.0), float(device.fma_latency)) / _BUSY


def _memory_us(device: Device, nbytes: float, threads: int, stream_bytes: float = 1e9) -> float:
    rate = device.memory_gbs(threads) * stream_bytes / (stream_bytes + _WIDE_STREAM_BYTES)
    return nbytes / rate / 1e3


def _blocked(shape: Shape, device: Device, s: Schedule, grid: _Grid) -> dict[str, float]:
    mr, nr = s.integer("mr"), s.integer("nr")
    vectors, width = nr // lanes(device), lanes(device)
    hz = device.ghz * 1e3  # cycles a microsecond
    rows, cols = _ceil(_ceil(shape.m, mr), grid.m), _ceil(_ceil(shape.n, nr), grid.n)
    depth = _ceil(shape.k, grid.k)
    kc = min(s.integer("kc") or depth, max(depth, 1))
    blocks_k = _ceil(depth, kc) if depth else 1
    my_rows, my_cols = min(shape.m, rows * mr), cols * nr
    mc = min(s.integer("mc") or my_rows, my_rows)
    nc = min(s.integer("nc") or my_cols, my_cols)

    last = shape.m - (_ceil(shape.m, mr) - 1) * mr
    per_step = (rows - 1) * _step_cycles(device, mr, vectors) + _step_cycles(device, last, vectors)
    if rows > 1 and grid.m > 1:
        per_step = rows * _step_cycles(device, mr, vectors)
    tiles = rows * cols * blocks_k
    compute = (per_step * cols * depth + tiles * (_TILE_CYCLES + mr * vectors)) / hz
    # Unrolled turns end in single steps.
    compute *= 1.0 + 0.02 * (kc % s.integer("unroll") != 0)

    # What the inner loop reads beyond L1. By columns a strip of B (kc x nr) stays; A comes once for each
    # strip.
    by_rows = s.text("inner") == "columns"
    stays = kc * (mr if by_rows else nr) * 4
    a_block, b_block = mc * kc * 4, kc * nc * 4
    moving = b_block if by_rows else a_block
    reads = float(depth) * (my_cols * my_rows / mr if by_rows else my_rows * my_cols / nr) * 4
    rate = _L2_BYTES_A_CYCLE if moving < 0.6 * device.l2_bytes else _L3_BYTES_A_CYCLE
    if moving > device.llc_bytes / max(1, grid.threads):
        rate = _L3_BYTES_A_CYCLE / 4
    feed = reads / rate / hz
    crowded = max(0.0, stays / (0.6 * device.l1d_bytes) - 1.0)
    inner = max(compute, feed * 1.1) + 0.25 * min(compute, feed) + compute * min(0.5, 0.15 * crowded)
    inner *= 1.0 + _in_place(shape, device, s, kc, mc)

    # Copies: read from memory, written and read again in a cache.
    n_blocks, m_blocks = _ceil(my_cols, nc), _ceil(my_rows, mc)
    copied_a = depth * my_rows * n_blocks / grid.n if s.text("pack_a") != "no" else 0.0
    copied_b = float(depth) * my_cols / grid.m if s.flag("pack_b") else 0.0
    a_cost = 0.35 if shape.a_km else 0.7
    b_cost = 0.7 if shape.b_nk else 0.35
    pack = (copied_a * a_cost + copied_b * b_cost) / hz
    updates = (2 * blocks_k - 1) * my_rows * my_cols * 4 / _L3_BYTES_A_CYCLE / hz * 0.5
    whole = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
    nbytes = 4.0 * whole
    terms = {
        "compute": inner,
        "memory": _memory_us(device, nbytes, grid.threads),
        "pack": pack,
        "update": updates,
        "sync": _barriers(s, grid, blocks_k * n_blocks, m_blocks) * _BARRIER_US,
        # Packing waits for memory; reading in place overlaps.
        "overlap": 0.35 if s.flag("pack_b") else 0.6,
    }
    if grid.k > 1:
        terms["reduce"] = _reduce_us(shape, grid, width, hz)
    return terms


def _in_place(shape: Shape, device: Device, s: Schedule, kc: int, mc: int) -> float:
    """What reading operands where they lie costs: rows that fall into the same cache sets or need a page
    each."""
    cost = 0.0
    if s.text("pack_a") == "no" and not shape.a_km:
        pitch = shape.k * 4
        again = s.text("inner") == "rows"  # every strip of B walks all rows of A again
        cost += 0.03
        if pitch % 4096 == 0:
            cost += 0.25 if again and mc > 16 else 0.04
    if not s.flag("pack_b"):
        pitch = shape.n * 4
        cost += 0.05 if pitch < 2048 else 0.12
        if pitch % 4096 == 0:
            cost += 0.4
        if kc * pitch > device.l2_bytes:
            cost += 0.15
    return cost


def _barriers(s: Schedule, grid: _Grid, blocks: int, m_blocks: int) -> int:
    count = blocks if s.flag("pack_b") and grid.m > 1 else 0
    if s.text("pack_a") != "no" and grid.n > 1:
        count += blocks * m_blocks
    return count + (2 if grid.k > 1 else 0)


def _reduce_us(shape: Shape, grid: _Grid, width: int, hz: float) -> float:
    return shape.m * shape.n * (grid.k + 1) * 4 / _L3_BYTES_A_CYCLE / hz / (grid.threads // grid.batch)


def _stream(shape: Shape, device: Device, s: Schedule, grid: _Grid) -> dict[str, float]:
    mr, nr, step = s.integer("mr"), s.integer("nr"), s.integer("unroll")
    width, hz = lanes(device), device.ghz * 1e3
    depth = _ceil(shape.k, grid.k)
    if shape.b_nk:
        groups = _ceil(_ceil(shape.n, nr), grid.n)
        last = shape.m % mr
        tiles = shape.m // mr * _step_cycles(device, mr, nr)
        tiles += _step_cycles(device, last, nr) if last else 0.0
        compute = groups * (tiles * _ceil(depth, width) + shape.m * nr * 8 + 30) / hz
        row = min(s.integer("kc") or depth, depth) * 4.0
        stream = row * (1 if s.integer("kc") and s.integer("kc") < depth else 4)
    else:
        vectors = nr // width
        strips = _ceil(_ceil(shape.n, nr), grid.n)
        passes = _ceil(depth, step)
        if s.text("hold") == "b":
            loads = device.load_bits / device.vector_bits
            units = device.fma_units * min(1.0, device.fma_bits / device.vector_bits)
            row_cycles = max(step * vectors / units, (step + vectors) / loads, vectors) / _BUSY
            one = shape.m * row_cycles + step * vectors / loads + 8
        else:
            full, last = divmod(shape.m, mr)
            one = full * (_step_cycles(device, mr, vectors) * step + mr * vectors + 6)
            if last:
                one += _step_cycles(device, last, vectors) * step + last * vectors + 6
            one += 8
        my_cols = strips * nr
        nc = min(s.integer("nc") or my_cols, my_cols)
        sums = shape.m * nc * 4
        moved = 2.0 * shape.m * my_cols * 4 * passes
        sums_cycles = 0.0 if sums < 0.5 * device.l1d_bytes else moved / (
            _L2_BYTES_A_CYCLE * 1.6 if sums < 0.6 * device.l2_bytes else _L3_BYTES_A_CYCLE
        )  # fmt: skip
        compute = (strips * passes * one + 0.5 * sums_cycles) / hz
        stream = nc * 4.0 * (2 if nc >= shape.n else 1)
        # Rows at the same place of a page share a cache set: more of them than ways, and they push each other
        # out.
        if shape.n * 4 % 4096 == 0 and step > 8 and s.text("hold") == "c":
            compute *= 1.0 + 0.1 * (step - 8)
        stream /= 1.0 + max(0, step - 8) / 4
    nbytes = 4.0 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    terms = {
        "compute": compute,
        "memory": _memory_us(device, nbytes, grid.threads, stream),
        "pack": shape.m * shape.k * 1.2 / hz / grid.threads,
        "sync": _BARRIER_US * (3 if grid.k > 1 else 1),
        "overlap": 0.6,
    }
    if grid.k > 1:
        terms["reduce"] = _reduce_us(shape, grid, width, hz)
    return terms
