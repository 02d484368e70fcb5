"""Are kernels that are right but look suspicious acquitted, and those that lack one thing accused, in every
order?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.emulator import Cuda, floats, launch

from emulator import FaultKind, Limits, Order, Program, Report

ORDERS = ("early", "late", "ahead", "behind", "random")
RACE, UNWRITTEN = FaultKind.RACE, FaultKind.READ_UNWRITTEN
HELPERS = """
__device__ inline unsigned load_acquire(const unsigned* p) {
    unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v;
}
__device__ inline void store_release(unsigned* p, unsigned v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
__device__ inline unsigned add_acq_rel(unsigned* p, unsigned v) {
    unsigned o;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(o) : "l"(p), "r"(v) : "memory");
    return o;
}
__device__ inline void any_barrier(int id, int n) {
    asm volatile("barrier.sync %0, %1;" :: "r"(id), "r"(n) : "memory");
}
__device__ inline void wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
"""


@dataclass(frozen=True)
class Pair:
    """A kernel `run(const float* a, float* out[, unsigned* work])` that is right as it stands. `wrong`: what
    to write in place of what, and what it is then accused of (any of these)."""

    name: str
    text: str
    wrong: Mapping[tuple[str, str], tuple[FaultKind, ...]]
    wanted: Any
    """out, as a function of a."""
    a: int = 256
    block: int = 64
    grid: int = 1
    smem: int = 4096
    workspace: int = 0

    def source(self, entry: str, change: tuple[str, str] | None) -> str:
        """The kernel, maybe with something wrong, under a name of its own."""
        body = self.text
        if change is not None:
            assert body.count(change[0]) == 1, change
            body = body.replace(*change)
        work = ", unsigned* work" if self.workspace else ""
        return f'extern "C" __global__ void {entry}(const float* a, float* out{work}) {{\n{body}\n}}\n'

    def run(self, program: Program, entry: str, order: Order) -> tuple[Report, Any, Any]:
        """The report, what came out and what should."""
        a = np.random.default_rng(0).integers(0, 9, self.a).astype(np.float32)
        out = floats(*np.shape(self.wanted(a)))
        report = launch(
            program, {"a": a, "out": out}, block=self.block, grid=self.grid, smem=self.smem, order=order,
            workspace=self.workspace, init="zero" if self.workspace else "none", entry=entry,
            limits=Limits(instructions=400_000, seconds=20),
        )  # fmt: skip
        return report, out, self.wanted(a)


LOST = (RACE, UNWRITTEN)
PAIRS = [
    Pair(
        "two buffers and one barrier a turn",
        """
    SHARED(float, s);
    int t = threadIdx.x; float sum = 0;
    for (int i = 0; i < 4; ++i) {
        float* mine = s + (i % 2) * 64;
        mine[t] = a[i * 64 + t];
        __syncthreads();
        sum += mine[63 - t];
    }
    out[t] = sum;""",
        {("(i % 2)", "(i * 0)"): (RACE,), ("__syncthreads();", ""): LOST,
         ("__syncthreads();", "__syncwarp();"): LOST},
        lambda a: a.reshape(4, 64).sum(0)[::-1],
    ),
    Pair(
        "memory of one warp",
        """
    SHARED(float, s);
    int t = threadIdx.x, lane = t % 32; float sum = 0; float* mine = s + (t / 32) * 32;
    for (int i = 0; i < 4; ++i) {
        mine[lane] = a[i * 64 + t];
        __syncwarp(); // written
        sum += mine[31 - lane];
        __syncwarp(); // read
    }
    out[t] = sum;""",
        {("__syncwarp(); // written", ""): LOST, ("__syncwarp(); // read", ""): (RACE,),
         ("(t / 32) * 32", "(t / 64) * 32"): (RACE,)},
        lambda a: a.reshape(4, 2, 32).sum(0)[:, ::-1].reshape(64),
    ),
    Pair(
        "a ring of named barriers",
        """
    SHARED(float, s);
    const int n = 8, stages = 2;
    int t = threadIdx.x % 64; float sum = 0;
    if (threadIdx.x < 64) {
        for (int i = 0; i < n; ++i) {
            int stage = i % stages;
            if (i >= stages) barrier(3 + stage, 128);
            s[stage * 64 + t] = a[i * 64 + t];
            arrive(1 + stage, 128);
        }
    } else {
        for (int i = 0; i < n; ++i) {
            int stage = i % stages;
            barrier(1 + stage, 128); // full
            sum += s[stage * 64 + 63 - t];
            if (i + stages < n) arrive(3 + stage, 128);
        }
        out[t] = sum;
    }""",
        {("if (i >= stages) barrier(3 + stage, 128);", ""): (RACE, FaultKind.BARRIER_COUNT),
         ("barrier(1 + stage, 128); // full", ""): (*LOST, FaultKind.BARRIER_COUNT),
         ("arrive(1 + stage, 128);", "if (i != 3) arrive(1 + stage, 128);"): (FaultKind.DEADLOCK,),
         ("if (i + stages < n) arrive(3 + stage, 128);", ""): (FaultKind.DEADLOCK,),
         ("arrive(1 + stage, 128);", "arrive(1, 128);"): (
             RACE, FaultKind.DEADLOCK, FaultKind.BARRIER_COUNT, UNWRITTEN)},
        lambda a: a.reshape(8, 64).sum(0)[::-1],
        a=512, block=128,
    ),
    Pair(
        "one barrier used again and again",
        """
    SHARED(float, s);
    int t = threadIdx.x; float sum = 0;
    for (int i = 0; i < 4; ++i) {
        if (t < 32) s[t] = a[i * 64 + t];
        barrier(5, 96);
        sum += s[31 - t % 32];
        barrier(5, 96); // read
    }
    out[t] = sum;""",
        {("barrier(5, 96); // read", ""): (RACE,),
         ("barrier(5, 96); // read", "arrive(5, 96);"): (RACE, FaultKind.BARRIER_COUNT),
         ("if (t < 32) s", "if (t < 32 && i == 9) s"): (UNWRITTEN,)},
        lambda a: np.tile(a.reshape(4, 64)[:, :32].sum(0)[::-1], 3),
        block=96,
    ),
    Pair(
        "the last CTA adds up, by an atomic that acquires and releases",
        """
    __shared__ unsigned order;
    float* parts = (float*)(work + 4);
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    parts[i] = a[i];
    __syncthreads(); // all have written
    if (t == 0) order = add_acq_rel(work, 1);
    __syncthreads(); // the count is known
    if (order != gridDim.x - 1) return;
    float sum = 0;
    for (int c = 0; c < gridDim.x; ++c) sum += parts[c * 64 + 63 - t];
    out[t] = sum;
    if (t == 0) *work = 0;""",
        {("__syncthreads(); // all have written", ""): (RACE,),
         ("add_acq_rel(work, 1)", "atomicAdd(work, 1)"): (RACE,),
         ("__syncthreads(); // the count is known", ""): LOST},
        lambda a: a.reshape(4, 64).sum(0)[::-1],
        grid=4, workspace=16 + 1024,
    ),
    Pair(
        "a fence must reach the other CTAs",
        """
    __shared__ unsigned order;
    float* parts = (float*)(work + 4);
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    parts[i] = a[i];
    __syncthreads();
    if (t == 0) { __threadfence(); /* before */ order = atomicAdd(work, 1); __threadfence(); /* behind */ }
    __syncthreads();
    if (order != gridDim.x - 1) return;
    float sum = 0;
    for (int c = 0; c < gridDim.x; ++c) sum += parts[c * 64 + 63 - t];
    out[t] = sum;""",
        {("__threadfence(); /* before */", "__threadfence_block();"): (RACE,),
         ("__threadfence(); /* behind */", "__threadfence_block();"): (RACE,),
         ("__threadfence(); /* before */", ""): (RACE,), ("__threadfence(); /* behind */", ""): (RACE,)},
        lambda a: a.reshape(4, 64).sum(0)[::-1],
        grid=4, workspace=16 + 1024,
    ),
    Pair(
        "CTAs take turns by a flag",
        """
    int t = threadIdx.x; volatile float* v = 0; (void)v;
    float* sums = (float*)(work + 4);
    if (t == 0) while (load_acquire(work) != blockIdx.x) {}
    __syncthreads(); // my turn
    sums[t] = (blockIdx.x ? sums[t] : 0.0f) + a[blockIdx.x * 64 + 63 - t];
    if (blockIdx.x == gridDim.x - 1) out[t] = sums[t];
    __syncthreads(); // done
    if (t == 0) store_release(work, blockIdx.x + 1);""",
        {("__syncthreads(); // my turn", ""): (*LOST, FaultKind.NOT_WRITTEN),
         ("__syncthreads(); // done", ""): (RACE,),
         ("store_release(work, blockIdx.x + 1)", "*(volatile unsigned*)work = blockIdx.x + 1"): (RACE,),
         ("load_acquire(work)", "*(volatile unsigned*)work"): (RACE,)},
        lambda a: a.reshape(4, 64).sum(0)[::-1],
        grid=4, workspace=16 + 256,
    ),
    Pair(
        "lanes of one warp release what they wrote only together",
        """
    float* parts = (float*)(work + 4);
    int t = threadIdx.x;
    parts[blockIdx.x * 32 + t] = a[blockIdx.x * 32 + t];
    __syncwarp(); // written
    unsigned order = 0;
    if (t == 0) { __threadfence(); order = atomicAdd(work, 1); __threadfence(); }
    order = __shfl_sync(-1u, order, 0);
    __syncwarp();
    if (order == gridDim.x - 1) {
        float sum = 0;
        for (int c = 0; c < gridDim.x; ++c) sum += parts[c * 32 + 31 - t];
        out[t] = sum;
    }""",
        {("__syncwarp(); // written", ""): (RACE,)},
        lambda a: a.reshape(8, 32).sum(0)[::-1],
        block=32, grid=8, workspace=16 + 1024,
    ),
    Pair(
        "more CTAs than are resident at once",
        """
    __shared__ unsigned order;
    float* parts = (float*)(work + 4);
    int t = threadIdx.x, i = blockIdx.x * 32 + t;
    if (t >= 32) return; // six blocks of 32 warps are resident, whatever those do
    parts[i] = a[t] + blockIdx.x;
    __syncwarp();
    if (t == 0) { __threadfence(); order = atomicAdd(work, 1); __threadfence(); }
    __syncwarp();
    if (order != gridDim.x - 1) return;
    float sum = 0;
    for (int c = 0; c < gridDim.x; ++c) sum += parts[c * 32 + 31 - t];
    out[t] = sum;""",
        {("{ __threadfence(); order", "{ order"): (RACE,), ("parts[i] =", "parts[i % 192] ="): (RACE,)},
        lambda a: 8 * a[31::-1] + 28,
        a=32, block=1024, grid=8, workspace=16 + 1024,
    ),
    Pair(
        "a barrier for each pair of warps",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    s[t] = a[t];
    barrier(1 + t / 64, 64);
    out[t] = s[t ^ 32];
    barrier(3, 128);
    s[t] = a[t];
    barrier(1, 128);
    out[t] = s[t ^ 32];""",
        # in any order: the two pairs might come in turns, and then warps of both make up a round
        {("barrier(1 + t / 64, 64);", "barrier(1, 64);"): (FaultKind.BARRIER_COUNT, *LOST)},
        lambda a: a.reshape(2, 2, 32)[:, ::-1].reshape(128),
        a=128, block=128,
    ),
    Pair(
        "some warps first, then all",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    s[t] = a[t];
    if (t < 64) barrier(2, 64);
    if (t < 32) barrier(3, 32);
    barrier(1, 128);
    out[t] = s[127 - t];""",
        {("barrier(2, 64);", "barrier(1, 64);"): (FaultKind.BARRIER_COUNT,),
         ("barrier(3, 32);", "barrier(1, 32);"): (FaultKind.BARRIER_COUNT,)},
        lambda a: a[::-1],
        a=128, block=128,
    ),
    Pair(
        "a last warp that is not full",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    copy<4>(s + t, a + t); commit(); wait<0>();
    barrier(1, 64);
    float x = s[47 - t];
    __syncthreads();
    s[t] = x + __shfl_xor_sync(t < 32 ? -1u : 0xffffu, x, 1);
    __syncthreads(); // second
    out[t] = s[t ^ 1];""",
        {("barrier(1, 64);", ""): LOST, ("barrier(1, 64);", "barrier(1, 32);"): LOST,
         ("__syncthreads(); // second", ""): (RACE,),
         ("t < 32 ? -1u : 0xffffu", "t < 32 ? -1u : 0xfffeu"): (FaultKind.DIVERGENCE,)},
        lambda a: (a[47::-1].reshape(24, 2).sum(1)).repeat(2),
        a=48, block=48,
    ),
    Pair(
        "whole warps that leave early",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    if (t >= 64) return;
    s[t] = a[t];
    __syncthreads();
    out[t] = s[63 - t];""",
        {("__syncthreads();", "barrier(0, 128);"): (FaultKind.DEADLOCK,),
         ("__syncthreads();", "barrier(0, 32);"): LOST},
        lambda a: a[63::-1],
        a=64, block=128,
    ),
    Pair(
        "empty groups at the end of a pipeline",
        """
    SHARED(float, s);
    const int n = 5, stages = 3;
    int t = threadIdx.x; float sum = 0;
    for (int i = 0; i < stages - 1; ++i) { copy<4>(s + i * 64 + t, a + i * 64 + t); commit(); }
    for (int i = 0; i < n; ++i) {
        wait<1>();
        __syncthreads();
        int next = i + stages - 1;
        if (next < n) copy<4>(s + next % stages * 64 + t, a + next * 64 + t);
        commit(); // also where there is nothing to copy
        sum += s[i % stages * 64 + 63 - t];
    }
    out[t] = sum;
    wait_all();""",
        {("commit(); // also where there is nothing to copy", "if (next < n) commit();"): (RACE,),
         ("wait<1>();", "wait<2>();"): (RACE,), ("__syncthreads();", ""): LOST,
         ("int next = i + stages - 1;", "int next = i + stages;"): (RACE, UNWRITTEN)},
        lambda a: a.reshape(5, 64).sum(0)[::-1],
        a=320,
    ),
    Pair(
        "copies that one wait covers without a group",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    copy<4>(s + t, a + t);
    wait_all();
    __syncthreads();
    out[t] = s[63 - t];""",
        {("wait_all();", "wait<0>();"): (RACE,), ("wait_all();", ""): (RACE,),
         ("s + t,", "s + t / 2,"): (RACE, UNWRITTEN)},
        lambda a: a[63::-1],
        a=64,
    ),
    Pair(
        "a copy onto bytes that another has written",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    copy<4>(s + t, a + t); commit();
    wait<0>(); // the first
    copy<4>(s + t, a + 64 + t); commit(); wait<0>();
    __syncthreads();
    out[t] = s[63 - t];""",
        {("wait<0>(); // the first", ""): (RACE,), ("wait<0>(); // the first", "wait<1>();"): (RACE,),
         ("copy<4>(s + t, a + 64 + t);", "copy<4>(s + (t ^ 1), a + 64 + (t ^ 1));"): (RACE,)},
        lambda a: a[127:63:-1],
        a=128,
    ),
    Pair(
        "many read and one of them writes",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    if (t == 0) s[0] = a[0];
    __syncwarp();
    float x = s[0] + a[t];
    __syncwarp(); // read
    if (t == 5) s[0] = a[5];
    __syncwarp();
    out[t] = x + s[0];""",
        {("__syncwarp(); // read", ""): (RACE,)},
        lambda a: a + a[0] + a[5],
        a=32, block=32,
    ),
    Pair(
        "a warp that parts comes to a barrier at two places",
        """
    SHARED(float, s);
    int t = threadIdx.x;
    s[t] = a[t];
    if (t % 2) any_barrier(1, 64); else any_barrier(1 + 0 * t, 64);
    out[t] = s[63 - t];""",
        {("else any_barrier(1 + 0 * t, 64);", ""):
         (FaultKind.DEADLOCK, *LOST)},
        lambda a: a[63::-1],
        a=64,
    ),
    Pair(
        "a counter in shared memory, and volatile stores",
        """
    __shared__ unsigned n;
    int t = threadIdx.x;
    if (t == 0) n = 0;
    __syncthreads(); // zero
    atomicAdd(&n, 1 + (t == 5));
    __syncthreads(); // counted
    ((volatile float*)out)[t] = a[t] + n;""",
        {("__syncthreads(); // zero", ""): LOST, ("__syncthreads(); // counted", ""): (RACE,),
         ("((volatile float*)out)[t]", "((volatile float*)out)[t / 2]"): (FaultKind.NOT_WRITTEN,),
         ("if (t == 0) n = 0;", ""): (UNWRITTEN,)},
        lambda a: a + 65,
        a=64,
    ),
]  # fmt: skip
CASES = [(pair, change) for pair in PAIRS for change in (None, *pair.wrong)]


@pytest.fixture(scope="module")
def program(cuda: Cuda) -> Program:
    """All of them, compiled together."""
    entries = tuple(f"kernel_{n}" for n in range(len(CASES)))
    text = HELPERS + "".join(p.source(e, change) for e, (p, change) in zip(entries, CASES, strict=True))
    built: Program = cuda(text, entries=entries)
    return built


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0].name}: {CASES[n][1]}"[:90])
def test_right_and_wrong(program: Program, number: int) -> None:
    pair, change = CASES[number]
    for order in (*map(Order, ORDERS), Order("random", 1), Order("random", 2)):
        report, out, wanted = pair.run(program, f"kernel_{number}", order)
        if change is None:
            assert report.clean, (order, report.faults)
            assert (out == wanted).all(), order
        else:
            assert [f.kind in pair.wrong[change] for f in report.faults] == [True], (order, report.faults)
            assert "test_" in report.faults[0].message or report.faults[0].kind is FaultKind.NOT_WRITTEN
