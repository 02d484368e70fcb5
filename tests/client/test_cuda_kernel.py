"""What does a program hold that asked for a GPU's kernel, and what is it told where CUDA cannot be used?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.best import Best
from rooftile.cache import ArtifactCache
from rooftile.errors import DeviceError, LaunchError
from rooftile.kernel import Kernel, load_kernel
from rooftile.launch import cuda_runtime
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, ValidFor
from rooftile.problem import Attention, Gemm
from support.host_cuda import HostCuda, LaunchSeen, cubin_header

PROBLEM = Gemm(4, 8, 8, "f32")


def plan(**valid: Any) -> LaunchPlan:
    args = (*(Arg.ptr(name) for name in ("a", "b", "out")), *(Arg.i64(n) for n in ("m", "n", "k", "ld_a")))
    return LaunchPlan(
        family="toy",
        arch="sm_80",
        kind="cuda",
        entries=("gemm",),
        sizes=("m", "n", "k", "ld_a"),
        steps=(Launch("gemm", args, grid=(1, 1, 1), block=(32, 1, 1)),),
        valid_for=ValidFor(**valid),
    )


def best(**more: Any) -> Best:
    base = {
        "level": "exact",
        "reason": "raced",
        "problem_key": PROBLEM.key,
        "device": "gpu-20b2-108sm-80g-p400",
    }
    return Best.from_json({**base, **more})


def no_cupy() -> bool:
    try:
        cuda_runtime.cupy_runtime()
    except DeviceError:
        return True
    return False


needs_no_gpu = pytest.mark.skipif(not no_cupy(), reason="this machine has a GPU that CuPy can use")


def host(tmp_path: Path, seen: list[LaunchSeen]) -> tuple[HostCuda, Path]:
    path = tmp_path / "k.cubin"
    path.write_bytes(cubin_header(80))
    return HostCuda({"gemm": seen.append}), path


@needs_no_gpu
def test_a_kernel_for_a_gpu_without_cuda_is_one_sentence(tmp_path: Path) -> None:
    """Before anything is fetched: there is no transport here that could."""
    answer = best(artifact="0" * 64, launch=plan().to_json())
    with pytest.raises(DeviceError, match=r"CuPy|CUDA is not usable"):
        load_kernel(PROBLEM, answer, ArtifactCache(tmp_path), None, None)  # type: ignore[arg-type]


@needs_no_gpu
def test_the_vendor_on_a_gpu_is_not_numpy() -> None:
    kernel = load_kernel(PROBLEM, best(level="baseline"), None, None, None)  # type: ignore[arg-type]
    assert "cuBLASLt" in repr(kernel)
    with pytest.raises(DeviceError):
        kernel(np.zeros((4, 8), np.float32), np.zeros((8, 8), np.float32))
    on_cpu = load_kernel(PROBLEM, best(level="baseline", device=None), None, None, None)  # type: ignore[arg-type]
    assert on_cpu(np.ones((4, 8), np.float32), np.ones((8, 8), np.float32))[0, 0] == 8
    attention = Attention.from_json if hasattr(Attention, "from_json") else None
    assert attention is None or callable(attention)


@needs_no_gpu
def test_a_call_beyond_the_plan_goes_to_the_vendor_and_is_counted(tmp_path: Path) -> None:
    seen: list[LaunchSeen] = []
    cuda, path = host(tmp_path, seen)
    ours = CudaKernel(
        path,
        plan(sizes={"ld_a": SizeRange(multiple_of=8)}),
        PROBLEM,
        runtime=cuda,
        workspaces=Workspaces(cuda),
    )
    kernel = Kernel(PROBLEM, best(), ours, kind="cuda")
    kernel.warm_up(0)
    assert cuda.loads == [("gemm", 0)]
    b, out = np.zeros((8, 8), np.float32), np.zeros((4, 8), np.float32)
    good, odd = np.zeros((4, 16), np.float32)[:, :8], np.zeros((4, 9), np.float32)[:, :8]
    kernel(cuda.array(good), cuda.array(b), cuda.array(out))
    assert len(seen) == 1
    with pytest.raises(DeviceError):  # the vendor's library needs CUDA, which is not here
        kernel(cuda.array(odd), cuda.array(b), cuda.array(out))
    assert kernel.fallbacks == 1
    assert kernel.last_fallback is not None
    assert "ld_a = 9" in kernel.last_fallback
    with pytest.raises(UnsuitableError):
        ours(cuda.array(odd), cuda.array(b), cuda.array(out))


def test_what_a_call_costs(tmp_path: Path) -> None:
    """The checks, packing and launching of one call, on the host alone. A GPU needs some 3 us a launch; ours
    may not cost a hundred times that, whatever machine runs this. In time of this thread, for machines are
    busy."""
    cuda, path = host(tmp_path, [])
    kernel = CudaKernel(path, plan(), PROBLEM, runtime=cuda, workspaces=Workspaces(cuda))
    arrays = [cuda.array(np.zeros(s, np.float32)) for s in ((4, 8), (8, 8), (4, 8))]
    kernel(*arrays)
    ready = kernel.prepare(
        PROBLEM.plan_names(), {n: a.host.ctypes.data for n, a in zip(("a", "b", "out"), arrays, strict=True)}
    )
    times = {}
    for name, call in (("call", lambda: kernel(*arrays)), ("prepared", ready.run)):
        best_s = 1.0
        for _ in range(5):
            started = time.thread_time()
            for _ in range(50):
                call()
            best_s = min(best_s, (time.thread_time() - started) / 50)
        times[name] = best_s * 1e6
    assert times["call"] < 300, times
    assert times["prepared"] < 100, times


def test_a_forked_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Used:
        pid = 1

    monkeypatch.setattr(cuda_runtime, "_cupy_runtime", Used())
    with pytest.raises(DeviceError, match="forked from 1 after that had used CUDA"):
        cuda_runtime.cupy_runtime()


def test_a_plan_of_another_kind_is_refused(tmp_path: Path) -> None:
    _, path = host(tmp_path, [])
    x86 = LaunchPlan("toy", "x86-64-v3", "x86", ("run",), (), (Launch("run", (), threads=1),))
    with pytest.raises(LaunchError, match="is for x86, not for a GPU"):
        CudaKernel(path, x86)
