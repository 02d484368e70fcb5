"""How does a tensor map become the 128 bytes that TMA reads, without the driver being asked at every call?

The driver encodes it (cuTensorMapEncodeTiled, CUDA 12.0 and newer). CuPy has no such call: cuda-bindings
finds the function. It is called here, because a CUtensorMap that cuda-bindings makes lies at a multiple of
16, and the driver API asks for one of 64 (cuda-bindings 12.9 and 13.4: 48 beyond one). The numbers of the
enumerations are those of cuda.h; the tests hold them against cuda-bindings' names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from rooftile.errors import DeviceError, LaunchError, PlanError
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import (
    NO_TENSOR,
    TENSOR_MAP_ALIGN,
    TENSOR_MAP_BYTES,
    ConcreteArg,
    ConcreteTensorMap,
)

# CUtensorMapDataType. It has no 8-bit floats and no signed bytes: what fills the margin is zero in all of
# them. As TFLOAT32 the f32 in memory is rounded to nearest even as it loads, as FLOAT32 its bits are left, of
# which WGMMA cuts 13 off (triton-lang/triton 11751, on sm_120; tests/gpu/test_gpu_tma.py).
DATA_TYPES = {
    "u8": 0, "s8": 0, "e4m3": 0, "e5m2": 0, "s32": 3, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle."""
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""CUtensorMapL2promotion."""
FILLS = {"zero": 0, "nan": 1}
"""CUtensorMapFloatOOBfill."""
_INTERLEAVE_NONE = 0
_SINCE = 12000
_NOT_INITIALIZED, _INVALID_CONTEXT = 3, 201

# Addresses that one argument's maps are kept for. A model calls a kernel with the same weights and, from an
# allocator that reuses memory, few other addresses; the worker's rotating buffers are bound beforehand.
MAPS_KEPT = 64

Encode = Callable[[ConcreteTensorMap, int], bytes]


class DriverEncoder:
    """cuTensorMapEncodeTiled. `enter` makes the device's context current in this thread: the driver wants
    one, and a thread's first CUDA call may be this one."""

    def __init__(self, enter: Callable[[], object]) -> None:
        """DeviceError without cuda-bindings, or where the driver is too old."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DeviceError(
                "a kernel that copies with TMA needs the package cuda-bindings, which is not installed here "
                f"({error}): pip install 'rooftile[cuda13]' (or cuda12)"
            ) from None
        try:
            code, address, _ = driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", _SINCE, 0)
        except Exception as error:  # noqa: BLE001 - no libcuda.so.1: cuda-bindings' own error types
            raise DeviceError(f"cuda-bindings does not reach the CUDA driver: {error}") from None
        if int(code) or not address:
            raise DeviceError(
                "this CUDA driver has no cuTensorMapEncodeTiled, which a kernel that copies with TMA needs: "
                "it came with CUDA 12.0"
            )
        words, halves = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
        self._call = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, words, words,
            halves, halves, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        )(int(address))  # fmt: skip
        self._name_of: Callable[[int], Any] = driver.CUresult
        self._enter = enter

    def __call__(self, tensor: ConcreteTensorMap, address: int) -> bytes:
        """The bytes of a map whose tensor begins at `address`. LaunchError, with the numbers, where the
        driver refuses it."""
        rank = len(tensor.dims)
        room = (ctypes.c_uint8 * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGN))()
        at = ctypes.addressof(room)
        at += -at % TENSOR_MAP_ALIGN
        given = (
            at,
            DATA_TYPES[tensor.dtype],
            rank,
            address,
            (ctypes.c_uint64 * rank)(*tensor.dims),
            (ctypes.c_uint64 * rank)(*tensor.strides),
            (ctypes.c_uint32 * rank)(*tensor.box),
            (ctypes.c_uint32 * rank)(*(1,) * rank),
            _INTERLEAVE_NONE,
            SWIZZLES[tensor.swizzle],
            L2_PROMOTIONS[tensor.l2_promotion],
            FILLS[tensor.fill],
        )
        code = self._call(*given)
        if code in (_NOT_INITIALIZED, _INVALID_CONTEXT):
            self._enter()
            code = self._call(*given)
        if code:
            raise LaunchError(
                f"the driver refuses the tensor map ({self._named(code)}): {told(tensor, address)}"
            )
        return ctypes.string_at(at, TENSOR_MAP_BYTES)

    def _named(self, code: int) -> str:
        try:
            return str(self._name_of(code).name)
        except ValueError:  # newer than cuda-bindings
            return f"CUresult {code}"


class MapArgument:
    """One tensor-map argument of one launch: its bytes for each address of its buffer.

    Encoding costs some 10 us a map, before the driver's own work; finding it kept 0.3 us (one core of an AMD
    EPYC, CPython 3.11)."""

    __slots__ = ("_encode", "_kept", "_slot", "_tensor", "_where")

    def __init__(self, arg: ConcreteArg, slot: int | None, encode: Encode) -> None:
        """`slot`: which value of the call is the buffer's address; None where the call has no such buffer."""
        assert arg.tensor is not None
        self._tensor = arg.tensor
        self._where = f"argument {arg.name}"
        self._slot = slot
        self._encode = encode
        # By address alone: sizes, strides and the device are one for all calls of this launch.
        self._kept: dict[int, bytes] = {}

    def bytes_for(self, values: tuple[Any, ...]) -> bytes:
        """The map for these values, NO_TENSOR without its buffer. UnsuitableError where that is not
        aligned."""
        base = values[self._slot] if self._slot is not None else 0
        found = self._kept.get(base)
        return self._learn(base) if found is None else found

    def _learn(self, base: int) -> bytes:
        if not base:
            return NO_TENSOR
        address = base + self._tensor.offset
        try:
            self._tensor.check_address(address, self._where)
        except PlanError as error:
            raise UnsuitableError(str(error)) from None
        try:
            made = self._encode(self._tensor, address)
        except UnsuitableError as error:
            raise UnsuitableError(f"{self._where}: {error}") from None
        except LaunchError as error:
            raise LaunchError(f"{self._where}: {error}") from None
        if len(made) != TENSOR_MAP_BYTES:
            raise LaunchError(f"{self._where}: a tensor map of {len(made)} bytes, not {TENSOR_MAP_BYTES}")
        if len(self._kept) >= MAPS_KEPT:
            self._kept.pop(next(iter(tuple(self._kept))), None)  # a copy: other threads add to it
        self._kept[base] = made
        return made


def told(tensor: ConcreteTensorMap, address: int) -> str:
    """A tensor map in words, for an error."""
    return (
        f"{tensor.dtype} of {tensor.buffer} at {address:#x}, dims {list(tensor.dims)}, strides"
        f" {list(tensor.strides)} bytes, box {list(tensor.box)}, swizzle {tensor.swizzle}, L2 promotion"
        f" {tensor.l2_promotion}, fill {tensor.fill}"
    )
