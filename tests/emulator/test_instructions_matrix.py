"""Do ldmatrix, stmatrix, movmatrix, mma.sync and wmma take each element from the lane that has it?

Where lanes hold elements is written down here once more, from the figures of PTX ISA 9.7.14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rooftile.plan import Arg, Launch, LaunchPlan
from support.instructions import THREADS, Array, Bench, run, text_kernel

from emulator import EmulatorError, FaultKind, Order, Report, run_plan

Place = Callable[[int, int, int], tuple[int, int]]
"""(group, thread of the group, element) -> (row, column)."""


def a_place(kind: str, k: int) -> Place:
    """Of A with 16 rows: elements of a register lie side by side in a row."""
    each = {"b16": 2, "b8": 4, "tf32": 1, "f64": 1}[kind]

    def place(g: int, t: int, i: int) -> tuple[int, int]:
        register, part = divmod(i, each)
        return g + 8 * (register % 2), each * t + part + 4 * each * (register // 2)

    return place


def a_place_of_8(each: int) -> Place:
    """Of A with 8 rows, in one register."""
    return lambda g, t, i: (g, each * t + i)


def b_place(kind: str, k: int) -> Place:
    each = {"b16": 2, "b8": 4, "tf32": 1, "f64": 1}[kind]

    def place(g: int, t: int, i: int) -> tuple[int, int]:
        register, part = divmod(i, each)
        return each * t + part + 4 * each * register, g

    return place


def c_place(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i // 2), 2 * t + i % 2


def registers(matrix: Array, place: Place, name: str) -> dict[str, Array]:
    """What each of 32 lanes holds, in registers of 32 bits (f64: 64), twice over for two warps."""
    count = matrix.size // 32
    held = np.empty((32, count), matrix.dtype)
    for lane in range(32):
        for i in range(count):
            held[lane, i] = matrix[place(lane // 4, lane % 4, i)]
    words = held.view(np.uint64 if matrix.itemsize == 8 else np.uint32)
    return {f"{name}{i}": np.concatenate([words[:, i]] * (THREADS // 32)) for i in range(words.shape[1])}


def listed(held: dict[str, Array]) -> str:
    return "{" + ", ".join(held) + "}"


FLOATS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "f64": np.float64,
}  # fmt: skip


def some(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> Array:
    """Numbers of few bits, so that every sum is exact."""
    if kind in ("s8", "u8"):
        info = np.iinfo(FLOATS[kind])
        return rng.integers(info.min, int(info.max) + 1, shape).astype(FLOATS[kind])
    return (rng.integers(-4, 5, shape) / 4).astype(FLOATS[kind])


MMA = [
    ("m16n8k16", "f16", "f16", "f32"), ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "f16", "f16", "f32"),
    ("m16n8k8", "f16", "f16", "f16"), ("m16n8k16", "bf16", "bf16", "f32"), ("m16n8k8", "bf16", "bf16", "f32"),
    ("m16n8k8", "tf32", "tf32", "f32"), ("m16n8k4", "tf32", "tf32", "f32"),
    *((shape, x, y, "s32") for shape in ("m16n8k32", "m16n8k16") for x in ("s8", "u8") for y in ("s8", "u8")),
    *(("m16n8k32", x, y, "f32") for x in ("e4m3", "e5m2") for y in ("e4m3", "e5m2")),
    ("m8n8k16", "s8", "u8", "s32"), ("m8n8k16", "u8", "s8", "s32"), ("m8n8k4", "f64", "f64", "f64"),
]  # fmt: skip


def test_mma_of_each_shape_and_type() -> None:
    bench = Bench()
    for n, (shape, x, y, total) in enumerate(MMA):
        rng = np.random.default_rng(n)
        m, k = int(shape[1:].split("n")[0]), int(shape.split("k")[1])
        a, b = some(rng, x, (m, k)), some(rng, y, (k, 8))
        dtype: Any = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}[total]
        c = rng.integers(-9, 10, (m, 8)).astype(dtype)
        wanted = (a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)).astype(dtype)
        kind = {"tf32": "tf32", "f64": "f64"}.get(x, "b16" if FLOATS[x](0).itemsize == 2 else "b8")
        # In B the elements of a register lie side by side in a column; D and C are pairs of columns.
        pa = a_place(kind, k) if m == 16 else a_place_of_8(4 if kind == "b8" else 1)
        held_a, held_b = registers(a, pa, "a"), registers(b, b_place(kind, k), "b")
        held_c, held_d = registers(c, c_place, "c"), registers(wanted, c_place, "d")
        types = f"{total}.{x}.{y}.{total}"
        operands = ", ".join(listed(v) for v in (held_d, held_a, held_b, held_c))
        text = f"mma.sync.aligned.{shape}.row.col.{types} {operands};"
        bench.case(text, {**held_a, **held_b, **held_c}, **held_d)
        if total == "s32":
            bench.case(text.replace(".s32.", ".satfinite.s32.", 1), {**held_a, **held_b, **held_c}, **held_d)
        # D in the registers of C, as compilers write it.
        again = ", ".join(listed(v) for v in (held_c, held_a, held_b, held_c))
        moves = "".join(f"mov.b{8 * v.itemsize} d{i}, c{i};" for i, v in enumerate(held_d.values()))
        bench.case(
            f"mma.sync.aligned.{shape}.row.col.{types} {again}; {moves}",
            {**held_a, **held_b, **held_c},
            **held_d,
        )
    report = bench.check()
    flops = report.counters["all"]["mma_flops"]
    each = [2 * int(s[1:].split("n")[0]) * 8 * int(s.split("k")[1]) for s, *_ in MMA]
    whole = [f for f, (*_, total) in zip(each, MMA, strict=True) if total == "s32"]
    assert flops == 2 * (2 * sum(each) + sum(whole))
    assert report.counters["all"]["mma"]["m16n8k32.s8.u8"] == 2 * 3


def test_tf32_looks_at_no_more_than_its_bits() -> None:
    bench = Bench()
    rng = np.random.default_rng(5)
    a, b = some(rng, "tf32", (16, 8)), some(rng, "tf32", (8, 8))
    wanted = (a @ b).astype(np.float32)
    noisy = {n: v | np.uint32(0x1FFF) for n, v in registers(a, a_place("tf32", 8), "a").items()}
    given = (
        noisy | registers(b, b_place("tf32", 8), "b") | registers(np.zeros((16, 8), np.float32), c_place, "c")
    )
    held_d = registers(wanted, c_place, "d")
    operands = "{d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}"
    bench.case(f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {operands};", given, **held_d)
    bench.check()


def test_movmatrix_transposes() -> None:
    bench = Bench()
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    place: Place = lambda g, t, i: (g, 2 * t + i)  # noqa: E731
    given, wanted = registers(matrix, place, "a"), registers(matrix.T.copy(), place, "d")
    bench.case("movmatrix.sync.aligned.m8n8.trans.b16 d0, a0;", given, **wanted)
    bench.check()


SHARED = """
.shared .align 32 .b8 s[4096];
.reg .b32 %tid, %r<20>; .reg .b64 %in, %to, %rd<9>; .reg .pred %p<4>;
ld.param.u64 %in, [a]; ld.param.u64 %to, [out]; mov.u32 %tid, %tid.x;
mad.wide.u32 %in, %tid, 16, %in; mad.wide.u32 %to, %tid, 16, %to; mov.b32 %r10, s;
mad.lo.u32 %r11, %tid, 16, %r10;
"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix(count: int, trans: str) -> None:
    """Rows lie in shared memory in an order of their own; lane i of the first 8 * count names row i."""
    rows = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8)
    order = np.random.default_rng(count).permutation(32)
    names = ", ".join(f"%r{i}" for i in range(count))
    vector = f"{{{names}}}"
    body = (
        SHARED
        + "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%in]; st.shared.v4.b32 [%r11], {%r0, %r1, %r2, %r3};\n"
    )
    body += "mov.b32 %r0, 0; mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b32 %r3, 0;\n"
    # order[lane], from the second half of the input.
    body += (
        "mov.u64 %rd1, %in; ld.global.b32 %r12, [%rd1+512]; mad.lo.u32 %r13, %r12, 16, %r10; bar.sync 0;\n"
    )
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {vector}, [%r13];\n"
    body += "st.global.v4.b32 [%to], {%r0, %r1, %r2, %r3};\n"
    # And back: by stmatrix to the second kilobyte, each matrix the other way.
    body += f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r13+1024], {vector}; bar.sync 0;\n"
    body += f"setp.lt.u32 %p1, %tid, {8 * count};\n"
    body += "mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;\n"
    body += "@%p1 ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r13+1024];\n"
    body += "st.global.v4.b32 [%to+512], {%r4, %r5, %r6, %r7}; ret;"
    given = np.zeros((2, 32, 4), np.uint32)
    given[0] = rows.view(np.uint32)
    given[1, :, 0] = order
    out = np.zeros((2, 32, 4), np.uint32)
    run(text_kernel(body), given, out)
    wanted = np.zeros((32, 4), np.uint32)
    for lane in range(32):
        for i in range(count):
            tile = rows[order[8 * i : 8 * i + 8]]
            tile = tile.T if trans else tile
            low, high = int(tile[lane // 4, 2 * (lane % 4)]), int(tile[lane // 4, 2 * (lane % 4) + 1])
            wanted[lane, i] = low | high << 16
    assert (out[0] == wanted).all()
    back = out[1].copy().view(np.uint16)
    assert (back[: 8 * count] == rows[order[: 8 * count]]).all()


WMMA = [("m16n16k16", 16, 16, 16), ("m8n32k16", 8, 32, 16), ("m32n8k16", 32, 8, 16)]


def wmma_run(
    shape: str, layouts: tuple[str, str, str, str], total: str, seed: int, kind: str = "f16", pad: int = 0,
    space: str = "global",
) -> tuple[Array, Array, Report]:  # fmt: skip
    """out = A B + C with matrices stored by row or column, and what it should be."""
    m, n, k = next(v[1:] for v in WMMA if v[0] == shape)
    rng = np.random.default_rng(seed)
    la, lb, lc, ld = layouts
    a, b = some(rng, kind, (m, k)), some(rng, kind, (k, n))
    dtype: Any = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[total]
    c = rng.integers(-9, 10, (m, n)).astype(dtype)

    def stored(matrix: Array, layout: str) -> Array:
        flat = matrix if layout == "row" else matrix.T
        wide = np.zeros((flat.shape[0], flat.shape[1] + pad), flat.dtype)
        wide[:, : flat.shape[1]] = flat
        return wide

    sa, sb, sc = stored(a, la), stored(b, lb), stored(c, lc)
    rows = m if ld == "row" else n
    out = np.zeros((rows, (n if ld == "row" else m) + pad), dtype)
    of_ab = {"f16": (8, 8), "bf16": {"m16n16k16": (4, 4), "m8n32k16": (2, 8), "m32n8k16": (8, 2)}.get(shape),
             "s8": {"m16n16k16": (2, 2), "m8n32k16": (1, 4), "m32n8k16": (4, 1)}.get(shape)}  # fmt: skip
    of_ab["u8"] = of_ab["s8"]
    na, nb = of_ab[kind]  # type: ignore[misc]
    nc = 8 if total != "f16" else 4

    def names(letter: str, count: int) -> str:
        return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"

    def pitch(matrix: Array) -> str:
        return f", {matrix.shape[1]}" if pad else ""

    types = f"{total}.{total}" if kind == "f16" else f"{total}.{kind}.{kind}.{total}"
    where = f".{space}" if space else ""
    operands = (names("d", nc), names("a", na), names("b", nb), names("c", nc))
    body = ".reg .b32 %a<8>, %b<8>, %c<8>, %d<8>; .reg .b64 %rd<9>;\n" + "".join(
        f"ld.param.u64 %rd{i}, [{p}];\n" for i, p in enumerate(("a", "b", "c", "out"))
    )
    body += f"""
wmma.load.a.sync.aligned.{la}.{shape}{where}.{kind} {names("a", na)}, [%rd0]{pitch(sa)};
wmma.load.b.sync.aligned.{lb}.{shape}{where}.{kind} {names("b", nb)}, [%rd1]{pitch(sb)};
wmma.load.c.sync.aligned.{lc}.{shape}{where}.{total} {names("c", nc)}, [%rd2]{pitch(sc)};
wmma.mma.sync.aligned.{la}.{lb}.{shape}.{types} {", ".join(operands)};
wmma.store.d.sync.aligned.{ld}.{shape}{where}.{total} [%rd3], {names("d", nc)}{pitch(out)};
ret;"""
    params = ", ".join(f".param .u64 {p}" for p in ("a", "b", "c", "out"))
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=(),
        steps=(Launch("run", tuple(map(Arg.ptr, ("a", "b", "c", "out"))), grid=(1, 1, 1), block=(32, 1, 1)),),
    )  # fmt: skip
    report = run_plan(
        text_kernel(body, params), plan, {}, {"a": sa, "b": sb, "c": sc, "out": out}, {},
        order=Order("late", seed), stop_at_first=False,
    )  # fmt: skip
    wanted = (a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)).astype(dtype)
    found = out[:, : out.shape[1] - pad]
    return found if ld == "row" else found.T, wanted, report


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("total", ["f16", "f32"])
@pytest.mark.parametrize("shape", [w[0] for w in WMMA])
def test_wmma_of_halves(shape: str, total: str, seed: int) -> None:
    for n in range(16):
        a, b, c, d = (("row", "col")[n >> i & 1] for i in range(4))
        found, wanted, report = wmma_run(shape, (a, b, c, d), total, seed, space=("global", "")[n % 2])
        assert report.clean, report.faults
        assert (found == wanted).all(), (a, b, c, d)


@pytest.mark.parametrize("kind", ["bf16", "s8", "u8"])
@pytest.mark.parametrize("shape", [w[0] for w in WMMA])
def test_wmma_of_other_types(shape: str, kind: str) -> None:
    total = "f32" if kind == "bf16" else "s32"
    for n in range(4):
        layouts = (("row", "col")[n & 1], ("row", "col")[n >> 1], "row", "col")
        found, wanted, report = wmma_run(shape, layouts, total, n, kind)
        assert report.clean, report.faults
        assert (found == wanted).all()


def test_wmma_with_a_pitch_stays_inside_and_is_aligned() -> None:
    found, wanted, report = wmma_run("m16n16k16", ("row", "col", "col", "row"), "f32", 3, pad=16)
    assert {f.kind for f in report.faults} == {FaultKind.NOT_WRITTEN}, report.faults  # the padding
    assert (found == wanted).all()
    _, _, report = wmma_run("m16n16k16", ("row", "row", "row", "row"), "f32", 3, pad=3)
    assert report.faults[0].kind is FaultKind.MISALIGNED
    assert "multiple" in report.faults[0].message


def faults_of(text: str, block: int = 32) -> Report:
    body = SHARED + "".join(f"st.shared.v4.b32 [%r11+{n}], {{%tid, %tid, %tid, %tid}};\n" for n in (0, 512))
    body += f"bar.sync 0;\n{text}\nst.global.v4.b32 [%to], {{%tid, %tid, %tid, %tid}}; ret;"
    return run(
        text_kernel(body), np.zeros(1024, np.uint32), np.zeros(4 * block, np.uint32), block=block, clean=False
    )


EIGHT = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}"


LDM = "ldmatrix.sync.aligned.m8n8"
WMMA_A = f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {EIGHT}"


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        (f"add.u32 %r11, %r11, 4; {LDM}.x1.shared.b16 {{%r0}}, [%r11];", FaultKind.MISALIGNED, "16 bytes"),
        (f"{LDM}.x2.shared.b16 {{%r0, %r1}}, [%r11+4096];", FaultKind.OUT_OF_BOUNDS, "4096 bytes"),
        (f"{LDM}.x1.shared.b16 {{%r0}}, [%r11+1024];", FaultKind.READ_UNWRITTEN, "nobody"),
        (f"setp.lt.u32 %p1, %tid, 8; @%p1 {LDM}.x1.shared.b16 {{%r0}}, [%r11];"
         "WAIT: bar.warp.sync -1; @%p1 bra WAIT; bra WAIT;", FaultKind.DIVERGENCE, "8 of its 32"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r11+-16], {%r0};", FaultKind.OUT_OF_BOUNDS, "-16"),
        (f"mad.lo.u32 %r12, %tid, 32, %r10; {WMMA_A}, [%r12];", FaultKind.DIVERGENCE, "different tiles"),
        (f"{WMMA_A}, [%r10+16];", FaultKind.MISALIGNED, "32 bytes"),
        (f"{WMMA_A}, [%r10], 4;", FaultKind.MISALIGNED, "8 bytes apart"),
        (f"{WMMA_A}, [%r10], 16; wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r10], {EIGHT};",
         FaultKind.RACE, "overwrites"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tile_is_a_fault(text: str, kind: FaultKind, word: str) -> None:
    report = faults_of(text)
    assert [f.kind for f in report.faults] == [kind], report.faults
    assert word in report.faults[0].message, report.faults[0].message


def test_a_warp_that_lacks_lanes_multiplies_nothing() -> None:
    text = "mov.b32 %r1, %tid; movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1; st.global.b32 [%to], %r0; ret;"
    program, out = text_kernel(SHARED + text), np.zeros(192, np.uint32)
    report = run(program, np.zeros(1024, np.uint32), out, block=48, clean=False)
    assert [f.kind for f in report.faults] == [FaultKind.DIVERGENCE]
    assert report.faults[0].warp == 1
    assert "16 do not exist" in report.faults[0].message


FOUR, TWO = "{%r0, %r1, %r2, %r3}", "{%r0, %r1}"
MMA16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{LDM}.x4.shared.b16 {TWO}, [%r10];", "2 registers for 4"),
        (f"ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {TWO}, [%r10];", "m16n16"),
        (f"{MMA16.replace('col', 'row')} {FOUR}, {FOUR}, {TWO}, {FOUR};", "col"),
        (f"{MMA16.replace('f16.f16', 'f16.bf16')} {FOUR}, {FOUR}, {TWO}, {FOUR};", "bf16"),
        (f"{MMA16} {FOUR}, {TWO}, {TWO}, {FOUR};", "registers"),
        (f"{MMA16} {TWO}, {FOUR}, {TWO}, {FOUR};", "2 registers of D"),
        (f"{MMA16} {FOUR}, {FOUR}, {TWO}, {TWO};", "registers"),
        (f"mma.sp{MMA16[3:]} {FOUR}, {FOUR}, {TWO}, {FOUR}, %r0, 0;", "sp"),
        (f"wmma.load.a.sync.aligned.m16n16k16.shared.f16 {EIGHT}, [%r10];", "none of .row, .col"),
        (f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {TWO}, [%r10];", "2 registers, not 8"),
    ],
)
def test_what_matrices_do_not_know_is_an_error_with_its_line(text: str, word: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        faults_of(text)
    assert "line 16" in str(caught.value), caught.value
    assert word in str(caught.value), caught.value
