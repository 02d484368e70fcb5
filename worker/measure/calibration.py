"""How does a process run kernels/x86/calibrate.c: for the roof, and to flush the caches?"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rooftile.launch.x86 import Pool, X86Kernel
from rooftile.plan import Arg, Launch, LaunchPlan

from worker.verify.arena import GuardedBuffer

SOURCE = "x86/calibrate.c"
ENTRIES = ("run", "rt_calibrate_flops")

_MODE_PEAK, _MODE_READ = 0, 1
_PEAK_S = 0.02
_COLD_SET_BYTES = 4 << 20


def calibration_plan(arch: str) -> LaunchPlan:
    """Through the same launcher as every kernel."""
    return LaunchPlan(
        family="calibrate",
        arch=arch,
        kind="x86",
        entries=("run",),
        sizes=("mode", "bytes", "count"),
        steps=(
            Launch(
                "run",
                (
                    Arg.ptr("data", "a"),
                    Arg.ptr("sink", "out"),
                    Arg.i64("mode"),
                    Arg.i64("bytes"),
                    Arg.i64("count"),
                ),
                threads="threads",
            ),
        ),
    )


class Calibrator:
    """The calibration kernel on one pool."""

    def __init__(self, so_path: Path, pool: Pool, arch: str) -> None:
        self._kernel = X86Kernel(so_path, calibration_plan(arch), pool)
        self._threads = pool.threads
        self._sink = np.zeros(16 * max(1, pool.threads), np.float32)
        library = ctypes.CDLL(str(so_path))
        library.rt_calibrate_flops.restype = ctypes.c_int64
        self._flops_a_round = int(library.rt_calibrate_flops()) * pool.threads

    def _bind(self, mode: int, address: int, nbytes: int, count: int) -> Callable[[], None]:
        names = {"mode": mode, "bytes": nbytes, "count": count}
        return self._kernel.prepare(names, {"a": address, "out": self._sink.ctypes.data}).run

    def reader(self, address: int, nbytes: int) -> Callable[[], None]:
        """A call that reads all of it once, on all threads."""
        return self._bind(_MODE_READ, address, nbytes, 1)

    def peak_gflops(self, runs: int) -> list[float]:
        """Arithmetic peak of f32 multiply-adds, each over some 20 ms."""
        count = 10_000
        run = self._bind(_MODE_PEAK, 0, 0, count)
        run()
        while True:
            taken = _seconds(run)
            if taken > _PEAK_S / 2:
                break
            count = int(count * min(10.0, _PEAK_S / max(taken, 1e-6)))
            run = self._bind(_MODE_PEAK, 0, 0, count)
        return [self._flops_a_round * count / _seconds(run) / 1e9 for _ in range(runs)]

    def read_gbps(self, buffer: GuardedBuffer, runs: int) -> list[float]:
        """Memory bandwidth of reading all of `buffer` on all threads."""
        run = self.reader(buffer.base, buffer.nbytes)
        run()
        return [buffer.nbytes / _seconds(run) / 1e9 for _ in range(runs)]

    def cold_check(self, buffer: GuardedBuffer) -> dict[str, float | bool]:
        """Is a set that the rotation comes back to really cold? Reading it must take longer than reading one
        that was just read (AT-23)."""
        size = min(_COLD_SET_BYTES, buffer.nbytes // 4)
        sets = buffer.nbytes // size
        runs = [self.reader(buffer.base + i * size, size) for i in range(sets)]
        for run in runs:
            run()
        cold = sorted(_seconds(run) for run in runs)[sets // 2]
        runs[0]()
        warm = sorted(_seconds(runs[0]) for _ in range(15))[7]
        return {"cold_us": cold * 1e6, "warm_us": warm * 1e6, "ok": cold > 1.1 * warm}


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    run()
    return max(1, time.perf_counter_ns() - start) / 1e9
