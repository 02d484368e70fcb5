"""What does a warp-specialised GEMM of CUTLASS 3 (sm_90a: TMA, WGMMA, setmaxnreg) take through nvcc?

`compile_gemm` is timed beside ours. `build_witness` gives its PTX for the emulator, with a host program that
lays out the one parameter, a struct with the tensor maps inside. The driver's encoder is replaced in that
program by one that writes down what it was asked for, so that the emulator's own encoding can be put in its
place. The instantiation below is ours; the kernel and the struct are CUTLASS's own.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rooftile.plan import TENSOR_MAP_BYTES, ConcreteTensorMap

from bench.peers.compiled import Compiled, cpu_s
from bench.peers.cutlass_gemm import CutlassMissingError, tools

ENTRY = "witness"
_MAGIC = b"TILEDMAP"
_HEAD = struct.Struct("<8I")
# What Seen below holds.
_SEEN = struct.Struct("<8sII Q 5Q 4Q 5I 4B 8x")
# CUtensorMapDataType by number (cuda.h). CUTLASS loads bf16 as UINT16: their zeros are the same.
_DTYPES = {1: "bf16", 6: "f16", 7: "f32", 9: "bf16"}

_SOURCE = r"""
#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

using E = cutlass::bfloat16_t;
using cute::Int;
using Tile = cute::Shape<Int<BM>, Int<BN>, Int<BK>>;
using Cluster = cute::Shape<Int<CLUSTER_M>, Int<1>, Int<1>>;
#if PINGPONG
using Loop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using End = cutlass::epilogue::TmaWarpSpecialized;
#else
using Loop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
using End = cutlass::epilogue::TmaWarpSpecializedCooperative;
#endif
// Without C: out = alpha A B.
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, cutlass::layout::RowMajor, 8, E,
    cutlass::layout::RowMajor, 8, End>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, E, cutlass::layout::RowMajor, 8, E,
    cutlass::layout::ColumnMajor, 8, float, Tile, Cluster, Int<STAGES>, Loop>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;

extern "C" __global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock, 1)
witness(const __grid_constant__ typename Kernel::Params params) {
  extern __shared__ char shared[];
  Kernel kernel;
  kernel(params, shared);
}
"""

_HOST = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>

struct Seen {
  char magic[8];
  unsigned dtype, rank;
  unsigned long long address, dims[5], strides[4];
  unsigned box[5];
  unsigned char swizzle, promotion, fill, interleave;
  unsigned rest[2];
};
static_assert(sizeof(Seen) == sizeof(CUtensorMap), "it lies where the map would");

extern "C" CUresult cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType dtype, cuuint32_t rank, void *address, const cuuint64_t *dims,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  Seen seen{};
  std::memcpy(seen.magic, "TILEDMAP", 8);
  seen.dtype = dtype;
  seen.rank = rank;
  seen.address = (unsigned long long)address;
  for (unsigned i = 0; i < rank; i++) {
    seen.dims[i] = dims[i];
    seen.box[i] = box[i];
    if (i) seen.strides[i - 1] = strides[i - 1];
    if (steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
  }
  seen.swizzle = swizzle;
  seen.promotion = promotion;
  seen.fill = fill;
  seen.interleave = interleave;
  std::memcpy(map, &seen, sizeof seen);
  return CUDA_SUCCESS;
}

// m n k sm_count a b out alpha -> grid, threads, shared bytes, size of the struct; the struct.
int main(int argc, char **argv) {
  if (argc != 9) return 2;
  long long given[7];
  for (int i = 0; i < 7; i++) given[i] = std::strtoll(argv[i + 1], nullptr, 0);
  int m = (int)given[0], n = (int)given[1], k = (int)given[2];
  auto pitch = [](int x) { return cute::make_stride((int64_t)x, Int<1>{}, (int64_t)0); };
  typename Kernel::Arguments args{cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1},
                                  {(E *)given[4], pitch(k), (E *)given[5], pitch(k)},
                                  {{(float)std::atof(argv[8]), 0.0f}, nullptr, {}, (E *)given[6], pitch(n)}};
  args.hw_info.sm_count = (int)given[3];
  if (!Kernel::can_implement(args)) return 3;
  auto params = Kernel::to_underlying_arguments(args, nullptr);
  dim3 grid = Kernel::get_grid_shape(params), block = Kernel::get_block_shape();
  unsigned head[8] = {grid.x, grid.y, grid.z, block.x, (unsigned)Kernel::SharedStorageSize,
                      (unsigned)sizeof params, 0, 0};
  std::fwrite(head, sizeof head, 1, stdout);
  std::fwrite(&params, sizeof params, 1, stdout);
}
"""


@dataclass(frozen=True)
class Params:
    """The parameter for one set of sizes, and its launch. `maps`: each tensor map that is inside, by its
    offset in `data`: what it describes, and the address of its tensor."""

    data: bytes
    maps: tuple[tuple[int, ConcreteTensorMap, int], ...]
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Built:
    """A kernel as PTX, and the program that lays its parameter out."""

    ptx: str
    program: bytes

    def params(
        self, m: int, n: int, k: int, addresses: dict[str, int], alpha: float, sm_count: int
    ) -> Params:
        """The parameter for out (m x n) = alpha a (m x k) b (stored n x k), on so many SMs."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "host")
            path.write_bytes(self.program)
            path.chmod(0o700)
            numbers = [m, n, k, sm_count, *(addresses[x] for x in ("a", "b", "out")), alpha]
            done = subprocess.run(
                [str(path), *map(str, numbers)], capture_output=True, check=False, timeout=60
            )
        if done.returncode:
            raise RuntimeError(
                f"CUTLASS cannot do {m}x{n}x{k}: the host program ended with {done.returncode}"
            )
        x, y, z, threads, shared_bytes, size, _, _ = _HEAD.unpack_from(done.stdout)
        data = done.stdout[_HEAD.size :]
        if len(data) != size:
            raise RuntimeError(f"the host program wrote {len(data)} bytes of a struct of {size}")
        by_address = {address: name for name, address in addresses.items()}
        maps = []
        # The struct's own alignment is 64 or more, and so is a map's in it.
        for at in range(0, size - TENSOR_MAP_BYTES + 1, 64):
            if data[at : at + len(_MAGIC)] == _MAGIC:
                tensor, address = _seen(data[at : at + TENSOR_MAP_BYTES], by_address)
                maps.append((at, tensor, address))
        return Params(data, tuple(maps), (x, y, z), threads, shared_bytes)


def _seen(data: bytes, names: dict[int, str]) -> tuple[ConcreteTensorMap, int]:
    _, dtype, rank, address, *rest = _SEEN.unpack(data)
    dims, strides, box = rest[:5][:rank], rest[5:9][: rank - 1], rest[9:14][:rank]
    swizzle, promotion, fill, interleave = rest[14:]
    if interleave:
        raise RuntimeError("CUTLASS asked for an interleaved tensor map")
    tensor = ConcreteTensorMap(
        names[address], _DTYPES[dtype], tuple(dims), tuple(strides), tuple(box), (0, 32, 64, 128)[swizzle],
        (0, 64, 128, 256)[promotion], ("zero", "nan")[fill], 0,
    )  # fmt: skip
    return tensor, address


def compile_gemm(
    bm: int, bn: int, bk: int, stages: int, *, cluster_m: int = 1, pingpong: bool = False
) -> Compiled:
    """Through nvcc to a cubin for sm_90a, as somebody would who has no other way: about 50 CPU-seconds. No
    PTX is kept. CutlassMissingError where headers, nvcc or a C++ compiler are not there."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "gemm.cu"), Path(folder, "gemm.cubin")
        source.write_text(_SOURCE)
        before = cpu_s()
        _nvcc(["-cubin", "-o", str(cubin), str(source)], bm, bn, bk, stages, cluster_m, pingpong)
        return Compiled(cpu_s() - before, "", cubin.stat().st_size)


def build_witness(
    bm: int, bn: int, bk: int, stages: int, *, cluster_m: int = 1, pingpong: bool = False
) -> Built:
    """PTX and host program; two minutes. CutlassMissingError as above."""
    with tempfile.TemporaryDirectory() as folder:
        source, program, kept = (Path(folder, name) for name in ("gemm.cu", "gemm", "kept"))
        source.write_text(_SOURCE + _HOST)
        kept.mkdir()
        more = ["--keep", "--keep-dir", str(kept), "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL"]
        more += ["-o", str(program), f"-L{tools().libraries}", str(source)]
        _nvcc(more, bm, bn, bk, stages, cluster_m, pingpong)
        (ptx,) = kept.glob("*.ptx")
        return Built(ptx.read_text(), program.read_bytes())


def _nvcc(more: list[str], bm: int, bn: int, bk: int, stages: int, cluster_m: int, pingpong: bool) -> None:
    found = tools()
    defines = {"BM": bm, "BN": bn, "BK": bk, "STAGES": stages, "CLUSTER_M": cluster_m}
    flags = [f"-D{name}={value}" for name, value in {**defines, "PINGPONG": int(pingpong)}.items()]
    done = subprocess.run(
        [str(found.nvcc), "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-DNDEBUG",
         "-lineinfo", "--expt-relaxed-constexpr", f"-I{found.headers}", *flags, *more],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"nvcc could not compile the CUTLASS kernel: {done.stderr.strip()[-500:]}")


def check_tools() -> None:
    """CutlassMissingError where something is not there; compiles nothing."""
    if not (tools().libraries / "libcudart_static.a").exists():
        raise CutlassMissingError("the wheel nvidia-cuda-runtime is not installed (extra `peers`)")


__all__ = [
    "ENTRY",
    "Built",
    "Compiled",
    "CutlassMissingError",
    "Params",
    "build_witness",
    "check_tools",
    "compile_gemm",
]
