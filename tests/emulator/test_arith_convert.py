"""Does cvt give the documented bits? Exact rounding of fractions, and ml_dtypes, are the references."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.exact import LAYOUTS, Value, code_of, interesting, value

from emulator.arith.convert import cvt
from emulator.arith.formats import FORMATS, decode
from emulator.arith.types import bits_of, extend, unsigned

RNG = np.random.default_rng(17)
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = tuple(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))
MODES = ("rn", "rz", "rm", "rp")


def samples(type_: str, count: int = 150) -> list[int]:
    """Codes of a float type: edges, random bits, and random numbers of small exponents."""
    layout = LAYOUTS[type_]
    found = interesting(layout) + [
        int.from_bytes(RNG.bytes(8), "little") % (1 << layout.bits) for _ in range(count)
    ]
    for _ in range(count):
        number = Fraction(float(RNG.normal() * 2.0 ** RNG.integers(-30, 20)))
        found.append(code_of(layout, number))
    return found


def array(type_: str, codes: list[int]) -> Any:
    return np.array(codes, unsigned(bits_of(type_)))


def middles(target: str, source: str) -> list[int]:
    """Codes of `source` at and beside the middle between two numbers of `target`, also at its ends."""
    t, s = LAYOUTS[target], LAYOUTS[source]
    sizes = [0, 1, 2, 5, (1 << t.fraction) - 1, 1 << t.fraction, t.last - 1, t.last]
    sizes += [int(v) for v in RNG.integers(0, t.last, 40)]
    found = []
    for size in sizes:
        low = value(t, size)
        high = value(t, size + 1) if size < t.last else math.inf
        assert isinstance(low, Fraction)
        step = high - low if isinstance(high, Fraction) else low - Fraction(value(t, size - 1))
        for number in (low + step / 2, low + step / 4, low + step * 3 / 4, low + step):
            code = code_of(s, number)
            found += [code, max(code - 1, 0), code + 1, code | 1 << (s.bits - 1)]
    return found


def canonical(type_: str, code: int) -> int:
    found = value(LAYOUTS[type_], code)
    return int(LAYOUTS[type_].nan or 0) if found != found else code


def compare(type_: str, got: Any, want: list[int], codes: list[int]) -> None:
    assert got.dtype == unsigned(bits_of(type_)), got.dtype
    wrong = [
        (hex(c), hex(g), hex(w))
        for c, g, w in zip(codes, got.tolist(), want, strict=True)
        if g != w and not (type_ == "f64" and value(LAYOUTS["f64"], w) != value(LAYOUTS["f64"], w))
    ]
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_float_to_float(source: str, target: str) -> None:
    if source == target:
        return
    codes = samples(source)
    if LAYOUTS[target].fraction < LAYOUTS[source].fraction:
        codes += middles(target, source)
    a = array(source, codes)
    for mode in MODES:
        want = [canonical(target, code_of(LAYOUTS[target], value(LAYOUTS[source], c), mode)) for c in codes]
        compare(target, cvt(target, source, a, rnd=mode), want, codes)


@pytest.mark.parametrize("target", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("satfinite", [False, True])
def test_narrow_floats_of_f32(target: str, satfinite: bool) -> None:
    codes = samples("f32") + middles(target, "f32")
    layout = LAYOUTS[target]
    shift = 13 if target == "tf32" else 0
    for mode in ("rn", "rz", "rna") if target == "tf32" else ("rn", "rz"):
        plain = [code_of(layout, value(LAYOUTS["f32"], c), mode, satfinite) for c in codes]
        # The canonical NaN of tf32 is that of f32.
        want = [
            c << shift if value(layout, c) == value(layout, c) else 0x7FFFFFFF if shift else 0x7FFF
            for c in plain
        ]
        got = cvt(target, "f32", array("f32", codes), rnd=mode, satfinite=satfinite)
        assert got.tolist() == want
        sign = 1 << (31 if shift else 15)
        relu = cvt(target, "f32", array("f32", codes), rnd=mode, satfinite=satfinite, relu=True)
        assert relu.tolist() == [0 if w & sign else w for w in want]


def test_fast_ways_agree_with_all_numbers() -> None:
    """cvt.rn.bf16.f32 and cvt.rn.f16.f32 at a million bit patterns, against ml_dtypes and numpy."""
    a = RNG.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    a[::2] = (a[::2] & np.uint32(0x80FFFFFF)) | np.uint32(0x38000000)  # where f16 is subnormal or small
    x = a.view(np.float32)
    nan = np.isnan(x)
    with np.errstate(all="ignore"):
        for target, kind in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
            got = cvt(target, "f32", a, rnd="rn")
            assert (got == x.astype(kind).view(np.uint16))[~nan].all()
            assert (got[nan] == 0x7FFF).all()
            back = cvt("f32", target, got)
            assert (back == got.view(kind).astype(np.float32).view(np.uint32))[~nan].all()
            assert (back[nan] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_float_to_integer(source: str, target: str) -> None:
    codes = samples(source, 60)
    bits = bits_of(target)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
    for edge in (low, high, 0, 1):
        for delta in (
            -2,
            Fraction(-3, 2),
            -1,
            Fraction(-1, 2),
            0,
            Fraction(1, 4),
            Fraction(1, 2),
            1,
            Fraction(3, 2),
            2,
        ):
            codes.append(code_of(LAYOUTS[source], Fraction(edge) + delta))
    a = array(source, codes)
    for mode in ("rni", "rzi", "rmi", "rpi"):

        def convert(code: int, mode: str = mode) -> int:
            x = value(LAYOUTS[source], code)
            if x != x:
                return 1 << (bits - 1) if source == "f64" or bits == 64 else 0
            if abs(x) == math.inf:
                return (high if x > 0 else low) % (1 << bits)
            exact = Fraction(x)
            whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](exact)
            return max(low, min(high, int(whole))) % (1 << bits)

        compare(target, cvt(target, source, a, rnd=mode), [convert(c) for c in codes], codes)


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", FLOATS)
def test_integer_to_float(source: str, target: str) -> None:
    bits = bits_of(source)
    codes = [0, 1, 2, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1, (1 << bits) - 2]
    codes += [int.from_bytes(RNG.bytes(bits // 8), "little") for _ in range(100)]
    for fraction in (10, 23, 52):  # ties and their neighbours
        if bits > fraction + 3:
            codes += [(1 << (fraction + 2)) + d for d in (1, 2, 3, 5, 6, 7)]
            codes += [
                (1 << (bits - 2)) + (1 << (bits - 3 - fraction)) * k + d for k in (1, 3) for d in (-1, 0, 1)
            ]
    a = array(source, codes)
    for mode in MODES:
        want = []
        for code in codes:
            number = code - (1 << bits) if source[0] == "s" and code >> (bits - 1) else code
            want.append(code_of(LAYOUTS[target], Fraction(number), mode))
        compare(target, cvt(target, source, a, rnd=mode), want, codes)


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source: str) -> None:
    bits = bits_of(source)
    codes = [0, 1, 127, 128, 255, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << bits) - 1]
    codes += [int.from_bytes(RNG.bytes(bits // 8), "little") for _ in range(40)]
    a = array(source, codes)
    numbers = [c - (1 << bits) if source[0] == "s" and c >> (bits - 1) else c for c in codes]
    for target in INTEGERS:
        n = bits_of(target)
        low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if target[0] == "s" else (0, (1 << n) - 1)
        assert cvt(target, source, a).tolist() == [v % (1 << n) for v in numbers]
        assert cvt(target, source, a, sat=True).tolist() == [
            max(low, min(high, v)) % (1 << n) for v in numbers
        ]
        wide = extend(target, cvt(target, source, a), 64)
        want = [v % (1 << n) for v in numbers]
        assert wide.tolist() == [
            (w - (1 << n) if target[0] == "s" and w >> (n - 1) else w) % (1 << 64) for w in want
        ]


def test_a_source_wider_than_its_type() -> None:
    a = np.array([0xFFFFFF80, 0x00000180], np.uint32)
    assert cvt("s32", "s8", a).tolist() == [0xFFFFFF80, 0xFFFFFF80]
    assert cvt("u32", "u8", a).tolist() == [0x80, 0x80]


@pytest.mark.parametrize("type_", FLOATS)
def test_rounding_to_integral_values(type_: str) -> None:
    codes = [c for c in samples(type_) if value(LAYOUTS[type_], c) == value(LAYOUTS[type_], c)]
    codes += [code_of(LAYOUTS[type_], Fraction(n, 4)) for n in range(-20, 21)]
    a = array(type_, codes)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        got = cvt(type_, type_, a, rnd=mode)
        for code, g in zip(codes, got.tolist(), strict=True):
            x = value(LAYOUTS[type_], code)
            want: Value = x
            if isinstance(x, Fraction):
                want = Fraction(
                    {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](x)
                )
                if not want and x < 0:
                    want = -0.0
            assert g == code_of(LAYOUTS[type_], want), (hex(code), mode)


def test_saturation_and_flushing() -> None:
    one = 0x3F800000
    a = np.array([0xBF800000, 0x80000000, 0x3E800000, one, 0x40E00000, 0x7F800000, 0x7FC00000], np.uint32)
    want = [0, 0, 0x3E800000, one, one, one, 0]
    assert cvt("f32", "f32", a, sat=True).tolist() == want
    assert cvt("f16", "f32", a, rnd="rn", sat=True).tolist() == [0, 0, 0x3400, 0x3C00, 0x3C00, 0x3C00, 0]
    assert cvt("f32", "f32", np.array([1, 0x80000001], np.uint32), ftz=True).tolist() == [0, 0x80000000]
    assert cvt("f64", "f32", np.array([0x80000001], np.uint32), ftz=True).tolist() == [1 << 63]
    assert cvt("f32", "f64", np.array([-(2.0**-140)]).view(np.uint64), rnd="rn", ftz=True).tolist() == [
        0x80000000
    ]
    assert cvt("s32", "f32", np.array([1], np.uint32), rnd="rpi", ftz=True).tolist() == [0]
    assert cvt("s32", "f32", np.array([1], np.uint32), rnd="rpi").tolist() == [1]
    assert cvt("f32", "bf16", np.array([0x8001], np.uint16), ftz=True).tolist() == [0x80000000]


EIGHT = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
SIX = {"e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("name", [*EIGHT, *SIX])
def test_every_code_of_few_bits(name: str) -> None:
    bits = FORMATS[name].bits
    codes = np.arange(1 << bits)
    kind: Any = {**EIGHT, **SIX}[name]
    want = codes.astype(np.uint8).view(kind).astype(np.float64)
    got = decode(name, codes)
    assert ((got == want) | (np.isnan(got) & np.isnan(want))).all()
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
    for code in codes.tolist():
        exact = value(LAYOUTS[name], code)
        assert float(exact) == got[code] or (exact != exact and got[code] != got[code])


@pytest.mark.parametrize("name", [*EIGHT, *SIX])
def test_pairs_of_few_bits(name: str) -> None:
    layout = LAYOUTS[name]
    codes = samples("f32", 100) + middles(name, "f32")
    width = 4 if name == "e2m1" else 8
    a = array("f32", codes)
    b = np.roll(a, 1)

    def one(source: str, code: int, relu: bool = False) -> int:
        x = value(LAYOUTS[source], code)
        found = code_of(layout, x, "rn", True)
        return 0 if relu and x == x and found >> (layout.bits - 1) else found

    both = list(zip(codes, b.tolist(), strict=True))
    for relu in (False, True):
        got = cvt(f"{name}x2", "f32", a, b, rnd="rn", satfinite=True, relu=relu)
        want = [one("f32", x, relu) << width | one("f32", y, relu) for x, y in both]
        assert got.tolist() == want
        assert got.dtype == (np.uint8 if width == 4 else np.uint16)
    for source in ("f16", "bf16"):
        half = samples(source, 100)
        if len(half) % 2:
            half.append(0)
        packed = np.array(half, np.uint16).view(np.uint32)
        got = cvt(f"{name}x2", f"{source}x2", packed, rnd="rn", satfinite=True)
        assert got.tolist() == [
            one(source, high) << width | one(source, low)
            for low, high in zip(half[::2], half[1::2], strict=True)
        ]
    every = np.arange(1 << (8 if width == 4 else 16)).astype(np.uint16)
    mask = (1 << layout.bits) - 1
    if width == 8:
        every = every[(every | every >> 8) & (255 ^ mask) == 0]
    back = cvt("f16x2", f"{name}x2", every, rnd="rn")
    for part, shift in ((back & 0xFFFF, 0), (back >> 16, width)):
        number = decode(name, every >> shift & mask)
        half_bits = part.astype(np.uint16)
        nan = np.isnan(number)
        assert (half_bits[nan] == 0x7FFF).all()
        assert (half_bits.view(np.float16)[~nan] == number[~nan]).all()
    relu_back = cvt("f16x2", f"{name}x2", every, rnd="rn", relu=True)
    assert (relu_back & np.uint32(0x80008000) == 0).all()


def test_documented_values_of_eight_bits() -> None:
    a = np.array([448.0, 449.0, 1e9, -1e9, math.inf, math.nan, 2.0**-9, 2.0**-10, 464.0], np.float32).view(
        np.uint32
    )
    got = cvt("e4m3x2", "f32", a, a, rnd="rn", satfinite=True) & 0xFF
    assert got.tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0x7F, 0x01, 0x00, 0x7E]
    got = cvt("e5m2x2", "f32", a, a, rnd="rn", satfinite=True) & 0xFF
    assert got.tolist() == [0x5F, 0x5F, 0x7B, 0xFB, 0x7B, 0x7F, 0x18, 0x14, 0x5F]


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_pairs_of_halves(type_: str) -> None:
    a, b = array("f32", samples("f32", 50)), array("f32", samples("f32", 50))
    for mode in ("rn", "rz"):
        for relu in (False, True):
            got = cvt(f"{type_}x2", "f32", a, b, rnd=mode, relu=relu)
            high = cvt(type_, "f32", a, rnd=mode, relu=relu).astype(np.uint32)
            low = cvt(type_, "f32", b, rnd=mode, relu=relu).astype(np.uint32)
            assert (got == (high << 16 | low)).all()


def test_powers_of_two() -> None:
    numbers = [
        1.0,
        1.5,
        2.0,
        3.0,
        2.0**-127,
        2.0**-149,
        0.0,
        2.0**127,
        1.5 * 2.0**127,
        math.inf,
        math.nan,
        0.75,
    ]
    a = np.array(numbers, np.float32).view(np.uint32)
    down = cvt("ue8m0x2", "f32", a, a, rnd="rz", satfinite=True)
    up = cvt("ue8m0x2", "f32", a, a, rnd="rp", satfinite=True)
    assert (down & 0xFF).tolist() == [127, 127, 128, 128, 0, 0, 0, 254, 254, 254, 255, 126]
    assert (up >> 8).tolist() == [127, 128, 128, 129, 0, 0, 0, 254, 254, 254, 255, 127]
    assert (cvt("ue8m0x2", "f32", a, a, rnd="rp") & 0xFF).tolist()[7:11] == [254, 255, 255, 255]
    codes = np.arange(256).astype(np.uint16)
    back = cvt("bf16x2", "ue8m0x2", codes | codes << np.uint16(8), rnd="rn")
    assert (back >> 16 == back & 0xFFFF).all()
    low = (back & 0xFFFF).astype(np.uint16)
    assert low[255] == 0x7FFF
    assert (low[:255].view(ml_dtypes.bfloat16).astype(np.float64) == 2.0 ** (np.arange(255) - 127.0)).all()


def test_what_is_not_there_is_an_error() -> None:
    a = np.zeros(3, np.uint32)
    for d_type, a_type, rnd in (
        ("f16x2", "f32", "rs"), ("s2f6x2", "f32", "rn"), ("s32", "f32", "rn"), ("s32", "f32", None),
        ("b32", "f32", "rn"),
        ("e4m3x2", "u32", "rn"), ("f32", "tf32", "rn"), ("f16x2", "ue8m0x2", "rn"),
    ):  # fmt: skip
        with pytest.raises((ValueError, KeyError)):
            cvt(d_type, a_type, a, a, rnd=rnd)
