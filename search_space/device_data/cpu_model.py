"""Which numbers of a CPU model does the cost model start from?

They are typical values from the vendors' manuals and public tables (uops.info, Agner Fog), for one product of
the many that share a model number. They order candidates before anything ran; every figure that is shown or
decides a release is measured instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuModel:
    """One core design as sold under a range of model numbers."""

    codename: str
    family: int
    models: tuple[tuple[int, int], ...]
    """Ranges of model numbers, both ends included."""
    fma_units: int
    """Fused multiply-adds of `fma_bits` that a core starts each cycle."""
    fma_bits: int
    """Width that one unit really has: Zen 4 runs a 512-bit operation as two of 256."""
    fma_latency: int
    """Cycles until a result can be accumulated onto again."""
    load_bits: int
    """Bits a core can load from L1 each cycle."""
    ghz: float
    """Typical clock with all cores in vector code."""
    l1d_kib: int
    l2_kib: int
    llc_mib: int
    """One last-level cache of a typical product."""
    dram_gbs_core: float
    """What one core can stream from memory, 1e9 bytes a second."""
    dram_gbs: float
    """What a socket of a typical product can stream."""

    @property
    def l1d_bytes(self) -> int:
        """Level-1 data cache of a core."""
        return self.l1d_kib * 1024

    @property
    def l2_bytes(self) -> int:
        """Level-2 cache of a core."""
        return self.l2_kib * 1024

    @property
    def llc_bytes(self) -> int:
        """One last-level cache of a typical product."""
        return self.llc_mib * 1024 * 1024


GENERIC = CpuModel(
    # An x86-64-v3 core of unknown make: what nearly all of them have at least.
    "generic", 0, ((0, 0),), fma_units=2, fma_bits=256, fma_latency=5, load_bits=512, ghz=2.5,
    l1d_kib=32, l2_kib=512, llc_mib=16, dram_gbs_core=10.0, dram_gbs=40.0,
)  # fmt: skip
