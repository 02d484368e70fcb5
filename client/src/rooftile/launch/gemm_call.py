"""How does a GEMM called with arrays reach its kernel in a few microseconds?

Everything that follows from shapes, strides, dtypes and alignment is checked and worked out once and kept by
exactly those; what changes with each call (addresses, scalars, overlap) is all that a repeated call looks at.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rooftile.baseline import compute
from rooftile.launch.errors import LaunchError, UnsuitableError
from rooftile.launch.memory import address_of
from rooftile.launch.operands import (
    OPERANDS,
    as_array,
    as_scalar,
    check_absent,
    check_array,
    check_out,
    check_overlap,
    check_present,
    check_scalars,
    numpy_dtype,
    pitches,
    plan_names,
    problem_of,
)
from rooftile.launch.pool import Pool
from rooftile.launch.steps import Steps, execute
from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm, operand_dtype, operand_shape

if TYPE_CHECKING:
    from rooftile.launch.operands import Array

_SLOTS = (*OPERANDS, "workspace", "alpha", "beta")
# A program with more shapes than this works some of them out again.
_MAX_KEPT = 256


@dataclass(frozen=True, slots=True)
class _Known:
    """What one set of shapes and strides means. `steps` is None where no kernel runs."""

    problem: Gemm
    steps: Steps | None
    empty: bool
    span_out: int
    span_a: int
    span_b: int
    spans: tuple[int, int, int]  # c, bias, residual


class GemmCall:
    """Calls of one kernel for one GEMM problem."""

    def __init__(
        self,
        problem: Gemm,
        plan: LaunchPlan,
        functions: Mapping[str, ctypes.c_void_p],
        pool: Pool,
        open_sizes: bool,
    ) -> None:
        if problem.scale.a is not None or problem.scale.b is not None:
            check_absent(problem, None, None, None)
        self.problem = problem
        self._plan = plan
        self._functions = functions
        self._pool = pool
        self._open = open_sizes
        self._out_shape = None if open_sizes else operand_shape(problem, "out")
        self._out_dtype = numpy_dtype(operand_dtype(problem, "out"))
        self._scalars_fixed = problem.alpha != "any" or problem.beta != "any"
        items = (numpy_dtype(operand_dtype(problem, name)).itemsize for name in ("a", "b", "out"))
        widest = max(*plan.valid_for.align.values(), *items)
        # Alignment below the least that matters to the plan and to the elements is all that can differ.
        self._align_mask = widest - 1
        self._known: dict[Any, _Known] = {}

    def __call__(
        self, a: Any, b: Any, given_out: Any, c: Any, alpha: float, beta: float, bias: Any, residual: Any,
        scale_a: Any, scale_b: Any, stream: Any,
    ) -> Any:  # fmt: skip
        """One call; see X86Kernel.__call__."""
        ndarray = np.ndarray
        if type(a) is not ndarray:
            a = as_array("a", a)
        if type(b) is not ndarray:
            b = as_array("b", b)
        if type(alpha) is not float:
            alpha = as_scalar("alpha", alpha)
        if type(beta) is not float:
            beta = as_scalar("beta", beta)
        if scale_a is not None or scale_b is not None or stream is not None:
            check_absent(self.problem, scale_a, scale_b, stream)
        if self._scalars_fixed:
            check_scalars(self.problem, alpha, beta)
        out = given_out
        if out is None:
            shape = self._out_shape
            if shape is None:
                shape = operand_shape(problem_of(self.problem, a, self._open), "out")
            out = np.empty(shape, self._out_dtype)
        elif type(out) is not ndarray:
            out = as_array("out", out)

        at_a, at_b, at_out = address_of(a), address_of(b), address_of(out)
        low = at_a | at_b | at_out
        form: Any = None  # shapes and strides of the optional operands, and alignment where it is short
        at_c = at_bias = at_residual = 0
        if c is not None or bias is not None or residual is not None:
            if c is not None:
                c = c if type(c) is ndarray else as_array("c", c)
                at_c = address_of(c)
            if bias is not None:
                bias = bias if type(bias) is ndarray else as_array("bias", bias)
                at_bias = address_of(bias)
            if residual is not None:
                residual = residual if type(residual) is ndarray else as_array("residual", residual)
                at_residual = address_of(residual)
            low |= at_c | at_bias | at_residual
            form = tuple(None if x is None else (x.shape, x.strides, x.dtype) for x in (c, bias, residual))
        mask = self._align_mask
        if low & mask:
            form = (form, *(x & mask for x in (at_a, at_b, at_c, at_out, at_bias, at_residual)))
        key = (a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, out.shape, out.strides, out.dtype,
               out.flags.writeable, beta != 0.0, form)  # fmt: skip
        known = self._known.get(key)
        if known is None:
            arrays = {"a": a, "b": b, "c": c, "out": out, "bias": bias, "residual": residual}
            known = self._learn(key, {n: x for n, x in arrays.items() if x is not None}, beta)

        end = at_out + known.span_out
        if (at_a < end and at_out < at_a + known.span_a) or (at_b < end and at_out < at_b + known.span_b):
            check_overlap(out, [("a", a), ("b", b)])
        if form is not None:
            span_c, span_bias, span_residual = known.spans
            # The same strides too, so exactly c: allowed, and common enough to be told without numpy.
            if at_c < end and at_out < at_c + span_c and not (at_c == at_out and c.strides == out.strides):
                check_overlap(out, [("c", c)])
            if at_bias < end and at_out < at_bias + span_bias:
                check_overlap(out, [("bias", bias)])
            if at_residual < end and at_out < at_residual + span_residual:
                check_overlap(out, [("residual", residual)])
            if beta == 0.0:
                at_c = 0  # not to be read: what lies there may be NaN
        steps = known.steps
        if steps is None:
            if not known.empty:  # k = 0, and the plan is not for that
                arrays = {"a": a, "b": b, "out": out, "c": c, "bias": bias, "residual": residual}
                check_overlap(out, [(n, x) for n, x in arrays.items() if x is not None and n != "out"])
                compute(known.problem, arrays, alpha, beta)
        else:
            try:
                if steps.needs_lock:
                    with self._pool.lock:
                        workspace = self._pool.workspace(steps.workspace_bytes)
                        values = (at_a, at_b, at_c, at_out, at_bias, at_residual, workspace, alpha, beta)
                        execute(self._pool, steps.bind(values, workspace))
                else:
                    values = (at_a, at_b, at_c, at_out, at_bias, at_residual, 0, alpha, beta)
                    execute(self._pool, steps.bind(values, 0))
            except (OverflowError, struct.error) as error:
                raise LaunchError(
                    f"alpha={alpha!r} or beta={beta!r} is no number of the kernel's kind"
                ) from error
        return out if given_out is None else given_out

    def _learn(self, key: Any, arrays: dict[str, Array], beta: float) -> _Known:
        """Check arrays never seen in this form, and work the plan out for them."""
        problem = problem_of(self.problem, arrays["a"], self._open)
        check_present(problem, beta, arrays.get("c"), arrays.get("bias"), arrays.get("residual"))
        for name, array in arrays.items():
            check_array(problem, name, array)
        check_out(arrays["out"])
        steps, empty = None, 0 in (problem.m, problem.n, problem.batch)
        spans = {name: _span_bytes(array) for name, array in arrays.items()}
        if not empty:
            steps = self._steps(problem, arrays)
        known = _Known(
            problem, steps, empty, spans["out"], spans["a"], spans["b"],
            (spans.get("c", 0), spans.get("bias", 0), spans.get("residual", 0)),
        )  # fmt: skip
        if len(self._known) >= _MAX_KEPT:
            self._known.pop(next(iter(tuple(self._known))), None)  # a copy: other threads add to it
        self._known[key] = known
        return known

    def _steps(self, problem: Gemm, arrays: dict[str, Array]) -> Steps | None:
        try:
            operands = {name: pitches(name, array) for name, array in arrays.items()}
            names = {**plan_names(operands, problem), "threads": self._pool.threads, "sm_count": 0}
            align = {}
            for name, array in arrays.items():
                start = address_of(array) | (self._align_mask + 1)
                align[name] = start & -start
                if align[name] < array.itemsize:
                    raise UnsuitableError(
                        f"{name} starts at no multiple of its {array.itemsize}-byte elements"
                    )
            if reasons := self._plan.check(names, align):
                raise UnsuitableError(f"{self._plan.family} cannot run this call: {'; '.join(reasons)}")
        except UnsuitableError:
            if problem.k == 0:
                return None
            raise
        return Steps(self._plan.concrete(names), self._functions, _SLOTS, self._pool.threads)


def _span_bytes(array: Array) -> int:
    """Bytes from an array's first element to the end of its last; no stride is negative here."""
    if array.size == 0:
        return 0
    reach = sum(s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True))
    return int(reach + array.itemsize)
