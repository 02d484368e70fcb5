"""Where does real PTX for a test come from?

NVRTC called directly by ctypes, and Triton compiling for an architecture that is not here. Both skip the
test, visibly, where they are not installed.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_LIBRARIES = {12: "cuda_nvrtc/lib/libnvrtc.so.12", 13: "cu13/lib/libnvrtc.so.13"}

CUDA = r"""
__constant__ float table[4] = {1.0f, 0.5f, -2.0f, 3.0f};
__device__ unsigned counter = 7;
__device__ const char *message = "hello";

template <int N> __device__ __forceinline__ float helper(float x) {
  float r;
  asm volatile("{\n .reg .pred p;\n .reg .b32 t;\n setp.gt.f32 p, %1, 0f00000000;\n @!p bra LAB;\n"
               " mov.b32 t, %1;\n bra DONE;\nLAB: mov.b32 t, 0;\nDONE: mov.b32 %0, t; }"
               : "=f"(r) : "f"(x));
  return r * N;
}
__device__ __noinline__ float outside(float x, double y) { return x * y + 1; }

extern "C" __global__ void __launch_bounds__(128, 2)
first(float *p, const float *q, int n, long long stride, const char **out) {
  extern __shared__ float dynamic[];
  __shared__ int fixed[33];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  fixed[threadIdx.x % 33] = i;
  __syncthreads();
  if (i < n) {
    float v = helper<1>(q[i]) + helper<2>(q[i + 1]);
    dynamic[threadIdx.x] = v;
    __syncthreads();
    p[i * stride] = outside(dynamic[(threadIdx.x + 1) % 128], v) + table[i & 3] + fixed[5];
    atomicAdd(&counter, 1u);
    *out = message;
  }
  switch (n) {
    case 0: p[0] = 1; break;
    case 1: p[1] = table[0]; break;
    case 2: p[2] = 5; break;
    case 3: p[4] = i; break;
    case 4: p[7] = 3; break;
    case 5: p[9] = sinf(i);
  }
}
struct Big { int a; double b[3]; char c; };
extern "C" __global__ void second(Big big, double *d, unsigned short *h) {
  d[threadIdx.x] = big.a + big.b[threadIdx.x % 3] / big.c;
  h[threadIdx.x] = (unsigned short)__ballot_sync(0xffffffffu, big.a > (int)threadIdx.x);
}
"""


@functools.cache
def nvrtc_ptx(major: int, arch: str, source: str = CUDA) -> str:
    """PTX of `source` by NVRTC `major` (12 or 13), with -lineinfo. Skips where that one is not installed."""
    found = importlib.util.find_spec("nvidia")
    roots = list(found.submodule_search_locations or ()) if found else []
    paths = [Path(root) / _LIBRARIES[major] for root in roots]
    library = next((path for path in paths if path.exists()), None)
    if library is None:
        pytest.skip(f"NVRTC {major} is not installed")
    lib = ctypes.CDLL(str(library))
    program = ctypes.c_void_p()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"t.cu", 0, None, None) == 0
    options = [b"-lineinfo", f"-arch={arch}".encode(), b"--std=c++17"]
    status = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    lib.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetPTX(program, text)
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return text.raw.decode()


def triton_ptx(capability: int, sizes: Sequence[int] = (128, 64, 32), stages: int = 3, warps: int = 4) -> str:
    """PTX of a bf16 matmul with masks, compiled by Triton for sm_<capability>. Skips where it is missing."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    triton: Any = importlib.import_module("triton")
    backend: Any = importlib.import_module("triton.backends.compiler")
    compiler: Any = importlib.import_module("triton.compiler")
    kernel = importlib.import_module("support.triton_matmul").matmul
    names = ("a", "b", "c", "m", "n", "k", "lda", "ldb", "ldc")
    source = compiler.ASTSource(
        kernel,
        signature={n: "*bf16" if n in "abc" else "i32" for n in names}
        | {"block_m": "constexpr", "block_n": "constexpr", "block_k": "constexpr"},
        constexprs=dict(zip(("block_m", "block_n", "block_k"), sizes, strict=True)),
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(names))},
    )
    options = {"num_warps": warps, "num_stages": stages}
    target = backend.GPUTarget("cuda", capability, 32)
    return str(triton.compile(source, target=target, options=options).asm["ptx"])
