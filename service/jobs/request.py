"""What does a POST /v1/jobs ask for, and which field of it is wrong?

Only what the request itself says is checked here; devices and families are `target.py`'s and `submit.py`'s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftile.errors import MISSING, FieldError
from rooftile.problem import OPEN_SIZES, OPS, Problem, nearest_name, parse_problem

from service.bus.names import MAX_JOB_S

MOST_PROBLEMS = 256
MOST_DEVICES = 16
MOST_VALUES = 256
MOST_NAMES = 64
MOST_TRIALS = 1_000_000
MOST_SECONDS = float(MAX_JOB_S)
MOST_SEED = 2**53 - 1
MOST_PRIORITY = 100
USUAL_PRIORITY = 0
"""Above it a job goes before everybody's: for the operator alone."""
MOST_NAME = 200

FIELDS = (
    "problem",
    "sweep",
    "problems",
    "target",
    "device",
    "budget",
    "policy",
    "seed",
    "force",
    "priority",
    "families",
    "params",
    "emulate",
    "early_stop",
)
CACHES = ("cold", "warm")
LAUNCHES = ("graph", "eager")
EMULATE = ("structure", "finalists", "all", "never")


@dataclass(frozen=True)
class Wanted:
    """One problem to tune; `path` is where the request names it."""

    problem: Problem
    weight: float
    path: str


@dataclass(frozen=True)
class Target:
    """Exactly one of the three; `devices` may hold "auto"."""

    devices: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Where the request names each device."""
    arch: str | None = None


@dataclass(frozen=True)
class Budget:
    """Of the whole job. Nothing given means a default number of trials."""

    trials: int | None = None
    seconds: float | None = None
    device_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"trials": self.trials, "seconds": self.seconds, "device_seconds": self.device_seconds}


@dataclass(frozen=True)
class JobRequest:
    """A request whose every field is of the right kind and range."""

    problems: tuple[Wanted, ...]
    target: Target
    budget: Budget = field(default_factory=Budget)
    cache: str = "cold"
    launch: str | None = None
    """None: graph on CUDA, eager on a CPU."""
    seed: int = 0
    force: bool = False
    priority: int = 0
    families: tuple[str, ...] | None = None
    params: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    emulate: str = "structure"
    early_stop: bool = True
    body: Mapping[str, Any] = field(default_factory=dict)
    """As it came, kept with the job."""

    @classmethod
    def parse(cls, body: object) -> JobRequest:
        """From decoded JSON. Every wrong field is a FieldError with its path."""
        given = _members("", body, FIELDS)
        budget = _budget(given.get("budget"))
        policy = _members("policy", _or_empty(given.get("policy")), ("cache", "launch"))
        launch = policy.get("launch")
        return cls(
            problems=_problems(given),
            target=_target(given),
            budget=budget,
            cache=_choice("policy.cache", policy.get("cache", "cold"), CACHES),
            launch=None if launch is None else _choice("policy.launch", launch, LAUNCHES),
            seed=_whole("seed", given.get("seed", 0), 0, MOST_SEED),
            force=_flag("force", given.get("force", False)),
            priority=_whole("priority", given.get("priority", 0), -MOST_PRIORITY, MOST_PRIORITY),
            families=_families(given.get("families")),
            params=_params(given.get("params")),
            emulate=_choice("emulate", given.get("emulate", "structure"), EMULATE),
            early_stop=_flag("early_stop", given.get("early_stop", True)),
            body=given,
        )


# ---------------------------------------------------------------- problems and sweeps


def _problems(given: Mapping[str, Any]) -> tuple[Wanted, ...]:
    if "problems" in given:
        for name in ("problem", "sweep"):
            if name in given:
                raise FieldError(name, given[name], "left out where problems is given")
        rows = _list("problems", given["problems"], MOST_PROBLEMS)
        wanted: list[Wanted] = []
        for index, row in enumerate(rows):
            path = f"problems[{index}]"
            entry = _members(path, row, ("problem", "sweep", "weight"))
            weight = _positive(f"{path}.weight", entry.get("weight", 1.0), 1e6)
            wanted += _swept(f"{path}.", entry, weight)
            _few("problems", given["problems"], len(wanted))
    else:
        if "problem" not in given:
            raise FieldError("problem", MISSING, "a problem to tune, or a list of them under problems")
        wanted = _swept("", given, 1.0)
    return tuple(_distinct(wanted))


def _swept(prefix: str, entry: Mapping[str, Any], weight: float) -> list[Wanted]:
    """The problems of one `problem` with its `sweep`."""
    at = f"{prefix}problem"
    if "problem" not in entry:
        raise FieldError(at, MISSING, "an object with op, its sizes and dtype")
    fields = entry["problem"]
    sweep = _sweep(prefix, fields, entry.get("sweep"))
    wanted = []
    for indices in itertools.product(*(range(len(values)) for values in sweep.values())):
        sizes = {name: values[i] for (name, values), i in zip(sweep.items(), indices, strict=True)}
        try:
            problem = parse_problem({**fields, **sizes} if isinstance(fields, Mapping) else fields)
        except FieldError as error:
            path = at if error.field in ("problem", "") else f"{at}.{error.field}"
            if error.field in sizes:
                path = f"{prefix}sweep.{error.field}[{indices[list(sweep).index(error.field)]}]"
            raise FieldError(path, error.value, error.allowed, error.nearest) from None
        path = at
        if sizes:
            path = f"{prefix}sweep." + ",".join(
                f"{name}[{i}]" for name, i in zip(sizes, indices, strict=True)
            )
        wanted.append(Wanted(problem, weight, path))
    return wanted


def _sweep(prefix: str, fields: object, sweep: object) -> dict[str, list[Any]]:
    path = f"{prefix}sweep"
    if sweep is None:
        return {}
    op = fields.get("op") if isinstance(fields, Mapping) else None
    names = OPEN_SIZES[op] if isinstance(op, str) and op in OPS else tuple(_all_open())
    given = _members(path, sweep, names)
    for name in given:
        if isinstance(fields, Mapping) and name in fields:
            raise FieldError(f"{prefix}problem.{name}", fields[name], f"left out, because {path} lists it")
    lists = {name: _list(f"{path}.{name}", values, MOST_VALUES) for name, values in given.items()}
    _few(path, sweep, math.prod(len(values) for values in lists.values()))
    return lists


def _all_open() -> Iterator[str]:
    for names in OPEN_SIZES.values():
        yield from names


def _few(path: str, value: object, count: int) -> None:
    if count > MOST_PROBLEMS:
        raise FieldError(path, value, f"at most {MOST_PROBLEMS} problems in one job (these are {count})")


def _distinct(wanted: list[Wanted]) -> Iterator[Wanted]:
    """Each problem once, where it was first named: what is listed twice is not tuned twice."""
    seen: set[str] = set()
    for entry in wanted:
        if entry.problem.key not in seen:
            seen.add(entry.problem.key)
            yield entry


# ---------------------------------------------------------------- the other fields


def _target(given: Mapping[str, Any]) -> Target:
    if "device" in given:
        if "target" in given:
            raise FieldError("device", given["device"], "left out where target is given")
        return Target(devices=(_name("device", given["device"]),), paths=("device",))
    target = _members("target", _or_empty(given.get("target")), ("device", "devices", "arch"))
    if not target:
        return Target(devices=("auto",), paths=("target.device",))
    if len(target) > 1:
        raise FieldError("target", target, "one of device, devices and arch")
    if "arch" in target:
        return Target(arch=_name("target.arch", target["arch"]))
    if "device" in target:
        return Target(devices=(_name("target.device", target["device"]),), paths=("target.device",))
    keys: dict[str, str] = {}
    for index, key in enumerate(_list("target.devices", target["devices"], MOST_DEVICES)):
        path = f"target.devices[{index}]"
        keys.setdefault(_name(path, key), path)
    return Target(devices=tuple(keys), paths=tuple(keys.values()))


def _budget(value: object) -> Budget:
    given = _members("budget", _or_empty(value), ("trials", "seconds", "device_seconds"))
    trials, seconds, device = (given.get(name) for name in ("trials", "seconds", "device_seconds"))
    return Budget(
        trials=None if trials is None else _whole("budget.trials", trials, 1, MOST_TRIALS),
        seconds=None if seconds is None else _positive("budget.seconds", seconds, MOST_SECONDS),
        device_seconds=None if device is None else _positive("budget.device_seconds", device, MOST_SECONDS),
    )


def _families(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = [_name(f"families[{i}]", name) for i, name in enumerate(_list("families", value, MOST_NAMES))]
    return tuple(dict.fromkeys(names))


def _params(value: object) -> dict[str, tuple[Any, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MOST_NAMES:
        allowed = f"an object of at most {MOST_NAMES} parameters, each with a value or a list of values"
        raise FieldError("params", value, allowed)
    params = {}
    for name, choices in value.items():
        path = "params." + (name[:64] or '""')
        values = _list(path, choices, MOST_VALUES) if isinstance(choices, list) else [choices]
        for index, choice in enumerate(values):
            here = f"{path}[{index}]" if isinstance(choices, list) else path
            short = len(choice) <= MOST_NAME if isinstance(choice, str) else isinstance(choice, int)
            if not short or (isinstance(choice, int) and abs(choice) > MOST_SEED):
                raise FieldError(here, choice, "a whole number, a word, true or false")
        params[name] = tuple(values)
    return params


# ---------------------------------------------------------------- kinds of values


def _or_empty(value: object) -> object:
    return {} if value is None else value


def _members(path: str, value: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The members of a JSON object, none of them unknown."""
    if not isinstance(value, Mapping):
        raise FieldError(path or "body", value, f"an object with the members {', '.join(names)}")
    for name in value:
        if name not in names:
            shown = (name or '""') if isinstance(name, str) and len(name) <= 64 else "..."
            allowed = f"no such field; {path or 'a job'} has {', '.join(names)}"
            dotted = f"{path}.{shown}" if path else shown
            raise FieldError(dotted, value[name], allowed, nearest_name(name, names))
    return dict(value)


def _list(path: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise FieldError(path, value, f"a list of 1 to {most} entries")
    return value


def _name(path: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MOST_NAME:
        raise FieldError(path, value, f"a text of 1 to {MOST_NAME} characters")
    return value


def _choice(path: str, value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in names:
        return value
    raise FieldError(path, value, f"one of {', '.join(names)}", nearest_name(value, names))


def _flag(path: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise FieldError(path, value, "true or false")


def _whole(path: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FieldError(path, value, f"a whole number from {low} to {high}")
    return value


def _positive(path: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise FieldError(path, value, f"a number above 0, at most {most:g}")
    return float(value)
