"""Which values may each field of a GEMM have, alone and together with the others?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftile.errors import MISSING, FieldError
from rooftile.problem.bucket import MAX_SIZE
from rooftile.problem.dtypes import FP8, INTEGERS, NARROW_FLOATS, check_dtype, element_bytes, one_of
from rooftile.problem.fields import choice_or_null, flag, members, scale_spec, whole

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
SCALARS = ("zero", "one", "any")
LAYOUTS: dict[str, tuple[str, str]] = {"a": ("mk", "km"), "b": ("kn", "nk"), "c": ("mn", "nm")}

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
DEFAULT_C: dict[str, str] = {
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


def dtypes_of(value: object) -> GemmDtypes:
    """The dtypes that a bare name or an object stands for."""
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
    c = given.get("c", DEFAULT_C[a])
    check_dtype("dtype.c", c)
    c = one_of("dtype.c", c, _C_OF[a], f" with dtype.a {a}")
    return GemmDtypes(a, b, acc, c)


def layout_of(value: object) -> GemmLayout:
    """The layouts, defaults filled in."""
    if isinstance(value, GemmLayout):
        value = {"a": value.a, "b": value.b, "c": value.c}
    given = {} if value is None else members("layout", value, ("a", "b", "c"))
    return GemmLayout(**{x: one_of(f"layout.{x}", given.get(x, LAYOUTS[x][0]), LAYOUTS[x]) for x in "abc"})


def ld_of(value: object, row_lengths: Mapping[str, int]) -> GemmLd:
    """The pitches; None where rows lie side by side."""
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


def align_of(value: object, dtypes: GemmDtypes) -> GemmAlign:
    """The alignments, 16 bytes where not given."""
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


def scale_of(value: object, dtypes: GemmDtypes) -> GemmScale:
    """The scales, legal with these dtypes and with each other."""
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


def epilogue_of(value: object, dtypes: GemmDtypes) -> Epilogue:
    """What follows the product."""
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
