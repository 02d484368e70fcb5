"""Do mov and cvt bring each type to each other, and to registers wider than the type?"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
from support.instructions import (
    BF16,
    MOST,
    THREADS,
    Array,
    Bench,
    bits,
    canonical,
    each,
    exact,
    exact_list,
    flushed,
    integers,
    packed,
    reals,
    signed,
)


def test_moves_pack_and_unpack() -> None:
    bench = Bench()
    h = [integers(260 + i, np.uint16) for i in range(4)]
    word = h[0].astype(np.uint32) | h[1].astype(np.uint32) << np.uint32(16)
    word2 = h[2].astype(np.uint32) | h[3].astype(np.uint32) << np.uint32(16)
    long = word.astype(np.uint64) | word2.astype(np.uint64) << np.uint64(32)
    halves = {f"h{i}": v for i, v in enumerate(h)}
    bench.case("mov.b32 d, {h0, h1};", halves, d=word)
    bench.case("mov.b64 d, {h0, h1, h2, h3};", halves, d=long)
    bench.case("mov.b64 d, {a, b};", {"a": word, "b": word2}, d=long)
    bench.case("mov.b32 {d, e}, a;", {"a": word}, d=h[0], e=h[1])
    bench.case("mov.b32 {_, e}, a;", {"a": word}, e=h[1])
    bench.case("mov.b64 {d, e}, a;", {"a": long}, d=word, e=word2)
    bench.case("mov.b64 {d, e, f, g}, a;", {"a": long}, d=h[0], e=h[1], f=h[2], g=h[3])
    b8 = [integers(265 + i, np.uint8) for i in range(2)]
    bench.case("mov.b16 d, {a, b};".replace("mov", ".reg .b8 a8, b8; cvt.u8.u8 a8, a; cvt.u8.u8 b8, b; mov")
               .replace("{a, b}", "{a8, b8}"), {"a": b8[0], "b": b8[1]},
               d=b8[0].astype(np.uint16) | b8[1].astype(np.uint16) << np.uint16(8))  # fmt: skip
    for kind, dtype in (
        ("u16", np.uint16),
        ("b32", np.uint32),
        ("s32", np.int32),
        ("f32", np.float32),
        ("f64", np.float64),
    ):
        v = integers(268, dtype) if np.dtype(dtype).kind != "f" else reals(268, dtype)
        bench.case(f"mov.{kind} d, a;", {"a": v}, d=v)
    none: dict[str, Array] = {}
    for text, wanted in (
        ("mov.u16 d, 65535", np.uint16(65535)), ("mov.s32 d, -7", np.int32(-7)),
        ("mov.u32 d, 0xFFFFFFFF", np.uint32(MOST)),
        ("mov.b64 d, -1", np.uint64(2**64 - 1)), ("mov.f32 d, 0f3FC00000", np.float32(1.5)),
        ("mov.f64 d, 0d3FF8000000000000", np.float64(1.5)), ("mov.b32 d, 0f3FC00000", np.float32(1.5)),
        ("mov.f32 d, 1.5", np.float32(1.5)), ("mov.u32 d, 7 * (2 + 3)", np.uint32(35)),
        ("add.f32 d, 0f3F800000, 0.5", np.float32(1.5)), ("add.s32 d, -3, 5", np.int32(2)),
        ("mov.u32 d, WARP_SZ", np.uint32(32)), ("mov.b16 d, -2", np.uint16(65534)),
    ):  # fmt: skip
        bench.case(text + ";", none, d=np.full(THREADS, wanted))
    bench.check()


INTEGER_TYPES = {**{f"u{n}": np.dtype(f"u{n // 8}") for n in (8, 16, 32, 64)},
                 **{f"s{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)}}  # fmt: skip


def test_conversions_of_whole_numbers() -> None:
    bench = Bench()
    for n, (source, a_type) in enumerate(INTEGER_TYPES.items()):
        a = integers(270 + n, a_type)
        for target, d_type in INTEGER_TYPES.items():
            bench.case(f"cvt.{target}.{source} d, a;", {"a": a}, d=each(int, d_type, a))
            info = np.iinfo(d_type)
            clamp = each(lambda x, i=info: max(int(i.min), min(int(i.max), x)), d_type, a)
            bench.case(f"cvt.sat.{target}.{source} d, a;", {"a": a}, d=clamp)
    # Registers wider than the type: the source is cut, the result extended by zeros or by sign.
    word = integers(280, np.uint32)
    low8 = each(lambda x: signed(x, 8), np.int64, word)
    bench.case("cvt.s16.s8 d, a;", {"a": word}, d=low8.astype(np.int32))
    bench.case("cvt.s16.s8 d, a;", {"a": word}, d=low8)
    bench.case("cvt.u16.s8 d, a;", {"a": word}, d=(low8 & 0xFFFF).astype(np.uint32))
    bench.case(
        "cvt.u32.u16 d, a;",
        {"a": integers(281, np.uint64)},
        d=(integers(281, np.uint64) & np.uint64(0xFFFF)).astype(np.uint32),
    )
    bench.case("cvt.s8.s32 d, a;", {"a": word}, d=low8.astype(np.int32))
    bench.case("cvt.u8.u32 d, a;", {"a": word}, d=word & np.uint32(255))
    bench.check()


FLOAT_TYPES = {
    "f16": np.dtype(np.float16),
    "bf16": BF16,
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


def test_conversions_with_floats() -> None:
    bench = Bench(target="sm_90")
    modes: dict[str, Callable[[float], int]] = {
        "rni": lambda x: round(x),
        "rzi": math.trunc,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    for n, (kind, dtype) in enumerate(FLOAT_TYPES.items()):
        x = reals(290 + n, dtype, scale=60, special=False)
        x[:8] = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 127.5, -128.5]).astype(dtype)
        for target, d_type in INTEGER_TYPES.items():
            info = np.iinfo(d_type)
            for mode, function in modes.items():
                want = each(
                    lambda v, f=function, i=info: max(int(i.min), min(int(i.max), f(v))),
                    d_type,
                    x.astype(np.float64),
                )
                bench.case(f"cvt.{mode}.{target}.{kind} d, a;", {"a": x}, d=want)
        for mode, function in modes.items():
            if kind != "bf16":
                whole = np.array(
                    [math.copysign(function(v), v) for v in x.astype(np.float64).tolist()]
                ).astype(dtype)
                bench.case(f"cvt.{mode}.{kind}.{kind} d, a;", {"a": x}, d=whole)
        for source, a_type in INTEGER_TYPES.items():
            i = integers(300 + n, a_type)
            if kind == "f16":
                i = np.clip(
                    i, *(v for v in (max(-2000, np.iinfo(a_type).min), min(2000, np.iinfo(a_type).max)))
                )
            for mode in ("rn", "rz", "rm", "rp"):
                want = np.array([exact_list([Fraction(v)], kind, mode)[0] for v in i.tolist()]).astype(dtype)
                bench.case(f"cvt.{mode}.{kind}.{source} d, a;", {"a": i}, d=want)
    special = reals(310)
    whole = np.nan_to_num(special.astype(np.float64), nan=0.0)
    bench.case(
        "cvt.rzi.s32.f32 d, a;", {"a": special}, d=np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int32)
    )
    bench.case(
        "cvt.rzi.ftz.u32.f32 d, a;", {"a": special}, d=np.clip(whole, 0, float(MOST)).astype(np.uint32)
    )
    bench.check()


def test_conversions_between_floats() -> None:
    bench = Bench()
    with np.errstate(all="ignore"):
        for n, (source, a_type) in enumerate(FLOAT_TYPES.items()):
            x = reals(320 + n, a_type)
            y = reals(325 + n, a_type, special=False)
            for target, d_type in FLOAT_TYPES.items():
                if source == target:
                    continue
                if d_type.itemsize > a_type.itemsize:
                    near = 0.0 if target == "f64" else None
                    bench.case(f"cvt.{target}.{source} d, a;", {"a": x}, near, d=canonical(x.astype(d_type)))
                    continue
                if "bf16" in (source, target) and "f64" in (source, target):
                    continue
                for mode in ("rn", "rz", "rm", "rp"):
                    want = exact(lambda v: v, target, mode, y).astype(d_type)
                    bench.case(f"cvt.{mode}.{target}.{source} d, a;", {"a": y}, d=want)
        z = reals(330, special=False)
        clipped = np.where(z < 0, np.float32(0), np.minimum(z, np.float32(1)))
        bench.case("cvt.sat.f32.f32 d, a;", {"a": z}, d=clipped)
        bench.case("cvt.rn.sat.f16.f32 d, a;", {"a": z}, d=clipped.astype(np.float16))
        tiny = reals(331, scale=1e-38, special=False)
        bench.case("cvt.ftz.f32.f32 d, a;", {"a": tiny}, d=flushed(tiny))
        relu = np.where(z < 0, np.float32(0), z)
        bench.case("cvt.rn.relu.f16.f32 d, a;", {"a": z}, d=relu.astype(np.float16))
        bench.case("cvt.rn.relu.bf16.f32 d, a;", {"a": z}, d=relu.astype(BF16))
        big = reals(332, scale=1e5)
        most = np.where(np.isnan(big), np.float32(np.nan), np.clip(big, -65504, 65504)).astype(np.float16)
        bench.case("cvt.rn.satfinite.f16.f32 d, a;", {"a": big}, d=canonical(most))
        for mode, how in (("rna", "rna"), ("rn", "rn"), ("rz", "rz")):
            want = exact(lambda v: v, "tf32", how, z) if mode != "rna" else _away(z)
            bench.case(f"cvt.{mode}.tf32.f32 d, a;", {"a": z}, d=want.astype(np.float32))
        # A register of 32 bits may hold a narrow float.
        bench.case("cvt.rn.f16.f32 d, a;", {"a": z}, d=bits(z.astype(np.float16)).astype(np.uint32))
        bench.case(
            "cvt.f32.f16 d, a;",
            {"a": packed(z.astype(np.float16), z.astype(np.float16))},
            d=z.astype(np.float16).astype(np.float32),
        )
    bench.check()


def _away(x: Array) -> Array:
    """To tf32, ties away from zero."""
    raw = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return raw.view(np.float32).astype(np.float64)


def test_conversions_of_pairs() -> None:
    bench = Bench()
    a, b = reals(340, special=False), reals(341, special=False)
    for kind, dtype in (("f16x2", np.dtype(np.float16)), ("bf16x2", BF16)):
        # The first source goes to the upper half.
        bench.case(
            f"cvt.rn.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=packed(b.astype(dtype), a.astype(dtype))
        )
        low, high = (np.where(v < 0, np.float32(0), v).astype(dtype) for v in (b, a))
        bench.case(f"cvt.rn.relu.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=packed(low, high))
        kind_name = kind[:-2]
        down = [exact(lambda v: v, kind_name, "rz", v).astype(dtype) for v in (b, a)]
        bench.case(f"cvt.rz.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=packed(*down))
    eights = {"e4m3x2": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2x2": np.dtype(ml_dtypes.float8_e5m2)}
    for kind, dtype in eights.items():
        low8, high8 = b.astype(dtype), a.astype(dtype)
        both = low8.view(np.uint8).astype(np.uint16) | high8.view(np.uint8).astype(np.uint16) << np.uint16(8)
        bench.case(f"cvt.rn.satfinite.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=both)
        huge = {"a": (a * 1e6).astype(np.float32), "b": b}
        most = float(ml_dtypes.finfo(dtype).max)
        high8 = np.clip(huge["a"], -most, most).astype(dtype)
        both = low8.view(np.uint8).astype(np.uint16) | high8.view(np.uint8).astype(np.uint16) << np.uint16(8)
        bench.case(f"cvt.rn.satfinite.{kind}.f32 d, a, b;", huge, d=both)
        relu = np.where(b < 0, np.float32(0), b).astype(dtype).view(np.uint8).astype(np.uint16)
        relu = relu | np.where(a < 0, np.float32(0), a).astype(dtype).view(np.uint8).astype(
            np.uint16
        ) << np.uint16(8)
        bench.case(f"cvt.rn.satfinite.relu.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=relu)
        h, k = a.astype(np.float16), b.astype(np.float16)
        both = h.astype(dtype).view(np.uint8).astype(np.uint16) | k.astype(dtype).view(np.uint8).astype(
            np.uint16
        ) << np.uint16(8)
        bench.case(f"cvt.rn.satfinite.{kind}.f16x2 d, a;", {"a": packed(h, k)}, d=both)
        raw = integers(342, np.uint16)
        raw = np.where((raw & 0x7F) == 0x7F, raw ^ 3, raw)
        raw = np.where((raw >> 8 & 0x7C) == 0x7C, raw ^ np.uint16(0x4000), raw)
        raw = np.where((raw & 0x7C) == 0x7C, raw ^ np.uint16(0x40), raw).astype(np.uint16)
        low16 = (raw & 255).astype(np.uint8).view(dtype).astype(np.float16)
        high16 = (raw >> 8).astype(np.uint8).view(dtype).astype(np.float16)
        bench.case(f"cvt.rn.f16x2.{kind} d, a;", {"a": raw}, d=packed(low16, high16))
        relu16 = [np.where(np.signbit(v), np.float16(0), v) for v in (low16, high16)]
        bench.case(f"cvt.rn.relu.f16x2.{kind} d, a;", {"a": raw}, d=packed(*relu16))
    for kind, dtype in (
        ("e2m3x2", np.dtype(ml_dtypes.float6_e2m3fn)),
        ("e3m2x2", np.dtype(ml_dtypes.float6_e3m2fn)),
    ):
        most = float(ml_dtypes.finfo(dtype).max)
        low6, high6 = (np.clip(v, -most, most).astype(dtype).view(np.uint8).astype(np.uint16) for v in (b, a))
        bench.case(f"cvt.rn.satfinite.{kind}.f32 d, a, b;", {"a": a, "b": b}, d=low6 | high6 << np.uint16(8))
    low4, high4 = (np.clip(v, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) for v in (b, a))
    bench.case(
        ".reg .b8 e; cvt.rn.satfinite.e2m1x2.f32 e, a, b; cvt.u16.u8 d, e;", {"a": a, "b": b},
        d=(low4 | high4 << np.uint8(4)).astype(np.uint16),
    )  # fmt: skip
    bench.check()
