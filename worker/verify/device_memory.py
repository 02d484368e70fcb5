"""Where do the buffers of a run lie on a GPU, so that a kernel that leaves them is seen?

A GPU has no pages that fault for one byte too many: around each buffer lie 4 KiB of margin, poisoned with NaN
before a run and looked at after it. What is written there is found; what is read there makes the result NaN.
Data ends where the upper margin begins (`end`, as far as its alignment allows), or begins `offset` bytes
after the lower one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from worker.verify.arena import Region
from worker.verify.device_elements import Array, checksum, poison_word, unsigned
from worker.verify.elements import element_dtype
from worker.verify.poison import first_touched

MARGIN_BYTES = 4096
# What cudaMalloc aligns to, and more than any instruction asks for.
_ALIGN = 256


class DeviceMemory(Protocol):
    """Arrays of one device."""

    xp: Any
    """numpy or CuPy."""

    def empty(self, nbytes: int) -> Array:
        """Fresh bytes, aligned to 256."""
        ...

    def address(self, array: Array) -> int: ...

    def to_host(self, array: Array) -> np.ndarray[Any, Any]: ...

    def synchronize(self) -> None:
        """Wait for the device; raises what a kernel did wrong."""
        ...

    def free_bytes(self) -> int: ...


class CupyMemory:
    """The device that is current."""

    def __init__(self) -> None:
        import cupy

        self.xp: Any = cupy

    def empty(self, nbytes: int) -> Array:
        return self.xp.empty(nbytes, np.uint8)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def to_host(self, array: Array) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = self.xp.asnumpy(array)
        return host

    def synchronize(self) -> None:
        self.xp.cuda.runtime.deviceSynchronize()

    def free_bytes(self) -> int:
        pool = self.xp.get_default_memory_pool()
        free, _total = self.xp.cuda.runtime.memGetInfo()
        return int(free) + int(pool.free_bytes())


class DeviceBuffer:
    """One buffer between margins. Its memory goes with the last reference."""

    def __init__(
        self,
        memory: DeviceMemory,
        name: str,
        nbytes: int,
        dtype: str,
        *,
        placement: str = "start",
        offset: int = 0,
        align: int = 1,
    ) -> None:
        """`dtype` says with which NaN it is poisoned. `placement`: `end` (rounded down to a multiple of
        `align`) or `start` (`offset` bytes in)."""
        body_bytes = _round_up(nbytes + (align if placement == "end" else offset), _ALIGN)
        total = MARGIN_BYTES + body_bytes + MARGIN_BYTES
        self._memory = memory
        self._all = memory.empty(total)
        self.dtype = dtype
        start = memory.address(self._all)
        body = start + MARGIN_BYTES
        base = (body + body_bytes - nbytes) & -align if placement == "end" else body + offset
        self.region = Region(name, start, start, base, nbytes, start + total, start + total)
        self._from = base - start
        self.poison()

    @property
    def base(self) -> int:
        """Address of the first byte of the data."""
        return self.region.base

    @property
    def nbytes(self) -> int:
        return self.region.nbytes

    def data(self) -> Array:
        """The data's own bytes."""
        return self._all[self._from : self._from + self.nbytes]

    def poison(self) -> None:
        """Data and margins hold what says that nobody wrote."""
        unsigned(self._all.view(element_dtype_words(self.dtype)))[...] = poison_word(self.dtype)

    def touched(self) -> tuple[str, int] | None:
        """Where a margin no longer holds its poison: (`before` or `past`, bytes from the data), or None."""
        end = self._from + self.nbytes
        kind = element_dtype(self.dtype)
        after = self._memory.to_host(self._all[end:])
        at = first_touched(after, kind, self.region.base + self.nbytes)
        if at is not None:
            return "past", at
        before = self._memory.to_host(self._all[: self._from])
        at = first_touched(before, kind, self.region.start)
        return None if at is None else ("before", before.size - at)

    def checksum(self) -> int:
        """Of the data: did a kernel write to an input?"""
        return checksum(self._memory.xp, self.data())


def element_dtype_words(name: str) -> np.dtype[Any]:
    """Unsigned words of the width of `name`."""
    return np.dtype(f"u{element_dtype(name).itemsize}")


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
