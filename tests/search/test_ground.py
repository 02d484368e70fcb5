"""Is a schedule judged once, however often a search meets it, and is it what the family would make?"""

from __future__ import annotations

import itertools
import random

import pytest
from rooftile.problem import Gemm
from support.toy_family import ToyFamily

from search_space.device import Device
from search_space.family import Family
from search_space.plan import gemm_x86
from search_space.schedule import Schedule
from service.search.ground import Ground

PROBLEM = Gemm(64, 64, 64, "f32")
DEVICE = Device.for_arch("x86-64-v3")


def test_each_point_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    family = ToyFamily()
    judged: list[str] = []
    real = family.check

    def check(problem: Gemm, device: Device, schedule: Schedule) -> object:
        judged.append(schedule.key)
        return real(problem, device, schedule)

    monkeypatch.setattr(family, "check", check)
    ground = Ground(family, PROBLEM, DEVICE, {})
    values = family.default(PROBLEM, DEVICE).values()
    for seed in range(4):
        list(ground.around(values, random.Random(seed)))
    assert len(judged) == len(set(judged)) > 50


@pytest.mark.parametrize("family", [gemm_x86.FAMILY, ToyFamily()], ids=lambda family: family.name)
def test_it_makes_what_the_family_would(family: Family) -> None:
    ground = Ground(family, PROBLEM, DEVICE, {})
    for schedule in itertools.islice(ground.some(random.Random(1)), 40):
        assert schedule == Schedule.of(family.name, ground.parameters, schedule.values())
        assert Schedule.from_json(schedule.to_json()) == schedule
        assert family.check(PROBLEM, DEVICE, schedule) == []
        assert ground.legal(schedule)


def test_true_is_not_one() -> None:
    ground = Ground(ToyFamily(), PROBLEM, DEVICE, {})
    values = ToyFamily().default(PROBLEM, DEVICE).values()
    assert ground.make({**values, "split": 1}).values()["split"] is not True
    assert ground.make({**values, "pack": True}) != ground.make({**values, "pack": False})
