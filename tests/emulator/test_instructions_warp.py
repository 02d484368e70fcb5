"""Do lanes of a warp hear of each other, part and meet again, as the PTX ISA says?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.instructions import Array, Bench, each, integers, reals, run, text_kernel

from emulator import EmulatorError, FaultKind

LANES = np.arange(64) % 32
FULL = 0xFFFFFFFF


def by_warp(function: Callable[[Array, int], int], a: Array, dtype: type = np.uint32) -> Array:
    """`function(values of the warp, lane)` for both warps."""
    return np.array([function(a[t // 32 * 32 : t // 32 * 32 + 32], t % 32) for t in range(64)]).astype(dtype)


def test_shuffles() -> None:
    """The pseudo code of PTX ISA 9.7.9.6, lane by lane."""
    bench = Bench()
    a = integers(1, np.uint32)
    b = (np.arange(64) * 7 % 35).astype(np.uint32)
    for width in (32, 16, 8, 4):
        for mode in ("up", "down", "bfly", "idx"):
            clamp = 0 if mode == "up" else 31
            c = clamp | (32 - width) << 8
            got, inside = [], []
            for t in range(64):
                lane, amount = t % 32, int(b[t]) & 31
                segment = c >> 8 & 31
                bound = (lane & segment) | (c & 31 & ~segment)
                j = {"up": lane - amount, "down": lane + amount, "bfly": lane ^ amount,
                     "idx": (lane & segment) | (amount & ~segment)}[mode]  # fmt: skip
                p = j >= bound if mode == "up" else j <= bound
                got.append(int(a[t // 32 * 32 + (j if p else lane)]))
                inside.append(p)
            text = f"shfl.sync.{mode}.b32 d|p, a, b, {c}, -1;"
            bench.case(text, {"a": a, "b": b}, d=np.array(got, np.uint32), p=np.array(inside))
            bench.case(text.replace("|p", ""), {"a": a, "b": b}, d=np.array(got, np.uint32))
    half = np.where(LANES < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    turned = by_warp(lambda v, lane: int(v[lane ^ 5]), a)
    bench.case("shfl.sync.bfly.b32 d, a, 5, 31, m;", {"a": a, "m": half}, d=turned)
    # Only lanes 8 to 23 take part; the others keep what they have.
    some = (LANES >= 8) & (LANES < 24)
    down = by_warp(lambda v, lane: int(v[lane + 1 if lane + 1 < 24 else lane]), a)
    bench.case("mov.b32 d, 1; @q shfl.sync.down.b32 d, a, n, 31, 0x00ffff00;",
               {"a": a, "q": some, "n": np.where(LANES == 23, 0, 1).astype(np.uint32)},
               d=np.where(some, down, np.uint32(1)))  # fmt: skip
    bench.check()


def test_votes_matches_and_reductions() -> None:
    bench = Bench()
    p = np.array([(t * t) % 5 < 2 if t < 32 else t != 40 for t in range(64)])
    true = by_warp(lambda v, lane: sum(int(x) << i for i, x in enumerate(v)), p)
    bench.case("vote.sync.ballot.b32 d, p, -1;", {"p": p}, d=true)
    bench.case("vote.sync.ballot.b32 d, !p, -1;", {"p": p}, d=~true)
    bench.case("vote.sync.all.pred d, p, -1;", {"p": p}, d=by_warp(lambda v, lane: v.all(), p, np.bool_))
    bench.case("vote.sync.any.pred d, p, -1;", {"p": p}, d=by_warp(lambda v, lane: v.any(), p, np.bool_))
    whole = np.repeat([True, False], 32)
    uniform = {"p": p, "w": whole}
    bench.case("vote.sync.uni.pred d, w, -1;", uniform, d=np.ones(64, np.bool_))
    bench.case("vote.sync.uni.pred d, p, -1;", uniform, d=np.zeros(64, np.bool_))
    bench.case("vote.sync.all.pred d, w, -1;", uniform, d=whole)
    a = (np.arange(64) * 5 % 7).astype(np.uint32)
    wide = a.astype(np.uint64) << np.uint64(33)
    groups = by_warp(lambda v, lane: sum(int(x == v[lane]) << i for i, x in enumerate(v)), a)
    bench.case("match.any.sync.b32 d, a, -1;", {"a": a}, d=groups)
    bench.case("match.any.sync.b64 d, a, -1;", {"a": wide}, d=groups)
    same = np.where(np.arange(64) < 32, 9, a).astype(np.uint32)
    agree = np.arange(64) < 32
    bench.case(
        "match.all.sync.b32 d|q, a, -1;",
        {"a": same},
        d=np.where(agree, np.uint32(FULL), np.uint32(0)),
        q=agree,
    )
    for kind, dtype in (("u32", np.uint32), ("s32", np.int32)):
        x = integers(3, dtype)
        for op, function in (
            ("add", lambda v: v.sum(dtype=np.int64) & FULL),
            ("min", np.min),
            ("max", np.max),
        ):
            want = each(int, dtype, by_warp(lambda v, lane, f=function: int(f(v)), x, np.int64))  # type: ignore[misc]
            bench.case(f"redux.sync.{op}.{kind} d, a, -1;", {"a": x}, d=want)
    x = integers(4, np.uint32)
    for op, ufunc in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        want = by_warp(lambda v, lane, f=ufunc: int(f.reduce(v)), x)  # type: ignore[misc]
        bench.case(f"redux.sync.{op}.b32 d, a, -1;", {"a": x}, d=want)
    half = np.where(LANES < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    sums = by_warp(lambda v, lane: int(v[lane // 16 * 16 :][:16].sum(dtype=np.int64) & FULL), x)
    bench.case("redux.sync.add.u32 d, a, m;", {"a": x, "m": half}, d=sums)
    f = reals(5, special=False)
    least = by_warp(lambda v, lane: v.min(), f, np.float32)  # type: ignore[arg-type, return-value]
    bench.case("redux.sync.min.f32 d, a, -1;", {"a": f}, d=least)
    most = by_warp(lambda v, lane: np.abs(v).max(), f, np.float32)  # type: ignore[arg-type, return-value]
    bench.case("redux.sync.max.abs.f32 d, a, -1;", {"a": f}, d=most)
    f[7] = np.nan
    nan = by_warp(lambda v, lane: v.max(), f, np.float32)  # type: ignore[arg-type, return-value]
    nan = np.where(np.isnan(nan), np.uint32(0x7FFFFFFF), nan.view(np.uint32)).astype(np.uint32)
    bench.case("redux.sync.max.NaN.f32 d, a, -1;", {"a": f}, d=nan)
    bench.case("elect.sync d|q, -1;", {"a": a}, d=np.zeros(64, np.uint32), q=LANES == 0)
    some = (LANES >= 8) & (LANES < 24)
    bench.case("mov.b32 d, 77; setp.ne.u32 q, 0, 0; @s elect.sync d|q, 0x00ffff00;", {"s": some},
               d=np.where(some, 8, 77).astype(np.uint32), q=LANES == 8)  # fmt: skip
    bench.case("activemask.b32 d;", {"a": a}, d=np.full(64, FULL, np.uint32))
    bench.case(
        "mov.b32 d, 0; @s activemask.b32 d;", {"s": some}, d=np.where(some, 0x00FFFF00, 0).astype(np.uint32)
    )
    bench.check()


HEAD = """
.reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %rd<9>; .reg .b64 %in, %to; .reg .b32 %tid;
ld.param.u64 %in, [a]; ld.param.u64 %to, [out]; mov.u32 %tid, %tid.x;
mad.wide.u32 %in, %tid, 4, %in; mad.wide.u32 %to, %tid, 4, %to; ld.global.b32 %r1, [%in];
"""
ORDERS = ("early", "late", "ahead", "behind", "random")


@pytest.mark.parametrize("order", ORDERS)
def test_reductions_of_a_barrier(order: str) -> None:
    body = (
        HEAD
        + """
setp.ne.u32 %p1, %r1, 0;
bar.red.popc.u32 %r2, 1, %p1;
barrier.cta.red.popc.u32 %r3, 2, 96, !%p1;
bar.red.and.pred %p2, 3, %p1; selp.b32 %r4, 1, 0, %p2;
bar.red.or.pred %p3, 3, 96, %p1; selp.b32 %r5, 2, 0, %p3;
bar.red.or.pred %p4, 3, !%p1; selp.b32 %r6, 4, 0, %p4;
or.b32 %r4, %r4, %r5; or.b32 %r4, %r4, %r6;
mad.lo.u32 %r2, %r2, 1000, %r3; mad.lo.u32 %r2, %r2, 10, %r4; st.global.b32 [%to], %r2; ret;
"""
    )
    for values, bits in ((np.ones(96), 3), (np.zeros(96), 4), (np.arange(96) % 3, 6)):
        out = np.zeros(96, np.uint32)
        run(text_kernel(body), values.astype(np.uint32), out, block=96, order=order)
        true = int((values != 0).sum())
        assert (out == (true * 1000 + 96 - true) * 10 + bits).all()


@pytest.mark.parametrize("order", ORDERS)
def test_branches_through_a_table(order: str) -> None:
    body = (
        HEAD
        + """
and.b32 %r2, %r1, 3; mov.b32 %r3, 5; setp.lt.u32 %p1, %tid, 48;
table: .branchtargets L0, L1, L2, L1;
@%p1 brx.idx %r2, table;
add.u32 %r3, %r3, 7; bra END;
L0: mov.b32 %r3, 100; bra.uni END;
L1: mov.b32 %r3, 200; bra END;
L2: add.u32 %r3, %r1, 300;
END: bar.warp.sync -1; st.global.b32 [%to], %r3; ret;
"""
    )
    a = integers(9, np.uint32)
    out = np.zeros(64, np.uint32)
    run(text_kernel(body), a, out, block=64, order=order)
    cases = np.array([100, 200, 300, 200], np.uint32)[a & 3] + np.where((a & 3) == 2, a, 0)
    assert (out == np.where(np.arange(64) < 48, cases, 12)).all()
    outside = text_kernel(HEAD + "t: .branchtargets L; brx.idx %r1, t; L: st.global.b32 [%to], %r1; ret;")
    report = run(outside, a, out, block=64, order=order, clean=False)
    assert [f.kind for f in report.faults] == [FaultKind.OUT_OF_BOUNDS]


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_end_one_by_one(order: str) -> None:
    body = (
        HEAD
        + """
st.global.b32 [%to], %r1; mov.b32 %r2, 0;
LOOP: add.u32 %r2, %r2, 1; st.global.b32 [%to], %r2; setp.ge.u32 %p1, %r2, %r1; @%p1 exit;
setp.lt.u32 %p2, %r2, 1000; @%p2 bra LOOP; trap;
"""
    )
    a = (np.arange(80) * 7 % 23 + 1).astype(np.uint32)
    out = np.zeros(80, np.uint32)
    run(text_kernel(body), a, out, block=80, order=order)
    assert (out == a).all()
    negated = text_kernel(HEAD + "setp.lt.u32 %p1, %tid, 64; @!%p1 ret; st.global.b32 [%to], %r1; ret;")
    out = np.zeros(64, np.uint32)
    run(negated, a, out, block=80, order=order)
    assert (out == a[:64]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_loops_inside_loops_that_part(order: str) -> None:
    """Collatz steps of every number up to the lane's, summed: inner and outer loop differ between lanes."""
    body = (
        HEAD
        + """
mov.b32 %r2, 0; mov.b32 %r3, 1;
OUTER: setp.gt.u32 %p1, %r3, %r1; @%p1 bra DONE;
mov.b32 %r4, %r3;
INNER: setp.eq.u32 %p2, %r4, 1; @%p2 bra NEXT;
and.b32 %r5, %r4, 1; setp.eq.u32 %p3, %r5, 0; @%p3 bra EVEN;
mad.lo.u32 %r4, %r4, 3, 1; bra COUNT;
EVEN: shr.u32 %r4, %r4, 1;
COUNT: add.u32 %r2, %r2, 1; bra INNER;
NEXT: add.u32 %r3, %r3, 1; bra OUTER;
DONE: bar.warp.sync 0xffffffff; activemask.b32 %r6; setp.ne.u32 %p4, %r6, -1; @%p4 mov.b32 %r2, 0;
st.global.b32 [%to], %r2; ret;
"""
    )
    a = (np.arange(64) % 13 + 1).astype(np.uint32)

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    out = np.zeros(64, np.uint32)
    run(text_kernel(body), a, out, block=64, order=order)
    assert out.tolist() == [sum(steps(i) for i in range(1, n + 1)) for n in a.tolist()]


@pytest.mark.parametrize("order", ORDERS)
def test_halves_of_a_warp_meet_apart_and_then_together(order: str) -> None:
    body = (
        HEAD
        + """
setp.lt.u32 %p1, %tid, 16; @%p1 bra LOW;
shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff0000; bra JOIN;
LOW: mov.b32 %r3, 0;
SPIN: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 50; @%p2 bra SPIN;
shfl.sync.bfly.b32 %r2, %r1, 2, 31, 0x0000ffff;
JOIN: shfl.sync.bfly.b32 %r4, %r2, 16, 31, -1; st.global.b32 [%to], %r4; ret;
"""
    )
    a = integers(13, np.uint32)[:32].copy()
    out = np.zeros(32, np.uint32)
    run(text_kernel(body), a, out, order=order)
    lane = np.arange(32)
    first = np.where(lane < 16, a[lane ^ 2], a[lane ^ 1])
    assert (out == first[lane ^ 16]).all()


def test_lanes_that_have_ended_are_not_waited_for() -> None:
    body = (
        HEAD
        + """
setp.ge.u32 %p1, %tid, 20; st.global.b32 [%to], %tid; @%p1 exit;
bar.warp.sync -1; shfl.sync.idx.b32 %r2, %r1, 3, 31, -1; vote.sync.ballot.b32 %r3, 1, -1;
add.u32 %r2, %r2, %r3;
st.global.b32 [%to], %r2; ret;
"""
    )
    a = integers(14, np.uint32)[:32].copy()
    out = np.zeros(32, np.uint32)
    run(text_kernel(body), a, out)
    assert (out[:20] == a[3] + np.uint32(0xFFFFF)).all()
    whole = text_kernel(
        HEAD
        + ".reg .b32 %d; setp.ge.u32 %p1, %tid, 20; @%p1 exit;"
        + "movmatrix.sync.aligned.m8n8.trans.b16 %d, %r1; ret;"
    )
    report = run(whole, a, out, clean=False)
    assert [f.kind for f in report.faults] == [FaultKind.DIVERGENCE]
    assert "12 have ended" in report.faults[0].message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("bar.warp.sync 0xfffffffe;", "does not name the lane itself"),
        ("setp.lt.u32 %p1, %tid, 8; @%p1 shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;", "8 of its 32 lanes"),
        ("setp.lt.u32 %p1, %tid, 8; @%p1 bar.sync 0;", "8 of its 32 lanes"),
    ],
)
def test_whoever_is_named_has_to_come(text: str, word: str) -> None:
    # Lanes that end are not waited for, so these go on for ever.
    body = HEAD + text + "setp.ne.u32 %p2, 1, 0; WAIT: bar.warp.sync 0xffffffff; @%p2 bra WAIT; ret;"
    report = run(text_kernel(body), np.zeros(32, np.uint32), np.zeros(32, np.uint32), clean=False)
    assert [f.kind for f in report.faults] == [FaultKind.DIVERGENCE], report.faults
    assert word in report.faults[0].message, report.faults


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("shfl.up.b32 %r1, %r2, 1, 0;", "shfl.sync"),
        ("shfl.sync.up.b64 %rd1, %rd2, 1, 0, -1;", "b64"),
        ("vote.all.pred %p1, %p2;", "vote.sync"),
        ("vote.sync.ballot.b32 %p1, %p2, -1;", "predicate"),
        ("match.any.sync.b32 %r1|%p1, %r2, -1;", "match.any"),
        ("redux.sync.add.b32 %r1, %r2, -1;", "redux"),
        ("redux.sync.min.NaN.u32 %r1, %r2, -1;", "redux"),
        ("bar.red.xor.pred %p1, 0, %p2;", "xor"),
        ("bar.red.popc.pred %p1, 0, %p2;", "popc"),
        ("bar.sync.and 0;", "without .red"),
        ("bar.arrive 0;", "operands"),
        ("bar.sync 0, 32, 32;", "operands"),
        ("elect.sync %r1, -1;", "predicate"),
        ("bra nowhere;", "nowhere"),
        ("brx.idx %r1, nowhere;", "nowhere"),
        ("call function;", "function"),
        ("barrier.cluster.sync;", "sync"),
    ],
)
def test_what_warps_do_not_know_is_an_error_with_its_line(text: str, word: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        run(text_kernel(HEAD + text + "\nret;"), np.zeros(32), np.zeros(32), clean=False)
    assert "line 11" in str(caught.value), caught.value
    assert word in str(caught.value), caught.value
