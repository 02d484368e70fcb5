"""Does WGMMA compute what it should, for every type, layout and swizzle, and are its rules of use checked?"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rooftile.plan import Arg, TensorMap
from support.hopper import WRAPPERS, mma, run
from support.ptx_sources import nvrtc_ptx

from emulator import FaultKind, Order, Program, PtxError

TYPES: dict[str, tuple[Any, int]] = {
    "bf16": (ml_dtypes.bfloat16, 2), "f16": (np.float16, 2), "tf32": (np.float32, 4),
    "e4m3": (ml_dtypes.float8_e4m3fn, 1), "e5m2": (ml_dtypes.float8_e5m2, 1), "s8": (np.int8, 1),
    "u8": (np.uint8, 1),
}  # fmt: skip
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


def _load(x: str, rows: str, mn_major: bool) -> str:
    """The operand in panels as wide as the swizzle: along k, or (MN-major) along m or n."""
    count, pitch = (f"{rows} / PER", "K") if mn_major else ("K / PER", rows)
    return f"for (int p = 0; p < {count}; ++p) load2({x} + p * {pitch} * SPAN, &map_{x}, p * PER, 0, &bar);"


def _descriptor(x: str, rows: str, mn_major: bool, swizzle: int) -> str:
    mode = MODES[swizzle]
    if mn_major:
        pitches = "K * SPAN, 8 * SPAN" if swizzle else "128, K * 16"
        return f"descriptor({x} + kk * 16 * SPAN, {pitches}, {mode})"
    if not swizzle:
        return f"descriptor({x} + kk * 2 * {rows} * 16, {rows} * 16, 128, 0)"
    return f"descriptor({x} + kk * 32 / SPAN * {rows} * SPAN + kk * 32 % SPAN, 16, 8 * SPAN, {mode})"


def source(
    n: int, a: str, b: str, d: str, swizzle: int, mn_major: tuple[bool, bool], steps: int, extra: str
) -> str:
    """64 x n of `steps` products, the sums as they lie in registers."""
    size = TYPES[a][1]
    whole = a in ("s8", "u8")
    tail = "p" if whole else "p, " + (extra or "1, 1")
    if size == 2:
        tail += f", {int(mn_major[0])}, {int(mn_major[1])}"
    if whole and extra:
        d_type = f"{d}.{a}.{b}.{extra}"
    else:
        d_type = f"{d}.{a}.{b}"
    count = n // 4 if d == "f16" else n // 2
    kind = "float" if d == "f32" else "u32"
    return (
        WRAPPERS
        + mma(n, tail, d_type, 32 // size)
        + f"""
constexpr int SPAN = {swizzle or 16}, EL = {size}, K = {32 // size * steps}, N = {n}, PER = SPAN / EL;
extern "C" __global__ void __launch_bounds__(128, 1)
run(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, u32* out) {{
  extern __shared__ __align__(1024) unsigned char raw[];
  __shared__ u64 bar;
  unsigned char *a = raw, *b = raw + 64 * K * EL;
  if (threadIdx.x == 0) {{ init(&bar, 1); fence_init(); }}
  __syncthreads();
  if (threadIdx.x == 0) {{
    expect(&bar, (64 + N) * K * EL);
    {_load("a", "64", mn_major[0])}
    {_load("b", "N", mn_major[1])}
  }}
  wait(&bar, 0);
  {kind} d[{count}];
  mma_fence();
  for (int kk = 0; kk < {steps}; ++kk)
    mma(d, {_descriptor("a", "64", mn_major[0], swizzle)},
        {_descriptor("b", "N", mn_major[1], swizzle)}, kk > 0);
  mma_commit();
  mma_wait<0>();
  for (int i = 0; i < {count}; ++i) out[threadIdx.x * {count} + i] = *(u32*)&d[i];
}}"""
    )


def sums_of(out: Any, n: int, d: str) -> Any:
    """(64, n) of the registers (128, count), by PTX ISA's figures of the fragment of D."""
    thread = np.arange(128)
    row, column = 16 * (thread // 32) + thread % 32 // 4, 2 * (thread % 4)
    found = np.zeros((64, n))
    for i in range(out.shape[1]):
        if d == "f16":
            pair = out[:, i : i + 1].copy().view(np.float16)
            for e in range(2):
                found[row + 8 * (i % 2), 8 * (i // 2) + column + e] = pair[:, e]
        else:
            value = out[:, i].view(np.float32 if d == "f32" else np.int32)
            found[row + 8 * (i // 2 % 2), 8 * (i // 4) + column + i % 2] = value
    return found


def product(
    n: int, a: str, b: str, d: str, swizzle: int, mn_major: tuple[bool, bool] = (False, False),
    *, steps: int = 4, order: str = "late", extra: str = "", uneven: bool = False, **more: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """What came out, and A B^T in f64."""
    size = TYPES[a][1]
    k, span = 32 // size * steps, swizzle or 16
    rng = np.random.default_rng(1)
    left = rng.integers(0 if a == "u8" else -4, 5, (64, k)).astype(TYPES[a][0])
    right = rng.integers(0 if b == "u8" else -4, 5, (n, k)).astype(TYPES[b][0])
    if uneven:
        left[:, : k // 4], right[:, : k // 4] = 64, 32
    arrays, args = {}, []
    for name, kind, array, mn, rows in (("a", a, left, mn_major[0], 64), ("b", b, right, mn_major[1], n)):
        given = arrays[name] = np.ascontiguousarray(array.T) if mn else array
        pitch = given.shape[1] * size
        box = (span // size, k if mn else rows)
        args.append(
            Arg.tensor_map(f"map_{name}", TensorMap(name, kind, given.shape[::-1], (pitch,), box, swizzle))
        )
    out = np.zeros((128, n // 4 if d == "f16" else n // 2), np.uint32)
    program = Program.from_ptx(
        nvrtc_ptx(13, "sm_90a", source(n, a, b, d, swizzle, mn_major, steps, extra)), shared_align=1024
    )
    report = run(
        program,
        {**arrays, "out": out},
        [*args, Arg.ptr("out")],
        smem=(64 + n) * k * size,
        order=order,
        **more,
    )
    assert report.clean, report.faults[0].message
    return sums_of(out, n, d), left.astype(np.float64) @ right.astype(np.float64).T


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("mn_major", [(False, False), (True, True), (True, False), (False, True)], ids=str)
def test_layouts(swizzle: int, mn_major: tuple[bool, bool]) -> None:
    found, wanted = product(64, "bf16", "bf16", "f32", swizzle, mn_major)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "form",
    [
        (8, "f16", "f16", "f16", 64),
        (256, "f16", "f16", "f32", 128),
        (40, "tf32", "tf32", "f32", 128),
        (16, "e4m3", "e4m3", "f32", 128),
        (136, "e4m3", "e5m2", "f16", 64),
        (24, "e5m2", "e4m3", "f32", 32),
        (48, "s8", "s8", "s32", 128),
        (32, "u8", "s8", "s32", 64),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["early", "late"])
def test_types(form: tuple[int, str, str, str, int], order: str) -> None:
    found, wanted = product(*form, order=order)
    np.testing.assert_array_equal(found, wanted)


def test_signs() -> None:
    found, wanted = product(64, "bf16", "bf16", "f32", 64, extra="-1, 1")
    np.testing.assert_array_equal(found, -wanted)
    found, wanted = product(64, "bf16", "bf16", "f32", 64, extra="-1, -1")
    np.testing.assert_array_equal(found, wanted)


def test_fp8_sums_that_keep_few_bits() -> None:
    """So that sums in two levels are seen to matter: many small products beside large ones are lost."""
    exact, wanted = product(16, "e4m3", "e4m3", "f32", 128, uneven=True)
    np.testing.assert_array_equal(exact, wanted)
    cut, _ = product(16, "e4m3", "e4m3", "f32", 128, uneven=True, fp8_bits=14)
    lost = np.abs(cut - wanted).max() / np.abs(wanted).max()
    assert 2**-17 < lost < 2**-11
    whole, wanted = product(16, "bf16", "bf16", "f32", 128, uneven=True, fp8_bits=14)
    np.testing.assert_array_equal(whole, wanted)


# -- registers, and what is refused ----------------------------------------------------------------------

HEAD = (
    WRAPPERS
    + mma(8)
    + mma(8, "p, 1, 1, 0", name="rs")
    .replace("u64 a, u64 b", "u32 (&a)[4], u64 b")
    .replace("%4, %5, p", "{%4, %5, %6, %7}, %8, p")
    .replace("setp.ne.b32 p, %6", "setp.ne.b32 p, %9")
    .replace('"l"(a)', '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])')
)
USE = (
    HEAD
    + r"""
extern "C" __global__ void __launch_bounds__(128, 1) run(float* out) {
  __shared__ __align__(1024) unsigned short s[64 * 64 + 64 * 64];
  for (int i = threadIdx.x; i < 64 * 128; i += 128) s[i] = i % 7 == 0 ? 0x3F80 : 0;
  fence_async(); // visible
  __syncthreads();
  u64 a = descriptor(s, 16, 1024, 1), b = descriptor(s + 64 * 64, 16, 1024, 1);
  float d[4] = {1, 1, 1, 1};
  u32 x[4] = {0x3F803F80, 0, 0, 0x3F803F80};
  mma_fence(); // first
  mma(d, a, b, 1);
  mma_commit();
  mma_wait<0>(); // done
  for (int i = 0; i < 4; ++i) { d[i] += 1; asm volatile("" : "+f"(d[i]) :: "memory"); }
  mma_fence(); // second
  rs(d, x, b, 1);
  mma_commit();
  mma_wait<0>(); // again
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""
)


def use(change: tuple[str, str] | None, order: str) -> tuple[Any, Any]:
    text = USE
    if change is not None:
        assert text.count(change[0]) == 1, change
        text = text.replace(*change)
    out = np.full((128, 4), np.nan, np.float32)
    report = run(Program.from_ptx(nvrtc_ptx(13, "sm_90a", text)), {"out": out}, [Arg.ptr("out")], order=order)
    return report, out


@pytest.mark.parametrize("order", Order.KINDS)
def test_a_right_use_of_registers(order: str) -> None:
    report, out = use(None, order)
    assert report.clean, report.faults[0].message
    flat = np.zeros(64 * 128)
    flat[::7] = 1
    chunk = np.arange(64 * 64) // 8
    place = (chunk // 8 * 8 + (chunk % 8 ^ chunk // 8 % 8)) * 8 + np.arange(64 * 64) % 8
    a, b = flat[: 64 * 64][place].reshape(64, 64)[:, :16], flat[64 * 64 :][place].reshape(64, 64)[:8, :16]
    x = np.zeros((16, 16))
    x[:8, :8], x[8:, 8:] = 1, 1
    wanted = a @ b.T + 2 + np.tile(x, (4, 1)) @ b.T
    np.testing.assert_array_equal(sums_of(out.view(np.uint32), 8, "f32"), wanted)


@pytest.mark.parametrize("order", Order.KINDS)
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (("mma_wait<0>(); // done", ""), FaultKind.REGISTERS),
        (("mma_wait<0>(); // done", "mma_wait<1>();"), FaultKind.REGISTERS),
        (("mma_wait<0>(); // again", ""), FaultKind.REGISTERS),
        (("mma_fence(); // first", ""), FaultKind.REGISTERS),
        (("mma_fence(); // second", ""), FaultKind.REGISTERS),
        (("fence_async(); // visible", ""), FaultKind.PROXY),
        (("__syncthreads();", ""), FaultKind.RACE),
        (("descriptor(s, 16, 1024, 1)", "descriptor(s, 16, 1024, 1) | 1ull << 55"), FaultKind.DESCRIPTOR),
        (("descriptor(s, 16, 1024, 1)", "descriptor(s + 64 * 64 * 2, 16, 1024, 1)"), FaultKind.OUT_OF_BOUNDS),
        (("mma(d, a, b, 1);", "if (threadIdx.x < 96) mma(d, a, b, 1); else return;"), FaultKind.DIVERGENCE),
        (
            ("descriptor(s, 16, 1024, 1)", "descriptor(s + threadIdx.x / 96 * 8, 16, 1024, 1)"),
            FaultKind.DIVERGENCE,
        ),
    ],
    ids=str,
)
def test_a_wrong_use_of_registers(change: tuple[str, str], kind: FaultKind, order: str) -> None:
    report, _ = use(change, order)
    assert report.faults
    if report.faults[0].kind is FaultKind.DEADLOCK and kind is FaultKind.DIVERGENCE:
        assert "not all warps of its warpgroup have issued" in report.faults[0].message
    else:
        also = (FaultKind.READ_UNWRITTEN,) if kind is FaultKind.RACE else ()
        assert report.faults[0].kind in (kind, *also), report.faults[0].message
    assert "t.cu:" in report.faults[0].message


@pytest.mark.parametrize(
    "text",
    [
        "m64n12k16.f32.bf16.bf16",
        "m64n8k8.f32.bf16.bf16",
        "m64n264k16.f32.bf16.bf16",
        "m64n8k16.f16.bf16.bf16",
        "m64n8k16.f32.bf16.f16",
        "m64n40k32.s32.s8.s8",
    ],
)
def test_forms_that_are_none(text: str) -> None:
    n = int(text[4:].split("k")[0])
    regs = ", ".join(f"%f{i}" for i in range(n // 2))
    tail = "p" if "s8" in text else "p, 1, 1, 0, 0"
    ptx = (
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry run() {\n"
        f".reg .pred p; .reg .b32 %f<{n}>; .reg .b64 a;\n"
        f"wgmma.mma_async.sync.aligned.{text} {{{regs}}}, a, a, {tail};\nret;\n}}\n"
    )
    with pytest.raises(PtxError, match="line 6"):
        run(Program.from_ptx(ptx), {}, [])
