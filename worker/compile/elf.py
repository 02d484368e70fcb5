"""Which symbols does a shared object export, which does it need, and how big is it?"""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class ElfSummary:
    """What the static gate looks at."""

    exported: tuple[str, ...]
    undefined: tuple[str, ...]
    needed: tuple[str, ...]
    text_bytes: int
    data_bytes: int
    bss_bytes: int


class ElfError(ValueError):
    """The bytes are not a shared object for 64-bit x86."""


_SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM = 6, 8, 11
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC = 1, 2, 4
_EM_X86_64, _ET_DYN, _DT_NEEDED = 62, 3, 1
_STB_GLOBAL, _STB_WEAK = 1, 2


def summarise(data: bytes) -> ElfSummary:
    """Read section headers, .dynsym and .dynamic. Raises ElfError."""
    try:
        return _summarise(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ElfError(f"not a whole shared object: {error}") from None


def _summarise(data: bytes) -> ElfSummary:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != _ET_DYN or machine != _EM_X86_64:
        raise ElfError(f"ELF type {kind} for machine {machine} is not an x86-64 shared object")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    # name, type, flags, address, offset, size, link, info, align, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]
    if not sections:
        raise ElfError("no section headers")

    def text_at(strings: tuple[int, ...], offset: int) -> str:
        start = strings[4] + offset
        return data[start : data.index(b"\0", start)].decode()

    exported: list[str] = []
    undefined: list[str] = []
    needed: list[str] = []
    sizes = {"text": 0, "data": 0, "bss": 0}
    for section in sections:
        _, section_type, flags, _, offset, size, link, _, _, each = section
        if flags & _SHF_ALLOC:
            where = "text" if flags & _SHF_EXEC else "bss" if section_type == _SHT_NOBITS else "data"
            if where != "data" or flags & _SHF_WRITE:
                sizes[where] += size
        if section_type == _SHT_DYNSYM:
            for at in range(offset + each, offset + size, each):
                name, info, _, index = struct.unpack_from("<IBBH", data, at)
                if info >> 4 in (_STB_GLOBAL, _STB_WEAK) and name:
                    (undefined if index == 0 else exported).append(text_at(sections[link], name))
        elif section_type == _SHT_DYNAMIC:
            for at in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == _DT_NEEDED:
                    needed.append(text_at(sections[link], value))
    return ElfSummary(
        tuple(sorted(exported)),
        tuple(sorted(undefined)),
        tuple(needed),
        sizes["text"],
        sizes["data"],
        sizes["bss"],
    )
