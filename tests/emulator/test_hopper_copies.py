"""Do TMA and bulk copies move what they should: boxes, swizzles, edges, reductions; and are their rules
checked?"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rooftile.plan import Arg, TensorMap
from support.hopper import WRAPPERS, run
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Operand, Order, Program, Report

LOADS = (
    WRAPPERS
    + r"""
#define COORDS(...) __VA_ARGS__
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map, unsigned char* out, long long bytes) {
  extern __shared__ __align__(1024) unsigned char raw[];
  __shared__ u64 bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
    expect(&bar, bytes);
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {AT}], [%2];"
                 :: "r"(sh(raw)), "l"(&map), "r"(sh(&bar)) : "memory");
  }
  __syncthreads();
  wait(&bar, 0);
  for (int i = threadIdx.x; i < bytes; i += 128) out[i] = raw[i];
}
"""
)


def loaded(
    array: Any, kind: str, box: tuple[int, ...], at: tuple[int, ...], swizzle: int = 0, fill: str = "zero",
    order: str = "late",
) -> Any:  # fmt: skip
    """The bytes of a box (innermost first) as they lie in shared memory."""
    shape = array.shape[::-1]
    tensor = TensorMap("a", kind, shape, tuple(array.strides[::-1][1:]), box, swizzle, fill=fill)
    text = LOADS.replace("RANK", str(len(box))).replace("AT", ", ".join(map(str, at)))
    program = Program.from_ptx(nvrtc_ptx(13, "sm_90a", text), shared_align=1024)
    out = np.zeros(int(np.prod(box)) * array.itemsize, np.uint8)
    args = [Arg.tensor_map("map", tensor), Arg.ptr("out"), Arg.i64("bytes")]
    report = run(
        program, {"a": array, "out": out}, args, sizes={"bytes": out.size}, smem=out.size, order=order
    )
    assert report.clean, report.faults[0].message
    return out


def boxed(array: Any, box: tuple[int, ...], at: tuple[int, ...], outside: float = 0) -> Any:
    """The same by slow means, not swizzled."""
    found = np.full(box[::-1], outside, array.dtype)
    for index in np.ndindex(*box[::-1]):
        place = tuple(i + c for i, c in zip(index, at[::-1], strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            found[index] = array[place]
    return found


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((100,), (32,), (80,)),
        ((40, 24), (16, 8), (16, 36)),
        ((40, 24), (16, 8), (-5, -3)),
        ((6, 10, 16), (8, 4, 3), (4, 8, 4)),
        ((3, 4, 5, 16), (8, 2, 3, 2), (8, 4, -1, 2)),
        ((2, 3, 4, 5, 8), (8, 2, 2, 2, 2), (0, 4, 3, 2, 1)),
        ((40, 24), (16, 8), (100, 3)),
        ((40, 24), (16, 8), (2, 3)),
    ],
    ids=str,
)
def test_boxes(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...]) -> None:
    array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    for order in ("early", "late"):
        found = loaded(array, "f32", box, at, order=order).view(np.float32).reshape(box[::-1])
        np.testing.assert_array_equal(found, boxed(array, box, at))


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzles(swizzle: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 256)).astype(np.uint8)
    found = loaded(array, "u8", (swizzle, 32), (64, 4), swizzle)
    plain = boxed(array, (swizzle, 32), (64, 4)).reshape(-1)
    at = np.arange(plain.size)
    # PTX ISA's figures: 16-byte pieces exchanged by the number of the 128-byte line.
    line, piece = at // 128, at // 16 % 8
    moved = piece ^ {128: line % 8, 64: line % 4 * 1, 32: line % 2}[swizzle] if swizzle == 128 else None
    if moved is None:
        moved = piece ^ (line % 4 if swizzle == 64 else line % 2)
    np.testing.assert_array_equal(found[line * 128 + moved * 16 + at % 16], plain)


def test_fill_with_nan() -> None:
    array = np.ones((4, 16), np.float16)
    found = loaded(array, "f16", (16, 8), (8, 2), fill="nan").view(np.float16).reshape(8, 16)
    assert np.isnan(found[:, 8:]).all()
    assert np.isnan(found[2:]).all()
    assert (found[:2, :8] == 1).all()


STORES = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map, const float* a, float* out) {
  extern __shared__ __align__(1024) unsigned char raw[];
  float* tile = (float*)raw;
  for (int i = threadIdx.x; i < 32 * 16; i += 128) tile[i] = a[i] + blockIdx.x;
  fence_async(); // visible
  __syncthreads(); // written
  if (threadIdx.x == 0) {
    store2(&map, X, Y, tile);
    bulk_commit();
    bulk_wait_read<0>(); // read
  }
  __syncthreads();
  tile[threadIdx.x] = 7;
}
"""
)


def accused(report: Report) -> list[Any]:
    """What is wrong, but that some of the result is left alone."""
    return [fault for fault in report.faults if fault.kind is not FaultKind.NOT_WRITTEN]


def stored(
    x: str, y: str, columns: int, *, change: tuple[str, str] | None = None, order: str = "late",
    grid: int = 1, pitch: int | None = None, fresh: bool = True,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The report, a 40 x columns result with what lies beside its rows, and what was stored."""
    text = STORES.replace("X", x).replace("Y", y)
    if change is not None:
        assert text.count(change[0]) == 1, change
        text = text.replace(*change)
    a = np.random.default_rng(0).integers(1, 99, (16, 32)).astype(np.float32)
    pitch = pitch or columns
    whole = np.full((40, pitch), 0 if not fresh else np.nan, np.float32)
    out = whole[:, :columns]
    arrays: dict[str, Any] = {"a": a, "out": out}
    if not fresh:
        # The same array under a second name: its contents count.
        arrays["c"] = out
    tensor = TensorMap("out", "f32", (columns, 40), (pitch * 4,), (32, 16))
    args = [Arg.tensor_map("map", tensor), Arg.ptr("a"), Arg.ptr("out")]
    program = Program.from_ptx(nvrtc_ptx(13, "sm_90a", text), shared_align=1024)
    return run(program, arrays, args, smem=2048, grid=grid, order=order), whole, a


@pytest.mark.parametrize("order", Order.KINDS)
def test_a_store_clips_its_box(order: str) -> None:
    report, out, a = stored("16", "32", 40, order=order, fresh=False)
    assert not accused(report), accused(report)
    np.testing.assert_array_equal(out[32:, 16:], a[:8, :24])
    assert (out[:32] == 0).all()
    assert (out[:, :16] == 0).all()


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (("fence_async(); // visible", ""), FaultKind.PROXY),
        (("__syncthreads(); // written", ""), FaultKind.RACE),
        (("bulk_wait_read<0>(); // read", ""), FaultKind.RACE),
        (("bulk_wait_read<0>(); // read", "bulk_wait_read<1>();"), FaultKind.RACE),
        (("bulk_commit();", ""), FaultKind.RACE),
        (("store2(&map, 16, 32, tile);", "store2(&map, 16, 32, tile + 4);"), FaultKind.MISALIGNED),
        (("store2(&map, 16, 32, tile);", "store2(&map, -4, 32, tile);"), FaultKind.OUT_OF_BOUNDS),
        (
            (
                "store2(&map, 16, 32, tile);",
                "store2((const TensorMap*)((const char*)&map + 32), 16, 32, tile);",
            ),
            FaultKind.MISALIGNED,
        ),
        (("store2(&map, 16, 32, tile);", "store2((const TensorMap*)a, 16, 32, tile);"), FaultKind.DESCRIPTOR),
    ],
    ids=str,
)
def test_a_store_that_lacks_something(change: tuple[str, str], kind: FaultKind, order: str) -> None:
    report, _, _ = stored("16", "32", 40, change=change, order=order, fresh=False)
    also = (FaultKind.READ_UNWRITTEN,) if kind is FaultKind.RACE else ()
    assert accused(report)
    assert accused(report)[0].kind in (kind, *also), accused(report)
    assert "t.cu:" in accused(report)[0].message


def test_a_thread_that_ends_before_its_store_has_read() -> None:
    change = ("    bulk_wait_read<0>(); // read\n  }\n  __syncthreads();\n  tile[threadIdx.x] = 7;", "  }")
    for order in Order.KINDS:
        report, _, _ = stored("16", "32", 40, change=change, order=order, fresh=False)
        assert accused(report)[0].kind is FaultKind.OUTSTANDING_WORK, accused(report)


def test_the_end_of_a_row_is_rounded_up_to_16_bytes() -> None:
    """38 columns of 4 bytes: a store of the last 22 writes 24."""
    for order in ("early", "late"):
        report, _, _ = stored("16", "8", 38, order=order, pitch=40, fresh=False)
        fault = accused(report)[0]
        assert fault.kind is FaultKind.OUT_OF_BOUNDS
        assert "rounded up to 16 bytes" in fault.message
        assert fault.buffer == "out"
    # Where nothing has to be rounded, nothing is said.
    report, out, a = stored("16", "8", 36, pitch=40, fresh=False)
    assert not accused(report)
    np.testing.assert_array_equal(out[8:24, 16:36], a[:, :20])
    assert (out[:, 36:] == 0).all()


def test_stores_of_two_ctas_to_one_place() -> None:
    for order in Order.KINDS:
        report, _, _ = stored("0", "blockIdx.x * 8", 40, grid=2, order=order, fresh=False)
        assert accused(report)[0].kind is FaultKind.RACE
        assert "bulk copy" in accused(report)[0].message
        report, _, _ = stored("0", "blockIdx.x * 16", 40, grid=2, order=order, fresh=False)
        assert not accused(report), accused(report)


def test_reductions_of_several_ctas() -> None:
    for order in Order.KINDS:
        change = ("store2(&map, 8, 4, tile);", "add2(&map, 8, 4, tile);")
        report, out, a = stored("8", "4", 40, grid=3, order=order, change=change, fresh=False)
        assert not accused(report), accused(report)
        np.testing.assert_array_equal(out[4:20, 8:40], 3 * a + 3)


BULK = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1) run(const float* a, float* out) {
  __shared__ __align__(128) float s[512];
  __shared__ u64 bar;
  if (threadIdx.x == 0) { init(&bar, 1); fence_init(); }
  __syncthreads();
  if (threadIdx.x == 0) { expect(&bar, 2048); bulk_load(s, a, 2048, &bar); }
  wait(&bar, 0); // filled
  for (int i = threadIdx.x; i < 512; i += 128) s[i] += 1;
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) { bulk_store(out, s, 2048); bulk_commit(); bulk_wait<0>(); }
}
"""
)


@pytest.mark.parametrize("order", Order.KINDS)
def test_bulk_copies_of_bytes(order: str) -> None:
    a, out = np.arange(512, dtype=np.float32), np.full(512, np.nan, np.float32)
    args = [Arg.ptr("a"), Arg.ptr("out")]
    report = run(Program.from_ptx(nvrtc_ptx(13, "sm_90a", BULK)), {"a": a, "out": out}, args, order=order)
    assert report.clean, report.faults[0].message
    np.testing.assert_array_equal(out, a + 1)
    assert report.counters["all"]["bytes"]["global_to_shared"] == 2048
    for wrong, kinds in (
        ("bulk_load(s, a, 2040, &bar)", {FaultKind.MISALIGNED}),
        ("bulk_load(s, a + 1, 2048, &bar)", {FaultKind.MISALIGNED}),
        ("bulk_load(s, a + 4, 2048, &bar)", {FaultKind.OUT_OF_BOUNDS}),
        ("bulk_load(s + 4, a, 2048, &bar)", {FaultKind.RACE, FaultKind.OUT_OF_BOUNDS}),
        ("bulk_load(s, a, 1024, &bar)", {FaultKind.DEADLOCK}),
    ):
        text = BULK.replace("bulk_load(s, a, 2048, &bar)", wrong)
        report = run(Program.from_ptx(nvrtc_ptx(13, "sm_90a", text)), {"a": a, "out": out}, args, order=order)
        assert report.faults[0].kind in kinds, (wrong, report.faults)


def test_a_tensor_of_gaps_is_within_its_buffer() -> None:
    """Rows of 24 floats, 32 apart, and a tensor map that says 32 columns."""
    whole = np.zeros((8, 32), np.float32)
    tensor = TensorMap("a", "f32", (32, 8), (128,), (32, 8))
    text = LOADS.replace("RANK", "2").replace("AT", "0, 0")
    program = Program.from_ptx(nvrtc_ptx(13, "sm_90a", text), shared_align=1024)
    out = np.zeros(1024, np.uint8)
    args = [Arg.tensor_map("map", tensor), Arg.ptr("out"), Arg.i64("bytes")]
    arrays = {"a": Operand(whole[:, :24]), "out": out}
    report = run(program, arrays, args, sizes={"bytes": 1024}, smem=1024)
    assert report.faults[0].kind is FaultKind.OUT_OF_BOUNDS


def test_halves() -> None:
    """bf16 with a column slice that begins inside a row."""
    array = np.arange(32 * 64).reshape(32, 64).astype(ml_dtypes.bfloat16)[:, 8:56]
    found = loaded(array, "bf16", (16, 4), (40, 30)).view(ml_dtypes.bfloat16).reshape(4, 16)
    np.testing.assert_array_equal(
        found.astype(np.float32), boxed(array, (16, 4), (40, 30)).astype(np.float32)
    )
