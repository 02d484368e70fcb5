"""What does cvt compute? PTX ISA 9.7.9.21.

`cvt("bf16x2", "f32", a, b, rnd="rn")` is cvt.rn.bf16x2.f32. Operands are arrays of raw bits, the source may
be wider than its type; the result has the width of its type (uint8, uint16, uint32, uint64): `types.extend`
brings it to a wider register. Not here: stochastic rounding (.rs) and .s2f6x2, which are a ValueError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.arith.compare import flush, numbers
from emulator.arith.formats import FORMATS, decode, encode
from emulator.arith.rounding import encode_bf16, nearest_multiple, round_f32, sum_to_odd
from emulator.arith.types import Array, bits_of, raw, signed, typed, unsigned

__all__ = ["cvt"]

_INTEGERS = tuple(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGER_ROUNDING = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}
_PACKED = {"e4m3x2": 8, "e5m2x2": 8, "e2m3x2": 8, "e3m2x2": 8, "e2m1x2": 4, "ue8m0x2": 8}
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}


def cvt(
    d_type: str,
    a_type: str,
    a: Any,
    b: Any = None,
    rnd: str | None = None,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
    satfinite: bool = False,
) -> Array:
    """One conversion; `b` is the second source of the packed forms (it goes to the lower half)."""
    with np.errstate(all="ignore"):
        if d_type.endswith("x2"):
            return _packed(d_type, a_type, a, b, rnd or "rn", relu, satfinite)
        if d_type in _INTEGERS and a_type in _INTEGERS:
            return _integer_to_integer(d_type, a_type, a, sat)
        if d_type in _INTEGERS and a_type in _FLOATS:
            return _float_to_integer(d_type, a_type, a, rnd, ftz)
        if d_type in _FLOATS and a_type in _INTEGERS:
            return _finish(d_type, _integer_to_float(d_type, a_type, a, rnd or "rn"), ftz, sat, relu)
        if (d_type in _FLOATS or d_type == "tf32") and a_type in _FLOATS:
            return _finish(d_type, _float_to_float(d_type, a_type, a, rnd, ftz, satfinite), ftz, sat, relu)
    raise ValueError(f"no conversion from {a_type} to {d_type}")


def _integer_to_integer(d_type: str, a_type: str, a: Any, sat: bool) -> Array:
    value = typed(a_type, a)
    bits = bits_of(d_type)
    if sat:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if d_type[0] == "s" else (0, (1 << bits) - 1)
        info = np.iinfo(value.dtype)
        value = np.clip(value, value.dtype.type(max(low, info.min)), value.dtype.type(min(high, info.max)))
    return value.astype(unsigned(bits))


def _float_to_integer(d_type: str, a_type: str, a: Any, rnd: str | None, ftz: bool) -> Array:
    """Clamped to the range; NaN is 0, or 1 << (width - 1) if f64 or a 64-bit integer is involved."""
    if ftz and a_type == "f32":
        a = flush("f32", a)
    x = numbers(a_type, a).astype(np.float64)
    if rnd is None or rnd not in _INTEGER_ROUNDING:
        raise ValueError("a conversion to an integer needs .rni, .rzi, .rmi or .rpi")
    x = nearest_multiple(x, _INTEGER_ROUNDING[rnd])
    bits = bits_of(d_type)
    kind = unsigned(bits)
    if d_type[0] == "s":
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
        inside = np.where((x >= low) & (x < high), x, 0).astype(np.int64).astype(signed(bits)).view(kind)
        least, most = kind(1 << (bits - 1)), kind((1 << (bits - 1)) - 1)
    else:
        low, high = 0.0, 2.0**bits
        inside = np.where((x >= low) & (x < high), x, 0).astype(np.uint64).astype(kind)
        least, most = kind(0), kind((1 << bits) - 1)
    found = np.where(x >= high, most, np.where(x < low, least, inside))
    nan = kind(1 << (bits - 1)) if a_type == "f64" or bits == 64 else kind(0)
    return np.where(x != x, nan, found)


def _integer_to_float(d_type: str, a_type: str, a: Any, rnd: str) -> Array:
    value = typed(a_type, a)
    if bits_of(a_type) < 64:
        x = value.astype(np.float64)
    else:
        # Both halves are exact in f64; the lower one is never negative.
        high = (value >> value.dtype.type(32)).astype(np.float64) * 2.0**32
        low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
        if d_type == "f64":
            near = high + low
            return _directed(near, np.sign((near - high) - low), rnd).view(np.uint64)
        x = sum_to_odd(high, low)
    if d_type == "f64":
        return x.view(np.uint64)
    return _narrow(d_type, x, rnd, False)


def _directed(near: Array, above: Array, rnd: str) -> Array:
    """`near` or its neighbour; `above`: the sign of near minus the exact value."""
    down, up = np.nextafter(near, -np.inf), np.nextafter(near, np.inf)
    if rnd == "rz":
        return np.where((above > 0) & (near > 0), down, np.where((above < 0) & (near < 0), up, near))
    if rnd == "rm":
        return np.where(above > 0, down, near)
    return np.where(above < 0, up, near) if rnd == "rp" else np.asarray(near)


def _float_to_float(d_type: str, a_type: str, a: Any, rnd: str | None, ftz: bool, satfinite: bool) -> Array:
    if a_type == "f32":
        a = flush("f32", a) if ftz else raw(a, 32)
    if rnd in _INTEGER_ROUNDING:
        x = nearest_multiple(numbers(a_type, a).astype(np.float64), _INTEGER_ROUNDING[rnd])
        return _narrow(d_type, x, "rn", False)
    if d_type == a_type:
        return raw(a, bits_of(d_type))
    if a_type == "bf16" and d_type == "f32":
        return raw(a, 16).astype(np.uint32) << np.uint32(16)
    if a_type == "f32" and d_type == "bf16" and rnd == "rn" and not satfinite:
        return (_nearest(raw(a, 32), 16) >> np.uint32(16)).astype(np.uint16)
    if d_type == "tf32" and a_type == "f32" and rnd in ("rn", "rna") and not satfinite:
        return _nearest(raw(a, 32), 13, away=rnd == "rna") & np.uint32(0xFFFFE000)
    if a_type == "f32" and d_type == "f16" and rnd == "rn" and not satfinite:
        return np.asarray(raw(a, 32).view(np.float32).astype(np.float16)).view(np.uint16)
    return _narrow(d_type, numbers(a_type, a).astype(np.float64), rnd or "rn", satfinite)


def _nearest(bits: Array, cut: int, away: bool = False) -> Array:
    """f32 rounded to the nearest number without its lower `cut` bits, which still have to be cut off.

    An overflow runs over into the code of infinity, as it should. NaN becomes 0x7fffffff.
    """
    half = np.uint32(1 << (cut - 1))
    if away:
        rounded = bits + half
    else:
        rounded = bits + ((bits >> np.uint32(cut) & np.uint32(1)) + (half - np.uint32(1)))
    nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FFFFFFF), rounded) if nan.any() else rounded


def _narrow(d_type: str, x: Array, rnd: str, satfinite: bool) -> Array:
    """An f64 (exact, or to odd) as raw bits of a float type."""
    if d_type == "f64":
        return x.view(np.uint64)
    if d_type == "f32":
        return round_f32(x, rnd).view(np.uint32)
    if not satfinite and rnd == "rn":
        if d_type == "f16":
            return np.asarray(x.astype(np.float16)).view(np.uint16)
        if d_type == "bf16":
            return encode_bf16(x)
    code = encode(d_type, x, rnd, satfinite)
    return code << np.uint32(13) if d_type == "tf32" else code.astype(np.uint16)


def _finish(d_type: str, found: Array, ftz: bool, sat: bool, relu: bool) -> Array:
    """NaN made canonical, then .sat, .relu and .ftz."""
    if d_type == "tf32":
        nan = found & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
        found = np.where(nan, np.uint32(0x7FFFFFFF), found)
        return np.where((found >> np.uint32(31) == 1) & ~nan, np.uint32(0), found) if relu else found
    kind = unsigned(bits_of(d_type))
    x = numbers(d_type, found)
    nan = x != x
    if sat:
        one = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}[d_type]
        found = np.where(nan | (x <= 0), kind(0), np.where(x >= 1, kind(one), found))
    elif nan.any():
        found = np.where(nan, kind(_NAN[d_type]), found)
    if relu:
        found = np.where(np.signbit(x) & ~nan, kind(0), found)
    return flush("f32", found) if ftz and d_type == "f32" else found


def _packed(d_type: str, a_type: str, a: Any, b: Any, rnd: str, relu: bool, satfinite: bool) -> Array:
    """The forms of two numbers: `a` goes to the upper half, `b` to the lower; or both halves of `a`."""
    if rnd == "rs":
        raise ValueError("stochastic rounding (.rs) is not supported")
    if a_type.endswith("x2"):
        source = a_type[:-2]
        width = _PACKED.get(a_type, 16)
        whole = raw(a, 32)
        mask = np.uint32((1 << width) - 1)
        a, b = (whole >> np.uint32(width)) & mask, whole & mask
    else:
        source = a_type
    target = d_type[:-2]
    if target == "bf16" and source == "f32" and rnd == "rn" and not (relu or satfinite):
        upper = _nearest(raw(a, 32), 16) & np.uint32(0xFFFF0000)
        return upper | _nearest(raw(b, 32), 16) >> np.uint32(16)
    high, low = (_one(target, source, v, rnd, relu, satfinite) for v in (a, b))
    width = _PACKED.get(d_type, 16)
    return (high.astype(np.uint32) << np.uint32(width) | low).astype(unsigned(2 * width))


def _one(target: str, source: str, a: Any, rnd: str, relu: bool, satfinite: bool) -> Array:
    if source == "ue8m0":
        if target != "bf16":
            raise ValueError(f"no conversion from ue8m0x2 to {target}x2")
        exponent = raw(a, 32)
        x = np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent.astype(np.int32) - 127))
        return encode_bf16(x).astype(np.uint32)
    if source in FORMATS and source not in _FLOATS:
        return _finish(
            target, _narrow(target, decode(source, raw(a, 32)), rnd, satfinite), False, False, relu
        )
    if source not in _FLOATS:
        raise ValueError(f"no conversion from {source} to {target}x2")
    if target in _FLOATS:
        return cvt(target, source, a, None, rnd, relu=relu, satfinite=satfinite)
    x = numbers(source, a).astype(np.float64)
    if target == "ue8m0":
        return _power(x, rnd, satfinite)
    if target not in FORMATS:
        raise ValueError(f"no conversion from {source} to {target}x2")
    if relu:
        x = np.where(np.signbit(x) & (x == x), 0.0, x)
    return encode(target, x, rnd, satfinite)


def _power(x: Array, rnd: str, satfinite: bool) -> Array:
    """ue8m0 of the magnitude: the power of two below (rz) or above (rp)."""
    size = np.abs(x)
    fraction, exponent = np.frexp(size)
    power = exponent - 1 + ((fraction > 0.5) if rnd == "rp" else 0) + 127
    code = np.clip(power, 0, 254)
    code = np.where(size == 0, 0, code)
    code = np.where(np.isinf(size) | (power > 254), 254 if satfinite or rnd == "rz" else 255, code)
    return np.where(x != x, 255, code).astype(np.uint32)
