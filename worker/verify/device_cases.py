"""At which sizes around its tiles does a GPU kernel have to be right, beside the problem itself?

GPU kernels copy 16 bytes at a time and are not for ragged pitches, so a list of odd sizes alone would skip
them everywhere: each edge is here with sizes of 8 and of 16 elements as well. What a plan is not for is
skipped, and recorded as skipped.
"""

from __future__ import annotations

from typing import Any

from rooftile.problem import Gemm, element_bytes

from worker.verify.cases import Case, resized, scalar

_MOST_FLOPS_OF_FULL_NEIGHBOUR = 4_000_000_000

# name, m, n, k, batch, pitch beyond packed in elements. Bases: packed ones end at the margin, others begin
# 256 in.
_SIZES: tuple[tuple[str, int, int, int, int, int], ...] = (
    ("ragged", 37, 133, 261, 1, 0),
    ("ragged pitched", 66, 77, 130, 1, 3),
    ("eights", 65, 136, 264, 1, 8),
    ("sixteens", 129, 272, 208, 1, 16),
    ("row", 1, 264, 272, 1, 0),
    ("column", 257, 16, 64, 1, 16),
    ("tiles", 300, 528, 144, 1, 0),
    ("short k", 130, 144, 16, 1, 0),
    ("one step and a bit", 64, 64, 80, 1, 16),
    ("long k", 17, 32, 4112, 1, 0),
    ("k0", 7, 32, 0, 1, 0),
    ("k1", 3, 259, 1, 1, 0),
    ("one", 1, 1, 1, 1, 0),
    ("batched", 33, 48, 80, 3, 16),
)


def device_neighbours(problem: Gemm, seed: int) -> list[Case]:
    """The neighbours, the problem's own n and k at another m among them."""
    item = max(element_bytes(getattr(problem.dtype, name)) for name in ("a", "b", "c"))
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    sizes = list(_SIZES)
    if m > 1 and 2 * 5 * n * k <= _MOST_FLOPS_OF_FULL_NEIGHBOUR and n and k:
        sizes.append(("other m", 5 if m != 5 else 3, n, k, batch, 0))
    cases = []
    alphas, betas = (1.0, -1.25, 0.5), (1.0, 0.5, -2.0)
    if problem.dtype.acc == "s32":  # integers in, integers out: so are the scalars
        alphas, betas = (1.0, -2.0, 3.0), (1.0, 2.0, -1.0)
    for index, (name, m_, n_, k_, batch_, pad) in enumerate(sizes):
        how: dict[str, Any] = (
            {"placement": "start", "offset": 256} if pad else {"placement": "end", "offset": 0}
        )
        align = 16 if all(x % 16 == 0 for x in (n_, k_)) else 8 * item if n_ % 8 == k_ % 8 == 0 else item
        cases.append(
            Case(
                name,
                resized(problem, m_, n_, k_, batch_),
                seed=_seed(seed, 2 + index),
                alpha=scalar(problem.alpha, alphas[index % 3]),
                beta=scalar(problem.beta, betas[index % 3]),
                pad=pad,
                align=max(item, align),
                **how,
            )
        )
    if problem.beta != "zero":
        cases.append(
            Case(
                "out is c", resized(problem, 72, 80, 96, 1), "start", 256, _seed(seed, 90),
                scalar(problem.alpha, 1.0), scalar(problem.beta, 1.0), pad=16, align=16, out_is_c=True,
            )
        )  # fmt: skip
    return cases


def device_mains(problem: Gemm, seed: int) -> tuple[Case, Case]:
    """The problem itself: against the upper margin with odd scalars, and as it will be timed, where
    cudaMalloc puts arrays. A whole alpha and beta where integers come out."""
    whole = problem.dtype.acc == "s32"
    align = max(problem.align.a, problem.align.b, problem.align.c)
    first = Case(
        "main/end", problem, "end", 0, _seed(seed, 0), scalar(problem.alpha, -2.0 if whole else -0.75),
        scalar(problem.beta, 2.0 if whole else 0.5), align=align,
    )  # fmt: skip
    return first, Case(
        "main/start",
        problem,
        "start",
        0,
        _seed(seed, 1),
        scalar(problem.alpha, 1.0),
        scalar(problem.beta, 1.0),
    )


def _seed(seed: int, index: int) -> int:
    return (seed * 1_000_003 + index) & 0x7FFF_FFFF_FFFF_FFFF
