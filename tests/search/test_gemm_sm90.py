"""Does the search stay quick with the largest family, 24 parameters, and thousands of trials behind it?"""

from __future__ import annotations

import itertools
import random
import time

import pytest
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_sm90 import FAMILY
from service.jobs.proposing import Ask, Tried
from service.search.ground import Ground
from service.search.proposer import Proposer

PROBLEM = Gemm(4096, 4096, 4096, "f16")
DEVICE = Device.for_arch("sm_90a")
TRIALS = 5000
"""As many as a job may have."""


@pytest.fixture(scope="module")
def rows() -> tuple[Tried, ...]:
    ground = Ground(FAMILY, PROBLEM, DEVICE, {})
    drawn = ground.some(random.Random(3), 1)
    found = itertools.islice(dict.fromkeys(itertools.islice(drawn, 2 * TRIALS)), TRIALS)
    return tuple(Tried(s, s.key, ground.predict(s) * (1 + int(s.key[:8], 16) / 2**33)) for s in found)


def test_ask_and_tell_at_the_most_trials(rows: tuple[Tried, ...]) -> None:
    assert len(rows) == TRIALS
    proposer = Proposer(lambda _: FAMILY)
    used_s = []
    for end in range(TRIALS - 32, TRIALS, 4):
        flying = rows[end : end + 4]
        ask = Ask("1", PROBLEM, DEVICE, (FAMILY.name,), 1, TRIALS, 4, done=rows[:end], in_flight=flying)
        start_s = time.process_time()
        found = proposer.propose(ask)
        used_s.append((time.process_time() - start_s) / 4)
        assert len(found) == 4
        assert all(FAMILY.check(PROBLEM, DEVICE, one.schedule) == [] for one in found)
    # The least but for the first ones, which make what is kept; 50 ms were allowed by whoever asked for it.
    assert min(used_s[2:]) < 0.04


def test_who_takes_over_answers_as_who_was_there_before(rows: tuple[Tried, ...]) -> None:
    lasting = Proposer(lambda _: FAMILY, scored=200)
    for end in range(20, 60, 16):
        ask = Ask(
            "1", PROBLEM, DEVICE, (FAMILY.name,), 1, 100, 4, done=rows[:end], in_flight=rows[end : end + 4]
        )
        kept = lasting.propose(ask)
        assert kept == Proposer(lambda _: FAMILY, scored=200).propose(ask)
