"""What runs when the vendor's kernel is the best there is? numpy.matmul, called and checked like one of ours.

    out = activation(alpha * A @ B + beta * C + bias) + residual

numpy's BLAS does the product straight into `out` where its layout allows; the epilogue follows in place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rooftile.launch.errors import LaunchError
from rooftile.launch.operands import (
    as_array,
    as_scalar,
    check_absent,
    check_array,
    check_out,
    check_overlap,
    check_present,
    check_scalars,
    in_range,
    numpy_dtype,
    problem_of,
)
from rooftile.problem import Gemm, operand_dtype, operand_shape

if TYPE_CHECKING:
    from rooftile.launch.operands import Array


class Baseline:
    """numpy for one GEMM problem, with the call of a kernel."""

    def __init__(self, problem: Gemm, *, open_sizes: bool = False) -> None:
        self.problem = problem
        self._open = open_sizes
        for name in ("a", "b", "out"):
            numpy_dtype(operand_dtype(problem, name))  # refuses bf16 and narrower before anyone relies on it

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        residual: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        stream: Any = None,
    ) -> Any:
        """The result; `out` itself where it was given."""
        a, b = as_array("a", a), as_array("b", b)
        given = {"c": c, "bias": bias, "residual": residual}
        arrays = {name: as_array(name, value) for name, value in given.items() if value is not None}
        alpha, beta = as_scalar("alpha", alpha), as_scalar("beta", beta)
        problem = problem_of(self.problem, a, self._open)
        check_absent(problem, scale_a, scale_b, stream)
        check_scalars(problem, alpha, beta)
        check_present(problem, beta, c, bias, residual)
        if out is None:
            target = np.empty(operand_shape(problem, "out"), numpy_dtype(operand_dtype(problem, "out")))
        else:
            target = as_array("out", out)
        arrays |= {"a": a, "b": b, "out": target}
        for name, array in arrays.items():
            check_array(problem, name, array)
        check_out(target)
        check_overlap(target, [(n, x) for n, x in arrays.items() if n != "out"])
        compute(problem, arrays, alpha, beta)
        return target if out is None else out


def compute(problem: Gemm, arrays: dict[str, Array], alpha: float, beta: float) -> None:
    """The problem on checked arrays; out may be c. Sizes of 0 included (k = 0: the product is 0)."""
    out = _as_mn(arrays["out"], problem.layout.c, "mn")
    if out.size == 0:
        return
    a = _as_mn(arrays["a"], problem.layout.a, "mk")
    b = _as_mn(arrays["b"], problem.layout.b, "kn")
    kind = numpy_dtype(problem.dtype.acc if problem.dtype.acc != "f16" else "f32")
    in_range("alpha", alpha, kind)
    in_range("beta", beta, kind)
    if kind.kind == "i" and out.dtype.kind == "i" and not (alpha.is_integer() and beta.is_integer()):
        raise LaunchError(
            f"alpha={alpha} and beta={beta} must be whole numbers where the result is {out.dtype}"
        )
    c = _as_mn(arrays["c"], problem.layout.c, "mn") if beta != 0.0 else None
    # In place only when nothing is rounded on the way: a narrower out gets the finished sum, once.
    in_place = out.dtype == kind and a.dtype == b.dtype == kind
    if c is not None and in_place and np.may_share_memory(c, out):
        c = c.copy()
    total: Array
    if alpha == 0.0:
        total = out if in_place else np.empty(out.shape, kind)
        total[...] = 0
    elif in_place:
        total = np.matmul(a, b, out=out)
    else:
        total = np.matmul(a.astype(kind, copy=False), b.astype(kind, copy=False))
    if kind.kind == "i" and out.dtype.kind == "f":  # exact sums, then an epilogue in floats
        kind = np.dtype(np.float32)
        total = total.astype(kind)
    if alpha not in (0.0, 1.0):
        np.multiply(total, kind.type(alpha), out=total)
    if c is not None:
        total += c.astype(kind, copy=False) * kind.type(beta) if beta != 1.0 else c
    if problem.epilogue.bias is not None:
        total += arrays["bias"]
    if problem.epilogue.activation is not None:
        activate(problem.epilogue.activation, total)
    if problem.epilogue.residual:
        total += _as_mn(arrays["residual"], problem.layout.c, "mn")
    if total is not out:
        out[...] = total


def _as_mn(array: Array, letters: str, wanted: str) -> Array:
    return array if letters == wanted else array.swapaxes(-1, -2)


# -- activations ----------------------------------------------------------------------------------------

# Python floats: numpy keeps an array's float32 when it meets one.
_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def activate(name: str, x: Array) -> None:
    """Apply an activation of the epilogue in place."""
    if name == "relu":
        # Written so that NaN stays NaN, as in every kernel of ours.
        np.maximum(x, 0, out=x)
        return
    if name == "silu":
        with np.errstate(over="ignore"):  # exp(-x) of a large negative x is inf, and x / inf is the right 0
            x /= 1 + np.exp(-x)
        return
    if name == "gelu_tanh":
        with np.errstate(over="ignore"):  # tanh of inf is the right 1
            twice = 1 + np.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))
    elif name == "gelu":
        # erfc and not 1 + erf: far below 0 the difference would be all rounding.
        twice = erfc(x * -_SQRT_HALF)
    else:
        raise LaunchError(f"the Baseline has no activation {name!r}")
    twice *= 0.5
    x *= twice


# log(erfc(x) exp(x^2) / t) with t = 1 / (1 + x/2), as a polynomial in 8/3 t - 5/3 for x in [0, 6]: a
# Chebyshev fit of degree 8 to math.erfc. In float32 the result is within 5e-7 of erfc, and within 2e-6 of it
# relatively for x up to 3 (tests/client/test_baseline.py measures both); the rest is rounding.
_ERFC = (5.30708946e-05, -0.000169957517, -0.000306962802, 0.00200913981, 0.000485504624, -0.0215180907,
         0.00557174472, 0.515312267, -0.501436745)  # fmt: skip


def erfc(x: Array) -> Array:
    """1 - erf(x) to the precision of x's dtype (float32 or float64), also where it is tiny; a new array."""
    if x.dtype == np.float64:
        # numpy has none and the client does not bring scipy: right, but element by element.
        return np.fromiter(map(math.erfc, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)
    size = np.abs(x)
    t = 1 / (1 + size * 0.5)
    u = t * (8 / 3) - 5 / 3
    log = np.full_like(u, _ERFC[0])
    for coefficient in _ERFC[1:]:
        log *= u
        log += coefficient
    log -= size * size
    t *= np.exp(log, out=log)
    return np.where(x < 0, 2 - t, t)
