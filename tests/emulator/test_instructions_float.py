"""Does each instruction on floats do what the PTX ISA says, with each rounding and modifier, on the right
operands?"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from support.instructions import (
    ARITHMETIC,
    BF16,
    THREADS,
    Array,
    Bench,
    canonical,
    exact,
    exact_list,
    flushed,
    packed,
    pair64,
    reals,
)


def test_f32_and_f64() -> None:
    bench = Bench()
    with np.errstate(all="ignore"):
        for kind, dtype in (("f32", np.float32), ("f64", np.float64)):
            a, b, c = (reals(200 + i, dtype) for i in range(3))
            given = {"a": a, "b": b, "c": c}
            near = 0.0 if kind == "f64" else None  # the NaN of f64 is not specified
            for op, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
                for mode in ("", ".rn"):
                    bench.case(f"{op}{mode}.{kind} d, a, b;", given, near, d=canonical(function(a, b)))
            bench.case(f"div.rn.{kind} d, a, b;", given, near, d=canonical(a / b))
            bench.case(f"sqrt.rn.{kind} d, a;", given, near, d=canonical(np.sqrt(a)))
            bench.case(f"rcp.rn.{kind} d, a;", given, near, d=canonical(dtype(1) / a))
            bench.case(f"neg.{kind} d, a;", {"a": np.nan_to_num(a)}, d=-np.nan_to_num(a))
            bench.case(f"abs.{kind} d, a;", {"a": np.nan_to_num(a)}, d=np.abs(np.nan_to_num(a)))
            bench.case(
                f"min.{kind} d, a, b;",
                given,
                near,
                d=canonical(np.fmin(a, b)) if kind == "f32" else np.fmin(a, b),
            )
            bench.case(
                f"max.{kind} d, a, b;",
                given,
                near,
                d=canonical(np.fmax(a, b)) if kind == "f32" else np.fmax(a, b),
            )
            x, y, z = (reals(210 + i, dtype, special=False) for i in range(3))
            finite = {"a": x, "b": y, "c": z}
            for mode in ("rn", "rz", "rm", "rp"):
                for op, rule in ARITHMETIC.items():
                    text = f"{op}.{mode}.{kind} d, a, b{', c' if op == 'fma' else ''};"
                    arrays = (x, y, z) if op == "fma" else (x, y)
                    bench.case(text, finite, d=exact(rule, kind, mode, *arrays).astype(dtype))
                recip = exact(lambda v: 1 / v, kind, mode, x).astype(dtype)
                bench.case(f"rcp.{mode}.{kind} d, a;", finite, d=recip)
                root = np.sqrt(x * x + 1).astype(dtype)
                bench.case(f"sqrt.{mode}.{kind} d, a;", {"a": root}, d=_roots(root, kind, mode).astype(dtype))
            fused = exact(ARITHMETIC["fma"], kind, "rz", x, y, z).astype(dtype)
            bench.case(f"mad.rz.{kind} d, a, b, c;", finite, d=fused)
    bench.check()


def _roots(x: Array, kind: str, mode: str) -> Array:
    """Square roots from whole ones, to 200 bits, whose last bit says that something follows."""
    found = []
    for v in x.astype(np.float64).tolist():
        f = Fraction(v) * 4**200
        root = math.isqrt(f.numerator // f.denominator)
        inexact = root * root != f
        found.append(Fraction(2 * root + inexact, 2 * 2**200))
    return exact_list(found, kind, mode)


def test_modifiers_of_f32() -> None:
    bench = Bench()
    with np.errstate(all="ignore"):
        a, b, c = reals(220), reals(221), reals(222)
        given = {"a": a, "b": b, "c": c}
        tiny = reals(223, scale=1e-38, special=False)
        small = {"a": tiny, "b": tiny[::-1].copy(), "c": (tiny * 3).astype(np.float32)}
        fa, fb, fc = (flushed(v) for v in small.values())
        bench.case("add.ftz.f32 d, a, b;", small, d=flushed(fa + fb))
        bench.case("sub.rn.ftz.f32 d, a, b;", small, d=flushed(fa - fb))
        half = np.full(THREADS, 0.25, np.float32)
        bench.case("mul.ftz.f32 d, a, b;", {"a": tiny, "b": half}, d=flushed(fa * half))
        bench.case("mul.f32 d, a, b;", {"a": tiny, "b": half}, d=tiny * half)
        fused = exact(ARITHMETIC["fma"], "f32", "rn", fa, half, fc).astype(np.float32)
        bench.case(
            "fma.rn.ftz.f32 d, a, b, c;", {"a": tiny, "b": half, "c": small["c"]}, 0.0, d=flushed(fused)
        )
        bench.case("abs.ftz.f32 d, a;", small, d=np.abs(fa))
        bench.case("neg.ftz.f32 d, a;", small, d=-fa)
        bench.case("min.ftz.f32 d, a, b;", small, 0.0, d=np.minimum(fa, fb))
        bench.case("div.rn.ftz.f32 d, a, b;", small, 0.0, d=flushed(fa / fb))
        bench.case("sqrt.rn.ftz.f32 d, a;", {"a": np.abs(tiny)}, d=np.sqrt(np.abs(fa)))

        def saturated(x: Array) -> Array:
            return np.where(np.isnan(x) | (x <= 0), np.float32(0), np.minimum(x, np.float32(1)))

        bench.case("add.sat.f32 d, a, b;", given, d=saturated(a + b))
        bench.case("mul.rn.sat.f32 d, a, b;", given, d=saturated(a * b))
        x, y, z = (reals(225 + i, special=False) for i in range(3))
        fused = exact(ARITHMETIC["fma"], "f32", "rn", x, y, z).astype(np.float32)
        bench.case("fma.rn.sat.f32 d, a, b, c;", {"a": x, "b": y, "c": z}, d=saturated(fused))
        nan = np.isnan(a) | np.isnan(b)
        bench.case(
            "min.NaN.f32 d, a, b;", given, d=canonical(np.where(nan, np.float32(np.nan), np.fmin(a, b)))
        )
        bench.case(
            "max.NaN.f32 d, a, b;", given, d=canonical(np.where(nan, np.float32(np.nan), np.fmax(a, b)))
        )
        sign = np.where(np.signbit(x) != np.signbit(y), np.float32(-1), np.float32(1))
        bench.case(
            "min.xorsign.abs.f32 d, a, b;", {"a": x, "b": y}, d=sign * np.minimum(np.abs(x), np.abs(y))
        )
        bench.case(
            "max.xorsign.abs.f32 d, a, b;", {"a": x, "b": y}, d=sign * np.maximum(np.abs(x), np.abs(y))
        )
        bench.case("min.f32 d, a, b, c;", {"a": x, "b": y, "c": z}, d=np.minimum(np.minimum(x, y), z))
        bench.case("max.abs.f32 d, a, b, c;", {"a": x, "b": y, "c": z},
                   d=np.maximum(np.maximum(np.abs(x), np.abs(y)), np.abs(z)))  # fmt: skip
        pair = {"a": pair64(x, y), "b": pair64(y, z), "c": pair64(z, x)}
        bench.case("add.f32x2 d, a, b;", pair, d=pair64(x + y, y + z))
        bench.case("sub.rn.f32x2 d, a, b;", pair, d=pair64(x - y, y - z))
        bench.case("mul.rn.f32x2 d, a, b;", pair, d=pair64(x * y, y * z))
        bench.case("fma.rn.f32x2 d, a, b, c;", pair, d=pair64(
            exact(ARITHMETIC["fma"], "f32", "rn", x, y, z).astype(np.float32),
            exact(ARITHMETIC["fma"], "f32", "rn", y, z, x).astype(np.float32)))  # fmt: skip
    bench.check()


def test_approximations() -> None:
    bench = Bench()
    with np.errstate(all="ignore"):
        a, b = reals(230), reals(231, scale=4)
        given = {"a": a, "b": b}
        wide_a = a.astype(np.float64)
        near = 2.0**-21
        bench.case("rcp.approx.f32 d, a;", given, near, d=np.float32(1) / a)
        bench.case("rcp.approx.ftz.f32 d, a;", given, near, d=flushed(np.float32(1) / flushed(a)))
        bench.case("sqrt.approx.f32 d, a;", given, near, d=np.sqrt(a))
        bench.case("rsqrt.approx.f32 d, a;", given, near, d=(1 / np.sqrt(wide_a)).astype(np.float32))
        bench.case(
            "rsqrt.approx.ftz.f32 d, a;",
            given,
            near,
            d=(1 / np.sqrt(flushed(a).astype(np.float64))).astype(np.float32),
        )
        bench.case(
            "div.approx.f32 d, a, b;",
            {"a": np.abs(b), "b": np.full(THREADS, 3, np.float32)},
            near,
            d=np.abs(b) / np.float32(3),
        )
        bench.case("div.full.f32 d, a, b;", given, near, d=a / b)
        x = reals(232, scale=1.5, special=False)
        one = {"a": x}
        wide_x = x.astype(np.float64)
        bench.case("ex2.approx.f32 d, a;", given, near, d=np.exp2(wide_a).astype(np.float32))
        bench.case("ex2.approx.ftz.f32 d, a;", one, near, d=np.exp2(wide_x).astype(np.float32))
        bench.case(
            "lg2.approx.f32 d, a;",
            {"a": np.abs(x) + 2},
            near,
            d=np.log2(np.abs(wide_x) + 2).astype(np.float32),
        )
        bench.case(
            "lg2.approx.ftz.f32 d, a;",
            {"a": np.abs(x) + 2},
            near,
            d=np.log2(np.abs(wide_x) + 2).astype(np.float32),
        )
        bench.case("sin.approx.f32 d, a;", one, 2.0**-20, d=np.sin(wide_x).astype(np.float32))
        bench.case("cos.approx.ftz.f32 d, a;", one, 2.0**-20, d=np.cos(wide_x).astype(np.float32))
        bench.case("tanh.approx.f32 d, a;", one, 2.0**-11, d=np.tanh(wide_x).astype(np.float32))
        for kind, dtype, error in (("f16", np.dtype(np.float16), 2.0**-9), ("bf16", BF16, 2.0**-7)):
            h, k = x.astype(dtype), reals(233, dtype, special=False)
            hw, kw = h.astype(np.float64), k.astype(np.float64)
            ftz = ".ftz" if kind == "bf16" else ""
            bench.case(f"tanh.approx.{kind} d, a;", {"a": h}, error, d=np.tanh(hw).astype(dtype))
            bench.case(f"ex2.approx{ftz}.{kind} d, a;", {"a": h}, error, d=np.exp2(hw).astype(dtype))
            pair = {"a": packed(h, k)}
            text = f"tanh.approx.{kind}x2 t, a; mov.b32 {{low, high}}, t;".replace(" t", " e")
            bench.case(
                f".reg .b32 e; {text}",
                pair,
                error,
                low=np.tanh(hw).astype(dtype),
                high=np.tanh(kw).astype(dtype),
            )
            text = f"ex2.approx{ftz}.{kind}x2 e, a; mov.b32 {{low, high}}, e;"
            bench.case(
                f".reg .b32 e; {text}",
                pair,
                error,
                low=np.exp2(hw).astype(dtype),
                high=np.exp2(kw).astype(dtype),
            )
        v = reals(234, np.float64, special=False)
        bench.case("rcp.approx.ftz.f64 d, a;", {"a": v}, 2.0**-19, d=1 / v)
        bench.case("rsqrt.approx.ftz.f64 d, a;", {"a": np.abs(v)}, 2.0**-19, d=1 / np.sqrt(np.abs(v)))
        bench.case("rsqrt.approx.f64 d, a;", {"a": np.abs(v)}, 2.0**-19, d=1 / np.sqrt(np.abs(v)))
    bench.check()


def test_halves_alone_and_in_pairs() -> None:
    bench = Bench()
    for kind, dtype in (("f16", np.dtype(np.float16)), ("bf16", BF16)):
        low = [reals(240 + i, dtype, special=False) for i in range(3)]
        high = [reals(243 + i, dtype, special=False) for i in range(3)]
        given = dict(zip("abc", low, strict=True))
        pairs = {n: packed(x, y) for n, x, y in zip("abc", low, high, strict=True)}

        def both(
            text: str, count: int, *found: Array, kind: str = kind, given: Any = given, pairs: Any = pairs
        ) -> None:
            names = ", ".join("abc"[:count])
            bench.case(f"{text}.{kind} d, {names};", given, d=found[0])
            bench.case(f"{text}.{kind}x2 d, {names};", pairs, d=packed(*found))

        def wide(
            rule: Callable[..., Any], count: int, sides: Any = (low, high), dtype: Any = dtype
        ) -> list[Array]:
            """Of a function of float32 arrays whose result needs no rounding."""
            return [rule(*(v.astype(np.float32) for v in side[:count])).astype(dtype) for side in sides]

        for op in ("add", "sub", "mul"):
            found = [exact(ARITHMETIC[op], kind, "rn", *side[:2]).astype(dtype) for side in (low, high)]
            both(op, 2, *found)
            both(f"{op}.rn", 2, *found)
            if kind == "f16":
                both(f"{op}.sat", 2, *(np.clip(f, 0, 1) for f in found))
                both(f"{op}.ftz.sat", 2, *(np.clip(f, 0, 1) for f in found))
        fused = [exact(ARITHMETIC["fma"], kind, "rn", *side).astype(dtype) for side in (low, high)]
        both("fma.rn", 3, *fused)
        both("fma.rn.relu", 3, *(np.where(f.astype(np.float32) < 0, 0, f).astype(dtype) for f in fused))
        if kind == "f16":
            both("fma.rn.sat", 3, *(np.clip(f, 0, 1) for f in fused))
        both("neg", 1, *wide(np.negative, 1))
        both("abs", 1, *wide(np.abs, 1))
        for op, function in (("min", np.minimum), ("max", np.maximum)):
            both(op, 2, *wide(function, 2))

            def signed(x: Array, y: Array, f: Any = function) -> Any:
                return np.copysign(f(np.abs(x), np.abs(y)), x * np.sign(y))

            both(f"{op}.xorsign.abs", 2, *wide(signed, 2))
        s = reals(250, dtype)
        r = reals(251, dtype)
        sf, rf = s.astype(np.float32), r.astype(np.float32)
        nan = np.isnan(sf) | np.isnan(rf)
        bench.case(f"max.NaN.{kind} d, a, b;", {"a": s, "b": r},
                   d=canonical(np.where(nan, np.float32(np.nan), np.fmax(sf, rf)).astype(dtype)))  # fmt: skip
        bench.case(f"min.{kind} d, a, b;", {"a": s, "b": r}, d=canonical(np.fmin(sf, rf).astype(dtype)))
    bench.check()
