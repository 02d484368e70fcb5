"""Where does a kernel's workspace come from, and where does an array's data lie?"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

# Every workspace starts on a cache line: vector stores of any width are aligned in it.
WORKSPACE_ALIGN = 64
_HUGE_PAGE_BYTES = 2 * 1024 * 1024

_char_over = ctypes.c_char.from_buffer
_address_of = ctypes.addressof


class Workspace:
    """Uninitialised scratch memory, page aligned, given back when the last reference goes.

    From 2 MiB on it is placed so that huge pages fit and asks for them: packing a large B through 4 KiB pages
    misses the TLB on nearly every line.
    """

    __slots__ = ("_map", "address", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        huge = size_bytes >= _HUGE_PAGE_BYTES
        slack = _HUGE_PAGE_BYTES if huge else 0
        self._map = mmap.mmap(-1, max(size_bytes, 1) + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = _address_of(_char_over(self._map))
        if huge:
            start = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without huge pages: only slower
                    self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = start
        self.size_bytes = size_bytes


def address_of(array: Any) -> int:
    """The address of an array's first element.

    Through the buffer protocol where that works (contiguous and writable: 0.4 us, where
    `array.ctypes.data` takes 1.5 us), else by what the array says of itself.
    """
    try:
        return _address_of(_char_over(array))
    except (TypeError, ValueError, BufferError):
        return int(array.__array_interface__["data"][0])
