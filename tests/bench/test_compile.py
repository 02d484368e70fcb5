"""Does bench.compile measure the same work on both sides, draw fairly, and name a missing peer?"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from rooftile.problem import parse_problem

from bench import compile as bench
from search_space.device import Device
from search_space.registry import get_family
from worker.compile import compile_kernel


def test_the_schedules_are_those_of_the_comparison() -> None:
    assert len(set(bench.POINTS)) >= 12
    assert set(bench.QUICK) < set(bench.POINTS)
    tiles = {(point.bm, point.bn) for point in bench.POINTS}
    assert {(64, 64), (128, 128), (128, 256), (256, 128)} <= tiles
    assert all(64 * 64 <= bm * bn <= 256 * 128 for bm, bn in tiles)
    builds = bench._builds(bench.POINTS)  # each is legal
    assert len({build.key for build in builds}) == len(bench.POINTS)
    for point, build in zip(bench.POINTS, builds, strict=True):
        defines = dict(build.defines)
        assert (defines["RT_BM"], defines["RT_BN"], defines["RT_STAGES"]) == tuple(
            str(x) for x in (point.bm, point.bn, point.stages)
        )


def test_an_illegal_point_is_named() -> None:
    family, problem = get_family("gemm_sm80"), parse_problem(bench.PROBLEM)
    with pytest.raises(bench.BenchError, match="not legal"):
        bench.schedule_of(family, problem, Device.for_arch("sm_80"), bench.Point(256, 256, 64, 9, 2, 2))


def test_draws_are_legal_different_and_the_same_for_a_seed() -> None:
    family, problem = get_family("gemm_sm80"), parse_problem(bench.PROBLEM)
    device = Device.for_arch("sm_80")
    drawn, tries = bench.draw(family, problem, device, 60, random.Random(3))
    assert len({schedule.key for schedule in drawn}) == 60
    assert tries > 60
    assert not any(family.check(problem, device, schedule) for schedule in drawn)
    again, _ = bench.draw(family, problem, device, 60, random.Random(3))
    assert again == drawn
    # What no rule touches comes as often one way as the other.
    sides = Counter(schedule.text("raster") for schedule in drawn)
    assert min(sides["m"], sides["n"]) > 15


def test_both_sides_are_compiled_to_ptx_and_cubin_in_turns(tmp_path: Path) -> None:
    triton = pytest.importorskip("bench.peers.triton_matmul")
    (row,) = bench._costs(triton, bench.POINTS[:1], 2, tmp_path)
    assert len(row["cpu_s_samples"]) == len(row["triton_cpu_s_samples"]) == 2
    assert 0.03 < row["cpu_s"] < 5.0
    assert row["ratio"] == pytest.approx(row["triton_cpu_s"] / row["cpu_s"], abs=0.02)
    assert row["registers"] > 32
    assert row["cubin_bytes"] > 10_000


def test_the_child_is_in_the_cost_and_a_hit_is_no_compile(tmp_path: Path) -> None:
    (build,) = bench._builds(bench.POINTS[:1])
    spent, _ = bench._ours(build, tmp_path)
    assert spent > 0.03
    with pytest.raises(bench.BenchError, match="cache"):
        bench._ours(build, tmp_path)
    assert compile_kernel(build, home=tmp_path).cached


def test_figures() -> None:
    costs = [{"cpu_s": cpu, "ratio": ratio} for cpu, ratio in ((0.2, 3.0), (0.3, 1.5), (0.7, 2.0))]
    shares = [
        {"family": "gemm_sm80", "drawn": 300, "compiled": 300, "share": 1.0},
        {"family": "gemm_sm70", "drawn": 100, "compiled": 90, "share": 0.9},
    ]
    assert bench._figures(costs, 6.25, shares) == {
        "cpu_s_per_candidate": 0.3,
        "triton_ratio": 2.0,
        "triton_ratio_min": 1.5,
        "candidates_per_s": 6.25,
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
