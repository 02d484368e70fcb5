"""What else did the machine do while samples were taken?"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.host import test_host

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")

# Of the CPU time a chunk of samples could use, the part that may go to waiting for a CPU. A neighbour that
# takes turns with one of two threads costs 25 %; kernel threads and our own sweeps of the database 1 or 2 %.
MOST_WAIT_SHARE = 0.05
# Of the machine's time: stolen by the hypervisor, used by processes that are not ours.
MOST_STEAL_SHARE = 0.03
MOST_OTHERS_SHARE = 0.10
# /proc/stat counts in ticks of 10 ms: below this many in all a share means nothing.
_LEAST_TICKS = 20


@dataclass(frozen=True)
class Snapshot:
    """Counters of the machine and of this process at one moment."""

    at_s: float
    busy_s: float
    steal_s: float
    own_cpu_s: float
    involuntary: int
    wait_s: float | None


def snapshot() -> Snapshot:
    """Costs about 100 us: taken around chunks of samples, not around each."""
    busy, steal = _stat()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Snapshot(
        time.monotonic(),
        busy,
        steal,
        usage.ru_utime + usage.ru_stime,
        usage.ru_nivcsw,
        run_queue_wait_s(),
    )


def run_queue_wait_s() -> float | None:
    """Seconds that threads of this process have waited for a CPU while they could run, or None."""
    total = 0
    try:
        with os.scandir("/proc/self/task") as tasks:
            for task in tasks:
                with open(f"{task.path}/schedstat", "rb") as file:
                    total += int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return total / 1e9


def _stat() -> tuple[float, float]:
    with open("/proc/stat", "rb") as file:
        fields = [int(value) for value in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq) * _TICK_S, steal * _TICK_S


@dataclass(frozen=True)
class Disturbance:
    """The difference of two snapshots."""

    wall_s: float
    steal_share: float
    others_share: float
    involuntary: int
    wait_share: float | None
    ticks: float

    def disturbed(self) -> str | None:
        """Which limit was passed, or None. Never on a host that a test has made up: such share one CPU, their
        times mean nothing, and every sample would be disturbed."""
        if test_host() is not None:
            return None
        if self.wait_share is not None:
            if self.wait_share > MOST_WAIT_SHARE and self.wait_share * self.wall_s > 100e-6:
                return "waited for a CPU"
        elif self.involuntary > 2 + self.wall_s / 0.02:
            return "involuntary switches"
        if self.ticks >= _LEAST_TICKS:
            if self.steal_share > MOST_STEAL_SHARE:
                return "steal"
            if self.others_share > MOST_OTHERS_SHARE:
                return "other processes"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "wall_s": round(self.wall_s, 6),
            "steal_share": round(self.steal_share, 5),
            "others_share": round(self.others_share, 5),
            "involuntary_switches": self.involuntary,
            "cpu_wait_share": None if self.wait_share is None else round(self.wait_share, 6),
        }


def between(before: Snapshot, after: Snapshot, threads: int) -> Disturbance:
    """What happened from `before` to `after` to a process that ran on `threads` threads."""
    wall = max(after.at_s - before.at_s, 1e-9)
    cpus = os.cpu_count() or 1
    whole = wall * cpus
    own = after.own_cpu_s - before.own_cpu_s
    busy = after.busy_s - before.busy_s
    wait = None
    if before.wait_s is not None and after.wait_s is not None:
        wait = max(0.0, after.wait_s - before.wait_s) / (wall * max(1, threads))
    return Disturbance(
        wall_s=wall,
        steal_share=max(0.0, after.steal_s - before.steal_s) / whole,
        others_share=max(0.0, busy - own) / whole,
        involuntary=after.involuntary - before.involuntary,
        wait_share=wait,
        ticks=whole / _TICK_S,
    )


class Change(Protocol):
    """What happened to a device between two looks."""

    def disturbed(self) -> str | None:
        """Which limit was passed, or None."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class Watch(Protocol):
    """Looks at whatever may disturb samples on a device."""

    def snapshot(self) -> Any: ...

    def between(self, before: Any, after: Any) -> Change: ...

    def describe(self) -> dict[str, Any]:
        """What is kept beside a measurement."""
        ...


class CpuWatch:
    """This machine, as a process on `threads` threads has it."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def snapshot(self) -> Snapshot:
        return snapshot()

    def between(self, before: Snapshot, after: Snapshot) -> Disturbance:
        return between(before, after, self._threads)

    def describe(self) -> dict[str, Any]:
        return {**describe(), "threads": self._threads}


def clocks_mhz() -> list[float] | None:
    """Present clock of each CPU where the machine tells it; a VM mostly does not."""
    values: list[float] = []
    for cpu in sorted(os.sched_getaffinity(0)):
        text = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
        if not text.isdigit():
            return None
        values.append(int(text) / 1000.0)
    return values or None


def describe() -> dict[str, Any]:
    """Load, clocks and memory: kept beside a measurement."""
    return {"load": list(os.getloadavg()), "clocks_mhz": clocks_mhz(), "huge_pages": _huge_pages()}


def _huge_pages() -> str | None:
    text = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    start = text.find("[")
    return text[start + 1 : text.find("]")] if start >= 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# After this our own pool is asleep (SPIN_NS in kernels/x86/pool.c): one step then shows that nothing spins.
_OUR_SPIN_S = 0.0025


def wait_until_idle(*, most_s: float = 0.5, step_s: float = 0.012) -> float:
    """Wait until this process uses no CPU any more (spinning threads went to sleep); the seconds it took.

    A thread pool that still spins after a burst would disturb whoever runs next: OpenBLAS's threads spin for
    30 to 110 ms, ours for 2 ms. The kernel adds up the time of a thread that runs on another CPU only at its
    ticks, 4 or 10 ms apart: a step has to be longer, or a spinning thread looks idle between two of them.
    """
    started = time.monotonic()
    time.sleep(_OUR_SPIN_S)
    before = time.process_time()
    while time.monotonic() - started < most_s:
        time.sleep(step_s)
        now = time.process_time()
        # Waking up for this very look costs some 50 us.
        if now - before < 0.1 * step_s:
            break
        before = now
    return time.monotonic() - started
