"""How do a case's operands and reference lie in memory, ready to be shared by fork?

Made once in the measuring process and inherited, read-only, by every candidate's process: a candidate that
writes to an input faults, and nobody pays for random numbers or a float64 product twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from rooftile.launch.operands import numpy_dtype
from rooftile.problem import Gemm, operand_dtype, operand_shape

from worker.verify.arena import GuardedBuffer
from worker.verify.bounds import Bound, bound_for
from worker.verify.cases import Case
from worker.verify.poison import fill_bytes
from worker.verify.reference import Reference, finish, product

Array = npt.NDArray[Any]
INPUTS = ("a", "b", "c", "bias", "residual")


@dataclass(frozen=True)
class PreparedCase:
    """A case with its inputs in guarded memory and its reference."""

    case: Case
    inputs: Mapping[str, GuardedBuffer]
    reference: Reference
    bound: Bound

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
    item = numpy_dtype(operand_dtype(case.problem, operand)).itemsize
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
    kind = numpy_dtype(operand_dtype(case.problem, operand))
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
    kind = numpy_dtype(operand_dtype(case.problem, operand))
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
    """Fresh numbers, uniform in [-1, 1], from the case's seed; integers over their whole range."""
    shape = operand_shape(case.problem, operand)
    kind = numpy_dtype(operand_dtype(case.problem, operand))
    stream = np.random.Generator(np.random.SFC64([case.seed, INPUTS.index(operand)]))
    if kind.kind in "iu":
        information = np.iinfo(kind)
        low, high = max(int(information.min), -128), min(int(information.max), 255)
        return stream.integers(low, high, shape, dtype=kind, endpoint=True)
    working = np.dtype(np.float64) if kind == np.float64 else np.dtype(np.float32)
    values: Array = stream.random(shape, dtype=working.type)
    values *= 2
    values -= 1
    return values.astype(kind, copy=False)


def prepare_case(
    case: Case, *, threads: int | None = None, shared: Mapping[str, PreparedCase] | None = None
) -> PreparedCase:
    """Inputs, reference and bound of a case. `shared` finds the case whose B this one uses."""
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
            array = strided(case, operand, buffer.data())
            if array.size:
                array[...] = values
            arrays[operand] = array
            buffer.read_only()
        inputs[operand] = buffer
    reference = _reference(case, arrays, threads)
    problem = case.problem
    bound = bound_for(
        reference,
        problem.k,
        problem.dtype.acc,
        problem.dtype.c,
        case.alpha,
        problem.epilogue.activation is not None,
    )
    return PreparedCase(case, inputs, reference, bound)


def copy_inputs(prepared: PreparedCase, name: str) -> PreparedCase:
    """The same numbers at other addresses: one more set for runs on a cold cache."""
    case = replace(prepared.case, name=name)
    inputs: dict[str, GuardedBuffer] = {}
    for operand, source in prepared.inputs.items():
        buffer = new_buffer(case, operand)
        buffer.data()[:] = source.data()
        buffer.read_only()
        inputs[operand] = buffer
    return PreparedCase(case, inputs, prepared.reference, prepared.bound)


def _reference(case: Case, arrays: Mapping[str, Array], threads: int | None) -> Reference:
    problem = case.problem
    a, b = (as_matrix(case, name, arrays[name]) for name in ("a", "b"))
    if problem.k == 0 or problem.m == 0 or problem.n == 0 or case.alpha == 0.0:
        shape = (problem.m, problem.n) if problem.batch == 1 else (problem.batch, problem.m, problem.n)
        products = np.zeros(shape)
    elif problem.batch == 1:
        products = product(a, b, threads)
    else:
        products = np.stack([product(a[i], b[i], threads) for i in range(problem.batch)])
    rest = {
        name: as_matrix(case, name, arrays[name]) if name in arrays else None
        for name in ("c", "bias", "residual")
    }
    return finish(
        products,
        alpha=case.alpha,
        beta=case.beta,
        c=rest["c"],
        bias=rest["bias"],
        activation=problem.epilogue.activation,
        residual=rest["residual"],
    )
