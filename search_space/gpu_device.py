"""What does the search know of a GPU: its SMs, cache and rates?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rooftile.device import GpuKey

from search_space.arch import get_arch
from search_space.device import Device
from search_space.device_data.gpus import GPUS
from search_space.errors import UnknownDevice


@dataclass(frozen=True)
class GpuDevice(Device):
    """A GPU, or a MIG instance of one."""

    sms: int
    memory_bytes: int
    ghz: float
    """Boost clock."""
    l2_bytes: int
    dram_gbs: float
    power_watts: int
    tflops: Mapping[str, float]
    """Dense peak by element type of the operands, 1e12 operations a second; absent: no unit for it."""

    def __post_init__(self) -> None:
        # From JSON it is a plain dict.
        object.__setattr__(self, "tflops", MappingProxyType(dict(self.tflops)))

    def __hash__(self) -> int:
        return hash((self.key, self.l2_bytes, self.dram_gbs))

    @property
    def smem_block_bytes(self) -> int:
        """Most dynamic shared memory of a block."""
        return self.arch.limits.smem_block_bytes

    @property
    def smem_sm_bytes(self) -> int:
        """Shared memory of an SM."""
        return self.arch.limits.smem_sm_bytes

    def peak_gflops(self, dtype: str = "f32") -> float:
        """Typical peak with operands of that dtype, 1e9 operations a second; 0 where no unit does it."""
        return 1000.0 * self.tflops.get(dtype, 0.0)

    def memory_gbs(self) -> float:
        """Memory rate of the data sheet, 1e9 bytes a second."""
        return self.dram_gbs

    def numbers(self) -> dict[str, Any]:
        """Its own numbers by field."""
        plain = {name: getattr(self, name) for name in _NUMBERS}
        return plain | {"tflops": dict(self.tflops)}


_NUMBERS = ("sms", "memory_bytes", "ghz", "l2_bytes", "dram_gbs", "power_watts")


def gpu_device(key: GpuKey) -> GpuDevice:
    """The GPU of that key: the product's data, with the SMs, memory and power that the key itself names.
    Peaks go with the SMs; a MIG instance has L2 and memory rate in the share of the memory it has.
    UnknownDevice for a PCI device id without data."""
    model = GPUS.get(key.pci_device_id)
    if model is None:
        known = ", ".join(f"{pci} ({m.name})" for pci, m in GPUS.items())
        raise UnknownDevice(f"{key}: no data for PCI device id {key.pci_device_id}; there is for {known}")
    share = min(1.0, key.memory_gib / model.memory_gib) if key.mig_profile else 1.0
    sources = dict.fromkeys(("ghz", "l2_bytes", "dram_gbs", "tflops"), "data")
    sources |= dict.fromkeys(("sms", "memory_bytes", "power_watts"), "key")
    return GpuDevice(
        key=str(key),
        kind="cuda",
        arch=get_arch(model.arch),
        name=f"{model.name} MIG {key.mig_profile}" if key.mig_profile else model.name,
        sources=MappingProxyType(sources),
        sms=key.sms,
        memory_bytes=key.memory_gib * 2**30,
        ghz=model.ghz,
        l2_bytes=int(model.l2_bytes * share),
        dram_gbs=model.memory_gbs * share,
        power_watts=key.power_class,
        tflops={name: rate * key.sms / model.sms for name, rate in model.tflops},
    )


def as_gpu(device: Device) -> GpuDevice:
    """`device` when it is a GPU; TypeError for any other."""
    if not isinstance(device, GpuDevice):
        raise TypeError(f"{device.key} is no GPU")
    return device
