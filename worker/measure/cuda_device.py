"""Which GPU of this machine is the one asked for, and how is it measured on?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rooftile.errors import DeviceError, RooftileError
from rooftile.gpu_detect import GpuIdentity, local_gpus

from search_space.errors import UnknownDevice
from search_space.gpu_device import GpuDevice
from service.bus import HostGate
from service.store.records import DeviceRecord
from worker.errors import DeviceMismatchError
from worker.measure.cuda_session import CudaSession


@dataclass(frozen=True)
class LocalGpu:
    """A GPU at hand, with what the data says of its product (None: nothing)."""

    identity: GpuIdentity
    device: GpuDevice | None

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def uuid(self) -> str:
        """What locks and leases are named by: two GPUs of one host may have one key."""
        return self.identity.uuid

    def record(self) -> DeviceRecord:
        """The row of the store."""
        data = {} if self.device is None else self.device.to_json()
        identity = self.identity
        return DeviceRecord(key=self.key, name=identity.name, kind="gpu", arch=identity.arch, data=data)

    def roof(self) -> dict[str, Any] | None:
        """What no kernel beats: the product's peaks, at the highest clock that this one may reach."""
        if self.device is None:
            return None
        most = (self.identity.max_sm_mhz or 0) / 1000.0
        faster = max(1.0, most / self.device.ghz) if self.device.ghz else 1.0
        peaks = {name: 1000.0 * rate * faster for name, rate in self.device.tflops.items()}
        return {"gflops": peaks, "read_gbps": self.device.memory_gbs(), "source": "data sheet"}

    def session(self, **more: Any) -> CudaSession:
        """A session on it; nothing is started yet."""
        return CudaSession(self.key, self.uuid, roof=self.roof(), facts=self.identity.to_json(), **more)


def find_gpu(wanted: str = "auto", gpus: Sequence[GpuIdentity] | None = None) -> LocalGpu:
    """The GPU of that key (several alike: the first), or of that UUID; `auto` is the only one.
    DeviceMismatchError with one sentence where it is not here."""
    if gpus is None:
        try:
            gpus = local_gpus()
        except RooftileError as error:
            what = "A GPU" if wanted == "auto" else f"The device {wanted}"
            raise DeviceMismatchError(f"{what} is not here: {error}.") from None
    if wanted == "auto":
        found = list(gpus) if len({gpu.key for gpu in gpus}) == 1 else []
        if not found:
            keys = ", ".join(gpu.key for gpu in gpus)
            raise DeviceMismatchError(f"This machine has several kinds of GPU; name one of {keys}.")
    else:
        found = [gpu for gpu in gpus if wanted in (gpu.key, gpu.uuid)]
        if not found:
            keys = ", ".join(gpu.key for gpu in gpus)
            raise DeviceMismatchError(f"The device {wanted} is not here; this machine's GPUs are {keys}.")
    return LocalGpu(found[0], _device(found[0]))


def _device(identity: GpuIdentity) -> GpuDevice | None:
    try:
        return GpuDevice.for_key(identity.device_key)
    except (UnknownDevice, DeviceError, TypeError):
        return None


class SharedGate:
    """The host's gate as a measurement on a GPU takes it: compiling and searching go on, but while a CPU
    device is measured on this host, its GPU waits too."""

    def __init__(self, gate: HostGate) -> None:
        self._gate = gate

    @contextmanager
    def exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        with self._gate.shared(timeout_s):
            yield

    @contextmanager
    def shared(self, timeout_s: float | None = None) -> Iterator[None]:
        with self._gate.shared(timeout_s):
            yield

    def wanted(self) -> bool:
        """Whether somebody waits for the host."""
        return self._gate.wanted()
