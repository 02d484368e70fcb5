"""How is f64 rounded in a direction, and fma of f64 at all, where numpy only rounds to nearest?"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from emulator.arith.rounding import exact_f64, sum_to_odd
from emulator.arith.types import Array

__all__ = ["add64", "directed", "fma64", "sqrt_directed", "towards"]


def add64(x: Array, y: Array, rnd: str) -> Array:
    near = np.asarray(x + y)
    if rnd == "rn":
        return near
    x, y = np.broadcast_arrays(x, y)
    found = directed(near, lambda p, q: p + q, rnd, x, y)
    same = (near == 0) & (np.signbit(x) == np.signbit(y))
    return np.where(same, near, found)


def directed(
    near: Array, function: Callable[..., Fraction], rnd: str, *operands: Array, where: Any = True
) -> Array:
    """Another rounding of f64 than to nearest, exactly; `near` stays where an operand is not finite."""
    operands = tuple(np.broadcast_arrays(*operands))
    finite = np.broadcast_to(np.asarray(where), near.shape).copy()
    for operand in operands:
        finite &= np.isfinite(operand)
    found = near.copy()
    found[finite] = exact_f64(function, rnd, *(o[finite] for o in operands))
    return found


def fma64(x: Array, y: Array, z: Array, rnd: str) -> Array:
    finite = np.isfinite(x) & np.isfinite(y)
    usual = finite & np.isfinite(z)
    # A product that f64 cannot hold is no infinity yet.
    near = np.where(finite & ~usual, z, x * y + z)
    if rnd == "rn":
        fast = usual & _middle(x * y) & _middle(x) & _middle(y) & (_middle(z) | (z == 0))
        fast_result = _fma64_fast(np.where(fast, x, 1), np.where(fast, y, 1), np.where(fast, z, 0))
        near = np.where(fast, fast_result, near)
        usual = usual & ~fast
    if usual.any():
        exact = exact_f64(lambda p, q, r: p * q + r, rnd, x[usual], y[usual], z[usual])
        # 0 + 0 of one sign keeps it.
        zeros = (x[usual] * y[usual] == 0) & (np.minimum(np.abs(x[usual]), np.abs(y[usual])) == 0)
        zeros &= (z[usual] == 0) & (np.signbit(x[usual] * y[usual]) == np.signbit(z[usual]))
        near[usual] = np.where(zeros, z[usual], exact)
    return near


def _middle(x: Array) -> Array:
    """Far from overflow and from subnormals, so that no error term is lost."""
    size = np.abs(x)
    return np.asarray((size > 2.0**-450) & (size < 2.0**450))


def _fma64_fast(x: Array, y: Array, z: Array) -> Array:
    """Boldo and Melquiond's algorithm; the product's error by Dekker's splitting."""
    product = x * y
    x1, x0 = _split(x)
    y1, y0 = _split(y)
    low = ((x1 * y1 - product) + x1 * y0 + x0 * y1) + x0 * y0
    t = z + low
    back = t - z
    t_low = (z - (t - back)) + (low - back)
    v = product + t
    back = v - product
    v_low = (product - (v - back)) + (t - back)
    return np.asarray(v + sum_to_odd(t_low, v_low))


def _split(x: Array) -> tuple[Array, Array]:
    big = x * 134217729.0  # 2^27 + 1
    high = big - (big - x)
    return high, x - high


def towards(near: Array, side: Array, rnd: str, valid: Array, x: Array, y: Array) -> Array:
    """`near`, or its neighbour. `side` > 0: it lies above the exact value, < 0: below. Infinite for
    overflow."""
    negative = np.signbit(x) != np.signbit(y) if x is not y else np.zeros(np.shape(x), np.bool_)
    down = np.nextafter(near, np.float32(-np.inf))
    up = np.nextafter(near, np.float32(np.inf))
    if rnd == "rz":
        lower, raise_ = (side > 0) & ~negative, (side < 0) & negative
    elif rnd == "rm":
        lower, raise_ = side > 0, np.zeros(np.shape(side), np.bool_)
    else:
        lower, raise_ = np.zeros(np.shape(side), np.bool_), side < 0
    found = np.where(valid & lower, down, np.where(valid & raise_, up, near))
    # Stepping from the least number to zero keeps the sign.
    return np.where(
        valid & (found == 0), np.copysign(found, np.where(negative, np.float32(-1), np.float32(1))), found
    )


def sqrt_directed(near: Array, x: Array, rnd: str) -> Array:
    found = near.copy()
    flat, values = found.reshape(-1), np.asarray(x, np.float64).reshape(-1)
    for i, value in enumerate(values):
        if not np.isfinite(value) or value <= 0:
            continue
        square, exact = Fraction(float(flat[i])) ** 2, Fraction(float(value))
        if rnd == "rp" and square < exact:
            flat[i] = np.nextafter(flat[i], np.inf)
        elif rnd in ("rz", "rm") and square > exact:
            flat[i] = np.nextafter(flat[i], -np.inf)
    return flat.reshape(np.shape(x))
