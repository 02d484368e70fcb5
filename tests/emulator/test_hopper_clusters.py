"""Do CTAs of a cluster see each other's memory and barriers, multicast and ends as they should?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rooftile.plan import Arg, TensorMap
from support.hopper import WRAPPERS, run
from support.ptx_sources import nvrtc_ptx

from emulator import EmulatorError, FaultKind, Limits, Order, Program, Report

MORE = (
    WRAPPERS
    + r"""
DEV u32 map_to(const void* p, u32 rank) {
  u32 r; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(sh(p)), "r"(rank)); return r; }
DEV float load_at(u32 a) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory"); return v; }
DEV void store_at(u32 a, float v) { asm volatile("st.shared::cluster.f32 [%0], %1;"
               :: "r"(a), "f"(v) : "memory"); }
DEV void add_at(u32 a, u32 v) { asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;"
               :: "r"(a), "r"(v) : "memory"); }
DEV u32 rank_of(u32 a) { u32 r; asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(r) : "r"(a)); return r; }
DEV void cluster_sync() { cluster_arrive(); cluster_wait(); }
DEV u32 special(int which) {
  u32 r = 0;
  if (which == 0) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  if (which == 1) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  if (which == 2) asm("mov.u32 %0, %%clusterid.x;" : "=r"(r));
  if (which == 3) asm("mov.u32 %0, %%clusterid.y;" : "=r"(r));
  if (which == 4) asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(r));
  if (which == 5) asm("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(r));
  if (which == 6) asm("mov.u32 %0, %%nclusterid.x;" : "=r"(r));
  if (which == 7) asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(r));
  return r; }
"""
)


def body(
    text: str, *, cluster: tuple[int, int, int] = (2, 1, 1), grid: tuple[int, int, int] = (4, 1, 1),
    order: str = "late", block: int = 64, args: Any = (), arrays: Any = None, params: str = "",
) -> tuple[Report, Any]:  # fmt: skip
    """The report of a kernel `run(float* out)` with shared `s[256]`, `bar`, and its out, (CTAs, block)."""
    dims = ", ".join(map(str, cluster))
    source = MORE + (
        f'extern "C" __global__ void __cluster_dims__({dims}) __launch_bounds__({block}, 1)\n'
        f"run({params}float* out) {{\n"
        "__shared__ __align__(1024) float s[1024]; __shared__ u64 bar;\n"
        "const int t = threadIdx.x; const u32 rank = cluster_rank(), peer = rank ^ 1;\n"
        "const int cta = blockIdx.x + gridDim.x * blockIdx.y; out += cta * blockDim.x;\n" + text + "\n}\n"
    )
    ctas = grid[0] * grid[1] * grid[2]
    out = np.full((ctas, block), np.nan, np.float32)
    report = run(
        Program.from_ptx(nvrtc_ptx(13, "sm_90a", source)), {**(arrays or {}), "out": out},
        [*args, Arg.ptr("out")],
        block=block, grid=grid, cluster=cluster, order=order, limits=Limits(2_000_000, 30),
    )  # fmt: skip
    return report, out


def test_numbers_of_clusters() -> None:
    report, out = body("out[t] = special(t % 8);", cluster=(2, 2, 1), grid=(4, 4, 1))
    assert report.clean, report.faults[0].message
    for cta in range(16):
        x, y = cta % 4, cta // 4
        wanted = [x % 2 + y % 2 * 2, 4, x // 2, y // 2, x % 2, y % 2, 2, 2]
        np.testing.assert_array_equal(out[cta, :8], wanted)


EXCHANGE = """
s[t] = cta * 100 + t;
cluster_sync(); // written
out[t] = load_at(map_to(&s[t], peer));
cluster_sync(); // read"""
PUSH = """
store_at(map_to(&s[t], peer), cta * 100 + t);
cluster_sync(); // written
out[t] = s[t];"""
GENERIC = EXCHANGE.replace(
    "load_at(map_to(&s[t], peer))",
    '*[&]{ u64 r; asm("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(&s[t]), "r"(peer));'
    " return (volatile float*)r; }()",
)


def swapped() -> Any:
    """What each CTA of two gets from its peer."""
    return (np.arange(4) ^ 1)[:, None] * 100.0 + np.arange(64)


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("text", [EXCHANGE, PUSH, GENERIC], ids=["pull", "push", "generic"])
def test_memory_of_a_peer(text: str, order: str) -> None:
    report, out = body(text, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, swapped())


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize(
    ("text", "change", "kinds"),
    [
        (
            EXCHANGE,
            ("cluster_sync(); // written", "__syncthreads();"),
            {FaultKind.RACE, FaultKind.READ_UNWRITTEN},
        ),
        (
            EXCHANGE,
            ("cluster_sync(); // written", "cluster_arrive();"),
            {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.BARRIER_COUNT},
        ),
        (EXCHANGE, ("cluster_sync(); // read", ""), {FaultKind.PEER}),
        (EXCHANGE, ("load_at(map_to(&s[t], peer))", "load_at(map_to(&s[t], peer + 2))"), {FaultKind.PEER}),
        (
            EXCHANGE,
            (
                "load_at(map_to(&s[t], peer))",
                '[&]{ float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v)'
                ' : "r"(map_to(&s[t], peer))); return v; }()',
            ),
            {FaultKind.OUT_OF_BOUNDS},
        ),
        (
            PUSH,
            ("cluster_sync(); // written", "__syncthreads();"),
            {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.PEER},
        ),
        (
            PUSH,
            ("out[t] = s[t];", "if (rank == 0) cluster_wait(); out[t] = s[t];"),
            {FaultKind.BARRIER_COUNT, FaultKind.DEADLOCK},
        ),
        (
            PUSH,
            ("cluster_sync(); // written", "if (t < 32) cluster_arrive(); cluster_wait();"),
            {FaultKind.BARRIER_COUNT, FaultKind.DEADLOCK},
        ),
    ],
    ids=lambda x: " ".join(sorted(x)) if isinstance(x, set) else str(x)[:60],
)
def test_memory_of_a_peer_without_its_barriers(
    text: str, change: tuple[str, str], kinds: set[FaultKind], order: str
) -> None:
    assert text.count(change[0]) == 1
    report, _ = body(text.replace(*change), order=order)
    assert report.faults
    assert report.faults[0].kind in kinds, report.faults


def test_a_write_that_forgot_mapa_is_the_own_ctas() -> None:
    report, out = body(PUSH.replace("map_to(&s[t], peer)", "sh(&s[t])"))
    assert report.clean
    np.testing.assert_array_equal(out, np.arange(4)[:, None] * 100.0 + np.arange(64))


def test_relaxed_arrive_behind_a_fence() -> None:
    relaxed = 'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); cluster_wait();'
    fence = 'asm volatile("fence.acq_rel.cluster;" ::: "memory"); '
    for order in Order.KINDS:
        report, _ = body(EXCHANGE.replace("cluster_sync(); // written", relaxed), order=order)
        assert report.faults[0].kind in (FaultKind.RACE, FaultKind.READ_UNWRITTEN)
        report, out = body(EXCHANGE.replace("cluster_sync(); // written", fence + relaxed), order=order)
        assert report.clean, report.faults[0].message
        np.testing.assert_array_equal(out, swapped())


def test_atomics_of_a_cluster() -> None:
    text = """
    u32* n = (u32*)s; if (t == 0) n[0] = 0;
    cluster_sync();
    add_at(map_to(n, 0), 1);
    if (rank_of(map_to(n, 1)) != 1) __trap();
    cluster_sync();
    out[t] = n[0];"""
    for order in ("early", "ahead", "random"):
        report, out = body(text, order=order)
        assert report.clean, report.faults[0].message
        np.testing.assert_array_equal(out, np.array([128, 0, 128, 0])[:, None] * np.ones(64))


REMOTE = """
if (t == 0) { init(&bar, 64); fence_init(); }
cluster_sync(); // initialised
store_at(map_to(&s[t], peer), cta * 100 + t);
arrive_at(&bar, peer);
wait_cluster(&bar, 0);
out[t] = s[t];"""


@pytest.mark.parametrize("order", Order.KINDS)
def test_an_mbarrier_of_a_peer(order: str) -> None:
    report, out = body(REMOTE, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, swapped())
    for change, kinds in (
        (("wait_cluster(&bar, 0);", "wait(&bar, 0);"), {FaultKind.RACE}),
        (("cluster_sync(); // initialised", "__syncthreads();"), {FaultKind.BARRIER_COUNT, FaultKind.RACE}),
        (("arrive_at(&bar, peer);", "arrive(&bar);"), {FaultKind.RACE, FaultKind.READ_UNWRITTEN}),
        (("wait_cluster(&bar, 0);\nout[t] = s[t];", "out[t] = 0;"), {FaultKind.PEER}),
        (
            ("arrive_at(&bar, peer);", "arrive_at(&bar, 0);"),
            {FaultKind.BARRIER_COUNT, FaultKind.DEADLOCK, FaultKind.RACE},
        ),
    ):
        report, _ = body(REMOTE.replace(*change), order=order)
        assert report.faults, change
        assert report.faults[0].kind in kinds, (change, report.faults)


DRAIN = """
if (t == 0) { init(&bar, 2); fence_init(); }
cluster_sync(); // initialised
if (t < 2)
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;"
               " mbarrier.arrive.shared::cluster.b64 _, [r];}"
               :: "r"(sh(&bar)), "r"(t) : "memory");
out[t] = t;
if (t == 32) wait(&bar, 0); // told"""


@pytest.mark.parametrize("order", Order.KINDS)
def test_a_cta_may_end_when_it_has_seen_every_arrival(order: str) -> None:
    """Though they are of scope .cta, and hand on nothing else."""
    report, _ = body(DRAIN, order=order)
    assert report.clean, report.faults[0].message
    report, _ = body(DRAIN.replace("if (t == 32) wait(&bar, 0); // told", ""), order=order)
    assert report.faults[0].kind is FaultKind.PEER


MULTICAST = """
if (t == 0) { init(&bar, 1); fence_init(); }
cluster_sync(); // initialised
if (t == 0) {
  expect(&bar, 2 * 512);
  load2_multi((char*)s + rank * 512, &map, 0, rank * 4, &bar, 3);
}
wait(&bar, 0); // filled
out[t] = s[t] + s[t + 64] + s[t + 128] + s[t + 192];
cluster_sync(); // end"""


def multicast(text: str, order: str) -> tuple[Report, Any, Any]:
    a = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    tensor = TensorMap("a", "f32", (32, 8), (128,), (32, 4))
    report, out = body(
        text, order=order, grid=(2, 1, 1), params="const __grid_constant__ TensorMap map, ", arrays={"a": a},
        args=[Arg.tensor_map("map", tensor)],
    )  # fmt: skip
    return report, out, a


@pytest.mark.parametrize("order", Order.KINDS)
def test_multicast(order: str) -> None:
    report, out, a = multicast(MULTICAST, order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, np.tile(a.reshape(4, 64).sum(0), (2, 1)))
    for change, kinds in (
        (("&bar, 3)", "&bar, 5)"), {FaultKind.PEER}),
        (("&bar, 3)", "&bar, 7)"), {FaultKind.PEER}),
        (("&bar, 3)", "&bar, 1)"), {FaultKind.DEADLOCK}),
        (("2 * 512", "512"), {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.OUTSTANDING_WORK}),
        (
            ("wait(&bar, 0); // filled", ""),
            {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.OUTSTANDING_WORK},
        ),
        (("cluster_sync(); // initialised", "__syncthreads();"), {FaultKind.RACE, FaultKind.BARRIER_COUNT}),
        (("(char*)s + rank * 512", "s"), {FaultKind.RACE}),
    ):
        assert MULTICAST.count(change[0]) == 1
        report, _, _ = multicast(MULTICAST.replace(*change), order)
        assert report.faults, change
        assert report.faults[0].kind in kinds, (change, report.faults)


COPY = """
if (t == 0) { init(&bar, 1); fence_init(); }
cluster_sync();
s[t] = cta * 100 + t;
fence_async();
__syncthreads();
if (t == 0) {
  expect(&bar, 256);
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
               :: "r"(map_to(s + 512, peer)), "r"(sh(s)), "r"(map_to(&bar, peer)) : "memory");
}
wait(&bar, 0);
out[t] = s[512 + t];
cluster_sync();"""


@pytest.mark.parametrize("order", Order.KINDS)
def test_a_copy_to_a_peer(order: str) -> None:
    report, out = body(COPY, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, swapped())
    report, _ = body(COPY.replace("fence_async();", ""), order=order)
    assert report.faults[0].kind is FaultKind.PROXY


def test_launches_that_cannot_be() -> None:
    source = (
        MORE
        + 'extern "C" __global__ void __cluster_dims__(2, 1, 1) run(float* out) { out[threadIdx.x] = 0; }'
    )
    program = Program.from_ptx(nvrtc_ptx(13, "sm_90a", source))
    for cluster in ((1, 1, 1), (4, 1, 1)):
        with pytest.raises(EmulatorError, match=r"the kernel was built for \(2, 1, 1\) only"):
            run(
                program,
                {"out": np.zeros(32, np.float32)},
                [Arg.ptr("out")],
                grid=4,
                block=32,
                cluster=cluster,
            )
