"""What do the arrays of one GEMM call mean, and may they be used together?

Shapes and dtypes must be the problem's own; strides may be any that a pitch between rows and a step between
batch entries can say. The names found here (`ld_a`, `stride_out`...) are those a LaunchPlan computes with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rooftile.errors import show_value
from rooftile.launch.errors import LaunchError, UnsuitableError
from rooftile.launch.memory import address_of
from rooftile.problem import Gemm, operand_dtype, operand_shape

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Order in which addresses and shapes of a call are listed everywhere in the launcher.
OPERANDS = ("a", "b", "c", "out", "bias", "residual")

# bf16 and narrower floats have no numpy dtype; they come with the families that compute in them.
_NUMPY_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "tf32": "float32",
    "f16": "float16",
    "s8": "int8",
    "u8": "uint8",
    "s32": "int32",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype that holds elements of `name`."""
    if name not in _NUMPY_NAMES:
        raise LaunchError(f"numpy arrays cannot hold {name}; those that can: {', '.join(_NUMPY_NAMES)}")
    return np.dtype(_NUMPY_NAMES[name])


def as_array(name: str, value: object) -> Array:
    """`value` as an array over the same memory; never a copy, because writing to a copy would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(f"{name} is a masked array, whose mask no kernel looks at; fill it first")
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)  # not a np.matrix, whose * is another one
    if not (hasattr(value, "__array_interface__") or hasattr(value, "__array__") or _exports_buffer(value)):
        kind = type(value).__name__
        raise LaunchError(f"{name} is a {kind}; it must be an array in memory, or lend its buffer")
    try:
        return np.asarray(value, copy=False) if _NUMPY_2 else np.asarray(value)
    except (ValueError, TypeError) as error:
        kind = type(value).__name__
        raise LaunchError(f"{name} is a {kind} that numpy cannot use without a copy") from error


def as_scalar(name: str, value: object) -> float:
    """`value` as the number that alpha or beta must be."""
    try:
        if isinstance(value, (str, bytes, bytearray)) or getattr(value, "ndim", False):
            raise TypeError  # float() would read the one and take the other's only element
        return float(value)  # type: ignore[arg-type]  # what has no __float__ is the TypeError
    except (TypeError, ValueError, OverflowError):
        raise LaunchError(f"{name}={show_value(value)} is not a number") from None


def in_range(name: str, value: float, kind: np.dtype[Any]) -> None:
    """A finite number must be one in the floats that are computed with, too."""
    if kind.kind != "f" or not math.isfinite(value):
        return
    with np.errstate(over="ignore"):
        if not np.isfinite(kind.type(value)):
            raise LaunchError(f"{name}={value!r} is beyond {kind}")


# Steps that finding a common byte of two strided arrays may take; beyond that they count as overlapping.
_MAX_WORK: Any = 10_000
_NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def _exports_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Operand:
    """One array of a call as a kernel sees it: `rows` of `cols` contiguous elements."""

    batch: int
    rows: int
    cols: int
    ld: int
    batch_stride: int
    span_bytes: int


def problem_of(problem: Gemm, a: Array, open_sizes: bool) -> Gemm:
    """The problem with m and batch as `a` has them, where those are open; else itself."""
    if not open_sizes:
        return problem
    if a.ndim not in (2, 3):
        letters = ", ".join(problem.layout.a)
        raise LaunchError(f"a has {a.ndim} dimensions; it must be ({letters}), batch in front")
    batch = a.shape[0] if a.ndim == 3 else 1
    m = a.shape[a.ndim - 2 + problem.layout.a.index("m")]
    return problem if (m, batch) == (problem.m, problem.batch) else replace_sizes(problem, m, batch)


def replace_sizes(problem: Gemm, m: int, batch: int) -> Gemm:
    """The same Layer at other run-time sizes. The problem's pitches do not matter: arrays bring theirs."""
    return Gemm(
        m, problem.n, problem.k, problem.dtype, batch=batch, layout=problem.layout, align=problem.align,
        scale=problem.scale, alpha=problem.alpha, beta=problem.beta, epilogue=problem.epilogue,
    )  # fmt: skip


def check_scalars(problem: Gemm, alpha: float, beta: float) -> None:
    """alpha and beta must be what the problem fixed them to."""
    for name, value, fixed in (("alpha", alpha, problem.alpha), ("beta", beta, problem.beta)):
        if fixed != "any" and value != (0.0 if fixed == "zero" else 1.0):
            raise LaunchError(
                f"{name}={value}, but the problem fixes {name} to {fixed}: "
                f"pass {name}={'0.0' if fixed == 'zero' else '1.0'}, or ask for a problem with {name} any"
            )


def check_absent(problem: Gemm, scale_a: object, scale_b: object, stream: object) -> None:
    """Refuses what a call on the CPU has no use for."""
    for name, scale, spec in (("a", scale_a, problem.scale.a), ("b", scale_b, problem.scale.b)):
        if scale is not None and spec is None:
            raise LaunchError(
                f"scale_{name} was given, but the problem has no such scale (scale.{name} is null)"
            )
        if spec is not None:
            raise LaunchError(f"scaled operands do not run on the CPU (scale.{name} is {spec.to_json()})")
    if stream is not None:
        raise LaunchError("stream was given, but a kernel on the CPU is done when the call returns")


def check_present(problem: Gemm, beta: float, c: object, bias: object, residual: object) -> None:
    """Operands that the epilogue needs must be there, and no others."""
    if c is None and beta != 0.0:
        raise LaunchError(f"beta={beta} needs c")
    if c is not None and problem.beta == "zero":
        raise LaunchError("c was given, but the problem fixes beta to zero: ask for a problem with beta any")
    epilogue = problem.epilogue
    for name, value, wanted in (
        ("bias", bias, epilogue.bias is not None),
        ("residual", residual, epilogue.residual),
    ):
        if wanted and value is None:
            raise LaunchError(f"{name} is missing: the problem's epilogue has one")
        if not wanted and value is not None:
            raise LaunchError(f"{name} was given, but the problem's epilogue has none")


def check_array(problem: Gemm, name: str, array: Array) -> None:
    """Shape and dtype must be the problem's."""
    wanted = numpy_dtype(operand_dtype(problem, name))
    if array.dtype != wanted:
        raise LaunchError(f"{name} is {array.dtype}, the problem says {wanted}")
    shape = operand_shape(problem, name)
    if array.shape != shape:
        letters = "n" if name == "bias" else getattr(problem.layout, name if name in "ab" else "c")
        raise LaunchError(
            f"{name} has shape {array.shape}, the problem ({problem.title()}) wants {shape}"
            f" ({'batch, ' if len(shape) == 3 else ''}{', '.join(letters)})"
        )
    if name == "out" and not array.flags.writeable:
        raise LaunchError("out is read-only")


def pitches(name: str, array: Array) -> Operand:
    """The rows of an array as pitch and step, or an UnsuitableError naming its strides."""
    item = array.itemsize
    shape, strides = array.shape, array.strides
    if array.ndim == 1:  # bias: one row
        shape, strides = (1, *shape), (0, *strides)
    batch, (rows, cols) = (shape[0] if len(shape) == 3 else 1), shape[-2:]
    # The stride of a dimension of length 1 is never used, and numpy leaves anything in it.
    if cols > 1 and strides[-1] != item:
        raise UnsuitableError(
            f"{name} has strides {array.strides} bytes for shape {array.shape}: its last dimension must "
            f"be contiguous (stride {item}); pass such an array, or ask for {name}'s other layout"
        )
    ld = _elements(name, array, strides[-2], item) if rows > 1 else cols
    step = _elements(name, array, strides[0], item) if batch > 1 else rows * ld
    if ld < cols or step < 0:
        raise UnsuitableError(
            f"{name} has strides {array.strides} bytes for shape {array.shape}: rows must follow each "
            f"other at a pitch of at least {cols} elements, batch entries in rising order"
        )
    span = ((batch - 1) * step + (rows - 1) * ld + cols) * item
    return Operand(batch, rows, cols, ld, step, span)


def _elements(name: str, array: Array, stride_bytes: int, item: int) -> int:
    if stride_bytes % item:
        raise UnsuitableError(
            f"{name} has strides {array.strides} bytes: no multiples of its {item}-byte elements"
        )
    return stride_bytes // item


def check_out(out: Array) -> None:
    """Two elements of out in one place would be written twice, by different threads."""
    if out.size == 0:
        return
    used = sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1)
    reach = out.itemsize
    for stride, length in used:
        if stride < reach:
            where = f"strides {out.strides} bytes for shape {out.shape}"
            raise LaunchError(f"out has {where}: its elements overlap")
        reach = stride * (length - 1) + reach


def check_overlap(out: Array, others: Iterable[tuple[str, Array]]) -> None:
    """out may be exactly c; any other common byte is refused, because threads read while others write."""
    for name, other in others:
        if not np.may_share_memory(out, other):
            continue
        if name == "c" and out.strides == other.strides and address_of(out) == address_of(other):
            continue
        try:
            shared = np.shares_memory(out, other, max_work=_MAX_WORK)
        except np.exceptions.TooHardError:
            shared = True
        if shared:
            allowed = "; only c itself may be out" if name == "c" else ""
            raise LaunchError(f"out overlaps {name}{allowed}: pass an out of its own")


def plan_names(operands: dict[str, Operand], problem: Gemm) -> dict[str, int]:
    """m n k batch, and pitch and step of every operand; absent ones have out's, so any expression works."""
    names = {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}
    out = operands["out"]
    for name in ("a", "b", "c", "out", "residual"):
        operand = operands.get(name, out)
        names[f"ld_{name}"] = operand.ld
        names[f"stride_{name}"] = operand.batch_stride
    return names
