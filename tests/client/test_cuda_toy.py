"""Are the kernels that device tests launch what they take them for? In the emulator, through the launcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rooftile.problem import Gemm
from support import gpu_toy, tma_toy
from support.emulated_cuda import emulated_kernel

from worker.errors import CompilerMissingError


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90a"])
def test_the_toy_of_the_device_tests_is_right(arch: str, tmp_path: Path) -> None:
    try:
        artifact, _ = gpu_toy.build(tmp_path, arch)
    except CompilerMissingError as missing:
        pytest.skip(f"NVRTC is not here: {missing}")
    problem = Gemm(9, 20, 11, "f32", batch=2, beta="any")
    kernel = emulated_kernel(artifact, gpu_toy.plan(arch, smem=4096), tmp_path, problem)
    stream = np.random.default_rng(1)
    a, b, c = (stream.uniform(-1, 1, s).astype(np.float32) for s in ((2, 9, 11), (2, 11, 20), (2, 9, 20)))
    out = np.full((2, 9, 20), np.nan, np.float32)
    array = kernel.runtime.array  # type: ignore[attr-defined]
    for _ in range(2):
        kernel(array(a), array(b), array(out), c=array(c), alpha=0.5, beta=-2.0)
        np.testing.assert_allclose(out, 0.5 * (a @ b) - 2.0 * c, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "swizzle"), [("bf16", 0), ("f32", 32), ("e4m3", 64), ("bf16", 128)])
def test_the_tma_toy_of_the_device_tests_is_right(dtype: str, swizzle: int, tmp_path: Path) -> None:
    """Its tensor maps come from the launcher; what it leaves in shared memory is what the tests expect."""
    tensor = tma_toy.box(dtype, swizzle)
    try:
        artifact, _ = tma_toy.build(tmp_path, tensor)
    except CompilerMissingError as missing:
        pytest.skip(f"NVRTC is not here: {missing}")
    kernel = emulated_kernel(artifact, tma_toy.plan(tensor), tmp_path)
    host_type = {1: np.uint8, 2: np.uint16, 4: np.uint32}[tensor.element_bytes]
    m, n, pitch = 29, 176, 208
    stream = np.random.default_rng(1)
    flat = stream.integers(1, 0x60, m * pitch + 16).astype(host_type)
    start = int(-flat.ctypes.data % 16) // tensor.element_bytes
    a = flat[start : start + m * pitch].reshape(m, pitch)
    wide = np.full((m + 2) * pitch + 16, 0x7F, host_type)
    start = int(-wide.ctypes.data % 16) // tensor.element_bytes
    out = wide[start : start + (m + 2) * pitch].reshape(m + 2, pitch)
    want = tma_toy.image(a[:, :n], tensor)
    image = np.full(want.size + 64, 0xEE, np.uint8)
    for array in (a, out, image):
        kernel.runtime.array(array)  # type: ignore[attr-defined]
    pointers = {"a": a.ctypes.data, "out": out.ctypes.data, "lse": image.ctypes.data}
    kernel.prepare({"m": m, "n": n, "ld_a": pitch, "ld_out": pitch}, pointers).run()
    np.testing.assert_array_equal(image[: want.size], want)
    assert (image[want.size :] == 0xEE).all()
    np.testing.assert_array_equal(out[:m, :n], a[:, :n])
    assert (out[m:] == 0x7F).all()
    assert (out[:, n:] == 0x7F).all()
