"""Where may a search step: which schedules are legal, allowed by the job, and not tried yet?"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rooftile.problem import Problem

from search_space.device import Device
from search_space.family import Family
from search_space.schedule import GROUPS, Schedule, Value

# Single steps from a point number about 50; past them, random pairs and triples of steps are tried.
PAIR_TRIES = 400
DRAWS = 60
DENSE = 0.2
WALK = 80
PAIRS = 0.3
STRIDE = 6
STUCK_MOST = 2000
KNOWN_MOST = 20_000
"""Points kept with their judgement; the schedule of a legal one has some 2 KB."""

Place = tuple[int, ...]
"""A point of the space: where each parameter's value stands among its choices. A search handles hundreds for
each schedule that it proposes, and most are not legal."""


class Ground:
    """The legal, allowed schedules of one family for one problem on one device."""

    def __init__(
        self, family: Family, problem: Problem, device: Device, limits: Mapping[str, Sequence[Value]]
    ) -> None:
        self.family = family
        self.problem = problem
        self.device = device
        self.parameters = family.parameters(problem, device)
        self.choices: dict[str, tuple[Value, ...]] = {}
        for parameter in self.parameters:
            allowed = limits.get(parameter.name)
            self.choices[parameter.name] = tuple(
                c for c in parameter.choices if allowed is None or _has(allowed, c)
            )
        self.limited = any(len(self.choices[p.name]) < len(p.choices) for p in self.parameters)
        self.barren = not all(self.choices.values())
        """The limits leave a parameter without any choice."""
        self._names = list(self.choices)
        self._find = [{(type(c), c): i for i, c in enumerate(choices)} for choices in self.choices.values()]
        self._pairs = [[(name, c) for c in choices] for name, choices in self.choices.items()]
        at = {name: i for i, name in enumerate(self._names)}
        self._layout = [
            (g, [at[name] for name in sorted(p.name for p in self.parameters if p.group == g)])
            for g in GROUPS
        ]
        self._ordered = [
            all(isinstance(c, int) and not isinstance(c, bool) for c in choices)
            for choices in self.choices.values()
        ]
        self._known: dict[Place, Schedule | None] = {}
        self._starts: list[Schedule] | None = None
        self._legal_share: float | None = None

    def make(self, values: Mapping[str, Value]) -> Schedule:
        """The schedule of these values, each a choice of its parameter."""
        place = self._place(values)
        assert place is not None
        return self._made(place)

    def forget(self) -> None:
        """Let go of the points that were judged."""
        self._known.clear()

    def legal(self, schedule: Schedule) -> bool:
        """Right family, only choices there are and the job allows, and no rule broken."""
        values = schedule.values()
        if schedule.family != self.family.name or values.keys() != self.choices.keys():
            return False
        place = self._place(values)
        return place is not None and self._sound(place) is not None

    def _place(self, values: Mapping[str, Value]) -> Place | None:
        """Where these values stand; None where one is no choice. By type too: 1 == True."""
        found = [
            find.get((type(value := values[name]), value))
            for name, find in zip(self._names, self._find, strict=True)
        ]
        place = tuple(i for i in found if i is not None)
        return place if len(place) == len(found) else None

    def _made(self, place: Place) -> Schedule:
        """As Schedule.of would, but for the checks of names and values, which are the parameters' own."""
        pairs = [mine[i] for mine, i in zip(self._pairs, place, strict=True)]
        groups = tuple([(g, tuple([pairs[i] for i in of_group])) for g, of_group in self._layout])
        return Schedule(self.family.name, groups)

    def _sound(self, place: Place) -> Schedule | None:
        """The schedule there, where it breaks no rule. A search meets the neighbours of its best again and
        again, and making and judging one takes longer than finding it here."""
        try:
            return self._known[place]
        except KeyError:
            pass
        schedule = self._made(place)
        known = None if self.family.check(self.problem, self.device, schedule) else schedule
        if len(self._known) >= KNOWN_MOST:
            self._known.clear()
        self._known[place] = known
        return known

    def predict(self, schedule: Schedule) -> float:
        """Microseconds by the family's cost model."""
        return self.family.predict(self.problem, self.device, schedule).time_us

    def fitted(self, schedule: Schedule) -> dict[str, Value] | None:
        """The schedule's values where they are choices here, else the nearest choices; None: not ours."""
        if schedule.family != self.family.name or self.barren:
            return None
        return self.nearest(schedule.values())

    def nearest(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """A value for every parameter: the given one where it is a choice here, else the nearest choice."""
        return {name: _nearest(choices, values.get(name)) for name, choices in self.choices.items()}

    def why_nothing(self) -> str:
        """Where nothing is legal within the limits: what is wrong with the schedule that keeps them and is
        nearest to the default."""
        empty = [name for name, choices in self.choices.items() if not choices]
        if empty:
            return f"no value of {', '.join(empty)} is left"
        nearest = self.make(self.nearest(self.family.default(self.problem, self.device).values()))
        broken = self.family.check(self.problem, self.device, nearest)
        return "; ".join(violation.message for violation in broken) or "none was found near the default"

    def draw(self, rng: random.Random) -> Schedule | None:
        """A legal schedule, any of them with some chance; None where none was found."""
        if self.barren:
            return None
        for _ in range(DRAWS if self.dense() else 0):
            if (schedule := self._sound(self._any(rng))) is not None:
                return schedule
        # Few points are legal: walk away from a good start.
        return next(itertools.islice(self.wander(rng), STRIDE, None), None)

    def some(self, rng: random.Random, stride: int = STRIDE) -> Iterator[Schedule]:
        """Legal schedules from all over the space, with repeats; where few points are legal each `stride`
        steps of a walk from the one before."""
        if not self.dense():
            yield from itertools.islice(self.wander(rng), 0, None, stride)
            return
        while (schedule := self.draw(rng)) is not None:
            yield schedule

    def wander(self, rng: random.Random) -> Iterator[Schedule]:
        """Legal schedules, each a step or two from the one before, now and then from a start again; no end
        but where no step is legal. A tenth of the cost of drawing where few points are legal."""
        starts = self.known()
        movable = [i for i, pairs in enumerate(self._pairs) if len(pairs) > 1]
        if not starts or not movable:
            yield from starts
            return
        places = [place for s in starts if (place := self._place(s.values())) is not None]
        stuck = 0
        while stuck < STUCK_MOST:
            place = rng.choice(places)
            for _ in range(WALK):
                stuck += 1
                moved = list(place)
                for _ in range(1 + (rng.random() < PAIRS)):
                    i = rng.choice(movable)
                    moved[i] = rng.randrange(len(self._pairs[i]))
                there = tuple(moved)
                if (schedule := self._sound(there)) is not None:
                    place, stuck = there, 0
                    yield schedule

    def _any(self, rng: random.Random) -> Place:
        return tuple([rng.randrange(len(pairs)) for pairs in self._pairs])

    def dense(self) -> bool:
        """So many points are legal that drawing until one is found is quick."""
        if self._legal_share is None:
            rng = random.Random(0)
            self._legal_share = sum(self._sound(self._any(rng)) is not None for _ in range(DRAWS)) / DRAWS
        return self._legal_share > DENSE

    def known(self) -> list[Schedule]:
        """The family's good starts; under the job's limits the nearest legal ones."""
        if self._starts is None:
            given = self.family.candidates(self.problem, self.device)
            given = [self.family.default(self.problem, self.device), *given]
            near = (self.fitted(s) for s in given)
            found = (next(self.around(v, random.Random(0)), None) for v in near if v is not None)
            self._starts = [s for s in found if s is not None]
        return self._starts

    def _steps(self, place: Place) -> list[tuple[float, int, int]]:
        """Every change of one parameter: (how far, which, to which choice). A rank is half a step, a label
        one."""
        return [
            (min(2.0, 0.5 * abs(to - here)) if self._ordered[which] else 1.0, which, to)
            for which, here in enumerate(place)
            for to in range(len(self._pairs[which]))
            if to != here
        ]

    def around(self, values: Mapping[str, Value], rng: random.Random) -> Iterator[Schedule]:
        """Legal schedules from near to far: every single step by distance, then random pairs and triples.

        `values`, each a choice here, come first where they are legal. Equal distances come in random order.
        """
        place = self._place(values)
        assert place is not None
        if (start := self._sound(place)) is not None:
            yield start
        steps = self._steps(place)
        rng.shuffle(steps)
        steps.sort(key=lambda step: step[0])
        for _, which, to in steps:
            if (schedule := self._sound((*place[:which], to, *place[which + 1 :]))) is not None:
                yield schedule
        if len(steps) < 2:
            return
        for attempt in range(PAIR_TRIES):
            moved = list(place)
            for _, which, to in rng.sample(steps, 2 if attempt % 3 else min(3, len(steps))):
                moved[which] = to
            if (schedule := self._sound(tuple(moved))) is not None:
                yield schedule

    def every(self, most: int) -> Iterator[Schedule]:
        """All legal schedules in a fixed order, looking at no more than `most` points: small spaces only."""
        places = itertools.product(*(range(len(pairs)) for pairs in self._pairs))
        for place in itertools.islice(places, most):
            if (schedule := self._sound(place)) is not None:
                yield schedule


def _has(choices: Iterable[Value], value: Value) -> bool:
    return any(type(c) is type(value) and c == value for c in choices)


def _nearest(choices: Sequence[Value], value: Value | None) -> Value:
    """`value` where it is a choice, else the nearest number, else the first choice."""
    if value is not None and _has(choices, value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        numbers = [c for c in choices if isinstance(c, int) and not isinstance(c, bool)]
        if numbers:
            target = value
            return min(numbers, key=lambda c: (abs(c - target), c))
    return choices[0]
