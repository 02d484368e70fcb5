"""What does the measuring process need of a GPU? One interface, and CuPy behind it.

Everything else of measuring on CUDA is written against `Backend`, and the tests run it on a backend whose
device is the host. Times are those of the device's own events: a graph of runs for policy `graph`, runs
launched one by one for `eager` (then what the host needs for a launch counts, as it does for a program that
calls like that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rooftile.launch.cuda import CudaKernel
from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm

from worker.measure.cuda_names import kernel_names
from worker.measure.machine import Watch
from worker.measure.statistics import median
from worker.verify.device_checks import Launchable
from worker.verify.device_memory import CupyMemory, DeviceMemory

Run = Callable[[], object]

# Launches that the driver queues without waiting.
_HOST_RUNS = 16
_CANARY_BYTES = 256 << 20
# cudaDeviceAttr L2CacheSize.
_L2_ATTRIBUTE = 38
# CUDA errors after which the context is dead (driver_types.h); every later call repeats them.
_STICKY = {
    214: "device_lost",  # uncorrectable ECC error
    220: "device_lost",  # uncorrectable NVLink error
    226: "device_lost",  # an error that the GPU contained
    700: "out_of_bounds",  # illegal address
    702: "hang",  # launch timeout
    709: "crash",  # context is destroyed
    710: "trap",  # assert
    714: "crash",  # hardware stack error
    715: "crash",  # illegal instruction
    716: "misaligned",  # misaligned address
    717: "out_of_bounds",  # invalid address space
    718: "crash",  # invalid pc
    719: "crash",  # launch failure
    721: "crash",  # tensor memory leak
    999: "crash",  # unknown: nobody says what is left of the context
}


def verdict_of_status(status: int) -> tuple[str, bool]:
    """Which failure a CUDA error code is, and whether the process can go on."""
    if status in _STICKY:
        return _STICKY[status], False
    return ("out_of_memory", True) if status == 2 else ("launch_error", True)


class RoundTimer(Protocol):
    """A round of runs whose time the device takes itself."""

    method: str
    host_us: float | None
    """What the host needs to launch one run, kernel time apart (AT-35)."""

    def time_us(self) -> float:
        """One round, in microseconds a run."""
        ...

    def kernels(self) -> list[str]:
        """Names of the kernels that a round launches; empty where nobody says."""
        ...


class Baseline(Launchable, Protocol):
    """The vendor's kernel as a candidate."""

    @property
    def name(self) -> str: ...

    def facts(self) -> dict[str, Any]:
        """Which kernel it is."""
        ...


class Backend(Protocol):
    """One GPU, and what measuring does with it."""

    @property
    def memory(self) -> DeviceMemory: ...

    @property
    def watch(self) -> Watch: ...

    @property
    def l2_bytes(self) -> int: ...

    def kernel(self, path: Path, plan: LaunchPlan) -> Launchable: ...

    def baselines(self, problem: Gemm) -> list[Baseline]:
        """The vendor's kernels for a problem, in the order in which they are tried; UnsuitableError says why
        there are none."""
        ...

    def timer(self, runs: Sequence[Run], launch: str) -> RoundTimer:
        """`launch` is graph or eager."""
        ...

    def idle_percent(self) -> int | None:
        """How busy the device is while we do nothing; None where nobody says."""
        ...

    def canary_gbs(self) -> float:
        """Rate of a fixed stream through memory, read and written."""
        ...

    def verdict_of(self, error: BaseException) -> tuple[str, bool] | None:
        """Which failure a CUDA error is, and whether the process can go on; None for any other exception."""
        ...


class CupyBackend:
    """The GPU that CUDA shows this process as device 0."""

    def __init__(self, uuid: str, facts: dict[str, Any]) -> None:
        import cupy
        from rooftile.gpu_detect import load_nvml

        from worker.measure.cuda_watch import GpuWatch

        self._cupy = cupy
        # Before there is a context of ours: who is on the device now is somebody else.
        self._gpu_watch = GpuWatch.of_uuid(load_nvml(), uuid, facts)
        self.watch: Watch = self._gpu_watch
        cupy.cuda.runtime.setDevice(0)
        # A stream of our own, current for CuPy too: the default one cannot be captured.
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.memory: DeviceMemory = CupyMemory()
        cupy.cuda.runtime.free(0)  # from here on there surely is one
        self._gpu_watch.find_self()
        self._canary: Any = None
        self.l2_bytes = int(cupy.cuda.runtime.deviceGetAttribute(_L2_ATTRIBUTE, 0))

    def kernel(self, path: Path, plan: LaunchPlan) -> Launchable:
        return CudaKernel(path, plan)

    def baselines(self, problem: Gemm) -> list[Baseline]:
        from worker.measure.cuda_baseline import baselines

        return baselines(problem)

    def timer(self, runs: Sequence[Run], launch: str) -> RoundTimer:
        return CupyTimer(self._cupy, self.stream, runs, launch)

    def idle_percent(self) -> int | None:
        return self._gpu_watch.utilization_percent()

    def canary_gbs(self) -> float:
        if self._canary is None:
            size = min(_CANARY_BYTES, max(1 << 20, self.memory.free_bytes() // 8))
            self._canary = self._cupy.zeros(size // 8, np.uint64)
        data = self._canary
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        times = []
        for _ in range(5):
            start.record(self.stream)
            data += np.uint64(1)
            end.record(self.stream)
            end.synchronize()
            times.append(float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3)
        return 2.0 * int(data.nbytes) / max(1e-9, median(times[1:])) / 1e9

    def verdict_of(self, error: BaseException) -> tuple[str, bool] | None:
        if isinstance(error, self._cupy.cuda.memory.OutOfMemoryError):
            return "out_of_memory", True
        status = getattr(error, "status", None)
        return verdict_of_status(status) if isinstance(status, int) else None


class CupyTimer:
    """Events around a graph of the runs, or around the runs."""

    def __init__(self, cupy: Any, stream: Any, runs: Sequence[Run], launch: str) -> None:
        self._cupy, self._stream, self._runs = cupy, stream, list(runs)
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._graph: Any = None
        self.host_us: float | None = None
        self.method = "events around runs launched one by one"
        if launch == "graph":
            self._runs[0]()  # whatever is set up at a first launch may not be captured
            stream.synchronize()
            self.host_us = self._host_us(self._runs[:_HOST_RUNS])
            stream.synchronize()
            stream.begin_capture()
            try:
                for run in self._runs:
                    run()
            finally:
                self._graph = stream.end_capture()
            self._graph.upload(stream)
            stream.synchronize()
            self.method = "events around a graph of runs"

    def time_us(self) -> float:
        stream = self._stream
        self._start.record(stream)
        if self._graph is not None:
            self._graph.launch(stream)
        else:
            self.host_us = self._host_us(self._runs)
        self._end.record(stream)
        self._end.synchronize()
        elapsed_ms = self._cupy.cuda.get_elapsed_time(self._start, self._end)
        return float(elapsed_ms) * 1000.0 / len(self._runs)

    @staticmethod
    def _host_us(runs: Sequence[Run]) -> float:
        """What the host needs to launch a run: a program that calls so fast waits for this, not for the
        device."""
        began = time.perf_counter_ns()
        for run in runs:
            run()
        return (time.perf_counter_ns() - began) / 1000.0 / len(runs)

    def kernels(self) -> list[str]:
        return [] if self._graph is None else kernel_names(int(self._graph.graph))


def cupy_backend(options: dict[str, Any]) -> Backend:
    """The backend of a measure worker's child."""
    return CupyBackend(str(options["uuid"]), dict(options.get("facts") or {}))
