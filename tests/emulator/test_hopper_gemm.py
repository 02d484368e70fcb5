"""Is a GEMM by TMA, mbarriers and WGMMA right in every order, and is each thing that it lacks accused?"""

from __future__ import annotations

import numpy as np
import pytest
from support.hopper import gemm_source, run_gemm
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Order, Program

PROXY, RACE, UNWRITTEN = FaultKind.PROXY, FaultKind.RACE, FaultKind.READ_UNWRITTEN
STUCK, COUNT, REGISTERS = FaultKind.DEADLOCK, FaultKind.BARRIER_COUNT, FaultKind.REGISTERS


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_ptx(nvrtc_ptx(13, "sm_90a", gemm_source()))


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("k", [64, 328])
def test_gemm(program: Program, order: str, k: int) -> None:
    report, out, wanted = run_gemm(program, 200, 136, k, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, wanted)


def test_what_each_role_does_is_counted(program: Program) -> None:
    report, _, _ = run_gemm(program, 128, 64, 320)
    producer, consumer = report.counters["producer"], report.counters["consumer"]
    assert producer["bytes"]["global_to_shared"] == 5 * (128 + 64) * 64 * 2
    assert producer["bulk"]["load_boxes"] == 10
    assert consumer["mma"]["wgmma_m64n64k16.bf16"] == 5 * 4 * 8
    assert consumer["mma_flops"] == 2 * 128 * 64 * 320
    assert consumer["waits"]["wgmma"] == 5 * 8
    assert "mma_flops" not in producer


def test_the_same_seed_gives_the_same_run(program: Program) -> None:
    first, again = (run_gemm(program, 128, 64, 320, order=Order("random", 5))[0] for _ in range(2))
    assert first.instructions == again.instructions
    assert dict(first.counters) == dict(again.counters)


WRONG = {
    "no wait for a full stage": ("wait(&full[s], it / STAGES & 1); // filled", "", {RACE, UNWRITTEN}),
    "half the warps wait": ("wait(&full[s], it", "if (warp < 2) wait(&full[s], it", {RACE, UNWRITTEN}),
    "no wait for a free stage": ("wait(&empty[s], (it / STAGES & 1) ^ 1); // free", "", {RACE, COUNT}),
    "parity of full": ("wait(&full[s], it / STAGES & 1)", "wait(&full[s], 0)", {RACE, STUCK}),
    "parity of empty": ("(it / STAGES & 1) ^ 1)", "it / STAGES & 1)", {STUCK}),
    "no arrival": ("if (tid % 128 == 0) arrive(&empty[s]); // released", "", {STUCK}),
    "two arrivals": ("if (tid % 128 == 0) arrive", "if (tid % 128 < 2) arrive", {STUCK, RACE, COUNT}),
    "no wait for products": ("mma_wait<0>(); // done", "", {RACE, REGISTERS}),
    "not all products": ("mma_wait<0>(); // done", "mma_wait<1>();", {RACE, REGISTERS}),
    "no commit": ("mma_commit();", "", {RACE, REGISTERS}),
    "no fence of registers": ("mma_fence(); // registers", "", {REGISTERS}),
    "bytes of A alone": ("expect(&full[s], sizeof(Stage))", "expect(&full[s], BM * BK * 2)", {RACE}),
    "bytes that never come": ("sizeof(Stage));", "sizeof(Stage) + 128);", {STUCK}),
    "count of full": ("init(&full[s], 1)", "init(&full[s], 2)", {STUCK}),
    "count of empty": ("init(&empty[s], CONSUMERS)", "init(&empty[s], 1)", {STUCK, RACE}),
    "no barrier behind init": ("__syncthreads(); // initialised", "", {RACE, COUNT}),
    "the next stage": ("descriptor(stages[s].b", "descriptor(stages[(s + 1) % STAGES].b", {RACE, UNWRITTEN}),
    "the first barrier": ("BM, &full[s]);", "BM, &full[0]);", {STUCK, RACE}),
    "nobody gives registers": ("give<40>();", "", {STUCK}),
    "phases begin anew": ("gridDim.x) {\n", "gridDim.x) { it = 0;\n", {RACE, STUCK, COUNT}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_it_lacks_is_accused_in_every_order(name: str) -> None:
    old, new, kinds = WRONG[name]
    source = gemm_source()
    assert source.count(old) == 1, name
    broken = Program.from_ptx(nvrtc_ptx(13, "sm_90a", source.replace(old, new)))
    for order in Order.KINDS:
        report, _, _ = run_gemm(broken, 128, 136, 264, order=order)
        assert report.faults, order
        assert report.faults[0].kind in kinds, (order, report.faults[0].message)
        assert "t.cu:" in report.faults[0].message
