"""CUDA as the launcher sees it, carried out on the host: device memory is numpy's, kernels are Python.

A `Runtime` of its own right: it keeps CUDA's rules that the launcher must not break (a launch on the device
that is current, no allocation and no loading while a graph is captured, opt-in above 48 KiB of shared memory,
a fresh allocation holding rubbish) and raises where one is broken. What a kernel gets are the bytes of each
parameter.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rooftile.errors import ArtifactError
from rooftile.launch.cuda_runtime import DeviceFacts
from rooftile.plan import TENSOR_MAP_ALIGN, TENSOR_MAP_BYTES, ConcreteTensorMap

Kernel = Callable[["LaunchSeen"], None]
CAPTURED_LIMIT = "allocation or loading while a graph is captured"


@dataclass(frozen=True)
class LaunchSeen:
    """One launch as it reached the device."""

    entry: str
    device: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: tuple[bytes, ...]
    smem_bytes: int

    def values(self, codes: str) -> tuple[Any, ...]:
        """The parameters by the kernel's own signature, one struct code each; a width that differs is an
        error."""
        found = []
        for code, piece in zip(codes, self.parameters, strict=True):
            assert len(piece) == struct.calcsize(code), f"{len(piece)} bytes for a parameter of type {code}"
            found.append(struct.unpack("<" + code, piece)[0])
        return tuple(found)


@dataclass
class HostFunction:
    runtime: HostCuda
    entry: str
    device: int
    static_smem_bytes: int
    max_threads: int = 1024
    allowed: list[int] = field(default_factory=list)

    def allow_smem(self, dynamic_bytes: int) -> None:
        assert self.runtime.device == self.device
        total = dynamic_bytes + self.static_smem_bytes
        assert total <= self.runtime.facts(self.device).max_smem_bytes, "CUDA_ERROR_INVALID_VALUE"
        self.allowed.append(dynamic_bytes)

    def launch(self, grid: Any, block: Any, parameters: Sequence[Any], smem_bytes: int, stream: int) -> None:
        runtime = self.runtime
        assert runtime.device == self.device, "CUDA_ERROR_INVALID_HANDLE: the function of another device"
        assert min(grid) >= 1, "CuPy launches one block here"
        if smem_bytes + self.static_smem_bytes > 48 * 1024:
            assert self.allowed, "CUDA_ERROR_INVALID_VALUE: shared memory over the default"
            assert self.allowed[-1] >= smem_bytes, (
                "CUDA_ERROR_INVALID_VALUE: shared memory over what is allowed"
            )
        for piece in parameters:
            assert piece.size == 1, "CuPy passes arrays of size one by value"
            assert piece.__array_interface__["data"][0] % min(piece.itemsize, TENSOR_MAP_ALIGN) == 0
        raw = tuple(
            ctypes.string_at(piece.__array_interface__["data"][0], piece.itemsize) for piece in parameters
        )
        seen = LaunchSeen(self.entry, self.device, stream, grid, block, raw, smem_bytes)
        runtime.seen.append(seen)
        runtime.kernels[self.entry](seen)


class HostCuda:
    """The runtime. `devices` are compute capabilities; tests set `device`, `captured` and `current`."""

    def __init__(
        self,
        kernels: dict[str, Kernel],
        *,
        devices: Sequence[tuple[int, int]] = ((8, 0), (8, 0)),
        static_smem_bytes: int = 0,
        max_smem_bytes: int = 163 * 1024,
    ) -> None:
        self.kernels = kernels
        self.devices = tuple(devices)
        self.static_smem_bytes = static_smem_bytes
        self.max_smem_bytes = max_smem_bytes
        self.device = 0
        self.current: dict[int, int] = {}
        self.captured: set[int] = set()
        self.seen: list[LaunchSeen] = []
        self.loads: list[tuple[str, int]] = []
        self.functions: list[HostFunction] = []
        self.allocations: dict[int, np.ndarray[Any, Any]] = {}
        self.places: list[tuple[int, int, int]] = []
        self.memsets: list[tuple[int, int, int, int]] = []
        self.maps: list[tuple[ConcreteTensorMap, int, int]] = []
        """Each tensor map that was encoded: what, at which address, on which device."""

    def facts(self, device: int) -> DeviceFacts:
        return DeviceFacts(device, self.devices[device], 108, self.max_smem_bytes)

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: int) -> int:
        return self.current.get(device, 0)

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def load(self, path: Path, entry: str, device: int) -> HostFunction:
        assert not self.captured, CAPTURED_LIMIT
        if entry not in self.kernels:
            raise ArtifactError(f"the entry {entry} of the cubin {path.name} cannot be loaded")
        self.loads.append((entry, device))
        made = HostFunction(self, entry, device, self.static_smem_bytes)
        self.functions.append(made)
        return made

    def device_of(self, address: int) -> int | None:
        return next((device for low, high, device in reversed(self.places) if low <= address < high), None)

    def malloc(self, size_bytes: int, device: int) -> int:
        assert not self.captured, CAPTURED_LIMIT
        memory = np.full(size_bytes, 0xAB, np.uint8)
        address = int(memory.ctypes.data)
        self.allocations[address] = memory
        self.places.append((address, address + size_bytes, device))
        return address

    def free(self, address: int, device: int) -> None:
        del self.allocations[address]

    def memset(self, address: int, value: int, size_bytes: int, stream: int) -> None:
        self.memsets.append((address, value, size_bytes, stream))
        ctypes.memset(address, value, size_bytes)

    def capturing(self, stream: int) -> bool:
        return stream in self.captured

    def encode(self, tensor: ConcreteTensorMap, address: int) -> bytes:
        """A number in place of the driver's bytes, by which `map_of` finds what was encoded."""
        self.maps.append((tensor, address, self.device))
        return struct.pack("<8sQ", b"HOSTCUDA", len(self.maps) - 1).ljust(TENSOR_MAP_BYTES, b"\xee")

    def map_of(self, data: bytes) -> tuple[ConcreteTensorMap, int]:
        """What a kernel's tensor map describes, and the address it was encoded for."""
        magic, number = struct.unpack_from("<8sQ", data)
        assert (len(data), magic) == (TENSOR_MAP_BYTES, b"HOSTCUDA"), "no tensor map of this runtime"
        tensor, address, device = self.maps[number]
        assert device == self.device, "a tensor map that was encoded on another device"
        return tensor, address

    def array(self, host: np.ndarray[Any, Any], device: int = 0, *, read_only: bool = False) -> HostArray:
        """The array, and all of its base, as memory of a device."""
        base = host
        while isinstance(base.base, np.ndarray):
            base = base.base
        low = int(base.__array_interface__["data"][0])
        self.places.append((low, low + max(base.nbytes, 1), device))
        return HostArray(host, read_only)


class HostArray:
    """An array that says of itself that it lies on a GPU, as numba's do."""

    def __init__(self, host: np.ndarray[Any, Any], read_only: bool = False) -> None:
        self.host = host
        pointer = host.__array_interface__["data"][0]
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": host.shape,
            "strides": None if host.flags.c_contiguous else host.strides,
            "typestr": host.dtype.str,
            "data": (pointer, read_only),
        }


def cubin_header(sm: int, abi: int = 8) -> bytes:
    """The first bytes of a cubin for `sm`, as NVRTC 13 (abi 8) and 12 (abi 7) write them."""
    flags = 0x6000004 | sm << 8 if abi == 8 else 0x500 | sm << 16 | sm
    return struct.pack(
        "<4sBBBBB7xHHIQQQI", b"\x7fELF", 2, 1, 1, 65 if abi == 8 else 51, abi, 2, 190, 1, 0, 0, 0, flags
    )


def view(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Memory at an address as an array: what a kernel does with a pointer."""

    header = _Header()
    header.__array_interface__ = {
        "version": 3,
        "shape": shape,
        "strides": strides,
        "typestr": np.dtype(dtype).str,
        "data": (address, False),
    }
    return np.asarray(header)


class _Header:
    __array_interface__: dict[str, Any]


class HostMemory:
    """A DeviceMemory whose device is the host: what verification makes arrays with, beside a HostCuda."""

    def __init__(self, runtime: HostCuda) -> None:
        self.xp: Any = np
        self.runtime = runtime

    def empty(self, nbytes: int) -> np.ndarray[Any, Any]:
        whole = np.full(nbytes + 256, 0xCD, np.uint8)
        skip = int(-whole.ctypes.data % 256)
        self.runtime.array(whole)
        return whole[skip : skip + nbytes]

    def address(self, array: np.ndarray[Any, Any]) -> int:
        return int(array.__array_interface__["data"][0])

    def to_host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy()

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 1 << 30
