"""What does Triton's compiler take for its matmul of the same tiles, stages and warps?

The usual Triton matmul: grouped raster, masked loads of A (m x k) and B (k x n), f32 accumulation, alpha, a
masked store. Sizes and strides are run-time arguments, with the hint that they are multiples of 16, as
Triton itself would find at a launch; without it, it emits no cp.async and would have less to compile.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings

from bench.peers.compiled import Compiled, cpu_s

# Before the import: no cache of an earlier run, and no cache at all.
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="rooftile-bench-triton-")
os.environ["TRITON_ALWAYS_COMPILE"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

VERSION: str = triton.__version__
atexit.register(shutil.rmtree, os.environ["TRITON_CACHE_DIR"], ignore_errors=True)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def matmul(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, out_ptr, m, n, k, ld_a, ld_b, ld_out, alpha,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
):  # fmt: skip
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    band = GROUP * tiles_n
    first = pid // band * GROUP
    height = min(tiles_m - first, GROUP)
    tile_m = first + pid % band % height
    tile_n = pid % band // height
    rows = (tile_m * BM + tl.arange(0, BM)) % m
    columns = (tile_n * BN + tl.arange(0, BN)) % n
    depth = tl.arange(0, BK)
    a_at = a_ptr + rows[:, None] * ld_a + depth[None, :]
    b_at = b_ptr + depth[:, None] * ld_b + columns[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, tl.cdiv(k, BK)):
        a = tl.load(a_at, mask=depth[None, :] < k - i * BK, other=0.0)
        b = tl.load(b_at, mask=depth[:, None] < k - i * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK
        b_at += BK * ld_b
    rows = tile_m * BM + tl.arange(0, BM)
    columns = tile_n * BN + tl.arange(0, BN)
    out_at = out_ptr + rows[:, None] * ld_out + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out_at, (acc * alpha).to(tl.bfloat16), mask=inside)


_POINTERS, _SIZES = ("a_ptr", "b_ptr", "out_ptr"), ("m", "n", "k", "ld_a", "ld_b", "ld_out")
_SIGNATURE = (
    dict.fromkeys(_POINTERS, "*bf16")
    | dict.fromkeys(_SIZES, "i32")
    | {"alpha": "fp32"}
    | dict.fromkeys(("BM", "BN", "BK", "GROUP"), "constexpr")
)
_MULTIPLES_OF_16 = {(i,): [["tt.divisibility", 16]] for i in range(len(_POINTERS) + len(_SIZES))}


def compile_matmul(capability: int, bm: int, bn: int, bk: int, stages: int, warps: int) -> Compiled:
    """To PTX and cubin. `capability` as in GPUTarget: 80."""
    source = ASTSource(
        fn=matmul,
        signature=_SIGNATURE,
        constexprs={"BM": bm, "BN": bn, "BK": bk, "GROUP": 8},
        attrs=_MULTIPLES_OF_16,
    )
    options = {"num_warps": warps, "num_stages": stages}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = cpu_s()
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        spent = cpu_s() - before
    return Compiled(spent, kernel.asm["ptx"], len(kernel.asm["cubin"]))
