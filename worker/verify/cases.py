"""Which sizes, pitches, alignments, scalars and seeds does a candidate have to get right?

The problem itself twice (each placement of the buffers, other seed, other scalars), and ragged neighbours: an
artifact takes its sizes at run time, so it is run at sizes around the edges of every tile too. A neighbour
that the plan says it is not for (`valid_for`) is skipped and recorded as skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooftile.problem import Gemm, element_bytes

# Neighbours are there for edges, not for work: together they cost a few milliseconds.
_MOST_FLOPS_OF_FULL_NEIGHBOUR = 1_000_000_000


@dataclass(frozen=True)
class Case:
    """One run to be proved. Pitches are `pad` elements more than packed (or the problem's own)."""

    name: str
    problem: Gemm
    placement: str  # end | start, see arena
    offset: int  # bytes into the page, for start
    seed: int
    alpha: float
    beta: float
    pad: int = 0
    align: int = 1  # bytes that the base is a multiple of, for end
    out_is_c: bool = False
    shares_b_of: str | None = None
    odd: bool = False
    """NaN, and infinities where the result has them, are among the inputs."""

    def names(self) -> dict[str, int]:
        """m n k batch, pitches and steps, as a LaunchPlan wants them (all but threads)."""
        names = self.problem.plan_names()
        if self.pad == 0:
            return names
        rows = {x: getattr(self.problem, getattr(self.problem.layout, x)[0]) for x in "abc"}
        for operand in ("a", "b", "c", "out", "residual"):
            names[f"ld_{operand}"] += self.pad
            letter = operand if operand in "ab" else "c"
            # A step that is no multiple of the pitch: batch entries need not lie side by side. Where the
            # pitch keeps rows on 16 elements, so does the step: vector copies are for nothing else.
            more = 4 if self.pad % 16 else 16
            names[f"stride_{operand}"] = rows[letter] * names[f"ld_{operand}"] + more
        return names

    def to_json(self) -> dict[str, Any]:
        p = self.problem
        return {
            "case": self.name,
            "m": p.m,
            "n": p.n,
            "k": p.k,
            "batch": p.batch,
            "placement": self.placement,
            "offset_bytes": self.offset if self.placement == "start" else None,
            "pad": self.pad,
            "alpha": self.alpha,
            "beta": self.beta,
            "out_is_c": self.out_is_c,
            "seed": self.seed,
        }


def resized(problem: Gemm, m: int, n: int, k: int, batch: int) -> Gemm:
    """The same computation at other sizes, packed."""
    return Gemm(
        m,
        n,
        k,
        problem.dtype,
        batch=batch,
        layout=problem.layout,
        scale=problem.scale,
        alpha=problem.alpha,
        beta=problem.beta,
        epilogue=problem.epilogue,
    )


def scalar(kind: str, free: float) -> float:
    """The value of an alpha or beta that the problem fixes, or `free` where it may be any."""
    return {"zero": 0.0, "one": 1.0}.get(kind, free)


def main_cases(problem: Gemm, seed: int) -> tuple[Case, Case]:
    """The problem itself: against the end guard with odd scalars, and as it will be timed."""
    return (
        Case(
            "main/end",
            problem,
            "end",
            0,
            _seed(seed, 0),
            scalar(problem.alpha, -0.75),
            scalar(problem.beta, 0.5),
            align=max(problem.align.a, problem.align.b, problem.align.c),
        ),
        Case(
            "main/start",
            problem,
            "start",
            timing_offset(problem),
            _seed(seed, 1),
            scalar(problem.alpha, 1.0),
            scalar(problem.beta, 1.0),
        ),
    )


def timing_offset(problem: Gemm) -> int:
    """Where in a page buffers begin when timed: 16 bytes in, as glibc gives them, or as promised."""
    return max(16, problem.align.a, problem.align.b, problem.align.c)


def neighbours(problem: Gemm, seed: int) -> list[Case]:
    """Ragged sizes, pitches, base addresses +0, +16, +256 and one element in, k = 0, m = 1, n = 1."""
    item = max(element_bytes(problem.dtype.a), element_bytes(problem.dtype.b), element_bytes(problem.dtype.c))
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    sizes: list[tuple[str, int, int, int, int, dict[str, Any]]] = [
        ("ragged", min(m, 37) | 1, 133, 261, 1, {"placement": "end", "align": item}),
        ("pitched", min(m, 13) + 1, 77, 130, 1, {"placement": "start", "offset": 256, "pad": 8}),
        ("row", 1, 130, 259, 1, {"placement": "end", "align": 16}),
        ("column", 13, 1, 64, 1, {"placement": "start", "offset": 0, "pad": 8}),
        ("k0", 7, 33, 0, 1, {"placement": "end", "align": item}),
        ("k1", 3, 259, 1, 1, {"placement": "start", "offset": item}),
        ("blocks", 150, 530, 290, 1, {"placement": "start", "offset": 16 + item, "pad": 3}),
        ("one", 1, 1, 1, 1, {"placement": "end", "align": item}),
        ("batched", 5, 48, 40, 2, {"placement": "start", "offset": 16, "pad": 8}),
    ]
    if m > 1 and 2 * 5 * n * k <= _MOST_FLOPS_OF_FULL_NEIGHBOUR and n and k:
        # Another m at the problem's own n and k: what a plan made for exactly these can be asked.
        sizes.append(
            ("other m", 1 if m != 1 else 3, n, k, batch, {"placement": "start", "offset": 16, "b": True})
        )
    cases: list[Case] = []
    for index, (name, m_, n_, k_, batch_, how) in enumerate(sizes):
        alphas, betas = (1.0, -1.25, 0.5), (1.0, 0.5, -2.0)
        cases.append(
            Case(
                name,
                resized(problem, m_, n_, k_, batch_),
                how["placement"],
                how.get("offset", 0),
                _seed(seed, 2 + index),
                scalar(problem.alpha, alphas[index % 3]),
                scalar(problem.beta, betas[index % 3]),
                pad=how.get("pad", 0),
                align=how.get("align", 1),
                shares_b_of="main/start"
                if how.get("b") and problem.batch == 1 and problem.ld.b is None
                else None,
            )
        )
    if problem.beta != "zero":
        cases.append(
            Case(
                "out is c",
                resized(problem, 9, 70, 90, 1),
                "start",
                16,
                _seed(seed, 90),
                scalar(problem.alpha, 1.0),
                scalar(problem.beta, 1.0),
                pad=8,
                out_is_c=True,
            )
        )
    return cases


def _seed(seed: int, index: int) -> int:
    return (seed * 1_000_003 + index) & 0x7FFF_FFFF_FFFF_FFFF
