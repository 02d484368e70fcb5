"""What do samples say: median, quantiles, how sure, and are they possible at all?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# A time may beat the measured roof by this much before it is called impossible: the roof has noise too.
ROOF_MARGIN = 1.05
# A roof that was measured while the machine was busy with other work may be far too low.
BUSY_ROOF_MARGIN = 3.0


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two for an even count."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def quantile(values: Sequence[float], q: float) -> float | None:
    """Linear interpolation between order statistics; None for fewer than two values (AT-17)."""
    if len(values) < 2:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def relative_halfwidth(values: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of the median, relative to it, by order statistics.

    None for fewer than 5 samples, whose extremes do not make such an interval, and for a median of 0.
    """
    count = len(values)
    if count < 5:
        return None
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    middle = median(ordered)
    return None if middle <= 0.0 else (ordered[high] - ordered[low]) / 2.0 / middle


def least_time_us(
    flops: float, read_bytes: float, roof: Mapping[str, Any] | None, *, cold: bool
) -> tuple[float, str | None]:
    """The shortest possible time by the device's roof, and which roof it is; (0, None) without one."""
    if roof is None:
        return 0.0, None
    best, which = 0.0, None
    peak, bandwidth = float(roof.get("gflops") or 0.0), float(roof.get("read_gbps") or 0.0)
    if peak > 0.0:
        best, which = flops / peak / 1e3, "compute"
    if cold and bandwidth > 0.0 and read_bytes / bandwidth / 1e3 > best:
        best, which = read_bytes / bandwidth / 1e3, "memory"
    return best, which


def impossible(
    samples_us: Sequence[float],
    flops: float,
    read_bytes: float,
    roof: Mapping[str, Any] | None,
    *,
    cold: bool,
) -> dict[str, Any] | None:
    """Why these times cannot be true (evidence of `invalid_time`), or None (AT-19).

    Only what a kernel must read counts against the memory roof: its writes may still lie in the cache.
    """
    if not samples_us:
        return {"message": "no time was taken", "rule": "no_samples"}
    for value in samples_us:
        if not math.isfinite(value) or value <= 0.0:
            return {
                "message": f"a time of {value} us is not finite and positive",
                "rule": "positive",
                "sample": str(value),
            }
    middle = median(samples_us)
    least, which = least_time_us(flops, read_bytes, roof, cold=cold)
    margin = BUSY_ROOF_MARGIN if roof is not None and roof.get("contended") else ROOF_MARGIN
    if which is not None and middle * margin < least:
        return {
            "message": f"{middle:.4g} us is faster than the {which} roof allows ({least:.4g} us)",
            "rule": f"{which}_roof",
            "median_us": middle,
            "least_us": least,
            "ratio": least / middle,
        }
    return None
