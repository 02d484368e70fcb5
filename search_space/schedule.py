"""How is a problem computed: which named values, in which of the five groups?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from rooftile.errors import MISSING, FieldError
from rooftile.problem import canonical_json, nearest_name, sha256_key

if TYPE_CHECKING:
    from search_space.family import Parameter

GROUPS = ("tile", "movement", "layout", "roles", "order")
"""tile: what is computed at once. movement: how data gets there and back. layout: how it lies. roles: who
does what. order: in which sequence, and who takes which part."""

Value: TypeAlias = int | str | bool
_MAX_TEXT = 64


@dataclass(frozen=True, eq=False)
class Schedule:
    """A family's name and its parameters' values by group. Equal schedules have equal canonical JSON,
    whatever order their values were given in; names are unique over all groups."""

    family: str
    groups: tuple[tuple[str, tuple[tuple[str, Value], ...]], ...]
    """(group, ((name, value), ...)) for each of GROUPS in order, names sorted."""

    @classmethod
    def make(cls, family: str, groups: Mapping[str, Mapping[str, Value]]) -> Schedule:
        """From values by group; groups that are not named are empty."""
        for group in groups:
            if group not in GROUPS:
                raise FieldError(f"schedule.{group}", groups[group], f"a group: {', '.join(GROUPS)}")
        seen: set[str] = set()
        made = []
        for group in GROUPS:
            values = groups.get(group, {})
            for name, value in values.items():
                _check_value(f"schedule.{group}.{name}", name, value)
                if name in seen:
                    raise FieldError(f"schedule.{group}.{name}", value, "in one group only")
                seen.add(name)
            made.append((group, tuple(sorted(values.items()))))
        return cls(family, tuple(made))

    @classmethod
    def of(cls, family: str, parameters: Iterable[Parameter], values: Mapping[str, Value]) -> Schedule:
        """From a flat mapping; `parameters` say which group each belongs to, and all must have a value."""
        groups: dict[str, dict[str, Value]] = {group: {} for group in GROUPS}
        left = dict(values)
        for p in parameters:
            if p.name not in left:
                raise FieldError(f"schedule.{p.group}.{p.name}", MISSING, "a value for each parameter")
            groups[p.group][p.name] = left.pop(p.name)
        for name, value in left.items():
            known = tuple(n for group in groups.values() for n in group)
            raise FieldError(f"schedule.{name}", value, f"a parameter of {family}", nearest_name(name, known))
        return cls.make(family, groups)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        # Python holds 1 == True; JSON, and so the key, does not.
        return (self.family, self.groups) == (other.family, other.groups) and self._types() == other._types()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.family, self.groups))

    def _types(self) -> list[type]:
        return [type(value) for _, pairs in self.groups for _, value in pairs]

    # -- values -----------------------------------------------------------------------------------------

    # A search looks at hundreds of schedules for each that it proposes, and rules at each value many times.
    @cached_property
    def _by_name(self) -> dict[str, Value]:
        return {name: value for _, pairs in self.groups for name, value in pairs}

    def values(self) -> dict[str, Value]:
        """All values by name, without their groups."""
        return dict(self._by_name)

    def group(self, name: str) -> dict[str, Value]:
        """The values of one group."""
        return dict(dict(self.groups)[name])

    def __getitem__(self, name: str) -> Value:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def integer(self, name: str) -> int:
        """The value of a whole-number parameter."""
        value = self._by_name[name]
        if type(value) is not int:
            raise TypeError(f"{name} = {value!r} is not a whole number")
        return value

    def text(self, name: str) -> str:
        """The value of a named-choice parameter."""
        value = self._by_name[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} = {value!r} is not a name")
        return value

    def flag(self, name: str) -> bool:
        """The value of an on-off parameter."""
        value = self._by_name[name]
        if not isinstance(value, bool):
            raise TypeError(f"{name} = {value!r} is not on or off")
        return value

    def replace(self, **changes: Value) -> Schedule:
        """The same schedule with some values changed; a name it does not have is refused."""
        groups = {group: dict(pairs) for group, pairs in self.groups}
        for name, value in changes.items():
            home = next((group for group, pairs in groups.items() if name in pairs), None)
            if home is None:
                known = tuple(self.values())
                allowed = f"one of {', '.join(known)}"
                raise FieldError(f"schedule.{name}", value, allowed, nearest_name(name, known))
            groups[home][name] = value
        return Schedule.make(self.family, groups)

    # -- identity ---------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The JSON object, all five groups written out."""
        return {"schema": 1, "family": self.family} | {group: dict(pairs) for group, pairs in self.groups}

    def canonical(self) -> str:
        """The text that the key is the hash of."""
        return canonical_json(self.to_json())

    @cached_property
    def key(self) -> str:
        """sha256 of the canonical JSON."""
        return sha256_key(self.to_json())

    @classmethod
    def from_json(cls, obj: object) -> Schedule:
        """The schedule that decoded JSON describes; FieldError names what is wrong."""
        if not isinstance(obj, Mapping):
            raise FieldError("schedule", obj, "an object with schema, family and the five groups")
        schema = obj.get("schema", MISSING)
        if type(schema) is not int or schema != 1:
            raise FieldError("schedule.schema", schema, "1, the only schema so far", 1)
        family = obj.get("family", MISSING)
        if not isinstance(family, str) or not family:
            raise FieldError("schedule.family", family, "the name of a family")
        names = ("schema", "family", *GROUPS)
        for name in obj:
            if name not in names:
                allowed = f"no such group; they are {', '.join(GROUPS)}"
                raise FieldError(f"schedule.{name}", obj[name], allowed, nearest_name(name, GROUPS))
        groups: dict[str, Mapping[str, Value]] = {}
        for group in GROUPS:
            values = obj.get(group, {})
            if not isinstance(values, Mapping):
                raise FieldError(f"schedule.{group}", values, "an object of names and values")
            groups[group] = values
        return cls.make(family, groups)

    # -- for people -------------------------------------------------------------------------------------

    def one_line(self, parameters: Iterable[Parameter] | None = None) -> str:
        """One line: `gemm_x86  tile mr=6 nr=16 kc=256 | movement pack_b=yes prefetch=8 | order ...`. Groups
        without values are left out. With `parameters`, values come in the family's own order."""
        rank = _rank(parameters)
        parts = []
        for group, pairs in self.groups:
            if pairs:
                shown = " ".join(f"{n}={_show(v)}" for n, v in sorted(pairs, key=lambda p: rank(p[0])))
                parts.append(f"{group} {shown}")
        return f"{self.family}  " + " | ".join(parts) if parts else self.family

    def long(self, parameters: Iterable[Parameter] | None = None) -> str:
        """One line a value under the five groups' headings; with `parameters` each with its meaning."""
        parameters = None if parameters is None else list(parameters)
        doc = {p.name: " ".join(p.doc.split()) for p in parameters or ()}
        rank = _rank(parameters)
        values = self.values()
        width = max((len(n) for n in values), default=0)
        value_width = max((len(_show(v)) for v in values.values()), default=0)
        lines = [self.family]
        for group, pairs in self.groups:
            lines.append(f"  {group}" + ("" if pairs else ": -"))
            for name, value in sorted(pairs, key=lambda p: rank(p[0])):
                line = f"    {name:<{width}}  {_show(value):<{value_width}}  {doc.get(name, '')}"
                lines.append(line.rstrip())
        return "\n".join(lines)

    def difference(self, other: Schedule) -> dict[str, tuple[Value | None, Value | None]]:
        """Names whose values differ, with this schedule's value and the other's."""
        mine, theirs = self.values(), other.values()
        names = sorted(mine.keys() | theirs.keys())
        return {n: (mine.get(n), theirs.get(n)) for n in names if mine.get(n) != theirs.get(n)}


def _rank(parameters: Iterable[Parameter] | None) -> Any:
    order = {p.name: i for i, p in enumerate(parameters or ())}
    return lambda name: (order.get(name, len(order)), name)


def _show(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _check_value(field: str, name: object, value: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or len(name) > _MAX_TEXT:
        raise FieldError(field[:80], value, "under a name that is a word")
    if isinstance(value, (bool, str)) and (not isinstance(value, str) or len(value) <= _MAX_TEXT):
        return
    if isinstance(value, int) and abs(value) < 2**53:  # whole in every JSON reader
        return
    raise FieldError(field, value, "a whole number, a name, or true or false")
