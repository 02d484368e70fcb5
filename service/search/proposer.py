"""Which schedules does a search try next?

Trial 0 is the default. A fifth of the budget goes to known starts (start.py); then come TPE's suggestions,
each moved to the nearest legal unseen point, now and then a random one, and from a quarter of the budget on
steps around the best. What is proposed depends on the Ask alone: the state kept between calls only saves
time and is rebuilt from the rows after a crash.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.jobs.errors import NoLegalSchedule
from service.jobs.proposing import Ask, Proposal, Tried
from service.search.coding import Codes, Coding
from service.search.ground import Ground
from service.search.start import by_model, fitted, in_turns, known_starts
from service.search.tpe import Round, Row, Tpe, seed_of
from service.store.enums import ProposalSource

SEARCHES_KEPT = 32
# Shares were chosen on recorded full spaces of GPU kernels (two GEMM-like, two convolutions, one other), in
# batches of 4: best-so-far over the optimum after 100 trials is 0.94; without the steps around the best 0.92,
# with half as many random points 0.93, with two bases instead of three 0.91.
START_SHARE = 0.2
START_LEAST = 4
RANDOM_SHARE = 0.1
REFINE_FROM = 0.25
REFINE_SHARE = 0.5
BASES = 3
# Candidates looked at for one that is not beside another of the same batch.
APART_TRIES = 24
APART = 1.0
OTHER_FAMILIES_SHARE = 0.3
EVERY_MOST = 20_000


@dataclass
class _FamilySearch:
    """What is kept about one family of one search."""

    ground: Ground
    known: list[Schedule]
    coding: Coding
    seed: int
    tpe: Tpe
    model: list[Schedule] | None = None
    """The cost model's ranking; made when it is first needed, because it costs a second."""
    encoded: dict[str, Codes | None] = field(default_factory=dict)

    def ranked(self) -> list[Schedule]:
        if self.model is None:
            self.model = by_model(self.ground, self.coding, random.Random(self.seed))
        return self.model

    def encode(self, rows: Iterable[Tried]) -> None:
        """Codes of rows not seen yet; a value that no choice has any more widens the coding."""
        fresh = [row for row in rows if row.key not in self.encoded]
        live = self.ground.choices
        wider = Coding.of(
            {p.name: live[p.name] for p in self.ground.parameters},
            chain(self._dead_rows(), (row.schedule.values() for row in fresh)),
        )
        if wider != self.coding:
            self.coding, self.tpe = wider, Tpe(wider)
            self.encoded.clear()
            fresh = list(rows)
        for row in fresh:
            self.encoded[row.key] = self.coding.encode(row.schedule.values())

    def _dead_rows(self) -> Iterator[dict[str, int | str | bool]]:
        """One row for each choice the coding has beyond the live ones, so that it never shrinks."""
        for axis in self.coding.axes:
            for index, choice in enumerate(axis.choices):
                if index not in axis.live:
                    yield {axis.name: choice}


class Proposer:
    """Implements `service.jobs.proposing.Proposer` with Optuna."""

    def __init__(self, lookup: Callable[[str], Family] = get_family) -> None:
        self._lookup = lookup
        self._searches: OrderedDict[str, dict[str, _FamilySearch]] = OrderedDict()

    def forget(self, name: str) -> None:
        self._searches.pop(name, None)

    def propose(self, ask: Ask) -> list[Proposal]:
        families = self._families(ask)
        batch = _Batch(ask)
        for source, family, schedule in self._starts(ask, families):
            if batch.full or batch.count >= max(START_LEAST, int(START_SHARE * ask.trials)):
                break
            if batch.free(schedule) and family.ground.legal(schedule):
                batch.add(family, schedule, source)
        slots = _slots(ask, families, ask.n - len(batch.proposals), batch.rng)
        for name, count in slots.items():
            self._explore(ask, families[name], batch, count)
        for family in families.values():
            if batch.full:
                break
            _sweep(family, batch)
        return batch.proposals

    # ------------------------------------------------------------ what is kept

    def _families(self, ask: Ask) -> dict[str, _FamilySearch]:
        found = self._searches.get(ask.name)
        if found is None:
            found = {}
            for name in ask.families:
                ground = Ground(self._lookup(name), ask.problem, ask.device, ask.limits)
                seed = seed_of(ask.seed, ask.problem.key, name)
                known = known_starts(ground, random.Random(seed))
                if known:
                    coding = Coding.of(ground.choices, [])
                    found[name] = _FamilySearch(ground, known, coding, seed, Tpe(coding))
            if not found:
                raise NoLegalSchedule(
                    f"no legal schedule of {', '.join(ask.families)} keeps the limits of the job"
                )
            self._searches[ask.name] = found
            while len(self._searches) > SEARCHES_KEPT:
                self._searches.popitem(last=False)
        self._searches.move_to_end(ask.name)
        return found

    def _starts(
        self, ask: Ask, families: dict[str, _FamilySearch]
    ) -> Iterator[tuple[ProposalSource, _FamilySearch, Schedule]]:
        """Starting schedules of all families in turns, the first family's default first."""
        if len(ask.done) + len(ask.in_flight) >= max(START_LEAST, int(START_SHARE * ask.trials)):
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

    # ------------------------------------------------------------ after the starts

    def _explore(self, ask: Ask, family: _FamilySearch, batch: _Batch, count: int) -> None:
        """`count` schedules of one family by TPE, at random, or around the best."""
        if count <= 0:
            return
        name = family.ground.family.name
        done = [row for row in ask.done if row.schedule.family == name]
        flying = [row for row in ask.in_flight if row.schedule.family == name]
        family.encode([*done, *flying])
        rows = [Row(c, _log(row.time_us)) for row in done if (c := family.encoded[row.key]) is not None]
        busy = [c for row in flying if (c := family.encoded[row.key]) is not None]
        timed = sorted((row.time_us, row.key, row.schedule) for row in done if row.time_us is not None)
        bases = [schedule for _, _, schedule in timed[:BASES]]
        seed = seed_of(family.seed, len(ask.done), len(ask.in_flight))
        with family.tpe.round(rows, busy, seed) as asking:
            for _ in range(count):
                found = self._next(ask, family, batch, bases, asking)
                if found is None:
                    return
                schedule, source = found
                batch.add(family, schedule, source)
                codes = family.coding.encode(schedule.values())
                if asking is not None and codes is not None:
                    asking.note(codes)

    def _next(
        self, ask: Ask, family: _FamilySearch, batch: _Batch, bases: list[Schedule], asking: Round | None
    ) -> tuple[Schedule, ProposalSource] | None:
        ground, rng = family.ground, batch.rng
        dice = rng.random()
        if dice >= RANDOM_SHARE:
            refine = batch.count >= REFINE_FROM * ask.trials
            if bases and (asking is None or (refine and rng.random() < REFINE_SHARE)):
                # The better a base, the more often it is stepped from.
                base = bases[min(rng.randrange(len(bases)), rng.randrange(len(bases)))]
                found = batch.pick(family, ground.around(base.values(), rng))
                if found is not None:
                    return found, ProposalSource.NEIGHBOUR
            if asking is not None:
                values = family.coding.decode(asking.ask())
                start = ground.fitted(bases[0].replace(**values) if bases else ground.make(values))
                if start is not None:
                    found = batch.pick(family, ground.around(start, rng))
                    if found is not None:
                        return found, ProposalSource.TPE
            else:
                found = batch.pick(family, family.ranked())
                if found is not None:
                    return found, ProposalSource.COST_MODEL
        drawn = (ground.draw(rng) for _ in range(APART_TRIES))
        found = batch.pick(family, (schedule for schedule in drawn if schedule is not None))
        return None if found is None else (found, ProposalSource.RANDOM)


class _Lazy(list[Schedule]):
    """The cost model's ranking, made when the first of it is asked for."""

    def __init__(self, family: _FamilySearch) -> None:
        super().__init__()
        self._family = family

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._family.ranked())


class _Batch:
    """The proposals of one call, and which schedules they may not be."""

    def __init__(self, ask: Ask) -> None:
        self.rng = random.Random(seed_of(ask.seed, ask.problem.key, len(ask.done), len(ask.in_flight)))
        self.proposals: list[Proposal] = []
        self._n = ask.n
        self._before = len(ask.done) + len(ask.in_flight)
        self._taken = {row.key for row in chain(ask.done, ask.in_flight)} | ask.skip

    @property
    def full(self) -> bool:
        return len(self.proposals) >= self._n

    @property
    def count(self) -> int:
        """Trials so far, with this batch."""
        return self._before + len(self.proposals)

    def free(self, schedule: Schedule) -> bool:
        return schedule.key not in self._taken

    def pick(self, family: _FamilySearch, schedules: Iterable[Schedule]) -> Schedule | None:
        """The first free one that is not beside another of this batch; else the first free one."""
        second: Schedule | None = None
        others = [
            codes
            for p in self.proposals
            if p.schedule.family == family.ground.family.name
            and (codes := family.coding.encode(p.schedule.values())) is not None
        ]
        tries = 0
        for schedule in schedules:
            if not self.free(schedule):
                continue
            codes = family.coding.encode(schedule.values())
            if codes is None or all(family.coding.distance(codes, other) >= APART for other in others):
                return schedule
            second = second or schedule
            tries += 1
            if tries >= APART_TRIES:
                break
        return second

    def add(self, family: _FamilySearch, schedule: Schedule, source: ProposalSource) -> None:
        self._taken.add(schedule.key)
        self.proposals.append(Proposal(schedule, source, family.ground.predict(schedule)))


def _slots(
    ask: Ask, families: dict[str, _FamilySearch], count: int, rng: random.Random
) -> dict[str, int]:
    """How many of the next proposals go to each family: most to the one with the best time."""
    names = list(families)
    if len(names) == 1 or count <= 0:
        return {names[0]: max(0, count)}
    timed = [(row.time_us, row.schedule.family) for row in ask.done if row.time_us is not None]
    best = min(timed)[1] if timed else names[0]
    others = [name for name in names if name != best]
    slots = dict.fromkeys(names, 0)
    for _ in range(count):
        leader = best in families and (not others or rng.random() >= OTHER_FAMILIES_SHARE)
        slots[best if leader else rng.choice(others)] += 1
    return slots


def _sweep(family: _FamilySearch, batch: _Batch) -> None:
    """Whatever is left of a small space, in order: only here can a search say that nothing is left."""
    for schedule in family.ground.every(EVERY_MOST):
        if batch.full:
            return
        if batch.free(schedule):
            batch.add(family, schedule, ProposalSource.RANDOM)


def _log(time_us: float | None) -> float | None:
    return None if time_us is None or not time_us > 0 or not math.isfinite(time_us) else math.log(time_us)
