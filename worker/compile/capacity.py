"""How many compilers may run at once on this machine, by its cgroup's CPUs and memory?"""

from __future__ import annotations

import os
from pathlib import Path

# A compile of ours peaks near 150 MB with gcc; 64 heavy ones must not lock the machine up (AT-80).
BYTES_EACH = 512 << 20


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs of the affinity mask, cut by the cgroup's quota (v2 and v1)."""
    count = float(len(os.sched_getaffinity(0)))
    for folder in _own_groups(root, "cpu"):
        quota, period = _quota(folder)
        if quota is not None and period:
            count = min(count, quota / period)
    return max(1, int(count + 0.001))


def usable_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that is free now, cut by what the cgroup still allows."""
    available = 0
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    available = available or 1 << 30
    for folder in _own_groups(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _text(folder / limit_name), _text(folder / used_name)
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                # Page cache counts as used but is given back under pressure.
                available = min(available, max(0, int(limit) - int(used) + _cached_bytes(folder)))
    return available


def compile_slots(root: Path = Path("/")) -> int:
    """How many compilers at once: at least one."""
    return max(1, min(usable_cpus(root), usable_memory_bytes(root) // BYTES_EACH))


def _quota(folder: Path) -> tuple[float | None, float]:
    v2 = _text(folder / "cpu.max").split()
    if len(v2) == 2:
        return (None if v2[0] == "max" else float(v2[0])), float(v2[1])
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota.lstrip("-").isdigit() and period.isdigit() and int(quota) > 0:
        return float(quota), float(period)
    return None, 0.0


def _cached_bytes(folder: Path) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return int(value)
    return 0


def _own_groups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup and its parents, for v2 and for a v1 controller."""
    folders: list[Path] = []
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers == "":
            tops = [base, base / "unified"]
        elif controller in names:
            tops = [base / controller, base / controllers]
        else:
            continue
        for top in tops:
            here = top / path.lstrip("/")
            while here != top.parent:
                folders.append(here)
                here = here.parent
    return folders


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
