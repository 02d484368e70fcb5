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
"""Schedules kept with their judgement, some 2 KB each."""


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
        self._layout = [(g, sorted(p.name for p in self.parameters if p.group == g)) for g in GROUPS]
        self._known: dict[tuple[object, ...], tuple[Schedule, bool]] = {}
        self._starts: list[Schedule] | None = None
        self._legal_share: float | None = None

    def make(self, values: Mapping[str, Value]) -> Schedule:
        """The schedule of these values, each a choice of its parameter; made once and kept for a while."""
        return self._judged(values)[0]

    def forget(self) -> None:
        """Let go of the schedules that were judged."""
        self._known.clear()

    def legal(self, schedule: Schedule) -> bool:
        """Right family, only choices there are and the job allows, and no rule broken."""
        values = schedule.values()
        if schedule.family != self.family.name or values.keys() != self.choices.keys():
            return False
        if not all(_has(self.choices[name], value) for name, value in values.items()):
            return False
        return self._judged(values)[1]

    def _sound(self, values: Mapping[str, Value]) -> Schedule | None:
        """The schedule of choices there are, where it breaks no rule."""
        schedule, sound = self._judged(values)
        return schedule if sound else None

    def _judged(self, values: Mapping[str, Value]) -> tuple[Schedule, bool]:
        """The schedule, and whether it breaks no rule. A search meets the neighbours of its best again and
        again, and making and judging one takes longer than finding it here."""
        point = tuple(values[name] for name in self.choices)
        point += tuple(type(value).__name__ for value in point)  # 1 == True
        known = self._known.get(point)
        if known is None:
            # as Schedule.of would, but for the checks of names and values, which are the parameters' own
            groups = tuple(
                [(g, tuple([(name, values[name]) for name in names])) for g, names in self._layout]
            )
            schedule = Schedule(self.family.name, groups)
            known = schedule, not self.family.check(self.problem, self.device, schedule)
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            self._known[point] = known
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
        names = [name for name, choices in self.choices.items() if len(choices) > 1]
        if not starts or not names:
            yield from starts
            return
        stuck = 0
        while stuck < STUCK_MOST:
            values = rng.choice(starts).values()
            for _ in range(WALK):
                stuck += 1
                moved = dict(values)
                for name in rng.sample(names, min(len(names), 1 + (rng.random() < PAIRS))):
                    moved[name] = rng.choice(self.choices[name])
                if (schedule := self._sound(moved)) is not None:
                    values, stuck = moved, 0
                    yield schedule

    def _any(self, rng: random.Random) -> dict[str, Value]:
        return {name: rng.choice(choices) for name, choices in self.choices.items()}

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

    def steps(self, values: Mapping[str, Value]) -> list[tuple[float, str, Value]]:
        """Every change of one parameter: (how far, name, value). A rank is half a step, a label one."""
        found: list[tuple[float, str, Value]] = []
        for name, choices in self.choices.items():
            here = _find(choices, values[name])
            ordered = all(isinstance(c, int) and not isinstance(c, bool) for c in choices)
            for index, choice in enumerate(choices):
                if index != here:
                    far = 1.0 if not ordered or here is None else min(2.0, 0.5 * abs(index - here))
                    found.append((far, name, choice))
        return found

    def around(self, values: Mapping[str, Value], rng: random.Random) -> Iterator[Schedule]:
        """Legal schedules from near to far: every single step by distance, then random pairs and triples.

        `values` itself comes first where it is legal. Equal distances come in random order.
        """
        if (start := self._sound(values)) is not None:
            yield start
        steps = self.steps(values)
        rng.shuffle(steps)
        steps.sort(key=lambda step: step[0])
        for _, name, value in steps:
            if (schedule := self._sound({**values, name: value})) is not None:
                yield schedule
        if len(steps) < 2:
            return
        for attempt in range(PAIR_TRIES):
            picked = rng.sample(steps, 2 if attempt % 3 else min(3, len(steps)))
            moved = {**values, **{name: value for _, name, value in picked}}
            if (schedule := self._sound(moved)) is not None:
                yield schedule

    def every(self, most: int) -> Iterator[Schedule]:
        """All legal schedules in a fixed order, looking at no more than `most` points: small spaces only."""
        names = list(self.choices)
        for values in itertools.islice(itertools.product(*self.choices.values()), most):
            if (schedule := self._sound(dict(zip(names, values, strict=True)))) is not None:
                yield schedule


def _has(choices: Iterable[Value], value: Value) -> bool:
    return any(type(c) is type(value) and c == value for c in choices)


def _find(choices: Sequence[Value], value: Value) -> int | None:
    return next((i for i, c in enumerate(choices) if type(c) is type(value) and c == value), None)


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
