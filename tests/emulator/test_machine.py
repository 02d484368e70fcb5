"""Does the machine see what a kernel does wrong, whatever order it happens to run in, and nothing else?"""

from __future__ import annotations

import time

import numpy as np
import pytest
from rooftile.plan import Arg
from support.emulator import Cuda, floats, launch
from support.instructions import run, text_kernel

from emulator import FaultKind, Limits, Operand, Order, Region, Report

ORDERS = ("early", "late", "ahead", "behind", "random")


def kinds(report: Report) -> list[FaultKind]:
    return [f.kind for f in report.faults]


def one(report: Report, kind: FaultKind, *words: str) -> str:
    assert kinds(report) == [kind], [f.message for f in report.faults]
    message = report.faults[0].message
    for word in words:
        assert word in message, message
    return message


REVERSE = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    s[threadIdx.x] = a[threadIdx.x];
    %s
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_a_race_in_every_order(cuda: Cuda, order: str) -> None:
    a = np.arange(128, dtype=np.float32)
    out = floats(128)
    right = launch(cuda(REVERSE % "__syncthreads();"), {"a": a, "out": out}, block=128, smem=512, order=order)
    assert right.clean, right.faults
    assert (out == a[::-1]).all()
    wrong = launch(cuda(REVERSE % ""), {"a": a, "out": floats(128)}, block=128, smem=512, order=order,
                   regions=[Region("values", 0, 256, 2)])  # fmt: skip
    assert kinds(wrong)[0] in (FaultKind.RACE, FaultKind.READ_UNWRITTEN)
    assert "test_" in wrong.faults[0].message
    assert wrong.faults[0].line == 5
    assert wrong.faults[0].buffer == "values"
    assert wrong.faults[0].stage in (0, 1)


def test_lanes_of_one_warp_need_a_barrier_too(cuda: Cuda) -> None:
    a = np.arange(32, dtype=np.float32)
    out = floats(32)
    assert launch(cuda(REVERSE % "__syncwarp();"), {"a": a, "out": out}, smem=128).clean
    assert (out == a[::-1]).all()
    one(launch(cuda(REVERSE % ""), {"a": a, "out": floats(32)}, smem=128), FaultKind.RACE, "warp 0", ":3")


def test_bytes_may_not_be_reused_before_their_readers_are_done(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
        s[threadIdx.x] = a[threadIdx.x] + i;
        __syncthreads();
        sum += s[blockDim.x - 1 - threadIdx.x];
        %s
    }
    out[threadIdx.x] = sum;
}
"""
    a = np.arange(64, dtype=np.float32)
    out = floats(64)
    assert launch(cuda(text % "__syncthreads();"), {"a": a, "out": out}, block=64, smem=256).clean
    assert (out == 4 * a[::-1] + 6).all()
    wrong = launch(cuda(text % ""), {"a": a, "out": floats(64)}, block=64, smem=256)
    one(wrong, FaultKind.RACE, "overwrites", "reads")


def test_shared_memory_is_not_zero(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(float* out) {
    SHARED(float, s);
    out[threadIdx.x] = s[threadIdx.x];
}
"""
    one(launch(cuda(text), {"out": floats(32)}, smem=128), FaultKind.READ_UNWRITTEN, "nobody has written")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("out[i] = a[i + 1];", "leave"),
        ("out[i] = a[i - 1];", "-4 bytes from its start"),
        ("out[i] = a[i]; if (i == 31) out[32] = 0;", "leave"),
        ("out[i] = 0; ((float*)a)[i] = 1;", "input"),
        ("out[i] = *(const float*)(a + (1ll << 60));", "in no buffer"),
        ("SHARED(float, s); s[i + 1] = 1; out[i] = 0;", "shared memory"),
    ],
)
def test_no_access_leaves_its_buffer(cuda: Cuda, body: str, word: str) -> None:
    head = 'extern "C" __global__ void run(const float* a, float* out) {'
    text = f"{head} int i = threadIdx.x; {body} }}"
    report = launch(cuda(text), {"a": np.zeros(32, np.float32), "out": floats(32)}, smem=128)
    one(report, FaultKind.OUT_OF_BOUNDS, word, "warp 0")


def test_the_gap_between_rows_belongs_to_somebody_else(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out, long long ld) {
    for (int r = 0; r < 3; ++r) out[r * 32 + threadIdx.x] = a[r * ld + threadIdx.x];
}
"""
    program = cuda(text)
    wide = np.zeros((3, 64), np.float32)
    wide[:] = np.arange(64)
    out = floats(3, 32)
    assert launch(program, {"a": wide[:, :32], "out": out}, sizes={"ld": 64}).clean
    assert (out == wide[:, :32]).all()
    report = launch(program, {"a": wide[:, :31], "out": floats(3, 32)}, sizes={"ld": 64})
    one(report, FaultKind.OUT_OF_BOUNDS, "lane 31", "gap")


def test_offsets_past_two_to_the_31_cost_nothing(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out, long long ld) {
    for (long long r = 0; r < 3; ++r) out[r * ld + threadIdx.x] = a[r * ld + threadIdx.x] + 1;
}
"""
    ld = 2**31 + 8
    a, out = np.arange(96, dtype=np.float32).reshape(3, 32), floats(3, 32)
    started = time.monotonic()
    far = (ld * 4, 4)
    report = launch(cuda(text), {"a": Operand(a, far), "out": Operand(out, far)}, sizes={"ld": ld})
    assert report.clean, report.faults
    assert (out == a + 1).all()
    assert report.seconds < 1
    assert time.monotonic() - started < 20
    narrow = text.replace("r * ld", "(int)(r * ld)")
    report = launch(
        cuda(narrow), {"a": Operand(a, far), "out": Operand(floats(3, 32), far)}, sizes={"ld": ld}
    )
    one(report, FaultKind.OUT_OF_BOUNDS)


def test_addresses_are_aligned_to_what_is_read(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    float4 v = *(const float4*)(a + threadIdx.x);
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
"""
    report = launch(cuda(text), {"a": np.zeros(64, np.float32), "out": floats(32)})
    one(report, FaultKind.MISALIGNED, "16 bytes", "lane 1")
    good = text.replace("a + threadIdx.x", "a + threadIdx.x * 4").replace("const float4*", "const float4*")
    moved = Operand(np.zeros(128, np.float32), misalign=4)
    assert launch(cuda(good), {"a": np.zeros(128, np.float32), "out": floats(32)}).clean
    one(launch(cuda(good), {"a": moved, "out": floats(32)}), FaultKind.MISALIGNED)


def test_every_element_of_the_output_is_written(cuda: Cuda) -> None:
    text = 'extern "C" __global__ void run(float* out) { if (threadIdx.x != 7) out[threadIdx.x] = 1; }'
    one(launch(cuda(text), {"out": floats(32)}), FaultKind.NOT_WRITTEN, "byte 28")


def test_what_waits_for_ever_is_told_with_who_waits(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(float* out) {
    if (threadIdx.x < 32) barrier(1, 64);
    else barrier(2, 64);
    out[threadIdx.x] = 1;
}
"""
    message = one(
        launch(cuda(text), {"out": floats(64)}, block=64),
        FaultKind.DEADLOCK,
        "barrier 1",
        "barrier 2",
        "32 of 64",
    )
    assert ":2" in message
    assert ":3" in message


def test_named_barriers_hand_over(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    int lane = threadIdx.x %% 32;
    if (threadIdx.x < 32) { s[lane] = a[lane]; arrive(1, 64); out[lane] = 0; }
    else { %s out[32 + lane] = s[31 - lane]; }
}
"""
    a = np.arange(32, dtype=np.float32)
    for order in ORDERS:
        out = floats(64)
        assert launch(
            cuda(text % "barrier(1, 64);"), {"a": a, "out": out}, block=64, smem=128, order=order
        ).clean
        assert (out[32:] == a[::-1]).all()
        wrong = launch(cuda(text % ""), {"a": a, "out": floats(64)}, block=64, smem=128, order=order)
        assert kinds(wrong)[0] in (FaultKind.RACE, FaultKind.READ_UNWRITTEN)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("barrier(1, 48);", "multiple of 32"),
        ("barrier(1, 128);", "at most the 64"),
        ("barrier(17, 64);", "not one of 0 to 15"),
        ("if (threadIdx.x < 32) barrier(1, 64); else barrier(1, 32);", "and for"),
    ],
)
def test_participants_agree_on_a_count_that_can_be(cuda: Cuda, body: str, word: str) -> None:
    text = 'extern "C" __global__ void run(float* out, long long zero) { out[threadIdx.x] = 1; %s }'
    text = text % body.replace("(1,", "(1 + (int)zero,").replace("(17,", "(17 + (int)zero,")
    report = launch(cuda(text), {"out": floats(64)}, block=64, sizes={"zero": 0})
    one(report, FaultKind.BARRIER_COUNT, word)


def test_what_a_warp_does_together_needs_all_of_it(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    float v = a[threadIdx.x];
    if (%s) { __syncwarp(); out[threadIdx.x] = v; }
    else { barrier(1, 32); out[threadIdx.x] = 0; }
}
"""
    a = np.ones(32, np.float32)
    assert launch(cuda(text % "a[0] > 0"), {"a": a, "out": floats(32)}).clean
    report = launch(cuda(text % "threadIdx.x < 16"), {"a": a, "out": floats(32)})
    one(report, FaultKind.DIVERGENCE, "16 of its 32 lanes")


def test_lanes_that_went_different_ways_come_together(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const int* a, int* out) {
    int v = a[threadIdx.x], n = 0;
    while (v != 1) { v = v % 2 ? 3 * v + 1 : v / 2; ++n; }
    __syncwarp();
    if (n % 3 == 0) n += 1000; else if (n % 3 == 1) n -= 1000;
    __syncthreads();
    out[threadIdx.x] = n;
}
"""
    a = np.arange(1, 65, dtype=np.int32)

    def steps(v: int) -> int:
        n = 0
        while v != 1:
            v, n = (3 * v + 1 if v % 2 else v // 2), n + 1
        return n + (1000, -1000, 0)[n % 3]

    for order in ORDERS:
        out = np.full(64, -1, np.int32)
        report = launch(cuda(text), {"a": a, "out": out}, block=64, order=order)
        assert report.clean, report.faults
        assert out.tolist() == [steps(int(v)) for v in a]


COPY = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    int i = threadIdx.x;
    copy<4>(s + i, a + i);
    commit();
    copy<4>(s + 64 + i, a + 64 + i);
    %s
    out[i] = s[63 - i];
    wait<0>();
}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("middle", "kind"),
    [
        ("commit(); wait<1>(); __syncthreads();", None),
        ("commit(); wait<1>();", FaultKind.RACE),
        ("commit(); wait<2>(); __syncthreads();", FaultKind.RACE),
        ("commit(); __syncthreads();", FaultKind.RACE),
        ("wait<1>(); __syncthreads(); commit();", FaultKind.RACE),
        ("wait<0>(); __syncthreads(); commit();", None),
    ],
)
def test_a_copy_is_there_once_it_was_waited_for_and_a_barrier_passed(
    cuda: Cuda, order: str, middle: str, kind: FaultKind | None
) -> None:
    a, out = np.arange(128, dtype=np.float32), floats(64)
    report = launch(cuda(COPY % middle), {"a": a, "out": out}, block=64, smem=512, order=order)
    allowed = [[]] if kind is None else [[kind], [FaultKind.READ_UNWRITTEN]]
    assert kinds(report) in allowed, report.faults
    if kind is None:
        assert (out == a[63::-1]).all()


def test_a_copy_may_not_overwrite_what_is_still_read(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    int i = threadIdx.x;
    float sum = 0;
    copy<4>(s + i, a + i); commit();
    for (int turn = 1; turn < 4; ++turn) {
        wait<0>(); __syncthreads();
        sum += s[63 - i];
        %s
        copy<4>(s + i, a + i + 64 * turn); commit();
    }
    wait<0>();
    out[i] = sum;
}
"""
    a = np.arange(256, dtype=np.float32)
    assert launch(cuda(text % "__syncthreads();"), {"a": a, "out": floats(64)}, block=64, smem=256).clean
    for order in ORDERS:
        wrong = launch(cuda(text % ""), {"a": a, "out": floats(64)}, block=64, smem=256, order=order)
        one(wrong, FaultKind.RACE, "reads", "nothing orders")


def test_nobody_leaves_while_a_copy_is_under_way(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    copy<4>(s + threadIdx.x, a + threadIdx.x); commit();
    out[threadIdx.x] = 0;
}
"""
    report = launch(cuda(text), {"a": np.zeros(32, np.float32), "out": floats(32)}, smem=128)
    one(report, FaultKind.OUTSTANDING_WORK, "not waited for")


LAST = """
extern "C" __global__ void run(const float* a, float* out, unsigned* work) {
    __shared__ unsigned order;
    float* parts = (float*)(work + 4);
    parts[blockIdx.x * 64 + threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
    FENCE1
    SYNC1
    if (threadIdx.x == 0) order = atomicAdd(work, 1);
    __syncthreads();
    if (order != gridDim.x - 1) return;
    FENCE2
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += parts[i * 64 + 63 - threadIdx.x];
    out[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_hand_over_through_a_counter(cuda: Cuda, order: str) -> None:
    a = np.arange(192, dtype=np.float32)

    def build(**parts: str) -> str:
        text = LAST
        fence, sync = "__threadfence();", "__syncthreads();"
        for name, value in {"FENCE1": fence, "SYNC1": sync, "FENCE2": fence, **parts}.items():
            text = text.replace(name, value)
        return text

    def go(text: str) -> tuple[Report, np.ndarray]:
        out = floats(64)
        args = [Arg.ptr("a"), Arg.ptr("out")]
        return launch(cuda(text), {"a": a, "out": out}, args=args, block=64, grid=3, workspace=16 + 192 * 4,
                      init="zero", order=order), out  # fmt: skip

    report, out = go(build())
    assert report.clean, report.faults
    assert (out == a.reshape(3, 64).sum(0)[::-1]).all()
    for dropped in ("FENCE1", "SYNC1", "FENCE2"):
        report, _ = go(build(**{dropped: ""}))
        one(report, FaultKind.RACE, "workspace", "of CTA")


def test_two_blocks_may_not_write_one_place(cuda: Cuda) -> None:
    text = 'extern "C" __global__ void run(float* out) { out[threadIdx.x] = %s; }'
    for order in ORDERS:
        wrong = launch(cuda(text % "blockIdx.x"), {"out": floats(32)}, grid=2, order=order)
        one(wrong, FaultKind.RACE, "of CTA", "nothing orders the two")
        assert launch(cuda(text % "7"), {"out": floats(32)}, grid=2, order=order).clean


def test_two_lanes_may_write_one_place_only_with_one_value(cuda: Cuda) -> None:
    text = 'extern "C" __global__ void run(float* out) { out[threadIdx.x / 2] = %s; }'
    assert launch(cuda(text % "1"), {"out": floats(16)}).clean
    one(launch(cuda(text % "threadIdx.x"), {"out": floats(16)}), FaultKind.RACE, "several lanes")


def test_a_loop_without_end_ends(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(volatile float* out) {
    out[threadIdx.x] = 1;
    while (out[0] == 1) {}
}
"""
    report = launch(cuda(text), {"out": floats(32)}, limits=Limits(instructions=20_000))
    one(report, FaultKind.LIMIT, "20000 warp instructions", ":3")


def test_time_is_up_between_two_jumps_too() -> None:
    # All lanes on one word: a fifth of a second each, and no place where threads could go another way.
    line = "atom.global.add.u32 %r1, [%rd1], 1;\n" * 40
    start = ".reg .b32 %r<2>;\n.reg .b64 %rd<2>;\nmov.u64 %rd1, word;\n"
    program = text_kernel(f"{start}{line}ret;", before=".global .align 4 .b8 word[4];")
    program.kernel("run").block(0).steps(0)  # what is imported and decoded late is not the kernel's time
    report = run(program, floats(4), floats(4), block=1024, clean=False, limits=Limits(seconds=0.5))
    last = report.faults[-1]
    assert "it did not end within 0.5 s" in last.message
    body = program.module.function("run").body
    assert body[1].line < (last.ptx_line or 0) < body[-1].line


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_that_spins_gives_way(cuda: Cuda, order: str) -> None:
    text = """
extern "C" __global__ void run(float* out, volatile unsigned* flag) {
    if (threadIdx.x < 32) { if (threadIdx.x == 0) while (flag[0] == 0) {} }
    else if (threadIdx.x == 32) flag[0] = 1;
    out[threadIdx.x] = 1;
}
"""
    report = launch(cuda(text), {"out": floats(64)}, block=64, workspace=16, init="zero", order=order,
                    limits=Limits(instructions=200_000))  # fmt: skip
    assert report.clean, report.faults


def test_a_kernel_may_give_up(cuda: Cuda) -> None:
    text = (
        'extern "C" __global__ void run(float* out) { if (threadIdx.x == 3) __trap(); out[threadIdx.x] = 1; }'
    )
    one(launch(cuda(text), {"out": floats(32)}), FaultKind.TRAP)


def test_one_seed_is_one_run(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(unsigned* out, unsigned* counter) {
    __shared__ unsigned mine;
    for (int i = 0; i < 3; ++i) {
        if (threadIdx.x %% 32 == 0) out[(threadIdx.x / 32) * 3 + i] = atomicAdd(counter, 1);
    }
}
""".replace("%%", "%")
    program = cuda(text)

    def go(seed: int) -> list[int]:
        out = np.full(24, 99, np.uint32)
        report = launch(
            program, {"out": out}, block=256, workspace=16, init="zero", order=Order("random", seed)
        )
        assert report.clean, report.faults
        return out.tolist()

    assert go(1) == go(1)
    assert len({tuple(go(seed)) for seed in range(6)}) > 1


def test_faults_of_one_place_are_told_once_and_counted(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    for (int i = 0; i < 9; ++i) out[threadIdx.x] = a[i * 32 + threadIdx.x];
}
"""
    report = launch(
        cuda(text), {"a": np.zeros(32, np.float32), "out": floats(32)}, grid=1, stop_at_first=False
    )
    assert len(report.faults) <= 9
    assert all(f.kind is FaultKind.OUT_OF_BOUNDS for f in report.faults)


def test_bank_conflicts_and_sectors_are_counted(cuda: Cuda) -> None:
    text = """
extern "C" __global__ void run(const float* a, float* out) {
    SHARED(float, s);
    s[threadIdx.x * STRIDE] = a[threadIdx.x * APART];
    __syncwarp();
    out[threadIdx.x] = s[threadIdx.x * STRIDE];
}
"""

    def go(stride: int, apart: int) -> dict[str, dict[str, int]]:
        program = cuda(text.replace("STRIDE", str(stride)).replace("APART", str(apart)))
        report = launch(program, {"a": np.zeros(32 * 16, np.float32), "out": floats(32)}, smem=32 * 32 * 4)
        assert report.clean, report.faults
        counters = report.counters["all"]
        assert counters["bytes"]["global_to_register"] == 128
        return counters  # type: ignore[no-any-return]

    plain = go(1, 1)
    assert plain["bank_conflicts"] == {"load": 0, "store": 0}
    assert plain["global_sectors"] == {"load": 4, "store": 4}
    assert go(2, 1)["bank_conflicts"] == {"load": 1, "store": 1}
    assert go(32, 1)["bank_conflicts"] == {"load": 31, "store": 31}
    assert go(33, 1)["bank_conflicts"] == {"load": 0, "store": 0} if 33 * 31 < 1024 else True
    assert go(1, 8)["global_sectors"]["load"] == 32
    assert go(1, 4)["global_sectors"]["load"] == 16
