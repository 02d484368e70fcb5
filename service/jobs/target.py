"""Which devices, arch and measuring policy does a request mean?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftile.device import CUDA_ARCHS, CpuKey, check_arch, local_cpu, parse_device_key
from rooftile.errors import DeviceError, FieldError
from rooftile.problem import Problem
from sqlalchemy.orm import Session

from search_space.device import Device, arch_of_key
from search_space.registry import families, families_for, why_not
from search_space.violation import Violation
from service.jobs.request import CACHES, LAUNCHES, Target
from service.store import devices
from service.store.records import DeviceRecord

AUTO = "auto"
_SIZES = ("m", "n", "k", "batch")


@dataclass(frozen=True)
class Place:
    """One device to tune for, or an arch without any device; `path` is where the request names it."""

    device_key: str | None
    arch: str
    path: str


# ---------------------------------------------------------------- devices


def places(s: Session, target: Target) -> list[Place]:
    """What a job's target means now. FieldError for a key that does not parse, an arch that does not
    exist, an `auto` that could mean several devices, and CPUs and GPUs in one job."""
    if target.arch is not None:
        return [Place(None, check_arch(target.arch, "target.arch"), "target.arch")]
    found: dict[str, Place] = {}
    for key, path in zip(target.devices, target.paths, strict=True):
        if key == AUTO:
            chosen = auto_device(s, path)
            if chosen is None:
                allowed = "the key of a device: there is no GPU, and this CPU has no kernels"
                raise FieldError(path, key, allowed)
            key = chosen
        place = Place(key, device_arch(s, key, path), path)
        found.setdefault(place.device_key or "", place)
    kinds = {place.arch.startswith("x86") for place in found.values()}
    if len(kinds) > 1:
        allowed = "CPUs only or GPUs only: their policies differ, so post one job for each kind"
        raise FieldError("target.devices", list(found), allowed)
    return list(found.values())


def device_arch(s: Session, key: str, path: str) -> str:
    """The arch of a device key; FieldError at `path` when it does not parse or its arch is not known."""
    try:
        parsed = parse_device_key(key)
    except FieldError as error:
        raise FieldError(path, error.value, error.allowed, error.nearest) from None
    if isinstance(parsed, CpuKey):
        return parsed.arch
    row = devices.get(s, key)
    arch = row.arch if row is not None else arch_of_key(parsed)
    if arch is None:
        raise FieldError(path, key, "a GPU whose PCI device id is known here")
    return arch


def auto_device(s: Session, path: str) -> str | None:
    """The only GPU; without a GPU this CPU; None where there is neither. FieldError with the list where
    several could be meant."""
    # One that a worker waits for is the only GPU too: better later there than now on the CPU.
    connected = [device for device in devices.listing(s) if device.connected or device.waits_for]
    gpus = [device.key for device in connected if device.kind == "gpu"]
    if gpus:
        return _only(gpus, path)
    here = local_cpu_key()
    cpus = [device.key for device in connected]
    if here is not None and (here in cpus or not cpus):
        return here
    # The service runs on a machine that measures nothing: the CPU that a worker brought is meant.
    return _only(cpus, path) if cpus else None


def _only(keys: Sequence[str], path: str) -> str:
    if len(keys) > 1:
        allowed = f"one of {', '.join(keys)}: auto means the only one, and there are several"
        raise FieldError(path, AUTO, allowed)
    return keys[0]


def local_cpu_key() -> str | None:
    """The key of this machine's CPU; None where it has no kernels of ours."""
    try:
        return local_cpu().key
    except DeviceError:
        return None


def device_model(key: str, row: DeviceRecord | None) -> Device:
    """The numbers that rules and cost models use: as the device's worker wrote them, else from data."""
    if row is not None and row.data.get("key") == key:
        return Device.from_json(row.data)
    return Device.for_key(key)


def arch_model(arch: str) -> Device:
    """The typical device of an arch that no device was named for."""
    return Device.for_arch(arch)


# ---------------------------------------------------------------- families


def check_families(
    problem: Problem, place: Place, wanted: Sequence[str] | None, problem_path: str
) -> tuple[str, ...]:
    """The families that a job may search for a problem; FieldError with the reasons when there is none."""
    able = [family.name for family in families_for(problem, place.arch)]
    if not able:
        raise _nobody(problem, place, problem_path)
    if wanted is None:
        return tuple(able)
    known = tuple(families())
    for index, name in enumerate(wanted):
        if name not in known:
            raise FieldError(f"families[{index}]", name, f"one of {', '.join(known)}")
    chosen = tuple(name for name in wanted if name in able)
    if not chosen:
        listed = ", ".join(able)
        raise FieldError("families", list(wanted), f"at least one that can compute {problem_path}: {listed}")
    return chosen


def _nobody(problem: Problem, place: Place, problem_path: str) -> FieldError:
    """No family computes the problem there: names the layout or size where that alone is in the way, else the
    target, with the reasons of the family that comes closest first."""
    found = {name: family.supports(problem, place.arch) for name, family in families().items()}
    near = {name: broken for name, broken in found.items() if not {"op", "arch"} & {v.rule for v in broken}}
    reasons: list[str] = []
    if near:
        closest = min(near, key=lambda name: len(near[name]))
        broken = near.pop(closest)
        if field := _own_fault(broken):
            at = problem_path.split("sweep.")[0] + "problem" if "sweep." in problem_path else problem_path
            told = "; ".join(violation.message.removeprefix(f"{field}: ") for violation in broken)
            allowed = f"what {closest} computes on {place.arch}: {told}"
            value: object = broken[0].numbers[field]
            return FieldError(
                f"{at}.{field}", value, allowed, value[::-1] if isinstance(value, str) else None
            )
        reasons = [f"{closest}: {violation.message}" for violation in broken]
    reasons += [text for one in why_not(problem, place.arch) if (text := one.message) not in reasons]
    allowed = f"a device whose arch can compute {problem_path} ({'; '.join(reasons)})"
    able = [arch for arch in CUDA_ARCHS if families_for(problem, arch)]
    if able and place.device_key is not None and place.arch.startswith("x86"):
        allowed += f"; without a GPU it can be compiled and emulated: target.arch (--arch) {', '.join(able)}"
    return FieldError(place.path, place.device_key or place.arch, allowed)


def _own_fault(broken: Sequence[Violation]) -> str | None:
    """The problem's own field that is in the way whatever the target; None where there is more."""
    rules, numbers = {violation.rule for violation in broken}, broken[0].numbers
    if rules == {"layout"}:
        return next(name for name in numbers if name.startswith("layout."))
    if rules == {"size"}:
        return max((name for name in numbers if name in _SIZES), key=lambda name: float(numbers[name]))
    return None


# ---------------------------------------------------------------- policy


def resolve_policy(cache: str | None, launch: str | None, device_key: str | None) -> dict[str, str]:
    """The measuring policy written out: cold unless said otherwise, a graph on CUDA and eager on a CPU."""
    return policy_for(cache, launch, cpu=device_key is None or device_key.startswith("cpu-"))


def policy_for(cache: str | None, launch: str | None, *, cpu: bool) -> dict[str, str]:
    """As resolve_policy, for a target that is known to be a CPU or not."""
    if cache is not None and cache not in CACHES:
        raise FieldError("policy.cache", cache, f"one of {', '.join(CACHES)}")
    if launch is not None and launch not in LAUNCHES:
        raise FieldError("policy.launch", launch, f"one of {', '.join(LAUNCHES)}")
    if cpu and launch == "graph":
        raise FieldError("policy.launch", launch, "eager on a CPU: graphs are CUDA's", "eager")
    return {"cache": cache or "cold", "launch": launch or ("eager" if cpu else "graph")}


def policy_key(policy: Mapping[str, Any]) -> str:
    """The policy class that releases are kept under: `cold-eager`."""
    return f"{policy['cache']}-{policy['launch']}"


# ---------------------------------------------------------------- memory


def memory_bytes(place: Place, row: DeviceRecord | None) -> int | None:
    """How much the device can hold; None where nobody knows."""
    if row is not None and isinstance(row.data.get("memory_bytes"), int):
        return int(row.data["memory_bytes"])
    if place.device_key is None:
        return None
    if place.device_key.startswith("gpu-"):
        key = parse_device_key(place.device_key)
        gib = getattr(key, "memory_gib", None)
        return None if gib is None else int(gib) * 2**30
    if place.device_key == local_cpu_key():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def check_memory(problem: Problem, place: Place, row: DeviceRecord | None, path: str) -> None:
    """FieldError when the operands alone are larger than the device's memory: it can never run there."""
    limit = memory_bytes(place, row)
    needed = problem.min_bytes
    if limit is None or needed <= limit:
        return
    sizes = {name: size for name, size in problem.sizes().items() if not name.startswith("ld_")}
    largest = max(sizes, key=lambda name: sizes[name])
    gib = f"{needed / 2**30:.1f} GiB and {place.device_key} has {limit / 2**30:.1f} GiB"
    allowed = f"smaller: the operands take {gib}"
    raise FieldError(path if "sweep." in path else f"{path}.{largest}", sizes[largest], allowed)
