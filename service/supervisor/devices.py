"""Which devices of this machine does a supervisor measure on? Its CPU, and every GPU with kernels of ours."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from rooftile.device import local_cpu
from rooftile.errors import DeviceError
from rooftile.gpu_detect import local_gpus

from service.compilers import compilers


@dataclass(frozen=True)
class Measured:
    """One measure worker: the key of its device, and what it is asked for by (two GPUs may have one key)."""

    key: str
    asked_by: str

    @staticmethod
    def of_key(key: str) -> Measured:
        return Measured(key, key)


def local_devices() -> tuple[Measured, ...]:
    """GPUs by their UUIDs, and the CPU; not that, where there are GPUs and no C compiler for its kernels."""
    gpus: tuple[Measured, ...] = ()
    with contextlib.suppress(DeviceError):  # no driver, or nothing that is ours
        gpus = tuple(Measured(gpu.key, gpu.uuid) for gpu in local_gpus())
    if gpus and next(compilers(), None) is None:
        return gpus
    return (*gpus, Measured.of_key(local_cpu().key))
