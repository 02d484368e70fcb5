"""Do integer and bit instructions compute what the PTX ISA says? Python ints are the measure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from emulator.arith import bits, integers
from emulator.arith.types import bits_of, unsigned

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
RNG = np.random.default_rng(7)


def samples(bits_: int, count: int = 40) -> list[int]:
    """Edges and random numbers of a width, as raw bits."""
    edges = [0, 1, 2, 3, 1 << (bits_ - 1), (1 << (bits_ - 1)) - 1, (1 << bits_) - 1, (1 << bits_) - 2, 5, 7]
    short = [int(v) for v in RNG.integers(0, 300, 8)]
    wide = [int.from_bytes(RNG.bytes(bits_ // 8), "little") for _ in range(count)]
    return [v % (1 << bits_) for v in edges + short + wide]


def value(type_: str, raw: int) -> int:
    """Raw bits as the number they are."""
    n = bits_of(type_)
    return raw - (1 << n) if type_[0] == "s" and raw >> (n - 1) else raw


def check(got: Any, inputs: Sequence[Sequence[int]], reference: Callable[..., int], width: int) -> None:
    got = np.asarray(got)
    assert got.dtype == unsigned(width)
    want = [reference(*row) % (1 << width) for row in inputs]
    wrong = [(row, hex(int(g)), hex(w)) for row, g, w in zip(inputs, got, want, strict=True) if int(g) != w]
    assert not wrong, wrong[:5]


def columns(rows: Sequence[Sequence[int]], *widths: int) -> list[Any]:
    return [np.array([r[i] for r in rows], unsigned(w)) for i, w in enumerate(widths)]


def two(width: int) -> list[tuple[int, int]]:
    found = samples(width, 12)
    return list(itertools.product(found, found))


def three(width: int) -> list[tuple[int, int, int]]:
    return [(a, b, int.from_bytes(RNG.bytes(width // 8), "little")) for a, b in two(width)]


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("type_", TYPES)
def test_two_operands(type_: str) -> None:
    n = bits_of(type_)
    rows = two(n)
    a, b = columns(rows, n, n)

    def of(f: Callable[[int, int], int]) -> Callable[[int, int], int]:
        return lambda x, y: f(value(type_, x), value(type_, y))

    check(integers.add(type_, a, b), rows, of(lambda x, y: x + y), n)
    check(integers.sub(type_, a, b), rows, of(lambda x, y: x - y), n)
    check(integers.mul(type_, "lo", a, b), rows, of(lambda x, y: x * y), n)
    check(integers.mul(type_, "hi", a, b), rows, of(lambda x, y: x * y >> n), n)
    if n < 64:
        check(integers.mul(type_, "wide", a, b), rows, of(lambda x, y: x * y), 2 * n)
    check(integers.min_(type_, a, b), rows, of(min), n)
    check(integers.max_(type_, a, b), rows, of(max), n)
    check(integers.div(type_, a, b), rows, of(lambda x, y: truncated(x, y) if y else -1), n)
    check(integers.rem(type_, a, b), rows, of(lambda x, y: x - truncated(x, y) * y if y else -1), n)


@pytest.mark.parametrize("type_", TYPES)
def test_three_operands(type_: str) -> None:
    n = bits_of(type_)
    rows = three(n)
    a, b, c = columns(rows, n, n, n)
    v = lambda x: value(type_, x)  # noqa: E731
    check(integers.mad(type_, "lo", a, b, c), rows, lambda x, y, z: v(x) * v(y) + z, n)
    check(integers.mad(type_, "hi", a, b, c), rows, lambda x, y, z: (v(x) * v(y) >> n) + z, n)
    if n < 64:
        wide = np.arange(len(rows)).astype(unsigned(2 * n)) * unsigned(2 * n)(12345)
        got = integers.mad(type_, "wide", a, b, wide)
        check(got - wide, rows, lambda x, y, z: v(x) * v(y), 2 * n)
    check(integers.sad(type_, a, b, c), rows, lambda x, y, z: z + abs(v(x) - v(y)), n)


@pytest.mark.parametrize("type_", ["s16", "s32", "s64"])
def test_one_operand(type_: str) -> None:
    n = bits_of(type_)
    rows = [(x,) for x in samples(n)]
    (a,) = columns(rows, n)
    check(integers.abs_(type_, a), rows, lambda x: abs(value(type_, x)), n)
    check(integers.neg(type_, a), rows, lambda x: -x, n)


def test_saturation() -> None:
    rows = three(32)
    a, b, c = columns(rows, 32, 32, 32)

    def clamp(x: int) -> int:
        return max(-(1 << 31), min((1 << 31) - 1, x))

    s = lambda x: value("s32", x)  # noqa: E731
    check(integers.add("s32", a, b, sat=True), rows, lambda x, y, _: clamp(s(x) + s(y)), 32)
    check(integers.sub("s32", a, b, sat=True), rows, lambda x, y, _: clamp(s(x) - s(y)), 32)
    check(
        integers.mad("s32", "hi", a, b, c, sat=True),
        rows,
        lambda x, y, z: clamp((s(x) * s(y) >> 32) + s(z)),
        32,
    )
    check(integers.min_("s32", a, b, relu=True), rows, lambda x, y, _: max(0, min(s(x), s(y))), 32)
    check(integers.max_("s32", a, b, relu=True), rows, lambda x, y, _: max(0, s(x), s(y)), 32)


@pytest.mark.parametrize("type_", ["u16x2", "s16x2"])
def test_halves(type_: str) -> None:
    rows = two(32)
    a, b = columns(rows, 32, 32)

    def both(f: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def run(x: int, y: int) -> int:
            half = type_[:3]
            low = f(value(half, x & 0xFFFF), value(half, y & 0xFFFF)) & 0xFFFF
            return f(value(half, x >> 16), value(half, y >> 16)) % 65536 << 16 | low

        return run

    check(integers.add(type_, a, b), rows, both(lambda x, y: x + y), 32)
    check(integers.sub(type_, a, b), rows, both(lambda x, y: x - y), 32)
    check(integers.min_(type_, a, b), rows, both(min), 32)
    check(integers.max_(type_, a, b), rows, both(max), 32)
    if type_ == "s16x2":
        check(integers.min_(type_, a, b, relu=True), rows, both(lambda x, y: max(0, min(x, y))), 32)
    grid = integers.add(type_, a.reshape(2, -1), np.uint32(0x00010001))
    assert grid.shape == (2, len(rows) // 2)


@pytest.mark.parametrize("width", [32, 64])
def test_carries_make_long_numbers(width: int) -> None:
    """Three words added, subtracted and multiplied as the ISA's examples do it."""
    type_ = f"u{width}"
    many = 200
    words = np.array(
        [[int.from_bytes(RNG.bytes(width // 8), "little") for _ in range(many)] for _ in range(6)],
        unsigned(width),
    )
    words[1, :60] = 2**width - 1
    words[4, :40] = 0
    x = [
        int(words[0, i]) + (int(words[1, i]) << width) + (int(words[2, i]) << 2 * width) for i in range(many)
    ]
    y = [
        int(words[3, i]) + (int(words[4, i]) << width) + (int(words[5, i]) << 2 * width) for i in range(many)
    ]
    whole = 1 << 3 * width
    for operation, expected in (
        (integers.addc, [p + q for p, q in zip(x, y, strict=True)]),
        (integers.subc, [p - q for p, q in zip(x, y, strict=True)]),
    ):
        carry = None
        total = np.zeros(many, object)
        for i in range(3):
            word, carry = operation(type_, words[i], words[3 + i], carry)
            total += word.astype(object) * (1 << i * width)
        assert carry is not None
        assert total.tolist() == [e % whole for e in expected]
        assert carry.tolist() == [not 0 <= e < whole for e in expected]
    low, carry = integers.madc(type_, "lo", words[0], words[1], words[2])
    high, carry = integers.madc(type_, "hi", words[0], words[1], words[3], carry)
    for i in range(many):
        expected_product = (
            int(words[0, i]) * int(words[1, i]) + int(words[2, i]) + (int(words[3, i]) << width)
        )
        assert int(low[i]) + (int(high[i]) << width) + (int(carry[i]) << 2 * width) == expected_product


def test_products_of_24_bits() -> None:
    rows = three(32)
    a, b, c = columns(rows, 32, 32, 32)
    for type_ in ("u32", "s32"):

        def low24(x: int, type_: str = type_) -> int:
            x &= 0xFFFFFF
            return x - (1 << 24) if type_ == "s32" and x >> 23 else x

        check(integers.mul24(type_, "lo", a, b), rows, lambda x, y, _: low24(x) * low24(y), 32)
        check(integers.mul24(type_, "hi", a, b), rows, lambda x, y, _: low24(x) * low24(y) >> 16, 32)
        check(integers.mad24(type_, "lo", a, b, c), rows, lambda x, y, z: low24(x) * low24(y) + z, 32)


def test_dot_products() -> None:
    rows = three(32)
    a, b, c = columns(rows, 32, 32, 32)

    def parts(x: int, count: int, width: int, type_: str) -> list[int]:
        found = [(x >> width * i) % (1 << width) for i in range(count)]
        return [v - (1 << width) if type_ == "s32" and v >> (width - 1) else v for v in found]

    for s, t in itertools.product(("u32", "s32"), repeat=2):
        check(
            integers.dp4a(s, t, a, b, c),
            rows,
            lambda x, y, z, s=s, t=t: (  # type: ignore[misc]
                z + sum(p * q for p, q in zip(parts(x, 4, 8, s), parts(y, 4, 8, t), strict=True))
            ),
            32,
        )
        for mode, first in (("lo", 0), ("hi", 2)):
            check(
                integers.dp2a(mode, s, t, a, b, c),
                rows,
                lambda x, y, z, s=s, t=t, first=first: (  # type: ignore[misc]
                    z
                    + sum(
                        p * q
                        for p, q in zip(parts(x, 2, 16, s), parts(y, 4, 8, t)[first : first + 2], strict=True)
                    )
                ),
                32,
            )


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic_and_shifts(width: int) -> None:
    type_ = f"b{width}"
    rows = two(width)
    a, b = columns(rows, width, width)
    check(bits.and_(type_, a, b), rows, lambda x, y: x & y, width)
    check(bits.or_(type_, a, b), rows, lambda x, y: x | y, width)
    check(bits.xor(type_, a, b), rows, lambda x, y: x ^ y, width)
    check(bits.not_(type_, a), rows, lambda x, _: ~x, width)
    check(bits.cnot(type_, a), rows, lambda x, _: int(x == 0), width)
    shifts = [
        (x, n)
        for x in samples(width)
        for n in (0, 1, 7, width - 1, width, width + 1, 255, 1 << 31, (1 << 32) - 1)
    ]
    a, n = columns(shifts, width, 32)
    check(bits.shl(type_, a, n), shifts, lambda x, k: x << k if k < width else 0, width)
    check(bits.shr(f"u{width}", a, n), shifts, lambda x, k: x >> k if k < width else 0, width)
    check(bits.shr(f"s{width}", a, n), shifts, lambda x, k: value(f"s{width}", x) >> min(k, width), width)


def test_predicates() -> None:
    p, q = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert bits.and_("pred", p, q).tolist() == [False, False, False, True]
    assert bits.or_("pred", p, q).tolist() == [False, True, True, True]
    assert bits.xor("pred", p, q).tolist() == [False, True, True, False]
    assert bits.not_("pred", p).tolist() == [True, True, False, False]


def test_funnel_shift() -> None:
    rows = [(a, b, c) for a, b, _ in three(32)[::3] for c in (0, 1, 16, 31, 32, 33, 40, 0xFFFFFFFF)]
    a, b, c = columns(rows, 32, 32, 32)
    for mode in ("clamp", "wrap"):

        def amount(n: int, mode: str = mode) -> int:
            return min(n, 32) if mode == "clamp" else n & 31

        check(bits.shf("l", mode, a, b, c), rows, lambda x, y, n: (y << 32 | x) << amount(n) >> 32, 32)
        check(bits.shf("r", mode, a, b, c), rows, lambda x, y, n: (y << 32 | x) >> amount(n), 32)


def test_lop3_for_every_table() -> None:
    a, b, c = np.uint32(0xF0), np.uint32(0xCC), np.uint32(0xAA)
    for lut in range(256):
        # The ISA's way to make a table: apply the function to these three constants.
        assert int(bits.lop3(a, b, c, lut)) & 0xFF == lut
    rows = three(32)
    x, y, z = columns(rows, 32, 32, 32)
    check(bits.lop3(x, y, z, 0x96), rows, lambda p, q, r: p ^ q ^ r, 32)
    check(bits.lop3(x, y, z, 0xEA), rows, lambda p, q, r: (p & q) | r, 32)
    check(bits.lop3(x, y, z, 0x1A), rows, lambda p, q, r: ((p & q) | r) ^ p, 32)
    check(bits.lop3(x, y, z, 0), rows, lambda p, q, r: 0, 32)
    check(bits.lop3(x, y, z, 255), rows, lambda p, q, r: -1, 32)


@pytest.mark.parametrize("width", [32, 64])
def test_counting_bits(width: int) -> None:
    rows = [
        (x,)
        for x in samples(width, 200) + [1 << i for i in range(width)] + [(1 << i) - 1 for i in range(width)]
    ]
    (a,) = columns(rows, width)
    check(bits.popc(f"b{width}", a), rows, int.bit_count, 32)
    check(bits.clz(f"b{width}", a), rows, lambda x: width - x.bit_length(), 32)
    check(bits.brev(f"b{width}", a), rows, lambda x: int(f"{x:0{width}b}"[::-1], 2), width)
    for kind in "us":

        def find(x: int, kind: str = kind) -> int:
            if kind == "s" and x >> (width - 1):
                x ^= (1 << width) - 1
            return x.bit_length() - 1

        check(bits.bfind(f"{kind}{width}", a), rows, find, 32)
        check(
            bits.bfind(f"{kind}{width}", a, shiftamt=True),
            rows,
            lambda x: width - 1 - find(x) if find(x) >= 0 else -1,
            32,
        )


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_bit_fields(type_: str) -> None:
    n = bits_of(type_)
    places = (0, 1, 8, 31, 32, 63, 64, 200, 255, 256 + 3)
    rows = [(x, b, c) for x in samples(n, 8) for b in places for c in places]
    a, b, c = columns(rows, n, 32, 32)

    def extract(x: int, pos: int, length: int) -> int:
        pos, length = pos & 255, length & 255
        sign = x >> min(pos + length - 1, n - 1) & 1 if type_[0] == "s" and length else 0
        return sum((x >> (pos + i) & 1 if i < length and pos + i < n else sign) << i for i in range(n))

    check(bits.bfe(type_, a, b, c), rows, extract, n)
    other = np.roll(a, 3)
    got = bits.bfi(f"b{n}", a, other, b, c)
    for i, (x, pos, length) in enumerate(rows):
        want = int(other[i])
        for j in range(length & 255):
            at = (pos & 255) + j
            if at < n:
                want = want & ~(1 << at) | (x >> j & 1) << at
        assert int(got[i]) == want


def test_masks_and_extension() -> None:
    rows = [
        (x, y)
        for x in (0, 1, 5, 16, 31, 32, 33, 64, 0xFFFFFFFF, 0x80000000, 0xFF)
        for y in (0, 1, 8, 31, 32, 33, 63, 64, 0xFFFFFFFF)
    ]
    a, b = columns(rows, 32, 32)
    for mode in ("clamp", "wrap"):

        def mask(x: int, y: int, mode: str = mode) -> int:
            if mode == "wrap":
                x, y = x & 31, y & 31
            return sum(1 << i for i in range(min(x, 99), min(x + y, 32))) if x < 32 else 0

        check(bits.bmsk(mode, a, b), rows, mask, 32)
        for type_ in ("u32", "s32"):

            def extend(x: int, n: int, mode: str = mode, type_: str = type_) -> int:
                if n >= 32 and mode == "clamp":
                    return x
                n &= 31
                x &= (1 << n) - 1
                return x - (1 << n) if type_ == "s32" and n and x >> (n - 1) else x

            check(bits.szext(mode, type_, a, b), rows, extend, 32)
    assert int(bits.bmsk("wrap", np.uint32(1), np.uint32(2))) == 6  # the ISA's example
    assert int(bits.szext("wrap", "u32", np.uint32(0xFFFFFFFF), np.uint32(0))) == 0


def test_nth_bit_set() -> None:
    mask = np.uint32(0xAAAAAAAA)
    for base, offset, want in ((3, 1, 3), (3, -1, 3), (2, 1, 3), (2, -1, 1)):  # the ISA's examples
        assert int(bits.fns(mask, np.uint32(base), np.int32(offset).view(np.uint32))) == want

    def reference(m: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if m >> base & 1 else -1
        position, count = base, abs(offset) - 1
        while 0 <= position < 32:
            if m >> position & 1:
                if not count:
                    return position
                count -= 1
            position += 1 if offset > 0 else -1
        return -1

    rows = [
        (m, base, offset % 2**32)
        for m in samples(32, 20)
        for base in (0, 3, 17, 31)
        for offset in (0, 1, -1, 2, -2, 5, 33, -40)
    ]
    a, b, c = columns(rows, 32, 32, 32)
    check(bits.fns(a, b, c), rows, lambda m, base, offset: reference(m, base, value("s32", offset)), 32)


def test_permutation_of_bytes() -> None:
    rows = [
        (a, b, c)
        for a, b, _ in three(32)[::5]
        for c in (0x3210, 0x7654, 0x1234, 0x89AB, 0xFEDC, 0x0, 0x5140, 0xFFFF7531)
    ]
    a, b, c = columns(rows, 32, 32, 32)

    def pick(x: int, y: int, control: int) -> int:
        source = (y << 32 | x).to_bytes(8, "little")
        found = []
        for i in range(4):
            select = control >> 4 * i & 15
            byte = source[select & 7]
            found.append((255 if byte >> 7 else 0) if select & 8 else byte)
        return int.from_bytes(bytes(found), "little")

    check(bits.prmt(a, b, c), rows, pick, 32)
    for control in (0x3210, 0x5410, 0xFEDC, 0x8901, 0xABCD1234):  # one for all lanes
        check(bits.prmt(a, b, np.uint32(control)), rows, lambda x, y, _, k=control: pick(x, y, k), 32)  # type: ignore[misc]
    x, y = np.uint32(0x03020100), np.uint32(0x07060504)
    table = {  # rows of the ISA's table: d.b3 d.b2 d.b1 d.b0 for c = 0, 1, 2, 3
        "f4e": (0x03020100, 0x04030201, 0x05040302, 0x06050403),
        "b4e": (0x05060700, 0x06070001, 0x07000102, 0x00010203),
        "rc8": (0x00000000, 0x01010101, 0x02020202, 0x03030303),
        "ecl": (0x03020100, 0x03020101, 0x03020202, 0x03030303),
        "ecr": (0x00000000, 0x01010100, 0x02020100, 0x03020100),
        "rc16": (0x01000100, 0x03020302, 0x01000100, 0x03020302),
    }
    for mode, want in table.items():
        assert bits.prmt(x, y, np.arange(8, dtype=np.uint32), mode).tolist() == [*want, *want]
        for selector in range(4):
            assert int(bits.prmt(x, y, np.uint32(selector + 8), mode)) == want[selector], (mode, selector)


def test_shapes_broadcast() -> None:
    lanes = np.arange(64, dtype=np.uint32).reshape(2, 32)
    one = np.array([[3]], np.uint32)
    for got in (
        integers.add("u32", lanes, one), bits.shl("b32", lanes, one),
        integers.mad("u32", "lo", lanes, one, one),
        bits.lop3(one, lanes, one, 0xE8), bits.prmt(lanes, one, one), bits.bfe("s32", lanes, one, one),
        bits.shf("l", "wrap", lanes, one, one), integers.div("s32", lanes, one), bits.fns(lanes, one, one),
    ):  # fmt: skip
        assert got.shape == (2, 32)
        assert got.dtype == np.uint32
