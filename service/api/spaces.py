"""What may be tuned for an op, arch and dtype, and if nothing, why not?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftile.device import ARCHS, CUDA_ARCHS, CpuKey, check_arch, parse_device_key
from rooftile.errors import FieldError
from rooftile.problem import Gemm, Problem, parse_problem

from search_space.device import Device, arch_of_key
from search_space.errors import UnknownDevice
from search_space.family import Family
from search_space.registry import LATER, families, families_for, why_not
from search_space.schedule import GROUPS
from search_space.violation import Violation
from service.api import render, schemas
from service.api.errors import BadFieldError
from service.store.records import DeviceRecord

# Sizes of the problem that stands for an op where the question names none.
_SIZES: dict[str, dict[str, Any]] = {
    "gemm": {"m": 1024, "n": 1024, "k": 1024},
    "attention": {"batch": 1, "heads_q": 8, "heads_kv": 8, "seq_q": 1024, "seq_kv": 1024, "head_dim": 128},
}
# Cores of the machine that stands for an arch of which no device was ever seen.
_NOMINAL_CORES = 8


def archs(known: Sequence[DeviceRecord]) -> list[schemas.Arch]:
    """Every arch by name, with the families that compile for it and the devices that have it."""
    # One of each that some family takes: CPUs compute f32, tensor cores 16-bit types.
    probes = [Gemm(m=1024, n=1024, k=1024, dtype=dtype) for dtype in ("f32", "f16")]
    out = []
    for name in ARCHS:
        mine = list(dict.fromkeys(f.name for probe in probes for f in families_for(probe, name)))
        note = "" if mine else f"no family compiles for it yet; planned: {', '.join(_later(name)) or 'none'}"
        out.append(
            schemas.Arch(
                name=name,
                kind="cuda" if name in CUDA_ARCHS else "x86",
                families=mine,
                devices=[device.key for device in known if device.arch == name],
                note=note,
            )
        )
    return out


def _later(arch: str) -> list[str]:
    tag = "x86" if arch.startswith("x86") else arch.rstrip("a").replace("_", "")
    return [name for name in LATER if name.endswith(tag)]


def space(
    op: str,
    arch: str | None,
    dtype: str,
    device: str | None,
    sizes: Mapping[str, int],
    known: Sequence[DeviceRecord],
) -> schemas.SpaceOut:
    """The families and their parameters; FieldError names what is wrong with the question."""
    fields = {"op": op, "dtype": dtype, **_SIZES.get(op, {})}
    if op == "gemm":
        fields.update(sizes)
    elif sizes:
        name = next(iter(sizes))
        raise BadFieldError(f"{name} is a size of a gemm.", field=name, value=sizes[name], allowed="op gemm")
    problem = parse_problem(fields)
    arch_name, key, numbers = _machine(arch, device, known)
    shown = [_family(family, problem, arch_name, numbers) for family in families().values()]
    return schemas.SpaceOut(
        op=op,
        arch=arch_name,
        dtype=dtype,
        problem=problem.to_json(),
        device=key,
        supported=any(entry.supported for entry in shown),
        families=shown,
        why_not=[_reason(violation) for violation in why_not(problem, arch_name)],
    )


def _machine(
    arch: str | None, device: str | None, known: Sequence[DeviceRecord]
) -> tuple[str, str | None, Device | None]:
    """The arch in question, the device it is asked for, and the numbers that legality needs."""
    if device is not None:
        parsed = parse_device_key(device)
        record = next((row for row in known if row.key == str(parsed)), None)
        name = record.arch if record is not None else arch_of_key(parsed)
        if name is None:
            raise FieldError("device", device, "a device whose arch is known, or an arch instead")
        if arch is not None and arch != name:
            raise FieldError("arch", arch, f"left out, or {name}, the arch of the device", name)
        return name, str(parsed), _numbers(str(parsed), record)
    if arch is None:
        raise BadFieldError("arch or device is needed.", field="arch", allowed=list(ARCHS))
    check_arch(arch)
    record = next((row for row in known if row.arch == arch), None)
    if record is not None:
        return arch, record.key, _numbers(record.key, record)
    if arch in CUDA_ARCHS:
        typical = Device.for_arch(arch)
        return arch, typical.key, typical
    return arch, None, Device.for_key(CpuKey("generic", 0, 0, _NOMINAL_CORES, arch))


def _numbers(key: str, record: DeviceRecord | None) -> Device | None:
    try:
        if record is not None and record.data.get("key") == key:
            return Device.from_json(record.data)
        return Device.for_key(key)
    except UnknownDevice:
        return None


def _family(family: Family, problem: Problem, arch: str, device: Device | None) -> schemas.FamilySpace:
    violations = family.supports(problem, arch)
    groups: dict[str, list[schemas.Parameter]] = {}
    default = None
    if not violations and device is not None:
        default = family.default(problem, device)
        groups = {group: [] for group in GROUPS}
        for parameter in family.parameters(problem, device):
            groups[parameter.group].append(schemas.Parameter(**parameter.to_json()))
    return schemas.FamilySpace(
        family=family.name,
        version=str(family.version),
        supported=not violations,
        why_not=[_reason(violation) for violation in violations],
        groups=groups,
        default=None if default is None else default.to_json(),
        default_text=None if default is None else render.schedule_text(default.to_json()),
    )


def _reason(violation: Violation) -> schemas.Reason:
    return schemas.Reason(**violation.to_json())
