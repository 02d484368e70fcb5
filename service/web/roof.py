"""How near to what the device can do at most is a time, and which limit is the nearer one?

The roof of a problem is the larger of two times: its arithmetic at the measured peak, and the bytes that
have to move at the measured bandwidth. `cold` problems come from memory; a warm one may lie in a cache,
so there only the compute roof binds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftile.problem import Problem


@dataclass(frozen=True, slots=True)
class RoofShare:
    """`share` of 1 is at the roof; None where the device's roof is not measured yet."""

    share: float | None
    kind: str
    limit_us: float | None

    @property
    def label(self) -> str:
        return {"compute": "of compute roof", "memory": "of memory roof"}.get(self.kind, "roof not measured")


UNKNOWN = RoofShare(None, "unknown", None)


def share(
    problem: Problem, time_us: float | None, roof: Mapping[str, Any] | None, cache: str = "cold"
) -> RoofShare:
    """The share of the roof that this time reaches."""
    limits = limits_us(problem, roof, cache)
    if time_us is None or time_us <= 0 or not limits:
        return UNKNOWN
    kind = max(limits, key=lambda name: limits[name])
    return RoofShare(limits[kind] / time_us, kind, limits[kind])


def limits_us(problem: Problem, roof: Mapping[str, Any] | None, cache: str) -> dict[str, float]:
    """The least time by each roof that is known."""
    if roof is None:
        return {}
    out = {}
    gflops = peak_gflops(roof, problem.dtype.acc)
    if gflops is not None and problem.flops > 0:
        out["compute"] = problem.flops / gflops / 1e3
    gbs = bandwidth_gbs(roof)
    if gbs is not None and cache == "cold" and problem.min_bytes > 0:
        out["memory"] = problem.min_bytes / gbs / 1e3
    return out


def peak_gflops(roof: Mapping[str, Any], dtype: str) -> float | None:
    """The measured compute peak for an accumulator; a bare number is that of f32."""
    value = roof.get("gflops")
    if isinstance(value, Mapping):
        return _number(value.get(dtype))
    return _number(value) if dtype == "f32" else None


def bandwidth_gbs(roof: Mapping[str, Any]) -> float | None:
    """The measured rate of reading memory."""
    return _number(roof.get("read_gbps"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None
