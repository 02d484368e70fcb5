"""Do the driver's tensor maps, as the launcher passes them, describe what the plan says, on real hardware?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.errors import LaunchError
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import ConcreteTensorMap
from support import tma_toy

_HOST = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32, "s32": np.uint32, "e4m3": np.uint8,
         "s8": np.uint8, "f64": np.uint64}  # fmt: skip
M, N, PITCH = 61, 176, 208
"""Boxes of 24 rows end outside, rows of every type at a multiple of 16 bytes within a box or not."""


@pytest.fixture(autouse=True)
def _hopper(gpu: Any) -> None:
    if gpu.arch != "sm_90a":
        pytest.skip(f"TMA toys are built for sm_90a; this GPU is {gpu.arch}")


def numbers(dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Bit patterns without NaNs: small, so that no copy has a reason to change one."""
    stream = np.random.default_rng(seed)
    return stream.integers(1, 0x60, (M, PITCH)).astype(_HOST[dtype])


def run(gpu: Any, kernel: CudaKernel, tensor: Any, host: np.ndarray[Any, Any]) -> None:
    """Launch and check: the image, the copy, and that nothing beside it was written."""
    a = gpu.cupy.asarray(host)
    out = gpu.cupy.full((M + 8, PITCH), 0x7F, host.dtype)
    want = tma_toy.image(host[:, :N], tensor)
    image = gpu.cupy.full(want.size + 64, 0xEE, np.uint8)
    names = {"m": M, "n": N, "ld_a": PITCH, "ld_out": PITCH}
    pointers = {"a": a.data.ptr, "out": out.data.ptr, "lse": image.data.ptr}
    kernel.prepare(names, pointers).run()
    got = gpu.cupy.asnumpy(image)
    np.testing.assert_array_equal(got[: want.size], want)
    assert (got[want.size :] == 0xEE).all()
    copied = gpu.cupy.asnumpy(out)
    np.testing.assert_array_equal(copied[:M, :N], host[:, :N])
    copied[:M, :N] = 0x7F
    assert (copied == 0x7F).all()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", list(_HOST))
def test_every_swizzle_and_type(gpu: Any, folder: Path, swizzle: int, dtype: str) -> None:
    tensor = tma_toy.box(dtype, swizzle, l2_promotion={0: 0, 32: 64, 64: 128, 128: 256}[swizzle])
    _, path = tma_toy.build(folder, tensor)
    kernel = CudaKernel(path, tma_toy.plan(tensor))
    for seed in (1, 2, 1):  # new addresses, and again
        run(gpu, kernel, tensor, numbers(dtype, seed))


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 7), ("f16", 10), ("f32", 23)])
def test_outside_is_nan_where_the_plan_says_so(gpu: Any, folder: Path, dtype: str, bits: int) -> None:
    tensor = tma_toy.box(dtype, 0, fill="nan")
    _, path = tma_toy.build(folder, tensor)
    host = numbers(dtype, 3)
    a, out = gpu.cupy.asarray(host), gpu.cupy.zeros((M, PITCH), host.dtype)
    size = tma_toy.image(host[:, :N], tensor).size
    image = gpu.cupy.zeros(size, np.uint8)
    names = {"m": M, "n": N, "ld_a": PITCH, "ld_out": PITCH}
    pointers = {"a": a.data.ptr, "out": out.data.ptr, "lse": image.data.ptr}
    CudaKernel(path, tma_toy.plan(tensor)).prepare(names, pointers).run()
    width, rows = tensor.box
    boxes = gpu.cupy.asnumpy(image).view(host.dtype).reshape(-1, rows, width)
    last = boxes[-1][M % rows :]
    exponent = ((1 << (8 * host.dtype.itemsize - 1)) - 1) >> bits
    assert ((last >> bits & exponent) == exponent).all()
    assert (last & ((1 << bits) - 1) != 0).all()
    np.testing.assert_array_equal(gpu.cupy.asnumpy(out)[:, :N], host[:, :N])


def test_tf32_is_rounded_to_nearest(gpu: Any, folder: Path) -> None:
    """Of 23 bits 10 are left; f32 (above) keeps them all."""
    tensor = tma_toy.box("tf32", 128)
    _, path = tma_toy.build(folder, tensor)
    host = np.random.default_rng(4).uniform(-1, 1, (M, PITCH)).astype(np.float32)
    a, out = gpu.cupy.asarray(host), gpu.cupy.zeros((M, PITCH), np.float32)
    image = gpu.cupy.zeros(tma_toy.image(host[:, :N], tensor).size, np.uint8)
    names = {"m": M, "n": N, "ld_a": PITCH, "ld_out": PITCH}
    pointers = {"a": a.data.ptr, "out": out.data.ptr, "lse": image.data.ptr}
    CudaKernel(path, tma_toy.plan(tensor)).prepare(names, pointers).run()
    got = gpu.cupy.asnumpy(out)[:, :N]
    assert (np.abs(got - host[:, :N]) <= np.abs(host[:, :N]) * 2.0**-11).all()
    assert not (got.view(np.uint32) & 0x1FFF).any()


def test_the_driver_refuses_with_our_sentence(gpu: Any) -> None:
    """What plans refuse is refused by the driver too, and told with the numbers."""
    address = gpu.cupy.zeros(1024, np.uint8).data.ptr
    bad = ConcreteTensorMap("a", "bf16", (64, 8), (100,), (64, 8), 128, 0, "zero", 0)
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_INVALID_VALUE.*dims \[64, 8\], strides \[100\] bytes"):
        gpu.runtime.encode(bad, address)


def test_a_misaligned_tensor_is_refused_before(gpu: Any, folder: Path) -> None:
    tensor = tma_toy.box("bf16", 64)
    _, path = tma_toy.build(folder, tensor)
    kernel = CudaKernel(path, tma_toy.plan(tensor))
    memory = gpu.cupy.zeros(1 << 16, np.uint8).data.ptr
    names = {"m": M, "n": N, "ld_a": PITCH, "ld_out": PITCH}
    with pytest.raises(UnsuitableError, match="a is aligned to 8 bytes, not 16"):
        kernel.prepare(names, {"a": memory + 8, "out": memory, "lse": memory})
    with pytest.raises(UnsuitableError, match="a tensor's stride of 420 bytes"):
        kernel.prepare({**names, "ld_a": 210}, {"a": memory, "out": memory, "lse": memory})
