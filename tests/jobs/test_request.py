"""Is every field of a job's request checked, and named with its path?"""

from __future__ import annotations

from typing import Any

import pytest
from rooftile.errors import FieldError

from service.jobs.request import JobRequest
from service.jobs.submit import share_trials

LAYER: dict[str, Any] = {"op": "gemm", "n": 64, "k": 64, "dtype": "f32"}
PROBLEM = {**LAYER, "m": 8}


def parse(**body: Any) -> JobRequest:
    return JobRequest.parse(body)


def field_of(body: object) -> str:
    with pytest.raises(FieldError) as caught:
        JobRequest.parse(body)
    assert str(caught.value)
    return caught.value.field


def test_the_shortest_request() -> None:
    request = parse(problem=PROBLEM)
    assert [w.problem.title() for w in request.problems] == ["gemm 8x64x64 f32 kn"]
    assert request.target.devices == ("auto",)
    assert (request.cache, request.launch, request.seed, request.force) == ("cold", None, 0, False)


def test_a_sweep_is_the_product_of_its_sizes() -> None:
    request = parse(problem=LAYER, sweep={"m": [1, 2], "batch": [1, 3]})
    assert [(w.problem.sizes()["m"], w.problem.sizes()["batch"]) for w in request.problems] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
    ]


def test_what_is_listed_twice_is_tuned_once() -> None:
    request = parse(problem=LAYER, sweep={"m": [4, 1, 4]})
    assert [w.problem.sizes()["m"] for w in request.problems] == [4, 1]


def test_problems_have_weights() -> None:
    request = parse(problems=[{"problem": PROBLEM, "weight": 3}, {"problem": LAYER, "sweep": {"m": [1, 2]}}])
    assert [w.weight for w in request.problems] == [3.0, 1.0, 1.0]


def test_auto_has_a_short_form() -> None:
    assert parse(problem=PROBLEM, device="auto").target == parse(problem=PROBLEM).target.__class__(
        devices=("auto",), paths=("device",)
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ("gemm", "body"),
        ({}, "problem"),
        ({"problem": None}, "problem"),
        ({"problem": LAYER}, "problem.m"),
        ({"problem": {**PROBLEM, "op": "gem"}}, "problem.op"),
        ({"problem": {**PROBLEM, "m": -1}}, "problem.m"),
        ({"problem": {**PROBLEM, "m": 2**31}}, "problem.m"),
        ({"problem": {**PROBLEM, "m": 1.5}}, "problem.m"),
        ({"problem": {**PROBLEM, "m": float("nan")}}, "problem.m"),
        ({"problem": {**PROBLEM, "dtype": "float33"}}, "problem.dtype"),
        ({"problem": {**PROBLEM, "layout": {"b": "xy"}}}, "problem.layout.b"),
        ({"problem": {**PROBLEM, "colour": 1}}, "problem.colour"),
        ({"problem": LAYER, "sweep": {"m": [1, 2, -3]}}, "sweep.m[2]"),
        ({"problem": LAYER, "sweep": {"m": []}}, "sweep.m"),
        ({"problem": LAYER, "sweep": {"m": 3}}, "sweep.m"),
        ({"problem": LAYER, "sweep": {"m": [1], "n": [2]}}, "sweep.n"),
        ({"problem": PROBLEM, "sweep": {"m": [1]}}, "problem.m"),
        ({"problem": LAYER, "sweep": {"m": list(range(200)), "batch": [1, 2]}}, "sweep"),
        ({"problems": []}, "problems"),
        ({"problems": [{"problem": PROBLEM}, {"problem": {**PROBLEM, "k": "x"}}]}, "problems[1].problem.k"),
        ({"problems": [{"problem": LAYER, "sweep": {"m": [1, None]}}]}, "problems[0].sweep.m[1]"),
        ({"problems": [{"problem": PROBLEM, "weight": 0}]}, "problems[0].weight"),
        ({"problems": [{"problem": PROBLEM, "wight": 1}]}, "problems[0].wight"),
        ({"problems": [{"problem": PROBLEM}], "problem": PROBLEM}, "problem"),
        ({"problem": PROBLEM, "target": 3}, "target"),
        ({"problem": PROBLEM, "target": {"device": 3}}, "target.device"),
        ({"problem": PROBLEM, "target": {"device": "auto", "arch": "sm_80"}}, "target"),
        ({"problem": PROBLEM, "target": {"devices": []}}, "target.devices"),
        ({"problem": PROBLEM, "target": {"devices": ["auto", ""]}}, "target.devices[1]"),
        ({"problem": PROBLEM, "device": "auto", "target": {}}, "device"),
        ({"problem": PROBLEM, "budget": {"trials": 0}}, "budget.trials"),
        ({"problem": PROBLEM, "budget": {"trials": 1.0}}, "budget.trials"),
        ({"problem": PROBLEM, "budget": {"trials": True}}, "budget.trials"),
        ({"problem": PROBLEM, "budget": {"seconds": -1}}, "budget.seconds"),
        ({"problem": PROBLEM, "budget": {"seconds": float("nan")}}, "budget.seconds"),
        ({"problem": PROBLEM, "budget": {"seconds": float("inf")}}, "budget.seconds"),
        ({"problem": PROBLEM, "budget": {"seconds": 10**400}}, "budget.seconds"),
        ({"problem": PROBLEM, "budget": {"device_seconds": "x"}}, "budget.device_seconds"),
        ({"problem": PROBLEM, "budget": {"second": 1}}, "budget.second"),
        ({"problem": PROBLEM, "policy": {"cache": "colt"}}, "policy.cache"),
        ({"problem": PROBLEM, "policy": {"launch": 1}}, "policy.launch"),
        ({"problem": PROBLEM, "seed": -1}, "seed"),
        ({"problem": PROBLEM, "seed": 10**400}, "seed"),
        ({"problem": PROBLEM, "force": 1}, "force"),
        ({"problem": PROBLEM, "priority": 1000}, "priority"),
        ({"problem": PROBLEM, "families": "gemm_x86"}, "families"),
        ({"problem": PROBLEM, "families": [1]}, "families[0]"),
        ({"problem": PROBLEM, "params": [1]}, "params"),
        ({"problem": PROBLEM, "params": {"mr": []}}, "params.mr"),
        ({"problem": PROBLEM, "params": {"mr": [4, 1.5]}}, "params.mr[1]"),
        ({"problem": PROBLEM, "params": {"mr": 10**400}}, "params.mr"),
        ({"problem": PROBLEM, "emulate": "maybe"}, "emulate"),
        ({"problem": PROBLEM, "early_stop": "no"}, "early_stop"),
        ({"problem": PROBLEM, "bugdet": {}}, "bugdet"),
    ],
)
def test_every_bad_field_is_named(body: object, field: str) -> None:
    assert field_of(body) == field


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(FieldError) as caught:
        parse(problem=PROBLEM, bugdet={})
    assert caught.value.nearest == "budget"


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (10, [1, 1, 1], [4, 3, 3]),
        (3, [1, 1, 1], [1, 1, 1]),
        (10, [3, 1], [7, 3]),
        (100, [1, 0, 1], [50, 0, 50]),
        (5, [1000, 1, 1], [3, 1, 1]),
        (None, [1, 1], [None, None]),
    ],
)
def test_trials_are_shared_by_weight(
    total: int | None, weights: list[float], shares: list[int | None]
) -> None:
    assert share_trials(total, weights) == shares


def test_a_range_begins_with_about_half_of_what_may_be_tuned() -> None:
    request = parse(problem=LAYER, sweep={"m": {"from": 1, "to": 512, "tune": 12}})
    sizes = [one.problem.to_json()["m"] for one in request.problems]
    assert sizes[:2] == [1, 512]
    assert sorted(sizes) == [1, 3, 8, 23, 64, 181, 512]
    (line,) = request.lines
    assert (line.tune, line.hold_out, line.chosen) == (12, 3, True)
    listed = parse(problem=LAYER, sweep={"m": {"sizes": [4, 1, 2], "tune": 2, "hold_out": 0}})
    assert [one.problem.to_json()["m"] for one in listed.problems] == [1, 4]
    both = parse(problem=LAYER, sweep={"batch": [1, 3], "m": {"from": 2, "to": 2}})
    assert [(one.problem.to_json()["batch"], one.line) for one in both.problems] == [(1, 0), (3, 1)]


@pytest.mark.parametrize(
    ("sweep", "field"),
    [
        ({"m": {"from": 0, "to": 4}}, "sweep.m.from"),
        ({"m": {"from": 8, "to": 4}}, "sweep.m.to"),
        ({"m": {"to": 4}}, "sweep.m.from"),
        ({"m": {"from": 1, "to": 4, "tun": 2}}, "sweep.m.tun"),
        ({"m": {"from": 1, "to": 4, "tune": 0}}, "sweep.m.tune"),
        ({"m": {"from": 1, "sizes": [1]}}, "sweep.m.from"),
        ({"m": {"sizes": [0]}}, "sweep.m.sizes[0]"),
        ({"m": {"sizes": [1], "hold_out": 17}}, "sweep.m.hold_out"),
        ({"m": {"from": 1, "to": 4}, "batch": {"from": 1, "to": 4}}, "sweep.batch"),
    ],
)
def test_a_wrong_range_is_named(sweep: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse(problem=LAYER, sweep=sweep)
    assert caught.value.field == field
