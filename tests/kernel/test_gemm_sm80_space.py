"""What does gemm_sm80 refuse, and does it say why; are its default and its starts legal everywhere?"""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import Any

import pytest
from kernel.cuda_problems import FULL, SM80_ARCHS, dtypes_of, layouts, problem
from rooftile.problem import Gemm, Problem, parse_problem

from search_space.device import Device
from search_space.plan.gemm_cuda_shape import Shape
from search_space.plan.gemm_sm80 import FAMILY
from search_space.plan.gemm_sm80_tile import Tile
from search_space.schedule import Schedule
from search_space.space import Space

A100 = Device.for_arch("sm_80")
ATTENTION = {"op": "attention", "seq_q": 8, "seq_kv": 8, "head_dim": 64, "heads_q": 1, "dtype": "f16"}
SQUARE = problem("bf16")
SIZES = ((2048, 2048, 2048), (1, 4096, 4096), (17, 333, 77), (4096, 24, 8), (0, 8, 8), (8, 8, 0))


def reasons(p: Problem, arch: str) -> str:
    return " | ".join(v.message for v in FAMILY.supports(p, arch))


def broken(p: Problem, device: Device, **values: Any) -> dict[str, str]:
    """Rules that the default breaks with these values, and their sentences."""
    schedule = FAMILY.default(p, device).replace(**values)
    return {v.rule: v.message for v in FAMILY.check(p, device, schedule)}


@pytest.mark.parametrize("arch", SM80_ARCHS)
def test_starts_are_legal_for_every_type_and_layout(arch: str) -> None:
    device, sizes = Device.for_arch(arch), cycle(SIZES)
    for dtype in dtypes_of(arch):
        for layout in layouts(dtype):
            p = Gemm(*next(sizes), dtype, layout=layout, batch=3)
            assert FAMILY.supports(p, arch) == []
            space, starts = Space(FAMILY, p, device), FAMILY.candidates(p, device)
            assert starts[0] == FAMILY.default(p, device)
            assert len(starts) == len(set(starts)) >= 4
            assert all(space.legal(s) for s in starts), (arch, p.title())


def test_starts_fit_the_work() -> None:
    big, thin = FAMILY.default(SQUARE, A100), FAMILY.default(problem("bf16", 16), A100)
    assert big.integer("bm") * big.integer("bn") >= 128 * 128
    assert thin.integer("bm") <= 32
    few_tiles = FAMILY.default(problem("bf16", 128, 128, 65536), A100)
    assert few_tiles.integer("split_k") > 1  # one or two tiles would leave 100 SMs idle
    assert FAMILY.predict(SQUARE, A100, big).time_us > SQUARE.flops / 312e6  # not under the roof


@pytest.mark.parametrize(
    ("p", "arch", "words"),
    [
        (problem("f32"), "sm_80", "multiplies f16, bf16, tf32, s8, u8, e4m3, e5m2 here, not f32"),
        (Gemm(8, 8, 8, "f64"), "sm_80", "not f64"),
        (problem("e4m3"), "sm_80", "e4m3 from sm_89 on, not on sm_80"),
        (problem("e5m2"), "sm_86", "e5m2 from sm_89 on"),
        (problem("bf16"), "sm_70", "not on sm_70"),
        (problem("bf16"), "x86-64-v3", "not on x86-64-v3"),
        (Gemm(8, 8, 16, "s8"), "sm_80", "contiguous along k (nk), not kn: ldmatrix transposes 16-bit"),
        (Gemm(8, 8, 16, "e4m3", layout={"a": "km", "b": "nk"}), "sm_89", "along k (mk), not km"),
        (Gemm(8, 8, 8, {"a": "f16", "acc": "f16"}), "sm_80", "sums in f32, not in f16"),
        (Gemm(8, 8, 8, {"a": "bf16", "c": "e4m3"}), "sm_86", "needs sm_89, not sm_86"),
        (
            problem("e4m3", scale={"a": {"dtype": "f32", "block": "1x128"}, "b": None}),
            "sm_89",
            "f32 scales a tensor or row, not f32 by 1x128",
        ),
        (parse_problem(ATTENTION), "sm_80", "computes gemm, not attention"),
    ],
)  # fmt: skip
def test_what_it_cannot_compute_is_refused_with_the_reason(p: Problem, arch: str, words: str) -> None:
    assert words in reasons(p, arch)


def test_what_it_can_compute_is_not_refused() -> None:
    scaled = {"a": {"dtype": "f32", "block": "row"}, "b": {"dtype": "f32", "block": "tensor"}}
    for p, arch in (
        (problem("e4m3", scale=scaled), "sm_89"),
        (Gemm(8, 8, 8, {"a": "s8", "b": "u8", "c": "f16"}, layout={"b": "nk"}), "sm_80"),
        (Gemm(8, 8, 8, {"a": "e4m3", "b": "e5m2", "c": "e5m2"}, layout={"b": "nk"}), "sm_120a"),
        (Gemm(8, 8, 8, {"a": "bf16", "c": "e4m3"}, epilogue=FULL), "sm_89"),
    ):  # fmt: skip
        assert FAMILY.supports(p, arch) == []


@pytest.mark.parametrize(
    ("values", "rule", "words"),
    [
        ({"bk": 24}, "depth", "24 of bf16 is no whole steps of 32 bytes"),
        ({"warps_m": 8, "bm": 64}, "warp_tile", "8 warps do not share bm = 64 in fragments of 16"),
        ({"warps_n": 8, "bn": 96}, "warp_tile", "8 warps do not share bn = 96 in fragments of 8"),
        ({"warps_m": 8, "warps_n": 4}, "warps", "32 warps"),
        ({"bm": 256, "bn": 256, "warps_m": 2}, "registers", "warp tiles of 128 x 128"),
        (
            {"bm": 256, "bn": 256, "warps_m": 4, "warps_n": 4, "stages": 2},
            "registers",
            "512 threads have 128",
        ),
        ({"bk": 64, "stages": 6}, "shared_memory", "6 stages of 16384 + 16384 bytes"),
        ({"resident": 4}, "registers", "512 threads have 128"),
        ({"resident": 3, "stages": 4}, "resident", "3 blocks need"),
        ({"copy_a": "plain", "copy_b": "plain"}, "stages", "one tile under way"),
        ({"store": "direct"}, "vector", "2 neighbours of a row, not 8"),
        ({"split_sum": "second"}, "split", "where k is not split"),
    ],
)
def test_rules_say_what_is_wrong(values: dict[str, Any], rule: str, words: str) -> None:
    start = {"bm": 128, "bn": 128, "bk": 32, "warps_m": 2, "warps_n": 2, "stages": 4, "split_k": 1}
    found = broken(SQUARE, A100, **(start | values))
    assert rule in found, found
    assert words in found[rule]


def test_parts_of_k_are_no_more_than_its_tiles() -> None:
    p = problem("bf16", 64, 64, 96)
    assert "split" not in broken(p, A100, bk=32, split_k=3)
    assert "4 parts of 3 tiles" in broken(p, A100, bk=32, split_k=4)["split"]


def test_copies_are_as_wide_as_pitch_and_base_allow() -> None:
    for k, width in ((2048, 16), (2044, 8), (2042, 4), (2041, 0)):
        p = problem("bf16", k=k)
        assert Tile.of(FAMILY.default(p, A100)).copy_a == width
        for name in ("cp_async_16", "cp_async_8", "cp_async_4"):
            wide = "alignment" in broken(p, A100, copy_a=name)
            assert wide == (int(name.rsplit("_", 1)[1]) > width)
        assert "alignment" not in broken(p, A100, copy_a="plain", stages=2)
    loose = problem("bf16", align={"a": 4, "c": 2})
    assert Tile.of(FAMILY.default(loose, A100)).copy_a == 4
    assert FAMILY.default(loose, A100)["vector"] == 1
    assert "out are aligned to 2 bytes" in broken(loose, A100, vector=8)["alignment"]
    assert "are 4094 bytes apart" in broken(problem("bf16", n=2047), A100, vector=2)["alignment"]


def test_an_ampere_tile_does_not_fit_a_small_sm() -> None:
    values = {"bm": 256, "bn": 128, "bk": 64, "warps_m": 4, "warps_n": 2, "stages": 3}
    assert broken(SQUARE, A100, **values) == {}
    found = broken(SQUARE, Device.for_arch("sm_86"), **values)
    assert "need 147456 bytes of shared memory; a block has 101376" in found["shared_memory"]


@pytest.mark.parametrize("arch", SM80_ARCHS)
def test_random_schedules_keep_within_the_machine(arch: str) -> None:
    device, rng = Device.for_arch(arch), Random(arch)
    limits = device.arch.limits
    for dtype in dtypes_of(arch):
        p = problem(dtype, 1000, 1000, 1000)
        space = Space(FAMILY, p, device)
        for _ in range(15):
            s = space.random(rng)
            t = Tile.of(s)
            assert t.smem_bytes(Shape.of(p)) <= limits.smem_block_bytes
            assert (
                t.resident * (t.smem_bytes(Shape.of(p)) + limits.smem_reserved_bytes) <= limits.smem_sm_bytes
            )
            assert t.threads <= 512
            assert t.wm % 16 == 0
            assert t.wn % 8 == 0
            assert t.wm * t.wn // 32 <= 192
            assert Schedule.from_json(s.to_json()) == s
