"""What can code for an arch use: vector width, registers, shared memory, instructions?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rooftile.device import CUDA_ARCHS, X86_EXTENSIONS, check_arch
from rooftile.problem import DTYPE_BITS


@dataclass(frozen=True)
class CudaLimits:
    """What a CUDA arch allows a block and an SM, and which instructions it has. CUDA C++ programming guide,
    "Compute capabilities"; PTX ISA, "Target ISA notes" of each instruction."""

    smem_block_bytes: int
    """Most dynamic shared memory of a block, after the attribute is raised."""
    smem_sm_bytes: int
    smem_reserved_bytes: int
    """What the system keeps of each resident block's share."""
    threads_sm: int
    blocks_sm: int
    instructions: frozenset[str]
    """wmma, ldmatrix, cp.async, mma.f16 mma.bf16 mma.tf32 mma.s8 mma.fp8, cvt.bf16, cvt.fp8, wgmma,
    tcgen05."""
    registers_sm: int = 65536
    registers_thread: int = 255
    register_unit: int = 256
    """Registers are given to warps in units of so many."""
    threads_block: int = 1024


_SM70 = frozenset({"wmma"})
_SM80 = _SM70 | {"ldmatrix", "cp.async", "mma.f16", "mma.bf16", "mma.tf32", "mma.s8", "cvt.bf16"}
_SM89 = _SM80 | {"mma.fp8", "cvt.fp8"}

_CUDA: dict[str, CudaLimits] = {
    "sm_70": CudaLimits(96 * 1024, 96 * 1024, 0, 2048, 32, _SM70),
    "sm_80": CudaLimits(163 * 1024, 164 * 1024, 1024, 2048, 32, _SM80),
    "sm_86": CudaLimits(99 * 1024, 100 * 1024, 1024, 1536, 16, _SM80),
    "sm_89": CudaLimits(99 * 1024, 100 * 1024, 1024, 1536, 24, _SM89),
    "sm_90a": CudaLimits(227 * 1024, 228 * 1024, 1024, 2048, 32, _SM89 | {"wgmma"}),
    "sm_100a": CudaLimits(227 * 1024, 228 * 1024, 1024, 2048, 32, _SM89 | {"tcgen05"}),
    "sm_120a": CudaLimits(99 * 1024, 100 * 1024, 1024, 1536, 24, _SM89),
}


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
    cuda: CudaLimits | None = None
    """Limits of a CUDA arch; None for x86."""

    @property
    def limits(self) -> CudaLimits:
        """Limits of a CUDA arch; TypeError for x86."""
        if self.cuda is None:
            raise TypeError(f"{self.name} is no CUDA arch")
        return self.cuda

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in a vector register."""
        return self.vector_bits // DTYPE_BITS[dtype]


@cache
def get_arch(name: str) -> Arch:
    """The arch of that name; FieldError of field `arch` when there is none."""
    check_arch(name)
    if name in CUDA_ARCHS:
        return Arch(name, "cuda", name, (), 1024, 255, True, _CUDA[name])
    base = "-".join(name.split("-")[:3])
    extensions = tuple(e for e in X86_EXTENSIONS if e in name.split("-")[3:])
    if base == "x86-64-v3":
        return Arch(name, "x86", base, extensions, 256, 16, False)
    return Arch(name, "x86", base, extensions, 512, 32, True)
