"""What is the right result of a GEMM, in float64?

    out = activation(alpha * A @ B + beta * C + bias) + residual

A whole result is the nearest whole number, of two the even one.

The measuring process may have no threads when it forks, so BLAS is set to one thread there and large products
are cut into pieces for threads that have ended when this returns.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

# Below this a thread costs more than it saves.
_THREADED_FROM_FLOPS = 50_000_000
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Reference:
    """The result in float64, and the size of what was summed, which bounds are made of."""

    values: F64
    rms: float
    """Root mean square of alpha * A @ B, or of what follows where that is larger."""


def product(a: Array, b: Array, threads: int | None = None) -> F64:
    """a (m, k) times b (k, n) in float64."""
    m, k = a.shape
    n = b.shape[1]
    if 2 * m * n * k < _THREADED_FROM_FLOPS:
        small: F64 = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return small
    count = max(1, threads if threads is not None else len(os.sched_getaffinity(0)))
    out = np.empty((m, n), np.float64)
    wide = a.astype(np.float64)
    # Columns of B are also converted piecewise: B in float64 as a whole would be twice its memory.
    step = max(1, min(-(-n // count), (64 << 20) // max(1, 8 * k)))

    def piece(start: int) -> None:
        np.matmul(wide, b[:, start : start + step].astype(np.float64), out=out[:, start : start + step])

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(piece, range(0, n, step)))
    return out


def activate(values: F64, activation: str | None) -> F64:
    """The activation of an epilogue."""
    if activation is None:
        return values
    if activation == "relu":
        return np.maximum(values, 0.0)
    if activation == "gelu":
        return np.asarray(0.5 * values * (1.0 + np.asarray(_erf(values / math.sqrt(2.0)), np.float64)))
    if activation == "gelu_tanh":
        inner = math.sqrt(2.0 / math.pi) * (values + 0.044715 * values**3)
        return np.asarray(0.5 * values * (1.0 + np.tanh(inner)))
    if activation == "silu":
        with np.errstate(over="ignore"):
            return np.asarray(values / (1.0 + np.exp(-values)))
    raise ValueError(f"unknown activation {activation!r}")


def finish(
    products: F64,
    *,
    alpha: float,
    beta: float,
    c: Array | None,
    bias: Array | None,
    activation: str | None,
    residual: Array | None,
    whole: bool = False,
) -> Reference:
    """Everything that follows the product. c, residual and the result have the shape of `products`. `whole`:
    the result is an integer."""
    total = products if alpha == 1.0 else products * alpha
    rms = _rms(total)
    if c is not None and beta != 0.0:
        total = total + beta * c.astype(np.float64)
    if bias is not None:
        total = total + bias.astype(np.float64)
    rms = max(rms, _rms(total))
    total = activate(total, activation)
    if residual is not None:
        total = total + residual.astype(np.float64)
        rms = max(rms, _rms(total))
    if whole:
        total = np.rint(total)
    return Reference(np.ascontiguousarray(total), rms)


def _rms(values: F64) -> float:
    """Of what is finite: a NaN that belongs into the result must not take the bound from the rest."""
    flat = values.reshape(-1)
    total = float(np.dot(flat, flat))
    if not math.isfinite(total):
        flat = flat[np.isfinite(flat)]
        total = float(np.dot(flat, flat))
    return math.sqrt(total / flat.size) if flat.size else 0.0
