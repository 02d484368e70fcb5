"""How do raw bits become numbers of a PTX type, and back?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Bools", "bits_of", "extend", "pairs", "raw", "signed", "typed", "unsigned"]

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]

_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {
    8: np.uint8,
    16: np.uint16,
    32: np.uint32,
    64: np.uint64,
}
_SIGNED: dict[int, type[np.signedinteger[Any]]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOAT: dict[int, type[np.floating[Any]]] = {16: np.float16, 32: np.float32, 64: np.float64}
_BITS = {
    **{f"{kind}{bits}": bits for kind in "usb" for bits in (8, 16, 32, 64)},
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "tf32": 32,
    "u16x2": 32, "s16x2": 32, "f16x2": 32, "bf16x2": 32, "f32x2": 64,
}  # fmt: skip


def bits_of(type_: str) -> int:
    """The width of a type: 32 for "s32" and "f16x2". KeyError for an unknown one."""
    return _BITS[type_]


def raw(a: Any, bits: int) -> Array:
    """`a` as an array of unsigned integers `bits` wide; wider ones lose their upper bits."""
    return np.asarray(a).astype(_UNSIGNED[bits], copy=False)


def unsigned(bits: int) -> type[np.unsignedinteger[Any]]:
    """numpy's unsigned type of a width."""
    return _UNSIGNED[bits]


def signed(bits: int) -> type[np.signedinteger[Any]]:
    """numpy's signed type of a width."""
    return _SIGNED[bits]


def typed(type_: str, a: Any) -> Array:
    """Raw bits seen as numbers of `type_`: s32 as int32, f16 as float16; b32 and u32 stay unsigned."""
    bits = _BITS[type_]
    found = raw(a, bits)
    if type_[0] == "s":
        return found.view(_SIGNED[bits])
    if type_[0] == "f":
        return found.view(_FLOAT[bits])
    return found


def extend(type_: str, a: Any, bits: int) -> Array:
    """A value of `type_` in a register `bits` wide: sign-extended for .s types, zero-extended for others
    (9.4.1)."""
    own = _BITS[type_]
    if type_[0] == "s" and own < bits:
        return raw(a, own).view(_SIGNED[own]).astype(_SIGNED[bits]).view(_UNSIGNED[bits])
    return raw(a, bits)


def pairs(function: Callable[..., Array], *operands: Any, bits: int = 32) -> Array:
    """Apply `function` to both halves of packed registers (f16x2, s16x2: `bits` 32; f32x2: 64)."""
    wide, half = _UNSIGNED[bits], _UNSIGNED[bits // 2]
    arrays = np.broadcast_arrays(*(raw(o, bits) for o in operands))
    halves = [np.ascontiguousarray(a, wide)[..., None].view(half) for a in arrays]
    return np.ascontiguousarray(function(*halves), half).view(wide)[..., 0].reshape(arrays[0].shape)
