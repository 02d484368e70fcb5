"""What bytes does a kernel receive as its arguments? Launcher, worker and emulator all pack with this."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from rooftile.errors import PlanError
from rooftile.plan.steps import ConcreteArg
from rooftile.plan.tensor_map import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, ConcreteTensorMap

Encode: TypeAlias = Callable[[ConcreteTensorMap, int], bytes]
"""The 128 bytes of a tensor map whose tensor begins at an address: the driver's on a GPU, the emulator's own
there."""

NO_TENSOR = bytes(TENSOR_MAP_BYTES)
"""The map of a buffer that is not there, as without products A and B: a kernel that uses it faults."""

# type -> (struct code, bytes); alignment is the size, as on every 64-bit ABI we compile for.
_CODES = {
    "ptr": ("Q", 8),
    "i32": ("i", 4),
    "u32": ("I", 4),
    "i64": ("q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
}


def arg_offsets(types: Sequence[str]) -> tuple[list[int], int]:
    """Byte offset of each argument when they lie in order in one C struct with natural alignment, and the
    struct's size."""
    offsets: list[int] = []
    end, widest = 0, 1
    for name in types:
        if name == "tensor_map":
            size, align = TENSOR_MAP_BYTES, TENSOR_MAP_ALIGN
        else:
            size = align = _CODES[name][1]
        end += -end % align
        offsets.append(end)
        end += size
        widest = max(widest, align)
    return offsets, end + -end % widest


def pack_args(
    args: Sequence[ConcreteArg],
    pointers: Mapping[str, int],
    scalars: Mapping[str, float],
    encode: Encode | None = None,
) -> bytes:
    """The argument struct. A buffer that is not among `pointers` is a null pointer, and a tensor map of it
    NO_TENSOR; one of a buffer that is there needs `encode`."""
    offsets, size = arg_offsets([a.type for a in args])
    data = bytearray(size)
    for arg, offset in zip(args, offsets, strict=True):
        value: int | float
        if arg.tensor is not None:
            data[offset : offset + TENSOR_MAP_BYTES] = _tensor_map(arg, arg.tensor, pointers, encode)
            continue
        if arg.type == "ptr":
            value = pointers.get(arg.buffer or "", 0)
        elif arg.scalar is not None:
            if arg.scalar not in scalars:
                raise PlanError(f"argument {arg.name}: scalar {arg.scalar} is not given")
            value = float(scalars[arg.scalar])
        else:
            assert arg.value is not None
            value = arg.value
        try:
            struct.pack_into("<" + _CODES[arg.type][0], data, offset, value)
        except (struct.error, OverflowError):
            raise PlanError(f"argument {arg.name} = {value} does not fit in {arg.type}") from None
    return bytes(data)


def _tensor_map(
    arg: ConcreteArg, tensor: ConcreteTensorMap, pointers: Mapping[str, int], encode: Encode | None
) -> bytes:
    where = f"argument {arg.name}"
    if encode is None:
        raise PlanError(f"{where}: tensor maps are not for this kind of launch")
    base = pointers.get(tensor.buffer, 0)
    if not base:
        return NO_TENSOR
    tensor.check_address(base + tensor.offset, where)
    data = encode(tensor, base + tensor.offset)
    if len(data) != TENSOR_MAP_BYTES:
        raise PlanError(f"{where}: a tensor map of {len(data)} bytes, not {TENSOR_MAP_BYTES}")
    return data
