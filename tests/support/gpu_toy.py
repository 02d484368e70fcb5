"""A GEMM of a few lines in CUDA whose define FAULT says what is wrong with it: what device tests launch.

Its arguments mix widths on purpose (a 4-byte one between pointers makes a hole), it wants dynamic shared
memory where SMEM says so, and a zeroed workspace, which it dirties.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rooftile.plan import Arg, Launch, LaunchPlan, SizeRange, ValidFor, Workspace

from search_space.family import BuildSpec
from worker.compile import Artifact, compile_kernel

SOURCE = "cuda/gemm/gpu_toy.cu"
SIZES = (
    "m", "n", "k", "batch", "ld_a", "ld_b", "ld_c", "ld_out",
    "stride_a", "stride_b", "stride_c", "stride_out",
)  # fmt: skip
ARGS = (
    Arg.ptr("a"), Arg("m", "i32", value="m"), Arg.ptr("b"), Arg("n", "u32", value="n"),
    Arg("k", "i32", value="k"), Arg.f32("alpha"), Arg.ptr("out"), Arg.i64("ld_a"), Arg.i64("ld_b"),
    Arg.i64("ld_out"), Arg.ptr("c"), Arg.i64("ld_c"), Arg.f32("beta"), Arg.ptr("workspace"),
    Arg("batch", "i32", value="batch"), Arg.i64("stride_a"), Arg.i64("stride_b"), Arg.i64("stride_c"),
    Arg.i64("stride_out"),
)  # fmt: skip

TEXT = r"""
#ifndef FAULT
#define FAULT 0
#endif
#ifndef STATIC_BYTES
#define STATIC_BYTES 4
#endif
extern __shared__ unsigned char dynamic[];
extern "C" __global__ void __launch_bounds__(128)
gemm(const float *a, int m, const float *b, unsigned n, int k, float alpha, float *out, long long ld_a,
     long long ld_b, long long ld_out, const float *c, long long ld_c, float beta, unsigned *workspace, int
     batch, long long stride_a, long long stride_b, long long stride_c, long long stride_out)
{
    __shared__ unsigned char fixed[STATIC_BYTES];
    // The last byte of what was asked for is there.
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    if (threadIdx.x == 0) {
        fixed[STATIC_BYTES - 1] = 1;
        if (bytes) dynamic[bytes - 1] = 1;
    }
    __syncthreads();
    float wrong = 0.0f;
    if (workspace) {
        // Blocks of one launch share it: each looks at a word of its own before it spoils it.
        unsigned mine = blockIdx.x % 16;
        if (blockIdx.x < 16 && threadIdx.x == 0 && workspace[mine] != 0) out[0] = 1e30f;
        if (blockIdx.x < 16 && threadIdx.x == 0) workspace[mine] = 7;
    }
#if FAULT == 1
    if (threadIdx.x == 0 && blockIdx.x == 0) for (volatile int spin = 1; spin;) {}
#elif FAULT == 2
    *(volatile float *)(0x10ull) = 1.0f;
#elif FAULT == 3
    wrong = 1.0f;
#elif FAULT == 4
    if (blockIdx.x == 0 && threadIdx.x == 0) ((float *)a)[0] = 2.0f;
#elif FAULT == 5
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[(batch - 1) * stride_out + (m - 1) * ld_out + n] = 1.0f;
#elif FAULT == 6
    if (m > 1) m -= 1;
#elif FAULT == 7
    __trap();
#endif
    long long total = (long long)m * n * batch;
    for (long long at = blockIdx.x * 128ll + threadIdx.x; at < total; at += gridDim.x * 128ll) {
        long long i = at / n % m, j = at % n, l = at / n / m;
        float sum = 0.0f;
        for (int x = 0; x < k; x++)
            sum += a[l * stride_a + i * ld_a + x] * b[l * stride_b + x * ld_b + j];
        float value = alpha * sum + wrong;
        if (c) value += beta * c[l * stride_c + i * ld_c + j];
        out[l * stride_out + i * ld_out + j] = value;
    }
}
"""
FAULTS = {
    "none": 0, "hang": 1, "illegal address": 2, "wrong value": 3, "writes an input": 4, "past out": 5,
    "not the last row": 6, "trap": 7,
}  # fmt: skip


def plan(
    arch: str,
    *,
    smem: Any = 0,
    workspace: Workspace | None = None,
    m: SizeRange | None = None,
    deterministic: bool = True,
) -> LaunchPlan:
    """How it is launched: a grid that does not cover the result, so that every block loops."""
    launch = Launch("gemm", ARGS, grid=(20, 1, 1), block=(128, 1, 1), smem=smem)
    return LaunchPlan(
        family="gpu_toy",
        arch=arch,
        kind="cuda",
        entries=("gemm",),
        sizes=SIZES,
        steps=(launch,),
        workspace=workspace or Workspace(64, init="zero"),
        deterministic=deterministic,
        valid_for=ValidFor({} if m is None else {"m": m}, {"a": 4, "b": 4, "out": 4}),
    )


def build(folder: Path, arch: str, fault: str = "none", *, static_bytes: int = 4) -> tuple[Artifact, Path]:
    """The artifact, and a file with its cubin."""
    root = folder / "kernels"
    source = root / SOURCE
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        (root / "cuda" / "include").mkdir(parents=True, exist_ok=True)
        source.write_text(TEXT)
    defines = (("FAULT", str(FAULTS[fault])), ("STATIC_BYTES", str(static_bytes)))
    artifact = compile_kernel(
        BuildSpec(SOURCE, arch, defines, (), ("gemm",)), home=folder / "home", root=root
    )
    path = folder / f"{artifact.sha256}.cubin"
    path.write_bytes(artifact.data)
    return artifact, path
