"""Are the few schedules of a portfolio really good for all problems, and are there no more than needed?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from support.hands import DEVICE, Hands, drive
from support.job_views import LAYER, post, trials_of

from search_space.schedule import Schedule
from service.jobs.portfolio import cover
from service.search.proposer import Proposer
from service.store import measured_times
from service.store.enums import ProposalSource


def test_one_that_is_good_everywhere_is_enough() -> None:
    times = {f"p{i}": {"good": 102.0, f"best{i}": 100.0, "bad": 150.0} for i in range(6)}
    found = cover(times)
    assert [one.schedule_key for one in found.members] == ["good"]
    assert found.members[0].problems == tuple(sorted(times))
    assert (found.exact, found.uncovered) == (True, ())
    assert found.worst_loss is not None
    assert abs(found.worst_loss - 0.02) < 1e-9
    strict = cover(times, loss=0.01)
    assert len(strict.members) == 6
    assert strict.worst_loss == 0.0


def test_the_fewest_are_found_where_the_greedy_way_takes_more() -> None:
    # greedy takes the four in the middle first, and then needs both halves' rests
    left, right, middle = range(3), range(3, 6), (1, 2, 3, 4)
    times: dict[str, dict[str, float]] = {f"p{i}": {} for i in range(6)}
    for name, problems in (("left", left), ("right", right), ("middle", middle)):
        for i in problems:
            times[f"p{i}"][name] = 100.0
    found = cover(times)
    assert {one.schedule_key for one in found.members} == {"left", "right"}
    assert found.exact


def test_no_more_than_ten_and_what_is_not_covered_is_named() -> None:
    times = {f"p{i:02}": {f"s{i:02}": 100.0, "all": 130.0} for i in range(15)}
    found = cover(times)
    assert len(found.members) == 10
    assert len(found.uncovered) == 5
    assert not found.exact
    assert cover({}).members == ()


def test_every_covered_problem_keeps_the_stated_loss_whatever_the_times() -> None:
    rng = random.Random(3)
    for _ in range(30):
        names = [f"s{i}" for i in range(12)]
        times = {
            f"p{i}": {name: rng.uniform(90, 130) for name in rng.sample(names, rng.randint(1, 12))}
            for i in range(20)
        }
        found = cover(times, loss=0.08)
        assert len(found.members) <= 10
        for one in found.members:
            for problem in one.problems:
                row = times[problem]
                assert row[one.schedule_key] <= 1.08 * min(row.values()) + 1e-9
        seen = [problem for one in found.members for problem in one.problems]
        assert sorted([*seen, *found.uncovered]) == sorted(times)
        assert cover(dict(reversed(times.items())), loss=0.08) == found


def test_what_is_good_for_two_problems_is_tried_early_for_a_third(both: Hands, proposer: Proposer) -> None:
    good: dict[str, Any] = {"mr": 8, "nr": 8, "pack": True}

    def by_size(problem: Mapping[str, Any], schedule: Schedule) -> float:
        values = schedule.values()
        if all(values[name] == value for name, value in good.items()) and values["split"] == 2:
            return 102.0
        # of its own each problem likes another value best, so what won there is not it
        return 100.0 if values["kc"] == 64 * problem["m"] and values["mr"] == 1 and values["pack"] else 150.0

    both.time_at = by_size
    params = {"mr": [1, 8], "nr": 8, "kc": [64, 128, 256], "prefetch": 0, "way": "rows", "split": [1, 2]}
    problems = [{"problem": {**LAYER, "m": m}} for m in (1, 2)]
    first = post(both.db, problems=problems, params=params, budget={"trials": 48}, early_stop=False)
    drive(both, first, proposer)
    with both.db.read() as s:
        times = measured_times.of_family(s, DEVICE, "toy_x86", "cold-eager")
        assert measured_times.of_family(s, DEVICE, "toy_x86", "warm-eager") == {}
    assert len(times) == 2
    (member,) = cover(times).members
    with both.db.read() as s:
        kept = measured_times.schedules(s, "x86-64-v4", [member.schedule_key])
    assert Schedule.from_json(kept[member.schedule_key]).values()["mr"] == 8
    third = post(both.db, problem={**LAYER, "m": 4}, budget={"trials": 80})
    drive(both, third, proposer)
    early = [one for one in trials_of(both.db, third) if one.number < 16]
    found = next(one for one in early if one.schedule_key == member.schedule_key)
    assert found.source is ProposalSource.TRANSFER
