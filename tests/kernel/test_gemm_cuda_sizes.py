"""Is every schedule that is legal for a problem one that can be launched at the problem's own sizes?"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from rooftile.errors import PlanError
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.family import Family
from search_space.gpu_device import as_gpu
from search_space.plan import gemm_sm70, gemm_sm80, gemm_sm90
from search_space.schedule import Schedule
from search_space.space import Space

MOST = 2**31 - 1
FAMILIES: dict[str, tuple[Family, str]] = {
    "gemm_sm70": (gemm_sm70.FAMILY, "sm_70"),
    "gemm_sm80": (gemm_sm80.FAMILY, "sm_80"),
    "gemm_sm90": (gemm_sm90.FAMILY, "sm_90a"),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


def gemm(m: int, n: int, k: int, batch: int = 1) -> Gemm:
    """With pitches that every access fits."""
    ld = {x: -(-row // 128) * 128 for x, row in (("a", k), ("b", n), ("c", n))}
    return Gemm(m, n, k, "f16", batch=batch, ld={x: p for x, p in ld.items() if p <= MOST})


def runs(family: Family, p: Gemm, device: Device, schedule: Schedule) -> bool:
    """Whether the schedule's plan can be worked out at the problem's sizes."""
    names = {**p.plan_names(), "threads": 1, "sm_count": as_gpu(device).sms}
    try:
        family.plan(p, device, schedule).concrete(names)
    except PlanError:
        return False
    return True


@each_family
@pytest.mark.parametrize(
    "p",
    [
        gemm(2**26, 2**16, 64),
        gemm(2**30 - 1, 2**14, 64),
        gemm(2**16, 2**26, 64),
        gemm(2**31 - 2**14, 16, 2**12),
        gemm(16, 2**31 - 2**14, 2**12),
        gemm(2**19, 2**20, 2**20),
        gemm(1, 1, 64, batch=2**30),
        gemm(4096, 4096, 4096),
    ],
    ids=Gemm.title,
)
def test_what_is_legal_can_be_launched(name: str, p: Gemm) -> None:
    family, arch = FAMILIES[name]
    if family.supports(p, arch):
        return  # refused as a whole, which the next tests look at
    device, rng = Device.for_arch(arch), Random(p.title())
    space = Space(family, p, device)
    assert family.check(p, device, family.default(p, device)) == []
    for schedule in (*family.candidates(p, device), *(space.random(rng) for _ in range(12))):
        assert runs(family, p, device, schedule), schedule


@each_family
def test_a_grid_that_cannot_be_launched_is_illegal(name: str) -> None:
    family, arch = FAMILIES[name]
    device, p = Device.for_arch(arch), gemm(2**26, 2**17, 64)
    assert family.supports(p, arch) == []
    largest = family.default(p, device)
    small: dict[str, Any] = {"bm": 32, "bn": 64, "warps_m": 1, "warps_n": 2}
    if name == "gemm_sm90":
        small = {
            "bm": 32,
            "bn": 64,
            "hand_off": "cooperative",
            "consumers_m": 1,
            "cluster_m": 1,
            "cluster_n": 1,
            "persistent": False,
        }
    schedule = largest.replace(**small)
    (violation,) = [v for v in family.check(p, device, schedule) if v.rule == "grid"]
    assert violation.numbers["blocks"] == 2**21 * 2**11
    assert "2147483647 at most" in violation.message
    assert not runs(family, p, device, schedule)


@each_family
def test_the_entry_that_adds_parts_of_k_has_a_grid_too(name: str) -> None:
    family, arch = FAMILIES[name]
    device, p = Device.for_arch(arch), gemm(2**28, 2**14, 4096)
    schedule = family.default(p, device).replace(split_k=2, split_sum="second")
    assert any("adds up parts" in v.message for v in family.check(p, device, schedule) if v.rule == "grid")
    assert not runs(family, p, device, schedule)


@each_family
@pytest.mark.parametrize("p", [gemm(MOST, MOST, MOST), gemm(MOST, MOST, 64), gemm(64, 64, 64, batch=MOST)])
def test_a_problem_without_any_launch_is_refused_as_a_whole(name: str, p: Gemm) -> None:
    family, arch = FAMILIES[name]
    if p.batch > 1:
        assert family.supports(p, arch) == []  # one block for each
        return
    found = [v for v in family.supports(p, arch) if v.rule == "size"]
    assert any("2147483647 blocks at most" in v.message for v in found)


def test_a_band_of_tiles_is_counted_in_32_bits() -> None:
    """The raster would divide by a band of 2^34 tiles, which is 0 in 32 bits."""
    family, arch = FAMILIES["gemm_sm90"]
    device, p = Device.for_arch(arch), gemm(2**31 - 2**14, 16, 64)
    thin = family.default(p, device).replace(raster="n", bm=16, bn=64, cluster_m=1, cluster_n=1)
    assert any(v.rule == "grid" for v in family.check(p, device, thin.replace(group=64)))
    assert not any(v.rule == "grid" for v in family.check(p, device, thin.replace(group=1)))


def test_what_tma_cannot_reach_is_refused_with_a_single_batch_entry_too() -> None:
    p = gemm(2**19, 4096, 2**20)  # A is 2^40 bytes
    assert any("2^40" in v.message for v in gemm_sm90.FAMILY.supports(p, "sm_90a"))
    out = gemm(2**20, 2**19, 64)
    device, schedule = Device.for_arch("sm_90a"), gemm_sm90.FAMILY.default(out, Device.for_arch("sm_90a"))
    assert schedule.text("store") != "tma"
    assert runs(gemm_sm90.FAMILY, out, device, schedule)
