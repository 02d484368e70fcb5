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


def problems(problem: Problem, shape: Shape, g: Grid, bk: int, stages: int) -> tuple[Problem, ...]:
    """The small problems, most telling first."""
    assert isinstance(problem, Gemm)
    m, n = _below(g.bm), _below(g.bn)
    tile = g.bm * g.bn * bk
    wanted = 3 * stages if g.splits == 1 else g.splits * (stages + 1)
    turns = max(min(wanted, _PRODUCTS // tile), stages + 2, g.splits)
    fewest = min(2 * max(g.splits, 1), turns)
    batch = 2 if shape.batch > 1 else 1
    odd_k = max(bk // 2 - 1, 1)
    sizes = [
        (m, n, (turns - 1) * bk + odd_k, 1),
        (g.bm + 1, g.bn + _below(g.bn) // 2, (fewest - 1) * bk + odd_k, batch),
        (_few(g.bm), _few(g.bn), 1 if bk == 1 else odd_k, batch),
        (_few(g.bm), _few(g.bn), 0, 1),
    ]
    if g.splits > 1:
        sizes = [s for s in sizes if s[2] > (g.splits - 1) * bk]  # legal: each part of k has something
    return tuple(dict.fromkeys(proof_problem(problem, shape, g, *s) for s in sizes))


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
