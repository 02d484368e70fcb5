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
from service.search.ground import Ground
from service.search.start import SCORED, fitted, in_turns, known_starts
from service.search.tpe import seed_of
from service.store.enums import ProposalSource

SEARCHES_KEPT = 256
SEARCHES_WHOLE = 32
"""Of those that were asked for last all is kept (some MB each), of the others the cost model's ranking."""
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
                ground = Ground(self._lookup(name), ask.problem, ask.device, ask.limits)
                seed = seed_of(ask.seed, ask.problem.key, name)
                known = known_starts(ground, random.Random(seed))
                if known:
                    found[name] = FamilySearch(ground, known, seed, self._scored)
                else:
                    barren.append(f"{name}: {ground.why_nothing()}")
            if not found:
                raise NoLegalSchedule(f"no legal schedule keeps the limits of the job ({'; '.join(barren)})")
            self._searches[ask.name] = found
            while len(self._searches) > SEARCHES_KEPT:
                self._searches.popitem(last=False)
        self._searches.move_to_end(ask.name)
        if len(self._searches) > SEARCHES_WHOLE:
            # one at a time goes over the edge
            late = next(itertools.islice(reversed(self._searches.values()), SEARCHES_WHOLE, None))
            for family in late.values():
                family.rest()
        return found

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
            queues.append((family, in_turns(family.known, _Lazy(family), near)))
        while queues:
            for entry in list(queues):
                family, queue = entry
                start = next(queue, None)
                if start is None:
                    queues.remove(entry)
                else:
                    yield start[0], family, start[1]


class _Lazy(list[Schedule]):
    """The cost model's ranking, made when the first of it is asked for."""

    def __init__(self, family: FamilySearch) -> None:
        super().__init__()
        self._family = family

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._family.ranked())


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
