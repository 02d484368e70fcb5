"""Does the search get on with the real family: 17 parameters, one point in twenty legal?"""

from __future__ import annotations

import math
import random
import time

import pytest
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_x86 import FAMILY
from service.jobs.proposing import Ask, Tried
from service.search.ground import Ground
from service.search.proposer import Proposer
from service.store.enums import ProposalSource

PROBLEMS = [
    Gemm(m=1, n=4096, k=4096, dtype="f32"),
    Gemm(m=17, n=1003, k=777, dtype="f32"),
    Gemm(m=1024, n=1024, k=1024, dtype="f32", layout={"b": "nk"}),
    Gemm(m=1, n=1, k=1, dtype="f32"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.title().replace(" ", "_"))
def test_sixty_trials_are_legal_and_different(problem: Gemm) -> None:
    wide = problem.m == 1
    device = Device.for_key("cpu-intel-6-85-2c-x86-64-v4" if wide else "cpu-amd-25-1-8c-x86-64-v3")
    proposer = Proposer(lambda name: FAMILY, scored=300)
    rng = random.Random(1)
    done: list[Tried] = []
    while len(done) < 60:
        n = min(8, 60 - len(done))
        ask = Ask("1", problem, device, (FAMILY.name,), seed=3, trials=60, n=n, done=tuple(done))
        found = proposer.propose(ask)
        if not done:
            assert found[0].source is ProposalSource.DEFAULT
            assert found[0].schedule == FAMILY.default(problem, device)
        for proposal in found:
            assert FAMILY.check(problem, device, proposal.schedule) == []
            us = FAMILY.predict(problem, device, proposal.schedule).time_us
            fails = rng.random() < 0.1
            time_us = None if fails else us * math.exp(rng.gauss(0, 0.1))
            done.append(Tried(proposal.schedule, proposal.schedule.key, time_us))
        if len(found) < n:
            break  # a tiny problem has a tiny space
    assert len({row.key for row in done}) == len(done)
    assert len(done) == 60 or len(list(Ground(FAMILY, problem, device, {}).every(10**6))) == len(done)


def test_the_first_batch_finds_the_models_best_in_a_second() -> None:
    device = Device.for_key("cpu-intel-6-85-2c-x86-64-v4")
    problem = Gemm(m=8, n=4096, k=4096, dtype="f32")
    start = time.process_time()
    ask = Ask("1", problem, device, (FAMILY.name,), seed=0, trials=64, n=8)
    found = Proposer(lambda name: FAMILY).propose(ask)
    assert time.process_time() - start < 2.0
    predicted = {p.source: p.predicted_us for p in reversed(found)}
    ground = Ground(FAMILY, problem, device, {})
    rng = random.Random(9)
    drawn = [ground.draw(rng) for _ in range(150)]
    best = min(ground.predict(s) for s in drawn if s is not None)
    model = predicted[ProposalSource.COST_MODEL]
    assert model is not None
    assert model <= best
