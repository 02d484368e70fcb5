"""Which schedules of gemm_sm90 are legal?

Every rule names what refuses the schedule, with its numbers. Sources: PTX ISA (wgmma, setmaxnreg, mbarrier),
CUDA driver API (cuTensorMapEncodeTiled), what ptxas 13 accepts (registers at entry), CUDA C++ programming
guide (limits by compute capability, portable cluster size).
"""

from __future__ import annotations

from search_space.gpu_device import GpuDevice
from search_space.plan import gemm_cuda_rules as rules
from search_space.plan.gemm_cuda_shape import FP8, Shape
from search_space.plan.gemm_sm90_tile import BLOCK_ROWS, DIRECT, STEP, TMA, Panel, Tile
from search_space.schedule import Schedule
from search_space.violation import Number, Violation

MOST_PITCH = 2**40
"""Bytes between rows or batch entries of what TMA reaches are below it."""
_MOST_N = 256
_MOST_CLUSTER = 8
"""Blocks; more are not portable and need an attribute at launch."""
_MOST_CONSUMERS = 3
_BESIDE_PRODUCT = 26
"""Registers that ptxas wants beside one wgmma's sums at entry, before setmaxnreg (else C7602)."""
_BESIDE_SUMS = 30
"""Addresses, counters and what a part needs on its way out; from compiles."""
_PATTERN_ROWS = 8
"""After so many rows the pattern of a swizzle repeats."""


def legality(shape: Shape, device: GpuDevice, t: Tile, s: Schedule) -> list[Violation]:
    """Why the schedule is not legal; empty: it is."""
    if found := _roles(t):
        return found  # the rest would divide what does not divide
    found += _product(t) + _cluster(t)
    left, right = t.panels(shape)
    for x, panel in (("a", left), ("b", right)):
        found += _panels(x, panel, t)
    found += _registers(t, shape) + _memory(shape, device, t) + _grid(shape, t, s)
    return found + _store(shape, t, s) + _order(t, s) + rules.split(shape, t.bk, s)


def _roles(t: Tile) -> list[Violation]:
    found = []
    if t.consumers > _MOST_CONSUMERS:
        message = f"{t.consumers_m} x {t.consumers_n} consumers; a block has {_MOST_CONSUMERS} at most here"
        found.append(Violation("consumers", message, {"consumers": t.consumers, "most": _MOST_CONSUMERS}))
    if t.pingpong:
        if (t.consumers_m, t.consumers_n) != (2, 1):
            message = f"two consumers take turns, a tile each, not {t.consumers_m} x {t.consumers_n}"
            found.append(Violation("pingpong", message, {"consumers": t.consumers}))
        if not t.persistent:
            message = "consumers that take turns need a block that computes tile after tile"
            found.append(Violation("pingpong", message, {"persistent": "no"}))
    elif t.rows % (t.consumers_m * BLOCK_ROWS):
        numbers: dict[str, Number] = {"bm": t.bm, "consumers_m": t.consumers_m, "rows": BLOCK_ROWS}
        message = f"{t.consumers_m} consumers do not share bm = {t.bm} in wgmmas of {BLOCK_ROWS} rows"
        found.append(Violation("warpgroup_tile", message, numbers))
    if not t.pingpong and t.bn % (t.consumers_n * 8):
        numbers = {"bn": t.bn, "consumers_n": t.consumers_n}
        message = f"{t.consumers_n} consumers do not share bn = {t.bn} in columns of 8 (n of wgmma)"
        found.append(Violation("warpgroup_tile", message, numbers))
    if t.bm > BLOCK_ROWS and t.bm % BLOCK_ROWS:
        message = f"bm = {t.bm} is no whole wgmmas of {BLOCK_ROWS} rows"
        found.append(Violation("warpgroup_tile", message, {"bm": t.bm}))
    return found


def _product(t: Tile) -> list[Violation]:
    found = []
    if t.wn > _MOST_N:
        message = f"n of wgmma is at most {_MOST_N}, not {t.wn}"
        found.append(Violation("product", message, {"n": t.wn, "most": _MOST_N}))
    if t.bk % STEP:
        message = f"bk = {t.bk} is no whole steps of {STEP} (k of wgmma)"
        found.append(Violation("depth", message, {"bk": t.bk, "step": STEP}))
    return found


def _cluster(t: Tile) -> list[Violation]:
    if t.cluster <= _MOST_CLUSTER:
        return []
    message = f"clusters of {t.cluster_m} x {t.cluster_n} = {t.cluster} blocks; portable are {_MOST_CLUSTER}"
    return [Violation("cluster", message, {"cluster": t.cluster, "most": _MOST_CLUSTER})]


def _panels(x: str, p: Panel, t: Tile) -> list[Violation]:
    """Whether an operand's tile is whole panels of whole slices."""
    found = []
    what = "k" if p.k_contiguous else {"a": "m", "b": "n"}[x]
    size = p.depth if p.k_contiguous else p.loaded
    numbers: dict[str, Number] = {"size": size, "panel": p.width, f"swizzle_{x}": p.swizzle}
    if size % p.width:
        message = f"swizzle_{x} = {p.swizzle}: {size} of {what} are no whole rows of {p.width} elements"
        found.append(Violation("swizzle", message, numbers))
    elif x == "b" and not p.k_contiguous and t.wn % p.width:
        message = f"swizzle_b = {p.swizzle}: a consumer's {t.wn} columns are no whole rows of {p.width}"
        found.append(Violation("swizzle", message, numbers | {"columns": t.wn}))
    if p.across % (p.slices * _PATTERN_ROWS):
        message = (
            f"{p.slices} blocks of a cluster do not share {p.across} rows of {x} in patterns of"
            f" {_PATTERN_ROWS} rows"
        )
        found.append(Violation("slices", message, {"rows": p.across, "slices": p.slices}))
    return found


def _registers(t: Tile, shape: Shape) -> list[Violation]:
    """Registers at entry, after setmaxnreg, and in the pool that they come from."""
    found = []
    entry, warpgroups = t.entry_registers, 1 + t.consumers
    one = t.wn // 2 + _BESIDE_PRODUCT
    if one > entry:
        numbers: dict[str, Number] = {"needed": one, "most": entry, "threads": t.threads, "n": t.wn}
        message = f"a wgmma of n = {t.wn} needs {one} registers at entry; {t.threads} threads have {entry}"
        found.append(Violation("entry_registers", message, numbers))
    if t.producer_registers:
        pool, wanted = entry * warpgroups, t.producer_registers + t.consumers * t.consumer_registers
        if wanted > pool:
            message = (
                f"{t.producer_registers} + {t.consumers} x {t.consumer_registers} registers are over the pool"
                f" of {pool} (setmaxnreg would wait for ever)"
            )
            found.append(Violation("register_pool", message, {"needed": wanted, "most": pool}))
        if t.producer_registers > entry:
            message = f"the producer cannot go down from {entry} registers to {t.producer_registers}"
            found.append(Violation("register_pool", message, {"entry": entry}))
    needed, there = t.sums + _BESIDE_SUMS, t.consumer_room()
    if needed > there:
        message = f"a consumer's {t.wm} x {t.wn} sums need about {needed} registers; a thread has {there}"
        found.append(Violation("registers", message, {"needed": needed, "most": there, "sums": t.sums}))
    return found


def _memory(shape: Shape, device: GpuDevice, t: Tile) -> list[Violation]:
    needed, there = t.smem_bytes(shape), device.smem_block_bytes
    if needed <= there:
        return []
    a, b = t.stage_bytes
    message = (
        f"{t.stages} stages of {a} + {b} bytes and {t.sharers} x {t.out_bytes(shape)} on their way out need"
        f" {needed} bytes of shared memory; a block has {there}"
    )
    return [Violation("shared_memory", message, {"needed": needed, "most": there})]


def _grid(shape: Shape, t: Tile, s: Schedule) -> list[Violation]:
    """Blocks of whole clusters: what of one lies outside takes part all the same."""
    m, n = t.extents(shape)
    rows = -(-m // (t.bm * t.cluster_m)) * t.cluster_m
    return rules.grid(shape, rows, -(-n // (t.bn * t.cluster_n)) * t.cluster_n, s)


def _store(shape: Shape, t: Tile, s: Schedule) -> list[Violation]:
    """Whether results can leave like that."""
    found = []
    if t.wn % t.store_columns:
        message = f"a consumer's {t.wn} columns are no whole parts of {t.store_columns}"
        found.append(Violation("store_columns", message, {"columns": t.wn, "part": t.store_columns}))
    if t.store != TMA and t.store_panels != 1:
        found.append(Violation("store_panels", "store_panels is 1 without TMA", {"store": t.store}))
    most = 1 if t.store == DIRECT and t.swap else 2
    if t.store == TMA:
        found += _store_by_tma(shape, t, s)
    elif t.store == DIRECT and t.vector > most:
        message = f"a lane has {most} neighbours of a row of the result, not {t.vector} (wgmma)"
        found.append(Violation("vector", message, {"vector": t.vector, "most": most}))
    return found + rules.store(shape, 16 if t.swap else t.store_columns, t.vector)


def _store_by_tma(shape: Shape, t: Tile, s: Schedule) -> list[Violation]:
    found = []
    if t.swap:
        message = "swap_ab: panels for TMA lie along the product's columns, which are rows of the result"
        found.append(Violation("store_tma", message, {"swap_ab": "yes"}))
    if shape.out in FP8:
        message = f"panels for TMA are written by stmatrix, 16 bits an element, not {shape.out}"
        found.append(Violation("store_tma", message, {"dtype.c": shape.out}))
    if s.integer("split_k") > 1 and s.text("split_sum") == "second":
        message = "TMA stores into the result; parts of k for a second entry go to a workspace"
        found.append(Violation("store_tma", message, {"split_sum": "second"}))
    if t.vector != 2:
        message = f"beside panels for TMA a lane reads 2 neighbours, not {t.vector}"
        found.append(Violation("vector", message, {"vector": t.vector}))
    row = t.store_columns * shape.out_size
    if row > 128:
        message = f"rows of a panel have 128 bytes at most (swizzle), not {row}"
        found.append(Violation("store_tma", message, {"row_bytes": row, "most": 128}))
    if shape.n * shape.out_size % 16:
        # It writes up to the next 16 bytes of a row, whatever lies there.
        row = shape.n * shape.out_size
        message = f"rows of the result are {row} bytes, no multiple of the 16 that a store by TMA rounds to"
        found.append(Violation("store_tma", message, {"row_bytes": row, "unit_bytes": 16}))
    pitch = shape.out_pitch * shape.out_size
    if shape.m * pitch >= MOST_PITCH:
        message = f"batch entries of the result are {shape.m * pitch} bytes apart, not below 2^40 (TMA)"
        found.append(Violation("store_tma", message, {"pitch_bytes": shape.m * pitch, "most": MOST_PITCH}))
    return found + rules.aligned("store", "rows of out", pitch, shape.out_align_bytes, 16)


def _order(t: Tile, s: Schedule) -> list[Violation]:
    group = s.integer("group")
    if s.text("raster") == "hilbert" and group & (group - 1):
        message = f"the side of a Hilbert square is a power of two, not {group}"
        return [Violation("raster", message, {"group": group})]
    return []
