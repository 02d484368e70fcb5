"""Which schedules of one family are tried next, once the known starts are used up?

Candidates come from TPE (moved to the nearest legal unseen point), from steps around the best, from the
cost model's ranking and from chance; the surrogate takes those with the greatest expected improvement, each
knowing of the ones before. Now and then chance alone decides, so that no region is left out for ever.

Steps around a schedule and draws by chance are made once and kept (family_search.py): what is chosen anew for
each batch is the choice among them. `python -m bench.search_quality` says how near that comes to the best.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

from search_space.schedule import Schedule
from service.jobs.proposing import Ask, Tried
from service.search.batch import Batch
from service.search.family_search import FamilySearch, log_time
from service.search.surrogate import Surrogate
from service.search.tpe import Round, seed_of
from service.store.enums import ProposalSource

RANDOM_SHARE = 0.05
BASES = 3
# A study is asked so often for a batch: an answer takes a third of all the time for it.
TPE_ASKS = 2
# Candidates: a bigger batch pays for a bigger pool, up to this.
AROUND_EACH, AROUND_MORE, AROUND_MOST = 20, 20, 100
BY_CHANCE, CHANCE_MORE, CHANCE_MOST = 8, 10, 48
BY_MODEL = 8


def explore(ask: Ask, family: FamilySearch, batch: Batch, count: int) -> None:
    """Add up to `count` schedules of one family to the batch."""
    if count <= 0:
        return
    done = [row for row in ask.done if row.schedule.family == family.name]
    flying = [row for row in ask.in_flight if row.schedule.family == family.name]
    flying += [Tried(p.schedule, p.schedule.key) for p in batch.proposals if p.schedule.family == family.name]
    family.encode([*done, *flying])
    bases = _bases(family, done)
    known = family.surrogate(done, flying)
    if known is None:
        _before_learning(family, batch, bases, count)
        return
    rows = [found for row in done if (found := family.row(row)) is not None]
    busy = [c for row in flying if (c := family.codes(row)) is not None]
    seed = seed_of(family.seed, len(ask.done), len(ask.in_flight))
    with family.tpe.round(rows, busy, seed) as asking:
        pool = _pool(family, batch, bases, asking, count, len(done))
    _choose(family, batch, known, pool, count)


def _bases(family: FamilySearch, done: Sequence[Tried]) -> list[Schedule]:
    """The fastest so far."""
    timed = [(log, row.key, row.schedule) for row in done if (log := log_time(row.time_us)) is not None]
    return [schedule for _, _, schedule in heapq.nsmallest(BASES, timed)]


def _before_learning(family: FamilySearch, batch: Batch, bases: Sequence[Schedule], count: int) -> None:
    """Too few times to learn from: the cost model's ranking, a step from the best, or chance."""
    for turn in range(count):
        found: Schedule | None = None
        if turn % 2 and bases:
            found, source = batch.pick(family, family.near(bases[0])), ProposalSource.NEIGHBOUR
        if found is None:
            found, source = batch.pick(family, family.ranked()), ProposalSource.COST_MODEL
        if found is None:
            drawn = itertools.islice(family.ground.some(batch.rng), BY_CHANCE)
            found, source = batch.pick(family, drawn), ProposalSource.RANDOM
        if found is None:
            return
        batch.add(family, found, source)


class _Pool:
    """Candidates, each under the source that named it first."""

    def __init__(self, batch: Batch) -> None:
        self.of: dict[Schedule, ProposalSource] = {}
        self._batch = batch

    def lacks(self, schedule: Schedule) -> bool:
        """Neither in the pool nor tried."""
        return schedule not in self.of and self._batch.is_free(schedule)

    def add(self, schedules: Iterable[Schedule], source: ProposalSource, most: int) -> None:
        for schedule in schedules:
            if most <= 0:
                return
            if self.lacks(schedule):
                self.of[schedule] = source
                most -= 1


def _pool(
    family: FamilySearch,
    batch: Batch,
    bases: Sequence[Schedule],
    asking: Round | None,
    count: int,
    before: int,
) -> _Pool:
    ground, rng = family.ground, batch.rng
    pool = _Pool(batch)
    for _ in range(min(count, TPE_ASKS) if asking is not None else 0):
        assert asking is not None
        codes = asking.ask()
        start = ground.nearest(family.coding.decode(codes))
        pool.add(ground.around(start, rng), ProposalSource.TPE, 1)
        asking.note(codes)
    for base in bases:
        most = min(AROUND_EACH + AROUND_MORE * count, AROUND_MOST)
        near = [schedule for schedule in family.near(base) if pool.lacks(schedule)]
        nearest, rest = near[: most // 2], near[most // 2 :]
        pool.add(nearest, ProposalSource.NEIGHBOUR, most)
        pool.add(rng.sample(rest, min(most // 2, len(rest))), ProposalSource.NEIGHBOUR, most)
    pool.add(family.ranked(), ProposalSource.COST_MODEL, BY_MODEL)
    most = min(BY_CHANCE + CHANCE_MORE * count, CHANCE_MOST)
    drawn = family.drawn(before)
    pool.add(rng.sample(drawn, min(most, len(drawn))), ProposalSource.RANDOM, most)
    return pool


def _choose(family: FamilySearch, batch: Batch, known: Surrogate, pool: _Pool, count: int) -> None:
    """The greatest expected improvement, then the greatest after that one is believed, and so on."""
    entries = [
        (schedule, source, point)
        for schedule, source in pool.of.items()
        if (point := family.point(schedule)) is not None
    ]
    candidates = known.of([point for _, _, point in entries])
    left = dict.fromkeys(range(len(entries)))
    for turn in range(count):
        if not left:
            return
        by_chance = [i for i in left if entries[i][1] is ProposalSource.RANDOM]
        if by_chance and batch.rng.random() < RANDOM_SHARE:
            index = batch.rng.choice(by_chance)
        else:
            gains = candidates.improvement().tolist()
            index = max(left, key=lambda i: (gains[i], entries[i][2].codes))
        del left[index]
        schedule, source, _ = entries[index]
        batch.add(family, schedule, source)
        if turn < count - 1:
            candidates.believe(index)
