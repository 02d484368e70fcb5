"""Do predicates, comparisons, selections, guards and special registers work, and is what is malformed
refused?"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rooftile.plan import Arg, Launch, LaunchPlan
from support.instructions import (
    ARITHMETIC,
    BF16,
    MOST,
    THREADS,
    Bench,
    exact,
    flushed,
    integers,
    packed,
    pair64,
    reals,
    run,
    text_kernel,
    truths,
)

from emulator import EmulatorError, run_plan

KINDS = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
}


def test_predicates() -> None:
    bench = Bench()
    p, q = np.arange(THREADS) % 2 == 0, np.arange(THREADS) % 3 == 0
    given = {"p": p, "q": q}
    bench.case("and.pred d, p, q;", given, d=p & q)
    bench.case("or.pred d, p, q;", given, d=p | q)
    bench.case("xor.pred d, p, q;", given, d=p ^ q)
    bench.case("not.pred d, p;", given, d=~p)
    bench.case("and.pred d, p, !q;", given, d=p & ~q)
    bench.case("mov.pred d, p;", given, d=p)
    bench.case("mov.pred d, !p;", given, d=~p)
    bench.case("mov.pred d, 1;", given, d=np.ones(THREADS, np.bool_))
    bench.check()


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def test_comparisons() -> None:
    bench = Bench()
    q = np.arange(THREADS) % 3 == 0
    booleans: dict[str, Callable[[Any, Any], Any]] = {
        "and": np.logical_and,
        "or": np.logical_or,
        "xor": np.logical_xor,
    }
    for n, (kind, dtype) in enumerate(
        {**KINDS, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}.items()
    ):
        a, b = integers(140 + n, dtype), integers(150 + n, dtype)
        a[::4] = b[::4]
        given = {"a": a, "b": b, "q": q}
        for name, function in COMPARISONS.items():
            if kind[0] == "b" and name not in ("eq", "ne"):
                continue
            t = truths(function, a, b)
            bench.case(f"setp.{name}.{kind} d, a, b;", given, d=t)
            for boolean, combine in booleans.items():
                bench.case(
                    f"setp.{name}.{boolean}.{kind} d|e, a, b, q;", given, d=combine(t, q), e=combine(~t, q)
                )
            bench.case(f"setp.{name}.and.{kind} d, a, b, !q;", given, d=t & ~q)
            bench.case(f"setp.{name}.{kind} d|e, a, b;", given, d=t, e=~t)
            bench.case(f"setp.{name}.{kind} _|e, a, b;", given, e=~t)
        if kind[0] != "s":
            continue
        u = {"a": a.view(f"u{dtype().itemsize}"), "b": b.view(f"u{dtype().itemsize}")}
        for name, usual in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
            t = truths(COMPARISONS[usual], u["a"], u["b"])
            bench.case(f"setp.{name}.u{kind[1:]} d, a, b;", u, d=t)
    for n, (kind, dtype) in enumerate(
        (("f32", np.float32), ("f64", np.float64), ("f16", np.float16), ("bf16", BF16))
    ):
        a, b = reals(160 + n, dtype), reals(170 + n, dtype)
        a[::4] = b[::4]
        given = {"a": a, "b": b, "q": q}
        x, y = a.astype(np.float64), b.astype(np.float64)
        nan = np.isnan(x) | np.isnan(y)
        for name, function in COMPARISONS.items():
            t = np.where(nan, False, function(x, y))
            bench.case(f"setp.{name}.{kind} d, a, b;", given, d=t)
            bench.case(f"setp.{name}u.{kind} d, a, b;", given, d=t | nan)
            bench.case(f"setp.{name}.or.{kind} d|e, a, b, q;", given, d=t | q, e=~t | q)
        bench.case(f"setp.num.{kind} d, a, b;", given, d=~nan)
        bench.case(f"setp.nan.{kind} d, a, b;", given, d=nan)
    tiny = np.full(THREADS, 1e-40, np.float32)
    zero = np.zeros(THREADS, np.float32)
    bench.case("setp.eq.f32 d, a, b;", {"a": tiny, "b": zero}, d=np.zeros(THREADS, np.bool_))
    bench.case("setp.eq.ftz.f32 d, a, b;", {"a": tiny, "b": zero}, d=np.ones(THREADS, np.bool_))
    for kind, dtype in (("f16x2", np.dtype(np.float16)), ("bf16x2", BF16)):
        low, high, low2, high2 = (reals(180 + i, dtype) for i in range(4))
        t = np.array(low.astype(np.float64) < low2.astype(np.float64))
        u = np.array(high.astype(np.float64) < high2.astype(np.float64))
        pairs = {"a": packed(low, high), "b": packed(low2, high2), "q": q}
        bench.case(f"setp.lt.{kind} d|e, a, b;", pairs, d=t, e=u)
        bench.case(f"setp.lt.and.{kind} d|e, a, b, q;", pairs, d=t & q, e=u & q)
    bench.check()


def test_set_select_and_properties() -> None:
    bench = Bench()
    q = np.arange(THREADS) % 3 == 0
    a, b = integers(190, np.int32), integers(191, np.int32)
    x, y = reals(192), reals(193)
    t, f = a < b, np.array(x > y)
    given = {"a": a, "b": b, "q": q}
    ones = np.uint32(MOST)
    bench.case("set.lt.u32.s32 d, a, b;", given, d=np.where(t, ones, np.uint32(0)))
    bench.case("set.lt.s32.s32 d, a, b;", given, d=np.where(t, np.int32(-1), np.int32(0)))
    bench.case("set.lt.f32.s32 d, a, b;", given, d=np.where(t, np.float32(1), np.float32(0)))
    bench.case("set.lt.xor.u32.s32 d, a, b, q;", given, d=np.where(t ^ q, ones, np.uint32(0)))
    bench.case("set.gt.f32.f32 d, a, b;", {"a": x, "b": y}, d=np.where(f, np.float32(1), np.float32(0)))
    bench.case(
        "set.gt.ftz.u32.f32 d, a, b;",
        {"a": x, "b": y},
        d=np.where(flushed(x) > flushed(y), ones, np.uint32(0)),
    )
    h, k = reals(194, np.float16), reals(195, np.float16)
    one, zero = np.float16(1), np.float16(0)
    ordered = packed(np.where(h < k, one, zero), np.where(k < h, one, zero))
    bench.case("set.lt.f16x2.f16x2 d, a, b;", {"a": packed(h, k), "b": packed(k, h)}, d=ordered)
    bench.case("set.lt.u32.f16 d, a, b;", {"a": h, "b": k}, d=np.where(h < k, ones, np.uint32(0)))
    for kind, dtype in (
        ("b16", np.uint16),
        ("u32", np.uint32),
        ("s64", np.int64),
        ("f32", np.float32),
        ("f64", np.float64),
    ):
        v, w = (
            (reals(196, dtype), reals(197, dtype))
            if kind[0] == "f"
            else (integers(196, dtype), integers(197, dtype))
        )
        bench.case(f"selp.{kind} d, a, b, q;", {"a": v, "b": w, "q": q}, d=np.where(q, v, w))
        bench.case(f"selp.{kind} d, a, b, !q;", {"a": v, "b": w, "q": q}, d=np.where(q, w, v))
        if kind == "b16":
            continue
        bench.case(f"slct.{kind}.s32 d, a, b, c;", {"a": v, "b": w, "c": a}, d=np.where(a >= 0, v, w))
        bench.case(f"slct.{kind}.f32 d, a, b, c;", {"a": v, "b": w, "c": x}, d=np.where(x >= 0, v, w))
        bench.case(
            f"slct.ftz.{kind}.f32 d, a, b, c;", {"a": v, "b": w, "c": -x}, d=np.where(flushed(-x) >= 0, v, w)
        )
    for kind, dtype in (("f32", np.float32), ("f64", np.float64)):
        v = reals(198, dtype)
        size = np.abs(v)
        normal = np.isfinite(v) & ((size >= np.finfo(dtype).tiny) | (size == 0))
        for name, wanted in (("finite", np.isfinite(v)), ("infinite", np.isinf(v)), ("number", ~np.isnan(v)),
                             ("notanumber", np.isnan(v)), ("normal", normal),
                             ("subnormal", (size > 0) & (size < np.finfo(dtype).tiny))):  # fmt: skip
            bench.case(f"testp.{name}.{kind} d, a;", {"a": v}, d=wanted)
        w = reals(199, dtype)
        finite = np.where(np.isnan(w), dtype(3), w)
        bench.case(f"copysign.{kind} d, a, b;", {"a": v, "b": finite}, d=np.copysign(finite, v))
    bench.check()


def test_guards_keep_what_the_others_have() -> None:
    bench = Bench()
    p = np.arange(THREADS) % 5 < 2
    a, b = integers(350, np.uint32), integers(351, np.uint32)
    given = {"a": a, "b": b, "p": p}
    f = reals(352, special=False)
    for guard, who in (("@p", p), ("@!p", ~p)):
        bench.case(f"mov.b32 d, 7; {guard} add.u32 d, a, b;", given, d=np.where(who, a + b, np.uint32(7)))
        bench.case(f"mov.b32 d, a; {guard} mov.b32 d, b;", given, d=np.where(who, b, a))
        bench.case(f"setp.ne.u32 d, 0, 0; {guard} setp.eq.u32 d, a, a;", given, d=who)
        bench.case(
            f"mov.b32 d, 7; {guard} selp.b32 d, a, b, p;",
            given,
            d=np.where(who, np.where(p, a, b), np.uint32(7)),
        )
        bench.case(
            f"mov.b32 d, 7; {guard} cvt.u32.u8 d, a;",
            given,
            d=np.where(who, a & np.uint32(255), np.uint32(7)),
        )
        bench.case(
            f"mov.b32 d, 7; {guard} lop3.b32 d, a, b, a, 0x3c;", given, d=np.where(who, a ^ b, np.uint32(7))
        )
        bench.case(f"mov.b32 d, 7; mov.b32 e, 8; {guard} mov.b64 {{d, e}}, c;", {"p": p, "c": pair64(a, b)},
                   d=np.where(who, a, np.uint32(7)), e=np.where(who, b, np.uint32(8)))  # fmt: skip
        fused = exact(ARITHMETIC["fma"], "f32", "rn", f, f, f).astype(np.float32)
        bench.case(f"mov.f32 d, 1.0; {guard} fma.rn.f32 d, a, a, a;", {"a": f, "p": p},
                   d=np.where(who, fused, np.float32(1)))  # fmt: skip
    bench.check()


def test_special_registers() -> None:
    thread, cta = np.arange(96)[None, :], np.arange(12)[:, None]
    lane = thread % 32
    wanted: dict[str, Any] = {
        "%tid.x": thread % 8, "%tid.y": thread // 8 % 3, "%tid.z": thread // 24,
        "%ntid.x": 8, "%ntid.y": 3, "%ntid.z": 4, "%nctaid.x": 2, "%nctaid.y": 3, "%nctaid.z": 2,
        "%ctaid.x": cta % 2, "%ctaid.y": cta // 2 % 3, "%ctaid.z": cta // 6, "%laneid": lane,
        "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1, "%lanemask_le": (2 << lane) - 1,
        "%lanemask_gt": MOST - ((2 << lane) - 1), "%lanemask_ge": MOST - ((1 << lane) - 1),
        "%warpid": thread // 32, "%nwarpid": 3, "%dynamic_smem_size": 64,
    }  # fmt: skip
    lines = [".reg .b32 %r<9>; .reg .b64 %rd<9>; ld.param.u64 %rd1, [out];",
             "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r2, 8, %r1;",
             "mad.lo.u32 %r1, %r3, 24, %r1; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;",
             "mad.lo.u32 %r2, %r3, 2, %r2; mov.u32 %r3, %ctaid.z; mad.lo.u32 %r2, %r3, 6, %r2;",
             "mad.lo.u32 %r1, %r2, 96, %r1; mad.wide.u32 %rd1, %r1, 84, %rd1;"]  # fmt: skip
    lines += [f"mov.u32 %r4, {name}; st.global.u32 [%rd1+{4 * i}], %r4;" for i, name in enumerate(wanted)]
    plan = LaunchPlan(
        family="test", arch="sm_80", kind="cuda", entries=("run",), sizes=(),
        steps=(Launch("run", (Arg.ptr("a"), Arg.ptr("out")), grid=(2, 3, 2), block=(8, 3, 4), smem=64),),
    )  # fmt: skip
    out = np.zeros((12, 96, len(wanted)), np.uint32)
    report = run_plan(text_kernel("\n".join(lines) + "ret;"), plan, {}, {"a": np.zeros(1), "out": out}, {})
    assert report.clean, report.faults
    for i, (name, value) in enumerate(wanted.items()):
        assert (out[:, :, i] == value).all(), name


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("add.u32 a, b;", "operands"),
        ("add.u32 a, b, b, b;", "operands"),
        ("add.foo.u32 a, b, b;", "modifier .foo"),
        ("add.ftz.u32 a, b, b;", "modifier .ftz"),
        ("add.rn.sat.f64 c, c, c;", "sat"),
        ("add.approx.f16 h, h, h;", "modifier .approx"),
        ("fma.rn.oob.f16 h, h, h, h;", "modifier .oob"),
        ("neg.sat.f16 h, h;", "modifier .sat"),
        ("mul.relu.f16 h, h, h;", "modifier .relu"),
        ("add.u32 c, a, b;", "64 bits"),
        ("add.u32 h, a, b;", "16 bits"),
        ("add.u32 a, c, b;", "64 bits"),
        ("add.u64 c, a, c;", "32 bits"),
        ("add.u32 p, a, b;", "is a predicate"),
        ("add.u32 a, p, b;", "predicate"),
        ("add.f32 a, b, 1;", "constant"),
        ("setp.eq.u32 a, a, b;", "is no predicate"),
        ("setp.eq.and.u32 p, a, b;", "boolean"),
        ("cvt.u32.f32 a, b;", "round"),
        ("cvt.rs.f16.f32 h, a;", "rs"),
        ("cvt.pack.sat.s8.s32 a, a, b;", "pack"),
        ("popc.u32 a, b;", "u32"),
        ("min.u8 h, h, h;", "u8"),
        ("mov.b128 c, c;", "b128"),
        ("vadd.s32.s32.s32 a, a, b;", "vadd"),
        ("tex.2d.v4.f32.f32 {a, a, a, a}, [c, {a, a}];", ""),
        ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", "tcgen05"),
        ("shl.b32 a, b, c;", "64 bits"),
        ("mul.wide.u64 c, c, c;", "wide"),
        ("mov.u32 a, %envreg3;", "%envreg3"),
    ],
)
def test_what_is_malformed_or_unknown_is_an_error_with_its_line(text: str, word: str) -> None:
    whole = f".reg .b16 h; .reg .b32 a, b; .reg .b64 c; .reg .pred p;\n{text}\nret;"
    with pytest.raises(EmulatorError) as caught:
        run(text_kernel(whole), np.zeros(4), np.zeros(4), clean=False)
    assert "line 8" in str(caught.value), caught.value
    assert word in str(caught.value), caught.value
