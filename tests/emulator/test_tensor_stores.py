"""Do TMA stores write what they should for each swizzle, rank and edge; what do prefetches, cache policies
and fences of one space do?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rooftile.plan import Arg, TensorMap
from support.hopper import WRAPPERS, run
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Order, Program, PtxError, Report

STORE = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map, const unsigned* a, float* out, long long words) {
  extern __shared__ __align__(1024) unsigned raw[];
  for (int i = threadIdx.x; i < words; i += 128) raw[i] = a[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.RANKd.global.shared::cta.tile.bulk_group [%0, {AT}], [%1];"
                 :: "l"(&map), "r"(sh(raw)) : "memory");
    bulk_commit();
    bulk_wait<0>();
  }
}
"""
)


def accused(report: Report) -> list[Any]:
    return [fault for fault in report.faults if fault.kind is not FaultKind.NOT_WRITTEN]


def program(text: str) -> Program:
    return Program.from_ptx(nvrtc_ptx(13, "sm_90a", text), shared_align=1024)


def laid_out(box: Any, swizzle: int) -> Any:
    """The words of a box as a swizzle wants them in shared memory: 16-byte pieces of each line of 128 bytes
    exchanged by the line's number (PTX ISA 5.5.7, figures)."""
    pieces = np.ascontiguousarray(box).view(np.uint32).reshape(-1, 4)
    found = np.empty_like(pieces)
    for i in range(len(pieces)):
        line, piece = divmod(i, 8)
        found[line * 8 + (piece ^ line % {0: 1, 32: 2, 64: 4, 128: 8}[swizzle])] = pieces[i]
    return found.reshape(-1)


SHAPES = {
    1: [((100,), (40,)), ((100,), (84,)), ((100,), (100,))],
    2: [((24, 100), (4, 0)), ((24, 100), (92, 20)), ((24, 100), (0, 24))],
    3: [((5, 12, 72), (8, 2, 1)), ((5, 12, 72), (60, 9, 4)), ((5, 12, 72), (68, 0, 3))],
}
"""By rank: the shape, outermost first, and where the box begins, innermost first."""


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_what_a_store_writes(swizzle: int, rank: int) -> None:
    """Inside, across every edge, and wholly outside: what is clipped is not written."""
    box = (swizzle // 4 or 24, 8, 3)[:rank]
    for shape, at in SHAPES[rank]:
        values = np.arange(1, 1 + np.prod(box), dtype=np.float32).reshape(box[::-1])
        expected = np.full(shape, -1, np.float32)
        for index in np.ndindex(*values.shape):
            place = tuple(i + c for i, c in zip(index, at[::-1], strict=True))
            if all(p < n for p, n in zip(place, shape, strict=True)):
                expected[place] = values[index]
        text = STORE.replace("RANK", str(rank)).replace("AT", ", ".join(map(str, at)))
        words = laid_out(values, swizzle)
        for order in ("early", "late"):
            out = np.full(shape, -1, np.float32)
            tensor = TensorMap("out", "f32", shape[::-1], out.strides[::-1][1:], box, swizzle)
            args = [Arg.tensor_map("map", tensor), Arg.ptr("a"), Arg.ptr("out"), Arg.i64("words")]
            arrays = {"a": words, "out": out, "c": out}
            sizes = {"words": words.size}
            report = run(program(text), arrays, args, sizes=sizes, smem=words.nbytes, order=order)
            assert not accused(report), accused(report)
            np.testing.assert_array_equal(out, expected)


ROUND = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, const float* a,
    float* out) {
  extern __shared__ __align__(1024) unsigned char raw[];
  __shared__ u64 bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, BYTES);
    load2(raw, &from, -4, 6, &bar);
    wait(&bar, 0); // filled
    store2(&to, 8, 3, raw);
    bulk_commit();
    bulk_wait<0>();
  }
}
"""
)


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_load_and_its_store(swizzle: int, order: str) -> None:
    """The store needs no proxy fence; what the load found outside is zero."""
    columns = swizzle // 4 or 16
    a, out = np.arange(1, 601, dtype=np.float32).reshape(10, 60), np.full((12, 48), -1, np.float32)
    args = [
        Arg.tensor_map("from", TensorMap("a", "f32", (60, 10), (240,), (columns, 8), swizzle)),
        Arg.tensor_map("to", TensorMap("out", "f32", (48, 12), (192,), (columns, 8), swizzle)),
        Arg.ptr("a"), Arg.ptr("out"),
    ]  # fmt: skip
    text = ROUND.replace("BYTES", str(columns * 32))
    arrays = {"a": a, "out": out, "c": out}
    report = run(program(text), arrays, args, smem=columns * 32, order=order)
    assert not accused(report), accused(report)
    expected = np.full((12, 48), -1, np.float32)
    expected[3:11, 8 : 8 + columns] = 0
    expected[3:7, 12 : 8 + columns] = a[6:, : columns - 4]
    np.testing.assert_array_equal(out, expected)
    report = run(program(text.replace("wait(&bar, 0);", "")), arrays, args, smem=columns * 32, order=order)
    assert accused(report)[0].kind is FaultKind.RACE, accused(report)


FEW = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map, const float* a, float* out) {
  __shared__ __align__(128) float s[128];
  __shared__ u64 bar;
  const int t = threadIdx.x;
  CODE
}
"""
)


def few(code: str, order: str = "late") -> tuple[Report, Any, Any]:
    """The report of a few lines by 128 threads; `a` of 128 floats (4 rows of 32 for the map); `out`, as many
    that nobody wrote."""
    a, out = np.arange(128, dtype=np.float32), np.full(128, np.nan, np.float32)
    tensor = TensorMap("a", "f32", (32, 4), (128,), (16, 2))
    args = [Arg.tensor_map("map", tensor), Arg.ptr("a"), Arg.ptr("out")]
    arrays = {"a": a, "out": out}
    return run(program(FEW.replace("CODE", code)), arrays, args, order=order), a, out


def of_bytes(source: str, size: int | str) -> str:
    return (
        f'if (t == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"({source}), "r"({size})'
        ' : "memory"); out[t] = t;'
    )


def of_tensor(source: str, coordinates: str, rank: int = 2) -> str:
    return (
        f'if (t == 0) asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%0,'
        f' {{{coordinates}}}];" :: "l"({source}) : "memory"); out[t] = t;'
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (of_bytes("a", 512), None),
        (of_bytes("a + 4", 496), None),
        (of_bytes("a", 24), FaultKind.MISALIGNED),
        (of_bytes("a + 1", 64), FaultKind.MISALIGNED),
        (of_bytes("a + 4", 512), FaultKind.OUT_OF_BOUNDS),
        (of_bytes("a - 4", 32), FaultKind.OUT_OF_BOUNDS),
        (of_tensor("&map", "16, 2"), None),
        (of_tensor("&map", "-8, -1"), None),
        (of_tensor("&map", "32, 0"), None),
        (of_tensor("a", "0, 0"), FaultKind.DESCRIPTOR),
        (of_tensor("(const char*)&map + 32", "0, 0"), FaultKind.MISALIGNED),
        (of_tensor("&map", "0", 1), FaultKind.DESCRIPTOR),
    ],
)
def test_prefetches(code: str, kind: FaultKind | None) -> None:
    """They change nothing, and what they name is looked at."""
    report, a, out = few(code)
    np.testing.assert_array_equal(a, np.arange(128))
    if kind is None:
        assert report.clean, report.faults
        assert report.counters["all"]["bulk"]["prefetches"] == 1
        np.testing.assert_array_equal(out, np.arange(128))
    else:
        assert report.faults[0].kind is kind, report.faults


POLICIES = [
    ("fractional.L2::evict_last.b64", "%0;", '"=l"(policy)'),
    ("fractional.L2::evict_first.b64", "%0, 1.0;", '"=l"(policy)'),
    ("fractional.L2::evict_unchanged.b64", "%0, 0f3e800000;", '"=l"(policy)'),
    ("fractional.L2::evict_last.L2::evict_unchanged.b64", "%0, %1;", '"=l"(policy) : "f"(0.5f)'),
    ("range.L2::evict_last.L2::evict_first.b64", "%0, [%1], 256, 512;", '"=l"(policy) : "l"(a)'),
    ("range.global.L2::evict_normal.b64", "%0, [%1], %2, %2;", '"=l"(policy) : "l"(a), "r"(64)'),
    ("cvt.L2.b64", "%0, %1;", '"=l"(policy) : "l"(0x1000000000000000ull)'),
]
HINTED = r"""
  u64 policy;
  asm volatile("createpolicy.FORM OPERANDS" : BOUND);
  if (t == 0) {
    init(&bar, 1);
    fence_init();
    expect(&bar, 512);
    asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], 512, %1;" :: "l"(a), "l"(policy));
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [%0, {0, 0}], %1;"
                 :: "l"(&map), "l"(policy));
    for (int i = 0; i < 4; ++i)
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                   ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(sh(s + i * 32)), "l"(&map),
                   "r"(i % 2 * 16), "r"(i / 2 * 2), "r"(sh(&bar)), "l"(policy) : "memory");
    wait(&bar, 0);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], 512, %2;"
                 :: "l"(out), "r"(sh(s)), "l"(policy) : "memory");
    bulk_commit();
    bulk_wait<0>();
  }
"""


@pytest.mark.parametrize(("form", "operands", "bound"), POLICIES, ids=[p[0] for p in POLICIES])
def test_cache_policies(form: str, operands: str, bound: str) -> None:
    code = HINTED.replace("FORM", form).replace("OPERANDS", operands).replace("BOUND", bound)
    report, a, out = few(code)
    assert report.clean, report.faults
    boxes = a.reshape(2, 2, 2, 16).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(out.reshape(2, 2, 2, 16), boxes)


SMALL = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry run(.param .u64 out) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  INSTRUCTION;
  ret;
}
"""


@pytest.mark.parametrize(
    "instruction",
    [
        "createpolicy.fractional.L2::evict_last.b64 %rd2, 0.0",
        "createpolicy.fractional.L2::evict_last.b64 %rd2, 1.5",
        "createpolicy.fractional.L2::evict_last.b64 %rd2, 1",
        "createpolicy.fractional.L2::evict_last.L2::evict_normal.b64 %rd2",
        "createpolicy.fractional.b64 %rd2",
        "createpolicy.fractional.L2::evict_last.b64 %r1",
        "createpolicy.fractional.L2::evict_last %rd2",
        "createpolicy.range.L2::evict_last.b64 %rd2, [%rd1], 768, 512",
        "createpolicy.range.shared.L2::evict_last.b64 %rd2, [%rd1], 256, 512",
        "createpolicy.range.L2::evict_last.b64 %rd2, [%rd1], 256",
        "createpolicy.range.L2::evict_last.b64 %rd2, %rd1, 256, 512",
        "createpolicy.cvt.b64 %rd2, %rd1",
        "createpolicy.cvt.L2.b64 %rd2, %r1",
        "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%rd1], 16, %r1",
        "cp.async.bulk.prefetch.L2.global [%rd1], 16, %rd2",
        "cp.async.bulk.prefetch.global [%rd1], 16",
        "cp.async.bulk.prefetch.L2.global.tile [%rd1], 16",
        "griddepcontrol.wait.launch_dependents",
        "griddepcontrol",
        "fence.proxy.async.shared",
    ],
)
def test_forms_that_there_are_not(instruction: str) -> None:
    """ptxas 13.0 takes none of them."""
    with pytest.raises(PtxError) as error:
        run(Program.from_ptx(SMALL.replace("INSTRUCTION", instruction)),
            {"out": np.zeros(64, np.uint32)}, [Arg.ptr("out")])  # fmt: skip
    assert instruction.split()[0] in str(error.value)


def test_launch_control() -> None:
    """Steps of a plan follow each other: nothing is to wait for."""
    report, _, out = few(
        'asm volatile("griddepcontrol.wait;" ::: "memory"); out[t] = a[t];'
        ' asm volatile("griddepcontrol.launch_dependents;");'
    )
    assert report.clean, report.faults
    np.testing.assert_array_equal(out, np.arange(128))


SHARED = r"""
  s[t] = t;
  asm volatile("FENCE" ::: "memory");
  __syncthreads();
  if (t == 0) { bulk_store(out, s, 512); bulk_commit(); bulk_wait<0>(); }
"""
GLOBAL = r"""
  out[t] = t;
  if (t == 0) { init(&bar, 1); fence_init(); }
  asm volatile("FENCE" ::: "memory");
  __syncthreads();
  if (t == 0) { expect(&bar, 512); bulk_load(s, out, 512, &bar); }
  wait(&bar, 0);
"""
FENCES = {
    "fence.proxy.async;": {"shared", "global"},
    "fence.proxy.async.global;": {"global"},
    "fence.proxy.async.shared::cta;": {"shared"},
    "fence.proxy.async.shared::cluster;": {"shared"},
    "fence.proxy.alias;": set(),
    "fence.acq_rel.gpu;": set(),
    "": set(),
}
"""What each hands to the async proxy."""


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize("fence", FENCES)
def test_fences_of_one_space(fence: str, order: str) -> None:
    for space, code in (("shared", SHARED), ("global", GLOBAL)):
        report, _, out = few(code.replace("FENCE", fence), order)
        if space in FENCES[fence]:
            assert report.clean, (space, report.faults)
            np.testing.assert_array_equal(out, np.arange(128))
        else:
            assert report.faults[0].kind is FaultKind.PROXY, (space, report.faults)
