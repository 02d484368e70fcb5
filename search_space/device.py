"""What does the search know of a device: its arch, and the numbers that rules and cost models use?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from rooftile.device import CpuIdentity, CpuKey, DeviceKey, GpuKey, check_arch, local_cpu, parse_device_key

from search_space.arch import Arch
from search_space.device_data.gpus import GPUS, TYPICAL

if TYPE_CHECKING:
    from search_space.cpu_device import CpuDevice

LINE_BYTES = 64
"""Cache line of every x86 CPU."""
_TYPICAL_CORES = 8


@dataclass(frozen=True)
class Device:
    """A device with the numbers it has; CpuDevice and GpuDevice say which. `sources` says of each number
    whether it was `detected` on the machine, is a typical value of the product (`data`), is written in the
    `key`, or is one of any such machine (`generic`). Measured ones are kept with the device's roof, not here,
    so that rules and predictions never depend on the weather."""

    key: str
    kind: str
    """x86 or cuda."""
    arch: Arch
    name: str
    sources: Mapping[str, str]

    @classmethod
    def for_key(cls, key: str | DeviceKey) -> Self:
        """The device of that key by data alone. FieldError for a key that does not parse; UnknownDevice for a
        GPU whose PCI device id is not in the data. Asked of a subclass, TypeError for a device of another
        kind."""
        from search_space.cpu_device import cpu_device
        from search_space.gpu_device import gpu_device

        parsed = parse_device_key(key) if isinstance(key, str) else key
        device = gpu_device(parsed) if isinstance(parsed, GpuKey) else cpu_device(parsed)
        if not isinstance(device, cls):
            raise TypeError(f"{parsed} is no {cls.__name__}")
        return device

    @classmethod
    def for_arch(cls, arch_name: str) -> Self:
        """The typical product of an arch, for work that names no device: the one of the data for CUDA, a
        generic CPU of 8 cores for x86. FieldError of field `arch` when there is no such arch."""
        check_arch(arch_name)
        if arch_name not in TYPICAL:
            return cls.for_key(CpuKey("generic", 0, 0, _TYPICAL_CORES, arch_name))
        pci = TYPICAL[arch_name]
        model = GPUS[pci]
        return cls.for_key(GpuKey(pci, model.sms, model.memory_gib, None, model.power_watts))

    def numbers(self) -> dict[str, Any]:
        """The numbers of its kind, by field, as JSON holds them."""
        raise NotImplementedError

    def peak_gflops(self, dtype: str = "f32") -> float:
        """Typical peak with operands of that dtype, 1e9 operations a second."""
        raise NotImplementedError

    def memory_gbs(self) -> float:
        """Typical memory rate, 1e9 bytes a second."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The JSON object that the store keeps for a device."""
        return {
            "key": self.key,
            "kind": self.kind,
            "arch": self.arch.name,
            "name": self.name,
            **self.numbers(),
            "sources": dict(self.sources),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Self:
        """The device that `to_json` wrote; what an older version did not write comes from the data."""
        base = cls.for_key(str(obj["key"]))
        kept = {name: obj[name] for name in ("name", *base.numbers()) if name in obj}
        sources = MappingProxyType(dict(base.sources) | dict(obj.get("sources", {})))
        return replace(base, **kept, sources=sources)


def device_of(cpu: CpuIdentity) -> CpuDevice:
    """The device of a detected CPU: its data, with the caches that the machine shows."""
    from search_space.cpu_device import detected

    return detected(cpu)


def local_device() -> CpuDevice:
    """The CPU of this machine. DeviceError where it has no kernels of ours."""
    return device_of(local_cpu())


def arch_of_key(key: str | DeviceKey) -> str | None:
    """The arch that a device key implies; None for a GPU that is not in the data."""
    parsed = parse_device_key(key) if isinstance(key, str) else key
    if isinstance(parsed, CpuKey):
        return parsed.arch
    model = GPUS.get(parsed.pci_device_id)
    return None if model is None else model.arch
