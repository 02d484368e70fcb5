"""What else did a GPU do while samples were taken: clocks, power, temperature, throttling, other processes?

NVML is asked around chunks of samples, not around each: some of its answers cost a millisecond. `disturbed`
is pure (tests have recorded states). In a container NVML may list processes by the host's numbers, which a
process there cannot learn of itself (NSpid in /proc/self/status shows those of the container and inward), or
none at all. So we are who appears in the list when our context is made; where that cannot be told, a load
beside ours is not told from ours either, and counts as another's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). The first two change what a kernel can reach at
# all.
_SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_NOTED = {
    0x01: "idle",
    0x02: "application clocks",
    0x04: "power cap",
    0x10: "sync boost",
    0x100: "display clocks",
}
# Of the SM clock: a chunk at another clock than the one before is no second look at the same machine. A GPU
# at its power limit moves its clock all the time, as it does in use; one that was idle shows its idle clock.
MOST_CLOCK_CHANGE = 0.10
_FLOATING = 0x01 | 0x04
# Of the SMs' time, in percent, that others may use: a window system shows one or two.
MOST_OTHERS_PERCENT = 5


@dataclass(frozen=True)
class GpuState:
    """The device at one moment. None: the driver does not say."""

    at_s: float
    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    reasons: int | None
    others: int | None
    """Processes on the device beside ours."""
    others_percent: int | None
    """What the busiest of them used of the SMs since the look before; None too where it is not known which
    process is ours."""

    def to_json(self) -> dict[str, Any]:
        return {
            "sm_mhz": self.sm_mhz,
            "memory_mhz": self.memory_mhz,
            "power_w": self.power_w,
            "temperature_c": self.temperature_c,
            "throttle": throttle_words(self.reasons),
            "other_processes": self.others,
        }


def throttle_words(reasons: int | None) -> list[str]:
    """The set bits by name."""
    if reasons is None:
        return []
    names = {**_SLOWDOWNS, **_NOTED}
    known = [name for bit, name in names.items() if reasons & bit]
    rest = reasons & ~sum(names)
    return known + ([f"0x{rest:x}"] if rest else [])


@dataclass(frozen=True)
class GpuChange:
    """From one state to the next."""

    before: GpuState
    after: GpuState

    def disturbed(self) -> str | None:
        """Which limit was passed, or None."""
        others = self.after.others
        if others:
            percent = self.after.others_percent
            if percent is None or percent > MOST_OTHERS_PERCENT:
                return "other processes"
        reasons = (self.before.reasons or 0) | (self.after.reasons or 0)
        for bit, name in _SLOWDOWNS.items():
            if reasons & bit:
                return name
        one, two = self.before.sm_mhz, self.after.sm_mhz
        if not reasons & _FLOATING and one and two and abs(two - one) > MOST_CLOCK_CHANGE * max(one, two):
            return "clock changed"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "wall_s": round(self.after.at_s - self.before.at_s, 6),
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


class GpuWatch:
    """One GPU through NVML."""

    def __init__(self, nvml: Any, handle: Any, facts: dict[str, Any]) -> None:
        self._nvml, self._handle, self._facts = nvml, handle, facts
        self._seen_us = 0
        self._strangers = frozenset(self._listed() or ())
        self._own: int | None = None

    @staticmethod
    def of_uuid(nvml: Any, uuid: str, facts: dict[str, Any]) -> GpuWatch:
        """The GPU (or MIG instance) of that UUID; before this process has a context on it."""
        return GpuWatch(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), facts)

    def find_self(self) -> None:
        """Learn, right after this process made its context, by which number NVML knows it."""
        new = sorted(set(self._listed() or ()) - self._strangers)
        self._own = own_of(new, os.getpid())
        self._others_percent()  # what was until now, as by a process before this one, is nobody's load

    def snapshot(self) -> GpuState:
        nvml, handle = self._nvml, self._handle
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        others = self._others()
        return GpuState(
            at_s=time.monotonic(),
            sm_mhz=self._ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_mhz=self._ask(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            power_w=None if power is None else power / 1000.0,
            temperature_c=self._ask(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            reasons=self._ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
            others=others,
            others_percent=self._others_percent() if others else None,
        )

    def between(self, before: GpuState, after: GpuState) -> GpuChange:
        return GpuChange(before, after)

    def describe(self) -> dict[str, Any]:
        return {"gpu": self._facts, "state": self.snapshot().to_json()}

    def utilization_percent(self) -> int | None:
        """How much of the last second, or so, some kernel ran."""
        nvml, handle = self._nvml, self._handle
        found: int | None = self._ask(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        return found

    def _others(self) -> int | None:
        listed = self._listed()
        return None if listed is None else others_of(listed, self._own, self._strangers)

    def _listed(self) -> list[int] | None:
        listed = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return None if listed is None else [int(one.pid) for one in listed]

    def _others_percent(self) -> int | None:
        """Of others since the last look; NVML keeps samples of some seconds."""
        if self._own is None:
            return None
        samples = self._ask(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us))
        if samples is None:
            return None
        self._seen_us = max([self._seen_us, *(int(one.timeStamp) for one in samples)])
        used = [int(one.smUtil) for one in samples if int(one.pid) != self._own]
        return max(used, default=0)

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._nvml.NVMLError:
            return None


def own_of(new: list[int], pid: int) -> int | None:
    """Which of the processes that appeared while our context was made is this one, whose own number is `pid`;
    None where that cannot be told (another process came at the same moment, or NVML hides us)."""
    if pid in new:
        return pid
    return new[0] if len(new) == 1 else None


def others_of(pids: list[int], own: int | None, strangers: frozenset[int]) -> int:
    """How many processes beside ours. Where ours is not known it may be any of those that were not there
    before it (`strangers` were)."""
    if own is not None:
        return sum(pid != own for pid in pids)
    return max(len(pids) - 1, sum(pid in strangers for pid in pids))
