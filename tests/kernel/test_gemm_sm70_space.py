"""What does gemm_sm70 refuse, with which reason; are its starts legal; do its plans fit the template?"""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import Any

import pytest
from kernel.cuda_problems import FULL, SM70_ARCHS, layouts, problem
from rooftile.plan import ConcreteLaunch, LaunchPlan
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_sm70 import FAMILY
from search_space.schedule import Schedule
from search_space.space import Space

V100 = Device.for_arch("sm_70")
HALF = problem("f16")
BASE = {"bm": 128, "bn": 128, "bk": 32, "warps_m": 2, "warps_n": 4, "stages": 2, "pad": 8, "split_k": 1}


def schedule(p: Gemm, **values: Any) -> Schedule:
    return FAMILY.default(p, V100).replace(**(BASE | values))


@pytest.mark.parametrize("arch", SM70_ARCHS)
def test_starts_are_legal_for_every_layout(arch: str) -> None:
    device = Device.for_arch(arch)
    sizes = cycle(((2048, 2048, 2048), (1, 4096, 4096), (17, 333, 77), (0, 8, 8), (8, 8, 0)))
    for layout in layouts("f16"):
        p = Gemm(*next(sizes), "f16", layout=layout, batch=2)
        assert FAMILY.supports(p, arch) == []
        space, starts = Space(FAMILY, p, device), FAMILY.candidates(p, device)
        assert starts[0] == FAMILY.default(p, device)
        assert len(starts) == len(set(starts)) >= 4
        assert all(space.legal(s) for s in starts), (arch, p.title())


@pytest.mark.parametrize(
    ("p", "arch", "words"),
    [
        (problem("bf16"), "sm_70", "WMMA of sm_70 multiplies f16, not bf16"),
        (problem("f32"), "sm_70", "not f32"),
        (problem("f16"), "sm_80", "it runs on sm_70, sm_90a, not on sm_80"),
        (Gemm(8, 8, 8, {"a": "f16", "acc": "f16"}), "sm_70", "sums in f32, not in f16"),
        (Gemm(8, 8, 8, {"a": "f16", "c": "bf16"}), "sm_70", "conversion to bf16 (cvt) needs sm_80"),
        (Gemm(8, 8, 8, {"a": "f16", "c": "e4m3"}), "sm_70", "conversion to e4m3 (cvt) needs sm_89"),
    ],
)
def test_what_it_cannot_compute_is_refused_with_the_reason(p: Gemm, arch: str, words: str) -> None:
    assert words in " | ".join(v.message for v in FAMILY.supports(p, arch))


def test_what_hopper_can_convert_volta_cannot() -> None:
    for c in ("bf16", "e4m3", "f32"):
        assert FAMILY.supports(Gemm(8, 8, 8, {"a": "f16", "c": c}), "sm_90a") == []
    assert FAMILY.supports(Gemm(8, 8, 8, {"a": "f16", "c": "f32"}, epilogue=FULL), "sm_70") == []


@pytest.mark.parametrize(
    ("values", "rule", "words"),
    [
        (
            {"warps_m": 8, "fragment": "m32n8k16"},
            "warp_tile",
            "8 warps do not share bm = 128 in fragments of 32",
        ),
        (
            {"warps_n": 8, "fragment": "m8n32k16"},
            "warp_tile",
            "8 warps do not share bn = 128 in fragments of 32",
        ),
        ({"warps_m": 8, "warps_n": 4}, "warps", "32 warps"),
        ({"bm": 256, "warps_m": 2, "warps_n": 2}, "registers", "warp tiles of 128 x 64"),
        ({"bm": 256, "bn": 256, "bk": 64, "warps_m": 4}, "shared_memory", "a block has 98304"),
        ({"fragment": "m32n8k16"}, "fragment", "every 8 of n, 16 bytes apart where b is contiguous along n"),
        ({"split_sum": "second"}, "split", "where k is not split"),
    ],
)
def test_rules_say_what_is_wrong(values: dict[str, Any], rule: str, words: str) -> None:
    found = {v.rule: v.message for v in FAMILY.check(HALF, V100, schedule(HALF, **values))}
    assert rule in found, found
    assert words in found[rule]


def test_fragments_of_eight_want_k_contiguous_operands() -> None:
    for layout, fragment, legal in (
        ({"b": "nk"}, "m32n8k16", True), ({"a": "mk"}, "m8n32k16", True), ({"a": "km"}, "m8n32k16", False),
        # The result transposed: A and B change places.
        ({"a": "km", "c": "nm"}, "m32n8k16", False), ({"b": "kn", "c": "nm"}, "m8n32k16", False),
    ):  # fmt: skip
        p = problem("f16", layout=layout)
        found = {v.rule for v in FAMILY.check(p, V100, schedule(p, fragment=fragment, vector=1))}
        assert ("fragment" not in found) == legal, (layout, fragment)


def test_reads_are_as_wide_as_pitch_and_base_allow() -> None:
    for k, width in ((2048, 16), (2044, 8), (2042, 4), (2041, 2)):
        p = problem("f16", k=k)
        assert FAMILY.default(p, V100)["copy_a"] == width
        for wide in (2, 4, 8, 16):
            rules = {v.rule for v in FAMILY.check(p, V100, schedule(p, copy_a=wide))}
            assert ("alignment" in rules) == (wide > width)


@pytest.mark.parametrize("layout", list(layouts("f16")))
def test_plans_and_shared_memory(layout: dict[str, str]) -> None:
    p = problem("f16", 1000, 520, 2048, layout=layout, batch=2)
    s = schedule(p, split_k=3, copy_a=8, copy_b=8, vector=1)
    assert FAMILY.check(p, V100, s) == []
    plan = FAMILY.plan(p, V100, s)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    done = plan.concrete(p.plan_names() | {"threads": 1, "sm_count": 80})
    _, launch = done.steps
    assert isinstance(launch, ConcreteLaunch)
    m, n = (520, 1000) if layout["c"] == "nm" else (1000, 520)
    tiles = -(-m // 128) * -(-n // 128) * 2
    assert launch.grid == (tiles * 3, 1, 1)
    assert launch.block == (256, 1, 1)
    a, b = FAMILY.shared_map(p, V100, s)
    wanted = []
    for x, k_last in (("a", "mk"), ("b", "nk")):
        # The kernel's A is the problem's B where the result is transposed.
        operand = x if layout["c"] == "mn" else {"a": "b", "b": "a"}[x]
        own = {"a": "mk", "b": "nk"}[operand]
        wanted.append(128 * (32 + 8) * 2 if layout[operand] == own else 32 * (128 + 8) * 2)
        assert len(k_last) == 2
    assert [a.stage_bytes, b.stage_bytes] == wanted
    assert (a.offset_bytes, b.offset_bytes, a.stages, b.stages) == (0, 2 * wanted[0], 2, 2)
    # The epilogue: eight warps with a fragment's 16 rows of 32 sums, 8 words apart from a multiple of 32.
    assert launch.smem_bytes == max(2 * sum(wanted), 8 * 16 * 40 * 4)


def test_proof_problems_and_structure() -> None:
    rng = Random(3)
    for p in (problem("f16", beta="any", epilogue=FULL, batch=3), problem("f16", n=2046, layout={"c": "nm"})):
        space = Space(FAMILY, p, V100)
        for s in [FAMILY.default(p, V100), *(space.random(rng) for _ in range(10))]:
            small = FAMILY.proof_problems(p, V100, s)
            assert len(small) >= 2
            for q in small:
                assert isinstance(q, Gemm)
                assert FAMILY.check(q, V100, s) == []
                assert FAMILY.build(q, V100, s) == FAMILY.build(p, V100, s)
                assert FAMILY.plan(q, V100, s).check(q.plan_names()) == []
                assert FAMILY.structure(q, V100, s) == FAMILY.structure(p, V100, s)
    s = schedule(HALF)
    for values in ({"stages": 1}, {"pad": 0}, {"copy_a": 4}, {"split_k": 2}, {"bk": 16}, {"vector": 1}):
        assert FAMILY.structure(HALF, V100, s.replace(**values)) != FAMILY.structure(HALF, V100, s)
    for values in ({"raster": "n"}, {"bm": 64}, {"group": 1}):
        assert FAMILY.structure(HALF, V100, s.replace(**values)) == FAMILY.structure(HALF, V100, s)
