"""How far from the float64 reference may an element be, and which elements are further?

Products of two numbers uniform in [-1, 1] have an RMS of 1/3, so a sum of K of them has sqrt(K)/3 and wanders
while it is summed: one after the other in precision u it gathers an error of RMS about 0.4 * u * sqrt(K) of
the output's RMS, in blocks less. An element may be off by 8 * u * sqrt(K + 16) times the RMS: 20 of those
sigmas, and far below what one missing product (RMS 1/3) makes. The norm of the whole may be off by half that.
Elements near zero after cancellation get the same absolute room (a relative bound alone would fail them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.verify.poison import pattern, words
from worker.verify.reference import F64, Reference

# Unit roundoff of what is summed in, and of what is stored.
_UNIT = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "tf32": 2.0**-11,
    "e4m3": 2.0**-4,
    "e5m2": 2.0**-3,
}
# Below the smallest normal number a stored result is off by up to half the smallest subnormal.
_SUBNORMAL = {"f16": 2.0**-25, "e4m3": 2.0**-10, "e5m2": 2.0**-17}


@dataclass(frozen=True)
class Bound:
    """|got - expected| <= absolute + relative * |expected|, and the norm's own bound."""

    absolute: float
    relative: float
    norm: float

    def to_json(self) -> dict[str, float]:
        return {"absolute": self.absolute, "relative": self.relative, "norm": self.norm}


def bound_for(reference: Reference, k: int, acc: str, out: str, alpha: float, activated: bool) -> Bound:
    """The bound of one case. Integers stored as integers must be exact."""
    if acc not in _UNIT and out not in _UNIT:
        return Bound(0.0, 0.0, 0.0)
    # A sum of integers is exact; what becomes of it on the way to a float is done in f32.
    unit = _UNIT.get(acc, _UNIT["f32"])
    # A result of few elements may have a small RMS by chance; what was summed had the expected one.
    rms = max(reference.rms, abs(alpha) * math.sqrt(k) / 3.0)
    grow = 8.0 * unit * math.sqrt(k + 16.0)
    store = _UNIT.get(out, unit)
    # exp and tanh of a kernel are polynomials good to a few units in the last place.
    absolute = grow * rms + (32.0 * unit if activated else 0.0) + _SUBNORMAL.get(out, 0.0)
    relative = 8.0 * unit + store + (32.0 * unit if activated else 0.0)
    return Bound(absolute, relative, grow / 2.0 + relative)


@dataclass(frozen=True)
class Comparison:
    """What comparing one output with its reference gave. `problem` is None when it passed."""

    problem: str | None  # not_written | nan_result | wrong_result
    max_error: float
    norm_error: float
    evidence: dict[str, Any]


def compare(out: npt.NDArray[Any], reference: Reference, bound: Bound) -> Comparison:
    """Look at every element. NaN and infinity pass only where the reference has the same (AT-56)."""
    expected = reference.values
    if out.size == 0:
        return Comparison(None, 0.0, 0.0, {})
    return _all_right(out, expected, bound) or _look_closely(out, expected, bound)


def _all_right(out: npt.NDArray[Any], expected: F64, bound: Bound) -> Comparison | None:
    """The common case in few passes; None where anything at all is odd."""
    if out.dtype.kind != "f":
        return None
    # A NaN anywhere, and so poison too, makes a comparison below false.
    with np.errstate(invalid="ignore"):
        difference = np.subtract(out, expected)
        np.abs(difference, out=difference)
        magnitude = np.abs(expected)
        max_error = float(difference.max())
        error, norm = _norm(difference), _norm(magnitude)
        magnitude *= bound.relative
        magnitude += bound.absolute
        if not (difference <= magnitude).all():
            return None
    norm_error = error / norm if norm > 0.0 else 0.0
    if norm_error > bound.norm:
        return None
    return Comparison(None, max_error, norm_error, {})


def compare_written(out: npt.NDArray[Any]) -> Comparison | None:
    """Where not every element has a reference: none still poisoned, none NaN or infinite; None: so it is."""
    unwritten = words(out) == pattern(out.dtype)
    if unwritten.any():
        return _not_written(unwritten)
    if out.dtype.kind == "f" and not np.isfinite(out).all():
        strange = ~np.isfinite(out)
        where, count = _first(strange), int(np.count_nonzero(strange))
        message = f"{count} of {out.size} elements are NaN or infinite, the first at {list(where)}"
        evidence = {"message": message, "count": count, "of": out.size, "first": list(where)}
        return Comparison("nan_result", math.inf, math.inf, evidence)
    return None


def _not_written(unwritten: npt.NDArray[np.bool_]) -> Comparison:
    where, count = _first(unwritten), int(np.count_nonzero(unwritten))
    message = f"{count} of {unwritten.size} elements were not written, the first at {list(where)}"
    evidence = {"message": message, "count": count, "of": unwritten.size, "first": list(where)}
    return Comparison("not_written", math.inf, math.inf, evidence)


def _norm(values: F64) -> float:
    return math.sqrt(float(np.vdot(values, values)))


def _look_closely(out: npt.NDArray[Any], expected: F64, bound: Bound) -> Comparison:
    """What is wrong, where first, and how often."""
    unwritten = words(out) == pattern(out.dtype)
    if unwritten.any():
        return _not_written(unwritten)
    got = out.astype(np.float64)
    odd = ~np.isfinite(expected)
    any_odd = bool(odd.any())
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - expected)
    if any_odd:
        same = (np.isnan(expected) & np.isnan(got)) | (expected == got)
        difference[odd] = np.where(same[odd], 0.0, np.inf)
    strange = ~np.isfinite(got)
    if any_odd:
        strange &= ~(odd & (difference == 0.0))
    if strange.any():
        where = _first(strange)
        count = int(np.count_nonzero(strange))
        return Comparison(
            "nan_result",
            math.inf,
            math.inf,
            {
                "message": f"{count} of {out.size} elements are NaN or infinite, the first at {list(where)}",
                "count": count,
                "of": out.size,
                "first": list(where),
                "got": str(got[where]),
                "expected": float(expected[where])
                if math.isfinite(expected[where])
                else str(expected[where]),
            },
        )
    magnitude = np.abs(expected)
    if any_odd:
        magnitude[odd] = 0.0
    allowed = bound.absolute + bound.relative * magnitude
    wrong = difference > allowed
    norm = _norm(magnitude)
    error = _norm(difference) if np.isfinite(difference).all() else math.inf
    norm_error = (
        error / norm if norm > 0.0 else (0.0 if error <= bound.absolute * math.sqrt(out.size) else math.inf)
    )
    max_error = float(difference.max())
    if wrong.any():
        where = _first(wrong)
        count = int(np.count_nonzero(wrong))
        evidence = {
            "message": (
                f"{count} of {out.size} elements are wrong, the first at {list(where)}: "
                f"got {float(got[where]):.9g}, expected {float(expected[where]):.9g}, "
                f"allowed {float(allowed[where]):.3g} off"
            ),
            "count": count,
            "of": out.size,
            "first": list(where),
            "got": float(got[where]),
            "expected": float(expected[where]),
            "allowed": float(allowed[where]),
        }
        return Comparison("wrong_result", max_error, norm_error, evidence)
    # A few elements near zero may make the norm of a tiny output small: judged only where it means something.
    if norm_error > bound.norm and out.size >= 64:
        return Comparison(
            "wrong_result",
            max_error,
            norm_error,
            {
                "message": (
                    f"the norm of the error is {norm_error:.3g} of the result's, allowed is {bound.norm:.3g}"
                ),
                "norm_error": norm_error,
                "allowed_norm": bound.norm,
            },
        )
    return Comparison(None, max_error, norm_error, {})


def _first(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
