"""How is a schedule written as a row of small integers, and how far apart are two of them?

A parameter whose choices are all whole numbers is ordered: its code is the rank of the value, so that
doubling a tile is one step. Everything else is a label. The codes live only inside one search; rows in
the database hold the values, so choices may come and go between versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Value = object
Codes = tuple[int, ...]


def _ordered(choices: Sequence[Value]) -> bool:
    return all(isinstance(c, int) and not isinstance(c, bool) for c in choices)


@dataclass(frozen=True)
class Axis:
    """One parameter that varies: every value it has now or had in an earlier row."""

    name: str
    choices: tuple[Value, ...]
    live: frozenset[int]
    """Codes of the choices the space has now; the others appear in old rows only."""
    ordered: bool

    def code(self, value: Value) -> int | None:
        for index, choice in enumerate(self.choices):
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
        union: dict[str, list[Value]] = {name: list(choices) for name, choices in live.items()}
        for row in seen:
            for name, choices in union.items():
                if name in row and not any(type(c) is type(row[name]) and c == row[name] for c in choices):
                    choices.append(row[name])
        axes = []
        for name, choices in union.items():
            if len(choices) < 2:
                continue
            ordered = _ordered(choices)
            if ordered:
                choices = sorted(choices, key=lambda c: int(str(c)))
            now = frozenset(
                i for i, c in enumerate(choices) if any(type(c) is type(k) and c == k for k in live[name])
            )
            axes.append(Axis(name, tuple(choices), now, ordered))
        return cls(tuple(axes))

    def encode(self, values: Mapping[str, Value]) -> Codes | None:
        """The codes of a schedule's values; None for a row that lacks a parameter or holds a strange value."""
        codes = []
        for axis in self.axes:
            code = axis.code(values[axis.name]) if axis.name in values else None
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
