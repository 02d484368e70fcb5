"""How is a GEMM of CUTLASS 2 (sm_80: cp.async, ldmatrix, mma.sync, multistage) compiled to PTX without a GPU?

The headers come from the wheel nvidia-cutlass, the compiler from nvidia-cuda-nvcc (which wants a C++ compiler
beside it). The instantiation below is ours; the kernel is CUTLASS's own.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

TILE = (64, 64, 32)
STAGES = 4
THREADS = 128
ENTRY = "witness"

_SOURCE = """
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

using E = cutlass::bfloat16_t;
using cutlass::gemm::GemmShape;
using Epilogue = cutlass::epilogue::thread::LinearCombination<E, 8, float, float>;
using Kernel = cutlass::gemm::kernel::DefaultGemm<
    E, cutlass::layout::RowMajor, 8, E, cutlass::layout::ColumnMajor, 8, E, cutlass::layout::RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, GemmShape<64, 64, 32>, GemmShape<32, 32, 32>,
    GemmShape<16, 8, 16>, Epilogue, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>, 4, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

extern "C" __global__ void __launch_bounds__(Kernel::kThreadCount)
witness(E *a, E *b, E *out, long long m, long long n, long long k, float alpha) {
  extern __shared__ __align__(16) char shared[];
  cutlass::gemm::GemmCoord size((int)m, (int)n, (int)k), grid(((int)m + 63) / 64, ((int)n + 63) / 64, 1);
  typename Kernel::Params params(size, grid, {a, (int)k}, {b, (int)k}, {out, (int)n}, {out, (int)n},
                                 {alpha, 0.0f});
  Kernel kernel;
  kernel(params, *reinterpret_cast<typename Kernel::SharedStorage *>(shared));
}
static_assert(Kernel::kThreadCount == 128, "as the launch has");
static_assert(sizeof(Kernel::SharedStorage) == 32768, "as the launch has");
"""
SHARED_BYTES = 32768


class CutlassMissingError(Exception):
    """What is not installed; one sentence."""


@dataclass(frozen=True)
class Tools:
    """What CUTLASS is compiled with, by its paths."""

    headers: Path
    nvcc: Path
    libraries: Path


def tools() -> Tools:
    """Those of the wheels. CutlassMissingError where one, or a C++ compiler, is not there."""
    headers = _folder("cutlass_library", "source/include", "nvidia-cutlass")
    nvcc = _folder("nvidia.cu13", "bin/nvcc", "nvidia-cuda-nvcc")
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise CutlassMissingError("nvcc needs a C++ compiler, and there is none on PATH")
    return Tools(headers, nvcc, nvcc.parents[1] / "lib")


def compile_gemm() -> str:
    """The PTX of entry `witness` for sm_80: out = alpha * a (m x k) * b (stored n x k), bf16. About 4 s.
    CutlassMissingError where headers, nvcc or a C++ compiler are not there."""
    found = tools()
    with tempfile.TemporaryDirectory() as folder:
        source, ptx = Path(folder, "witness.cu"), Path(folder, "witness.ptx")
        source.write_text(_SOURCE)
        flags = ["-ptx", "-arch=sm_80", "-std=c++17", "-O3", "-lineinfo", "--expt-relaxed-constexpr"]
        done = subprocess.run(
            [str(found.nvcc), *flags, f"-I{found.headers}", "-o", str(ptx), str(source)],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"nvcc could not compile the CUTLASS kernel: {done.stderr.strip()[-500:]}")
        return ptx.read_text()


def _folder(package: str, inside: str, distribution: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (found := Path(place) / inside).exists():
            return found
    raise CutlassMissingError(f"the wheel {distribution} is not installed (extra `peers`)")
