"""Which GEMM does the kernel see: operands in its order, sizes by name, static facets?

The templates write rows of C that are contiguous along n. A result stored n x m is the transpose of that: the
same
product with A and B exchanged, bias along the rows. Everything else of the family works on the exchanged
problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rooftile.problem import Gemm, Problem

from search_space.violation import Violation

_SCALARS = {"zero": 0, "one": 1, "any": 2}
_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


@dataclass(frozen=True)
class Shape:
    """A GEMM in the kernel's orientation. `swapped`: its rows are the problem's n."""

    m: int
    n: int
    k: int
    batch: int
    swapped: bool
    a_km: bool
    b_nk: bool
    alpha: int
    beta: int
    bias: int
    activation: int
    residual: bool

    @classmethod
    @lru_cache(maxsize=256)  # a search judges thousands of schedules of one problem
    def of(cls, problem: Problem) -> Shape:
        """The orientation of a problem that the family supports."""
        assert isinstance(problem, Gemm)
        layout, epilogue = problem.layout, problem.epilogue
        swapped = layout.c == "nm"
        bias = 0 if epilogue.bias is None else 2 if swapped else 1
        # The B of the problem is k x n: as rows of its transpose that is "k first", as A stored k x m is.
        a_km = layout.b == "kn" if swapped else layout.a == "km"
        b_nk = layout.a == "mk" if swapped else layout.b == "nk"
        return cls(
            m=problem.n if swapped else problem.m,
            n=problem.m if swapped else problem.n,
            k=problem.k,
            batch=problem.batch,
            swapped=swapped,
            a_km=a_km,
            b_nk=b_nk,
            alpha=_SCALARS[problem.alpha],
            beta=_SCALARS[problem.beta],
            bias=bias,
            activation=_ACTIVATIONS[epilogue.activation],
            residual=epilogue.residual,
        )

    @property
    def names(self) -> dict[str, str]:
        """The kernel's sizes and operands -> the problem's."""
        m, n, a, b = ("n", "m", "b", "a") if self.swapped else ("m", "n", "a", "b")
        return {"m": m, "n": n, "k": "k", "a": a, "b": b}

    def defines(self) -> dict[str, int]:
        """The static facets as macros of the templates (kernels/x86/include/rt_gemm.h)."""
        return {
            "RT_A_KM": int(self.a_km),
            "RT_B_NK": int(self.b_nk),
            "RT_ALPHA": self.alpha,
            "RT_BETA": self.beta,
            "RT_BIAS": self.bias,
            "RT_ACTIVATION": self.activation,
            "RT_RESIDUAL": int(self.residual),
        }


def unsupported(problem: Problem, arch_name: str) -> list[Violation]:
    """Why the family cannot compute the problem on that arch; empty: it can."""
    if not isinstance(problem, Gemm):
        return [Violation("op", f"it computes gemm, not {problem.op}", {"op": problem.op})]
    found: list[Violation] = []
    if not arch_name.startswith("x86-64-"):
        found.append(Violation("arch", f"it runs on x86-64-v3 and x86-64-v4, not on {arch_name}", {}))
    dtypes = {name: getattr(problem.dtype, name) for name in ("a", "b", "acc", "c")}
    if wrong := {f"dtype.{name}": d for name, d in dtypes.items() if d != "f32"}:
        shown = ", ".join(f"{name} {d}" for name, d in wrong.items())
        found.append(Violation("dtype", f"it computes f32 in f32 so far, not {shown}", wrong))
    if problem.scale.a is not None or problem.scale.b is not None:
        found.append(Violation("scale", "f32 operands take no scales", {}))
    return found
