"""How is one PTX instruction tried on many values, among hundreds of others in one kernel?

Each case is a scope with its own registers: load one value of every operand a thread, run the text, store
what came out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from support.emulator import launch

from emulator import Operand, Order, Program, Report

Array: TypeAlias = npt.NDArray[Any]

THREADS = 64
HEAD = """.version 8.7
.target {target}
.address_size 64
"""
_BITS = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}


@dataclass
class Case:
    """`text` between the loads and the stores of the registers named in `given` and `wanted`."""

    text: str
    given: dict[str, Array]
    wanted: dict[str, Array]
    near: float | None
    offsets: dict[str, int] = field(default_factory=dict)


class Bench:
    """Cases that run in one kernel. Arrays have THREADS values; those of dtype bool are predicates."""

    def __init__(self, target: str = "sm_120a") -> None:
        self.target = target
        self.cases: list[Case] = []
        self._given = bytearray()
        self._size = 0

    def case(self, text: str, given: Mapping[str, Any], near: float | None = None, **wanted: Any) -> None:
        """`wanted` bit by bit; `near`: floats, up to this relative error (NaN equals NaN)."""
        case = Case(text, {n: np.asarray(a) for n, a in given.items()}, {}, near)
        for name, array in case.given.items():
            assert array.shape == (THREADS,), (text, name, array.shape)
            data = array.astype(np.uint32) if array.dtype == np.bool_ else array
            case.offsets[name] = len(self._given)
            self._given += data.tobytes()
        for name, array in wanted.items():
            case.wanted[name] = np.asarray(array)
            assert case.wanted[name].shape == (THREADS,), (text, name)
            case.offsets[name] = self._size
            self._size += 8 * THREADS
        self.cases.append(case)

    def check(self) -> Report:
        """Run them all and compare."""
        lines = [HEAD.format(target=self.target), ".visible .entry run(.param .u64 a, .param .u64 out)\n{"]
        lines.append(".reg .b64 %base, %in<9>, %to<9>, %tid; .reg .b32 %t;")
        lines.append("mov.u32 %t, %tid.x; cvt.u64.u32 %tid, %t;")
        for kind, name in (("in", "a"), ("to", "out")):
            lines.append(f"ld.param.u64 %base, [{name}];")
            lines += [f"mad.lo.u64 %{kind}{size}, %tid, {size}, %base;" for size in (1, 2, 4, 8)]
        for case in self.cases:
            lines += _scope(case)
        lines.append("ret;\n}")
        given = np.frombuffer(bytes(self._given) or bytes(8), np.uint8)
        out = np.zeros(max(self._size, 8), np.uint8)
        program = Program.from_ptx("\n".join(lines))
        report = launch(program, {"a": Operand(given), "out": out}, block=THREADS, stop_at_first=False)
        others = [f for f in report.faults if str(f.kind) != "not_written"]
        assert not others, others
        wrong = []
        for case in self.cases:
            for name, wanted in case.wanted.items():
                size = 4 if wanted.dtype == np.bool_ else wanted.itemsize
                at = case.offsets[name]
                raw = out[at : at + THREADS * size]
                found = (
                    raw.view(np.uint32).astype(np.bool_)
                    if wanted.dtype == np.bool_
                    else raw.view(wanted.dtype)
                )
                wrong += _difference(case, name, found, wanted)
        assert not wrong, f"{len(wrong)} of {len(self.cases)}:\n" + "\n".join(wrong[:12])
        return report


def _scope(case: Case) -> list[str]:
    lines = ["{"]
    every = {**case.given, **case.wanted}
    for name, array in every.items():
        bits = "pred" if array.dtype == np.bool_ else _BITS[max(array.itemsize, 2)]
        lines.append(f".reg .{bits} {name};")
    lines.append(".reg .b32 bool;")
    for name, array in case.given.items():
        at = case.offsets[name]
        if array.dtype == np.bool_:
            lines += [f"ld.global.b32 bool, [%in4+{at}];", f"setp.ne.u32 {name}, bool, 0;"]
        else:
            n = array.itemsize
            lines.append(f"ld.global.{_BITS[n]} {name}, [%in{n}+{at}];")
    lines.append(case.text)
    for name, array in case.wanted.items():
        at = case.offsets[name]
        if array.dtype == np.bool_:
            lines += [f"selp.b32 bool, 1, 0, {name};", f"st.global.b32 [%to4+{at}], bool;"]
        else:
            n = array.itemsize
            lines.append(f"st.global.{_BITS[n]} [%to{n}+{at}], {name};")
    return [*lines, "}"]


def _difference(case: Case, name: str, found: Array, wanted: Array) -> list[str]:
    if case.near is not None:
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(all="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= case.near * np.abs(b))
    else:
        same = bits(found) == bits(wanted)
    if same.all():
        return []
    i = int(np.nonzero(~same)[0][0])
    given = ", ".join(f"{n}={a[i]!r}" for n, a in case.given.items())
    return [f"{case.text} {given}: {name} is {found[i]!r}, not {wanted[i]!r} ({int((~same).sum())} lanes)"]


def bits(a: Array) -> Array:
    """The raw bits, as unsigned numbers."""
    if a.dtype == np.bool_:
        return a
    return a.view(np.dtype(f"u{a.itemsize}"))


def text_kernel(body: str, params: str = ".param .u64 a, .param .u64 out", *, target: str = "sm_90",
                before: str = "") -> Program:  # fmt: skip
    """A kernel of one's own: `before` stands in front of the entry."""
    return Program.from_ptx(
        HEAD.format(target=target) + before + f"\n.visible .entry run({params})\n{{\n{body}\n}}\n"
    )


def run(program: Program, given: Any, out: Array, *, block: int = 32, grid: int = 1, smem: int = 0,
        order: Order | str = "late", clean: bool = True, **more: Any) -> Report:  # fmt: skip
    """Run a kernel of one's own with pointers `a` and `out`."""
    report = launch(program, {"a": given, "out": out}, block=block, grid=grid, smem=smem, order=order, **more)
    assert report.clean or not clean, report.faults
    return report


# -- numbers -----------------------------------------------------------------------------------------------


def integers(seed: int, dtype: Any, edges: Sequence[int] = ()) -> Array:
    """Random numbers of all sizes, and the edges of the type first."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    info = np.iinfo(kind)
    width = info.bits
    raw = rng.integers(0, 1 << 63, THREADS, dtype=np.uint64) * 2 + rng.integers(
        0, 2, THREADS, dtype=np.uint64
    )
    raw >>= rng.integers(0, width, THREADS, dtype=np.uint64) * (rng.random(THREADS) < 0.5)
    found = raw.astype(np.dtype(f"u{width // 8}")).view(kind)
    first = list(edges) or [
        0,
        1,
        info.max,
        info.min,
        info.max - 1,
        2,
        3,
        int(kind.type(-1)) if info.min < 0 else 5,
    ]
    first = first[: THREADS // 2]
    start = (seed * 7) % (THREADS - len(first))
    found[start : start + len(first)] = first
    return found


def reals(seed: int, dtype: Any = np.float32, scale: float = 1.0, special: bool = True) -> Array:
    """Random numbers; with zeros, infinities, NaN and subnormals if `special`."""
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal(THREADS) * scale).astype(dtype)
    if special:
        info = {
            "float16": (6e-8, 6e4),
            "bfloat16": (1e-40, 3e38),
            "float32": (1e-42, 3e38),
            "float64": (5e-320, 1e308),
        }
        least, most = info[np.dtype(dtype).name]
        edge = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, least, -least, most, 1.0, -1.0, 0.5, 2.0])
        start = (seed * 5) % (THREADS - len(edge))
        with np.errstate(all="ignore"):
            found[start : start + len(edge)] = edge.astype(dtype)
    return found


def each(function: Callable[..., int], dtype: Any, *arrays: Array) -> Array:
    """`function` of Python numbers, thread by thread, modulo the width of `dtype`."""
    kind = np.dtype(dtype)
    unsigned = np.dtype(f"u{kind.itemsize}")
    mask = (1 << (8 * kind.itemsize)) - 1
    rows = zip(*(a.tolist() for a in arrays), strict=True)
    return np.array([function(*row) & mask for row in rows], unsigned).view(kind)


def truths(function: Callable[..., bool], *arrays: Array) -> Array:
    """The same for predicates."""
    return np.array([bool(function(*row)) for row in zip(*(a.tolist() for a in arrays), strict=True)])


FORMATS = {"f32": (24, -126), "f64": (53, -1022), "f16": (11, -14), "bf16": (8, -126), "tf32": (11, -126),
           "e4m3": (4, -6), "e5m2": (3, -14), "e2m1": (2, 0), "e2m3": (4, 0), "e3m2": (3, -2)}  # fmt: skip


def rounded(exact: Fraction, kind: str, mode: str = "rn") -> float:
    """`exact` to `kind` (no overflow), by rn, rna, rz, rm or rp."""
    precision, least = FORMATS[kind]
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole, rest = divmod(exact / unit, 1)
    up = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
          "rna": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and exact > 0),
          "rz": rest > 0 and exact < 0, "rm": False, "rp": rest > 0}[mode]  # fmt: skip
    return float((whole + up) * unit)


def exact(function: Callable[..., Fraction], kind: str, mode: str, *arrays: Array) -> Array:
    """`function` of finite numbers, rounded once, as float64."""
    rows = zip(*(a.astype(np.float64).tolist() for a in arrays), strict=True)
    return np.array([rounded(function(*(Fraction(v) for v in row)), kind, mode) for row in rows])


BF16 = np.dtype(ml_dtypes.bfloat16)


MOST = 0xFFFFFFFF


def packed(low: Array, high: Array) -> Array:
    """Two halves as one word."""
    return bits(low).astype(np.uint32) | bits(high).astype(np.uint32) << np.uint32(16)


def pair64(low: Array, high: Array) -> Array:
    return bits(low).astype(np.uint64) | bits(high).astype(np.uint64) << np.uint64(32)


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def canonical(x: Array) -> Array:
    """The NaN that f32 and f16 instructions give."""
    if x.dtype == np.float32:
        return (
            np.where(np.isnan(x), np.uint32(0x7FFFFFFF), x.view(np.uint32)).astype(np.uint32).view(np.float32)
        )
    if x.dtype == np.float64:
        return x
    raw = bits(x)
    return np.where(np.isnan(x.astype(np.float32)), np.uint16(0x7FFF), raw).astype(np.uint16).view(x.dtype)


ARITHMETIC: dict[str, Callable[..., Fraction]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "fma": lambda x, y, z: x * y + z,
}  # fmt: skip


def exact_list(values: list[Fraction], kind: str, mode: str) -> Array:
    return np.array([rounded(v, kind, mode) for v in values])
