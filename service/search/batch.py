"""Which schedules has one call proposed so far, and which may it not propose?"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain

from search_space.schedule import Schedule
from service.jobs.proposing import Ask, Proposal
from service.search.family_search import FamilySearch
from service.search.tpe import seed_of
from service.store.enums import ProposalSource

# Candidates looked at for one that is not beside another of the same batch.
APART_TRIES = 24
APART = 1.0


class Batch:
    """The proposals of one call; `rng` depends on the question alone."""

    def __init__(self, ask: Ask) -> None:
        self.rng = random.Random(seed_of(ask.seed, ask.problem.key, len(ask.done), len(ask.in_flight)))
        self.proposals: list[Proposal] = []
        self._n = ask.n
        self._before = len(ask.done) + len(ask.in_flight)
        self._taken = {row.schedule for row in chain(ask.done, ask.in_flight)}
        self._skip = ask.skip

    @property
    def full(self) -> bool:
        return len(self.proposals) >= self._n

    @property
    def left(self) -> int:
        return self._n - len(self.proposals)

    @property
    def count(self) -> int:
        """Trials of the search so far, with this batch."""
        return self._before + len(self.proposals)

    def is_free(self, schedule: Schedule) -> bool:
        return schedule not in self._taken and not (self._skip and schedule.key in self._skip)

    def pick(self, family: FamilySearch, schedules: Iterable[Schedule]) -> Schedule | None:
        """The first free one that is not beside another of this batch; else the first free one."""
        others = [
            codes
            for p in self.proposals
            if p.schedule.family == family.name
            and (codes := family.coding.encode(p.schedule.values())) is not None
        ]
        second: Schedule | None = None
        tries = 0
        for schedule in schedules:
            if not self.is_free(schedule):
                continue
            codes = family.coding.encode(schedule.values())
            if codes is None or all(family.coding.distance(codes, other) >= APART for other in others):
                return schedule
            second = second or schedule
            tries += 1
            if tries >= APART_TRIES:
                break
        return second

    def add(self, family: FamilySearch, schedule: Schedule, source: ProposalSource) -> None:
        self._taken.add(schedule)
        self.proposals.append(Proposal(schedule, source, family.ground.predict(schedule)))
