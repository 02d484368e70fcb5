"""On which small problems does the emulator judge a schedule of gemm_sm90?

As for the other CUDA families they keep what a verdict depends on and choose sizes that reach every part of
the code. Besides: tiles of a cluster that lie outside the result, and blocks with one tile and with several
(the prover runs the second and fourth problem as if the device had room for three clusters, the fifth as if
for one)."""

from __future__ import annotations

from rooftile.problem import Gemm, Problem

from search_space.plan.gemm_cuda_plan import Grid
from search_space.plan.gemm_cuda_proof import BATCH, many, more_across, proof_problem
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm90_tile import TMA, Tile

_PRODUCTS = 12_000_000
"""About what the emulator multiplies in a second or two; tiles count whole."""
_MOST_PRODUCTS = 24_000_000
"""Of many tiles with a step each."""


def problems(problem: Problem, shape: Shape, t: Tile, g: Grid, *, hilbert: bool) -> tuple[Problem, ...]:
    """The small problems, most telling first: a long sum; many tiles; less than one; nothing to sum; more
    tiles a block than stages."""
    assert isinstance(problem, Gemm)
    tile = t.rows * t.bn * t.bk * t.cluster
    wanted = 2 * t.stages + 1 if g.splits == 1 else g.splits * (t.stages + 1)
    turns = max(min(wanted, _PRODUCTS // tile), t.stages + 2, g.splits)
    batch = BATCH if shape.batch > 1 else 1
    odd_k = max(t.bk // 2 - 3, 1)
    down, beside, entries = many(g, tile, batch, square=hilbert and g.group == 4)
    steps = g.splits  # each part of k has something
    if t.persistent:
        # A block has several tiles, with more steps in all than two turns of the ring: what is kept from tile
        # to tile shows. In turns each consumer has two, and one of them a third.
        each = down * beside * entries // 3
        # Two steps of each part at least: what is done between them, behind a tile and before another.
        steps = max(steps, 2 * g.splits, min(-(-(2 * t.stages + 1) // each), _PRODUCTS // (tile * each)))
    # One cluster's tiles, of which the last is outside or ragged; clusters below and beside each other; less
    # than one tile; nothing to sum.
    few = (max(t.bm // 4 - 1, 1), max(t.bn // 4 - 1, 1))
    sizes = [
        (_part(t.bm, t.cluster_m), _part(t.bn, t.cluster_n), (turns - 1) * t.bk + odd_k, 1),
        (
            (down - 1) * t.bm * t.cluster_m + 5,
            (beside - 1) * t.bn * t.cluster_n + _part(t.bn, t.cluster_n),
            (steps - 1) * t.bk + odd_k,
            entries,
        ),
        (*few, (g.splits - 1) * t.bk + odd_k, batch),
    ]
    if g.splits == 1:
        m, n = more_across(g, t.bm * t.cluster_m, t.bn * t.cluster_n)
        sizes.append((m + few[0], n + few[1], 0, 1))
    if t.persistent:
        # Each tile has one step (of each part of k), and the ring goes round before the tiles end. Every
        # other one has a few columns alone: its further panels lie outside, and the next tile follows in the
        # same block.
        most = max(_MOST_PRODUCTS // (2 * tile * g.splits), 2)
        turns = min(-(-(t.stages + 1) // 2), most)
        sizes.append(
            ((turns - 1) * t.bm * t.cluster_m + 5, t.bn * t.cluster_n + 8, (g.splits - 1) * t.bk + odd_k, 1)
        )
    found = []
    for rows, columns, k, count in sizes:
        m, n = (columns, rows) if t.swap else (rows, columns)
        if t.store == TMA:
            unit = 16 // shape.out_size
            n = -(-n // unit) * unit
        found.append(proof_problem(problem, shape, g, m, n, k, count))
    return tuple(dict.fromkeys(found))


def _part(extent: int, blocks: int) -> int:
    """A ragged size within a cluster's tiles: of several blocks the last has nothing."""
    return max(extent * max(blocks - 1, 1) - 3, 1)
