"""Which GEMM do the CUDA templates see: operands in their order, sizes by name, facets as macros?

The templates write rows that are contiguous along n. A result stored n x m is the transpose of that: the same
product with A and B exchanged, its bias along the rows. The families work on the exchanged problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rooftile.problem import DTYPE_BITS, Gemm, Problem
from rooftile.problem.gemm_fields import ScaleSpec

from search_space.violation import Violation

_SCALARS = {"zero": 0, "one": 1, "any": 2}
_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
_SCALES = {"tensor": 1, "row": 2}
FP8 = ("e4m3", "e5m2")


@dataclass(frozen=True)
class Side:
    """A or B as the template sees it."""

    operand: str
    """The problem's name of it: a or b."""
    dtype: str
    k_contiguous: bool
    pitch: int
    """Elements between its rows for this problem."""
    align_bytes: int
    scale: int
    """0 none, 1 one for all, 2 one for each row of A or column of B."""

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Shape:
    """A GEMM in the template's orientation. `swapped`: its rows are the problem's n."""

    m: int
    n: int
    k: int
    batch: int
    swapped: bool
    a: Side
    b: Side
    out: str
    """Element type of out, C and residual."""
    bias_type: str
    out_pitch: int
    out_align_bytes: int
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
        sizes, layout, epilogue = problem.sizes(), problem.layout, problem.epilogue
        swapped = layout.c == "nm"
        sides = {
            x: Side(
                operand=x,
                dtype=getattr(problem.dtype, x),
                k_contiguous=getattr(layout, x)[1] == "k",
                pitch=sizes[f"ld_{x}"],
                align_bytes=getattr(problem.align, x),
                scale=_scale(getattr(problem.scale, x)),
            )
            for x in "ab"
        }
        out = problem.dtype.c
        return cls(
            m=problem.n if swapped else problem.m,
            n=problem.m if swapped else problem.n,
            k=problem.k,
            batch=problem.batch,
            swapped=swapped,
            a=sides["b" if swapped else "a"],
            b=sides["a" if swapped else "b"],
            out=out,
            bias_type="bf16" if out in FP8 else out,
            out_pitch=sizes["ld_c"],
            out_align_bytes=problem.align.c,
            alpha=_SCALARS[problem.alpha],
            beta=_SCALARS[problem.beta],
            bias=0 if epilogue.bias is None else 2 if swapped else 1,
            activation=_ACTIVATIONS[epilogue.activation],
            residual=epilogue.residual,
        )

    @property
    def names(self) -> dict[str, str]:
        """The template's sizes and operands -> the problem's."""
        m, n = ("n", "m") if self.swapped else ("m", "n")
        return {"m": m, "n": n, "k": "k", "a": self.a.operand, "b": self.b.operand}

    @property
    def out_size(self) -> int:
        """Bytes of an element of out."""
        return DTYPE_BITS[self.out] // 8

    @property
    def k_work(self) -> int:
        """Products of each sum that are computed: none where alpha is `zero`."""
        return 0 if self.alpha == 0 else self.k

    def defines(self) -> dict[str, str | int]:
        """Types and facets as macros of the templates (kernels/cuda/gemm)."""
        return {
            "RT_A": self.a.dtype.upper(),
            "RT_B": self.b.dtype.upper(),
            "RT_OUT": self.out.upper(),
            "RT_BIAS_TYPE": self.bias_type.upper(),
            "RT_A_K_CONTIGUOUS": int(self.a.k_contiguous),
            "RT_B_K_CONTIGUOUS": int(self.b.k_contiguous),
            "RT_ALPHA": self.alpha,
            "RT_BETA": self.beta,
            "RT_BIAS": self.bias,
            "RT_ACTIVATION": self.activation,
            "RT_RESIDUAL": int(self.residual),
            "RT_SCALE_A": self.a.scale,
            "RT_SCALE_B": self.b.scale,
        }


def _scale(spec: ScaleSpec | None) -> int:
    return 0 if spec is None else _SCALES[str(spec.block)]


def refused_scales(problem: Gemm) -> list[Violation]:
    """Scales that are not one factor a tensor, row of A or column of B: others change within a sum."""
    found = []
    for x in "ab":
        spec = getattr(problem.scale, x)
        if spec is not None and (spec.dtype != "f32" or spec.block not in _SCALES):
            numbers = {f"scale.{x}.dtype": spec.dtype, f"scale.{x}.block": spec.block}
            message = f"scale.{x}: it takes f32 scales a tensor or row, not {spec.dtype} by {spec.block}"
            found.append(Violation("scale", message, numbers))
    return found
