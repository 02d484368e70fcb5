"""How is a schedule written as a row of small integers, and how far apart are two of them?

A parameter whose choices are all whole numbers is ordered: its code is the place of the value among the
choices, so that doubling a tile is one step. Everything else is a label. The codes live only inside one
search; rows in the database hold the values, so choices may come and go between versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from search_space.schedule import Value

Codes = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """One parameter that varies: every value it has now or had in an earlier row."""

    name: str
    choices: tuple[Value, ...]
    live: frozenset[int]
    """Codes of the choices the space has now; the others appear in old rows only."""
    ordered: bool
    _codes: dict[tuple[type, Value], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codes = {(type(choice), choice): code for code, choice in enumerate(self.choices)}
        object.__setattr__(self, "_codes", codes)

    def code(self, value: Value) -> int | None:
        return self._codes.get((type(value), value))


def _find(choices: Sequence[Value], value: Value) -> int | None:
    """Where `value` stands; by type too, because 1 == True in Python."""
    for index, choice in enumerate(choices):
        if type(choice) is type(value) and choice == value:
            return index
    return None


@dataclass(frozen=True)
class Coding:
    """The axes of one search."""

    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, live: Mapping[str, Sequence[Value]], seen: Iterable[Mapping[str, Value]]) -> Coding:
        """Axes over the union of the live choices and of what the rows hold.

        A parameter that the space no longer has is left out; one with a single value cannot vary.
        """
        axes = []
        values: dict[str, dict[tuple[type, Value], Value]] = {name: {} for name in live}
        for row in seen:
            for name, value in row.items():
                if name in values:
                    values[name].setdefault((type(value), value), value)
        for name, choices in live.items():
            union = list(choices)
            union += [value for value in values[name].values() if _find(choices, value) is None]
            if len(union) < 2:
                continue
            numbers = [c for c in union if isinstance(c, int) and not isinstance(c, bool)]
            ordered = len(numbers) == len(union)
            # The family's own order, unless a value it no longer has must find its place among the others.
            if ordered and (len(union) > len(choices) or union == sorted(numbers)):
                union = sorted(numbers)
            now = frozenset(i for i, c in enumerate(union) if _find(choices, c) is not None)
            axes.append(Axis(name, tuple(union), now, ordered))
        return cls(tuple(axes))

    def encode(self, values: Mapping[str, Value]) -> Codes | None:
        """The codes of a schedule's values; None for a row without one of the parameters."""
        codes = []
        for axis in self.axes:
            value = values.get(axis.name)
            code = None if value is None else axis.code(value)
            if code is None:
                return None
            codes.append(code)
        return tuple(codes)

    def decode(self, codes: Sequence[int]) -> dict[str, Value]:
        return {axis.name: axis.choices[code] for axis, code in zip(self.axes, codes, strict=True)}

    def distance(self, left: Codes, right: Codes) -> float:
        """Steps between two points: half a step a rank (at most 2) on ordered axes, 1 on labels."""
        total = 0.0
        for axis, a, b in zip(self.axes, left, right, strict=True):
            if a != b:
                total += min(2.0, 0.5 * abs(a - b)) if axis.ordered else 1.0
        return total
