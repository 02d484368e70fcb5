"""Can the CUDA families express what the best public kernels do; is it legal, or refused with the reason?"""

from __future__ import annotations

from typing import Any

import pytest
from kernel.cuda_problems import problem
from kernel.published_schedules import SM70, SM80, Published

from search_space.device import Device
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from search_space.space import Space
from search_space.violation import Violation

ROWS = [("gemm_sm80", row) for row in SM80] + [("gemm_sm70", row) for row in SM70]


def schedule_of(family: Family, row: Published, arch: str) -> tuple[Space, Schedule]:
    """Our schedule with the row's values; the rest is the default's."""
    p = problem(row.dtype, 4096, 4096, 16384)
    device = Device.for_arch(arch)
    values: dict[str, Any] = {
        "bm": row.bm, "bn": row.bn, "bk": row.bk, "warps_m": row.warps_m, "warps_n": row.warps_n,
        "stages": row.stages, "split_k": 1, **row.more,
    }  # fmt: skip
    space = Space(family, p, device)
    s = family.default(p, device).replace(**values)
    if space.check(s) and "resident" in s:
        s = s.replace(resident=1)
    # Results leave in vectors that a warp's columns are whole numbers of.
    while (row.bn // row.warps_n) % s.integer("vector"):
        s = s.replace(vector=s.integer("vector") // 2)
    return space, s


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROWS)])
def test_every_published_schedule_is_legal_or_refused_with_the_reason(name: str, row: Published) -> None:
    family = get_family(name)
    for arch in row.archs:
        space, s = schedule_of(family, row, arch)
        assert space.foreign(s) == []  # it can be said at all
        found: list[Violation] = space.check(s)
        if row.refused:
            assert row.refused in {v.rule for v in found}, (row, s.one_line())
        else:
            assert found == [], (row, [str(v) for v in found])


def test_what_is_refused_could_not_run() -> None:
    """The facts behind the refusals: registers of a thread (255) and of an SM (65536)."""
    for row in SM80:
        if row.refused == "registers":
            warps = row.warps_m * row.warps_n
            sums = row.bm * row.bn // (32 * warps)
            fragments = row.bm // row.warps_m // 4 + row.bn // row.warps_n // 4
            assert sums + fragments + 24 > min(255, 65536 // (32 * warps)), row


def test_the_list_is_the_whole_one() -> None:
    assert len(SM80) >= 100
    assert {row.dtype for row in SM80} == {"f16", "bf16", "tf32", "s8", "e4m3"}
    assert {row.stages for row in SM80} >= {2, 3, 4, 5, 6, 10}
    assert sum(bool(row.refused) for row in SM80) <= 2
