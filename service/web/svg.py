"""How does the picture of a search come about: each trial's time, the best so far, and the Baseline?

Drawn on the server as plain SVG: no script, no style attributes (the page's CSP forbids them), every
mark a shape with a <title> that says its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from service.web import units

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 30


@dataclass(frozen=True, slots=True)
class Dot:
    """One trial on the picture: `time_us` is None where it was never timed. Only `measured` ones can be the
    best; a `contended` or `culled` one is drawn hollow. `number` is its place on the axis, in its problem;
    `trial_id` is what it is called."""

    number: int
    trial_id: int
    outcome: str
    time_us: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """A trial that became the best so far."""

    number: int
    trial_id: int
    time_us: float


def best_steps(dots: Iterable[Dot]) -> list[Step]:
    """The trials that improved on all before them."""
    steps: list[Step] = []
    for dot in dots:
        if dot.outcome != "measured" or dot.time_us is None:
            continue
        if not steps or dot.time_us < steps[-1].time_us:
            steps.append(Step(dot.number, dot.trial_id, dot.time_us))
    return steps


def convergence(dots: Sequence[Dot], baseline_us: float | None, *, width: int, height: int) -> Markup:
    """The picture, or an empty Markup where nothing has been timed."""
    timed = [(dot, dot.time_us) for dot in dots if dot.time_us is not None and dot.time_us > 0]
    if not timed:
        return Markup("")
    times = [us for _dot, us in timed] + ([baseline_us] if baseline_us else [])
    scale = _Scale(
        first=min(dot.number for dot in dots),
        last=max(dot.number for dot in dots),
        low=min(times) / 1.06,
        high=max(times) * 1.06,
        width=width,
        height=height,
    )
    steps = best_steps(dots)
    parts = [
        *_grid(scale),
        *_baseline(scale, baseline_us),
        *_staircase(scale, steps),
        *(_mark(scale, dot, us) for dot, us in timed),
        *_missing(scale, dots),
    ]
    label = (
        f"Time of {len(timed)} timed trials on a logarithmic axis"
        + (f"; best {units.time_us(steps[-1].time_us)} at trial {steps[-1].trial_id}" if steps else "")
        + (f", Baseline {units.time_us(baseline_us)}" if baseline_us else "")
    )
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    first: int
    last: int
    low: float
    high: float
    width: int
    height: int

    def x(self, number: float) -> float:
        span = max(1, self.last - self.first)
        return round(_LEFT + 6 + (number - self.first) / span * (self.width - _LEFT - _RIGHT - 12), 1)

    def y(self, us: float) -> float:
        share = math.log(us / self.low) / math.log(self.high / self.low)
        return round(self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM), 1)


def _time_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round times between low and high: 1-2-5 steps, and finer linear ones where the range is narrow."""
    for mantissas in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [m * 10.0**e for e in exponents for m in mantissas if low <= m * 10.0**e <= high]
        if 3 <= len(ticks) <= most:
            return ticks
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0):
        start = math.ceil(low / (step * factor))
        ticks = [i * step * factor for i in range(start, math.floor(high / (step * factor)) + 1)]
        if len(ticks) <= most:
            return ticks
    return []


def _number_ticks(first: int, last: int, most: int) -> list[int]:
    span = max(1, last - first)
    step = 1
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000):
        step = factor
        if span / factor <= most:
            break
    return list(range(math.ceil(first / step) * step, last + 1, step))


def _grid(scale: _Scale) -> Iterable[str]:
    right, bottom = scale.width - _RIGHT, scale.height - _BOTTOM
    for us in _time_ticks(scale.low, scale.high):
        y = scale.y(us)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>'
        shown = units.time_us(us, 3)
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{shown}</text>'
    yield f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
    for number in _number_ticks(scale.first, scale.last, 4 if scale.width < 500 else 10):
        yield (
            f'<text class="tick" x="{scale.x(number)}" y="{bottom + 16}" text-anchor="middle">{number}</text>'
        )
    yield f'<text class="tick" x="{right}" y="{bottom + 28}" text-anchor="end">trials in order</text>'


def _baseline(scale: _Scale, us: float | None) -> Iterable[str]:
    if us:
        y = scale.y(us)
        right = scale.width - _RIGHT
        yield f'<line class="baseline" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>'
        above = y - 5 if y - 5 > _TOP + 6 else y + 13
        yield (
            f'<text class="baseline-label" x="{right}" y="{above}" text-anchor="end">'
            f"Baseline {units.time_us(us)}</text>"
        )


def _staircase(scale: _Scale, steps: Sequence[Step]) -> Iterable[str]:
    if not steps:
        return
    path = f"M{scale.x(steps[0].number)} {scale.y(steps[0].time_us)}"
    for step in steps[1:]:
        path += f"H{scale.x(step.number)}V{scale.y(step.time_us)}"
    yield f'<path class="best" d="{path}H{scale.width - _RIGHT}"/>'


def _mark(scale: _Scale, dot: Dot, us: float) -> str:
    name = "measured" if dot.outcome == "measured" else "other"
    return (
        f'<circle class="dot {name}" cx="{scale.x(dot.number)}" cy="{scale.y(us)}" r="2.6">'
        f"<title>trial {dot.trial_id}: {units.time_us(us)} ({escape(dot.outcome)})</title></circle>"
    )


def _missing(scale: _Scale, dots: Sequence[Dot]) -> Iterable[str]:
    """A tick on the axis for a trial that ended without a time, so that gaps explain themselves."""
    bottom = scale.height - _BOTTOM
    for dot in dots:
        if dot.time_us is None and dot.outcome in ("failed", "rejected"):
            x = scale.x(dot.number)
            yield (
                f'<line class="missing" x1="{x}" y1="{bottom - 6}" x2="{x}" y2="{bottom}">'
                f"<title>trial {dot.trial_id}: {escape(dot.outcome)}</title></line>"
            )
