"""Which schedules does a search try first, before it has learned anything?

The family's default (always trial 0), its known good starts, the cost model's best over a few thousand
random legal schedules, and the winners of near problems, in turns: a small budget sees some of each.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from search_space.schedule import Schedule
from service.search.coding import Coding
from service.search.ground import Ground
from service.store.enums import ProposalSource

SCORED = 2000
MODEL_KEPT = 48
# The best by the model are stepped from, so that its real best is among them.
CLIMBED = 8
CLIMB_STEPS = 40
# Two labels or four ranks apart: neighbours of the model's best differ in ways the model cannot see.
MODEL_APART = 2.0

Start = tuple[ProposalSource, Schedule]


def known_starts(ground: Ground, rng: random.Random) -> list[Schedule]:
    """The family's default and candidates; under the job's limits the nearest that keep them."""
    family, problem, device = ground.family, ground.problem, ground.device
    starts = [family.default(problem, device), *family.candidates(problem, device)]
    found = [schedule for start in starts if (schedule := fitted(ground, start, rng)) is not None]
    return _once(found)


def fitted(ground: Ground, schedule: Schedule, rng: random.Random) -> Schedule | None:
    """The schedule where it is legal here, else the nearest legal one."""
    values = ground.fitted(schedule)
    return None if values is None else next(ground.around(values, rng), None)


def by_model(ground: Ground, rng: random.Random, scored_most: int) -> list[Schedule]:
    """So many random schedules, and what is around the best of them, by the cost model, fastest first."""
    scored: dict[Schedule, tuple[float, int, Schedule]] = {}

    def score(schedules: Iterable[Schedule]) -> None:
        for schedule in schedules:
            if schedule not in scored:
                scored[schedule] = (ground.predict(schedule), len(scored), schedule)

    score(ground.known())
    score(itertools.islice(ground.some(rng, 1), scored_most))
    for _, _, schedule in sorted(scored.values())[:CLIMBED]:
        score(itertools.islice(ground.around(schedule.values(), rng), CLIMB_STEPS))
    return [schedule for _, _, schedule in sorted(scored.values())]


def far_apart(ranked: Iterable[Schedule], coding: Coding, rng: random.Random) -> Iterator[Schedule]:
    """The best, and of half of the others, which chance takes, those that are not close to one before."""
    chosen: list[tuple[int, ...]] = []
    for schedule in ranked:
        if chosen and rng.random() < 0.5:
            continue
        code = coding.encode(schedule.values())
        if code is None or any(coding.distance(code, other) < MODEL_APART for other in chosen):
            continue
        yield schedule
        chosen.append(code)
        if len(chosen) >= MODEL_KEPT:
            return


def in_turns(
    known: Sequence[Schedule], model: Iterable[Schedule], transfer: Sequence[Schedule]
) -> Iterator[Start]:
    """The default, then one of each kind in turns. A schedule may come twice."""
    if known:
        yield ProposalSource.DEFAULT, known[0]
    rows: Iterable[tuple[Schedule | None, ...]] = itertools.zip_longest(transfer, known[1:], model)
    kinds = (ProposalSource.TRANSFER, ProposalSource.START, ProposalSource.COST_MODEL)
    for row in rows:
        for kind, schedule in zip(kinds, row, strict=True):
            if schedule is not None:
                yield kind, schedule


def _once(schedules: Sequence[Schedule]) -> list[Schedule]:
    return list({schedule.canonical(): schedule for schedule in reversed(schedules)}.values())[::-1]
