"""What do the CUDA GEMM families refuse alike: shared memory, registers, alignment, parts of k, grids?"""

from __future__ import annotations

from rooftile.problem import Gemm

from search_space.gpu_device import GpuDevice
from search_space.plan.gemm_cuda_shape import Shape
from search_space.schedule import Schedule
from search_space.violation import Number, Violation

MOST_WARPS = 16
"""Of a block: more would have under 128 registers a thread."""
MOST_BLOCKS = 2**31 - 1
"""Of a grid in x (CUDA C++ programming guide); blocks that compute tile after tile count them in 32 bits."""
REDUCE_THREADS = 256
"""Threads of a block of the entry that adds up parts of k; each has four neighbours of a row."""
_LARGE_TILE = (64, 128)
"""A tile that every family has for every problem, whatever the alignment."""
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
SUMS_LEFT_OUT = (
    (
        "turnstile",
        "blocks would wait, in the order of k, for others that may not run yet (CUDA promises no order of"
        " blocks); the last to arrive adds all parts in that order, and nobody waits",
    ),
    (
        "atomic",
        "f32 sums would depend on the order in which blocks arrive; a plan promises equal bits each time",
    ),
)
"""Ways to add parts of k that no family here has."""


def warps(extents: tuple[tuple[str, int, int, int], ...], what: str) -> list[Violation]:
    """Whether warps share the tile in whole fragments; (name, extent, warps along it, extent of a
    fragment)."""
    found = []
    for name, extent, count, unit in extents:
        if extent % (count * unit):
            numbers: dict[str, Number] = {name: extent, "warps": count, "fragment": unit}
            message = f"{count} warps do not share {name} = {extent} in fragments of {unit} ({what})"
            found.append(Violation("warp_tile", message, numbers))
    total = extents[0][2] * extents[1][2]
    if total > MOST_WARPS:
        message = f"{total} warps; a block has {MOST_WARPS} at most here"
        found.append(Violation("warps", message, {"warps": total, "most": MOST_WARPS}))
    return found


def memory(device: GpuDevice, needed: int, what: str, threads: int, resident: int) -> list[Violation]:
    """Whether `resident` blocks of so many threads that need so many bytes of shared memory fit on an SM."""
    there, found = device.smem_block_bytes, []
    if needed > there:
        message = f"{what} need {needed} bytes of shared memory; a block has {there}"
        numbers: dict[str, Number] = {"needed": needed, "most": there}
        found.append(Violation("shared_memory", message, numbers))
    limits = device.arch.limits
    shared = resident * (needed + limits.smem_reserved_bytes)
    if resident > 1 and shared > limits.smem_sm_bytes:
        message = f"{resident} blocks need {shared} bytes of shared memory; an SM has {limits.smem_sm_bytes}"
        numbers = {"needed": shared, "most": limits.smem_sm_bytes, "resident": resident}
        found.append(Violation("resident", message, numbers))
    if resident * threads > limits.threads_sm:
        message = f"{resident} blocks of {threads} threads are over the {limits.threads_sm} of an SM"
        numbers = {"threads": threads, "most": limits.threads_sm, "resident": resident}
        found.append(Violation("resident", message, numbers))
    return found


def registers(device: GpuDevice, needed: int, what: str, threads: int) -> list[Violation]:
    """Whether `threads` threads on an SM can have so many registers each."""
    limits = device.arch.limits
    # Given out in units of 8 a thread (256 a warp).
    there = min(limits.registers_thread, limits.registers_sm // threads // 8 * 8)
    if needed <= there:
        return []
    message = f"{what} need about {needed} registers; {threads} threads have {there}"
    return [Violation("registers", message, {"needed": needed, "most": there, "threads": threads})]


def aligned(name: str, what: str, pitch: int, align: int, width: int) -> list[Violation]:
    """Accesses of `width` bytes need pitch and base to be a multiple of it."""
    found = []
    if pitch % width:
        message = f"{name}: {what} are {pitch} bytes apart, no multiple of an access of {width}"
        found.append(Violation("alignment", message, {"pitch_bytes": pitch, "access_bytes": width}))
    if align % width:
        message = f"{name}: {what} are aligned to {align} bytes, not to an access of {width}"
        found.append(Violation("alignment", message, {"align_bytes": align, "access_bytes": width}))
    return found


def store(shape: Shape, columns: int, vector: int) -> list[Violation]:
    """Whether results can leave `vector` at a time from a warp's `columns`."""
    found = []
    if columns % vector:
        message = f"a warp's {columns} columns are no whole vectors of {vector}"
        found.append(Violation("vector", message, {"vector": vector, "columns": columns}))
    pitch = shape.out_pitch * shape.out_size
    return found + aligned("vector", "rows of out", pitch, shape.out_align_bytes, vector * shape.out_size)


def split(shape: Shape, bk: int, s: Schedule) -> list[Violation]:
    """Whether k can be split into so many parts."""
    splits = s.integer("split_k")
    if splits == 1:
        if s.text("split_sum") != "last":
            return [Violation("split", "split_sum is last where k is not split", {"split_k": 1})]
        return []
    k_tiles = -(-shape.k_work // bk)
    if splits <= k_tiles:
        return []
    message = f"{splits} parts of {k_tiles} tiles of k"
    return [Violation("split", message, {"split_k": splits, "k_tiles": k_tiles})]


def too_large(problem: Gemm) -> list[Violation]:
    """Whether a family's own starts have a grid for the problem: one that has none is refused as a whole."""
    m, n = (problem.n, problem.m) if problem.layout.c == "nm" else (problem.m, problem.n)
    bm, bn = _LARGE_TILE
    tiles = -(-m // bm) * -(-n // bn) * problem.batch
    if tiles <= MOST_BLOCKS:
        return []
    numbers = {"m": problem.m, "n": problem.n, "batch": problem.batch, "tiles": tiles, "most": MOST_BLOCKS}
    message = f"the result is {tiles} tiles of {bm} x {bn}; a grid has {MOST_BLOCKS} blocks at most"
    return [Violation("size", message, numbers)]


def grid(shape: Shape, rows: int, columns: int, s: Schedule) -> list[Violation]:
    """Whether the grids, and a block's own count of tiles (kernels/cuda/include/sched/raster.cuh), have room
    for so many rows and columns of tiles of each batch entry."""
    splits, group, found = s.integer("split_k"), s.integer("group"), []
    blocks = rows * columns * shape.batch * splits
    if blocks > MOST_BLOCKS:
        message = f"{rows} x {columns} tiles need a grid of {blocks} blocks; one has {MOST_BLOCKS} at most"
        numbers: dict[str, Number] = {"blocks": blocks, "most": MOST_BLOCKS, "batch": shape.batch}
        found.append(Violation("grid", message, numbers))
    band = group * (columns if s.text("raster") != "n" else rows)
    if band >= 2**32:
        message = f"a band of {group} has {band} tiles; a block counts them in 32 bits"
        found.append(Violation("grid", message, {"group": group, "tiles": band, "most": 2**32 - 1}))
    if splits > 1 and s.text("split_sum") == "second":
        second = -(-shape.m * -(-shape.n // 4) * shape.batch // REDUCE_THREADS)
        if second > MOST_BLOCKS:
            message = f"the entry that adds up parts of k needs {second} blocks; a grid has {MOST_BLOCKS}"
            found.append(Violation("grid", message, {"blocks": second, "most": MOST_BLOCKS}))
    return found


def widest(pitch: int, size: int, align_bytes: int, elements: int) -> int:
    """Bytes of the widest access (16 at most, one element at least) that the base, the pitch in elements and
    a row of so many elements are a multiple of."""
    fits = (w for w in (16, 8, 4, 2) if w > size and not pitch * size % w and not align_bytes % w)
    return next((w for w in fits if not elements * size % w), size)


def copy_class(rows: int, row_bytes: int, piece: int, threads: int) -> str:
    """How the threads of a block share the copies of a tile (kernels/cuda/include/tile/copy.cuh): `even`,
    with some threads idle at the end (`rest`), or in several turns along each row (`wide`)."""
    per_row = row_bytes // piece
    if per_row > threads:
        return "wide"
    return "rest" if threads % per_row or rows % (threads // per_row) else "even"
