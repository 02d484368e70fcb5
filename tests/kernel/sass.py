"""Which instructions did the assembler make of a kernel, and which of them are in its main loop?"""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nvidia

_OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+(?:\.[A-Z0-9_]+)*)(.*);")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@cache
def nvdisasm() -> Path:
    """The tool of the nvidia-cuda-nvdisasm wheel."""
    for folder in nvidia.__path__:
        found = sorted(Path(folder).glob("*/bin/nvdisasm"))
        if found:
            return found[0]
    raise FileNotFoundError("nvdisasm: the wheel nvidia-cuda-nvdisasm is not installed")


@dataclass(frozen=True)
class Code:
    """One entry: opcodes in order, and where its backward branches lead."""

    opcodes: tuple[str, ...]
    loops: tuple[tuple[int, int], ...]

    def main_loop(self, opcode: str) -> Counter[str]:
        """Opcodes (first word) of the smallest loop with `opcode` in it."""
        inside = [
            (end - start, start, end)
            for start, end in self.loops
            if any(o.split(".")[0] == opcode for o in self.opcodes[start : end + 1])
        ]
        assert inside, f"no loop with {opcode} among {Counter(o.split('.')[0] for o in self.opcodes)}"
        _, start, end = min(inside)
        return Counter(o.split(".")[0] for o in self.opcodes[start : end + 1])

    def loop_text(self, opcode: str) -> set[str]:
        """Full spellings of `opcode`."""
        return {o for o in self.opcodes if o.split(".")[0] == opcode}


def disassemble(cubin: bytes, entry: str, folder: Path) -> Code:
    """The code of one entry."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([nvdisasm(), "-c", path], capture_output=True, text=True, check=True)
    text = done.stdout
    start = text.index(f".text.{entry}:")
    end = text.find("//--------------------- .text.", start)
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in text[start : end if end > 0 else len(text)].splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif found := _OPCODE.match(line):
            if found[1].split(".")[0] == "BRA" and (target := _TARGET.search(found[2])):
                branches.append((len(opcodes), target[1]))
            opcodes.append(found[1])
    loops = tuple((labels[t], at) for at, t in branches if t in labels and labels[t] <= at)
    return Code(tuple(opcodes), loops)


HMMA_884 = 0x236
"""Volta's and Turing's half-precision product, in the low 12 bits of an instruction of 128."""


def raw_opcodes(cubin: bytes, entry: str) -> Counter[int]:
    """Instructions of an entry by the low 12 bits, for sm_70, which no nvdisasm on PyPI reads any more."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    names = sections[names_at][4]
    for section in sections:
        start = names + section[0]
        if cubin[start : cubin.index(b"\0", start)].decode() == f".text.{entry}":
            at, length = section[4], section[5]
            words = (struct.unpack_from("<Q", cubin, i)[0] for i in range(at, at + length, 16))
            return Counter(word & 0xFFF for word in words)
    raise AssertionError(f"no code of {entry}")
