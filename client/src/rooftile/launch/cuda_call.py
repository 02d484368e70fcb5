"""How does a GEMM called with GPU arrays reach its kernel in some tens of microseconds?

As gemm_call.py for the CPU: what follows from shapes, strides, element types and alignment is checked and
worked out once and kept by exactly those; addresses, scalars, overlap and the stream are looked at in each
call.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rooftile.errors import LaunchError
from rooftile.launch.cuda_arrays import (
    DeviceArray,
    check_device_dtype,
    default_stream,
    device_array,
    new_array,
    stream_handle,
)
from rooftile.launch.cuda_steps import CudaSteps, execute
from rooftile.launch.errors import UnsuitableError
from rooftile.launch.operands import (
    as_scalar,
    check_out,
    check_overlap,
    check_present,
    check_scalars,
    pitches,
    plan_names,
    problem_of,
)
from rooftile.problem import Gemm, operand_dtype, operand_shape

if TYPE_CHECKING:
    from rooftile.launch.cuda import CudaKernel

OPERANDS = ("a", "b", "c", "out", "bias", "residual", "scale_a", "scale_b")
_SLOTS = (*OPERANDS, "workspace", "alpha", "beta")
# A program with more shapes than this works some of them out again.
_MAX_KEPT = 256
# No instruction cares about more alignment than a TMA descriptor's 128 bytes.
_ALIGN_MASK = 127


@dataclass(frozen=True, slots=True)
class _Known:
    """What one set of shapes and strides means on one device. `steps` is None where nothing is launched."""

    problem: Gemm
    steps: CudaSteps | None


class CudaGemmCall:
    """Calls of one kernel for one GEMM problem."""

    def __init__(self, kernel: CudaKernel, problem: Gemm, open_sizes: bool) -> None:
        self.problem = problem
        self._kernel = kernel
        self._runtime = kernel.runtime
        self._open = open_sizes
        self._known: dict[Any, _Known] = {}

    def __call__(
        self, a: Any, b: Any, given_out: Any, c: Any, alpha: float, beta: float, bias: Any, residual: Any,
        scale_a: Any, scale_b: Any, stream: Any,
    ) -> Any:  # fmt: skip
        """One call; see CudaKernel.__call__."""
        runtime = self._runtime
        alpha, beta = as_scalar("alpha", alpha), as_scalar("beta", beta)
        check_scalars(self.problem, alpha, beta)
        given = {
            "a": a,
            "b": b,
            "c": c,
            "bias": bias,
            "residual": residual,
            "scale_a": scale_a,
            "scale_b": scale_b,
        }
        arrays = {n: device_array(n, x, runtime) for n, x in given.items() if x is not None}
        if "a" not in arrays or "b" not in arrays:
            raise LaunchError(f"{'b' if 'a' in arrays else 'a'} is missing")
        device = arrays["a"].device
        handle = stream_handle(stream)
        if handle is None:
            handle = default_stream(arrays["a"], runtime)
        made = given_out
        if made is None:
            problem = problem_of(self.problem, arrays["a"], self._open)  # type: ignore[arg-type]
            shape, dtype = operand_shape(problem, "out"), operand_dtype(problem, "out")
            made = new_array(arrays["a"], shape, dtype, lambda: runtime.capturing(handle))
        arrays["out"] = device_array("out", made, runtime)

        key = (device, beta != 0.0, *(
            (n, x.shape, x.strides, x.dtype, x.device, x.flags.writeable, x.address & _ALIGN_MASK)
            for n, x in arrays.items()
        ))  # fmt: skip
        known = self._known.get(key)
        if known is None:
            known = self._learn(key, arrays, beta, handle)
        check_device_overlap(arrays)
        if known.steps is None:
            return made
        addresses = {n: x.address for n, x in arrays.items()}
        if beta == 0.0:
            addresses.pop("c", None)  # not to be read: what lies there may be NaN
        self._launch(known.steps, addresses, alpha, beta, device, handle)
        return made

    def _launch(
        self, steps: CudaSteps, addresses: dict[str, int], alpha: float, beta: float, device: int, stream: int
    ) -> None:
        workspace = 0
        if steps.workspace_bytes:
            workspace = self._kernel.workspaces.get(device, stream, steps.workspace_bytes)
        values = (*(addresses.get(name, 0) for name in OPERANDS), workspace, alpha, beta)
        with self._runtime.on(device):
            try:
                calls = steps.bind(values, workspace)
            except (OverflowError, struct.error) as error:
                raise LaunchError(
                    f"alpha={alpha!r} or beta={beta!r} is no number of the kernel's kind"
                ) from error
            execute(self._runtime, calls, stream)

    # -- what is worked out once ------------------------------------------------------------------------

    def _learn(self, key: Any, arrays: dict[str, DeviceArray], beta: float, stream: int) -> _Known:
        """Check arrays never seen in this form, and work the plan out for them."""
        problem = problem_of(self.problem, arrays["a"], self._open)  # type: ignore[arg-type]
        check_call(problem, arrays, beta)
        device = arrays["a"].device
        steps = None
        if 0 not in (problem.m, problem.n, problem.batch):
            steps = self._steps(problem, arrays, device, stream)
        known = _Known(problem, steps)
        if len(self._known) >= _MAX_KEPT:
            self._known.pop(next(iter(tuple(self._known))), None)  # a copy: other threads add to it
        self._known[key] = known
        return known

    def _steps(self, problem: Gemm, arrays: dict[str, DeviceArray], device: int, stream: int) -> CudaSteps:
        matrices = {n: x for n, x in arrays.items() if not n.startswith("scale_")}
        operands = {name: pitches(name, array) for name, array in matrices.items()}  # type: ignore[arg-type]
        names = {**plan_names(operands, problem), **self._kernel.machine_names(device)}
        align = {}
        for name, array in arrays.items():
            start = array.address | (_ALIGN_MASK + 1)
            align[name] = start & -start
            if align[name] < array.itemsize and array.size:
                raise UnsuitableError(f"{name} starts at no multiple of its {array.itemsize}-byte elements")
            if not array.size:
                del align[name]  # no address to judge: nothing of it is read
        plan = self._kernel.plan
        if reasons := plan.check(names, align):
            raise UnsuitableError(f"{plan.family} cannot run this call: {'; '.join(reasons)}")
        return self._kernel.steps(names, _SLOTS, device, stream)


def check_call(problem: Gemm, arrays: dict[str, DeviceArray], beta: float) -> None:
    """The arrays of a call must be the problem's, on one device."""
    check_present(problem, beta, arrays.get("c"), arrays.get("bias"), arrays.get("residual"))
    device = arrays["a"].device
    for name, array in arrays.items():
        if array.device != device and array.size:
            raise LaunchError(f"{name} is on device {array.device}, a on device {device}")
        if name.startswith("scale_"):
            _check_scale(problem, name, array)
        else:
            _check_operand(problem, name, array)
    for name, spec in (("scale_a", problem.scale.a), ("scale_b", problem.scale.b)):
        if spec is not None and name not in arrays:
            raise LaunchError(f"{name} is missing: the problem has such a scale ({spec.to_json()})")
    check_out(arrays["out"])  # type: ignore[arg-type]


def check_device_overlap(arrays: dict[str, DeviceArray]) -> None:
    """out may be exactly c; any other common byte is refused, because other blocks still read."""
    out = arrays["out"]
    low, high = _span(out)
    near = [n for n, x in arrays.items() if n != "out" and _meets(_span(x), low, high)]
    if near:
        check_overlap(_as_host(out), ((name, _as_host(arrays[name])) for name in near))


def _check_operand(problem: Gemm, name: str, array: DeviceArray) -> None:
    """Shape and element type must be the problem's."""
    check_device_dtype(name, array, operand_dtype(problem, name))
    shape = operand_shape(problem, name)
    if array.shape != shape:
        letters = "n" if name == "bias" else getattr(problem.layout, name if name in "ab" else "c")
        raise LaunchError(
            f"{name} has shape {array.shape}, the problem ({problem.title()}) wants {shape}"
            f" ({'batch, ' if len(shape) == 3 else ''}{', '.join(letters)})"
        )
    if name == "out" and not array.flags.writeable:
        raise LaunchError("out is read-only")


def _check_scale(problem: Gemm, name: str, array: DeviceArray) -> None:
    spec, rows = (problem.scale.a, problem.m) if name == "scale_a" else (problem.scale.b, problem.n)
    if spec is None:
        raise LaunchError(f"{name} was given, but the problem has no such scale (scale.{name[-1]} is null)")
    count = spec.count(rows, problem.k) * (1 if spec.block == "tensor" else problem.batch)
    if spec.dtype == "f32" and array.dtype != "float32":
        raise LaunchError(f"{name} is {array.dtype}, the problem says f32 (float32)")
    if array.size != count:
        raise LaunchError(f"{name} has {array.size} elements, the problem's {spec.block} scale has {count}")
    step = array.itemsize
    for length, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if length > 1 and stride != step:
            raise UnsuitableError(f"{name} has strides {array.strides} bytes; scales must be contiguous")
        step *= length


def _span(array: DeviceArray) -> tuple[int, int]:
    """The first byte of an array, and the one after its last."""
    if array.size == 0:
        return array.address, array.address
    low = high = array.address
    for stride, length in zip(array.strides, array.shape, strict=True):
        reach = stride * (length - 1)
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high + array.itemsize


def _meets(span: tuple[int, int], low: int, high: int) -> bool:
    return span[0] < high and low < span[1]


class _Header:
    """What numpy asks of memory that it shall see as an array."""

    def __init__(self, array: DeviceArray) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (array.address, not array.flags.writeable),
        }


def _as_host(array: DeviceArray) -> Any:
    """A numpy array at the same address. It is only ever asked for its place: numpy's test whether two arrays
    share memory works on addresses and strides and reads nothing."""
    return np.asarray(_Header(array))


__all__ = ["OPERANDS", "CudaGemmCall"]
