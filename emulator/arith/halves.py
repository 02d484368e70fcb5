"""What do f16 and bf16 instructions compute, alone and in pairs? PTX ISA 9.7.4.

`type_` is f16, bf16 (operands uint16), f16x2 or bf16x2 (uint32, both halves on their own). Every result is
rounded once, to nearest even, from the exact value. NaN results are 0x7fff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.arith import floats
from emulator.arith.compare import flush, numbers
from emulator.arith.rounding import encode_bf16, sum_to_odd
from emulator.arith.types import Array, pairs, raw

__all__ = ["abs_", "add", "ex2", "fma", "max_", "min_", "mul", "neg", "sub", "tanh"]

_NAN = np.uint16(0x7FFF)


def add(type_: str, a: Any, b: Any, ftz: bool = False, sat: bool = False) -> Array:
    """add (9.7.4.1)."""
    if type_.endswith("x2"):
        return pairs(lambda x, y: add(type_[:-2], x, y, ftz, sat), a, b)
    with np.errstate(all="ignore"):
        return _write(type_, sum_to_odd(_read(type_, a, ftz), _read(type_, b, ftz)), ftz, sat)


def sub(type_: str, a: Any, b: Any, ftz: bool = False, sat: bool = False) -> Array:
    """sub (9.7.4.2)."""
    return add(type_, a, neg(type_, b), ftz, sat)


def mul(type_: str, a: Any, b: Any, ftz: bool = False, sat: bool = False) -> Array:
    """mul (9.7.4.3)."""
    if type_.endswith("x2"):
        return pairs(lambda x, y: mul(type_[:-2], x, y, ftz, sat), a, b)
    with np.errstate(all="ignore"):
        return _write(type_, np.multiply(_read(type_, a, ftz), _read(type_, b, ftz)), ftz, sat)


def fma(
    type_: str, a: Any, b: Any, c: Any, ftz: bool = False, sat: bool = False, relu: bool = False
) -> Array:
    """fma: a * b + c with one rounding; `relu` makes negative results 0 (9.7.4.4)."""
    if type_.endswith("x2"):
        return pairs(lambda x, y, z: fma(type_[:-2], x, y, z, ftz, sat, relu), a, b, c)
    with np.errstate(all="ignore"):
        product = np.multiply(_read(type_, a, ftz), _read(type_, b, ftz))
        found = _write(type_, sum_to_odd(product, _read(type_, c, ftz)), ftz, sat)
        if relu:
            found = np.where((found >> np.uint16(15) == 1) & (found != _NAN), np.uint16(0), found)
        return found


def neg(type_: str, a: Any, ftz: bool = False) -> Array:
    """neg: the sign bit turned (9.7.4.5)."""
    if type_.endswith("x2"):
        return pairs(lambda x: neg(type_[:-2], x, ftz), a)
    out: Array = (flush(type_, a) if ftz else raw(a, 16)) ^ np.uint16(0x8000)
    return out


def abs_(type_: str, a: Any, ftz: bool = False) -> Array:
    """abs: the sign bit cleared (9.7.4.6)."""
    if type_.endswith("x2"):
        return pairs(lambda x: abs_(type_[:-2], x, ftz), a)
    out: Array = (flush(type_, a) if ftz else raw(a, 16)) & np.uint16(0x7FFF)
    return out


def min_(
    type_: str,
    a: Any,
    b: Any,
    ftz: bool = False,
    nan: bool = False,
    absolute: bool = False,
    xorsign: bool = False,
) -> Array:
    """min (9.7.4.7), with the modifiers of floats.min_."""
    if type_.endswith("x2"):
        return pairs(lambda x, y: min_(type_[:-2], x, y, ftz, nan, absolute, xorsign), a, b)
    return floats.extreme(type_, True, a, b, None, ftz, nan, absolute, xorsign)


def max_(
    type_: str,
    a: Any,
    b: Any,
    ftz: bool = False,
    nan: bool = False,
    absolute: bool = False,
    xorsign: bool = False,
) -> Array:
    """max (9.7.4.8), with the modifiers of floats.max_."""
    if type_.endswith("x2"):
        return pairs(lambda x, y: max_(type_[:-2], x, y, ftz, nan, absolute, xorsign), a, b)
    return floats.extreme(type_, False, a, b, None, ftz, nan, absolute, xorsign)


def tanh(type_: str, a: Any) -> Array:
    """tanh.approx (9.7.4.9), rounded once from f64."""
    return _approx(np.tanh, type_, a, False)


def ex2(type_: str, a: Any, ftz: bool = False) -> Array:
    """ex2.approx (9.7.4.10), rounded once from f64; bf16 comes only with .ftz."""
    return _approx(np.exp2, type_, a, ftz)


def _approx(function: Callable[[Array], Any], type_: str, a: Any, ftz: bool) -> Array:
    if type_.endswith("x2"):
        return pairs(lambda x: _approx(function, type_[:-2], x, ftz), a)
    with np.errstate(all="ignore"):
        return _write(type_, np.asarray(function(_read(type_, a, ftz))), ftz, False)


def _read(type_: str, a: Any, ftz: bool) -> Array:
    return numbers(type_, flush(type_, a) if ftz else a).astype(np.float64)


def _write(type_: str, x: Array, ftz: bool, sat: bool) -> Array:
    if sat:
        x = np.where(x > 0, np.minimum(x, 1.0), 0.0)
    if type_ == "f16":
        found = np.asarray(x.astype(np.float16)).view(np.uint16)
        found = np.where(x != x, _NAN, found)
    else:
        found = encode_bf16(x)
    return flush(type_, found) if ftz else found
