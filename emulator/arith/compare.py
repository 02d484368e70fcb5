"""What do comparisons and selections give? PTX ISA 9.7.6, 9.7.7, 9.3.1, testp 9.7.3.1.

Operands are unsigned arrays of raw bits; predicates are bool arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arith.types import Array, Bools, bits_of, raw, typed, unsigned

__all__ = ["combine", "compare", "flush", "numbers", "selp", "set_", "setp", "slct", "testp"]

_ORDERED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
_FLOATS = ("f16", "bf16", "f32", "f64")


def flush(type_: str, a: Any) -> Array:
    """Subnormal f32 or f16 (raw bits) become zero of the same sign: what .ftz does to operands and
    results."""
    bits = bits_of(type_)
    a = raw(a, bits)
    exponent = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}[type_]
    kind = unsigned(bits)
    out: Array = np.where(a & kind(exponent) == 0, a & kind(1 << (bits - 1)), a)
    return out


def numbers(type_: str, a: Any) -> Array:
    """Raw bits as numpy floats that hold them exactly: bf16 as float32, the others as they are."""
    if type_ == "bf16":
        return (raw(a, 16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return typed(type_, a)


def compare(type_: str, operator: str, a: Any, b: Any, ftz: bool = False) -> Bools:
    """One comparison, lane by lane. `operator`: eq … hs for integers, eq … geu, num, nan for floats."""
    if type_ in _FLOATS:
        if ftz:
            a, b = flush(type_, a), flush(type_, b)
        x, y = numbers(type_, a), numbers(type_, b)
        found: Bools
        if operator == "num":
            found = (x == x) & (y == y)
        elif operator == "nan":
            found = (x != x) | (y != y)
        elif operator in _UNORDERED:
            found = _ORDERED[_UNORDERED[operator]](x, y) | (x != x) | (y != y)
        elif operator == "ne":  # ordered, unlike numpy's
            found = (x < y) | (x > y)
        else:
            found = _ORDERED[operator](x, y)
        return found
    if operator in _UNSIGNED:
        type_, operator = f"u{bits_of(type_)}", _UNSIGNED[operator]
    result: Bools = _ORDERED[operator](typed(type_, a), typed(type_, b))
    return result


def combine(boolean: str | None, value: Bools, c: Any) -> Bools:
    """`value` and, or, xor the predicate `c`; `value` alone without an operation."""
    if boolean is None:
        return value
    operations = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    out: Bools = operations[boolean](value, c)
    return out


def setp(
    type_: str,
    operator: str,
    a: Any,
    b: Any,
    boolean: str | None = None,
    c: Any = None,
    ftz: bool = False,
) -> tuple[Bools, Bools]:
    """setp (9.7.6.2): the predicates p and q, where q combines the opposite comparison.

    For .f16x2 and .bf16x2 (9.7.7.2) p is the answer of the low halves, q that of the high ones.
    """
    if type_ in ("f16x2", "bf16x2"):
        low = compare(type_[:-2], operator, _low(a), _low(b), ftz)
        high = compare(type_[:-2], operator, _high(a), _high(b), ftz)
        return combine(boolean, low, c), combine(boolean, high, c)
    found = compare(type_, operator, a, b, ftz)
    return combine(boolean, found, c), combine(boolean, ~found, c)


def set_(
    d_type: str,
    type_: str,
    operator: str,
    a: Any,
    b: Any,
    boolean: str | None = None,
    c: Any = None,
    ftz: bool = False,
) -> Array:
    """set (9.7.6.1, 9.7.7.1): all bits, or 1.0 for a float `d_type`, where true, else 0."""
    if type_ in ("f16x2", "bf16x2"):
        half = d_type[:-2] if d_type.endswith("x2") else "u16"
        low = set_(half, type_[:-2], operator, _low(a), _low(b), boolean, c, ftz)
        high = set_(half, type_[:-2], operator, _high(a), _high(b), boolean, c, ftz)
        return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
    bits = bits_of(d_type)
    true = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}.get(d_type, 2**bits - 1)
    found = combine(boolean, compare(type_, operator, a, b, ftz), c)
    return np.where(found, unsigned(bits)(true), unsigned(bits)(0))


def selp(type_: str, a: Any, b: Any, c: Any) -> Array:
    """selp: `a` where the predicate `c` is true, else `b` (9.7.6.3)."""
    bits = bits_of(type_)
    return np.where(c, raw(a, bits), raw(b, bits))


def slct(d_type: str, c_type: str, a: Any, b: Any, c: Any, ftz: bool = False) -> Array:
    """slct: `a` where `c` (s32 or f32) is at least 0, else `b`, which is also taken for NaN (9.7.6.4)."""
    if ftz and c_type == "f32":
        c = flush("f32", c)
    return selp(d_type, a, b, typed(c_type, c) >= 0)


def testp(property_: str, type_: str, a: Any) -> Bools:
    """testp: finite, infinite, number, notanumber, normal, subnormal (9.7.3.1), for f32 and f64.

    Zeros of either sign count as normal, as the ISA has it.
    """
    x = typed(type_, a)
    size = np.abs(x)
    smallest = np.finfo(x.dtype).smallest_normal
    match property_:
        case "finite":
            return np.isfinite(x)
        case "infinite":
            return np.isinf(x)
        case "number":
            return ~np.isnan(x)
        case "notanumber":
            return np.isnan(x)
        case "normal":
            out: Bools = np.isfinite(x) & ((size >= smallest) | (size == 0))
            return out
        case "subnormal":
            found: Bools = (size < smallest) & (size > 0)
            return found
    raise ValueError(f"unknown property {property_}")


def _low(a: Any) -> Array:
    return raw(a, 32).astype(np.uint16)


def _high(a: Any) -> Array:
    return (raw(a, 32) >> np.uint32(16)).astype(np.uint16)
