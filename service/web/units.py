"""How is a number written for a person: with its unit, and no more digits than it carries?"""

from __future__ import annotations

import datetime as dt
import math

NONE = "–"


def significant(value: float, digits: int = 4) -> str:
    """`value` with that many significant digits and no exponent: 1234.5 -> "1234", 0.01234 -> "0.01234"."""
    if not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    return f"{rounded:,.{max(0, places)}f}".replace(",", "\u202f")


def time_us(us: float | None, digits: int = 4) -> str:
    """A time in the unit that keeps it between 1 and 1000."""
    if us is None or not math.isfinite(us):
        return NONE
    us = float(f"{us:.{digits - 1}e}")  # 999.96 becomes 1000, which belongs to the next unit
    if us < 1:
        return f"{significant(us * 1e3, digits)} ns"
    if us < 1e3:
        return f"{significant(us, digits)} µs"
    if us < 1e6:
        return f"{significant(us / 1e3, digits)} ms"
    return f"{significant(us / 1e6, digits)} s"


def percent(share: float | None, digits: int = 3) -> str:
    """A share of 1 in percent."""
    return NONE if share is None or not math.isfinite(share) else f"{significant(100 * share, digits)} %"


def ratio(value: float | None) -> str:
    """A speed-up: 1.43x is 1.43 times as fast."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.2f}×"


def flop_rate(flops: int, us: float | None) -> str:
    """Arithmetic per second."""
    if not us or us <= 0 or flops <= 0:
        return NONE
    giga = flops / us / 1e3
    return f"{significant(giga / 1e3, 3)} TFLOP/s" if giga >= 1e4 else f"{significant(giga, 3)} GFLOP/s"


def byte_rate(count: int, us: float | None) -> str:
    """Bytes that have to move, per second."""
    if not us or us <= 0 or count <= 0:
        return NONE
    return f"{significant(count / us / 1e3, 3)} GB/s"


def byte_count(count: int | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return NONE
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{significant(size, 3)} {unit}"
        size /= 1024
    return NONE


def seconds(value: float | None) -> str:
    """A duration as a person says it."""
    if value is None:
        return NONE
    if value < 59.5:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def when(moment: dt.datetime | None) -> str:
    """Date and minute, in UTC (the server cannot know the reader's zone)."""
    return NONE if moment is None else f"{_utc(moment):%Y-%m-%d %H:%M} UTC"


def day(moment: dt.datetime | None) -> str:
    return NONE if moment is None else f"{_utc(moment):%Y-%m-%d}"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def counted(value: int, noun: str) -> str:
    """A number of things: 1 trial, 2 trials."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def short(text: str | None, letters: int = 12) -> str:
    """The start of a hash or key."""
    if not text:
        return NONE
    return text if len(text) <= letters else text[:letters] + "…"


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
