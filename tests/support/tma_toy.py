"""A kernel of one box a block that copies by TMA both ways: what the launcher's tensor maps are tried with.

Each block loads a box with the map of `a`, writes the shared memory as it lies to `lse` (so that the swizzle
is seen), and stores the box with the map of `out`. Ragged sizes leave parts of boxes outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, TensorMap, ValidFor, ceil_div, mul

from search_space.family import BuildSpec
from worker.compile import Artifact, compile_kernel

SOURCE = "cuda/gemm/tma_toy.cu"
SIZES = ("m", "n", "ld_a", "ld_out")
ROWS = 24
"""Of a box: three groups of the 8 rows that a swizzle goes over."""

TEXT = r"""
struct alignas(64) TensorMap { unsigned char bytes[128]; };
#define BOX_BYTES (BOX_X * BOX_Y * ELEMENT_BYTES)
extern "C" __global__ void __launch_bounds__(128, 1)
copy(int odd, const __grid_constant__ TensorMap map_a, unsigned char *image, const __grid_constant__ TensorMap
     map_out)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ alignas(8) unsigned long long barrier;
    // Swizzles go by the address: to a multiple of 1024.
    unsigned base = (unsigned)__cvta_generic_to_shared(dynamic), box = (base + 1023u) & ~1023u;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier);
    int x = blockIdx.x * BOX_X, y = blockIdx.y * BOX_Y;
    if (odd != 7) return;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(BOX_BYTES)
                     : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(box), "l"(&map_a), "r"(x), "r"(y), "r"(bar) : "memory");
    }
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra again;\n}" :: "r"(bar) : "memory");
    long long first = ((long long)blockIdx.y * gridDim.x + blockIdx.x) * BOX_BYTES;
    for (int i = threadIdx.x; i < BOX_BYTES; i += 128) image[first + i] = dynamic[box - base + i];
    // What the load wrote goes out again by the same proxy; no thread has written it in between.
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&map_out), "r"(x), "r"(y), "r"(box) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


def box(dtype: str, swizzle: int, l2_promotion: int = 0, fill: str = "zero") -> TensorMap:
    """The map of `a`: rows of `ld_a` elements, boxes as wide as the swizzle (32 bytes without one)."""
    width = (swizzle or 32) // _bytes(dtype)
    return TensorMap(
        "a", dtype, ("n", "m"), (mul("ld_a", _bytes(dtype)),), (width, ROWS), swizzle, l2_promotion, fill
    )


def plan(tensor: TensorMap) -> LaunchPlan:
    """A block a box. Rows of `out` end at a multiple of 16 bytes: a store would write what is over."""
    out = TensorMap(
        "out", tensor.dtype, ("n", "m"), (mul("ld_out", tensor.element_bytes),), tensor.box, tensor.swizzle
    )
    args = (
        Arg("odd", "i32", value=7), Arg.tensor_map("map_a", tensor), Arg.ptr("image", "lse"),
        Arg.tensor_map("map_out", out),
    )  # fmt: skip
    grid = (ceil_div("n", tensor.box[0]), ceil_div("m", ROWS), 1)
    launch = Launch("copy", args, grid=grid, block=(128, 1, 1), smem=tensor.box_bytes + 1024)
    return LaunchPlan(
        family="tma_toy", arch="sm_90a", kind="cuda", entries=("copy",), sizes=SIZES, steps=(launch,),
        valid_for=ValidFor({"m": SizeRange(min=1), "n": SizeRange(min=1)}, {"a": 16, "out": 16}),
    )  # fmt: skip


def build(folder: Path, tensor: TensorMap) -> tuple[Artifact, Path]:
    """The artifact for boxes of this size, and a file with its cubin."""
    root = folder / "kernels"
    source = root / SOURCE
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        (root / "cuda" / "include").mkdir(parents=True, exist_ok=True)
        source.write_text(TEXT)
    numbers = {"BOX_X": tensor.box[0], "BOX_Y": tensor.box[1], "ELEMENT_BYTES": tensor.element_bytes}
    defines = tuple((name, str(value)) for name, value in numbers.items())
    spec = BuildSpec(SOURCE, "sm_90a", defines, (), ("copy",))
    artifact = compile_kernel(spec, home=folder / "home", root=root)
    path = folder / f"{artifact.sha256}.cubin"
    path.write_bytes(artifact.data)
    return artifact, path


def image(matrix: np.ndarray[Any, Any], tensor: TensorMap) -> np.ndarray[Any, Any]:
    """What `lse` must hold: the bytes of each box, rows of zeros beyond the matrix, 16-byte pieces exchanged
    as PTX says (bits 4 to 6 of the address xor bits 7 to 9, as many as the swizzle has)."""
    width, rows = tensor.box
    down, across = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // width)
    whole = np.zeros((down * rows, across * width), matrix.dtype)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    boxes = whole.reshape(down, rows, across, width).transpose(0, 2, 1, 3)
    flat = np.ascontiguousarray(boxes).view(np.uint8).reshape(down * across, -1)
    at = np.arange(flat.shape[1])
    mask = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}[tensor.swizzle]
    swizzled = np.empty_like(flat)
    swizzled[:, at ^ (at >> 3 & mask)] = flat
    return swizzled.reshape(-1)


def _bytes(dtype: str) -> int:
    return TensorMap("a", dtype, (1,), (), (16,)).element_bytes
