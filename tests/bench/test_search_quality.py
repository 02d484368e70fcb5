"""Does the search on recorded spaces give the same figures again, from what was recorded alone?"""

from __future__ import annotations

import itertools
import math

from bench import search_quality
from bench.searching.space import PROBLEM, recorded

NAME = "pnpoly_3090"


def test_the_same_seeds_give_the_same_shares() -> None:
    first, (row,) = search_quality.measure((NAME,), 1, (4, 16))
    again, _ = search_quality.measure((NAME,), 1, (4, 16))
    for figure in ("share_after_4", "share_after_16"):
        assert first[figure] == again[figure]
    assert 0 < row["share_after_4"] <= row["share_after_16"] <= 1
    assert row["configurations"] == 4092


def test_a_failure_costs_a_trial_and_is_never_the_best() -> None:
    family = recorded(NAME)
    assert sum(time is None for time in family.times_us.values()) == 330
    best = search_quality.best_so_far(family, 3, 40)
    assert len(best) == 40
    assert all(after <= before for before, after in itertools.pairwise(best))
    assert family.best_us <= best[-1] < math.inf


def test_the_model_knows_nothing() -> None:
    family = recorded(NAME)
    start = family.default(PROBLEM, search_quality.DEVICE)
    assert abs(family.predict(PROBLEM, search_quality.DEVICE, start).time_us - 1) < 1e-6
