"""Do the schedules that the emulator bench runs reach every way in which gemm_sm90 shares its work?"""

from __future__ import annotations

from rooftile.problem import Gemm

from bench.emulation.cases import anchors
from search_space.device import Device
from search_space.registry import get_family


def test_anchors_are_legal_and_reach_every_role_beside_every_cluster() -> None:
    family, device = get_family("gemm_sm90"), Device.for_arch("sm_90a")
    problem = Gemm(4096, 4096, 4096, "bf16", beta="any")
    seen = set()
    for anchor in anchors("gemm_sm90"):
        schedule = family.default(problem, device).replace(**anchor)
        assert family.check(problem, device, schedule) == []
        cluster = schedule["cluster_m"], schedule["cluster_n"]
        seen.add((schedule["hand_off"], schedule["consumers_m"], schedule["consumers_n"], cluster))
    roles = {role[:3] for role in seen}
    assert {("cooperative", n, 1) for n in (1, 2, 3)} | {("cooperative", 1, 2), ("pingpong", 2, 1)} == roles
    assert {(*role, cluster) for role in roles for cluster in ((1, 1), (2, 1), (1, 2), (2, 2))} == seen
    assert list(anchors("gemm_sm80")) == []
