"""What is a GEMM problem: its defaults, its identity, its sizes and its work?

    out = activation(alpha * A @ B + beta * C + bias) + residual        (per batch entry)

`bias` is one row of n values shared by every batch entry; `residual` and C have out's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rooftile.errors import FieldError
from rooftile.problem.canonical import canonical_json, sha256_key
from rooftile.problem.dtypes import DTYPE_BITS, FP8, SCALE_DTYPE_BITS, one_of, storage_bytes
from rooftile.problem.fields import fits_in_memory, whole
from rooftile.problem.gemm_fields import (
    DEFAULT_ALIGN_BYTES,
    DEFAULT_C,
    SCALARS,
    Epilogue,
    GemmAlign,
    GemmDtypes,
    GemmLayout,
    GemmLd,
    GemmScale,
    align_of,
    dtypes_of,
    epilogue_of,
    layout_of,
    ld_of,
    scale_of,
)

if TYPE_CHECKING:
    from rooftile.problem.layer import Layer

GEMM_FIELDS = (
    "schema", "op", "batch", "m", "n", "k", "dtype", "layout", "ld", "align", "scale", "alpha", "beta",
    "epilogue",
)  # fmt: skip


@dataclass(frozen=True, init=False)
class Gemm:
    """One GEMM problem, written out in full. The constructor takes the short forms of the JSON."""

    m: int
    n: int
    k: int
    dtype: GemmDtypes
    batch: int
    layout: GemmLayout
    ld: GemmLd
    align: GemmAlign
    scale: GemmScale
    alpha: str
    beta: str
    epilogue: Epilogue

    op: ClassVar[str] = "gemm"

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: str | Mapping[str, str] | GemmDtypes,
        *,
        batch: int = 1,
        layout: Mapping[str, str] | GemmLayout | None = None,
        ld: Mapping[str, int | None] | GemmLd | None = None,
        align: Mapping[str, int] | GemmAlign | None = None,
        scale: Mapping[str, Any] | GemmScale | None = None,
        alpha: str = "any",
        beta: str = "zero",
        epilogue: Mapping[str, Any] | Epilogue | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "m", whole("m", m, 0))
        put(self, "n", whole("n", n, 0))
        put(self, "k", whole("k", k, 0))
        put(self, "batch", whole("batch", batch, 1))
        put(self, "dtype", dtypes_of(dtype))
        put(self, "layout", layout_of(layout))
        put(self, "ld", ld_of(ld, self._row_lengths()))
        put(self, "align", align_of(align, self.dtype))
        put(self, "scale", scale_of(scale, self.dtype))
        put(self, "alpha", one_of("alpha", alpha, SCALARS))
        put(self, "beta", one_of("beta", beta, SCALARS))
        put(self, "epilogue", epilogue_of(epilogue, self.dtype))
        self._check_packing()
        self._check_extents()

    # -- identity ---------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The problem written out: every field, defaults included."""
        return {
            "schema": 1,
            "op": "gemm",
            "batch": self.batch,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "dtype": {"a": self.dtype.a, "b": self.dtype.b, "acc": self.dtype.acc, "c": self.dtype.c},
            "layout": {"a": self.layout.a, "b": self.layout.b, "c": self.layout.c},
            "ld": {x: v for x in "abc" if (v := getattr(self.ld, x)) is not None},
            "align": {x: v for x in "abc" if (v := getattr(self.align, x)) != DEFAULT_ALIGN_BYTES},
            "scale": {
                "a": self.scale.a.to_json() if self.scale.a else None,
                "b": self.scale.b.to_json() if self.scale.b else None,
            },
            "alpha": self.alpha,
            "beta": self.beta,
            "epilogue": {
                "bias": self.epilogue.bias,
                "activation": self.epilogue.activation,
                "residual": self.epilogue.residual,
            },
        }

    def canonical(self) -> str:
        """The text that the key is the hash of."""
        return canonical_json(self.to_json())

    @property
    def key(self) -> str:
        """problem_key: sha256 of the canonical JSON."""
        return sha256_key(self.to_json())

    def layer(self) -> Layer:
        """This problem with its run-time sizes left open."""
        from rooftile.problem.layer import Layer

        return Layer.of(self)

    def title(self) -> str:
        """One short line for people: `gemm 8x4096x4096 f32 kn`."""
        d = self.dtype
        words = [f"gemm {self.m}x{self.n}x{self.k}", d.a if d.a == d.b else f"{d.a}*{d.b}"]
        if d.c != DEFAULT_C[d.a]:
            words[-1] += f"->{d.c}"
        if self.layout.a != "mk":
            words.append(self.layout.a)
        words.append(self.layout.b)
        if self.layout.c != "mn":
            words.append(self.layout.c)
        if self.batch > 1:
            words.insert(1, f"batch {self.batch}")
        if self.beta != "zero":
            words.append("+c")
        words += [f"+{w}" for w in ("bias" if self.epilogue.bias else None, self.epilogue.activation) if w]
        if self.epilogue.residual:
            words.append("+residual")
        return " ".join(words)

    # -- sizes and work ---------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """True when a size is 0: nothing to tune; the result is empty, or beta*C through the epilogue."""
        return 0 in (self.m, self.n, self.k)

    def sizes(self) -> dict[str, int]:
        """m n k batch and the pitches of A, B and out in elements, packed ones worked out."""
        rows = self._row_lengths()
        pitches = {f"ld_{x}": rows[x] if (v := getattr(self.ld, x)) is None else v for x in "abc"}
        return {"m": self.m, "n": self.n, "k": self.k, "batch": self.batch, **pitches}

    def plan_names(self) -> dict[str, int]:
        """The names a LaunchPlan may use, but for threads and sm_count, when operands have the problem's own
        pitches, C and residual out's, and batch entries lie side by side."""
        s = self.sizes()
        names = {name: s[name] for name in ("m", "n", "k", "batch", "ld_a", "ld_b")}
        names |= {"ld_c": s["ld_c"], "ld_out": s["ld_c"], "ld_residual": s["ld_c"]}
        rows = {x: s[getattr(self.layout, x)[0]] for x in "abc"}
        names |= {"stride_a": rows["a"] * s["ld_a"], "stride_b": rows["b"] * s["ld_b"]}
        out = rows["c"] * s["ld_c"]
        return names | {"stride_c": out, "stride_out": out, "stride_residual": out}

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product. alpha `zero` leaves none."""
        return 0 if self.alpha == "zero" else 2 * self.batch * self.m * self.n * self.k

    @property
    def min_bytes(self) -> int:
        """Bytes that must move when each operand is read once and out written once."""
        if self.m == 0 or self.n == 0:
            return 0
        out = self.batch * storage_bytes(self.dtype.c, self.m * self.n)
        total = out
        if self.alpha != "zero" and self.k > 0:
            total += self.batch * storage_bytes(self.dtype.a, self.m * self.k)
            total += self.batch * storage_bytes(self.dtype.b, self.k * self.n)
            for spec, rows in ((self.scale.a, self.m), (self.scale.b, self.n)):
                if spec is not None:
                    count = spec.count(rows, self.k) * (1 if spec.block == "tensor" else self.batch)
                    total += count * SCALE_DTYPE_BITS[spec.dtype] // 8
        if self.beta != "zero":
            total += out
        if self.epilogue.bias:
            total += storage_bytes(operand_dtype(self, "bias"), self.n)
        if self.epilogue.residual:
            total += out
        return total

    # -- checks -----------------------------------------------------------------------------------------

    def _row_lengths(self) -> dict[str, int]:
        size = {"m": self.m, "n": self.n, "k": self.k}
        return {x: size[getattr(self.layout, x)[1]] for x in "abc"}

    def _check_packing(self) -> None:
        for x in "ab":
            if getattr(self.dtype, x) != "e2m1":
                continue
            letter = getattr(self.layout, x)[1]
            if getattr(self, letter) % 2:
                allowed = f"even: operand {x} packs two e2m1 to a byte along {letter}"
                raise FieldError(letter, getattr(self, letter), allowed)
            pitch = getattr(self.ld, x)
            if pitch is not None and pitch % 2:
                raise FieldError(f"ld.{x}", pitch, "even: e2m1 packs two to a byte", pitch + 1)

    def _check_extents(self) -> None:
        s = self.sizes()
        for x in "abc":
            rows, row = getattr(self.layout, x)
            pitch = row if getattr(self.ld, x) is None else f"ld.{x}"
            factors = {"batch": self.batch, rows: s[rows], pitch: s[f"ld_{x}"]}
            fits_in_memory(x, factors, DTYPE_BITS[getattr(self.dtype, x)])


def operand_shape(problem: Gemm, name: str) -> tuple[int, ...]:
    """The shape of the array given for an operand (a b c out residual bias): that of its layout's letters, so
    layout `nk` is an (n, k) array; batch in front when it is over 1; bias is (n,)."""
    if name == "bias":
        return (problem.n,)
    letters = {"a": problem.layout.a, "b": problem.layout.b}.get(name)
    if letters is None:
        if name not in ("c", "out", "residual"):
            raise ValueError(f"a GEMM has no operand {name!r}")
        letters = problem.layout.c
    shape = tuple(int(getattr(problem, letter)) for letter in letters)
    return shape if problem.batch == 1 else (problem.batch, *shape)


def operand_dtype(problem: Gemm, name: str) -> str:
    """The element type of an operand (a b c out residual bias). bias is out's type, but bf16 for 8-bit out:
    nobody keeps a bias in fp8."""
    if name in ("a", "b"):
        return problem.dtype.a if name == "a" else problem.dtype.b
    if name not in ("c", "out", "residual", "bias"):
        raise ValueError(f"a GEMM has no operand {name!r}")
    return "bf16" if name == "bias" and problem.dtype.c in FP8 else problem.dtype.c
