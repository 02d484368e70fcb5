"""Do mbarriers count, wait and complete as they should; do registers of a pool block; is misuse accused?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rooftile.plan import Arg
from support.hopper import WRAPPERS, run
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Limits, Order, Program, Region, Report
from emulator.machine.register_pool import at_entry

MORE = (
    WRAPPERS
    + r"""
DEV u64 arrive_state(u64* b) {
  u64 s; asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(s)
               : "r"(sh(b)) : "memory"); return s; }
DEV void arrive_many(u64* b, u32 n) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(sh(b)), "r"(n) : "memory"); }
DEV u64 arrive_no_complete(u64* b, u32 n) {
  u64 s; asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], %2;" : "=l"(s)
               : "r"(sh(b)), "r"(n) : "memory");
  return s; }
DEV u32 pending(u64 s) { u32 n; asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(s)); return n; }
DEV void drop(u64* b) { asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];"
               :: "r"(sh(b)) : "memory"); }
DEV void expect_only(u64* b, u32 n) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(sh(b)), "r"(n) : "memory"); }
DEV void complete(u64* b, u32 n) {
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
               :: "r"(sh(b)), "r"(n) : "memory"); }
DEV bool test_state(u64* b, u64 s) {
  u32 p; asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                      : "=r"(p) : "r"(sh(b)), "l"(s) : "memory"); return p; }
DEV bool test_parity(u64* b, u32 parity) {
  u32 p;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                      : "=r"(p) : "r"(sh(b)), "r"(parity) : "memory"); return p; }
DEV bool test_relaxed(u64* b, u32 parity) {
  u32 p;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.relaxed.cta.shared::cta.b64 p, [%1], %2;"
               " selp.u32 %0, 1, 0, p;}" : "=r"(p) : "r"(sh(b)), "r"(parity) : "memory"); return p; }
DEV void copies_arrive(u64* b) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
               :: "r"(sh(b)) : "memory"); }
DEV void copies_arrive_more(u64* b) { asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];"
               :: "r"(sh(b)) : "memory"); }
DEV void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(sh(to)), "l"(from) : "memory"); }
"""
)


def body(
    text: str, *, block: int = 128, order: str = "late", out: int = 128, regions: Any = ()
) -> tuple[Report, Any]:
    """The report of a kernel `run(const float* a, float* out)` with shared `s[256]`, `bar` and `bar2`."""
    source = MORE + (
        f'extern "C" __global__ void __launch_bounds__({block}, 1) run(const float* a, float* out) {{\n'
        "__shared__ __align__(128) float s[256]; __shared__ u64 bar, bar2; const int t = threadIdx.x;\n"
        + text
        + "\n}\n"
    )
    a, result = np.arange(256, dtype=np.float32), np.full(out, np.nan, np.float32)
    report = run(
        Program.from_ptx(nvrtc_ptx(13, "sm_90a", source)), {"a": a, "out": result},
        [Arg.ptr("a"), Arg.ptr("out")], block=block, order=order, limits=Limits(2_000_000, 30),
        regions=regions,
    )  # fmt: skip
    return report, result


INIT = "if (t == 0) { init(&bar, COUNT); init(&bar2, 1); fence_init(); }\n__syncthreads();\n"
RELAXED_ARRIVE = (
    'asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];" :: "r"(sh(&bar)) : "memory");'
)
FENCE = 'asm volatile("fence.acq_rel.cta;" ::: "memory");'
RELAXED_WAIT = "while (!test_relaxed(&bar, 0)) ;"
EXCHANGE = INIT.replace("COUNT", "128") + "s[t] = a[t]; ARRIVE wait(&bar, 0); out[t] = s[127 - t];"
RIGHT = {
    "arrive and parity": EXCHANGE.replace("ARRIVE", "arrive(&bar);"),
    "state": EXCHANGE.replace(
        "ARRIVE", "u64 x = arrive_state(&bar); while (!test_state(&bar, x)) __nanosleep(20);"
    ),
    "test_wait": EXCHANGE.replace("ARRIVE", "arrive(&bar); while (!test_parity(&bar, 0)) ;"),
    "relaxed behind a fence": EXCHANGE.replace("ARRIVE", FENCE + RELAXED_ARRIVE),
    "waits relaxed": EXCHANGE.replace("ARRIVE wait(&bar, 0);", "arrive(&bar);" + RELAXED_WAIT + FENCE),
    "relaxed both ways": EXCHANGE.replace(
        "ARRIVE wait(&bar, 0);", FENCE + RELAXED_ARRIVE + RELAXED_WAIT + FENCE
    ),
    "counts": INIT.replace("COUNT", "4")
    + "s[t] = a[t]; __syncwarp(); if (t % 32 == 0) arrive(&bar); wait(&bar, 0); out[t] = s[127 - t];",
    "many": INIT.replace("COUNT", "12")
    + "s[t] = a[t]; __syncwarp(); if (t % 32 == 0) arrive_many(&bar, 3); wait(&bar, 0); out[t] = s[127 - t];",
    "bytes": EXCHANGE.replace(
        "ARRIVE", "if (t == 0) complete(&bar, 64); arrive(&bar); if (t == 5) { }"
    ).replace("s[t] = a[t];", "if (t == 127) expect_only(&bar, 64); s[t] = a[t];"),
    "drop": INIT.replace("COUNT", "128")
    + "s[t] = a[t]; if (t < 64) drop(&bar); else arrive(&bar); wait(&bar, 0);\n"
    'if (t < 64) { out[t] = s[127 - t]; asm volatile("bar.arrive 1, 128;" ::: "memory"); return; }\n'
    'out[t] = s[127 - t]; asm volatile("bar.sync 1, 128;" ::: "memory"); arrive(&bar); wait(&bar, 1);',
    "no completion": INIT.replace("COUNT", "129")
    + "s[t] = a[t]; if (t == 0) { u64 x = arrive_no_complete(&bar, 1); if (pending(x) > 129) __trap(); }\n"
    "arrive(&bar); wait(&bar, 0); out[t] = s[127 - t];",
    "phases": INIT.replace("COUNT", "128") + "float sum = 0;\n"
    "for (int i = 0; i < 5; ++i) { s[t + i % 2 * 128] = a[t]; arrive(&bar); wait(&bar, i & 1);\n"
    " sum += s[127 - t + i % 2 * 128]; }\nout[t] = sum / 5;",
    "copies": INIT.replace("COUNT", "128")
    + "copy4(&s[t], &a[t]); copies_arrive(&bar); wait(&bar, 0); out[t] = s[127 - t];",
    "copies counted in": INIT.replace("COUNT", "128")
    + "copy4(&s[t], &a[t]); copies_arrive_more(&bar); arrive(&bar); wait(&bar, 0); out[t] = s[127 - t];",
    "two uses of the bytes": INIT.replace("COUNT", "128")
    + "arrive(&bar); wait(&bar, 0); __syncthreads(); \n"
    "if (t == 0) { inval(&bar); bar = 5; inval(&bar2); init(&bar2, 128); }\n"
    "__syncthreads(); s[t] = a[t] + (bar == 5) - 1; arrive(&bar2); wait(&bar2, 0); out[t] = s[127 - t];",
}


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, order: str) -> None:
    report, out = body(RIGHT[name], order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, np.arange(128)[::-1])


WRONG = {
    "no init": (
        EXCHANGE.replace(INIT.replace("COUNT", "128"), "").replace("ARRIVE", "arrive(&bar);"),
        {FaultKind.BARRIER_COUNT},
    ),
    "count 0": (
        EXCHANGE.replace("128);", "0);", 1).replace("ARRIVE", "arrive(&bar);"),
        {FaultKind.BARRIER_COUNT},
    ),
    "not ordered behind init": (
        RIGHT["arrive and parity"].replace("__syncthreads();", ""),
        {FaultKind.RACE, FaultKind.BARRIER_COUNT},
    ),
    "arrives for itself alone": (RIGHT["counts"].replace("__syncwarp();", ""), {FaultKind.RACE}),
    "relaxed": (
        RIGHT["arrive and parity"].replace("arrive(&bar);", RELAXED_ARRIVE),
        {FaultKind.RACE},
    ),
    "relaxed behind a fence too late": (
        RIGHT["arrive and parity"].replace("arrive(&bar);", RELAXED_ARRIVE + FENCE),
        {FaultKind.RACE},
    ),
    "waits relaxed": (RIGHT["waits relaxed"].replace(FENCE, ""), {FaultKind.RACE}),
    "one too few": (
        RIGHT["arrive and parity"].replace("arrive(&bar);", "if (t != 77) arrive(&bar);"),
        {FaultKind.DEADLOCK},
    ),
    "one too many": (
        RIGHT["counts"].replace("init(&bar, 4)", "init(&bar, 3)"),
        {FaultKind.RACE, FaultKind.READ_UNWRITTEN},
    ),
    "bytes that never come": (
        RIGHT["bytes"].replace("complete(&bar, 64)", "complete(&bar, 60)"),
        {FaultKind.DEADLOCK},
    ),
    "the other parity": (
        RIGHT["arrive and parity"].replace("wait(&bar, 0)", "wait(&bar, 1)"),
        {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.DEADLOCK},
    ),
    "phase not turned": (
        RIGHT["phases"].replace("wait(&bar, i & 1)", "wait(&bar, 0)"),
        {FaultKind.RACE, FaultKind.READ_UNWRITTEN, FaultKind.DEADLOCK, FaultKind.BARRIER_COUNT},
    ),
    "touched": (
        RIGHT["arrive and parity"].replace(
            "arrive(&bar);", "if (t == 3) *(volatile u32*)&bar = 9; arrive(&bar);"
        ),
        {FaultKind.RACE},
    ),
    "again without inval": (
        RIGHT["two uses of the bytes"].replace("inval(&bar2);", ""),
        {FaultKind.BARRIER_COUNT},
    ),
    "a state that is old": (
        INIT.replace("COUNT", "128")
        + "u64 x = arrive_state(&bar); wait(&bar, 0); arrive(&bar); wait(&bar, 1);\n"
        "arrive(&bar); wait(&bar, 0); out[t] = test_state(&bar, x);",
        {FaultKind.BARRIER_COUNT},
    ),
    "completes all the same": (
        RIGHT["no completion"].replace("129)", "1)", 1).replace("arrive(&bar);", ""),
        {FaultKind.BARRIER_COUNT},
    ),
    "copies not awaited": (
        RIGHT["copies"].replace("wait(&bar, 0);", "__syncthreads();"),
        {FaultKind.RACE, FaultKind.READ_UNWRITTEN},
    ),
    "a single try": (
        RIGHT["arrive and parity"].replace("wait(&bar, 0);", "test_parity(&bar, 0);"),
        {FaultKind.RACE, FaultKind.READ_UNWRITTEN},
    ),
    "misaligned": (
        RIGHT["arrive and parity"].replace("arrive(&bar);", "arrive((u64*)((char*)&bar + 4));"),
        {FaultKind.MISALIGNED},
    ),
}


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str, order: str) -> None:
    text, kinds = WRONG[name]
    if name == "a single try" and order not in ("ahead", "behind"):
        pytest.skip("warps that run together are in time by luck")
    assert text not in RIGHT.values()
    report, _ = body(text, order=order)
    assert report.faults
    assert report.faults[0].kind in kinds, report.faults
    assert "t.cu:" in report.faults[0].message


def test_a_deadlock_tells_everything() -> None:
    """The barrier by its area, its phase, what is missing and who waits."""
    text = RIGHT["phases"].replace("arrive(&bar);", "if (i < 3 || t >= 32) arrive(&bar);")
    text = text.replace("__shared__", "")
    report, _ = body(text)
    message = report.faults[0].message
    assert report.faults[0].kind is FaultKind.DEADLOCK
    for part in (
        "in phase 3",
        "32 of 128 arrivals pending",
        "0 bytes missing",
        "warp 0, 1, 2, 3 at t.cu:",
        "CTA (0, 0, 0)",
    ):
        assert part in message, message


def test_the_area_of_a_barrier_is_named() -> None:
    source = (
        MORE
        + r"""
extern "C" __global__ void run(float* out) {
  extern __shared__ u64 bars[];
  if (threadIdx.x == 0) for (int i = 0; i < 4; ++i) init(&bars[i], 33);
  __syncthreads();
  arrive(&bars[2]);
  wait(&bars[2], 0);
  out[threadIdx.x] = 1;
}"""
    )
    report = run(
        Program.from_ptx(nvrtc_ptx(13, "sm_90a", source)), {"out": np.zeros(32, np.float32)},
        [Arg.ptr("out")],
        block=32, smem=64, regions=[Region("full", 0, 8, 4)],
    )  # fmt: skip
    assert "`full` stage 2" in report.faults[0].message
    assert "1 of 33 arrivals pending (32 of warp 0 came)" in report.faults[0].message


def test_a_wait_is_cheap() -> None:
    """Three warps wait for one that works for long."""
    text = INIT.replace("COUNT", "1") + (
        "if (t == 0)"
        " { float x = a[1];\n"
        "for (int i = 0; i < 1000; ++i) x = x * 0.5f + a[i & 127]; s[0] = x; arrive(&bar); }\n"
        "wait(&bar, 0); out[t] = s[0];"
    )
    for order in ("early", "ahead", "behind"):
        report, _ = body(text, order=order)
        assert report.clean, report.faults[0].message
        assert report.counters["all"]["waits"]["mbarrier_try"] <= 24


# -- setmaxnreg ------------------------------------------------------------------------------------------

ROLES = r"""
if (t < 128) { give<24>(); }
else { take<TAKE>(); }
out[t] = t;"""


def roles(give: int, take: int, block: int = 384, order: str = "late", first: str = "t < 128") -> Report:
    """ptxas refuses some of these: they are put into the PTX."""
    text = MORE + (
        f'extern "C" __global__ void __launch_bounds__({block}, 1) run(float* out) {{\n'
        "const int t = threadIdx.x;\n"
        + ROLES.replace("TAKE", "240" if block == 384 else "152").replace(
            "t < 128) { give", f"{first}) {{ give"
        )
        + "}"
    )
    ptx = nvrtc_ptx(13, "sm_90a", text)
    ptx = ptx.replace("dec.sync.aligned.u32 24", f"dec.sync.aligned.u32 {give}")
    ptx = ptx.replace("inc.sync.aligned.u32 240", f"inc.sync.aligned.u32 {take}")
    out = np.zeros(block, np.float32)
    return run(Program.from_ptx(ptx), {"out": out}, [Arg.ptr("out")], block=block, order=order)


@pytest.mark.parametrize("order", Order.KINDS)
def test_registers_of_a_pool(order: str) -> None:
    assert roles(24, 240, order=order).clean
    assert roles(40, 232, order=order).clean
    report = roles(40, 240, order=order)
    assert report.faults[0].kind is FaultKind.DEADLOCK
    assert "for 240 registers a thread" in report.faults[0].message
    for give, take in ((176, 168), (40, 160)):
        report = roles(give, take, order=order)
        assert report.faults[0].kind is FaultKind.REGISTERS
        assert "own 168 registers" in report.faults[0].message
    assert roles(24, 152, block=512, order=order).clean


@pytest.mark.parametrize("order", Order.KINDS)
def test_a_warp_that_gives_nothing(order: str) -> None:
    report = roles(40, 208, order=order, first="t < 128 && t >= 32")
    assert report.faults[0].kind is FaultKind.REGISTERS, report.faults
    assert "warp 0" in report.faults[0].message
    report = roles(40, 232, order=order, first="t < 128 && t >= 32")
    assert report.faults[0].kind is FaultKind.DEADLOCK
    assert "warp 0 of its warpgroup" in report.faults[0].message


def test_registers_at_entry() -> None:
    found = [at_entry(threads) for threads in (128, 256, 384, 448, 512, 640, 768, 1024)]
    assert found == [256, 256, 168, 128, 128, 96, 80, 64]


WAVES = r"""
__device__ u32 word;
DEV void count() {
  u32 n; asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(&word) : "memory"); }
extern "C" __global__ void __launch_bounds__(1024, 1) run(const float* a, float* out) {
  __shared__ __align__(128) float s[4]; __shared__ u64 bar;
  if (threadIdx.x > 0) return;
  init(&bar, 1); fence_init();
  expect(&bar, 16); bulk_load(s, a, 16, &bar);
  if (blockIdx.x < 6) wait(&bar, 0);
  count();
  count();
  EARLY out[blockIdx.x] = s[0]; LATE
}
"""


def waves(early: str, late: str) -> Report:
    """Of seven CTAs, of which six are resident together. Those wait for their copies and say so to all; the
    seventh hears of it."""
    source = MORE + WAVES.replace("EARLY", early).replace("LATE", late)
    given = {"a": np.ones(4, np.float32), "out": np.full(7, np.nan, np.float32)}
    return run(
        Program.from_ptx(nvrtc_ptx(13, "sm_90a", source)), given, [Arg.ptr("a"), Arg.ptr("out")], block=1024,
        grid=(7, 1, 1), order="early",
    )  # fmt: skip


def test_what_others_of_an_earlier_wave_waited_for_is_not_known() -> None:
    right = waves("if (blockIdx.x == 6) wait(&bar, 0);", "")
    assert right.clean, right.faults[0].message
    wrong = waves("", "if (blockIdx.x == 6) wait(&bar, 0);")
    assert [f.kind for f in wrong.faults] == [FaultKind.RACE]
    assert wrong.faults[0].cta == (6, 0, 0)
