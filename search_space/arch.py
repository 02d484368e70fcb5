"""What can code for an arch use: vector width, registers, extensions?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rooftile.device import CUDA_ARCHS, X86_EXTENSIONS, check_arch
from rooftile.problem import DTYPE_BITS


@dataclass(frozen=True)
class Arch:
    """An instruction set with its extensions."""

    name: str
    kind: str
    """x86 or cuda."""
    base: str
    """The name without extensions."""
    extensions: tuple[str, ...]
    vector_bits: int
    """Width of a vector register; 32 x 32 for the lanes of a warp on cuda."""
    vector_registers: int
    """Architectural vector registers of a core (x86), or most registers of a thread (cuda)."""
    masked: bool
    """Loads and stores of part of a vector cost nothing extra (AVX-512 masks, cuda predicates)."""

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in a vector register."""
        return self.vector_bits // DTYPE_BITS[dtype]

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """-march and its additions as gcc and clang spell them; empty for cuda."""
        if self.kind != "x86":
            return ()
        spelled = {"vnni": "-mavx512vnni", "bf16": "-mavx512bf16"}
        return (f"-march={self.base}", *(spelled[e] for e in self.extensions))


@cache
def get_arch(name: str) -> Arch:
    """The arch of that name; FieldError of field `arch` when there is none."""
    check_arch(name)
    if name in CUDA_ARCHS:
        return Arch(name, "cuda", name, (), 1024, 255, True)
    base = "-".join(name.split("-")[:3])
    extensions = tuple(e for e in X86_EXTENSIONS if e in name.split("-")[3:])
    if base == "x86-64-v3":
        return Arch(name, "x86", base, extensions, 256, 16, False)
    return Arch(name, "x86", base, extensions, 512, 32, True)
