"""Does each instruction on whole numbers and bits do what the PTX ISA says on the right operands?

The references are plain Python and numpy; nothing here is computed by emulator.arith.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from support.instructions import (
    MOST,
    THREADS,
    Array,
    Bench,
    each,
    integers,
    signed,
)

KINDS = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
}


def wide(kind: str) -> Any:
    """The type of twice the width."""
    return KINDS[f"{kind[0]}{int(kind[1:]) * 2}"]


def truncated(a: int, b: int) -> int:
    """Division towards zero; by zero, which is unspecified, all bits set as the hardware gives."""
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_whole_numbers() -> None:
    bench = Bench()
    for n, (kind, dtype) in enumerate(KINDS.items()):
        width = int(kind[1:])
        a, b, d = (integers(3 * n + i, dtype) for i in range(3))
        given = {"a": a, "b": b, "c": d}
        for op, function in (("add", operator.add), ("sub", operator.sub), ("mul.lo", operator.mul)):
            bench.case(f"{op}.{kind} d, a, b;", given, d=each(function, dtype, a, b))
        bench.case(f"mad.lo.{kind} d, a, b, c;", given, d=each(lambda x, y, z: x * y + z, dtype, a, b, d))
        bench.case(f"mul.hi.{kind} d, a, b;", given, d=each(lambda x, y, s=width: x * y >> s, dtype, a, b))
        high = each(lambda x, y, z, s=width: (x * y >> s) + z, dtype, a, b, d)
        bench.case(f"mad.hi.{kind} d, a, b, c;", given, d=high)
        bench.case(f"min.{kind} d, a, b;", given, d=each(min, dtype, a, b))
        bench.case(f"max.{kind} d, a, b;", given, d=each(max, dtype, a, b))
        bench.case(f"div.{kind} d, a, b;", given, d=each(truncated, dtype, a, b))
        rest = each(lambda x, y: -1 if y == 0 else x - truncated(x, y) * y, dtype, a, b)
        bench.case(f"rem.{kind} d, a, b;", given, d=rest)
        bench.case(f"sad.{kind} d, a, b, c;", given, d=each(lambda x, y, z: z + abs(x - y), dtype, a, b, d))
        if kind[0] == "s":
            bench.case(f"abs.{kind} d, a;", given, d=each(abs, dtype, a))
            bench.case(f"neg.{kind} d, a;", given, d=each(operator.neg, dtype, a))
        if width < 64:
            e = integers(50 + n, wide(kind))
            bench.case(f"mul.wide.{kind} d, a, b;", given, d=each(operator.mul, wide(kind), a, b))
            more = given | {"c": e}
            found = each(lambda x, y, z: x * y + z, wide(kind), a, b, e)
            bench.case(f"mad.wide.{kind} d, a, b, c;", more, d=found)
    bench.check()


def clamped(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value))


def test_whole_numbers_that_saturate_and_narrow_products() -> None:
    bench = Bench()
    a, b, d = (integers(60 + i, np.int32) for i in range(3))
    given = {"a": a, "b": b, "c": d}
    bench.case("add.sat.s32 d, a, b;", given, d=each(lambda x, y: clamped(x + y), np.int32, a, b))
    bench.case("sub.sat.s32 d, a, b;", given, d=each(lambda x, y: clamped(x - y), np.int32, a, b))
    found = each(lambda x, y, z: clamped((x * y >> 32) + z), np.int32, a, b, d)
    bench.case("mad.hi.sat.s32 d, a, b, c;", given, d=found)
    bench.case("max.relu.s32 d, a, b;", given, d=each(lambda x, y: max(x, y, 0), np.int32, a, b))
    bench.case("min.relu.s32 d, a, b;", given, d=each(lambda x, y: max(min(x, y), 0), np.int32, a, b))
    for kind in ("u32", "s32"):
        dtype = KINDS[kind]
        a, b, d = (integers(63 + i, dtype) for i in range(3))
        given = {"a": a, "b": b, "c": d}
        for part, shift in (("lo", 0), ("hi", 16)):
            product = [
                _low24(x, kind) * _low24(y, kind) >> shift
                for x, y in zip(a.tolist(), b.tolist(), strict=True)
            ]
            found = each(lambda x: x, dtype, np.array(product))
            bench.case(f"mul24.{part}.{kind} d, a, b;", given, d=found)
            bench.case(f"mad24.{part}.{kind} d, a, b, c;", given, d=found + d)
        if kind == "s32":
            high = np.array([signed(p, 32) for p in product])
            sat = each(lambda x, y: clamped(x + y), np.int32, high, d)
            bench.case("mad24.hi.sat.s32 d, a, b, c;", given, d=sat)
    bench.check()


def _low24(value: int, kind: str) -> int:
    return signed(value, 24) if kind[0] == "s" else value & 0xFFFFFF


def _halves(value: int, negative: bool, width: int = 16, count: int = 2) -> list[int]:
    parts = [value >> (width * i) & ((1 << width) - 1) for i in range(count)]
    return [signed(p, width) for p in parts] if negative else parts


def _joined(parts: list[int], width: int = 16) -> int:
    return sum((p & ((1 << width) - 1)) << (width * i) for i, p in enumerate(parts))


def test_pairs_and_dot_products() -> None:
    bench = Bench()
    a, b, d = (integers(70 + i, np.uint32) for i in range(3))
    given = {"a": a, "b": b, "c": d}
    for kind in ("u16x2", "s16x2"):
        s = kind[0] == "s"
        for op, function in (("add", operator.add), ("min", min), ("max", max)):
            found = each(
                lambda x, y, f=function, s=s: _joined(
                    [f(p, q) for p, q in zip(_halves(x, s), _halves(y, s), strict=True)]
                ),
                np.uint32, a, b,
            )  # fmt: skip
            bench.case(f"{op}.{kind} d, a, b;", given, d=found)
    relu = each(
        lambda x, y: _joined([max(p, q, 0) for p, q in zip(_halves(x, True), _halves(y, True), strict=True)]),
        np.uint32, a, b,
    )  # fmt: skip
    bench.case("max.relu.s16x2 d, a, b;", given, d=relu)
    for s in ("u32", "s32"):
        for t in ("u32", "s32"):

            def dot(x: int, y: int, z: int, width: int, first: int, s: str = s, t: str = t) -> int:
                left = _halves(x, s == "s32", width, 32 // width)
                right = _halves(y, t == "s32", 8, 4)[first : first + len(left)]
                return z + sum(p * q for p, q in zip(left, right, strict=True))

            four = each(lambda x, y, z, f=dot: f(x, y, z, 8, 0), np.uint32, a, b, d)
            bench.case(f"dp4a.{s}.{t} d, a, b, c;", given, d=four)
            for part, first in (("lo", 0), ("hi", 2)):
                two = each(lambda x, y, z, f=dot, n=first: f(x, y, z, 16, n), np.uint32, a, b, d)
                bench.case(f"dp2a.{part}.{s}.{t} d, a, b, c;", given, d=two)
    bench.check()


def test_carries_go_from_one_instruction_to_the_next() -> None:
    bench = Bench()
    for seed, kind, width in ((80, "u32", 32), (84, "s32", 32), (88, "u64", 64)):
        dtype = np.uint32 if width == 32 else np.uint64
        a, b, e, f = (integers(seed + i, dtype) for i in range(4))
        given = {"a": a, "b": b, "e": e, "f": f}
        mask = (1 << width) - 1
        rows = list(zip(*(v.tolist() for v in (a, b, e, f)), strict=True))

        def split(
            values: list[int], dtype: Any = dtype, mask: int = mask, width: int = width
        ) -> dict[str, Array]:
            return {"low": np.array([v & mask for v in values], dtype),
                    "high": np.array([v >> width & mask for v in values], dtype)}  # fmt: skip

        total = [x + (p << width) + y + (q << width) for x, y, p, q in rows]
        bench.case(f"add.cc.{kind} low, a, b; addc.{kind} high, e, f;", given, **split(total))
        rest = [x + (p << width) - y - (q << width) for x, y, p, q in rows]
        bench.case(f"sub.cc.{kind} low, a, b; subc.{kind} high, e, f;", given, **split(rest))
        three = [v >> (2 * width) & 1 for v in total]
        bench.case(
            f"add.cc.{kind} low, a, b; addc.cc.{kind} high, e, f; addc.{kind} top, 0, 0;", given,
            top=np.array(three, dtype), **split(total),
        )  # fmt: skip
        borrow = [-1 & mask if v < 0 else 0 for v in rest]
        bench.case(
            f"sub.cc.{kind} low, a, b; subc.cc.{kind} high, e, f; subc.{kind} top, 0, 0;", given,
            top=np.array(borrow, dtype), **split(rest),
        )  # fmt: skip
        if kind != "s32":
            product = [x * y + p + (q << width) for x, y, p, q in rows]
            bench.case(
                f"mad.lo.cc.{kind} low, a, b, e; madc.hi.{kind} high, a, b, f;", given, **split(product)
            )
            bench.case(
                f"mad.lo.cc.{kind} low, a, b, e; madc.hi.cc.{kind} high, a, b, f; addc.{kind} top, 0, 0;",
                given, top=np.array([v >> (2 * width) & mask for v in product], dtype), **split(product),
            )  # fmt: skip
    # The flag is each thread's own and a guard leaves that of the others alone.
    a, b = integers(92, np.uint32), integers(93, np.uint32)
    p = np.arange(THREADS) % 3 == 0
    carried = each(lambda x, y, q: (x + y >> 32) if q else 1, np.uint32, a, b, p)
    bench.case("add.cc.u32 x, -1, 1; @p add.cc.u32 x, a, b; addc.u32 d, 0, 0;".replace("x", "d"),
               {"a": a, "b": b, "p": p}, d=carried)  # fmt: skip
    bench.check()


def test_bits() -> None:
    bench = Bench()
    for n, (width, dtype) in enumerate(((16, np.uint16), (32, np.uint32), (64, np.uint64))):
        a, b = integers(100 + n, dtype), integers(110 + n, dtype)
        given = {"a": a, "b": b}
        full = (1 << width) - 1
        for op, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
            bench.case(f"{op}.b{width} d, a, b;", given, d=each(function, dtype, a, b))
        bench.case(f"not.b{width} d, a;", given, d=each(lambda x, f=full: x ^ f, dtype, a))
        bench.case(f"cnot.b{width} d, a;", given, d=each(lambda x: x == 0, dtype, a))
        by = (np.arange(THREADS) * 3).astype(np.uint32)
        by[5] = 1 << 31
        shifts = {"a": a, "b": by}
        left = each(lambda x, s, w=width: x << s if s < w else 0, dtype, a, by)
        bench.case(f"shl.b{width} d, a, b;", shifts, d=left)
        for kind in (f"u{width}", f"b{width}"):
            bench.case(f"shr.{kind} d, a, b;", shifts, d=each(lambda x, s: x >> min(s, 99), dtype, a, by))
        arithmetic = each(lambda x, s, w=width: signed(x, w) >> min(s, 99), dtype, a, by)
        bench.case(f"shr.s{width} d, a, b;", shifts, d=arithmetic)
        bench.case(f"shl.b{width} d, a, 5;", shifts, d=each(lambda x: x << 5, dtype, a))
        bench.case(f"shr.u{width} d, a, 5;", shifts, d=each(lambda x: x >> 5, dtype, a))
        bench.case(f"shr.s{width} d, a, 5;", shifts, d=each(lambda x, w=width: signed(x, w) >> 5, dtype, a))
        bench.case(f"shl.b{width} d, a, {width};", shifts, d=np.zeros(THREADS, dtype))
        if width == 16:
            continue
        bench.case(f"popc.b{width} d, a;", given, d=each(int.bit_count, np.uint32, a))
        bench.case(f"clz.b{width} d, a;", given, d=each(lambda x, w=width: w - x.bit_length(), np.uint32, a))
        bench.case(
            f"brev.b{width} d, a;", given, d=each(lambda x, w=width: int(f"{x:0{w}b}"[::-1], 2), dtype, a)
        )
        for s in "us":

            def find(x: int, w: int = width, s: str = s) -> int:
                y = signed(x, w) if s == "s" else x
                return (~y if y < 0 else y).bit_length() - 1

            bench.case(f"bfind.{s}{width} d, a;", given, d=each(find, np.uint32, a))
            amount = each(lambda x, w=width, f=find: -1 if f(x) < 0 else w - 1 - f(x), np.uint32, a)
            bench.case(f"bfind.shiftamt.{s}{width} d, a;", given, d=amount)
        from_, length = (
            integers(120 + n, np.uint32, [0, 31, 32, 63, 64, 255, 256]),
            integers(125 + n, np.uint32),
        )
        from_ = from_ % 300
        length = np.where(np.arange(THREADS) % 2, length % 40, length).astype(np.uint32)
        fields = {"a": a, "b": b, "c": from_, "e": length}

        def extract(x: int, at: int, n: int, signed: bool, w: int = width) -> int:
            at, n = at & 255, n & 255
            sign = 0
            if signed and n:
                sign = x >> min(at + n - 1, w - 1) & 1
            found = 0
            for i in range(w):
                bit = (x >> (at + i) & 1 if at + i < w else sign) if i < n else sign
                found |= bit << i
            return found

        for s in "us":
            got = each(lambda x, p, q, s=s, f=extract: f(x, p, q, s == "s"), dtype, a, from_, length)
            bench.case(f"bfe.{s}{width} d, a, c, e;", fields, d=got)

        def insert(x: int, y: int, at: int, n: int, w: int = width) -> int:
            at, n = at & 255, n & 255
            for i in range(n):
                if at + i < w:
                    y = y & ~(1 << (at + i)) | (x >> i & 1) << (at + i)
            return y

        bench.case(f"bfi.b{width} d, a, b, c, e;", fields, d=each(insert, dtype, a, b, from_, length))
    bench.check()


def test_bits_of_words() -> None:
    bench = Bench()
    a, b, c = (integers(130 + i, np.uint32) for i in range(3))
    given = {"a": a, "b": b, "c": c}
    for table in (0x00, 0x80, 0xE8, 0x96, 0xCA, 0x1D, 0xFE, 0xFF):

        def look(x: int, y: int, z: int, t: int = table) -> int:
            return sum(
                (t >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1) << i for i in range(32)
            )

        bench.case(f"lop3.b32 d, a, b, c, {table};", given, d=each(look, np.uint32, a, b, c))
    by = (np.arange(THREADS) % 40).astype(np.uint32)
    funnel = {"a": a, "b": b, "c": by}
    for mode, limit in (("wrap", lambda s: s & 31), ("clamp", lambda s: min(s, 32))):
        left = each(lambda x, y, s, f=limit: (y << 32 | x) << f(s) >> 32, np.uint32, a, b, by)
        right = each(lambda x, y, s, f=limit: (y << 32 | x) >> f(s), np.uint32, a, b, by)
        bench.case(f"shf.l.{mode}.b32 d, a, b, c;", funnel, d=left)
        bench.case(f"shf.r.{mode}.b32 d, a, b, c;", funnel, d=right)

    def permute(x: int, y: int, s: int) -> int:
        source = (y << 32 | x).to_bytes(8, "little")
        found = []
        for i in range(4):
            nibble = s >> (4 * i) & 15
            byte = source[nibble & 7]
            found.append((0xFF if byte >> 7 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(found), "little")

    bench.case("prmt.b32 d, a, b, c;", given, d=each(permute, np.uint32, a, b, c))
    bench.case("prmt.b32 d, a, b, 0x5410;", given,
               d=each(lambda x, y: x & 0xFFFF | (y & 0xFFFF) << 16, np.uint32, a, b))  # fmt: skip
    modes = {"f4e": (0x3210, 0x4321, 0x5432, 0x6543), "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
             "rc8": (0x0000, 0x1111, 0x2222, 0x3333), "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
             "ecr": (0x0000, 0x1110, 0x2210, 0x3210), "rc16": (0x1010, 0x3232, 0x1010, 0x3232)}  # fmt: skip
    for mode, table4 in modes.items():
        found = each(lambda x, y, s, t=table4: permute(x, y, t[s & 3]), np.uint32, a, b, c)
        bench.case(f"prmt.b32.{mode} d, a, b, c;", given, d=found)
    at, n = (
        integers(134, np.uint32, [0, 1, 31, 32, 33, 64, MOST]),
        integers(135, np.uint32, [0, 1, 31, 32, 33]),
    )
    at[30:] %= 40
    n[28:] %= 40
    fields = {"a": at, "b": n, "c": c}
    bench.case("bmsk.clamp.b32 d, a, b;", fields,
               d=each(lambda p, q: ((1 << min(q, 32)) - 1) << min(p, 32), np.uint32, at, n))  # fmt: skip
    bench.case("bmsk.wrap.b32 d, a, b;", fields,
               d=each(lambda p, q: ((1 << (q & 31)) - 1) << (p & 31), np.uint32, at, n))  # fmt: skip
    for s in "us":

        def extend(x: int, q: int, s: str = s) -> int:
            return 0 if q == 0 else (signed(x, q) if s == "s" else x & (1 << q) - 1)

        clamp = each(lambda x, q, f=extend: f(x, min(q, 32)), np.uint32, c, n)
        wrap = each(lambda x, q, f=extend: f(x, q & 31), np.uint32, c, n)
        bench.case(f"szext.clamp.{s}32 d, c, b;", fields, d=clamp)
        bench.case(f"szext.wrap.{s}32 d, c, b;", fields, d=wrap)

    def nth(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if mask >> base & 1 else MOST
        places = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [p for p in places if mask >> p & 1]
        return found[abs(offset) - 1] if len(found) >= abs(offset) else MOST

    base = (np.arange(THREADS) % 32).astype(np.uint32)
    offset = (np.arange(THREADS, dtype=np.int32) % 7 - 3).astype(np.int32)
    bench.case(
        "fns.b32 d, a, b, c;", {"a": a, "b": base, "c": offset}, d=each(nth, np.uint32, a, base, offset)
    )
    bench.check()
