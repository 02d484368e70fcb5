"""How large may integer inputs be so that an f16 result still holds their sums?

Two operands over their whole range leave it (65504) from a k of about 96 on. So one of them, in turn from
case to case, has its whole range, and the other only so much that a sum stays within: smaller numbers, and
for a large k zeros among them. Results of f32, bf16 and s32 hold every sum: both have the whole range there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooftile.problem import operand_dtype

from worker.verify.cases import Case

_RANGES = {"s8": (-128, 127), "u8": (0, 255)}
F16_MOST = 65504.0
# Half of it is for what the epilogue adds, and for chance: 16 sigmas are then as good as never.
_SHARE = 0.5
_SIGMAS = 8.0


@dataclass(frozen=True)
class Integers:
    """Uniform whole numbers from `low` to `high`, of which all but a part `density` are made 0."""

    low: int
    high: int
    density: float = 1.0

    @property
    def mean(self) -> float:
        return self.density * (self.low + self.high) / 2

    @property
    def square(self) -> float:
        """Mean of the squares."""
        low, high = self.low, self.high
        total = high * (high + 1) * (2 * high + 1) - (low - 1) * low * (2 * low - 1)
        return self.density * total / 6 / (high - low + 1)

    @property
    def most(self) -> int:
        return max(abs(self.low), abs(self.high))


def sum_within(a: Integers, b: Integers, k: int) -> float:
    """What a sum of k products does not pass: by all of them at their worst, or by 8 sigmas."""
    deviation = math.sqrt(k * max(0.0, a.square * b.square - (a.mean * b.mean) ** 2))
    return min(float(k * a.most * b.most), abs(k * a.mean * b.mean) + _SIGMAS * deviation)


def integers_of(case: Case, operand: str) -> Integers | None:
    """What an operand of integers holds; None for other types."""
    dtype = operand_dtype(case.problem, operand)
    if dtype not in _RANGES:
        return None
    whole = Integers(*_RANGES[dtype])
    if case.problem.dtype.c != "f16" or operand == ("b" if case.seed % 2 else "a"):
        return whole
    other = Integers(*_RANGES[operand_dtype(case.problem, "a" if operand == "b" else "b")])
    most = _SHARE * F16_MOST / max(1.0, abs(case.alpha))
    k = case.problem.k

    def fits(one: Integers) -> bool:
        return sum_within(one, other, k) <= most

    span = max((high for high in range(2, 129 if whole.low else 256) if fits(_to(whole, high))), default=0)
    if span:
        return _to(whole, span)
    density = 1.0
    while not fits(Integers(*_ends(whole, 1), density)):
        density *= 0.75
    return Integers(*_ends(whole, 1), density)


def _to(whole: Integers, most: int) -> Integers:
    return Integers(*_ends(whole, most))


def _ends(whole: Integers, most: int) -> tuple[int, int]:
    return max(whole.low, -most), min(whole.high, most)
