"""Do loads, stores, atomics and addresses of every space reach the right bytes, in every width?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rooftile.plan import Arg, Launch, LaunchPlan
from support.instructions import Array, integers, reals, run, text_kernel

from emulator import EmulatorError, FaultKind, run_plan

START = """
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<40>, %in, %to; .reg .b32 %tid;
ld.param.u64 %in, [a]; ld.param.u64 %to, [out]; mov.u32 %tid, %tid.x;
"""
TYPES = {"b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}


def at(base: str, size: int, register: str) -> str:
    """`register` = base + thread * size."""
    return f"mad.wide.u32 {register}, %tid, {size}, {base};\n"


@pytest.mark.parametrize(
    ("kind", "count"),
    [(k, n) for k in TYPES for n in (1, 2, 4) if int(k[1:]) * n <= 256] + [("b32", 8)],
)
def test_vectors_of_every_width_through_shared_memory(kind: str, count: int) -> None:
    size = np.dtype(TYPES[kind]).itemsize
    width = {1: 16, 2: 16, 4: 32, 8: 64}[size]
    names = [f"x{i}" for i in range(count)]
    swapped = names[::-1]
    vector = f".v{count}" if count > 1 else ""
    show = "{%s}" if count > 1 else "%s"
    body = START + f".reg .b{width} {', '.join(names)};\n"
    body += at("%in", size * count, "%rd1") + at("%to", size * count, "%rd2")
    body += f"mov.b32 %r1, s; mad.lo.u32 %r2, %tid, {size * count}, %r1;\n"
    body += f"ld.global{vector}.{kind} {show % ', '.join(names)}, [%rd1];\n"
    body += f"st.shared{vector}.{kind} [%r2], {show % ', '.join(swapped)};\n"
    body += f"ld.shared{vector}.{kind} {show % ', '.join(names)}, [%r2];\n"
    body += f"st.global{vector}.{kind} [%rd2], {show % ', '.join(names)};\nret;"
    a = np.arange(32 * count * 3, dtype=np.uint64).astype(TYPES[kind])[: 32 * count].reshape(32, count)
    out = np.zeros_like(a)
    program = text_kernel(f".shared .align 32 .b8 s[{32 * size * count}];" + body, target="sm_100a")
    report = run(program, a, out)
    assert (out == a[:, ::-1]).all()
    counted = report.counters["all"]["bytes"]
    assert counted["register_to_shared"] == counted["shared_to_register"] == a.nbytes
    assert counted["global_to_register"] == counted["register_to_global"] == a.nbytes


def test_narrow_loads_are_extended_and_narrow_stores_cut() -> None:
    a = integers(1, np.uint64)[:32].copy()
    cases: list[tuple[str, int, Callable[[Array], Array]]] = []
    for bits in (8, 16, 32):
        low: Any = np.dtype(f"u{bits // 8}")
        for register in (16, 32, 64):
            if register < bits:
                continue
            signed: Any = np.dtype(f"i{bits // 8}")
            for kind, cast in ((f"u{bits}", low), (f"b{bits}", low), (f"s{bits}", signed)):
                wide: Any = np.dtype(f"i{register // 8}")
                cases.append((kind, register, lambda v, c=cast, r=wide, n=low: v.astype(n).view(c).astype(r)))
    body = START + at("%in", 8, "%rd1") + at("%to", 8 * len(cases), "%rd2")
    for i, (kind, register, _) in enumerate(cases):
        reg = {16: "%h1", 32: "%r1", 64: "%rd3"}[register]
        body += f"ld.global.{kind} {reg}, [%rd1];\n"
        body += f"mov.b64 %rd4, 0; st.global.b64 [%rd2+{8 * i}], %rd4;\n"
        body += f"st.global.b{register} [%rd2+{8 * i}], {reg};\n"
    out = np.zeros((32, len(cases)), np.uint64)
    run(text_kernel(body + "ret;"), a, out)
    for i, (kind, register, function) in enumerate(cases):
        wanted = function(a).view(np.dtype(f"u{register // 8}")).astype(np.uint64)
        assert (out[:, i] == wanted).all(), (kind, register)
    # A store takes the low bits of a wider register.
    body = (
        START
        + at("%in", 8, "%rd1")
        + at("%to", 2, "%rd2")
        + "ld.global.b64 %rd3, [%rd1]; st.global.b16 [%rd2], %rd3; ret;"
    )
    narrow = np.zeros(32, np.uint16)
    run(text_kernel(body), a, narrow)
    assert (narrow == a.astype(np.uint16)).all()


def test_parameters_of_every_width_and_part() -> None:
    params = (".param .u64 a, .param .u64 out, .param .u32 i, .param .s64 l, .param .f32 f, .param .u32 j,"
              " .param .f64 d")  # fmt: skip
    loads = [
        ("u32", "%r1", "[i]"), ("s64", "%rd5", "[l]"), ("f32", "%r1", "[f]"), ("f64", "%rd5", "[d]"),
        ("u32", "%r1", "[j]"),
        ("u8", "%r1", "[i+1]"), ("s8", "%r1", "[i+3]"), ("u16", "%r1", "[i+2]"), ("s16", "%rd5", "[i+2]"),
        ("b32", "%r1", "[l+4]"),
    ]  # fmt: skip
    body = START + at("%to", 8 * (len(loads) + 4), "%rd2") + "mov.b64 %rd6, 0;\n"
    for n, (kind, reg, where) in enumerate(loads):
        bits = 32 if reg == "%r1" else 64
        body += f"ld.param.{kind} {reg}, {where};\n"
        body += f"st.global.b64 [%rd2+{8 * n}], %rd6; st.global.b{bits} [%rd2+{8 * n}], {reg};\n"
    n = len(loads)
    body += "ld.param.v2.u16 {%h1, %h2}, [i]; mov.b32 %r1, {%h2, %h1}; cvt.u64.u32 %rd5, %r1;\n"
    body += f"st.global.b64 [%rd2+{8 * n}], %rd5;\n"
    # Through a register, and through a generic address.
    body += f"mov.b64 %rd7, l; ld.param.s64 %rd5, [%rd7]; st.global.b64 [%rd2+{8 * n + 8}], %rd5;\n"
    body += f"cvta.param.u64 %rd8, %rd7; ld.s64 %rd5, [%rd8]; st.global.b64 [%rd2+{8 * n + 16}], %rd5;\n"
    body += (
        f"isspacep.param %p1, %rd8; selp.b64 %rd5, 1, 0, %p1; st.global.b64 [%rd2+{8 * n + 24}], %rd5; ret;"
    )
    args = (Arg.ptr("a"), Arg.ptr("out"), Arg("i", "u32", value="i"), Arg.i64("l"), Arg.f32("alpha"),
            Arg("j", "u32", value="j"),
            Arg("beta", "f64", scalar="beta"))  # fmt: skip
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=("i", "j", "l"),
        steps=(Launch("run", args, grid=(1, 1, 1), block=(32, 1, 1)),),
    )  # fmt: skip
    out = np.zeros((32, n + 4), np.uint64)
    sizes = {"i": 0x81C2F3E4, "j": 77, "l": 0x1234567890ABCDE}
    report = run_plan(
        text_kernel(body, params), plan, sizes, {"a": np.zeros(1), "out": out}, {"alpha": 1.5, "beta": -2.25}
    )
    assert report.clean, report.faults
    i, long = sizes["i"], sizes["l"]
    wanted = [
        i, long, int(np.float32(1.5).view(np.uint32)), int(np.float64(-2.25).view(np.uint64)), 77,
        0xF3, 0xFFFFFF81, 0x81C2, 0xFFFFFFFFFFFF81C2, long >> 32, (i & 0xFFFF) << 16 | i >> 16, long, long, 1,
    ]  # fmt: skip
    assert [hex(v) for v in out[5].tolist()] == [hex(v) for v in wanted]
    assert (out == out[:1]).all()


def test_local_memory_is_each_threads_own() -> None:
    body = (
        """
.local .align 16 .b8 __local_depot0[64];
.local .b32 other[4];
"""
        + START
        + at("%in", 4, "%rd1")
        + at("%to", 16, "%rd2")
        + """
mov.b64 %rd3, __local_depot0; cvta.local.u64 %rd4, %rd3;
ld.global.b32 %r1, [%rd1];
and.b32 %r2, %tid, 15; mul.wide.u32 %rd5, %r2, 4; add.s64 %rd6, %rd3, %rd5; add.s64 %rd7, %rd4, %rd5;
st.local.b32 [%rd6], %r1;
ld.b32 %r3, [%rd7];
add.u32 %r4, %r3, 1; st.b32 [%rd7], %r4;
ld.local.b32 %r5, [%rd6];
st.local.b32 [other+8], %r5; ld.local.u16 %r6, [other+8];
setp.lt.u32 %p1, %tid, 16; mov.b32 %r7, 5;
@%p1 st.local.v2.b32 [__local_depot0+8], {%r1, %r7};
@%p1 ld.local.b32 %r7, [__local_depot0+8];
st.global.v4.b32 [%rd2], {%r3, %r5, %r6, %r7}; ret;
"""
    )
    a = integers(3, np.uint32)[:32].copy()
    out = np.zeros((32, 4), np.uint32)
    run(text_kernel(body), a, out)
    assert (out[:, 0] == a).all()
    assert (out[:, 1] == a + 1).all()
    assert (out[:, 2] == (a + 1 & 0xFFFF)).all()
    assert (out[:, 3] == np.where(np.arange(32) < 16, a, 5)).all()


def test_compiled_code_with_an_indexed_local_array(cuda: Any) -> None:
    text = """
extern "C" __global__ void run(const int* a, int* out) {
    int held[8];
    for (int i = 0; i < 8; ++i) held[(i * 3 + threadIdx.x) % 8] = a[i] + threadIdx.x;
    int* p = held;
    for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = p[(a[i] + threadIdx.x) & 7];
}
"""
    a = np.array([5, 2, 7, 7, 0, 1, 3, 6], np.int32)
    out = np.zeros((32, 8), np.int32)
    program = cuda(text)
    assert any(i.opcode in ("ld", "st") and "local" in i.modifiers for i in program.kernel("run").body)
    run(program, a, out)
    for t in range(32):
        held = [0] * 8
        for i in range(8):
            held[(i * 3 + t) % 8] = int(a[i]) + t
        assert out[t].tolist() == [held[(int(a[i]) + t) & 7] for i in range(8)]


VARIABLES = """
.const .align 4 .u32 table[8] = {10, 20, 30, 40, 50, 60, 70, 80};
.global .align 8 .f64 real = 0d3FF8000000000000;
.global .align 4 .b8 bytes[8] = {1, 2, 3, 4, 255};
.global .align 8 .u64 where[2] = {table, generic(bytes)+2};
.global .align 4 .u32 count = 7;
"""


def test_variables_of_the_module_with_their_initial_values() -> None:
    body = (
        START
        + at("%to", 40, "%rd2")
        + """
and.b32 %r1, %tid, 7; mul.wide.u32 %rd3, %r1, 4; mov.b64 %rd4, table; add.s64 %rd5, %rd4, %rd3;
ld.const.u32 %r2, [%rd5]; ld.const.u32 %r3, [table+12];
ld.global.f64 %rd6, [real];
ld.global.s8 %r4, [bytes+4]; ld.global.u8 %r5, [bytes+7];
ld.global.u64 %rd7, [where+8]; ld.u8 %r6, [%rd7];
cvta.const.u64 %rd8, %rd5; ld.u32 %r7, [%rd8];
ld.global.u64 %rd9, [where]; ld.const.u32 %r8, [%rd9+4];
isspacep.const %p1, %rd8; isspacep.global %p2, %rd7; selp.b32 %r9, 1, 0, %p1; selp.b32 %r10, 2, 0, %p2;
or.b32 %r9, %r9, %r10;
isspacep.global %p3, %rd8; selp.b32 %r10, 4, 0, %p3; or.b32 %r9, %r9, %r10;
st.global.v2.b32 [%rd2], {%r2, %r3}; st.global.v2.b32 [%rd2+8], {%r4, %r5};
st.global.v2.b32 [%rd2+16], {%r6, %r7};
st.global.b64 [%rd2+24], %rd6;
st.global.v2.b32 [%rd2+32], {%r8, %r9}; ret;
"""
    )
    out = np.zeros((32, 10), np.uint32)
    run(text_kernel(body, before=VARIABLES), np.zeros(1), out)
    table = 10 * (np.arange(32) % 8 + 1)
    assert (out[:, 0] == table).all()
    assert (out[:, 5] == table).all()
    assert (out[:, [1, 2, 3, 4, 8, 9]] == [40, 0xFFFFFFFF, 0, 3, 20, 3]).all()
    assert (out[:, 6:8].copy().view(np.float64) == 1.5).all()


def test_a_variable_keeps_its_value_between_the_steps_of_a_plan() -> None:
    body = (
        START
        + at("%to", 4, "%rd2")
        + """
setp.eq.u32 %p1, %tid, 0; @%p1 red.global.add.u32 [count], 5; bar.sync 0;
ld.volatile.global.u32 %r1, [count]; st.global.b32 [%rd2], %r1; ret;
"""
    )
    step = Launch("run", (Arg.ptr("a"), Arg.ptr("out")), grid=(1, 1, 1), block=(32, 1, 1))
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=(), steps=(step, step)
    )
    program = text_kernel(body, before=VARIABLES)
    for _ in range(2):  # and starts anew with each plan
        out = np.zeros(32, np.uint32)
        report = run_plan(program, plan, {}, {"a": np.zeros(1), "out": out}, {})
        assert report.clean, report.faults
        assert (out == 17).all()


def test_generic_addresses_of_every_space() -> None:
    body = (
        """
.shared .align 4 .b32 s[32]; .local .align 4 .b32 l[2];
"""
        + START
        + at("%in", 4, "%rd1")
        + at("%to", 32, "%rd2")
        + """
mov.b64 %rd3, s; cvta.shared.u64 %rd3, %rd3; mad.wide.u32 %rd3, %tid, 4, %rd3;
mov.b64 %rd4, l; cvta.local.u64 %rd4, %rd4; cvta.global.u64 %rd5, %rd1;
ld.b32 %r1, [%rd5]; st.b32 [%rd3], %r1; ld.b32 %r2, [%rd3]; st.b32 [%rd4+4], %r2; ld.b32 %r3, [%rd4+4];
cvta.to.shared.u64 %rd6, %rd3; cvt.u32.u64 %r4, %rd6; ld.shared.b32 %r5, [%r4];
cvta.to.local.u64 %rd7, %rd4; ld.local.b32 %r6, [%rd7+4];
cvta.to.global.u64 %rd8, %rd5; ld.global.b32 %r7, [%rd8];
mov.b32 %r20, 0;
"""
        + "".join(
            f"isspacep.{space} %p1, {reg}; selp.b32 %r21, {1 << n}, 0, %p1; or.b32 %r20, %r20, %r21;\n"
            for n, (space, reg) in enumerate(
                (space, reg)
                for reg in ("%rd3", "%rd4", "%rd5")
                for space in ("shared", "local", "global", "const", "param")
            )
        )
        + """
// Lanes that name different spaces at one instruction.
and.b32 %r22, %tid, 1; setp.eq.u32 %p2, %r22, 0; selp.b64 %rd9, %rd3, %rd5, %p2; ld.b32 %r8, [%rd9];
st.v4.b32 [%rd2], {%r3, %r5, %r6, %r7}; st.v2.b32 [%rd2+16], {%r20, %r8}; st.b64 [%rd2+24], %rd3; ret;
"""
    )
    a = integers(5, np.uint32)[:32].copy()
    out = np.zeros((32, 8), np.uint32)
    run(text_kernel(body), a, out)
    for i in (0, 1, 2, 3, 5):
        assert (out[:, i] == a).all(), i
    assert (out[:, 4] == 0b00100_00010_00001).all()


ATOMICS: list[tuple[str, str, Callable[[int, int, int], int]]] = [
    ("add", "u32", lambda x, b, c: x + b), ("add", "s32", lambda x, b, c: x + b),
    ("add", "u64", lambda x, b, c: x + b),
    ("min", "u32", lambda x, b, c: min(x, b)), ("max", "u64", lambda x, b, c: max(x, b)),
    ("min", "s32", lambda x, b, c: min(x, b)), ("max", "s64", lambda x, b, c: max(x, b)),
    ("and", "b32", lambda x, b, c: x & b), ("or", "b64", lambda x, b, c: x | b),
    ("xor", "b32", lambda x, b, c: x ^ b),
    ("exch", "b32", lambda x, b, c: b), ("exch", "b64", lambda x, b, c: b),
    ("inc", "u32", lambda x, b, c: 0 if x >= b else x + 1),
    ("dec", "u32", lambda x, b, c: b if x == 0 or x > b else x - 1),
    ("cas", "b32", lambda x, b, c: c if x == b else x), ("cas", "b64", lambda x, b, c: c if x == b else x),
]  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize(("op", "kind", "function"), ATOMICS, ids=[f"{o}.{k}" for o, k, _ in ATOMICS])
def test_atomics_take_turns(op: str, kind: str, function: Callable[..., int], space: str) -> None:
    """Four words; each lane works on one of them. Old values and the last one, in the order of lanes."""
    bits = int(kind[1:])
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{bits // 8}")
    b = integers(11, dtype)[:32].copy()
    if op in ("inc", "dec"):
        b = (np.arange(32) % 5).astype(dtype)
    if op == "cas":
        b = np.where(np.arange(32) % 3 == 0, 0, 9).astype(dtype)
    size, reg = bits // 8, "%r" if bits == 32 else "%rd"
    swap = f", {reg}12" if op == "cas" else ""
    body = (
        f".shared .align 8 .b8 s[{4 * size}];"
        + START
        + at("%in", size, "%rd1")
        + at("%to", size, "%rd2")
        + f"""
and.b32 %r1, %tid, 3; ld.global.b{bits} {reg}11, [%rd1]; mov.b{bits} {reg}12, 9; mov.b{bits} {reg}14, 0;
mov.b32 %r3, s; mad.lo.u32 %r3, %r1, {size}, %r3;
setp.lt.u32 %p1, %tid, 4;
@%p1 st.shared.b{bits} [%r3], {reg}14;
mul.wide.u32 %rd3, %r1, {size}; add.s64 %rd4, %to, %rd3; add.s64 %rd4, %rd4, {32 * size};
@%p1 st.global.b{bits} [%rd4], {reg}14;
bar.sync 0;
cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5;
"""
    )
    where = {"global": "[%rd4]", "shared": "[%r3]", "": "[%rd5]"}[space]
    name = f".{space}" if space else ""
    body += f"atom{name}.{op}.{kind} {reg}13, {where}, {reg}11{swap};\n"
    body += f"st.global.b{bits} [%rd2], {reg}13; bar.sync 0;\n"
    if space != "global":
        body += f"@%p1 ld.shared.b{bits} {reg}15, [%r3]; @%p1 st.global.b{bits} [%rd4], {reg}15;\n"
    out = np.zeros(36, dtype)
    run(text_kernel(body + "ret;"), b, out)
    words, old = [0, 0, 0, 0], []
    mask = (1 << bits) - 1
    for lane, value in enumerate(b.tolist()):
        now = words[lane % 4]
        old.append(now)
        words[lane % 4] = int(
            np.array(function(now, value, 9) & mask, np.uint64).astype(f"u{bits // 8}").view(dtype)
        )
    assert out.tolist() == old + words


@pytest.mark.parametrize(
    ("kind", "values"),
    [("f32", reals(21, np.float32, special=False)), ("f64", reals(22, np.float64, special=False)),
     ("f16", reals(23, np.float16, special=False)), ("f16x2", reals(24, np.float16, special=False))],
)  # fmt: skip
def test_atomic_sums_of_floats(kind: str, values: Array) -> None:
    pair = kind.endswith("x2")
    b = values[:32].copy() if not pair else values.copy()
    size = b.itemsize * (2 if pair else 1)
    reg = {2: "%h1", 4: "%r1", 8: "%rd9"}[size]
    some = ".noftz" if "f16" in kind else ""
    zero = {2: "%h2", 4: "%r2", 8: "%rd10"}[size]
    body = (
        START
        + at("%in", size, "%rd1")
        + f"""
setp.eq.u32 %p1, %tid, 0; mov.b{8 * size} {zero}, 0; @%p1 st.global.b{8 * size} [%to], {zero}; bar.sync 0;
ld.global.b{8 * size} {reg}, [%rd1]; red.relaxed.gpu.global.add{some}.{kind} [%to], {reg}; ret;
"""
    )
    out = np.zeros(2 if pair else 1, b.dtype)
    run(text_kernel(body), b, out)
    for half in range(len(out)):
        total = b.dtype.type(0)
        for v in b.reshape(32, -1)[:, half]:
            total = b.dtype.type(total + v)
        assert out[half] == total


def test_a_guard_keeps_lanes_from_memory() -> None:
    body = (
        START
        + at("%in", 4, "%rd1")
        + at("%to", 8, "%rd2")
        + """
and.b32 %r1, %tid, 1; setp.eq.u32 %p1, %r1, 0; mov.b32 %r2, 7; mov.b32 %r5, 3; mov.b32 %r7, 11;
@%p1 ld.global.b32 %r2, [%rd1]; @!%p1 add.s64 %rd3, %rd1, 1073741824; @%p1 mov.b64 %rd3, %rd1;
@%p1 ld.b32 %r5, [%rd3];
st.global.v2.b32 [%rd2], {%r7, %r7}; @%p1 st.global.v2.b32 [%rd2], {%r2, %r5};
@!%p1 atom.global.add.u32 %r8, [%rd2], 1; @%p1 red.global.add.u32 [%rd2+4], 2; ret;
"""
    )
    a = integers(31, np.uint32)[:32].copy()
    out = np.zeros((32, 2), np.uint32)
    run(text_kernel(body), a, out)
    even = np.arange(32) % 2 == 0
    assert (out[:, 0] == np.where(even, a, 12)).all()
    assert (out[:, 1] == np.where(even, a + 2, 11)).all()


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("ld.global.b32 %r1, [%in+126];", FaultKind.MISALIGNED, "4 bytes"),
        ("ld.global.v2.b32 {%r1, %r2}, [%in+4];", FaultKind.MISALIGNED, "8 bytes"),
        ("ld.shared.b32 %r1, [s+128];", FaultKind.OUT_OF_BOUNDS, "128 bytes"),
        ("st.shared.b64 [s+124], %rd1;", FaultKind.MISALIGNED, "8 bytes"),
        ("mov.b32 %r1, s; ld.shared.b32 %r2, [%r1+-4];", FaultKind.OUT_OF_BOUNDS, "-4"),
        ("st.local.b32 [l+8], %r1;", FaultKind.OUT_OF_BOUNDS, "local"),
        ("ld.local.b32 %r1, [l+-4];", FaultKind.OUT_OF_BOUNDS, "local"),
        ("ld.global.b32 %r1, [%in+128];", FaultKind.OUT_OF_BOUNDS, "leave"),
        ("ld.b32 %r1, [%rd20];", FaultKind.MISALIGNED, "4 bytes"),
        ("mov.b64 %rd1, 64; ld.b32 %r1, [%rd1];", FaultKind.OUT_OF_BOUNDS, "every space"),
        ("mov.b64 %rd1, 64; ld.global.b32 %r1, [%rd1];", FaultKind.OUT_OF_BOUNDS, "no buffer"),
        ("mov.b64 %rd1, -64; st.global.b32 [%rd1], %r1;", FaultKind.OUT_OF_BOUNDS, "no buffer"),
        ("mov.b64 %rd1, i; ld.param.b32 %r1, [%rd1+12];", FaultKind.OUT_OF_BOUNDS, "parameters"),
        ("st.global.b32 [%in], %r1;", FaultKind.OUT_OF_BOUNDS, "input"),
        ("red.global.add.u32 [%in], %r1;", FaultKind.OUT_OF_BOUNDS, "input"),
        ("ld.shared.b32 %r1, [s];", FaultKind.READ_UNWRITTEN, "nobody"),
        ("ld.volatile.shared.b32 %r1, [s];", FaultKind.READ_UNWRITTEN, "nobody"),
        ("atom.shared.add.u32 %r1, [s], 1;", FaultKind.READ_UNWRITTEN, "nobody"),
    ],
)
def test_an_access_that_is_not_right_is_a_fault(text: str, kind: FaultKind, word: str) -> None:
    body = f".shared .align 8 .b8 s[128]; .local .align 8 .b8 l[8];{START}{at('%to', 4, '%rd2')}"
    body += "st.global.b32 [%rd2], %tid;"
    params = ".param .u64 a, .param .u64 out, .param .u64 i"
    program = text_kernel(f"{body}\n{text}\nret;", params)
    args = (Arg.ptr("a"), Arg.ptr("out"), Arg.i64("i"))
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=("i",),
        steps=(Launch("run", args, grid=(1, 1, 1), block=(32, 1, 1)),),
    )  # fmt: skip
    arrays = {"a": np.zeros(32, np.float32), "out": np.zeros(32, np.float32)}
    report = run_plan(program, plan, {"i": 1}, arrays, {})
    assert [f.kind for f in report.faults] == [kind], report.faults
    assert word in report.faults[0].message, report.faults[0].message
    assert report.faults[0].warp == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("ld.global.v2.b32 %r1, [%in];", "1 registers for 2"),
        ("ld.global.b32 {%r1, %r2}, [%in];", "2 registers for 1"),
        ("ld.global.b64 %r1, [%in];", "32 bits"),
        ("ld.global.b128 %rd1, [%in];", "b128"),
        ("ld.global.v8.b64 {%rd1, %rd2, %rd3, %rd4, %rd5, %rd6, %rd7, %rd8}, [%in];", "32 bytes"),
        ("ld.global.release.gpu.b32 %r1, [%in];", "release"),
        ("st.global.acquire.gpu.b32 [%in], %r1;", "no such store"),
        ("st.const.b32 [%in], %r1;", "no such store"),
        ("st.param.b32 [a], %r1;", "inlined"),
        ("ld.param.u64 %rd1, [out+4];", "parameters"),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r1, [%r1];", "async"),
        ("atom.global.add.s64 %rd1, [%in], %rd2;", "no such operation"),
        ("atom.global.add.f16 %h1, [%in], %h2;", "noftz"),
        ("red.global.exch.b32 [%in], %r2;", "no such operation"),
        ("atom.global.cas.b32 %r1, [%in], %r2;", "operands"),
        ("atom.global.v2.f32.add {%r1, %r2}, [%in], {%r3, %r4};", "vectors"),
        ("cvta.shared.u32 %r1, %r2;", "u64"),
        ("fence.acq_rel;", "scope"),
        ("ld.global.b32 %r1, [nothing];", "nothing"),
        ("mbarrier.init.shared.b32 [%r1], 1;", "b32"),
        ("cp.async.bulk.commit_group 1;", "operands"),
        ("cp.async.cg.shared.global [%r1], [%in], 8;", "8 bytes"),
        ("cp.async.ca.shared.global [%r1], [%in], %r2;", "constant"),
        ("cp.async.wait_group %r1;", "constant"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.s32 [%in], [%r1], 16;", ""),
    ],
)
def test_what_memory_does_not_know_is_an_error_with_its_line(text: str, word: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        run(text_kernel(START + text + "\nret;"), np.zeros(64), np.zeros(64), clean=False)
    assert "line 10" in str(caught.value), caught.value
    assert word in str(caught.value), caught.value
