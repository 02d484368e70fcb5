"""How do a case's operands and reference lie in memory, ready to be shared by fork?

Made once in the measuring process and inherited, read-only, by every candidate's process: a candidate that
writes to an input faults, and nobody pays for random numbers or a float64 product twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rooftile.problem import Gemm, operand_dtype, operand_shape
from rooftile.problem.dtypes import FP8

from worker.verify.arena import GuardedBuffer
from worker.verify.bounds import Bound, bound_for
from worker.verify.cases import Case
from worker.verify.elements import element_dtype, representable
from worker.verify.poison import fill_bytes
from worker.verify.reference import Reference, finish, product

# A float64 product of this size takes some 5 s on two cores.
MOST_FLOPS = 2e11

Array = npt.NDArray[Any]
INPUTS = ("a", "b", "c", "bias", "residual")


@dataclass(frozen=True)
class Part:
    """What is known of the result: all of it, or of a large one some rows and columns (or batch entries)."""

    index: tuple[Any, ...]
    """Into the result as (m, n), or (batch, m, n). Empty: all of it."""
    reference: Reference
    bound: Bound


@dataclass(frozen=True)
class PreparedCase:
    """A case with its inputs in guarded memory and its reference."""

    case: Case
    inputs: Mapping[str, GuardedBuffer]
    parts: tuple[Part, ...]
    scales: Mapping[str, Array] = field(default_factory=dict)
    """scale_a and scale_b, where the problem has them: one number, or one for each row or column."""

    @property
    def whole(self) -> bool:
        """Every element has a reference."""
        return self.parts[0].index == ()

    @property
    def bound(self) -> Bound:
        """The bound of one element (parts differ only by their RMS)."""
        return max((part.bound for part in self.parts), key=lambda bound: bound.absolute)

    def addresses(self) -> dict[str, int]:
        return {name: buffer.base for name, buffer in self.inputs.items()}


def wanted_inputs(problem: Gemm) -> tuple[str, ...]:
    """The inputs that a problem has."""
    have = ["a", "b"]
    if problem.beta != "zero":
        have.append("c")
    if problem.epilogue.bias is not None:
        have.append("bias")
    if problem.epilogue.residual:
        have.append("residual")
    return tuple(have)


def span_bytes(case: Case, operand: str) -> int:
    """Bytes from the first element of an operand to the end of its last."""
    names = case.names()
    shape = operand_shape(case.problem, operand)
    item = element_dtype(operand_dtype(case.problem, operand)).itemsize
    if 0 in shape:
        return 0
    if operand == "bias":
        return shape[0] * item
    rows, cols = shape[-2:]
    batch = case.problem.batch
    elements = (batch - 1) * names[f"stride_{operand}"] + (rows - 1) * names[f"ld_{operand}"] + cols
    return elements * item


def strided(case: Case, operand: str, data: npt.NDArray[np.uint8]) -> Array:
    """The operand as an array of its shape and pitch over `data`."""
    names = case.names()
    shape = operand_shape(case.problem, operand)
    kind = element_dtype(operand_dtype(case.problem, operand))
    item = kind.itemsize
    if 0 in shape:
        return np.empty(shape, kind)
    if operand == "bias":
        return data.view(kind)
    pitch = names[f"ld_{operand}"] * item
    strides: tuple[int, ...] = (pitch, item)
    if len(shape) == 3:
        strides = (names[f"stride_{operand}"] * item, *strides)
    return np.ndarray(shape, kind, buffer=data, strides=strides)


def new_buffer(case: Case, operand: str) -> GuardedBuffer:
    """Guarded memory for an operand, poisoned throughout."""
    kind = element_dtype(operand_dtype(case.problem, operand))
    buffer = GuardedBuffer(
        operand,
        span_bytes(case, operand),
        placement=case.placement,
        offset=case.offset,
        align=max(case.align, kind.itemsize),
    )
    fill_bytes(buffer.body(), kind, buffer.region.body)
    return buffer


def as_matrix(case: Case, operand: str, array: Array) -> Array:
    """The operand with rows and columns in the order of the formula: a (m, k), b (k, n), the rest (m, n)."""
    if operand == "bias":
        return array
    letters = getattr(case.problem.layout, operand if operand in ("a", "b") else "c")
    wanted = {"a": "mk", "b": "kn"}.get(operand, "mn")
    return array if letters == wanted else array.swapaxes(-1, -2)


def random_operand(case: Case, operand: str) -> Array:
    """Fresh numbers, uniform in [-1, 1], from the case's seed; integers over their whole range, unless their
    sums would leave that of an f16 result."""
    shape = operand_shape(case.problem, operand)
    kind = element_dtype(operand_dtype(case.problem, operand))
    stream = np.random.Generator(np.random.SFC64([case.seed, INPUTS.index(operand)]))
    if kind.kind in "iu":
        information = np.iinfo(kind)
        low, high = max(int(information.min), -128), min(int(information.max), 255)
        if case.problem.dtype.c == "f16":
            # f16 ends at 65504; scales, alpha and what is added may make eight times as much of a sum.
            most = max(1, math.isqrt(8000 // max(1, case.problem.k)))
            low, high = max(low, -most), min(high, most)
        return stream.integers(low, high, shape, dtype=kind, endpoint=True)
    working = np.dtype(np.float64) if kind == np.float64 else np.dtype(np.float32)
    values: Array = stream.random(shape, dtype=working.type)
    values *= 2
    values -= 1
    return representable(values, operand_dtype(case.problem, operand)).astype(kind, copy=False)


def with_odd(case: Case, operand: str, values: Array) -> Array:
    """`values` with one NaN, and one infinity in A and in the residual. Integers have neither. No infinity
    where the result has none (fp8 ends at its largest number), nor before an activation that multiplies what
    it makes infinite by 0."""
    if values.dtype.kind in "iu" or not values.size:
        return values
    place = np.random.Generator(np.random.SFC64([case.seed, INPUTS.index(operand), 1]))
    flat = values.reshape(-1).copy()
    first, second = place.integers(0, flat.size, 2)
    epilogue, dtype = case.problem.epilogue, case.problem.dtype
    if operand in ("a", "residual") and epilogue.activation in (None, "relu") and dtype.c not in FP8:
        flat[second] = np.inf
    flat[first] = np.nan
    return flat.reshape(values.shape)


def prepare_case(
    case: Case,
    *,
    threads: int | None = None,
    shared: Mapping[str, PreparedCase] | None = None,
    most_flops: float = MOST_FLOPS,
) -> PreparedCase:
    """Inputs, reference and bound of a case. `shared` finds the case whose B this one uses.

    Beyond `most_flops` only some rows and columns get a float64 reference; that every element was written,
    and is finite, is checked in any case.
    """
    inputs: dict[str, GuardedBuffer] = {}
    arrays: dict[str, Array] = {}
    lender = (shared or {}).get(case.shares_b_of or "")
    for operand in wanted_inputs(case.problem):
        if operand == "b" and lender is not None:
            buffer = lender.inputs["b"]
            arrays[operand] = strided(case, operand, buffer.data())
        else:
            buffer = new_buffer(case, operand)
            values = random_operand(case, operand)
            if case.odd:
                values = with_odd(case, operand, values)
            array = strided(case, operand, buffer.data())
            if array.size:
                array[...] = values
            arrays[operand] = array
            buffer.read_only()
        inputs[operand] = buffer
    scales = random_scales(case)
    whole = problem_flops(case.problem) <= most_flops
    indices = [()] if whole else sampled(case.problem, case.seed, most_flops)
    parts = tuple(_part(case, arrays, scales, index, threads) for index in indices)
    return PreparedCase(case, inputs, parts, scales)


def random_scales(case: Case) -> dict[str, Array]:
    """Scales between 1/2 and 2, batch entry by batch entry. ValueError for a kind of block that changes
    within a sum."""
    found = {}
    for index, (name, rows) in enumerate((("a", case.problem.m), ("b", case.problem.n))):
        spec = getattr(case.problem.scale, name)
        if spec is None:
            continue
        if spec.dtype != "f32" or spec.block not in ("tensor", "row"):
            raise ValueError(f"scale.{name} by {spec.block} of {spec.dtype} has no reference here yet")
        shape: tuple[int, ...] = (1,)
        if spec.block == "row":
            shape = (rows,) if case.problem.batch == 1 else (case.problem.batch, rows)
        stream = np.random.Generator(np.random.SFC64([case.seed, len(INPUTS) + index]))
        found[f"scale_{name}"] = np.exp2(stream.uniform(-1.0, 1.0, shape)).astype(np.float32)
    return found


def _scaled(products: Array, scales: Mapping[str, Array], index: tuple[Any, ...], batched: bool) -> Array:
    """The products times their scales, which lie along the rows (a) and columns (b) of the whole result."""
    for name, scale in scales.items():
        factor = scale.astype(np.float64)
        if factor.size > 1:
            along_rows = name == "scale_a"
            if index and (batched or along_rows == (len(index) == 1)):
                factor = factor[index[-1]]
            factor = factor[..., :, None] if along_rows else factor[..., None, :]
        products = products * factor
    return products


def copy_inputs(prepared: PreparedCase, name: str) -> PreparedCase:
    """The same numbers at other addresses: one more set for runs on a cold cache."""
    case = replace(prepared.case, name=name)
    inputs: dict[str, GuardedBuffer] = {}
    for operand, source in prepared.inputs.items():
        buffer = new_buffer(case, operand)
        buffer.data()[:] = source.data()
        buffer.read_only()
        inputs[operand] = buffer
    return PreparedCase(case, inputs, prepared.parts, prepared.scales)


def problem_flops(problem: Gemm) -> float:
    """Work of the product, alpha or not."""
    return 2.0 * problem.batch * problem.m * problem.n * problem.k


def sampled(problem: Gemm, seed: int, most_flops: float) -> list[tuple[Any, ...]]:
    """Which rows and columns, or batch entries, of a large result are looked at: both ends, some between."""
    stream = np.random.default_rng([seed, 77])
    share = most_flops / problem_flops(problem)
    if problem.batch > 1:
        return [(_some(problem.batch, share, stream),)]
    return [
        (_some(problem.m, share / 2.0, stream),),
        (slice(None), _some(problem.n, share / 2.0, stream)),
    ]


def _some(length: int, share: float, stream: np.random.Generator) -> npt.NDArray[np.int64]:
    count = max(2, min(length, int(length * share)))
    # The far end is where 32-bit offsets have wrapped (AT-46).
    between = stream.choice(length, size=count, replace=False)
    return np.unique(np.concatenate([between, [0, length - 1]])).astype(np.int64)


def _part(
    case: Case,
    arrays: Mapping[str, Array],
    scales: Mapping[str, Array],
    index: tuple[Any, ...],
    threads: int | None,
) -> Part:
    problem = case.problem
    a, b = (as_matrix(case, name, arrays[name]) for name in ("a", "b"))
    rest = {
        name: as_matrix(case, name, arrays[name])[index] if name in arrays else None
        for name in ("c", "residual")
    }
    bias = arrays.get("bias")
    if len(index) == 1:
        # Rows, or batch entries.
        a = a[index]
        b = b[index] if problem.batch > 1 else b
    elif len(index) == 2:
        b = b[:, index[1]]
        bias = bias[index[1]] if bias is not None else None
    products = (
        _product(a, b, threads) if problem.k and case.alpha != 0.0 else np.zeros((*a.shape[:-1], b.shape[-1]))
    )
    reference = finish(
        _scaled(products, scales, index, problem.batch > 1),
        alpha=case.alpha,
        beta=case.beta,
        c=rest["c"],
        bias=bias,
        activation=problem.epilogue.activation,
        residual=rest["residual"],
        whole=problem.dtype.c == "s32",
    )
    activated = problem.epilogue.activation is not None
    bound = bound_for(reference, problem.k, problem.dtype.acc, problem.dtype.c, case.alpha, activated)
    return Part(index, reference, bound)


def _product(a: Array, b: Array, threads: int | None) -> Array:
    if a.ndim == 2:
        return product(a, b, threads)
    return np.stack([product(a[i], b[i], threads) for i in range(len(a))])
