"""What does the launcher need of CUDA? One small interface, and CuPy behind it.

The launcher's logic (which steps, which bytes, which workspace) never names CuPy: it talks to a `Runtime`. In
a program that is `CupyRuntime`; the tests run the same logic through the emulator.

Facts used here (CuPy 14.2 sources, cupy/cuda/function.pyx and cupy/_core/raw.pyx):
  - a RawKernel launches on the device that is current, and keeps one function for each device;
  - a size-one numpy array among the arguments is passed by value: the driver copies the parameter's bytes
    from its memory, as many as the kernel's own signature says;
  - `stream` may be any object with `ptr`; a grid dimension of 0 is launched as 1 (plans refuse 0 earlier);
  - a launch from a thread that never used CUDA makes the device's primary context current first, by asking
    for the free memory, which a graph that is being captured allows.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rooftile.errors import ArtifactError, DeviceError
from rooftile.launch.cuda_tensor_map import DriverEncoder
from rooftile.launch.errors import LaunchError

if TYPE_CHECKING:
    import numpy.typing as npt

    from rooftile.plan import ConcreteTensorMap

    Parameters = Sequence[npt.NDArray[Any]]
    """One numpy array of size one for each parameter, over that parameter's bytes."""

# cudaDeviceAttr by number (driver_types.h); CuPy names only some of them.
_SM_COUNT, _CC_MAJOR, _CC_MINOR, _SMEM_OPTIN = 16, 75, 76, 97

_RUNTIME_LOCK = threading.Lock()
_cupy_runtime: CupyRuntime | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """What the launcher asks of a device once."""

    ordinal: int
    compute_capability: tuple[int, int]
    sm_count: int
    max_smem_bytes: int
    """Most shared memory of a block, static and dynamic together, with the opt-in."""


class Function(Protocol):
    """One entry of a cubin on one device."""

    @property
    def static_smem_bytes(self) -> int: ...

    @property
    def max_threads(self) -> int: ...

    def allow_smem(self, dynamic_bytes: int) -> None:
        """Let launches ask for so much dynamic shared memory."""
        ...

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: Parameters,
        smem_bytes: int,
        stream: int,
    ) -> None:
        """Enqueue on a stream of the device that is current."""
        ...


class Runtime(Protocol):
    """CUDA as the launcher sees it. Streams are handles (0: the legacy default stream)."""

    def facts(self, device: int) -> DeviceFacts: ...

    def current_device(self) -> int: ...

    def current_stream(self, device: int) -> int:
        """The stream that CuPy has made current on this device, for this thread."""
        ...

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make the device current inside; the caller's is current again afterwards."""
        ...

    def load(self, path: Path, entry: str, device: int) -> Function:
        """The entry of a cubin. ArtifactError where it does not load or lacks the entry."""
        ...

    def device_of(self, address: int) -> int | None:
        """The device that memory lies on; None where it is no device memory."""
        ...

    def malloc(self, size_bytes: int, device: int) -> int: ...

    def free(self, address: int, device: int) -> None: ...

    def memset(self, address: int, value: int, size_bytes: int, stream: int) -> None:
        """Enqueue; the device must be current."""
        ...

    def capturing(self, stream: int) -> bool:
        """Whether a CUDA graph is being captured from this stream."""
        ...

    def encode(self, tensor: ConcreteTensorMap, address: int) -> bytes:
        """The driver's 128 bytes of a tensor map; the device must be current. LaunchError where it refuses,
        DeviceError where it cannot be asked."""
        ...


class _Handle:
    """A stream for CuPy's launch: it reads `ptr` and nothing else."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class CupyFunction:
    """A RawKernel on one device."""

    __slots__ = ("_kernel", "_launch", "max_threads", "static_smem_bytes")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._launch = kernel.kernel  # the function of the device that is current now
        self.static_smem_bytes = int(kernel.shared_size_bytes)
        self.max_threads = int(kernel.max_threads_per_block)

    def allow_smem(self, dynamic_bytes: int) -> None:
        self._kernel.max_dynamic_shared_size_bytes = dynamic_bytes

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: Parameters,
        smem_bytes: int,
        stream: int,
    ) -> None:
        self._launch(grid, block, parameters, smem_bytes, _Handle(stream))


class CupyRuntime:
    """CUDA through CuPy. Everything is imported and asked at first use."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise DeviceError(
                f"CUDA kernels are launched through CuPy, which is not installed here ({error}): "
                "pip install 'rooftile[cuda13]' (or cuda12)"
            ) from None
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self.pid = os.getpid()
        try:
            self.device_count = int(self._runtime.getDeviceCount())
        except Exception as error:  # noqa: BLE001 - no driver, no device: CuPy's own error types
            raise DeviceError(f"CUDA is not usable on this machine: {error}") from None
        self._facts: dict[int, DeviceFacts] = {}
        self._encoder: DriverEncoder | None = None
        # What CuPy raises for the driver's and the runtime's errors; both are RuntimeErrors.
        self._errors: tuple[type[Exception], ...] = (RuntimeError, FileNotFoundError)

    def facts(self, device: int) -> DeviceFacts:
        found = self._facts.get(device)
        if found is None:
            if not 0 <= device < self.device_count:
                raise LaunchError(f"there is no CUDA device {device}; this process sees {self.device_count}")
            ask = self._runtime.deviceGetAttribute
            found = self._facts[device] = DeviceFacts(
                device,
                (int(ask(_CC_MAJOR, device)), int(ask(_CC_MINOR, device))),
                int(ask(_SM_COUNT, device)),
                int(ask(_SMEM_OPTIN, device)),
            )
        return found

    def current_device(self) -> int:
        return int(self._runtime.getDevice())

    def current_stream(self, device: int) -> int:
        return int(self._cupy.cuda.get_current_stream(device).ptr)

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before = self._runtime.getDevice()
        if before == device:
            yield
            return
        self._runtime.setDevice(device)
        try:
            yield
        finally:
            self._runtime.setDevice(before)

    def load(self, path: Path, entry: str, device: int) -> Function:
        with self.on(device):
            try:
                kernel = self._cupy.RawModule(path=str(path)).get_function(entry)
                return CupyFunction(kernel)
            except self._errors as error:
                raise ArtifactError(
                    f"the entry {entry} of the cubin {path.name} cannot be loaded on device {device}: {error}"
                ) from None

    def device_of(self, address: int) -> int | None:
        try:
            found = self._runtime.pointerGetAttributes(address)
        except self._errors:
            return None
        # cudaMemoryTypeDevice 2, Managed 3; host memory is 0 or 1.
        return int(found.device) if int(found.type) in (2, 3) else None

    def malloc(self, size_bytes: int, device: int) -> int:
        with self.on(device):
            return int(self._runtime.malloc(size_bytes))

    def free(self, address: int, device: int) -> None:
        with self.on(device):
            self._runtime.free(address)

    def memset(self, address: int, value: int, size_bytes: int, stream: int) -> None:
        self._runtime.memsetAsync(address, value, size_bytes, stream)

    def capturing(self, stream: int) -> bool:
        # The legacy default stream cannot be captured; asked about it while another captures, CUDA gives an
        # error.
        return stream not in (0, 1) and bool(self._runtime.streamIsCapturing(stream))

    def encode(self, tensor: ConcreteTensorMap, address: int) -> bytes:
        if self._encoder is None:
            self._encoder = DriverEncoder(self._runtime.memGetInfo)
        return self._encoder(tensor, address)


def cupy_runtime() -> CupyRuntime:
    """The one of this process. DeviceError, in one sentence, where CUDA cannot be used."""
    global _cupy_runtime
    with _RUNTIME_LOCK:
        if _cupy_runtime is None:
            _cupy_runtime = CupyRuntime()
        elif _cupy_runtime.pid != os.getpid():
            # The driver's state does not survive a fork: the next call would fail in cuInit, or hang.
            raise DeviceError(
                f"this process was forked from {_cupy_runtime.pid} after that had used CUDA; start processes "
                "with spawn (multiprocessing.set_start_method('spawn')), or fork before CUDA is used"
            )
        return _cupy_runtime
