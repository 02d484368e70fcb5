"""Is the kernel that device tests launch what they take it for? In the emulator, through the launcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rooftile.problem import Gemm
from support import gpu_toy
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
