"""A Backend of the measuring process whose device is the host: what sessions are tested with, real processes
and all.

A "cubin" here is a cubin's header with JSON behind it: {"fault": name, "us": how long a run takes}. The
kernel is a GEMM in numpy; faults are those that the process has to survive, or die of, as with a GPU.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, ValidFor, Workspace
from rooftile.problem import Gemm
from support.host_cuda import HostCuda, HostMemory, LaunchSeen, cubin_header, view

from worker.measure.cuda_baseline import Bound, stub_plan
from worker.measure.cuda_watch import GpuChange, GpuState

SIZES = ("m", "n", "k", "batch", "ld_a", "ld_b", "ld_out", "stride_a", "stride_b", "stride_out")
ARGS = (
    *(Arg.ptr(name) for name in ("a", "b", "out", "workspace")),
    *(Arg.i64(name) for name in SIZES),
    Arg.f32("alpha"),
)
CODES = "Q" * 4 + "q" * len(SIZES) + "f"


class CudaError(RuntimeError):
    """As CuPy's: a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cudaError {status}")


def plan(*, workspace_bytes: int = 256, m: SizeRange | None = None, deterministic: bool = True) -> LaunchPlan:
    return LaunchPlan(
        family="planted_gpu",
        arch="sm_80",
        kind="cuda",
        entries=("gemm",),
        sizes=SIZES,
        steps=(Launch("gemm", ARGS, grid=("batch", 1, 1), block=(32, 1, 1)),),
        workspace=Workspace(workspace_bytes),
        deterministic=deterministic,
        valid_for=ValidFor({} if m is None else {"m": m}, {"a": 4, "b": 4, "out": 4}),
    )


def write_cubin(path: Path, **what: Any) -> Path:
    path.write_bytes(cubin_header(80) + json.dumps(what).encode())
    return path


class Planted:
    """The kernel of one file."""

    def __init__(self, what: Mapping[str, Any]) -> None:
        self.fault, self.us, self.calls = str(what.get("fault", "")), float(what.get("us", 100.0)), 0

    def __call__(self, seen: LaunchSeen) -> None:
        self.calls += 1
        started = time.perf_counter()
        a, b, out, _workspace, *sizes, alpha = seen.values(CODES)
        p = dict(zip(SIZES, sizes, strict=True))
        match self.fault:
            case "hang":
                time.sleep(1e6)
            case "abort":
                os.abort()
            case "exit":
                os._exit(3)
            case "illegal address":
                raise CudaError(700)
            case "refused":
                raise CudaError(1)
            case "out of memory":
                raise CudaError(2)
            case "stops after a while" if self.calls > 60:
                return
        for i in range(p["batch"]):
            x = view(a + 4 * i * p["stride_a"], (p["m"], p["k"]), (4 * p["ld_a"], 4), np.float32)
            y = view(b + 4 * i * p["stride_b"], (p["k"], p["n"]), (4 * p["ld_b"], 4), np.float32)
            z = view(out + 4 * i * p["stride_out"], (p["m"], p["n"]), (4 * p["ld_out"], 4), np.float32)
            z[...] = np.float32(alpha) * (x @ y)
            if self.fault == "wrong value":
                z[-1, -1] += 1.0
            if self.fault == "writes an input":
                x[0, 0] = 2.0
        while time.perf_counter() - started < self.us * 1e-6:
            pass


class Vendor:
    """A Baseline of the host."""

    def __init__(self, name: str, us: float, fault: str = "") -> None:
        self.name, self._planted = name, Planted({"us": us, "fault": fault})
        self.plan = stub_plan("vendor", 0)

    def machine_names(self) -> dict[str, int]:
        return {}

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Bound:
        values = [pointers["a"], pointers["b"], pointers["out"], 0, *(names[s] for s in SIZES)]
        pieces = [int(v).to_bytes(8, "little") for v in values]
        pieces.append(np.float32((scalars or {}).get("alpha", 1.0)).tobytes())
        seen = LaunchSeen("gemm", 0, 0, (1, 1, 1), (1, 1, 1), tuple(pieces), 0)
        return Bound(lambda: self._planted(seen))

    def facts(self) -> dict[str, Any]:
        return {"library": "host", "vendor": self.name}


class HostTimer:
    method = "wall clock"
    host_us: float | None = None

    def __init__(self, runs: Sequence[Callable[[], object]]) -> None:
        self._runs = runs

    def kernels(self) -> list[str]:
        return ["host"]

    def time_us(self) -> float:
        started = time.perf_counter_ns()
        for run in self._runs:
            run()
        return (time.perf_counter_ns() - started) / 1000.0 / len(self._runs)


class HostWatch:
    """A device on which nothing else happens, unless the file that ROOFTILE_TEST_OTHERS names is there."""

    def snapshot(self) -> GpuState:
        busy = Path(os.environ.get("ROOFTILE_TEST_OTHERS", "/nonexistent")).exists()
        return GpuState(time.monotonic(), 1980, 3201, 350.0, 45, 0, int(busy), 50 if busy else None)

    def between(self, before: GpuState, after: GpuState) -> GpuChange:
        return GpuChange(before, after)

    def describe(self) -> dict[str, Any]:
        return {"gpu": {"name": "host"}, "state": self.snapshot().to_json()}


class HostBackend:
    def __init__(self, options: Mapping[str, Any]) -> None:
        assert options["uuid"] == os.environ["CUDA_VISIBLE_DEVICES"]
        assert "CUDA_LAUNCH_BLOCKING" not in os.environ
        self.runtime = HostCuda({})
        self.memory, self.watch = HostMemory(self.runtime), HostWatch()
        self.l2_bytes = 1 << 20

    def kernel(self, path: Path, its_plan: LaunchPlan) -> CudaKernel:
        what = json.loads(path.read_bytes()[len(cubin_header(80)) :])
        runtime = HostCuda({"gemm": Planted(what)})
        return CudaKernel(path, its_plan, runtime=runtime, workspaces=Workspaces(runtime))

    def baselines(self, problem: Gemm) -> list[Any]:
        if problem.epilogue.activation == "silu":
            raise UnsuitableError("no activation silu")
        return [Vendor("slow", 300.0), Vendor("wrong", 50.0, "wrong value"), Vendor("fast", 150.0)]

    def timer(self, runs: Sequence[Callable[[], object]], launch: str) -> HostTimer:
        return HostTimer(runs)

    def idle_percent(self) -> int | None:
        path = Path(os.environ.get("ROOFTILE_TEST_BUSY", "/nonexistent"))
        return int(path.read_text()) if path.exists() else 0

    def canary_gbs(self) -> float:
        return 10.0

    def verdict_of(self, error: BaseException) -> tuple[str, bool] | None:
        status = getattr(error, "status", None)
        if status is None:
            return None
        return {700: ("out_of_bounds", False), 2: ("out_of_memory", True)}.get(status, ("launch_error", True))


def make(options: Mapping[str, Any]) -> HostBackend:
    return HostBackend(options)
