"""What is an array on a GPU to a kernel: address, shape, strides, element type, device?

CuPy arrays and torch tensors are read by their own attributes (torch's CUDA array interface refuses bf16, fp8
and tensors that need gradients); anything else by `__cuda_array_interface__`, then by DLPack. Nothing is ever
copied: what a kernel writes to a copy would be lost. Elements that numpy has no type for are seen as their
bits: bf16 may also be uint16, fp8 uint8 (a stored weight mostly is).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rooftile.errors import show_value
from rooftile.launch.cuda_runtime import Runtime
from rooftile.launch.errors import LaunchError, UnsuitableError

# Element type names of the problem -> the array types that hold them: numpy's and ml_dtypes' names, torch's
# without "torch.". The last ones are the same bits under another name.
_HOLDS: dict[str, tuple[str, ...]] = {
    "f64": ("float64",),
    "f32": ("float32",),
    "tf32": ("float32",),
    "f16": ("float16",),
    "bf16": ("bfloat16", "uint16"),
    "e4m3": ("float8_e4m3fn", "uint8"),
    "e5m2": ("float8_e5m2", "uint8"),
    "s8": ("int8",),
    "u8": ("uint8",),
    "s32": ("int32",),
}


@dataclass(frozen=True, slots=True)
class _Flags:
    writeable: bool


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A strided array in a GPU's memory. Has the members of a numpy array that the launcher's checks look at,
    so that host and device arrays are judged by the same code."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes."""
    dtype: str
    """As numpy, ml_dtypes or torch call it."""
    itemsize: int
    device: int
    flags: _Flags
    owner: Any
    """Keeps the memory."""
    origin: str
    """cupy, torch or other: whose stream and whose new arrays belong to it."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def device_array(name: str, value: object, runtime: Runtime) -> DeviceArray:
    """`value` as it lies in device memory. LaunchError where it does not, or not wholly."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package == "torch" or (package != "cupy" and _is_torch(value)):
        return _from_torch(name, value)
    if package == "cupy" and hasattr(value, "data"):
        return _from_cupy(name, value)
    # Before DLPack: numba and others give this one, and it copies nothing.
    interface = _interface(value)
    if interface is not None:
        return _from_interface(name, value, interface, runtime)
    if hasattr(value, "__array_interface__"):
        raise LaunchError(f"{name} is a {kind.__name__} in host memory; this kernel reads the GPU's")
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(name, value)
    raise LaunchError(f"{name} is a {kind.__name__}; it must be an array on a GPU (CuPy, torch, DLPack)")


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _interface(value: object) -> Mapping[str, Any] | None:
    try:
        found = getattr(value, "__cuda_array_interface__", None)
    except Exception:  # noqa: BLE001 - a property of somebody else's class
        return None
    return found if isinstance(found, Mapping) else None


def _from_cupy(name: str, value: Any) -> DeviceArray:
    if not hasattr(value, "strides"):
        raise LaunchError(f"{name} is a {type(value).__name__}, not an array with strides")
    kind, item = _kind(value.dtype)
    return DeviceArray(
        int(value.data.ptr), tuple(value.shape), tuple(value.strides), kind, item, int(value.data.device_id),
        _WRITEABLE, value, "cupy",
    )  # fmt: skip


def _from_torch(name: str, tensor: Any) -> DeviceArray:
    if tensor.device.type != "cuda":
        raise LaunchError(f"{name} is a torch tensor on {tensor.device}; this kernel reads the GPU's memory")
    # A fake tensor (torch.compile, meta) has a device, but no memory: its address would be 0 or an error.
    if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
        raise LaunchError(
            f"{name} is a {type(tensor).__name__}, which has no memory: wrap the call as a custom op"
        )
    if not str(tensor.layout).endswith("strided"):
        raise LaunchError(f"{name} is a torch tensor of layout {tensor.layout}, not strided")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsuitableError(f"{name} is a lazily conjugated or negated tensor; resolve it first")
    item = int(tensor.element_size())
    dtype, strides = str(tensor.dtype).removeprefix("torch."), tuple(s * item for s in tensor.stride())
    return DeviceArray(
        int(tensor.data_ptr()), tuple(tensor.shape), strides, dtype, item, int(tensor.device.index or 0),
        _WRITEABLE, tensor, "torch",
    )  # fmt: skip


def _from_interface(name: str, value: object, interface: Mapping[str, Any], runtime: Runtime) -> DeviceArray:
    try:
        shape = tuple(map(int, interface["shape"]))
        kind, item = _kind_of_text(interface["typestr"])
        address, read_only = interface["data"]
        strides = interface.get("strides")
    except (KeyError, TypeError, ValueError) as error:
        raise LaunchError(f"{name}: its __cuda_array_interface__ is malformed ({error})") from None
    if interface.get("mask") is not None:
        raise LaunchError(f"{name} is masked, and no kernel looks at a mask; fill it first")
    if interface["typestr"][:1] == ">":
        raise LaunchError(f"{name} holds {kind} in the other byte order")
    if strides is None:
        strides = _packed(shape, item)
    device = runtime.device_of(int(address)) if math.prod(shape) else runtime.current_device()
    if device is None:
        raise LaunchError(f"{name}: {hex(int(address))} is no address on a GPU of this process")
    return DeviceArray(
        int(address), shape, tuple(map(int, strides)), kind, item, device,
        _READ_ONLY if read_only else _WRITEABLE, value, "other",
    )  # fmt: skip


def _from_dlpack(name: str, value: Any) -> DeviceArray:
    kind, _ = value.__dlpack_device__()
    if int(kind) not in (2, 13):  # kDLCUDA, kDLCUDAManaged
        raise LaunchError(f"{name} lies on DLPack device type {int(kind)}, not on a CUDA device")
    import cupy

    try:
        return _from_cupy(name, cupy.from_dlpack(value))
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        raise LaunchError(
            f"{name} is a {type(value).__name__} that DLPack does not lend as it is: {error}"
        ) from None


_WRITEABLE, _READ_ONLY = _Flags(True), _Flags(False)


@lru_cache(maxsize=64)
def _kind(dtype: Any) -> tuple[str, int]:
    """Name and bytes of an element. A dtype works its name out anew each time, in some 10 us."""
    return str(dtype.name), int(dtype.itemsize)


@lru_cache(maxsize=64)
def _kind_of_text(typestr: str) -> tuple[str, int]:
    import numpy as np

    return _kind(np.dtype(typestr))


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def check_device_dtype(name: str, array: DeviceArray, dtype: str) -> None:
    """The array must hold elements of the problem's `dtype`."""
    wanted = _HOLDS.get(dtype)
    if wanted is None:
        raise LaunchError(f"arrays cannot hold {dtype} yet; those that can: {', '.join(_HOLDS)}")
    if array.dtype not in wanted:
        raise LaunchError(f"{name} is {array.dtype}, the problem says {dtype} ({' or '.join(wanted)})")


def new_array(like: DeviceArray, shape: tuple[int, ...], dtype: str, capturing: Callable[[], bool]) -> Any:
    """A new array for the result, of the kind and on the device of `like`, with the element type `dtype`."""
    if like.origin == "torch":
        torch = sys.modules["torch"]
        kind = getattr(torch, _HOLDS[dtype][0])
        return torch.empty(shape, dtype=kind, device=like.owner.device)
    import cupy
    import numpy as np

    if capturing():
        raise LaunchError(
            "out was not given: while a CUDA graph is captured nothing may be allocated, pass out="
        )
    name = _HOLDS[dtype][-1]
    with cupy.cuda.Device(like.device):
        return cupy.empty(shape, np.dtype(name))


def stream_handle(stream: object) -> int | None:
    """The handle of a stream that somebody passed: a cupy or torch stream, one with `__cuda_stream__`, or an
    int."""
    if stream is None:
        return None
    if isinstance(stream, bool):
        raise LaunchError(f"stream={show_value(stream)} is no stream")
    if isinstance(stream, int):
        return stream
    for attribute in ("cuda_stream", "ptr"):
        found = getattr(stream, attribute, None)
        if isinstance(found, int):
            return found
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        version, handle = protocol()
        if version == 0:
            return int(handle)
    raise LaunchError(
        f"stream is a {type(stream).__name__}; it must be a cupy or torch stream, or a handle as an int"
    )


def default_stream(array: DeviceArray, runtime: Runtime) -> int:
    """The caller's current stream on the array's device, as the array's own library has it."""
    if array.origin == "torch":
        torch = sys.modules["torch"]
        return int(torch.cuda.current_stream(array.device).cuda_stream)
    return runtime.current_stream(array.device)
