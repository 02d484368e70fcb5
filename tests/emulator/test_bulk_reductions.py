"""Do bulk reductions compute what the PTX ISA says, for every operation and type it has and no other; are
they ordered as it says?"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rooftile.plan import Arg, TensorMap
from support.hopper import WRAPPERS, run
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Order, Program, PtxError, Report

HALVES = ("f16", "bf16")
WHOLE = ("u32", "s32", "u64", "s64", "b32", "b64")
TYPES = (*HALVES, "f32", "f64", *WHOLE)
OPS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
BITWISE = ("and", "or", "xor")
# PTX ISA 9.7.9.25.4.2, the table of valid combinations; ptxas 13.0 takes these and no others.
LEGAL = {
    "global": {
        "add": ("u32", "s32", "u64", "f32", "f64", *HALVES),
        "min": ("u32", "s32", "u64", "s64", *HALVES), "max": ("u32", "s32", "u64", "s64", *HALVES),
        "inc": ("u32",), "dec": ("u32",), **dict.fromkeys(BITWISE, ("b32", "b64")),
    },
    "shared": {
        "add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"),
        "inc": ("u32",), "dec": ("u32",), **dict.fromkeys(BITWISE, ("b32",)),
    },
}  # fmt: skip
HEADS = {
    "global": "cp.reduce.async.bulk.global.shared::cta.bulk_group",
    "shared": "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
}
NUMPY: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "u32": np.uint32,
    "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
}  # fmt: skip


def named(op: str, kind: str) -> str:
    """As an instruction ends with it."""
    return f"{op}.noftz.{kind}" if op == "add" and kind in HALVES else f"{op}.{kind}"


def cases(to: str) -> list[tuple[str, str]]:
    return [(op, kind) for op in OPS for kind in LEGAL[to][op]]


def values(kind: str, seed: int, count: int) -> Any:
    """Any bits, and each edge beside each (by the seed: one order, or the other)."""
    dtype = np.dtype(NUMPY[kind])
    if kind in WHOLE:
        top = 1 << dtype.itemsize * 8 - 1
        edges = np.array([0, 1, 5, 6, 7, top - 1, top, 2 * top - 1], f"u{dtype.itemsize}").view(dtype)
    else:
        least = np.array([1, 3], f"u{dtype.itemsize}").view(dtype).astype(np.float64)
        few = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1 + float(ml_dtypes.finfo(dtype).eps), *least]
        edges = np.array([*few, *-least, float(ml_dtypes.finfo(dtype).max)]).astype(dtype)
    n = len(edges)
    bits = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8)
    found = bits.view(dtype)
    found[: n * n] = np.repeat(edges, n) if seed % 2 else np.tile(edges, n)
    return found


def wanted(op: str, kind: str, now: Any, comes: Any) -> Any:
    """The result by slow means: whole numbers as Python's, sums of floats by numpy."""
    dtype = np.dtype(NUMPY[kind])
    if op == "add" and kind not in WHOLE:
        with np.errstate(all="ignore"):
            if kind != "f32":
                # f64 holds sums of f16; f32 has over twice the bits of bf16: rounding twice is rounding once.
                wide = {"f16": np.float64, "bf16": np.float32, "f64": np.float64}[kind]
                return (now.astype(wide) + comes.astype(wide)).astype(dtype)
            a, b = (np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x) for x in (now, comes))
            total = (a + b).astype(np.float32)
            return np.where(np.abs(total) < 2.0**-126, np.copysign(np.float32(0), total), total)
    if kind in HALVES:
        return np.array([_extreme(op, a, b) for a, b in zip(now, comes, strict=True)], dtype)
    size = 1 << dtype.itemsize * 8
    found = []
    for a, b in zip(now.tolist(), comes.tolist(), strict=True):
        found.append({
            "add": a + b, "min": min(a, b), "max": max(a, b), "and": a & b, "or": a | b, "xor": a ^ b,
            "inc": 0 if a >= b else a + 1, "dec": b if a == 0 or a > b else a - 1,
        }[op] % size)  # fmt: skip
    return np.array(found, f"u{dtype.itemsize}").view(dtype)


def _extreme(op: str, a: Any, b: Any) -> Any:
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    order = sorted((a, b), key=lambda x: (float(x), not np.signbit(x)))
    return order[0] if op == "min" else order[1]


def same(found: Any, expected: Any) -> None:
    """Equal in every bit, but that all NaN are alike."""
    bits = f"u{found.dtype.itemsize}"
    nan = expected != expected
    np.testing.assert_array_equal(found[nan] != found[nan], True)
    np.testing.assert_array_equal(found[~nan].view(bits), expected[~nan].view(bits))


TO_GLOBAL = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1) run(const u32* a, u32* out) {
  __shared__ __align__(128) u32 s[WORDS];
  for (int i = threadIdx.x; i < WORDS; i += 128) s[i] = a[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("INSTRUCTION [%0], [%1], %2;" :: "l"(out), "r"(sh(s)), "n"(WORDS * 4) : "memory");
    bulk_commit();
    bulk_wait<0>(); // ended
  }
}
"""
)


def reduced(instruction: str, a: Any, out: Any, *, order: str = "late", grid: int = 1, text: str = "") -> Any:
    """The report of a reduction of `a` into `out`; two CTAs are a cluster."""
    # One array under two names: its contents count.
    result = out.view(np.uint32)
    words = a.nbytes // 4
    source = (text or TO_GLOBAL).replace("INSTRUCTION", instruction).replace("WORDS", str(words))
    arrays = {"a": a.view(np.uint32), "out": result, "c": result}
    program = Program.from_ptx(nvrtc_ptx(13, "sm_90a", source))
    args = [Arg.ptr("a"), Arg.ptr("out")]
    return run(program, arrays, args, order=order, grid=grid, cluster=(grid, 1, 1))


def accused(report: Report) -> list[Any]:
    return [fault for fault in report.faults if fault.kind is not FaultKind.NOT_WRITTEN]


@pytest.mark.parametrize(("op", "kind"), cases("global"))
def test_into_global_memory(op: str, kind: str) -> None:
    now, comes = values(kind, 1, 256), values(kind, 2, 256)
    out = now.copy()
    report = reduced(f"{HEADS['global']}.{named(op, kind)}", comes, out)
    assert not accused(report), accused(report)
    assert report.counters["all"]["bulk"]["reductions"] == 1
    same(out, wanted(op, kind, now, comes))


TO_PEER = (
    WRAPPERS
    + r"""
DEV u32 map_to(const void* p, u32 rank) {
  u32 r; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(sh(p)), "r"(rank)); return r; }
DEV void cluster_sync() { cluster_arrive(); cluster_wait(); }
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
run(const u32* a, u32* out) {
  __shared__ __align__(128) u32 s[WORDS], d[WORDS];
  __shared__ u64 bar;
  const u32 target = cluster_rank() ^ 1;
  a += blockIdx.x * WORDS;
  out += blockIdx.x * WORDS;
  for (int i = threadIdx.x; i < WORDS; i += 128) { s[i] = a[i]; d[i] = out[i]; }
  if (threadIdx.x == 0) { init(&bar, 1); fence_init(); }
  fence_async(); // visible
  __syncthreads();
  if (threadIdx.x == 0) expect(&bar, WORDS * 4);
  cluster_sync(); // ready
  if (threadIdx.x == 0)
    asm volatile("INSTRUCTION [%0], [%1], %2, [%3];"
                 :: "r"(map_to(d, target)), "r"(sh(s)), "n"(WORDS * 4), "r"(map_to(&bar, target)) : "memory");
  wait_cluster(&bar, 0); // filled
  for (int i = threadIdx.x; i < WORDS; i += 128) out[i] = d[i];
  cluster_sync();
}
"""
)


@pytest.mark.parametrize(("op", "kind"), cases("shared"))
def test_into_a_peer(op: str, kind: str) -> None:
    """Each of two CTAs reduces what it has into the other's."""
    now, comes = values(kind, 1, 512), values(kind, 2, 512)
    a = np.concatenate([comes[256:], comes[:256]])
    source = TO_PEER.replace("WORDS", str(a.nbytes // 8))
    for order in ("early", "late"):
        out = now.copy()
        report = reduced(f"{HEADS['shared']}.{named(op, kind)}", a, out, order=order, grid=2, text=source)
        assert not accused(report), accused(report)
        assert report.counters["all"]["bulk"]["reductions"] == 2
        same(out, wanted(op, kind, now, comes))


BOTH_TO_ONE = [
    ("target = cluster_rank() ^ 1", "target = 0"),
    ("expect(&bar, WORDS * 4)", "expect(&bar, WORDS * 8)"),
    ("  wait_cluster(&bar, 0); // filled", "  if (cluster_rank() == 0) wait_cluster(&bar, 0); // filled"),
]


@pytest.mark.parametrize("order", Order.KINDS)
def test_what_orders_reductions_into_a_peer(order: str) -> None:
    instruction = f"{HEADS['shared']}.add.u32"
    a, now = np.arange(512, dtype=np.uint32), np.full(512, 1000, np.uint32)
    source = TO_PEER.replace("WORDS", "256")
    # Two into the same bytes do not race with each other.
    text = source
    for old, new in BOTH_TO_ONE:
        assert text.count(old.replace("WORDS", "256")) == 1, old
        text = text.replace(old.replace("WORDS", "256"), new.replace("WORDS", "256"))
    text = text.replace("if (threadIdx.x == 0) expect", "if (threadIdx.x + cluster_rank() == 0) expect")
    out = now.copy()
    report = reduced(instruction, a, out, order=order, grid=2, text=text)
    assert not accused(report), accused(report)
    np.testing.assert_array_equal(out, np.concatenate([1000 + a[:256] + a[256:], now[256:]]))
    for change, kinds in (
        (("fence_async(); // visible", ""), {FaultKind.PROXY}),
        (("cluster_sync(); // ready", ""), {FaultKind.RACE, FaultKind.PROXY}),
        (("wait_cluster(&bar, 0); // filled", ""), {FaultKind.RACE}),
        (("d[i] = out[i];", ""), {FaultKind.READ_UNWRITTEN}),
    ):
        assert source.count(change[0]) == 1, change
        text = source.replace(*change)
        report = reduced(instruction, a, now.copy(), order=order, grid=2, text=text)
        assert accused(report), change
        assert accused(report)[0].kind in kinds, (change, accused(report)[0])


FORBIDDEN = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry run(.param .u64 out) {
  .reg .b64 %rd<2>; .reg .b32 %r<2>;
  .shared .align 128 .b8 s[1024];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, s;
  INSTRUCTION;
  ret;
}
"""


def refused(instruction: str, operands: str) -> str:
    """How it is refused; empty where it is not."""
    program = Program.from_ptx(FORBIDDEN.replace("INSTRUCTION", f"{instruction} {operands}"))
    try:
        run(program, {"out": np.zeros(64, np.uint32)}, [Arg.ptr("out")])
    except PtxError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("to", ["global", "shared"])
def test_no_other_combinations(to: str) -> None:
    operands = {"global": "[%rd1], [%r1], 64", "shared": "[%r1], [%r1], 64, [%r1]"}[to]
    for op in OPS:
        for kind in (*TYPES, "b16", "u16"):
            for text in (f"{op}.{kind}", f"{op}.noftz.{kind}"):
                legal = kind in LEGAL[to][op] and text == named(op, kind)
                told = refused(f"{HEADS[to]}.{text}", operands)
                assert bool(told) != legal, (text, told)
                assert legal or f"{HEADS[to]}.{text}" in told


TENSOR = "cp.reduce.async.bulk.tensor.1d.global.shared::cta"


@pytest.mark.parametrize(
    ("instruction", "operands"),
    [
        (f"{TENSOR}.add.f32.bulk_group", "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add.noftz.bulk_group", "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.bulk_group", "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add.min.bulk_group", "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add", "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add.bulk_group".replace("1d", "1d.2d"), "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add.bulk_group".replace(".1d", ""), "[%rd1, {0}], [%r1]"),
        (f"{TENSOR}.add.bulk_group", "[%rd1, {0}], [%r1], %rd1"),
        (f"{TENSOR}.add.bulk_group.L2::cache_hint", "[%rd1, {0}], [%r1], %r1"),
        (f"{HEADS['global']}.add.u32.f32", "[%rd1], [%r1], 64"),
        (f"{HEADS['global']}.tile.add.u32", "[%rd1], [%r1], 64"),
        (f"{HEADS['global']}.mbarrier::complete_tx::bytes.add.u32", "[%rd1], [%r1], 64"),
        (f"{HEADS['global']}.multicast::cluster.add.u32", "[%rd1], [%r1], 64"),
        (f"{HEADS['shared']}.L2::cache_hint.add.u32", "[%r1], [%r1], 64, [%r1], %rd1"),
        (f"{HEADS['shared']}.add.u32".replace("shared::cluster", "shared::cta"), "[%r1], [%r1], 64, [%r1]"),
        (f"{HEADS['shared']}.add.u32".replace(".shared::cta", ".global"), "[%r1], [%rd1], 64, [%r1]"),
        ("cp.reduce.async.bulk.shared::cluster.shared::cta.bulk_group.add.u32", "[%r1], [%r1], 64"),
        ("cp.async.bulk.global.shared::cta.bulk_group.add.u32", "[%rd1], [%r1], 64"),
    ],
)
def test_no_other_forms(instruction: str, operands: str) -> None:
    assert instruction in refused(instruction, operands)


TO_TENSOR = (
    WRAPPERS
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map, const u32* a, void* out) {
  __shared__ __align__(128) u32 s[WORDS];
  for (int i = threadIdx.x; i < WORDS; i += 128) s[i] = a[i];
  fence_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.OP.tile.bulk_group [%0, {8, 12}], [%1];"
                 :: "l"(&map), "r"(sh(s)) : "memory");
    bulk_commit();
    bulk_wait<0>();
  }
}
"""
)


def into_tensor(op: str, kind: str, now: Any, comes: Any) -> Report:
    """Of a box (24, 8) into a tensor (24, 16), at (8, 12)."""
    tensor = TensorMap("out", kind, (24, 16), (24 * now.itemsize,), (24, 8))
    text = TO_TENSOR.replace("OP", op).replace("WORDS", str(comes.nbytes // 4))
    args = [Arg.tensor_map("map", tensor), Arg.ptr("a"), Arg.ptr("out")]
    arrays = {"a": comes.view(np.uint32), "out": now, "c": now}
    return run(Program.from_ptx(nvrtc_ptx(13, "sm_90a", text)), arrays, args)


@pytest.mark.parametrize("kind", ["s32", "f32", "f16", "bf16", "f64", "tf32"])
@pytest.mark.parametrize("op", OPS)
def test_into_a_tensor(op: str, kind: str) -> None:
    """PTX ISA 9.7.9.25.5.3: no sums of f64, and bits of whole numbers alone; the box is clipped."""
    bits = "f32" if kind == "tf32" else kind
    first, second = (values(bits, seed, 384).reshape(16, 24) for seed in (1, 2))
    comes = second[:8].copy()
    out = first.copy()
    report = into_tensor(op, kind, out, comes)
    legal = {"s32": {"add", "min", "max", *BITWISE}, "f32": {"add"}}.get(kind, {"add", "min", "max"})
    if op not in legal or kind in ("f64", "tf32"):
        fault = accused(report)[0]
        assert fault.kind is FaultKind.DESCRIPTOR
        assert f"no reduction .{op} of a tensor of {kind}" in fault.message
        np.testing.assert_array_equal(out.view(np.uint8), first.view(np.uint8))
        return
    assert not accused(report), accused(report)
    expected = first.copy()
    part = wanted(op, kind, first[12:, 8:].reshape(-1), comes[:4, :16].reshape(-1))
    expected[12:, 8:] = part.reshape(4, 16)
    same(out.reshape(-1), expected.reshape(-1))


def test_tma_reads_what_a_reduction_is_still_writing() -> None:
    """.read waits for the reading of shared memory alone."""
    load = r"""
    __shared__ u64 bar; __shared__ __align__(128) u32 t[WORDS];
    init(&bar, 1);
    fence_init();
    expect(&bar, WORDS * 4);
    asm volatile("fence.proxy.async;" ::: "memory");
    bulk_load(t, out, WORDS * 4, &bar);
    wait(&bar, 0);
"""
    a = np.arange(256, dtype=np.uint32)
    for order in Order.KINDS:
        for waits, clean in (("bulk_wait<0>();", True), ("bulk_wait_read<0>();", False)):
            text = TO_GLOBAL.replace("bulk_wait<0>(); // ended", waits + load)
            report = reduced(f"{HEADS['global']}.add.u32", a, a.copy(), order=order, text=text)
            if clean:
                assert not accused(report), accused(report)
            else:
                assert accused(report)[0].kind is FaultKind.RACE, accused(report)
                assert "bulk copy" in accused(report)[0].message
