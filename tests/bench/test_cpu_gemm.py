"""Does bench.cpu_gemm refuse a handicapped Baseline, and do its figures say what was served?"""

from __future__ import annotations

from typing import Any

import pytest
from rooftile.device import local_cpu

from bench.common import BenchError
from bench.cpu_gemm import QUICK, SHAPES, _check_baseline, _figures

BEST = "SkylakeX" if local_cpu().arch.startswith("x86-64-v4") else "Haswell"


def row(
    shape: tuple[int, int, int], ratio: float, served: str | None = "trial", **blas: Any
) -> dict[str, Any]:
    facts = {"internal_api": "openblas", "architecture": BEST, "num_threads": local_cpu().cores} | blas
    baseline = {
        "blas": [facts] if facts["internal_api"] else [],
        "architecture": facts["architecture"],
        "threads": facts["num_threads"],
    }
    return {
        "shape": list(shape),
        "ratio": ratio,
        "served": served,
        "trials_to_5_percent": 3,
        "baseline": baseline,
    }


def test_the_shapes_are_the_twelve_of_the_comparison_and_quick_has_every_named_figure() -> None:
    assert len(set(SHAPES)) == 12
    assert set(QUICK) < set(SHAPES)
    figures = _figures([row(shape, 2.0) for shape in QUICK])
    assert None not in figures.values()


def test_a_baseline_at_its_best_passes() -> None:
    _check_baseline([row((1, 2, 3), 1.0)])


@pytest.mark.parametrize(
    ("blas", "named"),
    [
        ({"architecture": "Prescott"}, "Prescott"),
        ({"architecture": None}, "None"),
        ({"internal_api": "mkl"}, "mkl"),
        ({"internal_api": None}, "not known"),
        ({"num_threads": local_cpu().cores + 1}, "threads"),
    ],
)
def test_any_other_baseline_is_refused_by_name(blas: dict[str, Any], named: str) -> None:
    with pytest.raises(BenchError, match=named):
        _check_baseline([row((1, 2, 3), 1.0), row((1, 2, 3), 1.0, **blas)])


def test_what_is_not_ours_counts_as_the_baseline_itself() -> None:
    rows = [row((4, 4096, 4096), 2.0), row((8, 4096, 4096), 0.5, "baseline"), row((9, 9, 9), 0.5, None)]
    figures = _figures(rows)
    assert figures["served_min"] == 1.0
    assert figures["fallbacks"] == 2
    assert figures["min_speedup"] == 0.5  # of our own kernels, served or not
    assert figures["geomean_speedup"] == pytest.approx(0.5 ** (1 / 3))
    assert (figures["speedup_m4"], figures["speedup_m8"], figures["speedup_m16"]) == (2.0, 0.5, None)
    assert _figures([row((4, 4096, 4096), 0.9)])["served_min"] == 0.9  # and what is ours and slower is told
