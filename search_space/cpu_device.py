"""What does the search know of a CPU: its cores, caches, vector units and rates?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rooftile.device import CpuIdentity, CpuKey
from rooftile.problem import DTYPE_BITS

from search_space.arch import get_arch
from search_space.device import Device
from search_space.device_data import GENERIC, cpu_model


@dataclass(frozen=True)
class CpuDevice(Device):
    """A CPU with the physical cores that we may use of it."""

    codename: str
    cores: int
    fma_units: int
    fma_bits: int
    fma_latency: int
    load_bits: int
    ghz: float
    l1d_bytes: int
    l2_bytes: int
    llc_bytes: int
    llc_total_bytes: int
    dram_gbs_core: float
    dram_gbs: float

    def __hash__(self) -> int:
        return hash((self.key, self.l1d_bytes, self.l2_bytes, self.llc_bytes, self.llc_total_bytes))

    @property
    def vector_bits(self) -> int:
        """Width of the arch's vector registers."""
        return self.arch.vector_bits

    def flops_per_cycle(self, dtype: str = "f32") -> float:
        """Floating-point operations one core can do in a cycle."""
        # Code narrower than the units fills only its own width of each.
        width = min(self.fma_bits, self.arch.vector_bits)
        return 2 * self.fma_units * width / max(DTYPE_BITS[dtype], 32)

    def peak_gflops(self, dtype: str = "f32", cores: int | None = None) -> float:
        """Typical peak of `cores` (default: all usable) cores, 1e9 operations a second."""
        return self.flops_per_cycle(dtype) * self.ghz * (self.cores if cores is None else cores)

    def memory_gbs(self, cores: int | None = None) -> float:
        """Typical memory rate that `cores` cores reach together, 1e9 bytes a second."""
        return min(self.dram_gbs, self.dram_gbs_core * (self.cores if cores is None else cores))

    def numbers(self) -> dict[str, Any]:
        """Its own numbers by field."""
        return {name: getattr(self, name) for name in ("codename", "cores", *_NUMBERS)}


_FROM_MODEL = (
    "fma_units", "fma_bits", "fma_latency", "load_bits", "ghz", "l1d_bytes", "l2_bytes", "llc_bytes",
    "dram_gbs_core", "dram_gbs",
)  # fmt: skip

_NUMBERS = (*_FROM_MODEL, "llc_total_bytes")


def cpu_device(key: CpuKey) -> CpuDevice:
    """The CPU of that key by data alone."""
    model = cpu_model(key.vendor, key.family, key.model)
    source = "generic" if model is None else "data"
    model = model or GENERIC
    numbers = {name: getattr(model, name) for name in _FROM_MODEL}
    return CpuDevice(
        key=str(key),
        kind="x86",
        arch=get_arch(key.arch),
        name=f"{key.vendor} {model.codename}"
        if source == "data"
        else f"{key.vendor} {key.family}/{key.model}",
        codename=model.codename,
        cores=key.cores,
        llc_total_bytes=model.llc_bytes,
        sources=MappingProxyType(dict.fromkeys((*_FROM_MODEL, "llc_total_bytes"), source)),
        **numbers,
    )


def detected(cpu: CpuIdentity) -> CpuDevice:
    """The device of a detected CPU: its data, with the caches that the machine shows."""
    base = cpu_device(cpu.device_key)
    seen = {n: v for n in ("l1d_bytes", "l2_bytes", "llc_bytes", "llc_total_bytes") if (v := getattr(cpu, n))}
    sources = dict(base.sources) | dict.fromkeys(seen, "detected")
    return replace(base, name=cpu.name or base.name, sources=MappingProxyType(sources), **seen)


def as_cpu(device: Device) -> CpuDevice:
    """`device` when it is a CPU; TypeError for any other."""
    if not isinstance(device, CpuDevice):
        raise TypeError(f"{device.key} is no CPU")
    return device
