"""Where do the buffers of a run lie so that a kernel that leaves them is seen?

Each buffer has a mapping of its own: 2 MiB that nobody may touch, a body of whole pages, 2 MiB again. The
data ends exactly at the end of the body (`end`: one byte too far faults) or begins as an allocator would
put it, 16 bytes into a page (`start`: one page too far back faults; what is between is poisoned).
What the body holds beside the data is margin: poisoned before a run, looked at after it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

GUARD_BYTES = 2 << 20
PAGE_BYTES = mmap.PAGESIZE
HUGE_PAGE_BYTES = 2 << 20
# numpy asks for huge pages from 4 MiB on; what is measured should lie as what is used does.
HUGE_FROM_BYTES = 4 << 20
# glibc's malloc gives large blocks at 16 bytes past a page: so lie the arrays of a program.
ALLOCATOR_OFFSET = 16
# A kernel that writes a vector too far writes up to 64 bytes; a row too far is found by the guard or here.
MARGIN_BYTES = PAGE_BYTES

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE = 2, 0x20, 0x4000
_MADV_HUGEPAGE = 14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
for _name in ("munmap", "mprotect", "madvise"):
    getattr(_libc, _name).restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """Where a buffer lies: what a fault's address is compared with."""

    name: str
    start: int  # of the lower guard
    body: int
    base: int
    nbytes: int
    body_end: int
    end: int  # of the upper guard

    def to_json(self) -> list[Any]:
        return [self.name, self.start, self.body, self.base, self.nbytes, self.body_end, self.end]

    @staticmethod
    def from_json(value: list[Any]) -> Region:
        return Region(str(value[0]), *(int(number) for number in value[1:]))


class GuardedBuffer:
    """One buffer between guards. Memory is given back by `close()` or with the last reference."""

    __slots__ = ("_closed", "region")

    def __init__(
        self,
        name: str,
        nbytes: int,
        *,
        placement: str,
        offset: int = ALLOCATOR_OFFSET,
        align: int = 1,
        huge_from_bytes: int = HUGE_FROM_BYTES,
    ) -> None:
        """`placement`: `end` (rounded down to a multiple of `align`) or `start` (`offset` into the page)."""
        if placement == "end":
            body_bytes = _round_up(nbytes + align, PAGE_BYTES)
        else:
            body_bytes = _round_up(offset + nbytes + MARGIN_BYTES, PAGE_BYTES)
        huge = nbytes >= huge_from_bytes
        slack = HUGE_PAGE_BYTES if huge else 0
        total = GUARD_BYTES + slack + body_bytes + GUARD_BYTES
        start = _map(total)
        body = start + GUARD_BYTES
        if huge:
            body = _round_up(body, HUGE_PAGE_BYTES)
        self._closed = False
        if placement == "end":
            base = (body + body_bytes - nbytes) & -align
        else:
            base = body + offset
        self.region = Region(name, start, body, base, nbytes, body + body_bytes, start + total)
        try:
            self._protect(_PROT_READ | _PROT_WRITE)
        except OSError:
            self.close()
            raise
        if huge:
            _libc.madvise(body, body_bytes, _MADV_HUGEPAGE)  # refused: only slower

    @property
    def base(self) -> int:
        return self.region.base

    @property
    def nbytes(self) -> int:
        return self.region.nbytes

    def data(self) -> Bytes:
        """The buffer itself."""
        return _over(self.region.base, self.region.nbytes)

    def margins(self) -> tuple[Bytes, Bytes]:
        """What the body holds before and after the data."""
        region = self.region
        after = region.base + region.nbytes
        return _over(region.body, region.base - region.body), _over(after, region.body_end - after)

    def body(self) -> Bytes:
        """Data and margins."""
        return _over(self.region.body, self.region.body_end - self.region.body)

    def read_only(self) -> None:
        """From now on a write faults: an input that a kernel changes is seen at once."""
        self._protect(_PROT_READ)

    def _protect(self, how: int) -> None:
        region = self.region
        if _libc.mprotect(region.body, region.body_end - region.body, how) != 0:
            raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            _libc.munmap(self.region.start, self.region.end - self.region.start)

    def __del__(self) -> None:
        self.close()


def describe_fault(regions: Iterable[Region], address: int, write: bool) -> dict[str, Any] | None:
    """What a faulting address says, or None where it belongs to no buffer."""
    for region in regions:
        if not region.start <= address < region.end:
            continue
        end = region.base + region.nbytes
        how = "wrote" if write else "read"
        if address >= end:
            bytes_off, where = address - end, "past the end of"
        elif address < region.base:
            bytes_off, where = region.base - address, "before the start of"
        else:
            bytes_off, where = address - region.base, "into the read-only"
        sign = "-" if where.startswith("before") else "+"
        return {
            "buffer": region.name,
            "access": "write" if write else "read",
            "where": where,
            "offset_bytes": bytes_off,
            "address": hex(address),
            "message": f"{how} {where} {region.name}, at {sign}{bytes_off} bytes",
        }
    return None


def _map(total: int) -> int:
    address = _libc.mmap(None, total, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise MemoryError(f"mmap of {total} bytes: {os.strerror(number)}")
    return int(address)


def _over(address: int, nbytes: int) -> Bytes:
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.ndarray((nbytes,), np.uint8, buffer=memory)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
