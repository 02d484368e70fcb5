"""On which small problems does the emulator judge a schedule of the CUDA GEMM families?

They keep what a verdict depends on (types, layouts, epilogue, alignment) and choose sizes that reach every
part of the code: several tiles with ragged edges, the ring of stages round about three times, fewer tiles of
k than stages, less than one, none. Rows are padded so that ragged sizes meet the alignment that the schedule
copies with."""

from __future__ import annotations

from rooftile.problem import Gemm, Problem

from search_space.plan.gemm_cuda_plan import Grid
from search_space.plan.gemm_cuda_shape import Shape

_PRODUCTS = 12_000_000
"""About what the emulator multiplies in a second or two; tiles count whole."""
_MOST_PRODUCTS = 32_000_000
"""Of many tiles, with a step or two each: many warps at once are emulated faster."""
BATCH = 3
"""Entries of a batched problem: the third is where a place taken modulo 2 shows."""


def problems(problem: Problem, shape: Shape, g: Grid, bk: int, stages: int) -> tuple[Problem, ...]:
    """The small problems, most telling first: a long sum; many tiles; less than one; nothing to sum."""
    assert isinstance(problem, Gemm)
    m, n = _below(g.bm), _below(g.bn)
    tile = g.bm * g.bn * bk
    wanted = 3 * stages if g.splits == 1 else g.splits * (stages + 1)
    turns = max(min(wanted, _PRODUCTS // tile), stages + 2, g.splits)
    batch = BATCH if shape.batch > 1 else 1
    odd_k = max(bk // 2 - 1, 1)
    least = (g.splits - 1) * bk + odd_k  # each part of k has something
    down, beside, entries = many(g, tile, batch)
    sizes = [
        (m, n, (turns - 1) * bk + odd_k, 1),
        ((down - 1) * g.bm + 1, (beside - 1) * g.bn + _below(g.bn) // 2, least, entries),
        (_few(g.bm), _few(g.bn), least, batch),
    ]
    if g.splits == 1:
        m, n = more_across(g, g.bm, g.bn)
        sizes.append((m + _few(g.bm), n + _few(g.bn), 0, 1))
    return tuple(dict.fromkeys(proof_problem(problem, shape, g, *s) for s in sizes))


def many(g: Grid, tile: int, batch: int, *, square: bool = False) -> tuple[int, int, int]:
    """Tiles below and beside each other, and batch entries. Five tiles along the side that bands are cut
    from: with a group of 2 or 4 there are several bands, the last of them narrower; along the other side too
    where these are cut into squares. Fewer where a step of all parts of k, of `tile` products each, takes
    too long."""
    choices = [(5, 5, batch), (5, 5, 1)] if square else []
    for across, along, entries in (*choices, (5, 3, batch), (5, 2, batch), (3, 2, batch), (3, 2, 1)):
        if across * along * entries * g.splits * tile <= _MOST_PRODUCTS:
            break
    return (across, along, entries) if g.along_m else (along, across, entries)


def more_across(g: Grid, m: int, n: int) -> tuple[int, int]:
    """One tile of (m, n) more on the side that has fewer among `many`: where there are more of them, rows
    taken for columns do not show."""
    return (0, n) if g.along_m else (m, 0)


def _below(extent: int) -> int:
    """A ragged size a little below the tile's."""
    return max(extent - 3, 1)


def _few(extent: int) -> int:
    return max(extent // 4 - 1, 1)


def proof_problem(problem: Gemm, shape: Shape, g: Grid, m: int, n: int, k: int, batch: int) -> Gemm:
    if shape.swapped:
        m, n = n, m
    size = {"m": m, "n": n, "k": k}
    units = {
        shape.a.operand: max(g.copy_a_bytes // shape.a.size, 1),
        shape.b.operand: max(g.copy_b_bytes // shape.b.size, 1),
        "c": max(g.out_bytes // shape.out_size, 1),
    }
    # One unit more than the row needs: rows that touch would hide a write past the end of one.
    ld = {x: (-(-size[getattr(problem.layout, x)[1]] // unit) + 1) * unit for x, unit in units.items()}
    return Gemm(
        m,
        n,
        k,
        problem.dtype,
        batch=batch,
        layout=problem.layout,
        ld=ld,
        align=problem.align,
        scale=problem.scale,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=problem.epilogue,
    )
