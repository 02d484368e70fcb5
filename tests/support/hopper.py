"""Small kernels for sm_90a: wrappers of its instructions, and a GEMM by TMA, mbarriers and WGMMA to break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from rooftile.plan import Arg, Launch, LaunchPlan, TensorMap
from rooftile.plan.expr import mul

from emulator import Order, Program, Region, Report, run_plan

WRAPPERS = r"""
typedef unsigned long long u64;
typedef unsigned u32;
struct alignas(64) TensorMap { unsigned char bytes[128]; };
#define DEV __device__ __forceinline__
DEV u32 sh(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void init(u64* b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :: "r"(sh(b)), "r"(n) : "memory"); }
DEV void inval(u64* b) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(sh(b)) : "memory"); }
DEV void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void expect(u64* b, u32 n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(sh(b)), "r"(n) : "memory"); }
DEV void arrive(u64* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(sh(b)) : "memory"); }
DEV void arrive_at(u64* b, u32 rank) {
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;"
               " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r];}"
               :: "r"(sh(b)), "r"(rank) : "memory"); }
DEV void wait(u64* b, u32 parity) {
  asm volatile("{.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
               "bra AGAIN;\nDONE:\n}" :: "r"(sh(b)), "r"(parity) : "memory"); }
DEV void wait_cluster(u64* b, u32 parity) {
  asm volatile("{.reg .pred p;\nAGAIN:\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
               "@p bra DONE;\nbra AGAIN;\nDONE:\n}" :: "r"(sh(b)), "r"(parity) : "memory"); }
DEV void load2(void* to, const TensorMap* m, int x, int y, u64* b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               :: "r"(sh(to)), "l"(m), "r"(x), "r"(y), "r"(sh(b)) : "memory"); }
DEV void load2_multi(void* to, const TensorMap* m, int x, int y, u64* b, unsigned short mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx"
               "::bytes.multicast::cluster"
               " [%0], [%1, {%2, %3}], [%4], %5;"
               :: "r"(sh(to)), "l"(m), "r"(x), "r"(y), "r"(sh(b)), "h"(mask) : "memory"); }
DEV void store2(const TensorMap* m, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(m), "r"(x), "r"(y), "r"(sh(from)) : "memory"); }
DEV void add2(const TensorMap* m, int x, int y, const void* from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(m), "r"(x), "r"(y), "r"(sh(from)) : "memory"); }
DEV void bulk_load(void* to, const void* from, u32 n, u64* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(sh(to)), "l"(from), "r"(n), "r"(sh(b)) : "memory"); }
DEV void bulk_store(void* to, const void* from, u32 n) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(sh(from)), "r"(n) : "memory"); }
DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory"); }
template <int N> DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;"
               :: "n"(N) : "memory"); }
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEV u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
DEV void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;"
               :: "n"(N) : "memory"); }
template <int N> DEV void give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEV void take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
DEV u64 descriptor(const void* p, u32 lbo, u32 sbo, u64 mode) {
  return (u64)((sh(p) & 0x3FFFF) >> 4) | (u64)(lbo >> 4) << 16 | (u64)(sbo >> 4) << 32 | mode << 62; }
"""


def mma(
    n: int, tail: str = "p, 1, 1, 0, 0", kinds: str = "f32.bf16.bf16", k: int = 16, name: str = "mma"
) -> str:
    """A wrapper `mma(float (&d)[n / 2], u64 a, u64 b, bool adds)` of one WGMMA; of f16 sums or s32 `u32
    (&d)`."""
    half = kinds.startswith("f16")
    count = n // 4 if half else n // 2
    kind, letter = ("float", "f") if kinds.startswith("f32") else ("u32", "r")
    regs = ", ".join(f"%{i}" for i in range(count))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    return (
        f"DEV void {name}({kind} (&d)[{count}], u64 a, u64 b, int adds) {{\n"
        f'  asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kinds} {{{regs}}},"\n'
        f'    " %{count}, %{count + 1}, {tail};}}"\n'
        f'    : {outs} : "l"(a), "l"(b), "r"(adds));\n}}\n'
    )


GEMM = r"""
constexpr int BM = 64 * CONSUMERS, BK = 64;
struct Stage { unsigned short a[BM * BK], b[BN * BK]; };
extern "C" __global__ void __launch_bounds__(128 + 128 * CONSUMERS, 1)
run(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, float* out,
    long long m, long long n, long long k) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ u64 full[STAGES], empty[STAGES];
  Stage* stages = (Stage*)(raw + (1024 - (sh(raw) & 1023)) % 1024);
  const int tid = threadIdx.x, group = tid / 128;
  if (tid == 0) {
    for (int s = 0; s < STAGES; ++s) { init(&full[s], 1); init(&empty[s], CONSUMERS); }
    fence_init();
  }
  __syncthreads(); // initialised
  const int steps = (k + BK - 1) / BK, tiles_n = (n + BN - 1) / BN, tiles = (m + BM - 1) / BM * tiles_n;
  if (group == 0) {
    give<40>();
    if (tid == 0) {
      int it = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
        for (int i = 0; i < steps; ++i, ++it) {
          const int s = it % STAGES;
          wait(&empty[s], (it / STAGES & 1) ^ 1); // free
          expect(&full[s], sizeof(Stage));
          load2(stages[s].a, &map_a, i * BK, tile / tiles_n * BM, &full[s]);
          load2(stages[s].b, &map_b, i * BK, tile % tiles_n * BN, &full[s]);
        }
    }
  } else {
    take<TAKE>();
    const int w = group - 1, lane = tid % 32, warp = tid % 128 / 32;
    float d[BN / 2];
    int it = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      for (int i = 0; i < steps; ++i, ++it) {
        const int s = it % STAGES;
        wait(&full[s], it / STAGES & 1); // filled
        mma_fence(); // registers
        for (int kk = 0; kk < 4; ++kk)
          mma(d, descriptor(stages[s].a + w * 64 * BK + kk * 16, 16, 1024, 1),
              descriptor(stages[s].b + kk * 16, 16, 1024, 1), i + kk > 0);
        mma_commit();
        mma_wait<0>(); // done
        if (tid % 128 == 0) arrive(&empty[s]); // released
      }
      const int row = tile / tiles_n * BM + w * 64 + warp * 16 + lane / 4;
      for (int j = 0; j < BN / 2; ++j) {
        const int r = row + j / 2 % 2 * 8, c = tile % tiles_n * BN + j / 4 * 8 + lane % 4 * 2 + j % 2;
        if (r < m && c < n) out[r * n + c] = d[j];
      }
    }
  }
}
"""


def gemm_source(bn: int = 64, stages: int = 3, consumers: int = 2) -> str:
    """GEMM with these sizes: out (m, n) f32 = a (m, k) b (n, k)^T, bf16."""
    take = {1: 232, 2: 232, 3: 152}[consumers]
    head = f"#define BN {bn}\n#define STAGES {stages}\n#define CONSUMERS {consumers}\n#define TAKE {take}\n"
    return WRAPPERS + head + mma(bn) + GEMM


def gemm_tiles(bn: int, consumers: int = 2) -> tuple[int, int, int]:
    """Rows, columns and depth of a tile."""
    return 64 * consumers, bn, 64


def bf16(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(ml_dtypes.bfloat16)


def wide(*shape: int, seed: int = 0, dtype: Any = ml_dtypes.bfloat16) -> Any:
    """The same in other types."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def matrix_map(
    buffer: str, dtype: str, rows: Any, columns: Any, box: tuple[int, int], swizzle: int = 128
) -> TensorMap:
    """Of a matrix whose rows are dense; `box` is (columns, rows)."""
    size = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "s32": 4}.get(dtype, 1)
    return TensorMap(buffer, dtype, (columns, rows), (mul(columns, size),), box, swizzle)


def run(
    program: Program,
    arrays: Mapping[str, Any],
    args: Sequence[Arg],
    *,
    sizes: Mapping[str, int] | None = None,
    block: int = 128,
    grid: int | tuple[int, int, int] = 1,
    cluster: tuple[int, int, int] = (1, 1, 1),
    smem: int = 0,
    order: Order | str = "late",
    stop: bool = True,
    **more: Any,
) -> Report:
    """Run the entry `run`."""
    shape = (grid, 1, 1) if isinstance(grid, int) else grid
    plan = LaunchPlan(
        family="test", arch="sm_90a", kind="cuda", entries=("run",), sizes=tuple(sizes or {}),
        steps=(Launch("run", tuple(args), grid=shape, block=(block, 1, 1), cluster=cluster, smem=smem),),
    )  # fmt: skip
    return run_plan(
        program, plan, sizes or {}, arrays, {"alpha": 1.0, "beta": 0.0},
        order=Order(order) if isinstance(order, str) else order, stop_at_first=stop, **more,
    )  # fmt: skip


def run_gemm(
    program: Program,
    m: int,
    n: int,
    k: int,
    *,
    bn: int = 64,
    stages: int = 3,
    consumers: int = 2,
    grid: int = 2,
    order: Order | str = "late",
    **more: Any,
) -> tuple[Report, Any, Any]:
    """The report, what came out, what should."""
    a, b, out = bf16(m, k), bf16(n, k, seed=1), np.full((m, n), np.nan, np.float32)
    bm = 64 * consumers
    stage = (bm + bn) * 64 * 2
    args = [
        Arg.tensor_map("map_a", matrix_map("a", "bf16", "m", "k", (64, bm))),
        Arg.tensor_map("map_b", matrix_map("b", "bf16", "n", "k", (64, bn))),
        Arg.ptr("out"), *(Arg.i64(x) for x in "mnk"),
    ]  # fmt: skip
    report = run(
        program, {"a": a, "b": b, "out": out}, args, sizes={"m": m, "n": n, "k": k}, grid=grid,
        block=128 + 128 * consumers, smem=stage * stages + 1024, order=order,
        regions=[Region("stages", 0, stage, stages)],
        roles={"producer": range(4), "consumer": range(4, 4 + 4 * consumers)}, **more,
    )  # fmt: skip
    return report, out, a.astype(np.float32) @ b.astype(np.float32).T


__all__ = ["GEMM", "WRAPPERS", "bf16", "gemm_source", "matrix_map", "mma", "run", "run_gemm", "wide"]
