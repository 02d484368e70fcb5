"""What does gemm_sm90 refuse, and does it say why; are its default and its starts legal everywhere?"""

from __future__ import annotations

from functools import cache
from itertools import cycle
from random import Random
from typing import Any

import pytest
from kernel.cuda_problems import layouts, problem
from rooftile.problem import Gemm, Problem, parse_problem

from search_space.device import Device
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm90 import FAMILY
from search_space.plan.gemm_sm90_tile import Tile
from search_space.registry import families_for
from search_space.schedule import Schedule
from search_space.space import Space

H100 = Device.for_arch("sm_90a")
SQUARE = problem("bf16", 4096, 4096, 4096, layout={"b": "nk"})
ATTENTION = {"op": "attention", "seq_q": 8, "seq_kv": 8, "head_dim": 64, "heads_q": 1, "dtype": "f16"}
BASE = {
    "bm": 128, "bn": 128, "bk": 64, "stages": 3, "hand_off": "cooperative", "consumers_m": 2,
    "consumers_n": 1,
    "cluster_m": 1, "cluster_n": 1, "registers": "40/232", "store": "tma", "store_columns": 64, "vector": 2,
    "store_panels": 1, "swizzle_a": 128, "swizzle_b": 128, "swap_ab": False, "split_k": 1, "persistent": True,
    "raster": "m", "group": 8, "split_sum": "last",
}  # fmt: skip


@cache
def start(p: Problem) -> Schedule:
    return FAMILY.default(p, H100)


def broken(p: Problem, **values: Any) -> dict[str, str]:
    """Rules that a plain schedule breaks with these values, and their sentences."""
    s = start(p).replace(**(BASE | values))
    return {v.rule: v.message for v in FAMILY.check(p, H100, s)}


def test_starts_are_legal_for_every_type_and_layout() -> None:
    sizes = cycle(((4096, 4096, 4096), (1, 4096, 4096), (24, 336, 80), (4096, 24, 8), (0, 8, 8), (8, 8, 8)))
    for dtype in ("f16", "bf16"):
        for layout in layouts("bf16"):
            p = Gemm(*next(sizes), dtype, layout=layout, batch=3)
            if FAMILY.supports(p, "sm_90a"):  # rows that TMA does not reach
                assert p.m % 8, p.title()
                continue
            space, starts = Space(FAMILY, p, H100), FAMILY.candidates(p, H100)
            assert starts[0] == FAMILY.default(p, H100)
            assert len(starts) == len(set(starts)) >= 4
            assert all(space.legal(s) for s in starts), p.title()


def test_starts_fit_the_work() -> None:
    big, few = FAMILY.default(SQUARE, H100), problem("bf16", 128, 128, 65536, layout={"b": "nk"})
    assert big.integer("bm") * big.integer("bn") >= 128 * 192
    assert big.integer("cluster_m") * big.integer("cluster_n") == 2
    assert big.text("store") == "tma"
    assert FAMILY.default(few, H100).integer("split_k") > 1  # a tile or two would leave 130 SMs idle
    assert FAMILY.default(problem("bf16", 16, layout={"b": "nk"}), H100).integer("bm") <= 64
    assert FAMILY.predict(SQUARE, H100, big).time_us > SQUARE.flops / 989.4e6  # not under the roof
    wide = problem("bf16", n=4094, layout={"b": "nk"})
    assert FAMILY.default(wide, H100).text("store") == "staged"  # rows that end within 16 bytes


def test_it_comes_first_where_it_can() -> None:
    assert [f.name for f in families_for(SQUARE, "sm_90a")] == ["gemm_sm90", "gemm_sm80"]
    for p in (problem("bf16", k=500), problem("bf16", align={"a": 8}), problem("tf32")):
        assert "gemm_sm90" not in [f.name for f in families_for(p, "sm_90a")]
        assert families_for(p, "sm_90a")


@pytest.mark.parametrize(
    ("p", "arch", "words"),
    [
        (problem("tf32"), "sm_90a", "multiplies f16 and bf16, not tf32"),
        (SQUARE, "sm_80", "runs on sm_90a, not on sm_80"),
        (Gemm(8, 8, 8, {"a": "f16", "acc": "f16"}), "sm_90a", "sums in f32, not in f16"),
        (problem("bf16", k=500), "sm_90a", "rows of a are 1000 bytes apart, no multiple of 16"),
        (problem("bf16", n=2047, align={"c": 2}), "sm_90a", "rows of b are 4094 bytes apart"),
        (problem("bf16", align={"b": 8}), "sm_90a", "b is aligned to 8 bytes, not to 16"),
        (parse_problem(ATTENTION), "sm_90a", "computes gemm, not attention"),
    ],
)  # fmt: skip
def test_what_it_cannot_compute_is_refused_with_the_reason(p: Problem, arch: str, words: str) -> None:
    assert words in " | ".join(v.message for v in FAMILY.supports(p, arch))


def test_a_plain_schedule_is_legal() -> None:
    assert broken(SQUARE) == {}


@pytest.mark.parametrize(
    ("values", "rule", "words"),
    [
        ({"consumers_m": 3, "consumers_n": 2}, "consumers", "3 x 2 consumers; a block has 3"),
        ({"hand_off": "pingpong", "consumers_m": 1}, "pingpong", "a tile each, not 1 x 1"),
        ({"hand_off": "pingpong", "persistent": False}, "pingpong", "tile after tile"),
        ({"bm": 64}, "warpgroup_tile", "2 consumers do not share bm = 64 in wgmmas of 64 rows"),
        ({"bn": 24, "consumers_m": 1, "consumers_n": 2}, "warpgroup_tile", "do not share bn = 24"),
        ({"bm": 256, "bn": 256, "registers": "24/240"}, "registers",
         "a consumer's 128 x 256 sums need about 286 registers"),
        ({"bm": 192, "bn": 256, "consumers_m": 3, "registers": "32/160", "stages": 2}, "entry_registers",
         "n = 256 needs 154 registers at entry; 512 threads have 128"),
        ({"registers": "40/248"}, "register_pool", "40 + 2 x 248 registers are over the pool of 504"),
        ({"cluster_m": 4, "cluster_n": 4}, "cluster", "4 x 4 = 16 blocks; portable are 8"),
        ({"bn": 8, "store_columns": 8, "cluster_m": 2}, "slices",
         "2 blocks of a cluster do not share 8 rows of b"),
        ({"stages": 10}, "shared_memory", "10 stages of 16384 + 16384 bytes"),
        ({"bk": 32}, "swizzle", "swizzle_b = 128: 32 of k are no whole rows of 64"),
        ({"bn": 96, "stages": 2}, "store_columns", "96 columns are no whole parts of 64"),
        ({"vector": 4}, "vector", "a lane reads 2 neighbours, not 4"),
        ({"store": "direct", "vector": 4}, "vector", "2 neighbours of a row of the result, not 4"),
        ({"store": "staged", "store_panels": 2}, "store_panels", "1 without TMA"),
        ({"swap_ab": True}, "store_tma", "rows of the result"),
        ({"split_k": 2, "split_sum": "second"}, "store_tma", "go to a workspace"),
        ({"split_sum": "second"}, "split", "where k is not split"),
        ({"raster": "hilbert", "group": 12}, "raster", "a power of two, not 12"),
    ],
)  # fmt: skip
def test_rules_say_what_is_wrong(values: dict[str, Any], rule: str, words: str) -> None:
    found = broken(SQUARE, **values)
    assert rule in found, found
    assert words in found[rule]


def test_results_by_tma_need_whole_16_bytes() -> None:
    """It writes up to the next 16 bytes of a row, whatever lies there."""
    loose = problem("bf16", n=2044, layout={"b": "nk"}, ld={"c": 2048})
    assert "rows of the result are 4088 bytes" in broken(loose)["store_tma"]
    assert broken(loose, store="staged", vector=4, store_columns=32) == {}
    assert "out are aligned to 8 bytes" in broken(problem("bf16", align={"c": 8}))["alignment"]
    f32 = Gemm(2048, 2048, 2048, {"a": "bf16", "c": "f32"}, layout={"b": "nk"})
    assert "128 bytes at most (swizzle), not 256" in broken(f32)["store_tma"]
    assert broken(f32, store_columns=32) == {}


def test_panels_of_rows_along_n() -> None:
    p = problem("bf16", layout={"a": "km", "b": "kn"})
    assert broken(p) == {}
    narrow = {"bn": 96, "store_columns": 32, "stages": 2}
    assert "96 of n are no whole rows of 64" in broken(p, **narrow)["swizzle"]
    assert broken(p, swizzle_b=64, **narrow) == {}
    halves = {"bn": 64, "consumers_m": 1, "consumers_n": 2, "bm": 64, "store_columns": 32}
    assert "a consumer's 32 columns are no whole rows" in broken(p, **halves)["swizzle"]
    assert "swizzle" in broken(p, bm=16, consumers_m=1, registers="40/248")


def test_random_schedules_keep_within_the_machine() -> None:
    rng = Random(90)
    for layout in ({"b": "nk"}, {"a": "km", "b": "kn", "c": "nm"}):
        p = problem("bf16", 1000, 1000, 1000, layout=layout)
        space = Space(FAMILY, p, H100)
        for _ in range(40):
            s = space.random(rng)
            t = Tile.of(s)
            assert t.smem_bytes(Shape.of(p)) <= 227 * 1024
            assert t.threads <= 512
            assert t.wn % 8 == 0
            assert t.wn <= 256
            pool = min(256, 65536 // t.threads) // 8 * 8 * (t.threads // 128)
            assert t.producer_registers + t.consumers * t.consumer_registers <= pool
            assert t.wm * t.wn // 128 <= 225
            assert t.cluster <= 8
            assert Schedule.from_json(s.to_json()) == s
