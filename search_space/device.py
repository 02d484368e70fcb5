"""What does the search know of a device: its arch, and the numbers that rules and cost models use?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rooftile.device import CpuIdentity, CpuKey, DeviceKey, GpuKey, local_cpu, parse_device_key
from rooftile.problem import DTYPE_BITS

from search_space.arch import Arch, get_arch
from search_space.device_data import GENERIC, cpu_model
from search_space.device_data.gpus import GPU_ARCH
from search_space.errors import UnknownDevice

LINE_BYTES = 64
"""Cache line of every x86 CPU."""


@dataclass(frozen=True)
class Device:
    """A device with the numbers it has. `sources` says of each number whether it was `detected` on the
    machine, is a typical value of the product (`data`) or of any such machine (`generic`). Measured ones are
    kept with the device's roof, not here, so that rules and predictions never depend on the weather."""

    key: str
    kind: str
    arch: Arch
    name: str
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
    sources: Mapping[str, str]

    def __hash__(self) -> int:
        return hash((self.key, self.l1d_bytes, self.l2_bytes, self.llc_bytes, self.llc_total_bytes))

    @classmethod
    def for_key(cls, key: str | DeviceKey) -> Device:
        """The device of that key by data alone. FieldError for a key that does not parse; UnknownDevice for a
        GPU, which no family here computes on yet."""
        parsed = parse_device_key(key) if isinstance(key, str) else key
        if isinstance(parsed, GpuKey):
            arch = arch_of_key(parsed)
            raise UnknownDevice(f"{parsed}: no data for {arch or 'this GPU'} yet; devices here are CPUs")
        return _cpu(parsed)

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

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the store keeps for a device."""
        return {
            "key": self.key,
            "kind": self.kind,
            "arch": self.arch.name,
            "name": self.name,
            "codename": self.codename,
            "cores": self.cores,
            "fma_units": self.fma_units,
            "fma_bits": self.fma_bits,
            "fma_latency": self.fma_latency,
            "load_bits": self.load_bits,
            "ghz": self.ghz,
            "l1d_bytes": self.l1d_bytes,
            "l2_bytes": self.l2_bytes,
            "llc_bytes": self.llc_bytes,
            "llc_total_bytes": self.llc_total_bytes,
            "dram_gbs_core": self.dram_gbs_core,
            "dram_gbs": self.dram_gbs,
            "sources": dict(self.sources),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Device:
        """The device that `to_json` wrote; what an older version did not write comes from the data."""
        base = cls.for_key(str(obj["key"]))
        kept = {n: obj[n] for n in base.to_json() if n in obj and n not in ("key", "kind", "arch", "sources")}
        return replace(
            base, **kept, sources=MappingProxyType(dict(base.sources) | dict(obj.get("sources", {})))
        )


_FROM_MODEL = (
    "fma_units", "fma_bits", "fma_latency", "load_bits", "ghz", "l1d_bytes", "l2_bytes", "llc_bytes",
    "dram_gbs_core", "dram_gbs",
)  # fmt: skip


def _cpu(key: CpuKey) -> Device:
    model = cpu_model(key.vendor, key.family, key.model)
    source = "generic" if model is None else "data"
    model = model or GENERIC
    numbers = {name: getattr(model, name) for name in _FROM_MODEL}
    return Device(
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


def device_of(cpu: CpuIdentity) -> Device:
    """The device of a detected CPU: its data, with the caches that the machine shows."""
    base = _cpu(cpu.device_key)
    seen = {n: v for n in ("l1d_bytes", "l2_bytes", "llc_bytes", "llc_total_bytes") if (v := getattr(cpu, n))}
    sources = dict(base.sources) | dict.fromkeys(seen, "detected")
    return replace(base, name=cpu.name or base.name, sources=MappingProxyType(sources), **seen)


def local_device() -> Device:
    """The CPU of this machine. DeviceError where it has no kernels of ours."""
    return device_of(local_cpu())


def arch_of_key(key: str | DeviceKey) -> str | None:
    """The arch that a device key implies; None for a GPU that is not in the data."""
    parsed = parse_device_key(key) if isinstance(key, str) else key
    if isinstance(parsed, CpuKey):
        return parsed.arch
    return GPU_ARCH.get(parsed.pci_device_id, (None, ""))[0]
