"""Do the plans of gemm_x86 hold for all sizes: areas apart, large enough, and as the kernel means?

The kernel's own arithmetic is written down here a second time, from kernels/x86/*.c, and compared with what
the plan's expressions give.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from rooftile.plan import ConcreteLaunch, LaunchPlan, evaluate
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.expressions import add, ceil_div, floor_div, least, most, mul, round_up
from search_space.registry import get_family
from search_space.schedule import Schedule
from search_space.space import Space

FAMILY = get_family("gemm_x86")
KEYS = ("cpu-amd-25-1-2c-x86-64-v3", "cpu-intel-6-143-8c-x86-64-v4", "cpu-amd-26-17-6c-x86-64-v4")


def names_of(m: int, n: int, k: int, batch: int, threads: int) -> dict[str, int]:
    problem = Gemm(m, n, k, "f32", batch=batch)
    return {**problem.plan_names(), "threads": threads}


def arguments(plan: LaunchPlan, names: dict[str, int]) -> tuple[dict[str, int], int, int]:
    """The launch's integers by name, its threads, and the workspace in floats."""
    concrete = plan.concrete(names)
    (launch,) = concrete.steps
    assert isinstance(launch, ConcreteLaunch)
    assert concrete.workspace_bytes % 4 == 0
    values = {a.name: a.value for a in launch.args if a.value is not None}
    return values, launch.threads, concrete.workspace_bytes // 4


Spans = dict[str, list[tuple[int, int]]]


def up(value: int, divisor: int) -> int:
    return -(-value // divisor)


def used(s: Schedule, lanes: int, b_nk: bool, g: dict[str, int], threads: int) -> Spans:
    """(from, to) in floats of every buffer the kernel makes in the workspace."""
    mr, nr = s.integer("mr"), s.integer("nr")
    cols = up(g["n"], nr)
    team = g["grid_batch"] * g["grid_k"]
    spans: Spans = {}

    def put(area: str, count: int, step: int, need: int) -> None:
        assert need <= step, (area, need, step)
        spans[area] = [(g[f"at_{area}"] + i * step, g[f"at_{area}"] + i * step + need) for i in range(count)]

    def counters(count: int) -> None:
        at = g["at_counters"]
        spans["counters"] = [(at + i * 32, at + i * 32 + 32) for i in range(count)]

    if s.text("path") == "blocked":
        rows = up(g["m"], mr)
        most_rows, most_k = up(rows, g["grid_m"]), up(up(g["k"], g["block_k"]), g["grid_k"])
        handed = g["hand_out"] == 1 and g["grid_m"] > 1
        share_a, share_b = (g["share"] and g["grid_n"] > 1) or handed, g["share"] and g["grid_m"] > 1
        if s.text("pack_a") != "no":
            kept = rows if handed else most_rows
            if not (g["k_outer"] or g["whole_a"]):
                kept = min(g["block_m"], kept)
            need = kept * (mr * g["block_k"] + g["pad"]) * (most_k if g["whole_a"] else 1)
            count = 2 * team * (1 if handed else g["grid_m"]) if share_a else threads
            put("a", count, g["size_a"], need)
        if s.flag("pack_b"):
            need = min(g["block_n"], up(cols, g["grid_n"])) * (nr * g["block_k"] + g["pad"])
            put("b", 2 * team * g["grid_n"] if share_b else threads, g["size_b"], need)
        else:
            put("edge", threads, g["size_edge"], nr * g["block_k"])
        if g["grid_k"] > 1:
            put("partial", team, g["size_partial"], g["m"] * cols * nr)
        if g["hand_out"]:
            counters(team)
        return spans
    if b_nk:
        put("edge", threads, g["size_edge"], g["m"] * nr * lanes)
        put("partial", team, g["size_partial"], g["m"] * cols * nr)
    else:
        deep = g["block_k"]
        panel = 1 if s.text("hold") == "b" else mr
        visits, most_cols = up(g["k"], deep), up(cols, g["grid_n"])
        put("a", 2 * g["grid_batch"], g["size_a"], visits * deep * up(g["m"], panel) * panel)
        block = min(g["block_n"], most_cols) * g["m"] * nr if g["parts"] == 1 else 0
        put("edge", threads, g["size_edge"], block + deep * nr)
        if g["parts"] > 1:
            count = g["grid_batch"] * g["grid_n"] * g["parts"]
            put("partial", count, g["size_partial"], most_cols * g["m"] * nr)
    if g["hand_out"]:
        count = g["grid_batch"] * g["grid_n"]
        counters(count)
    return spans


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("b", ["kn", "nk"])
def test_areas_are_apart_and_large_enough_at_random_sizes(key: str, b: str) -> None:
    device, rng = Device.for_key(key), Random(f"{key}{b}")
    lanes = device.arch.lanes("f32")
    for m in (3, 40, 700):
        problem = Gemm(m, 900, 800, "f32", batch=rng.choice([1, 3]), layout={"b": b})
        space = Space(FAMILY, problem, device)
        schedules = [*FAMILY.candidates(problem, device), *(space.random(rng) for _ in range(25))]
        for schedule in schedules:
            plan = FAMILY.plan(problem, device, schedule)
            assert LaunchPlan.from_json(plan.to_json()) == plan
            for _ in range(6):
                sizes = [rng.choice([1, 2, 7, 16, 33, 100, 511, 2000]) for _ in range(2)]
                k = rng.choice([0, 1, 5, 64, 777, 3000])
                names = names_of(*sizes, k, rng.choice([1, 2, 5]), rng.choice([1, 2, device.cores]))
                g, threads, floats = arguments(plan, names)
                assert 1 <= threads <= names["threads"]
                assert threads == g["grid_batch"] * g["grid_k"] * g["grid_m"] * g["grid_n"]
                assert min(g["block_m"], g["block_n"], g["block_k"], g["parts"]) >= 1
                spans = sorted(
                    x for area in used(schedule, lanes, b == "nk", g, threads).values() for x in area
                )
                assert all(before[1] <= after[0] for before, after in pairwise(spans))
                assert not spans or spans[-1][1] <= floats, (schedule.one_line(), names, spans[-1], floats)
                assert all(start % 16 == 0 for start, _ in spans if b == "kn"), schedule.one_line()


def test_blocks_are_even_and_parts_of_k_get_the_same_number_of_them() -> None:
    device = Device.for_key(KEYS[0])
    problem = Gemm(1000, 1000, 1000, "f32")
    schedule = FAMILY.default(problem, device).replace(
        mc=96, nc=256, kc=192, split_k=2, hand_out="no", outer="n", share=True
    )
    assert FAMILY.check(problem, device, schedule) == []
    g, threads, _ = arguments(FAMILY.plan(problem, device, schedule), names_of(1000, 1000, 1000, 1, 2))
    assert (threads, g["grid_k"], g["grid_m"]) == (2, 2, 1)
    tiles = -(-1000 // schedule.integer("mr"))
    assert g["block_m"] == -(-tiles // -(-tiles // (96 // schedule.integer("mr"))))
    assert g["block_k"] == 168  # 1000 in 6 blocks, not 192 and a rest: three for each part
    assert -(-1000 // g["block_k"]) == 6


def test_operands_are_exchanged_for_a_transposed_result() -> None:
    device = Device.for_key(KEYS[0])
    problem = Gemm(30, 50, 20, "f32", layout={"c": "nm"}, epilogue={"bias": "n"})
    plan = FAMILY.plan(problem, device, FAMILY.default(problem, device))
    (step,) = plan.steps
    args: dict[str, Any] = {a.name: a for a in step.args}  # type: ignore[union-attr]
    assert args["a"].buffer == "b"
    assert args["b"].buffer == "a"
    assert args["m"].value == "n"
    assert args["ld_a"].value == "ld_b"
    defines = dict(FAMILY.build(problem, device, FAMILY.default(problem, device)).defines)
    assert defines["RT_BIAS"] == "2"
    assert defines["RT_A_KM"] == "1"
    assert defines["RT_B_NK"] == "1"


def test_expressions_fold_constants() -> None:
    assert add("m", 1, 2, 0) == add("m", 3)
    assert mul("m", 1) == "m"
    assert mul("m", 0) == 0
    assert mul(2, 3) == 6
    assert ceil_div(7, 2) == 4
    assert floor_div(7, 2) == 3
    assert round_up("m", 1) == "m"
    assert least(1, "threads") == 1
    assert most("m", "m") == "m"
    for threads in range(1, 20):
        assert evaluate(floor_div("threads", 3), {"threads": threads}) == threads // 3
