"""Does the launcher keep its word on real hardware: bytes, strides, streams, devices, capture, shared
memory?"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from rooftile.errors import LaunchError
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import Workspace
from rooftile.problem import Gemm


def uniform(gpu: Any, *shape: int, seed: int = 1) -> Any:
    return gpu.cupy.asarray(np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32))


def close(gpu: Any, got: Any, want: Any) -> None:
    np.testing.assert_allclose(gpu.cupy.asnumpy(got), gpu.cupy.asnumpy(want), rtol=1e-4, atol=1e-5)


def test_arguments_of_mixed_width_arrive(gpu: Any, make: Any) -> None:
    kernel = make(Gemm(37, 53, 29, "f32", batch=3, beta="any"))
    a, b, c = uniform(gpu, 3, 37, 29), uniform(gpu, 3, 29, 53), uniform(gpu, 3, 37, 53)
    out = gpu.cupy.full((3, 37, 53), np.nan, np.float32)
    assert kernel(a, b, out, c=c, alpha=0.5, beta=-2.0) is out
    close(gpu, out, 0.5 * (a @ b) - 2.0 * c)
    made = make(Gemm(37, 53, 29, "f32"))(a[0], b[0])
    close(gpu, made, a[0] @ b[0])


def test_views(gpu: Any, make: Any) -> None:
    """Raw kernels ignore views: a transposed array must be refused, a pitched one be read as it lies."""
    kernel = make(Gemm(5, 7, 11, "f32"))
    big_a, big_b, big_out = uniform(gpu, 10, 30), uniform(gpu, 22, 20), gpu.cupy.zeros((5, 40), np.float32)
    a, b, out = big_a[::2, 3:14], big_b[::2, 2:9], big_out[:, 30:37]
    kernel(a, b, out)
    close(gpu, out, gpu.cupy.ascontiguousarray(a) @ gpu.cupy.ascontiguousarray(b))
    assert not big_out[:, :30].any()
    for bad in (uniform(gpu, 11, 5).T, uniform(gpu, 5, 22)[:, ::2], uniform(gpu, 5, 11)[::-1]):
        with pytest.raises(UnsuitableError):
            kernel(bad, b, out)


def test_empty_results_and_k_0(gpu: Any, make: Any) -> None:
    zeros = gpu.cupy.zeros
    assert make(Gemm(0, 7, 11, "f32"))(zeros((0, 11), np.float32), uniform(gpu, 11, 7)).shape == (0, 7)
    out = gpu.cupy.full((5, 7), np.nan, np.float32)
    make(Gemm(5, 7, 0, "f32"))(zeros((5, 0), np.float32), zeros((0, 7), np.float32), out)
    assert not out.any()


@pytest.mark.parametrize("static", [4, 16])
def test_shared_memory_at_every_boundary(gpu: Any, make: Any, static: int) -> None:
    most = gpu.runtime.facts(0).max_smem_bytes
    problem = Gemm(5, 7, 11, "f32")
    a, b = uniform(gpu, 5, 11), uniform(gpu, 11, 7)
    for total in (0, 48 * 1024 - 4, 48 * 1024, 48 * 1024 + 4, most - 4, most):
        dynamic = max(0, total - static)
        close(gpu, make(problem, static_bytes=static, smem=dynamic)(a, b), a @ b)
    close(gpu, make(problem, static_bytes=static, smem=48 * 1024)(a, b), a @ b)
    with pytest.raises(UnsuitableError, match="bytes of shared memory"):
        make(problem, static_bytes=static, smem=most - static + 4)(a, b)


def test_the_workspace_is_zero_at_every_run(gpu: Any, make: Any) -> None:
    kernel = make(Gemm(64, 64, 64, "f32"))
    a, b = uniform(gpu, 64, 64), uniform(gpu, 64, 64)
    for _ in range(4):
        close(gpu, kernel(a, b), a @ b)


def test_a_launch_from_another_thread(gpu: Any, make: Any) -> None:
    kernel = make(Gemm(5, 7, 11, "f32"))
    a, b = uniform(gpu, 5, 11), uniform(gpu, 11, 7)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(kernel(a, b))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gpu.cupy.cuda.runtime.deviceSynchronize()
    assert len(found) == 4
    for out in found:
        close(gpu, out, a @ b)


def test_the_stream_is_the_callers(gpu: Any, make: Any) -> None:
    """On a stream that waits for an event nothing has happened yet; on another it has."""
    cupy = gpu.cupy
    kernel = make(Gemm(256, 256, 256, "f32"), workspace=Workspace(0))
    a, b = uniform(gpu, 256, 256), uniform(gpu, 256, 256)
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    one, two = cupy.zeros((256, 256), np.float32), cupy.zeros((256, 256), np.float32)
    cupy.cuda.runtime.deviceSynchronize()
    kernel(a, b, one, stream=first)
    kernel(a, b, two, stream=second.ptr)
    first.synchronize()
    second.synchronize()
    close(gpu, one, a @ b)
    close(gpu, two, a @ b)
    with second:
        current = kernel(a, b)
    second.synchronize()
    close(gpu, current, a @ b)


def test_capture_after_a_warm_up(gpu: Any, make: Any) -> None:
    """Nothing is allocated or loaded in a capture; the graph computes what eager calls do, with new inputs
    too."""
    cupy = gpu.cupy
    kernel = make(Gemm(64, 48, 32, "f32"))
    a, b, out = uniform(gpu, 64, 32), uniform(gpu, 32, 48), cupy.zeros((64, 48), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cold = make(Gemm(64, 48, 32, "f32"))
    kernel(a, b, out)  # the warm-up, on another stream
    cupy.cuda.runtime.deviceSynchronize()
    before = cupy.cuda.runtime.memGetInfo()[0]
    stream.begin_capture()
    with pytest.raises(UnsuitableError, match="not loaded"):
        cold(a, b, out, stream=stream)
    with pytest.raises(LaunchError, match="out was not given"):
        kernel(a, b, stream=stream)
    kernel(a, b, out, stream=stream)
    kernel(a, b, out, stream=stream)
    graph = stream.end_capture()
    assert cupy.cuda.runtime.memGetInfo()[0] >= before - (4 << 20)  # the graph's own few bytes
    for seed in (2, 3):
        a[...] = uniform(gpu, 64, 32, seed=seed)
        out[...] = np.nan
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        close(gpu, out, a @ b)


def test_the_arrays_device_is_used_and_the_callers_kept(gpu: Any, make: Any) -> None:
    if gpu.runtime.device_count < 2:
        pytest.skip("this machine has one GPU")
    kernel = make(Gemm(5, 7, 11, "f32"))
    for device in (1, 0, 1):
        with gpu.cupy.cuda.Device(device):
            a, b = uniform(gpu, 5, 11), uniform(gpu, 11, 7)
            want = a @ b
        out = kernel(a, b)
        assert gpu.runtime.current_device() == 0
        assert int(out.device.id) == device
        with gpu.cupy.cuda.Device(device):
            gpu.cupy.cuda.runtime.deviceSynchronize()
            close(gpu, out, want)


def test_host_arrays_are_refused(gpu: Any, make: Any) -> None:
    with pytest.raises(LaunchError, match="in host memory"):
        make(Gemm(5, 7, 11, "f32"))(np.zeros((5, 11), np.float32), uniform(gpu, 11, 7))


def test_torch_tensors(gpu: Any, make: Any) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA here")
    kernel = make(Gemm(5, 7, 11, "f32"))
    a, b = torch.randn(5, 11, device="cuda"), torch.randn(11, 7, device="cuda", requires_grad=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        out = kernel(a, b.detach())
        torch.cuda.current_stream().synchronize()
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, a @ b.detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsuitableError):
        kernel(torch.randn(11, 5, device="cuda").T, b.detach())
    graph = torch.cuda.CUDAGraph()
    static = torch.empty(5, 7, device="cuda")
    kernel(a, b.detach(), static)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kernel(a, b.detach(), static)
    static.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(static, a @ b.detach(), rtol=1e-4, atol=1e-5)
