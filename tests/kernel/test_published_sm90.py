"""Can gemm_sm90 express what the best public kernels for H100 do; is it legal, does it compile, or is it
refused with the reason?"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kernel.cuda_problems import problem
from kernel.published_sm90 import MOST_STAGES, SM90, Hopper
from kernel.sass import disassemble

from search_space.device import Device
from search_space.plan.gemm_sm90 import FAMILY
from search_space.plan.gemm_sm90_tile import HINTS
from search_space.schedule import Schedule
from search_space.space import Space
from worker.compile import compile_kernel

H100 = Device.for_arch("sm_90a")
COMPILED = ("fast.cu 10 to 12", "ThunderKittens 192 x 192", "quack default", "nvMMH 128x7168x16384, tie")
EVERY = 200
"""So many rows apart are the others that are compiled."""


@cache
def _start(dtype: str) -> tuple[Space, Schedule]:
    p = problem(dtype, 8192, 8192, 16384, layout={"b": "nk"})
    return Space(FAMILY, p, H100), FAMILY.default(p, H100)


def schedule_of(row: Hopper) -> tuple[Space, Schedule]:
    """Our schedule with the row's values; the rest is the default's."""
    space, default = _start(row.dtype)
    values: dict[str, Any] = {
        "bm": row.bm, "bn": row.bn, "bk": row.bk, "stages": row.stages or MOST_STAGES,
        "hand_off": row.hand_off, "consumers_m": row.consumers[0], "consumers_n": row.consumers[1],
        "cluster_m": row.cluster[0], "cluster_n": row.cluster[1], "registers": row.registers,
        "swizzle_a": min(128, 2 * row.bk), "swizzle_b": min(128, 2 * row.bk), "split_k": 1,
        "swap_ab": False, "store_panels": 1, **row.more,
    }  # fmt: skip
    wn = row.bn // row.consumers[1]
    values.setdefault("store_columns", next(c for c in (64, 32, 16, 8) if wn % c == 0))
    values.setdefault("store", "tma")
    if values["swap_ab"]:
        values |= {"store": "staged", "store_columns": min(16, values["store_columns"])}
    values["vector"] = 8 if values["store"] == "staged" else 2
    s = default.replace(**values)
    while not row.stages and s.integer("stages") > 3 and "shared_memory" in {v.rule for v in space.check(s)}:
        s = s.replace(stages=s.integer("stages") - 1)
    return space, s


@pytest.mark.parametrize("row", SM90, ids=[f"{i}" for i in range(len(SM90))])
def test_every_published_schedule_is_legal_or_refused_with_the_reason(row: Hopper) -> None:
    space, s = schedule_of(row)
    if row.refused == "left_out":  # by name
        found = space.check(s)
        assert [v.rule for v in found] == ["left_out"]
        assert row.because in found[0].message
        return
    assert space.foreign(s) == []  # it can be said at all
    rules = {v.rule for v in space.check(s)}
    if row.refused:
        assert row.refused in rules, (row, s.one_line())
    elif not row.stages and s.integer("stages") < MOST_STAGES:
        # As many as fit: one more does not.
        assert rules == set(), (row, [str(v) for v in space.check(s)])
        deeper = space.check(s.replace(stages=s.integer("stages") + 1))
        assert {v.rule for v in deeper} == {"shared_memory"}, (row, s.one_line())
    else:
        assert rules == set(), (row, [str(v) for v in space.check(s)])


def test_what_is_refused_could_not_run() -> None:
    """The facts behind the refusals: 255 registers of a thread, 227 KiB of shared memory for the stages of A
    and B, portable clusters of 8 blocks."""
    for row in SM90:
        if row.refused == "registers":
            assert row.bm * row.bn // (128 * row.consumers[0] * row.consumers[1]) > 255 - 24, row
        elif row.refused == "shared_memory":
            assert row.stages * (row.bm + row.bn) * row.bk * 2 > 227 * 1024, row
        elif row.refused and row.refused != "left_out":
            assert row.refused == "cluster", row
            assert row.cluster[0] * row.cluster[1] > 8, row


def sample() -> list[Hopper]:
    """A few of each kind: the most used ones, the shallowest and the most stages, the registers of a gather,
    and others far apart in the list."""
    legal = [row for row in SM90 if not row.refused]
    kinds = (
        lambda row: row.bk == 16 and row.bn == 256,
        lambda row: row.bk == 256 and row.hand_off == "pingpong",
        lambda row: row.registers == "56/152",
        lambda row: row.source.startswith("DeepGEMM") and (row.bm, row.bn) == (16, 16),
        lambda row: row.more.get("store_panels") == 4,
    )
    found = [row for row in legal if row.source in COMPILED] + [next(filter(kind, legal)) for kind in kinds]
    return found + legal[::EVERY]


def test_some_compile(home: Path, tmp_path: Path) -> None:
    """All legal ones did when they were written down; a few each time."""
    for row in sample():
        space, s = schedule_of(row)
        artifact = compile_kernel(FAMILY.build(space.problem, H100, s), home=home)
        assert artifact.resources["entries"]["gemm"]["spill_stores_bytes"] == 0, row
        code = disassemble(artifact.data, "gemm", tmp_path)
        assert {"HGMMA", "UTMALDG"} <= {o.split(".")[0] for o in code.opcodes}


def test_the_list_is_the_whole_one() -> None:
    legal = [row for row in SM90 if not row.refused]
    schedules = [schedule_of(row)[1] for row in legal]

    def values(name: str) -> set[object]:
        return {s[name] for s in schedules}

    assert len(legal) >= 600
    assert values("hand_off") == {"cooperative", "pingpong"}
    assert {row.consumers for row in legal} == {(1, 1), (2, 1), (3, 1), (1, 2)}
    assert values("bm") == {16, 32, 64, 128, 192, 256}
    assert values("bk") == {16, 32, 64, 128, 256}
    assert {row.cluster for row in legal} >= {(1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (8, 1)}
    assert values("stages") >= {*range(2, 14), MOST_STAGES}
    # Only DeepGEMM's own end is met before shared memory's.
    deep = {row.source for row, s in zip(legal, schedules, strict=True) if s["stages"] == MOST_STAGES}
    assert deep == {"DeepGEMM sm90 bf16"}
    assert values("registers") >= {"24/240", "40/232", "40/248", "32/160", "56/152", "56/224"}
    assert values("store_panels") == {1, 2, 3, 4}
    assert values("store") == {"direct", "staged", "tma"}
    assert {(s["hint_a"], s["hint_b"]) for s in schedules} == set(product(HINTS, repeat=2))
    assert values("promotion") == {0, 64, 128, 256}
    assert {(s["split_k"], s["split_sum"]) for s in schedules} == {
        (n, way) for n in range(1, 9) for way in ("last", "second")[: 2 if n > 1 else 1]
    }
    bands = {(s["group"], s["raster"]) for s in schedules}
    assert bands >= set(product((1, 2, 4, 8, 16), ("m", "n", "hilbert")))
    refused = Counter(row.refused for row in SM90 if row.refused and row.source != "Tilus v5")
    assert refused == {"cluster": 1, "registers": 1, "shared_memory": 1, "left_out": 11}
