"""How long should a schedule of gemm_x86 take? A roofline with tile quantisation, packing and cache levels.

Pure arithmetic on the device's typical numbers: it orders candidates before anything was measured. Constants
that no datasheet has were fitted to some 450 schedules of eight shapes on a Zen 3 with two cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooftile.problem import Gemm, Problem

from search_space.cpu_device import CpuDevice
from search_space.family import Estimate
from search_space.plan.gemm_x86_shape import Shape
from search_space.plan.gemm_x86_space import lanes
from search_space.schedule import Schedule

START_US = 1.5
"""Waking the pool's spinning threads and ending the run."""
BARRIER_US = 1.0
TILE_CYCLES = 16.0
"""Entering and leaving a register tile: call, empty pipeline, loop exit."""
BUSY = 0.9
"""What the inner loop reaches of its bound by instruction counts."""
L2_BYTES_A_CYCLE = 24.0
L3_BYTES_A_CYCLE = 12.0
MISS_CYCLES = 5.0
"""A line of B read where it lies that is not in L1: several are under way at once."""
COPY_CYCLES = 0.35
"""For each float that is packed as it lies; TURN_CYCLES where it is transposed."""
TURN_CYCLES = 0.6
WIDE_BYTES = 3072.0
"""Half of memory's rate is lost where a stream is only this long before it jumps to another page."""
STATIC = 1.05
"""Threads with fixed shares wait for the slowest."""
STREAMS = 8
"""Rows of memory read side by side that the hardware still follows."""


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
    batch = min(s.integer("split_batch"), threads)
    n = min(s.integer("split_n"), threads // batch)
    k = min(s.integer("split_k"), threads // batch // n)
    return _Grid(batch, n, k, 1 if s.text("path") == "stream" else max(1, threads // (batch * n * k)))


def _ceil(x: int, y: int) -> int:
    return -(-x // max(1, y))


def predict(problem: Problem, device: CpuDevice, s: Schedule) -> Estimate:
    """The expected time, its largest part, and all parts."""
    assert isinstance(problem, Gemm)
    shape, grid = Shape.of(problem), _grid(s, device.cores)
    if problem.empty:
        return Estimate(START_US, "start", {"start": START_US})
    way = _stream if s.text("path") == "stream" else _blocked
    terms = way(shape, device, s, grid)
    turns = _ceil(shape.batch, grid.batch)
    overlap = terms.pop("overlap")
    terms = {name: us * turns for name, us in terms.items()}
    terms["start"] = START_US if grid.threads > 1 else 0.3
    hidden = min(terms["compute"], terms["memory"]) * overlap
    return Estimate(sum(terms.values()) - hidden, max(terms, key=lambda name: terms[name]), terms)


def _units(device: CpuDevice) -> float:
    """Vectors that the units of a core multiply and add in a cycle."""
    return device.fma_units * min(1.0, device.fma_bits / device.vector_bits)


def _loads(device: CpuDevice) -> float:
    return max(1.0, device.load_bits / device.vector_bits)


def _step_cycles(device: CpuDevice, rows: int, vectors: int) -> float:
    """Cycles of one step of k of a tile: multiply-adds, loads, or the latency of the sums."""
    work = max(rows * vectors / _units(device), (rows + vectors) / _loads(device))
    return max(work, float(device.fma_latency)) / BUSY


def _memory_us(device: CpuDevice, nbytes: float, threads: int, stream_bytes: float) -> float:
    rate = device.memory_gbs(threads) * stream_bytes / (stream_bytes + WIDE_BYTES)
    return nbytes / rate / 1e3


def _rate(device: CpuDevice, nbytes: float) -> float:
    """Bytes a cycle at which a core reads what it reads again and again."""
    if nbytes < 0.5 * device.l1d_bytes:
        return 64.0
    if nbytes < 0.7 * device.l2_bytes:
        return L2_BYTES_A_CYCLE
    return L3_BYTES_A_CYCLE if nbytes < 0.6 * device.llc_bytes else L3_BYTES_A_CYCLE / 3


def _blocked(shape: Shape, device: CpuDevice, s: Schedule, grid: _Grid) -> dict[str, float]:
    mr, nr, width = s.integer("mr"), s.integer("nr"), lanes(device)
    vectors, hz = nr // width, device.ghz * 1e3  # cycles a microsecond
    handed, pack_a, pack_b = s.text("hand_out"), s.text("pack_a"), s.flag("pack_b")
    rows, cols = _ceil(_ceil(shape.m, mr), grid.m), _ceil(_ceil(shape.n, nr), grid.n)
    depth = _ceil(shape.k, grid.k)
    kc = min(s.integer("kc") or depth, max(depth, 1))
    blocks_k = _ceil(depth, kc) if depth else 1
    my_rows, my_cols = min(shape.m, rows * mr), cols * nr
    mc = min(s.integer("mc") or my_rows, my_rows)
    nc = min(s.integer("nc") or my_cols, my_cols)
    blocks_m, blocks_n = _ceil(my_rows, mc), _ceil(my_cols, nc)
    by_columns = s.text("inner") == "columns"

    last = shape.m - (_ceil(shape.m, mr) - 1) * mr
    full = _step_cycles(device, mr, vectors)
    steps = rows * full if grid.m > 1 else (rows - 1) * full + _step_cycles(device, last, vectors)
    tiles = rows * cols * blocks_k
    compute = steps * cols * depth + tiles * (TILE_CYCLES + mr * vectors)
    if s.integer("unroll") < 4:
        compute *= 1.03
    if kc % s.integer("unroll"):
        compute *= 1.02

    # What tiles read beyond L1. By rows a strip of B stays, A passes once for each strip; by columns a panel
    # of A stays and B passes.
    area = float(my_rows) * my_cols * depth * 4
    passing = nc * kc * 4 if by_columns else mc * kc * 4
    feed = area / (mr if by_columns else nr) / _rate(device, passing)
    staying = kc * (mr if by_columns else nr) * 4
    again = blocks_n if by_columns else blocks_m
    other = (float(my_rows) if by_columns else float(my_cols)) * depth * 4 * again / L3_BYTES_A_CYCLE
    crowded = max(0.0, staying / (0.7 * device.l1d_bytes) - 1.0)
    inner = max(compute, feed) + 0.35 * min(compute, feed) + 0.5 * other + compute * min(0.6, 0.2 * crowded)
    inner += _in_place(shape, device, s, rows * cols, kc, depth, by_columns)

    # Copies: read from memory, written, and read again from a cache.
    share_a = grid.n if s.flag("share") else 1
    share_b = grid.m if s.flag("share") or handed == "tiles" else 1
    times_a = blocks_n if pack_a == "block" and s.text("outer") == "n" and handed == "no" else 1
    packing = 0.0
    if pack_a != "no":
        packing += float(depth) * my_rows * times_a / share_a * (COPY_CYCLES if shape.a_km else TURN_CYCLES)
    if pack_b:
        packing += float(depth) * my_cols / share_b * (TURN_CYCLES if shape.b_nk else COPY_CYCLES)
    updates = (2 * blocks_k - 1) * float(my_rows) * my_cols * 4 / L3_BYTES_A_CYCLE * 0.5
    barriers = _barriers(s, grid, blocks_k * blocks_n, blocks_m)
    balance = 1.0 if handed != "no" or grid.threads == 1 else STATIC
    nbytes = 4.0 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    terms = {
        "compute": inner * balance / hz,
        "memory": _memory_us(device, nbytes, grid.threads, min(nc, kc if pack_a != "no" else depth) * 8.0),
        "pack": packing / hz,
        "update": updates / hz,
        "sync": barriers * BARRIER_US,
        # Packing waits for memory; reading in place overlaps.
        "overlap": 0.3 if pack_b and pack_a != "no" else 0.6,
    }
    if grid.k > 1:
        terms["reduce"] = _reduce_us(shape, grid, grid.k, hz)
    return terms


def _in_place(
    shape: Shape, device: CpuDevice, s: Schedule, tiles: int, kc: int, depth: int, by_columns: bool
) -> float:
    """Cycles that reading operands where they lie costs: rows that fall into the same cache sets, or need a
    page each."""
    cycles = 0.0
    mr, nr = s.integer("mr"), s.integer("nr")
    if s.text("pack_a") == "no" and not shape.a_km and not by_columns:
        # Every strip of B walks all rows of A again, each in its own page.
        cycles += tiles * depth * mr / 16 * MISS_CYCLES * (1.0 if shape.k % 1024 == 0 else 0.4)
    if not s.flag("pack_b"):
        lines = max(1.0, nr / 16)
        conflict = shape.n % 1024 == 0 and kc > 8
        fits = not by_columns and kc * nr * 4 < 0.7 * device.l1d_bytes and not conflict
        once = _ceil(shape.n, nr) * depth * lines  # each strip from memory, in narrow pieces
        cycles += 4 * MISS_CYCLES * once
        cycles += 0.0 if fits else tiles * depth * lines * MISS_CYCLES
    return cycles


def _barriers(s: Schedule, grid: _Grid, blocks: int, blocks_m: int) -> int:
    if s.text("hand_out") == "tiles":
        return blocks
    count = 1 if s.text("hand_out") == "columns" else 0
    if s.flag("share"):
        count += blocks if s.flag("pack_b") and grid.m > 1 else 0
        if s.text("pack_a") == "block" and grid.n > 1:
            count += blocks * (1 if s.text("outer") == "k" else blocks_m)
    return count + (2 if grid.k > 1 else 0)


def _reduce_us(shape: Shape, grid: _Grid, parts: int, hz: float) -> float:
    moved = shape.m * shape.n * (parts + 1) * 4
    return moved / L3_BYTES_A_CYCLE / hz / (grid.threads // grid.batch)


def _stream(shape: Shape, device: CpuDevice, s: Schedule, grid: _Grid) -> dict[str, float]:
    mr, nr, step = s.integer("mr"), s.integer("nr"), s.integer("unroll")
    width, hz = lanes(device), device.ghz * 1e3
    depth = _ceil(shape.k, grid.k)
    parts = s.integer("split_k")
    if shape.b_nk:
        groups = _ceil(_ceil(shape.n, nr), grid.n)
        last = shape.m % mr
        tiles = shape.m // mr * _step_cycles(device, mr, nr)
        tiles += _step_cycles(device, last, nr) if last else 0.0
        compute = groups * (tiles * _ceil(depth, width) + shape.m * nr * 8 + 30) / hz
        block = min(s.integer("kc") or depth, depth)
        row = block * 4.0 * (4 if block == depth else 1)
    else:
        compute = _sums_cycles(shape, device, s, grid, depth) / hz
        my_cols = _ceil(_ceil(shape.n, nr), grid.n) * nr
        nc = min(s.integer("nc") or my_cols, my_cols)
        row = nc * 4.0 * (4 if nc >= shape.n else 1)
        row /= 1.0 + max(0, (s.integer("kc") or step) - STREAMS) / STREAMS
    nbytes = 4.0 * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    balance = 1.0 if s.text("hand_out") == "parts" or grid.threads == 1 else STATIC
    terms = {
        "compute": compute * balance,
        "memory": _memory_us(device, nbytes, grid.threads, row),
        "pack": 0.0 if shape.b_nk and not shape.a_km else shape.m * shape.k * TURN_CYCLES / hz / grid.threads,
        "sync": BARRIER_US * (3 if parts > 1 else 1),
        # Without lines fetched ahead, two cores that wait for memory in turns hide little of it.
        "overlap": 0.8 if s.integer("ahead") else 0.5,
    }
    if parts > 1:
        terms["reduce"] = _reduce_us(shape, grid, parts, hz)
    return terms


def _sums_cycles(shape: Shape, device: CpuDevice, s: Schedule, grid: _Grid, depth: int) -> float:
    """Cycles of one thread for all its strips and visits, B k x n."""
    mr, nr, step = s.integer("mr"), s.integer("nr"), s.integer("unroll")
    vectors, loads = nr // lanes(device), _loads(device)
    deep = s.integer("kc") or step
    strips, visits = _ceil(_ceil(shape.n, nr), grid.n), _ceil(depth, deep)
    if s.text("hold") == "b":
        row = max(step * vectors / _units(device), (step + vectors) / loads, float(vectors)) / BUSY
        # Rows follow each other through the pipeline; a long chain of sums needs many of them under way.
        chain = step * device.fma_latency + 8.0
        row = max(row, chain / min(shape.m, 5))
        # A second visit to the same sums before the next strip breaks into more rows of B than are followed.
        one = (shape.m * row + step * vectors / loads + 10) * (deep / step) * (1.2 if deep > step else 1.0)
    else:
        full, last = divmod(shape.m, mr)
        edge = 8 + 1.5 * mr * vectors
        one = full * (_step_cycles(device, mr, vectors) * deep + edge)
        if last:
            one += _step_cycles(device, last, vectors) * deep + 8 + 1.5 * last * vectors
        one += 8
        # Rows at one place of a page share a cache set: with more of them than ways they push each other out.
        if shape.n % 1024 == 0 and deep > STREAMS:
            one *= 1.0 + 0.12 * (deep - STREAMS)
        if step < 4:
            one *= 1.1
    my_cols = strips * nr
    nc = min(s.integer("nc") or my_cols, my_cols)
    moved = 2.0 * shape.m * my_cols * 4 * visits
    wait = moved / _rate(device, shape.m * nc * 4) if shape.m * nc * 4 > 0.5 * device.l1d_bytes else 0.0
    ends = 25.0 * _ceil(my_cols, nc) * visits
    work = strips * visits * one
    return max(work, wait) + 0.4 * min(work, wait) + ends
