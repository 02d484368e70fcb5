"""Does bench.compile measure the same work on both sides, draw fairly, and name a missing peer?"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench import compile as bench
from bench.common import BenchError
from bench.compiling.costs import costs, ours_once
from bench.compiling.points import AMPERE, COMPARISONS, CUTLASS_POINTS, HOPPER, Comparison
from bench.compiling.shares import draw
from search_space.device import Device
from search_space.registry import get_family
from worker.compile import compile_kernel


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: c.family)
def test_the_schedules_are_those_of_the_comparison(comparison: Comparison) -> None:
    points = comparison.points
    assert len(set(points)) >= 12
    assert 0 < len(comparison.chosen(quick=True)) < len(points)
    tiles = {(point.bm, point.bn) for point in points}
    assert {(64, 64), (128, 128), (128, 256), (256, 128)} <= tiles
    assert all(64 * 64 <= bm * bn <= 256 * 128 for bm, bn in tiles)
    builds = [comparison.build(point) for point in points]  # each is legal
    assert len({build.key for build in builds}) == len(points)
    for point, build in zip(points, builds, strict=True):
        defines = dict(build.defines)
        assert (defines["RT_BM"], defines["RT_BN"], defines["RT_STAGES"]) == tuple(
            str(x) for x in (point.bm, point.bn, point.stages)
        )


def test_hopper_is_compared_in_both_modes_with_and_without_clusters() -> None:
    modes = {(dict(p.values)["hand_off"], dict(p.values)["cluster_m"]) for p in HOPPER.points}
    assert modes == {(x, y) for x in ("cooperative", "pingpong") for y in (1, 2)}
    assert set(CUTLASS_POINTS) < set(HOPPER.points)


def test_an_illegal_point_is_named() -> None:
    with pytest.raises(BenchError, match="not legal"):
        AMPERE.schedule(replace(AMPERE.points[0], bm=256, bn=256, bk=64, stages=9))


def test_draws_are_legal_different_and_the_same_for_a_seed() -> None:
    family, problem = get_family("gemm_sm80"), AMPERE.parsed()
    device = Device.for_arch("sm_80")
    drawn, tries = draw(family, problem, device, 60, random.Random(3))
    assert len({schedule.key for schedule in drawn}) == 60
    assert tries > 60
    assert not any(family.check(problem, device, schedule) for schedule in drawn)
    again, _ = draw(family, problem, device, 60, random.Random(3))
    assert again == drawn
    # What no rule touches comes as often one way as the other.
    sides = Counter(schedule.text("raster") for schedule in drawn)
    assert min(sides["m"], sides["n"]) > 15


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: c.family)
def test_both_sides_are_compiled_to_ptx_and_cubin_in_turns(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (row,) = costs(comparison, comparison.points[:1], 2, tmp_path)
    assert len(row["cpu_s_samples"]) == len(row["triton_cpu_s_samples"]) == 2
    assert 0.03 < row["cpu_s"] < 5.0
    assert row["ratio"] == pytest.approx(row["triton_cpu_s"] / row["cpu_s"], abs=0.02)
    assert row["registers"] > 32
    assert row["cubin_bytes"] > 10_000


def test_the_child_is_in_the_cost_and_a_hit_is_no_compile(tmp_path: Path) -> None:
    build = AMPERE.build(AMPERE.points[0])
    spent, _ = ours_once(build, tmp_path)
    assert spent > 0.03
    with pytest.raises(BenchError, match="cache"):
        ours_once(build, tmp_path)
    assert compile_kernel(build, home=tmp_path).cached


def test_figures() -> None:
    rows = [{"cpu_s": cpu, "ratio": ratio} for cpu, ratio in ((0.2, 3.0), (0.3, 1.5), (0.7, 2.0))]
    assert bench.cost_figures("_sm90", rows) == {
        "cpu_s_per_candidate_sm90": 0.3,
        "triton_ratio_sm90": 2.0,
        "triton_ratio_min_sm90": 1.5,
    }
    shares = [
        {"family": "gemm_sm80", "drawn": 300, "compiled": 300, "share": 1.0},
        {"family": "gemm_sm70", "drawn": 100, "compiled": 90, "share": 0.9},
    ]
    assert bench.share_figures(shares) == {
        "compiled_share": 0.975,
        "compiled_share_gemm_sm80": 1.0,
        "compiled_share_gemm_sm70": 0.9,
    }


def test_without_triton_it_ends_with_1_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "bench.peers.triton_matmul", raising=False)
    monkeypatch.delattr("bench.peers.triton_matmul", raising=False)
    assert bench.main(["--quick"]) == 1
    said = capsys.readouterr().err
    assert "triton" in said
    assert "rooftile-server[peers]" in said
