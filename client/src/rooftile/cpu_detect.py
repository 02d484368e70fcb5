"""What do the files of Linux say about the CPU and about how much of it this process may use?

Works in containers: affinity, cgroup v1 and v2 quotas, hidden topology and hidden caches. Every function
takes the root of the file system, so that tests run on recorded trees.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from rooftile.device import CpuIdentity, arch_of
from rooftile.errors import DeviceError

_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "HygonGenuine": "hygon",
    "CentaurHauls": "centaur",
    "Shanghai": "zhaoxin",
}


def usable_cpus() -> frozenset[int]:
    """CPU numbers this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return frozenset(range(os.cpu_count() or 1))


def detect(root: Path, usable: frozenset[int]) -> CpuIdentity:
    """The CPU that the files under `root` describe, of which the CPUs `usable` may be used."""
    text = _read(root / "proc/cpuinfo")
    if text is None:
        system = platform.system() or "machine"
        raise DeviceError(f"no /proc/cpuinfo on this {system}: only Linux CPUs are supported")
    entries = _cpuinfo(text)
    first = next((e for n, e in sorted(entries.items()) if n in usable), None)
    if first is None:
        raise DeviceError("/proc/cpuinfo lists none of the CPUs that this process may use")
    if "vendor_id" not in first or "flags" not in first:
        raise DeviceError("this is no x86 CPU; the CPU kernels need x86-64-v3")
    features = frozenset(first["flags"].split())
    vendor = first["vendor_id"].strip()
    per_core = _one_per_core(root, usable, entries)
    caches = _caches(root, sorted(usable))
    quota = cgroup_cpus(root)
    cores = len(per_core)
    if quota is not None:
        # Whole cores only: a thread more than the quota is throttled in the middle of a kernel.
        cores = min(cores, max(1, int(quota)))
    return CpuIdentity(
        vendor=_VENDORS.get(vendor) or _plain(vendor),
        family=_number(first, "cpu family"),
        model=_number(first, "model"),
        cores=cores,
        arch=arch_of(features),
        features=features,
        name=" ".join(first.get("model name", "").split()),
        l1d_bytes=caches.get("l1d"),
        l2_bytes=caches.get("l2"),
        llc_bytes=caches.get("llc"),
        llc_total_bytes=caches.get("llc_total"),
        logical_cpus=tuple(sorted(usable)),
        one_per_core=tuple(per_core[:cores]),
    )


def cgroup_cpus(root: Path) -> float | None:
    """CPUs' worth of time that the cgroups of this process grant, the least on the way up; None: no limit."""
    lines = (_read(root / "proc/self/cgroup") or "").splitlines()
    quotas: list[float] = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0" and not controllers:
            for folder in _upwards(root, ("sys/fs/cgroup", "sys/fs/cgroup/unified"), path):
                words = (_read(folder / "cpu.max") or "").split()
                quotas += _quota(words[0], words[1]) if len(words) == 2 else []
        elif "cpu" in controllers.split(","):
            mounts = (f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")
            for folder in _upwards(root, mounts, path):
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                quotas += _quota(quota, period) if quota and period else []
    return min(quotas, default=None)


def _upwards(root: Path, mounts: Iterable[str], path: str) -> Iterator[Path]:
    """The cgroup's folder and its parents up to the mount. In a container `path` may be the host's, which is
    not there; then the walk reaches the mount, which is the container's own group."""
    for mount in mounts:
        base = root / mount
        parts = [p for p in path.split("/") if p and p != ".."]
        for n in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:n])


def _quota(quota: str, period: str) -> list[float]:
    try:
        amount, per = int(quota), int(period)
    except ValueError:  # "max"
        return []
    return [amount / per] if amount > 0 and per > 0 else []


def _cpuinfo(text: str) -> dict[int, dict[str, str]]:
    entries: dict[int, dict[str, str]] = {}
    for block in text.split("\n\n"):
        entry: dict[str, str] = {}
        for line in block.splitlines():
            name, separator, value = line.partition(":")
            if separator:
                entry[name.strip()] = value.strip()
        if entry.get("processor", "").isdigit():
            entries[int(entry["processor"])] = entry
    return entries


def _one_per_core(root: Path, usable: frozenset[int], entries: dict[int, dict[str, str]]) -> list[int]:
    """The first usable CPU of each physical core. Hyper-threads share the units that a kernel keeps busy, so
    they count once."""
    seen: set[object] = set()
    firsts: list[int] = []
    for cpu in sorted(usable):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        entry = entries.get(cpu, {})
        core: object
        if siblings:
            core = tuple(parse_cpu_list(siblings))
        elif "core id" in entry:
            core = (entry.get("physical id", "0"), entry["core id"])
        else:
            core = cpu
        if core not in seen:
            seen.add(core)
            firsts.append(cpu)
    return firsts


def parse_cpu_list(text: str) -> list[int]:
    """`0-2,5` as numbers."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            numbers += range(int(low), int(high or low) + 1)
    return numbers


def _caches(root: Path, cpus: list[int]) -> dict[str, int]:
    """l1d, l2, llc of the first CPU that shows its caches, and llc_total over all."""
    found: dict[str, int] = {}
    last_level: dict[tuple[int, ...], int] = {}
    for cpu in cpus:
        by_level: dict[int, tuple[int, tuple[int, ...]]] = {}
        for index in range(8):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            kind, level = (_read(folder / "type") or "").strip(), (_read(folder / "level") or "").strip()
            size = _size(_read(folder / "size"))
            if kind not in ("Data", "Unified") or not level.isdigit() or size is None:
                continue
            shared = tuple(parse_cpu_list(_read(folder / "shared_cpu_list") or str(cpu)))
            by_level[int(level)] = (size, shared)
        if not by_level:
            continue
        for level_number, name in ((1, "l1d"), (2, "l2")):
            if level_number in by_level:
                found.setdefault(name, by_level[level_number][0])
        top = max(by_level)
        if top >= 2:
            size, shared = by_level[top]
            found.setdefault("llc", size)
            last_level[shared] = size
    if last_level:
        found["llc_total"] = sum(last_level.values())
    return found


def _size(text: str | None) -> int | None:
    """`512K` in bytes."""
    text = (text or "").strip()
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    unit = units.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    return int(digits) * unit if digits.isdigit() and int(digits) > 0 else None


def _number(entry: dict[str, str], name: str) -> int:
    text = entry.get(name, "")
    return int(text) if text.isdigit() else 0


def _plain(vendor: str) -> str:
    """An unknown vendor as a word that a key can hold."""
    word = "".join(c for c in vendor.lower() if c.isascii() and c.isalnum())[:16]
    return word if word[:1].isalpha() else f"x{word}"[:16]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
