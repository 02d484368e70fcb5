"""What bytes does a kernel receive as its arguments? Launcher, worker and emulator all pack with this."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from rooftile.errors import PlanError
from rooftile.plan.steps import ConcreteArg

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
        size = _CODES[name][1]
        end += -end % size
        offsets.append(end)
        end += size
        widest = max(widest, size)
    return offsets, end + -end % widest


def pack_args(
    args: Sequence[ConcreteArg], pointers: Mapping[str, int], scalars: Mapping[str, float]
) -> bytes:
    """The argument struct. A buffer that is not among `pointers` is a null pointer."""
    offsets, size = arg_offsets([a.type for a in args])
    data = bytearray(size)
    for arg, offset in zip(args, offsets, strict=True):
        value: int | float
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
