"""Is the space of gemm_x86 what it says: known designs inside, nonsense refused, starts legal?"""

from __future__ import annotations

from random import Random

import pytest
from rooftile.problem import Attention, Gemm

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule
from search_space.space import Space

FAMILY = get_family("gemm_x86")
KEYS = (
    "cpu-amd-25-1-2c-x86-64-v3",
    "cpu-intel-6-143-8c-x86-64-v4",
    "cpu-amd-26-17-6c-x86-64-v4",
    "cpu-amd-25-1-1c-x86-64-v3",
    "cpu-intel-6-106-64c-x86-64-v4",
)
DEVICES = [Device.for_key(key) for key in KEYS]
SHAPES = [
    (1, 4096, 4096), (4, 4096, 4096), (17, 1003, 777), (48, 300, 5000), (64, 64, 64), (128, 4096, 1024),
    (300, 300, 300), (512, 512, 512), (2048, 2048, 2048), (4096, 64, 4096), (100000, 3, 10), (3, 100000, 10),
    (5, 7, 3), (1, 1, 1), (0, 4, 4), (4, 0, 4), (4, 4, 0),
]  # fmt: skip


def gemm(m: int, n: int, k: int, b: str = "kn") -> Gemm:
    return Gemm(m, n, k, "f32", layout={"b": b})


@pytest.mark.parametrize("device", DEVICES, ids=KEYS)
@pytest.mark.parametrize("b", ["kn", "nk"])
def test_starts_are_legal_points_whatever_the_shape(device: Device, b: str) -> None:
    for shape in SHAPES:
        problem = gemm(*shape, b)
        space, starts = Space(FAMILY, problem, device), FAMILY.candidates(problem, device)
        assert starts[0] == FAMILY.default(problem, device)
        assert len(set(starts)) == len(starts)
        for start in starts:
            assert space.check(start) == [], (shape, start.one_line())
            assert FAMILY.predict(problem, device, start).time_us >= 0.0


def test_there_are_thousands_of_legal_points() -> None:
    for shape in ((8, 4096, 4096), (512, 512, 512)):
        space = Space(FAMILY, gemm(*shape), DEVICES[0])
        rng = Random(1)
        drawn = [{p.name: rng.choice(p.choices) for p in space.parameters} for _ in range(8000)]
        legal = sum(space.legal(space.schedule(values)) for values in drawn)
        assert space.size * legal / len(drawn) > 100_000
        walked = {space.random(Random(seed)) for seed in range(40)}
        assert len(walked) > 35
        assert all(space.legal(schedule) for schedule in walked)


def test_known_register_tiles_are_inside_and_larger_ones_refused() -> None:
    problem = gemm(512, 512, 512)
    for device, tiles in (
        (DEVICES[0], ((6, 16), (4, 24), (5, 16))),
        (DEVICES[1], ((14, 32), (12, 32), (8, 48))),
    ):
        plain = FAMILY.default(problem, device)
        for mr, nr in tiles:
            assert FAMILY.check(problem, device, plain.replace(mr=mr, nr=nr)) == []
    refused = FAMILY.check(problem, DEVICES[0], FAMILY.default(problem, DEVICES[0]).replace(mr=8, nr=24))
    assert [v.rule for v in refused] == ["registers"]
    assert refused[0].numbers["needed"] == 24 + 3 + 1
    assert refused[0].numbers["registers"] == 16


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"split_n": 2, "split_k": 2}, "thread_grid"),
        ({"hand_out": "parts"}, "hand_out"),
        ({"hand_out": "columns"}, "hand_out"),
        ({"ahead": 4}, "blocked"),
        ({"hold": "c"}, "hold"),
        ({"unroll": 16}, "unroll"),
        ({"outer": "k"}, "outer"),
        ({"pack_a": "no", "pack_b": False, "pad": 0, "prefetch": "both"}, "prefetch"),
    ],
)
def test_what_cannot_run_is_refused_by_rule(changes: dict[str, object], rule: str) -> None:
    problem, device = gemm(512, 512, 512), DEVICES[0]
    schedule = FAMILY.default(problem, device).replace(**changes)  # type: ignore[arg-type]
    found = FAMILY.check(problem, device, schedule)
    assert rule in [v.rule for v in found]
    assert all(v.message for v in found)


def test_stream_is_offered_to_few_rows_only() -> None:
    few, many = gemm(16, 512, 512), gemm(512, 512, 512)
    device = DEVICES[0]
    path = {p.name: p.choices for p in FAMILY.parameters(few, device)}["path"]
    assert path == ("blocked", "stream")
    assert {p.name: p.choices for p in FAMILY.parameters(many, device)}["path"] == ("blocked",)
    found = FAMILY.check(many, device, FAMILY.default(few, device))
    assert "stream_rows" in [v.rule for v in found]


def test_b_stored_n_by_k_must_be_packed_on_the_blocked_path() -> None:
    problem = gemm(512, 512, 512, "nk")
    schedule = FAMILY.default(problem, DEVICES[0]).replace(pack_b=False)
    assert "pack_b" in [v.rule for v in FAMILY.check(problem, DEVICES[0], schedule)]


def test_unsupported_problems_are_told_why() -> None:
    half = Gemm(8, 8, 8, "f16")
    assert [v.rule for v in FAMILY.supports(half, "x86-64-v3")] == ["dtype"]
    assert [v.rule for v in FAMILY.supports(gemm(8, 8, 8), "sm_90a")] == ["arch"]
    attention = Attention(batch=1, heads_q=1, heads_kv=1, seq_q=8, seq_kv=8, head_dim=64, dtype="f16")
    assert [v.rule for v in FAMILY.supports(attention, "x86-64-v3")] == ["op"]
    assert FAMILY.supports(gemm(8, 8, 8), "x86-64-v4-vnni-bf16") == []


def test_an_artifact_serves_every_size_and_block() -> None:
    device = DEVICES[0]
    schedule = FAMILY.default(gemm(512, 512, 512), device)
    built = FAMILY.build(gemm(512, 512, 512), device, schedule)
    assert FAMILY.build(gemm(1000, 77, 3), device, schedule) == built
    other_blocks = schedule.replace(mc=96, kc=256, hand_out="tiles", prefetch="panel")
    assert FAMILY.build(gemm(512, 512, 512), device, other_blocks) == built
    assert FAMILY.build(gemm(512, 512, 512), device, schedule.replace(mr=4)) != built
    biased = Gemm(512, 512, 512, "f32", epilogue={"bias": "n"})
    assert FAMILY.build(biased, device, schedule) != built


def test_the_model_prefers_what_is_known_to_be_better() -> None:
    device = DEVICES[0]

    def us(problem: Gemm, schedule: Schedule) -> float:
        return FAMILY.predict(problem, device, schedule).time_us

    decode = gemm(4, 4096, 4096)
    stream = FAMILY.default(decode, device)
    blocked = next(s for s in FAMILY.candidates(decode, device) if s["path"] == "blocked")
    assert stream["path"] == "stream"
    assert us(decode, stream) < us(decode, blocked)

    square = gemm(1024, 1024, 1024)
    good = FAMILY.default(square, device)
    assert us(square, good) < us(square, good.replace(mr=1, nr=8))
    assert us(square, good) < us(square, good.replace(pack_b=False))
    assert us(square, good) < us(square, good.replace(threads=1, hand_out="no"))
    assert FAMILY.predict(square, device, good).bound == "compute"
    # Never faster than the arithmetic allows.
    assert us(square, good) > square.flops / device.peak_gflops() / 1e3


@pytest.mark.parametrize("b", ["kn", "nk"])
@pytest.mark.parametrize("device", DEVICES, ids=KEYS)
def test_few_rows_begin_on_the_stream_path_whatever_the_layout_of_b(device: Device, b: str) -> None:
    for m in (1, 2, 4, 8, 16, 32):
        starts = FAMILY.candidates(gemm(m, 4096, 4096, b), device)
        assert [s["path"] for s in starts[:3]] == ["stream"] * 3
