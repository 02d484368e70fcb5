"""Which device is this: its key by stable facts, and the facts of the CPU at hand?

Keys name facts, never marketing names: drivers rename products, and two products of one name differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rooftile.errors import DeviceError, FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable

CUDA_ARCHS = ("sm_70", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
X86_BASES = ("x86-64-v3", "x86-64-v4")
X86_EXTENSIONS = ("vnni", "bf16")
"""Extensions of x86-64-v4, in the one order they are written in."""

X86_ARCHS = (
    "x86-64-v3",
    "x86-64-v4",
    "x86-64-v4-vnni",
    "x86-64-v4-bf16",
    "x86-64-v4-vnni-bf16",
)
ARCHS = CUDA_ARCHS + X86_ARCHS

_GPU = re.compile(
    r"gpu-(?P<pci>[0-9a-f]{4})-(?P<sms>[1-9][0-9]{0,3})sm-(?P<gib>[1-9][0-9]{0,4})g"
    r"(?:-mig(?P<mig>[0-9]g\.[0-9]{1,4}gb(?:\.[a-z0-9]+)?))?-p(?P<power>[1-9][0-9]{0,4})",
    re.ASCII,
)
_CPU = re.compile(
    r"cpu-(?P<vendor>[a-z][a-z0-9]{0,15})-(?P<family>0|[1-9][0-9]{0,3})-(?P<model>0|[1-9][0-9]{0,3})"
    r"-(?P<cores>[1-9][0-9]{0,4})c-(?P<arch>x86-64-v[0-9a-z-]{1,32})",
    re.ASCII,
)


@dataclass(frozen=True)
class GpuKey:
    """A GPU product in one setting: PCI device id, SMs, memory, MIG profile, power class in watts."""

    pci_device_id: str
    sms: int
    memory_gib: int
    mig_profile: str | None
    power_class: int

    kind = "cuda"

    def __str__(self) -> str:
        mig = f"-mig{self.mig_profile}" if self.mig_profile else ""
        return f"gpu-{self.pci_device_id}-{self.sms}sm-{self.memory_gib}g{mig}-p{self.power_class}"


@dataclass(frozen=True)
class CpuKey:
    """A CPU product with the physical cores we may use of it."""

    vendor: str
    family: int
    model: int
    cores: int
    arch: str

    kind = "x86"

    def __str__(self) -> str:
        return f"cpu-{self.vendor}-{self.family}-{self.model}-{self.cores}c-{self.arch}"


DeviceKey: TypeAlias = GpuKey | CpuKey

_ALLOWED = (
    "gpu-<pci device id>-<SMs>sm-<GiB>g[-mig<profile>]-p<power class>"
    " or cpu-<vendor>-<family>-<model>-<cores>c-<arch>"
)


def parse_device_key(text: object) -> DeviceKey:
    """The key that `text` spells; a FieldError of field `device` when it is none."""
    if not isinstance(text, str):
        raise FieldError("device", text, _ALLOWED)
    gpu = _GPU.fullmatch(text)
    if gpu:
        return GpuKey(gpu["pci"], int(gpu["sms"]), int(gpu["gib"]), gpu["mig"], int(gpu["power"]))
    cpu = _CPU.fullmatch(text)
    if cpu:
        if cpu["arch"] not in X86_ARCHS:
            allowed = f"a key whose arch is one of {', '.join(X86_ARCHS)}"
            raise FieldError("device", text, allowed, _nearest(text))
        return CpuKey(cpu["vendor"], int(cpu["family"]), int(cpu["model"]), int(cpu["cores"]), cpu["arch"])
    raise FieldError("device", text, _ALLOWED, _nearest(text))


def _nearest(text: str) -> str | None:
    """The key in lower case and without spaces around it, when that is one."""
    tidy = text.strip().lower() if len(text) < 200 else ""
    if tidy == text or not tidy:
        return None
    try:
        return str(parse_device_key(tidy))
    except FieldError:
        return None


def check_arch(value: object, field: str = "arch") -> str:
    """`value` when it names an arch."""
    if isinstance(value, str) and value in ARCHS:
        return value
    from rooftile.problem.dtypes import nearest_name

    nearest = nearest_name(value, ARCHS)
    if isinstance(value, str):
        # Extensions in another order mean the same arch.
        words = sorted(value.split("-"))
        nearest = next((name for name in ARCHS if sorted(name.split("-")) == words), nearest)
    raise FieldError(field, value, f"one of {', '.join(ARCHS)}", nearest)


@dataclass(frozen=True)
class CpuIdentity:
    """The CPU of this machine as this process may use it. Cache sizes the machine hides are None."""

    vendor: str
    family: int
    model: int
    cores: int
    arch: str
    features: frozenset[str]
    name: str
    l1d_bytes: int | None
    l2_bytes: int | None
    llc_bytes: int | None
    """One last-level cache; a CPU of several chiplets has several."""
    llc_total_bytes: int | None
    """All last-level caches that the usable cores reach."""
    logical_cpus: tuple[int, ...]
    """CPU numbers we may run on."""
    one_per_core: tuple[int, ...]
    """The first usable CPU number of each usable physical core: where to pin one thread a core."""

    @property
    def device_key(self) -> CpuKey:
        """The key as a value."""
        return CpuKey(self.vendor, self.family, self.model, self.cores, self.arch)

    @property
    def key(self) -> str:
        """The key as text."""
        return str(self.device_key)


def local_cpu() -> CpuIdentity:
    """The CPU at hand. DeviceError where it has no kernels of ours. Costs a few milliseconds the first time;
    asked again after the affinity changed it looks again."""
    from rooftile.cpu_detect import usable_cpus

    return _local_cpu(usable_cpus())


@lru_cache(maxsize=8)
def _local_cpu(usable: frozenset[int]) -> CpuIdentity:
    from rooftile.cpu_detect import detect

    return detect(Path("/"), usable)


def arch_of(features: Iterable[str]) -> str:
    """The arch that CPU features (as Linux names them) amount to; DeviceError below x86-64-v3."""
    have = frozenset(features)
    missing = sorted(_V3 - have)
    if missing:
        raise DeviceError(f"this CPU lacks {', '.join(missing)}; the CPU kernels need x86-64-v3")
    if not have >= _V4:
        return "x86-64-v3"
    return "-".join(["x86-64-v4", *(e for e in X86_EXTENSIONS if f"avx512_{e}" in have)])


_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
