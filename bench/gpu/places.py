"""Where does a check run: on the GPU of this machine, or, rehearsed, on its CPU?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rooftile.device import local_cpu
from rooftile.launch.errors import UnsuitableError
from rooftile.launch.pool import get_pool
from rooftile.launch.x86 import X86Kernel
from rooftile.plan import LaunchPlan

from search_space.device import Device, local_device
from worker.compile import Artifact, compile_pool
from worker.compile.cache import ArtifactCache
from worker.errors import ChildLostError, DeviceUnhealthyError
from worker.measure.cuda_device import LocalGpu, find_gpu
from worker.measure.cuda_session import CudaSession
from worker.verify.cases import Case
from worker.verify.checks import VerifyFailure, check_case
from worker.verify.prepared import prepare_case


class Place(Protocol):
    """A device that kernels are verified and tuned on."""

    kind: str

    @property
    def key(self) -> str: ...

    @property
    def device(self) -> Device: ...

    def describe(self) -> dict[str, Any]: ...

    def verify(self, artifact: Artifact, plan: LaunchPlan, cases: Sequence[Case]) -> dict[str, Any]:
        """{"status": "verified", "checks": [...]}, or {"status": "failed", "reason", "evidence"}."""
        ...

    def close(self) -> None: ...


class GpuPlace:
    """The only GPU here. DeviceMismatchError without one; UnknownDevice without data for it."""

    kind = "gpu"

    def __init__(self, home: Path) -> None:
        self._gpu: LocalGpu = find_gpu()
        self._cache = ArtifactCache(home)
        self._session: CudaSession | None = None

    @property
    def key(self) -> str:
        return self._gpu.key

    @property
    def device(self) -> Device:
        return self._gpu.device or Device.for_arch(self._gpu.identity.arch)

    def describe(self) -> dict[str, Any]:
        return {**self._gpu.identity.to_json(), "known_product": self._gpu.device is not None}

    def open(self) -> dict[str, Any]:
        """Start the measuring process; what it says of the device's health."""
        if self._session is None:
            self._session = self._gpu.session()
        return self._session.open()

    def verify(self, artifact: Artifact, plan: LaunchPlan, cases: Sequence[Case]) -> dict[str, Any]:
        self.open()
        assert self._session is not None
        try:
            return self._session.verify(plan, self._cache.blob_path(artifact.sha256), cases)
        except (ChildLostError, DeviceUnhealthyError) as error:
            return {"status": "failed", "reason": "internal_error", "evidence": {"message": str(error)}}

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class CpuPlace:
    """This machine's CPU: the same path, for machines without a GPU and for the tests."""

    kind = "cpu"

    def __init__(self, home: Path) -> None:
        self._cpu = local_cpu()
        self._home = home
        self._cache = ArtifactCache(home)

    @property
    def key(self) -> str:
        return self._cpu.key

    @property
    def device(self) -> Device:
        return local_device()

    def describe(self) -> dict[str, Any]:
        return {
            "key": self._cpu.key,
            "name": self._cpu.name,
            "arch": self._cpu.arch,
            "cores": self._cpu.cores,
        }

    def open(self) -> dict[str, Any]:
        return {}

    def verify(self, artifact: Artifact, plan: LaunchPlan, cases: Sequence[Case]) -> dict[str, Any]:
        pool = compile_pool(self._cpu.arch, home=self._home)
        kernel = X86Kernel(
            self._cache.blob_path(artifact.sha256),
            plan,
            get_pool(self._cache.blob_path(pool.sha256), self._cpu.cores),
        )
        rows = []
        for case in cases:
            try:
                rows.append(check_case(kernel, prepare_case(case), lambda _: None, repeat=True).to_json())
            except VerifyFailure as failure:
                return {"status": "failed", "reason": failure.reason, "evidence": failure.evidence}
            except UnsuitableError as error:
                rows.append({**case.to_json(), "passed": True, "skipped": str(error)})
        return {"status": "verified", "checks": rows}

    def close(self) -> None:
        pass
