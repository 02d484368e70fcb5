"""For which SM is a cubin, and which kernels are in it?

A cubin is a 64-bit ELF file of machine 190. NVIDIA documents neither its flags nor its ABI versions; the
places of the SM number are as LLVM's ELF.h has them (EF_CUDA_SM), seen in what NVRTC 12.9 and 13.5 write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

EM_CUDA = 190
_SHT_SYMTAB = 2
_STT_FUNC = 2
_STB_GLOBAL = 1
# Set on a kernel, not on a function that kernels call (STO_CUDA_ENTRY).
_STO_ENTRY = 0x10
# From ABI 8 on (CUDA 13; sm_100 and sm_120 already with 12.9) the SM number is in bits 8 to 15.
_ABI_SM_AT_8 = 8


class CubinError(ValueError):
    """The bytes are not a whole cubin."""


@dataclass(frozen=True)
class CubinSummary:
    """What the static gate looks at."""

    sm: int
    """90 for sm_90 and sm_90a alike."""
    entries: tuple[str, ...]
    functions: tuple[str, ...]
    """Global functions that are no entries."""


def is_cubin(data: bytes) -> bool:
    """By the head alone."""
    return data[:5] == b"\x7fELF\x02" and len(data) >= 20 and data[18:20] == EM_CUDA.to_bytes(2, "little")


def arch_number(arch: str) -> int:
    """`sm_90a` -> 90."""
    return int(arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz"))


def summarise(data: bytes) -> CubinSummary:
    """Read flags and symbols. Raises CubinError."""
    if not is_cubin(data):
        raise CubinError("not a cubin")
    try:
        return _summarise(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise CubinError(f"not a whole cubin: {error}") from None


def _summarise(data: bytes) -> CubinSummary:
    abi = data[8]
    (table,) = struct.unpack_from("<Q", data, 40)
    (flags,) = struct.unpack_from("<I", data, 48)
    each, count = struct.unpack_from("<HH", data, 58)
    # name, type, flags, address, offset, size, link, info, align, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * each) for i in range(count)]
    entries: list[str] = []
    functions: list[str] = []
    found = False
    for section in sections:
        if section[1] != _SHT_SYMTAB:
            continue
        found = True
        offset, size, link, step = section[4], section[5], section[6], section[9]
        if offset + size > len(data) or step < 24:
            raise ValueError("its symbols lie beyond its end")
        for at in range(offset, offset + size, step):
            name, info, other, index = struct.unpack_from("<IBBH", data, at)
            if info & 0xF == _STT_FUNC and info >> 4 == _STB_GLOBAL and index != 0:
                start = sections[link][4] + name
                text = data[start : data.index(b"\0", start)].decode()
                (entries if other & _STO_ENTRY else functions).append(text)
    if not found:
        raise ValueError("no symbols")
    sm = flags >> 8 & 0xFF if abi >= _ABI_SM_AT_8 else flags & 0xFF
    return CubinSummary(sm, tuple(entries), tuple(functions))
