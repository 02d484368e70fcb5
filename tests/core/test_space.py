"""Are only legal points drawn, also where few are legal, and the same ones for the same seed?"""

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from rooftile.plan import Arg, Launch, LaunchPlan
from rooftile.problem import Gemm, Problem

from search_space.device import Device
from search_space.errors import EmptySpace, UnknownFamily
from search_space.family import BuildSpec, Estimate, Family, Parameter, SharedArea
from search_space.registry import get_family
from search_space.schedule import Schedule, Value
from search_space.space import Space
from search_space.violation import Violation

PROBLEM = Gemm(m=8, n=64, k=64, dtype="f32")
DEVICE = Device.for_key("cpu-amd-25-1-2c-x86-64-v3")


class Toy:
    """A family whose rule is given, over any parameters."""

    name = "toy"
    version = 1

    def __init__(
        self,
        parameters: tuple[Parameter, ...],
        rule: Callable[[dict[str, Any]], bool],
        start: dict[str, Value],
    ) -> None:
        self._parameters = parameters
        self._rule = rule
        self._start = start
        self.checks = 0

    def supports(self, problem: Problem, arch_name: str) -> list[Violation]:
        return []

    def parameters(self, problem: Problem, device: Device) -> tuple[Parameter, ...]:
        return self._parameters

    def check(self, problem: Problem, device: Device, schedule: Schedule) -> list[Violation]:
        self.checks += 1
        return [] if self._rule(schedule.values()) else [Violation("rule", "the toy's rule", {})]

    def default(self, problem: Problem, device: Device) -> Schedule:
        return Schedule.of("toy", self._parameters, self._start)

    def candidates(self, problem: Problem, device: Device) -> list[Schedule]:
        return [self.default(problem, device)]

    def predict(self, problem: Problem, device: Device, schedule: Schedule) -> Estimate:
        return Estimate(1.0, "memory")

    def build(self, problem: Problem, device: Device, schedule: Schedule) -> BuildSpec:
        return BuildSpec("x86/toy.c", device.arch.name)

    def plan(self, problem: Problem, device: Device, schedule: Schedule) -> LaunchPlan:
        step = Launch("run", (Arg.ptr("a"),), threads=1)
        return LaunchPlan("toy", device.arch.name, "x86", ("run",), (), (step,))

    def shared_map(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[SharedArea, ...]:
        return ()

    def structure(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, Value]:
        return {}

    def proof_problems(self, problem: Problem, device: Device, schedule: Schedule) -> tuple[Problem, ...]:
        return ()

    def roles(self, problem: Problem, device: Device, schedule: Schedule) -> dict[str, range]:
        return {}


def grid(n: int, choices: int) -> tuple[Parameter, ...]:
    groups = ("tile", "movement", "layout", "roles", "order")
    return tuple(Parameter(f"p{i}", groups[i % 5], tuple(range(choices))) for i in range(n))


def small() -> Space:
    """Two parameters of five choices; legal where their sum is even."""
    return Space(Toy(grid(2, 5), lambda v: (v["p0"] + v["p1"]) % 2 == 0, {"p0": 0, "p1": 0}), PROBLEM, DEVICE)


def sparse() -> Space:
    """4**12 = 16.8 million points, one in 256 of them legal, reached only by moving two parameters at once:
    p0 = p1, p2 = p3 and so on."""

    def rule(v: dict[str, Any]) -> bool:
        return all(v[f"p{i}"] == v[f"p{i + 1}"] for i in range(0, 8, 2))

    return Space(Toy(grid(12, 4), rule, {f"p{i}": 0 for i in range(12)}), PROBLEM, DEVICE)


def hopeless(default_is_legal: bool) -> Space:
    """10**10 points of which the default, or none, is legal."""
    return Space(
        Toy(
            grid(10, 10), lambda v: default_is_legal and not any(v.values()), {f"p{i}": 0 for i in range(10)}
        ),
        PROBLEM,
        DEVICE,
    )


def test_the_toy_is_a_family() -> None:
    assert isinstance(Toy(grid(1, 2), lambda v: True, {"p0": 0}), Family)


def test_random_points_are_legal_and_follow_the_seed() -> None:
    for make in (small, sparse):
        space = make()
        drawn = [space.random(Random(7)) for _ in range(3)]
        assert drawn[0] == drawn[1] == drawn[2] == make().random(Random(7))
        rng = Random(1)
        many = {space.random(rng) for _ in range(60)}
        assert all(space.legal(s) for s in many)
        assert len(many) >= 10


def test_random_reaches_every_legal_point_of_a_small_space() -> None:
    space, rng = small(), Random(3)
    assert {space.random(rng) for _ in range(400)} == set(space.enumerate_legal(1000))


def test_sparse_spaces_are_explored_away_from_the_start() -> None:
    space, rng = sparse(), Random(5)
    seen = {space.random(rng)["p0"] for _ in range(80)}
    assert seen == {0, 1, 2, 3}


def test_a_lone_legal_point_is_found_and_none_is_an_error_with_reasons() -> None:
    assert not any(hopeless(True).random(Random(0)).values().values())
    with pytest.raises(EmptySpace, match="the toy's rule") as caught:
        hopeless(False).random(Random(0))
    assert caught.value.violations[0].rule == "rule"


def test_nothing_enumerates_the_product() -> None:
    space = hopeless(True)
    started = time.monotonic()
    space.random(Random(0))
    assert len(list(space.enumerate_legal(50))) == 1
    space.neighbours(space.starts()[0])
    assert time.monotonic() - started < 10
    assert space.size == 10**10
    toy = space.family
    assert isinstance(toy, Toy)
    assert toy.checks < 20_000


def test_enumeration_is_exact_where_the_product_is_small() -> None:
    legal = list(small().enumerate_legal(1000))
    assert len(legal) == len(set(legal)) == 13  # of 25, with an even sum
    assert [s.values() for s in legal[:2]] == [{"p0": 0, "p1": 0}, {"p0": 0, "p1": 2}]
    assert list(small().enumerate_legal(4)) == legal[:4]


def test_large_spaces_are_listed_from_the_good_starts() -> None:
    space = Space(Toy(grid(12, 4), lambda v: v["p0"] != 2, {f"p{i}": 1 for i in range(12)}), PROBLEM, DEVICE)
    listed = list(space.enumerate_legal(100))
    assert len(set(listed)) == 100
    assert listed[0] == space.starts()[0]
    assert all(space.legal(s) for s in listed)


def distance(a: Schedule, b: Schedule) -> int:
    return len(a.difference(b))


def test_neighbours_move_one_parameter_then_two_and_are_legal() -> None:
    space = small()
    at = space.schedule({"p0": 2, "p1": 2})
    got = space.neighbours(at)
    assert len(got) == len(set(got))
    assert all(space.legal(s) for s in got)
    moved = [distance(at, s) for s in got]
    assert moved == sorted(moved)
    assert set(got) == {s for s in space.enumerate_legal(1000) if s != at}
    # Nearest choices first: two steps in p0 before the pairs.
    assert got[0].values() == {"p0": 0, "p1": 2}


def test_neighbours_with_a_seed_and_a_limit() -> None:
    space = sparse()
    at = space.starts()[0]
    assert space.neighbours(at, Random(2), 20) == space.neighbours(at, Random(2), 20)
    assert space.neighbours(at, Random(2), 20) != space.neighbours(at, Random(3), 20)
    assert len(space.neighbours(at, Random(2), 20)) == 20
    coupled = [s for s in space.neighbours(at) if s["p0"] != 0]
    assert coupled  # p0 and p1 only move together
    assert all(s["p0"] == s["p1"] for s in coupled)


def test_choices_of_another_version_are_answered_in_words() -> None:
    space = small()
    rules = {
        "unknown_choice": Schedule.make("toy", {"tile": {"p0": 9}, "movement": {"p1": 0}}),
        "unknown_parameter": Schedule.make("toy", {"tile": {"p0": 0, "q": 1}, "movement": {"p1": 0}}),
        "missing_parameter": Schedule.make("toy", {"tile": {"p0": 0}}),
        "other_family": Schedule.make("gemm_x86", {"tile": {"p0": 0}, "movement": {"p1": 0}}),
    }
    for rule, schedule in rules.items():
        assert [v.rule for v in space.check(schedule)] == [rule]
    # True is not the choice 1.
    assert not space.legal(Schedule.make("toy", {"tile": {"p0": True}, "movement": {"p1": 1}}))
    # In another group it is another parameter.
    assert not space.legal(Schedule.make("toy", {"order": {"p0": 0}, "movement": {"p1": 0}}))


def test_what_is_left_out_is_refused_with_the_reason_and_never_drawn() -> None:
    way = Parameter("way", "order", (1, "last"), left_out=((True, "not so"), ("atomic", "in no order")))
    space = Space(Toy((way,), lambda v: True, {"way": 1}), PROBLEM, DEVICE)
    for value, why in way.left_out:
        found = space.check(Schedule.make("toy", {"order": {"way": value}}))
        assert [(v.rule, why in v.message) for v in found] == [("left_out", True)]
    assert space.legal(Schedule.make("toy", {"order": {"way": 1}}))  # 1 is not True
    assert space.size == 2
    rng = Random(3)
    assert {space.random(rng)["way"] for _ in range(20)} == {1, "last"}


def test_two_parameters_of_one_name_are_a_mistake() -> None:
    twice = (Parameter("x", "tile", (1,)), Parameter("x", "order", (1,)))
    with pytest.raises(ValueError, match="share a name"):
        Space(Toy(twice, lambda v: True, {"x": 1}), PROBLEM, DEVICE)


def test_families_that_are_not_there_are_named() -> None:
    with pytest.raises(UnknownFamily, match="not built yet"):
        get_family("gemm_sm100")
    with pytest.raises(UnknownFamily, match="nearest: gemm_x86"):
        get_family("gemm-x86")


def test_pairs_cover_all_two_parameter_moves() -> None:
    space = Space(Toy(grid(3, 3), lambda v: True, {"p0": 0, "p1": 0, "p2": 0}), PROBLEM, DEVICE)
    at = space.starts()[0]
    within_two = [s for s in space.enumerate_legal(1000) if 1 <= distance(at, s) <= 2]
    assert set(space.neighbours(at)) == set(within_two)
    assert len(list(itertools.islice(space.iter_neighbours(at, Random(0)), 5))) == 5
