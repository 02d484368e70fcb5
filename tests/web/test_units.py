"""Does a number keep its digits and get the right unit, and does the picture of a search say the truth?"""

from __future__ import annotations

import datetime as dt
import re

import pytest

from service.web import svg, units
from service.web.svg import Dot


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0.5, "500.0 ns"),
        (12.3456, "12.35 µs"),
        (999.96, "1.000 ms"),
        (1234.5, "1.234 ms"),
        (2.5e6, "2.500 s"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_times(us: float | None, shown: str) -> None:
    assert units.time_us(us) == shown


def test_rates_are_per_second() -> None:
    assert units.flop_rate(2 * 1024**3, 1000.0) == "2\u202f150 GFLOP/s"
    assert units.flop_rate(2 * 4096**3, 1000.0) == "137 TFLOP/s"
    assert units.byte_rate(64_000_000, 1000.0) == "64.0 GB/s"
    assert units.flop_rate(0, 1.0) == units.byte_rate(5, 0.0) == "–"
    # 2*m*n*k of m = n = k = 2,100,000 is far beyond 2^63
    assert units.flop_rate(2 * 2_100_000**3, 1e12) == "18.5 TFLOP/s"


def test_shares_durations_and_moments() -> None:
    assert units.percent(0.8312) == "83.1 %"
    assert units.ratio(1.4286) == "1.43×"
    assert units.seconds(7300) == "2 h 01 min"
    assert [units.seconds(s) for s in (59.4, 59.6, 110, 133)] == [
        "59 s",
        "1 min 00 s",
        "1 min 50 s",
        "2 min 13 s",
    ]
    assert [units.counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert units.seconds(150) == "2 min 30 s"
    assert units.byte_count(3 * 1024**2) == "3.00 MiB"
    assert units.when(dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)) == "2026-01-02 03:04 UTC"


DOTS = [
    Dot(0, 95, "measured", 400.0),
    Dot(1, 96, "failed", None),
    Dot(2, 97, "measured", 300.0),
    Dot(3, 98, "culled", 900.0),
    Dot(4, 99, "measured", 250.0),
    Dot(5, 100, "measured", 260.0),
]


def test_the_staircase_goes_down_only() -> None:
    assert [(s.trial_id, s.time_us) for s in svg.best_steps(DOTS)] == [(95, 400.0), (97, 300.0), (99, 250.0)]


def test_the_picture_has_a_mark_for_each_trial_and_stays_inside() -> None:
    text = str(svg.convergence(DOTS, 350.0, width=800, height=240))
    assert text.count("<circle") == 5
    assert text.count('class="missing"') == 1
    assert "Baseline 350.0 µs" in text
    assert "style=" not in text
    for name, limit in (("cx", 800), ("x1", 800), ("cy", 240), ("y1", 240)):
        for value in re.findall(rf' {name}="([-0-9.]+)"', text):
            assert 0 <= float(value) <= limit
    lower = {m[0]: float(m[1]) for m in re.findall(r'cy="([0-9.]+)" r="2.6"><title>trial (\d+)', text)}
    assert lower
    heights = dict(re.findall(r'cy="[0-9.]+" r="2.6"><title>trial (\d+): ([0-9.]+)', text))
    assert heights == {"95": "400.0", "97": "300.0", "98": "900.0", "99": "250.0", "100": "260.0"}


@pytest.mark.parametrize("times", [[100.0], [100.0, 100.0], [1.0, 1e6], [100.0, 101.0]])
def test_the_picture_copes_with_any_range(times: list[float]) -> None:
    dots = [Dot(i, i + 95, "measured", t) for i, t in enumerate(times)]
    text = str(svg.convergence(dots, None, width=360, height=230))
    assert "nan" not in text
    assert 'class="grid"' in text


def test_what_was_disturbed_or_culled_is_drawn_but_never_the_best() -> None:
    dots = [Dot(0, 95, "contended", 100.0), Dot(1, 96, "measured", 300.0), Dot(2, 97, "culled", 200.0)]
    assert [s.time_us for s in svg.best_steps(dots)] == [300.0]
    assert str(svg.convergence(dots, None, width=700, height=240)).count('class="dot other"') == 2
    only = str(svg.convergence(dots[:1], None, width=700, height=240))
    assert "<circle" in only
    assert 'class="best"' not in only


def test_nothing_timed_is_no_picture() -> None:
    assert str(svg.convergence([Dot(0, 95, "failed", None)], 10.0, width=800, height=240)) == ""
