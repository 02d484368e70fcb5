"""What is a value rounded exactly? An independent reference: integers and fractions, one number at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Layout:
    """A binary float: `bits` in all, `fraction` bits after the leading one."""

    bits: int
    fraction: int
    infinities: bool = True
    nan: int | None = None  # the canonical NaN
    greatest: int | None = None  # the code of the largest finite number

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def last(self) -> int:
        if self.greatest is not None:
            return self.greatest
        return (((1 << (self.bits - 1 - self.fraction)) - 1) << self.fraction) - 1


F16 = Layout(16, 10, nan=0x7FFF)
BF16 = Layout(16, 7, nan=0x7FFF)
TF32 = Layout(19, 10, nan=0x3FFFF)
F32 = Layout(32, 23, nan=0x7FFFFFFF)
F64 = Layout(64, 52, nan=0x7FF8000000000000)
E4M3 = Layout(8, 3, infinities=False, nan=0x7F, greatest=0x7E)
E5M2 = Layout(8, 2, nan=0x7F)
E2M1 = Layout(4, 1, infinities=False, greatest=7)
E2M3 = Layout(6, 3, infinities=False, greatest=0x1F)
E3M2 = Layout(6, 2, infinities=False, greatest=0x1F)
LAYOUTS = {
    "f16": F16, "bf16": BF16, "tf32": TF32, "f32": F32, "f64": F64,
    "e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "e2m3": E2M3, "e3m2": E3M2,
}  # fmt: skip

Special = float  # "nan", "inf", "-inf", and -0.0 as floats; every other value as a Fraction
Value = Fraction | float


def value(layout: Layout, code: int) -> Value:
    """What a code means: a Fraction, or a float for NaN, infinities and -0."""
    negative = bool(code >> (layout.bits - 1))
    size = code & ((1 << (layout.bits - 1)) - 1)
    if size > layout.last:
        if layout.infinities and size == layout.last + 1:
            return -math.inf if negative else math.inf
        return math.nan
    exponent, fraction = size >> layout.fraction, size & ((1 << layout.fraction) - 1)
    if exponent:
        fraction |= 1 << layout.fraction
    number = Fraction(fraction) * Fraction(2) ** (max(exponent, 1) - layout.bias - layout.fraction)
    if not number:
        return -0.0 if negative else Fraction(0)
    return -number if negative else number


def code_of(layout: Layout, number: Value, mode: str = "rn", satfinite: bool = False) -> int:
    """The code of a value after one rounding: rn, rz, rm, rp, rna."""
    sign = 1 << (layout.bits - 1)
    if isinstance(number, float):
        if math.isnan(number):
            return layout.nan if layout.nan is not None else layout.last
        if math.isinf(number):
            size = layout.last + 1 if layout.infinities and not satfinite else layout.last
            return size | (sign if number < 0 else 0)
        return sign if math.copysign(1, number) < 0 else 0
    negative = number < 0
    size_exact = abs(number)
    low = min(_floor(layout, size_exact), layout.last)
    below = _finite(layout, low)
    above = _above(layout, low)
    code = low
    if size_exact != below:
        middle_value = (below + above) / 2
        away = {
            "rn": size_exact > middle_value or (size_exact == middle_value and low & 1),
            "rna": size_exact >= middle_value,
            "rz": False,
            "rm": negative,
            "rp": not negative,
        }[mode]
        code += bool(away)
    if code > layout.last and (satfinite or not layout.infinities):
        code = layout.last
    return code | (sign if negative else 0)


def _finite(layout: Layout, code: int) -> Fraction:
    found = value(layout, code)
    assert isinstance(found, Fraction)
    return found


def _floor(layout: Layout, size: Fraction) -> int:
    """The greatest code that means no more than `size`, with exponents going on for ever."""
    if not size:
        return 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - layout.bias)
    whole = size * Fraction(2) ** (layout.fraction - exponent)
    return int(whole) + ((exponent - (1 - layout.bias)) << layout.fraction)


def _above(layout: Layout, code: int) -> Fraction:
    """What the next code means, or would mean if the exponents went on."""
    exponent = max(code >> layout.fraction, 1)
    return _finite(layout, code) + Fraction(2) ** (exponent - layout.bias - layout.fraction)


def interesting(layout: Layout) -> list[int]:
    """Codes at the edges, of both signs: zeros, subnormals, ones, halves, the greatest, infinities, NaN."""
    one = layout.bias << layout.fraction
    sizes = {0, 1, 2, 3, (1 << layout.fraction) - 1, 1 << layout.fraction, (1 << layout.fraction) + 1}
    sizes |= {one - 1, one, one + 1, one + (1 << layout.fraction), one - (1 << layout.fraction)}
    sizes |= {layout.last, layout.last - 1, layout.last - (1 << layout.fraction)}
    if layout.infinities:
        sizes.add(layout.last + 1)
    if layout.nan is not None:
        sizes |= {layout.nan}
    sign = 1 << (layout.bits - 1)
    return sorted(s | extra for s in sizes for extra in (0, sign))
