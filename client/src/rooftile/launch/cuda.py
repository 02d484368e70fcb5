"""How is a cubin run on arrays of a GPU?

`CudaKernel` loads the cubin once for each device and works the plan out once for each set of shapes and
strides. Called with arrays it checks them and launches on the caller's stream, on the arrays' device;
`prepare` is the level below, with bare addresses, which the worker times. Nothing here waits for the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftile.errors import DeviceError, PlanError
from rooftile.launch.cuda_elf import check_cubin
from rooftile.launch.cuda_runtime import DeviceFacts, Function, Runtime, cupy_runtime
from rooftile.launch.cuda_steps import Call, CudaSteps, check_launches, execute
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.launch.errors import LaunchError, UnsuitableError
from rooftile.plan import SCALARS, ConcretePlan, LaunchPlan

if TYPE_CHECKING:
    from rooftile.launch.cuda_call import CudaGemmCall
    from rooftile.problem import Gemm

__all__ = ["CudaKernel", "CudaPrepared"]

_shared: dict[int, Workspaces] = {}
_shared_lock = threading.Lock()


def shared_workspaces(runtime: Runtime) -> Workspaces:
    """The scratch buffers that all kernels of a runtime share."""
    with _shared_lock:
        return _shared.setdefault(id(runtime), Workspaces(runtime))


class CudaPrepared:
    """A kernel bound to addresses. Whoever made it keeps the memory alive; run() may be called any number of
    times, also while a graph is captured from its stream."""

    __slots__ = ("_calls", "_device", "_runtime", "stream", "workspace_bytes")

    def __init__(self, runtime: Runtime, device: int, calls: list[Call], stream: int, size: int) -> None:
        self._runtime = runtime
        self._device = device
        self._calls = calls
        self.stream = stream
        self.workspace_bytes = size

    def run(self) -> None:
        """Enqueue every step of the plan on the stream. Returns at once."""
        with self._runtime.on(self._device):
            execute(self._runtime, self._calls, self.stream)

    def run_on(self, stream: int) -> None:
        """The same on another stream of the device; the caller sees to it that the workspace is free."""
        with self._runtime.on(self._device):
            execute(self._runtime, self._calls, stream)


class CudaKernel:
    """One cubin with its LaunchPlan. Give the problem to call it with arrays; `open_sizes` lets m and batch
    be those of the arrays (one kernel for a whole Layer)."""

    def __init__(
        self,
        path: Path,
        plan: LaunchPlan,
        problem: Gemm | None = None,
        *,
        open_sizes: bool = False,
        runtime: Runtime | None = None,
        workspaces: Workspaces | None = None,
    ) -> None:
        """ArtifactError when the bytes are no cubin for the plan's arch; DeviceError without usable CUDA."""
        if plan.kind != "cuda":
            raise LaunchError(f"the plan of {plan.family} is for {plan.kind}, not for a GPU")
        self.path = path
        self.plan = plan
        self.problem = problem
        check_cubin(path, plan.arch)
        self.runtime = runtime if runtime is not None else cupy_runtime()
        self.workspaces = workspaces if workspaces is not None else shared_workspaces(self.runtime)
        self._functions: dict[int, dict[str, Function]] = {}
        self._allowed: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        self._call: CudaGemmCall | None = None
        if problem is not None:
            from rooftile.launch.cuda_call import CudaGemmCall

            self._call = CudaGemmCall(self, problem, open_sizes)

    # -- loading ----------------------------------------------------------------------------------------

    def functions(self, device: int, stream: int = 0) -> dict[str, Function]:
        """The entries on a device, loaded at first use; never while a graph is captured."""
        found = self._functions.get(device)
        if found is not None:
            return found
        if self.runtime.capturing(stream):
            raise UnsuitableError(
                f"a CUDA graph is being captured and {self.plan.family} is not loaded on device {device}: "
                "call it once before the capture (or its warm_up())"
            )
        with self._lock:
            found = self._functions.get(device)
            if found is None:
                facts = self.runtime.facts(device)
                if not runs_on_gpu(self.plan.arch, facts.compute_capability):
                    major, minor = facts.compute_capability
                    raise DeviceError(
                        f"the kernel is for {self.plan.arch}, device {device} is {major}.{minor}"
                    )
                found = {name: self.runtime.load(self.path, name, device) for name in self.plan.entries}
                self._functions[device] = found
            return found

    def warm_up(self, device: int | None = None, *, workspace_bytes: int = 0, stream: int = 0) -> None:
        """Load the cubin on a device (default: the current one) and set scratch memory aside, so that the
        first call may come from within the capture of a CUDA graph."""
        number = self.runtime.current_device() if device is None else device
        self.functions(number, stream)
        if workspace_bytes:
            self.workspaces.get(number, stream, workspace_bytes)

    def facts(self, device: int) -> DeviceFacts:
        """What the plan's expressions and the checks want to know of a device."""
        return self.runtime.facts(device)

    def machine_names(self, device: int | None = None) -> dict[str, int]:
        """The names of the machine that plans compute with."""
        number = self.runtime.current_device() if device is None else device
        return {"threads": 1, "sm_count": self.facts(number).sm_count}

    # -- preparing --------------------------------------------------------------------------------------

    def steps(self, names: Mapping[str, int], slots: tuple[str, ...], device: int, stream: int) -> CudaSteps:
        """The plan for these sizes on a device. UnsuitableError where the device cannot launch it."""
        functions = self.functions(device, stream)
        concrete = self._concrete(names)
        for entry, smem_bytes in check_launches(concrete, functions, self.facts(device)).items():
            # An attribute of the function, not of the launch: raised, never lowered under another thread's
            # feet.
            if self._allowed.get((device, entry), 0) < smem_bytes:
                with self._lock, self.runtime.on(device):
                    if self._allowed.get((device, entry), 0) < smem_bytes:
                        functions[entry].allow_smem(smem_bytes)
                        self._allowed[device, entry] = smem_bytes
        return CudaSteps(concrete, functions, slots, self.runtime.encode)

    def _concrete(self, names: Mapping[str, int]) -> ConcretePlan:
        try:
            return self.plan.concrete(names)
        except PlanError as error:
            raise UnsuitableError(f"{self.plan.family} cannot run this: {error}") from None

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
        *,
        device: int | None = None,
        stream: int | None = None,
    ) -> CudaPrepared:
        """Bind the plan to sizes, addresses by buffer name, and scalars, on a device (default: the current
        one) and a stream (a handle; default: the device's current one). Without a `workspace` among the
        pointers it gets the stream's. Refuses sizes and alignments that the plan is not valid for. A result
        without elements needs no launch, and gets none."""
        number = self.runtime.current_device() if device is None else device
        handle = self.runtime.current_stream(number) if stream is None else stream
        if 0 in (names.get("m"), names.get("n"), names.get("batch")):
            return CudaPrepared(self.runtime, number, [], handle, 0)
        known = {**self.machine_names(number), **names}
        align = {name: address & -address for name, address in pointers.items() if address}
        if reasons := self.plan.check(known, align):
            raise UnsuitableError(f"{self.plan.family} cannot run this: {'; '.join(reasons)}")
        given = {name: float(value) for name, value in (scalars or {}).items()}
        if unknown := given.keys() - set(SCALARS):
            raise LaunchError(f"no such scalar: {', '.join(sorted(unknown))}; there are {', '.join(SCALARS)}")
        addresses = dict(pointers)
        workspace = addresses.pop("workspace", 0)
        steps = self.steps(known, (*addresses, *given, "workspace"), number, handle)
        if steps.workspace_bytes and not workspace:
            workspace = self.workspaces.get(number, handle, steps.workspace_bytes)
        try:
            with self.runtime.on(number):
                calls = steps.bind((*addresses.values(), *given.values(), workspace), workspace)
        except OverflowError as error:  # 1e300 as f32
            raise LaunchError(f"a scalar does not fit the plan's argument: {error}") from error
        return CudaPrepared(self.runtime, number, calls, handle, steps.workspace_bytes)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        residual: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        stream: Any = None,
    ) -> Any:
        """out = activation(alpha * A @ B + beta * C + bias) + residual on arrays of one GPU; gives `out`, new
        if None, before the GPU is done with it. `stream`: a cupy or torch stream, or a handle; default: the
        current one of the arrays' library.

        LaunchError when the call is wrong; UnsuitableError when it is right but beyond this plan."""
        if self._call is None:
            raise LaunchError("this kernel was loaded without its problem: give it one, or use prepare()")
        return self._call(a, b, out, c, alpha, beta, bias, residual, scale_a, scale_b, stream)


def runs_on_gpu(arch: str, compute_capability: tuple[int, int]) -> bool:
    """Whether a GPU runs cubins of `arch`. Binary code runs on the same major version from its minor version
    on; with an `a` it uses what other versions lack, and runs on its own alone."""
    number = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not number.isdigit():
        return False
    major, minor = int(number[:-1]), int(number[-1])
    if arch.endswith("a"):
        return (major, minor) == compute_capability
    return major == compute_capability[0] and minor <= compute_capability[1]
