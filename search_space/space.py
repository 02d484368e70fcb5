"""Which schedules are legal for a problem on a device, and how does one walk among them?

A space can have millions of points of which few are legal, so nothing here walks the product: points are
drawn and tested, and where that fails, moved parameter by parameter within what is legal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from random import Random

from rooftile.problem import Problem

from search_space.device import Device
from search_space.errors import EmptySpace
from search_space.family import Family, Parameter
from search_space.schedule import Schedule, Value
from search_space.violation import Violation

_REJECTIONS = 100
"""Draws before the slower way: enough where over about 5 % of the points are legal."""
_SWEEPS = 2
_EXHAUSTIVE = 100_000
"""Products up to this size are listed in order; larger ones are explored from the good starts."""


class Space:
    """The legal schedules of one family for one problem on one device. Choice is made with the given
    random.Random only, so equal seeds give equal walks."""

    def __init__(self, family: Family, problem: Problem, device: Device) -> None:
        self.family = family
        self.problem = problem
        self.device = device
        self.parameters: tuple[Parameter, ...] = family.parameters(problem, device)
        self.by_name = {p.name: p for p in self.parameters}
        if len(self.by_name) != len(self.parameters):
            raise ValueError(f"{family.name}: two parameters share a name")
        self._choices = {p.name: {(type(c), c) for c in p.choices} for p in self.parameters}
        self._starts: tuple[Schedule, ...] | None = None

    @property
    def size(self) -> int:
        """Points of the whole product, legal or not."""
        return prod(len(p.choices) for p in self.parameters)

    def schedule(self, values: dict[str, Value]) -> Schedule:
        """The schedule with these values, one for each parameter."""
        return Schedule.of(self.family.name, self.parameters, values)

    def check(self, schedule: Schedule) -> list[Violation]:
        """Why `schedule` is not a point of this space; empty: it is a legal one. A schedule of another
        version of the space, with other names or choices, is answered in words as well."""
        violations = self.foreign(schedule)
        return violations or self.family.check(self.problem, self.device, schedule)

    def foreign(self, schedule: Schedule) -> list[Violation]:
        """What of `schedule` this space does not have at all: another family, unknown names or choices."""
        if schedule.family != self.family.name:
            numbers = {"family": schedule.family, "space": self.family.name}
            return [Violation("other_family", f"the schedule is one of {schedule.family}", numbers)]
        found: list[Violation] = []
        for group, pairs in schedule.groups:
            for name, value in pairs:
                p = self.by_name.get(name)
                if p is None or p.group != group:
                    found.append(Violation("unknown_parameter", f"{group}.{name} is no parameter here", {}))
                elif why := p.why_left_out(value):
                    message = f"{name} = {value} is left out: {why}"
                    found.append(Violation("left_out", message, {name: str(value)}))
                elif (type(value), value) not in self._choices[name]:
                    listed = ", ".join(map(str, p.choices))
                    message = f"{name} = {value} is not one of {listed}"
                    found.append(Violation("unknown_choice", message, {name: str(value)}))
        for name in self.by_name:
            if name not in schedule:
                found.append(Violation("missing_parameter", f"{name} has no value", {}))
        return found

    def legal(self, schedule: Schedule) -> bool:
        """True when nothing is wrong with it."""
        return not self.check(schedule)

    def starts(self) -> tuple[Schedule, ...]:
        """The family's good starts that are legal points here, the default first."""
        if self._starts is None:
            given = [self.family.default(self.problem, self.device)]
            given += self.family.candidates(self.problem, self.device)
            self._starts = tuple(s for s in dict.fromkeys(given) if self.legal(s))
        return self._starts

    def random(self, rng: Random) -> Schedule:
        """A random legal schedule. EmptySpace when none was found."""
        for _ in range(_REJECTIONS):
            schedule = self.schedule({p.name: rng.choice(p.choices) for p in self.parameters})
            if not self.family.check(self.problem, self.device, schedule):
                return schedule
        starts = self.starts()
        if not starts:
            raise EmptySpace(self.family.name, self.check(self.family.default(self.problem, self.device)))
        return self._shuffled(starts[rng.randrange(len(starts))], rng)

    def _shuffled(self, schedule: Schedule, rng: Random) -> Schedule:
        """Walk away from a legal point: each parameter in turn takes a random choice among those that are
        legal with the rest as it is; then pairs, for parameters that can only move together."""
        for _ in range(_SWEEPS):
            for p in rng.sample(self.parameters, len(self.parameters)):
                schedule = self._moved(schedule, (p,), rng) or schedule
            for _ in self.parameters:
                if len(self.parameters) > 1:
                    schedule = self._moved(schedule, tuple(rng.sample(self.parameters, 2)), rng) or schedule
        return schedule

    def _moved(self, schedule: Schedule, parameters: tuple[Parameter, ...], rng: Random) -> Schedule | None:
        options = list(itertools.product(*(p.choices for p in parameters)))
        for values in rng.sample(options, min(len(options), 16)):
            moved = schedule.replace(**{p.name: v for p, v in zip(parameters, values, strict=True)})
            if not self.family.check(self.problem, self.device, moved):
                return moved
        return None

    def neighbours(
        self, schedule: Schedule, rng: Random | None = None, limit: int | None = None
    ) -> list[Schedule]:
        """Legal schedules with one parameter moved, then with two, at most `limit`. Without `rng` in a fixed
        order, nearest choices first; with it in random order (all single moves still before the pairs)."""
        return list(itertools.islice(self.iter_neighbours(schedule, rng), limit))

    def iter_neighbours(self, schedule: Schedule, rng: Random | None = None) -> Iterator[Schedule]:
        """As neighbours, one at a time."""
        moves = [(p, c) for p in self.parameters for c in self._nearest_first(p, schedule)]
        if rng is not None:
            rng.shuffle(moves)
        for p, choice in moves:
            moved = schedule.replace(**{p.name: choice})
            if not self.family.check(self.problem, self.device, moved):
                yield moved
        pairs: Iterator[tuple[tuple[Parameter, Value], tuple[Parameter, Value]]]
        pairs = itertools.combinations(moves, 2)
        if rng is not None:
            drawn = list(pairs)
            rng.shuffle(drawn)
            pairs = iter(drawn)
        for (p, choice), (q, other) in pairs:
            if p.name == q.name:
                continue
            moved = schedule.replace(**{p.name: choice, q.name: other})
            if not self.family.check(self.problem, self.device, moved):
                yield moved

    @staticmethod
    def _nearest_first(p: Parameter, schedule: Schedule) -> list[Value]:
        now = schedule[p.name]
        at = next((i for i, c in enumerate(p.choices) if c == now and type(c) is type(now)), 0)
        order = sorted(range(len(p.choices)), key=lambda i: (abs(i - at), i))
        return [p.choices[i] for i in order if i != at]

    def enumerate_legal(self, limit: int) -> Iterator[Schedule]:
        """Up to `limit` different legal schedules: all of them, in order, where the product is small; else
        those reached from the good starts by single moves, nearest first."""
        return itertools.islice(self._in_order() if self.size <= _EXHAUSTIVE else self._reached(), limit)

    def _in_order(self) -> Iterator[Schedule]:
        names = [p.name for p in self.parameters]
        for values in itertools.product(*(p.choices for p in self.parameters)):
            schedule = self.schedule(dict(zip(names, values, strict=True)))
            if not self.family.check(self.problem, self.device, schedule):
                yield schedule

    def _reached(self) -> Iterator[Schedule]:
        queue = list(self.starts())
        seen = set(queue)
        for schedule in queue:  # grows while it is walked
            yield schedule
            for p in self.parameters:
                for choice in self._nearest_first(p, schedule):
                    moved = schedule.replace(**{p.name: choice})
                    if moved not in seen and not self.family.check(self.problem, self.device, moved):
                        seen.add(moved)
                        queue.append(moved)
