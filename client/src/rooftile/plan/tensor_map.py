"""How does a kernel see a tensor that TMA copies: which elements, in which boxes, how swizzled?

A tensor map is an argument of 128 bytes that the driver encodes (cuTensorMapEncodeTiled). What the driver
refuses is refused here first, with the number that is wrong: it answers only "invalid value", and launcher
and emulator shall refuse the same. Source of the rules: the driver API's text on cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from rooftile.errors import PlanError, show_value
from rooftile.plan.expr import Expr, evaluate, expr_json, parse_expr

TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGN = 64
"""Of the argument (CUDA driver API, CUtensorMap)."""

ELEMENT_BYTES = {
    "f64": 8, "f32": 4, "tf32": 4, "s32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
SWIZZLES = (0, 32, 64, 128)
L2_PROMOTIONS = (0, 64, 128, 256)
FILLS = ("zero", "nan")
_FLOATS = ("f64", "f32", "tf32", "f16", "bf16")
_MOST_RANK = 5
_MOST_BOX = 256
_MOST_DIM = 2**32
_MOST_STRIDE = 2**40
_UNIT = 16
"""Bytes that addresses, strides and rows of a box are multiples of."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor in `buffer`, from byte `offset` on. The innermost dimension is first and contiguous; `strides`
    are in bytes, of all dimensions but that one. `box`: elements of one copy. `swizzle`: bytes among which
    16-byte pieces are exchanged in shared memory, 0 none. `fill`: what a load gives outside the tensor."""

    buffer: str
    dtype: str
    dims: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 0
    fill: str = "zero"
    offset: Expr = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("dims", "strides"):
            values = _list(getattr(self, name), name)
            put(self, name, tuple(parse_expr(e, f"tensor.{name}") for e in values))
        put(self, "offset", parse_expr(self.offset, "tensor.offset"))
        put(self, "box", _list(self.box, "box"))
        _choice("dtype", self.dtype, tuple(ELEMENT_BYTES))
        _choice("swizzle", self.swizzle, SWIZZLES)
        _choice("l2_promotion", self.l2_promotion, L2_PROMOTIONS)
        _choice("fill", self.fill, FILLS)
        rank = len(self.dims)
        if not 1 <= rank <= _MOST_RANK:
            raise PlanError(f"tensor.dims: {rank} dimensions, not 1 to {_MOST_RANK}")
        if len(self.strides) != rank - 1 or len(self.box) != rank:
            raise PlanError(
                f"tensor: {rank} dims take {rank - 1} strides and {rank} sizes of a box, not"
                f" {len(self.strides)} and {len(self.box)}"
            )
        for size in self.box:
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_BOX:
                raise PlanError(f"tensor.box: {show_value(size)} is not a whole number, 1 to {_MOST_BOX}")
        row = self.box[0] * self.element_bytes
        if row % _UNIT:
            raise PlanError(f"tensor.box: its rows of {row} bytes are no multiple of {_UNIT}")
        if self.swizzle and row > self.swizzle:
            raise PlanError(f"tensor.box: its rows of {row} bytes are over the swizzle of {self.swizzle}")
        if self.fill == "nan" and self.dtype not in _FLOATS:
            raise PlanError(f"tensor.fill: nan is for {' '.join(_FLOATS)}, not {self.dtype}")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def box_bytes(self) -> int:
        """Bytes of one copy, which a barrier is told whatever part of the box lies outside."""
        return prod(self.box) * self.element_bytes

    def expressions(self) -> Iterator[Expr]:
        """Every expression of it."""
        yield from (*self.dims, *self.strides, self.offset)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this tensor map."""
        return {
            "buffer": self.buffer,
            "dtype": self.dtype,
            "dims": [expr_json(e) for e in self.dims],
            "strides": [expr_json(e) for e in self.strides],
            "box": list(self.box),
            "swizzle": self.swizzle,
            "l2_promotion": self.l2_promotion,
            "fill": self.fill,
            "offset": expr_json(self.offset),
        }

    @classmethod
    def from_json(cls, obj: object) -> TensorMap:
        """The tensor map that `to_json` wrote; unknown and missing fields are a PlanError."""
        wanted = ("buffer", "dtype", "dims", "strides", "box", "swizzle", "l2_promotion", "fill", "offset")
        if not isinstance(obj, Mapping) or set(obj) != set(wanted):
            raise PlanError(f"tensor: {show_value(obj)} has not exactly the fields {' '.join(wanted)}")
        return cls(**{name: obj[name] for name in wanted})


@dataclass(frozen=True)
class ConcreteTensorMap:
    """A tensor map whose numbers are known, but for the buffer's address."""

    buffer: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    l2_promotion: int
    fill: str
    offset: int

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    def check_address(self, address: int, where: str) -> None:
        """PlanError where the tensor would begin at an address that the driver refuses."""
        if address % _UNIT:
            raise PlanError(f"{where}: its tensor at {address:#x} is not aligned to {_UNIT} bytes")


def concrete_tensor_map(tensor: TensorMap, names: Mapping[str, int], where: str) -> ConcreteTensorMap:
    """The tensor map for these sizes; PlanError for numbers that the driver refuses."""
    dims = tuple(evaluate(e, names) for e in tensor.dims)
    strides = tuple(evaluate(e, names) for e in tensor.strides)
    for size in dims:
        if not 1 <= size <= _MOST_DIM:
            raise PlanError(f"{where}: a tensor's dimension of {size} is not 1 to 2^32")
    for stride in strides:
        if stride % _UNIT or not 0 <= stride < _MOST_STRIDE:
            raise PlanError(
                f"{where}: a tensor's stride of {stride} bytes is no multiple of {_UNIT} below 2^40"
            )
    offset = evaluate(tensor.offset, names)
    return ConcreteTensorMap(
        tensor.buffer, tensor.dtype, dims, strides, tensor.box, tensor.swizzle, tensor.l2_promotion,
        tensor.fill, offset,
    )  # fmt: skip


def _list(value: object, name: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise PlanError(f"tensor.{name}: {show_value(value)} is not a list")
    return tuple(value)


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # By type too: True is 1 in Python.
    if (type(value), value) not in {(type(a), a) for a in allowed}:
        raise PlanError(f"tensor.{name}: {show_value(value)} is not one of {' '.join(map(str, allowed))}")
