"""What is a GEMM problem: which fields, which combinations, which defaults, how much work?

    out = activation(alpha * A @ B + beta * C + bias) + residual        (per batch entry)

`bias` is one row of n values shared by every batch entry; `residual` and C have out's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rooftile.errors import MISSING, FieldError
from rooftile.problem.bucket import MAX_SIZE
from rooftile.problem.canonical import canonical_json, sha256_key
from rooftile.problem.dtypes import (
    DTYPE_BITS,
    FP8,
    INTEGERS,
    NARROW_FLOATS,
    SCALE_DTYPE_BITS,
    check_dtype,
    element_bytes,
    one_of,
    storage_bytes,
)
from rooftile.problem.fields import choice_or_null, fits_in_memory, flag, members, scale_spec, whole

if TYPE_CHECKING:
    from rooftile.problem.layer import Layer

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
SCALARS = ("zero", "one", "any")
LAYOUTS: dict[str, tuple[str, str]] = {"a": ("mk", "km"), "b": ("kn", "nk"), "c": ("mn", "nm")}

GEMM_FIELDS = (
    "schema", "op", "batch", "m", "n", "k", "dtype", "layout", "ld", "align", "scale", "alpha", "beta",
    "epilogue",
)  # fmt: skip

# What allocators give at least; the value of an `align` that is not written.
DEFAULT_ALIGN_BYTES = 16
_MAX_ALIGN_BYTES = 4096

_ACC_OF: dict[str, tuple[str, ...]] = {
    "f64": ("f64",),
    "f32": ("f32",),
    "tf32": ("f32",),
    "f16": ("f32", "f16"),
    "bf16": ("f32",),
    "e4m3": ("f32", "f16"),
    "e5m2": ("f32", "f16"),
    "e2m1": ("f32",),
    "s8": ("s32",),
    "u8": ("s32",),
}
_FLOAT_OUT = ("f32", "f16", "bf16")
_C_OF: dict[str, tuple[str, ...]] = {
    "f64": ("f64",),
    "f32": _FLOAT_OUT,
    "tf32": _FLOAT_OUT,
    "f16": (*_FLOAT_OUT, *FP8),
    "bf16": (*_FLOAT_OUT, *FP8),
    "e4m3": (*_FLOAT_OUT, *FP8),
    "e5m2": (*_FLOAT_OUT, *FP8),
    "e2m1": (*_FLOAT_OUT, *FP8),
    "s8": ("s32", *_FLOAT_OUT),
    "u8": ("s32", *_FLOAT_OUT),
}
_DEFAULT_C: dict[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "tf32": "f32",
    "e4m3": "bf16", "e5m2": "bf16", "e2m1": "bf16", "s8": "s32", "u8": "s32",
}  # fmt: skip


@dataclass(frozen=True)
class GemmDtypes:
    """Element types of A, B, the accumulator and out (C and the residual are out's)."""

    a: str
    b: str
    acc: str
    c: str


@dataclass(frozen=True)
class GemmLayout:
    """Order of the two dimensions of each operand; the last letter is contiguous."""

    a: str = "mk"
    b: str = "kn"
    c: str = "mn"


@dataclass(frozen=True)
class GemmLd:
    """Leading dimensions in elements: the pitch between rows of the layout. None: rows lie side by side."""

    a: int | None = None
    b: int | None = None
    c: int | None = None


@dataclass(frozen=True)
class GemmAlign:
    """Bytes that the base address of each operand is a multiple of."""

    a: int = DEFAULT_ALIGN_BYTES
    b: int = DEFAULT_ALIGN_BYTES
    c: int = DEFAULT_ALIGN_BYTES


@dataclass(frozen=True)
class ScaleSpec:
    """Scales of an operand: their dtype, and the block of elements that shares one."""

    dtype: str
    block: str | int

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this scale."""
        return {"dtype": self.dtype, "block": self.block}

    def count(self, rows: int, cols: int) -> int:
        """How many scales an operand of `rows` by `cols` has; `cols` is the dimension summed over."""
        if self.block == "tensor":
            return 1
        if self.block == "row":
            return rows
        if self.block == "128x128":
            return -(-rows // 128) * -(-cols // 128)
        return rows * -(-cols // (128 if self.block == "1x128" else int(self.block)))


@dataclass(frozen=True)
class GemmScale:
    """Scales of A and of B."""

    a: ScaleSpec | None = None
    b: ScaleSpec | None = None


@dataclass(frozen=True)
class Epilogue:
    """What follows the product: bias, then activation, then residual."""

    bias: str | None = None
    activation: str | None = None
    residual: bool = False


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
        put(self, "dtype", _dtypes(dtype))
        put(self, "layout", _layout(layout))
        put(self, "ld", _ld(ld, self._row_lengths()))
        put(self, "align", _align(align, self.dtype))
        put(self, "scale", _scale(scale, self.dtype))
        put(self, "alpha", one_of("alpha", alpha, SCALARS))
        put(self, "beta", one_of("beta", beta, SCALARS))
        put(self, "epilogue", _epilogue(epilogue, self.dtype))
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
        if d.c != _DEFAULT_C[d.a]:
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


# -- field by field -----------------------------------------------------------------------------------------


def _dtypes(value: object) -> GemmDtypes:
    if isinstance(value, GemmDtypes):
        value = {"a": value.a, "b": value.b, "acc": value.acc, "c": value.c}
    if isinstance(value, str):
        given: dict[str, object] = {"a": one_of("dtype", value, tuple(_ACC_OF))}
    else:
        given = members("dtype", value, ("a", "b", "acc", "c"), ", or one name for a and b")
    if "a" not in given:
        raise FieldError("dtype.a", MISSING, f"one of {', '.join(_ACC_OF)}")
    a = one_of("dtype.a", given["a"], tuple(_ACC_OF))
    family = next((f for f in (NARROW_FLOATS, INTEGERS) if a in f), (a,))
    b = given.get("b", a)
    check_dtype("dtype.b", b)
    b = one_of("dtype.b", b, family, f" with dtype.a {a}")
    legal_acc = tuple(t for t in _ACC_OF[a] if t in _ACC_OF[b])
    acc = given.get("acc", legal_acc[0])
    check_dtype("dtype.acc", acc)
    acc = one_of("dtype.acc", acc, legal_acc, f" with dtype.a {a}")
    c = given.get("c", _DEFAULT_C[a])
    check_dtype("dtype.c", c)
    c = one_of("dtype.c", c, _C_OF[a], f" with dtype.a {a}")
    return GemmDtypes(a, b, acc, c)


def _layout(value: object) -> GemmLayout:
    if isinstance(value, GemmLayout):
        value = {"a": value.a, "b": value.b, "c": value.c}
    given = {} if value is None else members("layout", value, ("a", "b", "c"))
    return GemmLayout(**{x: one_of(f"layout.{x}", given.get(x, LAYOUTS[x][0]), LAYOUTS[x]) for x in "abc"})


def _ld(value: object, row_lengths: Mapping[str, int]) -> GemmLd:
    if isinstance(value, GemmLd):
        value = {"a": value.a, "b": value.b, "c": value.c}
    given = {} if value is None else members("ld", value, ("a", "b", "c"))
    pitches: dict[str, int | None] = {}
    for x, pitch in given.items():
        if pitch is None:
            continue
        row = row_lengths[x]
        checked = whole(f"ld.{x}", pitch, max(row, 1), MAX_SIZE)
        # The packed pitch written out means the same problem, so it must have the same key.
        pitches[x] = None if checked == row else checked
    return GemmLd(**pitches)


def _align(value: object, dtypes: GemmDtypes) -> GemmAlign:
    if isinstance(value, GemmAlign):
        value = {"a": value.a, "b": value.b, "c": value.c}
    given = {} if value is None else members("align", value, ("a", "b", "c"))
    aligns: dict[str, int] = {}
    for x, v in given.items():
        low = element_bytes(getattr(dtypes, x))
        allowed = f"a power of two from {low} (one element) to {_MAX_ALIGN_BYTES}, in bytes"
        if isinstance(v, bool) or not isinstance(v, int):
            raise FieldError(f"align.{x}", v, allowed)
        if not low <= v <= _MAX_ALIGN_BYTES or v & (v - 1):
            # An address that is a multiple of 24 is surely one of 8: the nearest is what is true of it.
            raise FieldError(f"align.{x}", v, allowed, min(max(v & -v, low), _MAX_ALIGN_BYTES))
        aligns[x] = v
    return GemmAlign(**aligns)


def _scale(value: object, dtypes: GemmDtypes) -> GemmScale:
    if isinstance(value, GemmScale):
        value = {x: s.to_json() if (s := getattr(value, x)) else None for x in "ab"}
    given = {} if value is None else members("scale", value, ("a", "b"))
    specs: dict[str, ScaleSpec | None] = {"a": None, "b": None}
    for x in "ab":
        pair = scale_spec(f"scale.{x}", given.get(x))
        if pair is None:
            continue
        spec = ScaleSpec(*pair)
        dtype = getattr(dtypes, x)
        if dtype not in NARROW_FLOATS + INTEGERS:
            scaled = ", ".join(NARROW_FLOATS + INTEGERS)
            allowed = f"null with dtype.{x} {dtype}: only {scaled} operands have scales"
            raise FieldError(f"scale.{x}", given[x], allowed)
        if dtype in INTEGERS and (spec.dtype != "f32" or spec.block not in ("tensor", "row")):
            field = "dtype" if spec.dtype != "f32" else "block"
            allowed = f"f32 scales a tensor or row with dtype.{x} {dtype}"
            raise FieldError(f"scale.{x}.{field}", getattr(spec, field), allowed)
        if dtype in INTEGERS and dtypes.c == "s32":
            raise FieldError(f"scale.{x}", given[x], "null with dtype.c s32: a scaled sum is no integer")
        if spec.dtype == "ue4m3" and dtype != "e2m1":
            raise FieldError(f"scale.{x}.dtype", spec.dtype, f"f32 or ue8m0 with dtype.{x} {dtype}", "ue8m0")
        specs[x] = spec
    a, b = specs["a"], specs["b"]
    if a and b and a.dtype != b.dtype:
        raise FieldError("scale.b.dtype", b.dtype, f"{a.dtype}, as scale.a", a.dtype)
    for x, mine, y, other in (("a", a, "b", b), ("b", b, "a", a)):
        # Blocks of 16 and 32 are what the matrix unit itself applies, and it wants them on both sides.
        if mine and mine.block in (16, 32) and (other is None or other.block != mine.block):
            allowed = f"a {mine.dtype} scale of block {mine.block}, as scale.{x}"
            raise FieldError(f"scale.{y}", given.get(y), allowed)
    return GemmScale(a, b)


def _epilogue(value: object, dtypes: GemmDtypes) -> Epilogue:
    if isinstance(value, Epilogue):
        value = {"bias": value.bias, "activation": value.activation, "residual": value.residual}
    given = {} if value is None else members("epilogue", value, ("bias", "activation", "residual"))
    activation = choice_or_null("epilogue.activation", given.get("activation"), ACTIVATIONS)
    if activation is not None and activation != "relu" and dtypes.c == "s32":
        raise FieldError("epilogue.activation", activation, "null or relu with dtype.c s32", "relu")
    return Epilogue(
        bias=choice_or_null("epilogue.bias", given.get("bias"), ("n",)),
        activation=activation,
        residual=flag("epilogue.residual", given.get("residual", False)),
    )
