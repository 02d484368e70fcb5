"""Which schedules does a search try next?

Trial 0 is the default; a seventh of the budget goes to known starts (start.py), the rest to what the search
has learned (explore.py). What is proposed depends on the Ask alone: the state kept between calls only saves
time and is made again from the rows after a crash.
"""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

from threadpoolctl import ThreadpoolController

from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.jobs.errors import NoLegalSchedule
from service.jobs.proposing import Ask, Proposal
from service.search.batch import Batch
from service.search.explore import explore
from service.search.family_search import FamilySearch, log_time
from service.search.land import Land, land_key
from service.search.start import SCORED, fitted, in_turns
from service.search.tpe import seed_of
from service.store.enums import ProposalSource

SEARCHES_KEPT = 256
SEARCHES_WHOLE = 32
"""Of those that were asked for last all is kept (some MB each), of the others the cost model's ranking."""
LANDS_KEPT = 64
START_SHARE = 0.15
START_LEAST = 4
OTHER_FAMILIES_SHARE = 0.3
EVERY_MOST = 20_000


class Proposer:
    """Implements `service.jobs.proposing.Proposer` with Optuna."""

    def __init__(self, lookup: Callable[[str], Family] = get_family, scored: int = SCORED) -> None:
        """`scored`: how many random schedules the cost model judges when a search begins."""
        self._lookup = lookup
        self._scored = scored
        self._blas = ThreadpoolController()
        self._searches: OrderedDict[str, dict[str, FamilySearch]] = OrderedDict()
        self._lands: OrderedDict[str, Land] = OrderedDict()

    def propose(self, ask: Ask) -> list[Proposal]:
        # On matrices this small a second BLAS thread only burns a core.
        with self._blas.limit(limits=1):
            return self._propose(ask)

    def _propose(self, ask: Ask) -> list[Proposal]:
        families = self._families(ask)
        batch = Batch(ask)
        for source, family, schedule in self._starts(ask, families):
            if batch.is_free(schedule) and family.ground.legal(schedule):
                batch.add(family, schedule, source)
            # before the next is drawn, for which the cost model may have to rank
            if batch.full or batch.count >= _start_quota(ask):
                break
        slots = _slots(ask, families, batch.left, batch.rng)
        for name, count in slots.items():
            explore(ask, families[name], batch, count)
        for family in families.values():
            if batch.full:
                break
            _sweep(family, batch)
        return batch.proposals

    # ------------------------------------------------------------ what is kept

    def _families(self, ask: Ask) -> dict[str, FamilySearch]:
        found = self._searches.get(ask.name)
        if found is None:
            found = {}
            barren: list[str] = []
            for name in ask.families:
                land = self._land(name, ask)
                if land.known:
                    found[name] = FamilySearch(land, seed_of(ask.seed, ask.problem.key, name))
                else:
                    barren.append(f"{name}: {land.ground.why_nothing()}")
            if not found:
                raise NoLegalSchedule(f"no legal schedule keeps the limits of the job ({'; '.join(barren)})")
            self._searches[ask.name] = found
            while len(self._searches) > SEARCHES_KEPT:
                self._searches.popitem(last=False)
        self._searches.move_to_end(ask.name)
        if len(self._searches) > SEARCHES_WHOLE:
            # one at a time goes over the edge
            latest = list(itertools.islice(reversed(self._searches.values()), SEARCHES_WHOLE + 1))
            walked = {id(family.land) for search in latest[:-1] for family in search.values()}
            for family in latest[-1].values():
                family.rest()
                if id(family.land) not in walked:
                    family.land.ground.forget()
        return found

    def _land(self, name: str, ask: Ask) -> Land:
        """That of an earlier search where there was one."""
        key = land_key(name, ask)
        land = self._lands.pop(key, None)
        if land is None:
            land = Land(self._lookup(name), ask, self._scored)
        self._lands[key] = land
        if len(self._lands) > LANDS_KEPT:
            self._lands.popitem(last=False)
        return land

    def _starts(
        self, ask: Ask, families: dict[str, FamilySearch]
    ) -> Iterator[tuple[ProposalSource, FamilySearch, Schedule]]:
        """Starting schedules of all families in turns, the first family's default first."""
        if len(ask.done) + len(ask.in_flight) >= _start_quota(ask):
            return
        queues = []
        for family in families.values():
            rng = random.Random(family.seed)
            near = [s for t in ask.transfer if (s := fitted(family.ground, t, rng)) is not None]
            queues.append((family, in_turns(family.land.known, family.ranked(), near)))
        while queues:
            for entry in list(queues):
                family, queue = entry
                start = next(queue, None)
                if start is None:
                    queues.remove(entry)
                else:
                    yield start[0], family, start[1]


def _start_quota(ask: Ask) -> int:
    return max(START_LEAST, int(START_SHARE * ask.trials))


def _slots(ask: Ask, families: dict[str, FamilySearch], count: int, rng: random.Random) -> dict[str, int]:
    """How many of the next proposals go to each family: most to the one with the best time."""
    names = list(families)
    if len(names) == 1 or count <= 0:
        return {names[0]: max(0, count)}
    timed = [(log, row.schedule.family) for row in ask.done if (log := log_time(row.time_us)) is not None]
    best = min(timed)[1] if timed else names[0]
    others = [name for name in names if name != best]
    slots = dict.fromkeys(names, 0)
    for _ in range(count):
        leader = best in families and (not others or rng.random() >= OTHER_FAMILIES_SHARE)
        slots[best if leader else rng.choice(others)] += 1
    return slots


def _sweep(family: FamilySearch, batch: Batch) -> None:
    """Whatever is left of a small space, in order: only here can a search say that nothing is left."""
    for schedule in family.ground.every(EVERY_MOST):
        if batch.full:
            return
        if batch.is_free(schedule):
            batch.add(family, schedule, ProposalSource.RANDOM)
