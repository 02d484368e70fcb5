"""What is the right result of a GEMM in float64, worked out on the GPU itself?

The same formula as reference.py (a test holds the two together), for arrays that CuPy has: on a host the
reference of a large problem would take longer than its tuning. Products go to the library's DGEMM; where
there is none, to numpy on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rooftile.problem import Gemm

from worker.verify.bounds import bound_for
from worker.verify.cases import Case
from worker.verify.device_elements import Array, decode
from worker.verify.prepared import Part, problem_flops, sampled
from worker.verify.reference import Reference

# Beyond this only some rows and columns have a reference: 0.4 s on a consumer GPU with its 1 TFLOP/s in
# float64.
MOST_FLOPS = 4e11
# Elements of B that are float64 at a time.
_COLUMNS = 1 << 26


def parts_of(
    xp: Any, case: Case, arrays: Mapping[str, Array], *, most_flops: float = MOST_FLOPS
) -> tuple[Part, ...]:
    """Reference and bound of a case, or of rows and columns of a large one. `arrays` hold words of their
    types, in the shape and order of the formula: a (m, k), b (k, n), c and residual (m, n), bias (n,)."""
    whole = problem_flops(case.problem) <= most_flops
    indices = [()] if whole else sampled(case.problem, case.seed, most_flops)
    return tuple(_part(xp, case, arrays, tuple(_on(xp, i) for i in index)) for index in indices)


def _on(xp: Any, index: Any) -> Any:
    return index if isinstance(index, slice) else xp.asarray(index)


def _part(xp: Any, case: Case, arrays: Mapping[str, Array], index: tuple[Any, ...]) -> Part:
    problem = case.problem
    a, b = arrays["a"], arrays["b"]
    rest = {
        name: arrays[name][index] if index else arrays[name] for name in ("c", "residual") if name in arrays
    }
    bias = arrays.get("bias")
    if len(index) == 1:  # rows, or batch entries
        a = a[index]
        b = b[index] if problem.batch > 1 else b
    elif len(index) == 2:
        b = b[:, index[1]]
        bias = bias[index[1]] if bias is not None else None
    products = product(xp, a, b, problem) if case.alpha != 0.0 else xp.zeros((*a.shape[:-1], b.shape[-1]))
    kind = problem.dtype.c
    reference = finish(
        xp,
        products,
        case,
        {name: decode(xp, x, kind) for name, x in rest.items()},
        None if bias is None else decode(xp, bias, _bias_kind(problem)),
    )
    activated = problem.epilogue.activation is not None
    bound = bound_for(reference, problem.k, problem.dtype.acc, problem.dtype.c, case.alpha, activated)
    return Part(index, reference, bound)


def _bias_kind(problem: Gemm) -> str:
    from rooftile.problem import operand_dtype

    return operand_dtype(problem, "bias")


def product(xp: Any, a: Array, b: Array, problem: Gemm) -> Array:
    """Words of a (…, m, k) times words of b (…, k, n) in float64."""
    if a.ndim == 3:
        return xp.stack([product(xp, a[i], b[i], problem) for i in range(len(a))])
    m, k = a.shape
    n = b.shape[1]
    out = xp.zeros((m, n), np.float64)
    if not (m and n and k):
        return out
    wide = decode(xp, a, problem.dtype.a).astype(np.float64)
    step = max(1, _COLUMNS // k)
    for low in range(0, n, step):
        part = decode(xp, b[:, low : low + step], problem.dtype.b).astype(np.float64)
        out[:, low : low + step] = _matmul(xp, wide, part)
    return out


def _matmul(xp: Any, a: Array, b: Array) -> Array:
    if xp is np:
        return a @ b
    try:
        return xp.matmul(a, b)
    except (ImportError, OSError):  # no cuBLAS beside CuPy
        return xp.asarray(xp.asnumpy(a) @ xp.asnumpy(b))


def finish(xp: Any, products: Array, case: Case, rest: Mapping[str, Array], bias: Array | None) -> Reference:
    """Everything that follows the product; see reference.finish."""
    epilogue = case.problem.epilogue
    total = products if case.alpha == 1.0 else products * case.alpha
    rms = _rms(total)
    if "c" in rest and case.beta != 0.0:
        total = total + case.beta * rest["c"].astype(np.float64)
    if bias is not None:
        total = total + bias.astype(np.float64)
    rms = max(rms, _rms(total))
    total = _activate(xp, total, epilogue.activation)
    if "residual" in rest:
        total = total + rest["residual"].astype(np.float64)
        rms = max(rms, _rms(total))
    return Reference(total, rms)


def _rms(values: Array) -> float:
    if values.size == 0:
        return 0.0
    return math.sqrt(float((values * values).sum()) / values.size)


def _activate(xp: Any, values: Array, activation: str | None) -> Array:
    if activation is None:
        return values
    if activation == "relu":
        return xp.maximum(values, 0.0)
    if activation == "gelu":
        return 0.5 * values * (1.0 + _erf(xp, values / math.sqrt(2.0)))
    if activation == "gelu_tanh":
        inner = math.sqrt(2.0 / math.pi) * (values + 0.044715 * values**3)
        return 0.5 * values * (1.0 + xp.tanh(inner))
    if activation == "silu":
        return values / (1.0 + xp.exp(-xp.clip(values, -700.0, None)))
    raise ValueError(f"unknown activation {activation!r}")


def _erf(xp: Any, values: Array) -> Array:
    if xp is np:
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(values), np.float64)
    from cupyx.scipy.special import erf

    return erf(values)
