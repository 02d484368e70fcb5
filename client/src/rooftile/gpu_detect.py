"""Which GPUs are there, by what NVML says of them, and what is the key of each?

NVML needs no CUDA context: asking costs milliseconds and touches no GPU, so a process may ask and still fork.
`describe` is pure: it takes what was read as a `GpuReading` (tests have recorded ones) and gives the
identity.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftile.device import CUDA_ARCHS, GpuKey
from rooftile.errors import DeviceError

_MIB = 1 << 20
_GIB = 1 << 30

# CUDA cores of an SM by compute capability (CUDA C++ Programming Guide, "Compute Capabilities"): NVML counts
# cores.
_CORES_PER_SM = {
    (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128,
    (10, 3): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
_MIG_PROFILE = re.compile(r"\bMIG ([0-9]g\.[0-9]{1,4}gb(?:[.+][a-z0-9]+)?)", re.ASCII)
# Watts are rounded to this: drivers give 699.9 or 700.
_POWER_STEP_W = 5


@dataclass(frozen=True)
class GpuReading:
    """What NVML says of one GPU, or of one MIG instance. None: this driver does not say."""

    index: int
    uuid: str
    name: str
    pci_device_id: int
    """As NVML has it: device id in the upper 16 bits, vendor in the lower."""
    pci_bus_id: str
    compute_capability: tuple[int, int]
    cores: int | None
    memory_bytes: int
    power_limit_mw: int | None
    driver: str
    mig_sms: int | None = None
    """Multiprocessors of a MIG instance; None for a whole GPU."""
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None


@dataclass(frozen=True)
class GpuIdentity:
    """One GPU that kernels may run on."""

    device_key: GpuKey
    uuid: str
    name: str
    arch: str
    pci_bus_id: str
    index: int
    driver: str
    memory_bytes: int
    power_limit_w: float | None
    max_sm_mhz: int | None
    max_memory_mhz: int | None

    @property
    def key(self) -> str:
        """The key as text."""
        return str(self.device_key)

    def to_json(self) -> dict[str, Any]:
        """What is recorded beside measurements."""
        return {
            "key": self.key,
            "uuid": self.uuid,
            "name": self.name,
            "arch": self.arch,
            "driver": self.driver,
            "memory_bytes": self.memory_bytes,
            "power_limit_w": self.power_limit_w,
            "max_sm_mhz": self.max_sm_mhz,
            "max_memory_mhz": self.max_memory_mhz,
        }


def arch_of_capability(major: int, minor: int) -> str | None:
    """The arch whose kernels are best for a compute capability; None where there are none."""
    number = major * 10 + minor
    for name in CUDA_ARCHS:
        if name.removeprefix("sm_").rstrip("a") == str(number):
            return name
    return None


def describe(reading: GpuReading) -> GpuIdentity:
    """The identity that a reading means. DeviceError where no kernel of ours runs on it, or its key has no
    value."""
    major, minor = reading.compute_capability
    arch = arch_of_capability(major, minor)
    if arch is None:
        raise DeviceError(
            f"{reading.name} has compute capability {major}.{minor}; "
            f"there are kernels for {', '.join(CUDA_ARCHS)}"
        )
    profile = None
    sms = reading.mig_sms
    if sms is not None:
        found = _MIG_PROFILE.search(reading.name)
        if found is None:
            raise DeviceError(f"the name {reading.name!r} of a MIG instance does not tell its profile")
        profile = found[1].replace("+", ".")
    else:
        per_sm = _CORES_PER_SM[major, minor]
        if not reading.cores or reading.cores % per_sm:
            raise DeviceError(
                f"the driver counts {reading.cores} cores on {reading.name}, "
                f"no multiple of {per_sm} a multiprocessor"
            )
        sms = reading.cores // per_sm
    # Drivers keep some of the memory for themselves, each its own amount: the next whole GiB is the
    # product's.
    gib = -(-reading.memory_bytes // _GIB)
    watts = None if reading.power_limit_mw is None else reading.power_limit_mw / 1000.0
    # 1: a driver (of a virtual GPU, say) that does not tell its limit.
    power_class = 1 if not watts else max(1, round(watts / _POWER_STEP_W) * _POWER_STEP_W)
    key = GpuKey(f"{reading.pci_device_id >> 16 & 0xFFFF:04x}", sms, gib, profile, power_class)
    return GpuIdentity(
        device_key=key,
        uuid=reading.uuid,
        name=reading.name,
        arch=arch,
        pci_bus_id=reading.pci_bus_id,
        index=reading.index,
        driver=reading.driver,
        memory_bytes=reading.memory_bytes,
        power_limit_w=watts,
        max_sm_mhz=reading.max_sm_mhz,
        max_memory_mhz=reading.max_memory_mhz,
    )


def visible(readings: Sequence[GpuReading], environment: Mapping[str, str]) -> list[GpuReading]:
    """The readings that CUDA would show to a process with this environment, in its order.

    A list of UUIDs (or their beginnings) says exactly which. Numbers count in PCI order only where
    CUDA_DEVICE_ORDER says so; else CUDA puts the fastest first, which among equal GPUs is the PCI order too.
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(readings)
    chosen: list[GpuReading] = []
    whole = [reading for reading in readings if reading.mig_sms is None]
    for word in (part.strip() for part in wanted.split(",")):
        if word.isdigit():
            if int(word) >= len(whole):
                break  # CUDA ignores what follows an invalid entry
            found = [whole[int(word)]]
        else:
            found = [reading for reading in readings if word and reading.uuid.startswith(word)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


def local_gpus(nvml: Any = None, environment: Mapping[str, str] | None = None) -> tuple[GpuIdentity, ...]:
    """The GPUs that this process may use and that kernels of ours run on. DeviceError with one sentence where
    there is no driver, none of its GPUs is visible, or none is fit. `nvml` is the module pynvml (default:
    imported)."""
    readings = visible(read_all(nvml), os.environ if environment is None else environment)
    if not readings:
        raise DeviceError("the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide it)")
    found, reasons = [], []
    for reading in readings:
        try:
            found.append(describe(reading))
        except DeviceError as error:
            reasons.append(str(error))
    if not found:
        raise DeviceError("; ".join(reasons))
    return tuple(found)


def read_all(nvml: Any = None) -> list[GpuReading]:
    """Every GPU, or its MIG instances where it has some, as NVML describes them."""
    nvml = load_nvml() if nvml is None else nvml
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        readings: list[GpuReading] = []
        for index in range(int(nvml.nvmlDeviceGetCount())):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            instances = _mig_instances(nvml, handle)
            if instances:
                readings += [_read(nvml, one, handle, index, driver, mig=True) for one in instances]
            elif not _mig_on(nvml, handle):
                readings.append(_read(nvml, handle, handle, index, driver, mig=False))
    except nvml.NVMLError as error:
        raise DeviceError(f"NVML does not describe the GPUs of this machine: {error}") from None
    return readings


def load_nvml() -> Any:
    """pynvml with NVML initialised. DeviceError where either is missing. NVML counts initialisations, and
    this one is kept for the life of the process."""
    try:
        import pynvml
    except ImportError:
        raise DeviceError(
            "GPUs are found through NVML's Python module, which is not installed: pip install nvidia-ml-py"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(f"no NVIDIA driver is usable on this machine ({error})") from None
    return pynvml


def _read(nvml: Any, handle: Any, parent: Any, index: int, driver: str, *, mig: bool) -> GpuReading:
    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except nvml.NVMLError:
            return None

    pci = nvml.nvmlDeviceGetPciInfo(parent)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(parent)
    attributes = nvml.nvmlDeviceGetAttributes(handle) if mig else None
    return GpuReading(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        pci_device_id=int(pci.pciDeviceId),
        pci_bus_id=_text(pci.busId),
        compute_capability=(int(major), int(minor)),
        cores=ask(lambda: int(nvml.nvmlDeviceGetNumGpuCores(parent))),
        memory_bytes=int(attributes.memorySizeMB) * _MIB
        if attributes is not None
        else int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        # The limit in force, not the product's default: the same product at 400 W is another device.
        power_limit_mw=ask(lambda: int(nvml.nvmlDeviceGetEnforcedPowerLimit(parent))),
        driver=driver,
        mig_sms=None if attributes is None else int(attributes.multiprocessorCount),
        max_sm_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(parent, nvml.NVML_CLOCK_SM))),
        max_memory_mhz=ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(parent, nvml.NVML_CLOCK_MEM))),
    )


def _mig_on(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a GPU without MIG
        return False
    return bool(current)


def _mig_instances(nvml: Any, handle: Any) -> list[Any]:
    if not _mig_on(nvml, handle):
        return []
    found = []
    for number in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        except nvml.NVMLError:  # no instance at this place
            continue
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
