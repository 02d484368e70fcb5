"""How do the parts of a CUDA GEMM add up to a time: steps of k, waves of blocks, what leaves, launches?

The cost models of the families say what a block does; this says how long the device takes, and what for.
Blocks that an SM holds share its tensor cores, its shared-memory port and its part of L2 and memory; a step
of k takes as long as the slowest of these. A wave ends with its slowest SM, and the last one may be small.
"""

from __future__ import annotations

from typing import NamedTuple

from search_space.family import Estimate

LAUNCH_US = 2.5
"""From a launch in a graph to the kernel's first instruction, and its end; public microbenchmarks: 2 to 3."""
SECOND_LAUNCH_US = 1.5
"""Another kernel, or a fill, behind the first one in a graph."""
MEMORY_SHARE = 0.93
"""Of the data sheet's memory rate that long streams reach: 3129 of 3352 GB/s by a GEMM of m = 1, n = 129280,
k = 7168 on an H100 SXM5 (bench/data/recorded_targets.csv)."""
COLD_SHARE = 0.4
"""What lies in L2 when a cold kernel begins was written, and has to leave before what is read has room: of
the first bytes read, up to the size of L2, this share more. Fitted to the rows of m = 1 of the same file,
which reach 2.3 TB/s up to 75 MB, and 3.2 TB/s beyond."""
MIXED_SHARE = 0.75
"""Of memory's rate where reads of C and results take turns: the rows with acc=1 of the same file."""
SECOND_PART = 0.1
"""Units overlap, but not wholly: of the second slowest's time so much is seen."""
TENSOR_CORES = 4
"""Of an SM, from sm_70 on (8 smaller ones there)."""
ONE_WARP = 0.9
"""Of its rate that a tensor core reaches with a single warp, whose products wait for each other."""
SHARED_SM = 0.6
"""Of a block's start and end that is seen where other blocks of its SM compute meanwhile."""


class Rates(NamedTuple):
    """What one SM, or all of them, do in a microsecond."""

    flops: float
    """Of one SM's tensor cores, as far as the instruction reaches them."""
    smem: float
    """Bytes through an SM's shared-memory port."""
    l2_sm: float
    """Bytes from L2 to an SM."""
    l2_all: float
    """Bytes from L2 to all SMs."""
    memory: float
    """Bytes from and to memory."""


class Step(NamedTuple):
    """What one block asks for in one step of k."""

    mma_us: float
    """On an SM's tensor cores, when they are kept busy."""
    warps: int
    """That multiply; an SM has four tensor cores, and two warps on each hide its latency."""
    beside_us: float
    """Of every step whatever it computes: barriers, addresses."""
    smem_bytes: float
    l2_bytes: float
    memory_bytes: float
    latency_us: float
    """From one step to the next at least: a copy's way from memory, over the copies that are under way."""


class Blocks(NamedTuple):
    """How many there are, and how many at once. A unit is a block, or a cluster of blocks."""

    units: int
    blocks_a_unit: int
    at_once: int
    """Units that all SMs hold together."""
    sms: int
    """That such units can use."""
    persistent: bool
    """A block computes tile after tile: its start is paid once."""


class Kernel(NamedTuple):
    """A whole schedule."""

    blocks: Blocks
    steps: int
    step: Step
    start_us: float
    """Of a block until its first product: barriers, and the first copies' way from memory."""
    out_bytes: float
    """Of a block: results that leave, and what is read for them."""
    out_share: float
    """Of memory's rate that they reach."""
    store_us: float
    """Of a block beside their bytes: conversion, shared memory, stores that are not whole lines."""
    exposed: float
    """Of the epilogue that nothing overlaps, 0 to 1."""
    flops: float
    """Of the problem, not of its tiles."""
    operand_bytes: float
    """A and B, as often as they come from memory."""
    cold_bytes: float
    """Of them that find L2 full."""
    launch_us: float
    reduce_us: float
    """Adding up the parts of k."""


class _Wave(NamedTuple):
    main_us: float
    mma_us: float
    start_us: float
    store_us: float


def predict(kernel: Kernel, rates: Rates) -> Estimate:
    """The time; its terms add up to it."""
    b, step = kernel.blocks, kernel.step
    full, rest = divmod(b.units, b.at_once)
    blocks = b.units * b.blocks_a_unit
    main = products = starts = store = 0.0
    if full:
        wave = _wave(kernel, rates, b.at_once)
        main, products, store = full * wave.main_us, full * wave.mma_us, full * wave.store_us
        starts = wave.start_us * (1 if b.persistent else full)
    if rest:  # it spreads over the SMs
        wave = _wave(kernel, rates, rest)
        main, products, store = main + wave.main_us, products + wave.mma_us, store + wave.store_us
        starts += 0.0 if b.persistent and full else wave.start_us

    memory = (kernel.operand_bytes + COLD_SHARE * kernel.cold_bytes) / rates.memory
    padded = blocks * kernel.steps * step.mma_us / b.sms
    ideal = min(padded, kernel.flops / (rates.flops * b.sms))
    terms = {
        "launch": kernel.launch_us,
        "start": starts,
        "compute": ideal,
        "padding": padded - ideal,
        "wave tail": products - padded,
        "waiting": max(main, memory) - products,
        "epilogue": store,
        "reduce": kernel.reduce_us,
    }
    all_steps = blocks * kernel.steps
    demands = {
        "tensor cores": products,
        "shared memory": all_steps * step.smem_bytes / (rates.smem * b.sms),
        "L2": all_steps * step.l2_bytes / min(rates.l2_sm * b.sms, rates.l2_all),
        "memory": memory + blocks * kernel.out_bytes / (rates.memory * kernel.out_share),
        "latency": (full + (rest > 0)) * kernel.steps * step.latency_us + starts,
        "launch": kernel.launch_us + kernel.reduce_us,
    }
    return Estimate(sum(terms.values()), max(demands, key=demands.__getitem__), terms, demands)


def _wave(kernel: Kernel, rates: Rates, units: int) -> _Wave:
    """So many units at work at once; the SM that has most blocks of them is the last to end."""
    b, step = kernel.blocks, kernel.step
    blocks = units * b.blocks_a_unit
    held = -(-blocks // b.sms)
    warps = held * step.warps
    mma = held * step.mma_us
    if warps < 2 * TENSOR_CORES:
        mma /= ONE_WARP * min(1.0, warps / TENSOR_CORES)
    *_, second, first = sorted(
        (
            mma + step.beside_us,
            held * step.smem_bytes / rates.smem,
            max(held * step.l2_bytes / rates.l2_sm, blocks * step.l2_bytes / rates.l2_all),
            blocks * step.memory_bytes / rates.memory,
            step.latency_us,
        )
    )
    main = kernel.steps * (first + SECOND_PART * second)
    leaving = blocks * kernel.out_bytes / (rates.memory * kernel.out_share)
    leaving = max(leaving, held * kernel.out_bytes / rates.l2_sm) + held * kernel.store_us
    # What is longer than the main loop that covers it is seen all the same.
    seen = max(kernel.exposed * leaving, (1.0 - kernel.exposed) * (leaving - main))
    # Blocks that share an SM start, and end, while the others compute.
    overlap = 1.0 if held == 1 else SHARED_SM
    return _Wave(main, kernel.steps * mma, kernel.start_us * overlap, seen * overlap)


def reduce_us(part_bytes: float, last_block: bool, rates: Rates) -> float:
    """Adding up the parts of k, and the launch before (counters are zeroed) or behind it. They are read
    again, many of them still in L2; the last block of a tile does so alone while the others have ended."""
    return SECOND_LAUNCH_US + part_bytes / rates.memory * (1.0 if last_block else 0.7)


def operand_bytes(
    sizes: tuple[float, float],
    grid: tuple[int, int],
    tiles_at_once: int,
    group: int,
    along_m: bool,
    l2_bytes: float,
) -> float:
    """A and B (`sizes`, bytes) as often as they come from memory, by the order of tiles.

    `grid`: tiles below and beside each other. Bands are `group` tiles high (along_m) or wide; a band's own
    operand stays in L2 where half of it holds that, else it comes again with each wave; the other operand
    passes by once for each band, unless it stays in L2 as a whole.
    """
    (own, passing), (along, across) = (sizes, grid) if along_m else (sizes[::-1], grid[::-1])
    if own + passing <= l2_bytes:
        return own + passing
    band = min(group, along)
    bands = -(-along // band)
    waves_a_band = max(1.0, band * across / max(tiles_at_once, 1))
    if own / along * band > l2_bytes / 2:
        own *= waves_a_band
    if passing > l2_bytes / 2:
        # Bands that are computed at once share it.
        passing *= max(1.0, min(bands, along * across / max(tiles_at_once, band)))
    return own + passing
