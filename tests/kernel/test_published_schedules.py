"""Can the CUDA families express what the best public kernels do; is it legal, or refused with the reason?"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kernel.cuda_problems import problem
from kernel.published_schedules import LEFT_OUT, SM70, SM80, UNION80, Published

from search_space.device import Device
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from search_space.space import Space
from search_space.violation import Violation
from worker.compile import compile_kernel

ROWS = [("gemm_sm80", row) for row in SM80] + [("gemm_sm70", row) for row in SM70]


@cache
def _start(name: str, dtype: str, arch: str) -> tuple[Space, Schedule]:
    family, p, device = get_family(name), problem(dtype, 4096, 4096, 16384), Device.for_arch(arch)
    return Space(family, p, device), family.default(p, device)


def schedule_of(family: Family, row: Published, arch: str) -> tuple[Space, Schedule]:
    """Our schedule with the row's values; the rest is the default's."""
    space, default = _start(family.name, row.dtype, arch)
    values: dict[str, Any] = {
        "bm": row.bm, "bn": row.bn, "bk": row.bk, "warps_m": row.warps_m, "warps_n": row.warps_n,
        "stages": row.stages, "split_k": 1, **row.more,
    }  # fmt: skip
    s = default.replace(**values)
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


def could_not_run(row: Published) -> set[str]:
    """The facts behind refusals of 16-bit rows on sm_80: 163 KiB of shared memory for the stages of A and B;
    255 registers of a thread (or a share of an SM's 65536) for sums, fragments and the least beside them."""
    warps = row.warps_m * row.warps_n
    sums = row.bm * row.bn // (32 * warps)
    fragments = row.bm // row.warps_m // 4 + row.bn // row.warps_n // 4
    found = {"registers"} if sums + fragments + 24 > min(255, 65536 // (32 * warps)) else set()
    apart = 16 * (row.bm + row.bk) if row.more.get("banks") == "pad" else 0  # of each row of A and of B
    stage = (row.bm + row.bn) * row.bk * 2 + apart
    return found | ({"shared_memory"} if row.stages * stage > 163 * 1024 else set())


def test_of_the_union_only_what_could_not_run_is_refused() -> None:
    family = get_family("gemm_sm80")
    for row in UNION80:
        space, s = schedule_of(family, row, "sm_80")
        assert space.foreign(s) == []  # it can be said at all
        assert {v.rule for v in space.check(s)} == could_not_run(row), (row, s.one_line())


def test_some_of_the_union_compile(home: Path) -> None:
    """All legal ones did when they were written down, without spills; a few each time."""
    legal = [row for row in UNION80 if not could_not_run(row)]
    for row in legal[:: len(legal) // 5]:
        space, s = schedule_of(get_family("gemm_sm80"), row, "sm_80")
        artifact = compile_kernel(space.family.build(space.problem, space.device, s), home=home)
        assert artifact.resources["entries"]["gemm"]["spill_stores_bytes"] == 0, row


@pytest.mark.parametrize("row", LEFT_OUT, ids=[row.source for row in LEFT_OUT])
def test_what_is_left_out_is_refused_by_name(row: Published) -> None:
    for name, arch in (("gemm_sm80", "sm_80"), ("gemm_sm70", "sm_70")):
        space, s = schedule_of(get_family(name), row, arch)
        found = space.check(s)
        assert [v.rule for v in found] == [row.refused]
        assert row.because in found[0].message


def test_what_is_refused_could_not_run() -> None:
    for row in SM80:
        if row.refused:
            assert row.refused in could_not_run(row), row


def test_the_list_is_the_whole_one() -> None:
    assert len(SM80) >= 100
    assert {row.dtype for row in SM80} == {"f16", "bf16", "tf32", "s8", "e4m3"}
    assert {row.stages for row in SM80} >= {2, 3, 4, 5, 6, 10}
    assert sum(bool(row.refused) for row in SM80) <= 2
    # The column of sm_80, and how its values meet.
    assert {row.bm for row in UNION80} == {16, 32, 64, 128, 256}
    assert {row.bn for row in UNION80} == set(range(32, 257, 32))
    assert {(row.bk, row.stages) for row in UNION80} == {(k, s) for k in (32, 64) for s in range(2, 7)}
    assert {row.warps_m * row.warps_n for row in UNION80} == {4, 8}
    warp_tiles = {(row.bm // row.warps_m, row.bn // row.warps_n) for row in UNION80}
    assert warp_tiles >= {(64, 64), (64, 32), (32, 64)}
    legal = [row.more for row in UNION80 if not could_not_run(row)]
    assert {(m["split_k"], m["split_sum"], m["group"]) for m in legal} == {
        (n, way, g) for n in range(1, 9) for way in ("last", "second")[: 2 if n > 1 else 1] for g in (1, 4, 8)
    }
