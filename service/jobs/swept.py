"""Which problems does a `sweep` mean, and which sizes are left to be chosen?

`{"m": [1, 2, 4]}`: each listed size is tuned. `{"m": {"from": 1, "to": 512}}`: of a range, or of
`{"m": {"sizes": [...]}}`, at most `tune` sizes are, chosen as the job learns, and `hold_out` others are
measured with what the table says for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rooftile.errors import MISSING, FieldError
from rooftile.problem import MAX_SIZE, OPEN_SIZES, OPS, Problem, parse_problem

from service.jobs.fields import list_of, members, whole
from service.jobs.lines import Line

MOST_PROBLEMS = 256
MOST_VALUES = 256
TUNED_MOST = 64
TUNED = 12
"""Of a range, unless the request says another number."""
HELD_OUT_MOST = 16
HELD_OUT = 3


@dataclass(frozen=True)
class Wanted:
    """One problem to tune; `path` is where the request names it."""

    problem: Problem
    weight: float
    path: str
    line: int | None = None
    """Which of the request's sweeps it is of."""


def swept(
    prefix: str, entry: Mapping[str, Any], weight: float, lines_before: int
) -> tuple[list[Wanted], list[Line]]:
    """The problems of one `problem` with its `sweep`, those that a job begins with; and its lines."""
    at = f"{prefix}problem"
    if "problem" not in entry:
        raise FieldError(at, MISSING, "an object with op, its sizes and dtype")
    fields = entry["problem"]
    sweep = _sweep(prefix, fields, entry.get("sweep"), weight)
    if not sweep:
        return [Wanted(_problem(at, fields, {}, {}, prefix), weight, at)], []
    axis = _axis(sweep)
    base = dict(fields) if isinstance(fields, Mapping) else {}
    given = sweep[axis]
    lists: dict[str, list[Any]] = {
        name: values.first_sizes() if isinstance(values, Line) else values for name, values in sweep.items()
    }
    lines: list[Line] = []
    of_others: dict[tuple[int, ...], int | None] = {}
    wanted: list[Wanted] = []
    for places in itertools.product(*(range(len(values)) for values in lists.values())):
        indices = dict(zip(lists, places, strict=True))
        sizes = {name: values[indices[name]] for name, values in lists.items()}
        problem = _problem(at, fields, sizes, indices, prefix)
        # with the same others fixed they are one line
        others = tuple(i for name, i in indices.items() if name != axis)
        if others not in of_others:
            fixed = {name: size for name, size in sizes.items() if name != axis}
            line = _line(given, axis, {**base, **fixed}, weight)
            of_others[others] = None if line is None else lines_before + len(lines)
            if line is not None:
                lines.append(line)
        path = f"{prefix}sweep." + ",".join(f"{name}[{i}]" for name, i in indices.items())
        if isinstance(given, Line):
            path = f"{prefix}sweep.{axis}"
        wanted.append(Wanted(problem, weight, path, of_others[others] if sizes[axis] > 0 else None))
    return wanted, lines


def _line(given: list[Any] | Line, axis: str, fields: Mapping[str, Any], weight: float) -> Line | None:
    """None where there is nothing between two sizes to ask about."""
    if isinstance(given, Line):
        return replace(given, fields=fields)
    above = tuple(sorted({size for size in given if isinstance(size, int) and size > 0}))
    if len(above) < 2:
        return None
    return Line(axis, fields, above[0], above[-1], above, tune=len(above), weight=weight)


def few(path: str, value: object, count: int) -> None:
    """FieldError where these are more problems than a job may have."""
    if count > MOST_PROBLEMS:
        raise FieldError(path, value, f"at most {MOST_PROBLEMS} problems in one job (these are {count})")


def _axis(sweep: Mapping[str, list[Any] | Line]) -> str:
    """The size whose values share what is learned: the one whose values are chosen, else the first that has
    several."""
    chosen = [name for name, values in sweep.items() if isinstance(values, Line)]
    several = [name for name, values in sweep.items() if isinstance(values, list) and len(values) > 1]
    return (chosen or several or list(sweep))[0]


def _problem(
    at: str, fields: object, sizes: Mapping[str, Any], indices: Mapping[str, int], prefix: str
) -> Problem:
    try:
        return parse_problem({**fields, **sizes} if isinstance(fields, Mapping) else fields)
    except FieldError as error:
        path = at if error.field in ("problem", "") else f"{at}.{error.field}"
        if error.field in sizes:
            path = f"{prefix}sweep.{error.field}[{indices[error.field]}]"
        raise FieldError(path, error.value, error.allowed, error.nearest) from None


def _sweep(prefix: str, fields: object, sweep: object, weight: float) -> dict[str, list[Any] | Line]:
    path = f"{prefix}sweep"
    if sweep is None:
        return {}
    op = fields.get("op") if isinstance(fields, Mapping) else None
    names = OPEN_SIZES[op] if isinstance(op, str) and op in OPS else tuple(_all_open())
    given = members(path, sweep, names)
    for name in given:
        if isinstance(fields, Mapping) and name in fields:
            raise FieldError(f"{prefix}problem.{name}", fields[name], f"left out, because {path} lists it")
    found: dict[str, list[Any] | Line] = {}
    for name, values in given.items():
        if isinstance(values, Mapping):
            if any(isinstance(one, Line) for one in found.values()):
                raise FieldError(f"{path}.{name}", values, "a list: of one size at most a range is given")
            found[name] = _range(f"{path}.{name}", name, values, weight)
        else:
            found[name] = list_of(f"{path}.{name}", values, MOST_VALUES)
    few(path, sweep, math.prod(one.tune if isinstance(one, Line) else len(one) for one in found.values()))
    return found


def _range(path: str, name: str, value: Mapping[str, Any], weight: float) -> Line:
    """A range of sizes, or a list of which some are to be tuned."""
    given = members(path, value, ("from", "to", "sizes", "tune", "hold_out"))
    sizes: tuple[int, ...] = ()
    if "sizes" in given:
        for other in ("from", "to"):
            if other in given:
                raise FieldError(f"{path}.{other}", given[other], "left out where sizes is given")
        listed = list_of(f"{path}.sizes", given["sizes"], MOST_VALUES)
        sizes = tuple(sorted({whole(f"{path}.sizes[{i}]", one, 1, MAX_SIZE) for i, one in enumerate(listed)}))
        low, high = sizes[0], sizes[-1]
    else:
        low = whole(f"{path}.from", given.get("from"), 1, MAX_SIZE)
        high = whole(f"{path}.to", given.get("to"), low, MAX_SIZE)
    count = min(TUNED_MOST, len(sizes) if sizes else high - low + 1)
    tune = whole(f"{path}.tune", given.get("tune", min(TUNED, count)), 1, TUNED_MOST)
    hold_out = whole(f"{path}.hold_out", given.get("hold_out", HELD_OUT), 0, HELD_OUT_MOST)
    return Line(name, {}, low, high, sizes, True, min(tune, count), hold_out, weight)


def _all_open() -> Iterator[str]:
    for names in OPEN_SIZES.values():
        yield from names
