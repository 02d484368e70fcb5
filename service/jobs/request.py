"""What does a POST /v1/jobs ask for, and which field of it is wrong?

Only what the request itself says is checked here; devices and families are `target.py`'s and `submit.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rooftile.errors import MISSING, FieldError

from service.bus.names import MAX_JOB_S
from service.jobs.fields import (
    MOST_NAME,
    choice_of,
    flag,
    list_of,
    members,
    name_of,
    or_empty,
    positive,
    whole,
)
from service.jobs.lines import Line
from service.jobs.swept import MOST_PROBLEMS, MOST_VALUES, Wanted, few, swept

MOST_DEVICES = 16
MOST_NAMES = 64
MOST_TRIALS = 1_000_000
MOST_SECONDS = float(MAX_JOB_S)
MOST_SEED = 2**53 - 1
MOST_PRIORITY = 100
USUAL_PRIORITY = 0
"""Above it a job goes before everybody's: for the operator alone."""

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
    lines: tuple[Line, ...] = ()
    weighted: bool = False
    """Weights say how much each problem counts; the budget goes where the weighted gain is."""
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
        given = members("", body, FIELDS)
        budget = _budget(given.get("budget"))
        policy = members("policy", or_empty(given.get("policy")), ("cache", "launch"))
        launch = policy.get("launch")
        problems, lines, weighted = _problems(given)
        return cls(
            problems=problems,
            target=_target(given),
            lines=lines,
            weighted=weighted,
            budget=budget,
            cache=choice_of("policy.cache", policy.get("cache", "cold"), CACHES),
            launch=None if launch is None else choice_of("policy.launch", launch, LAUNCHES),
            seed=whole("seed", given.get("seed", 0), 0, MOST_SEED),
            force=flag("force", given.get("force", False)),
            priority=whole("priority", given.get("priority", 0), -MOST_PRIORITY, MOST_PRIORITY),
            families=_families(given.get("families")),
            params=_params(given.get("params")),
            emulate=choice_of("emulate", given.get("emulate", "structure"), EMULATE),
            early_stop=flag("early_stop", given.get("early_stop", True)),
            body=given,
        )


# ---------------------------------------------------------------- problems


def _problems(given: Mapping[str, Any]) -> tuple[tuple[Wanted, ...], tuple[Line, ...], bool]:
    """The problems, the sweeps that some of them are of, and whether any has a weight."""
    if "problems" not in given:
        if "problem" not in given:
            raise FieldError("problem", MISSING, "a problem to tune, or a list of them under problems")
        wanted, lines = swept("", given, 1.0, 0)
        return *_distinct(wanted, lines), False
    for name in ("problem", "sweep"):
        if name in given:
            raise FieldError(name, given[name], "left out where problems is given")
    rows = list_of("problems", given["problems"], MOST_PROBLEMS)
    all_wanted: list[Wanted] = []
    all_lines: list[Line] = []
    weighted = False
    for index, row in enumerate(rows):
        path = f"problems[{index}]"
        entry = members(path, row, ("problem", "sweep", "weight"))
        weight = positive(f"{path}.weight", entry.get("weight", 1.0), 1e6)
        weighted |= "weight" in entry
        wanted, lines = swept(f"{path}.", entry, weight, len(all_lines))
        all_wanted += wanted
        all_lines += lines
        few("problems", given["problems"], len(all_wanted))
    return *_distinct(all_wanted, all_lines), weighted


def _distinct(wanted: list[Wanted], lines: list[Line]) -> tuple[tuple[Wanted, ...], tuple[Line, ...]]:
    """Each problem once, where it was first named: what is listed twice is not tuned twice."""
    found: dict[str, Wanted] = {}
    for entry in wanted:
        found.setdefault(entry.problem.key, entry)
    return tuple(found.values()), tuple(lines)


# ---------------------------------------------------------------- the other fields


def _target(given: Mapping[str, Any]) -> Target:
    if "device" in given:
        if "target" in given:
            raise FieldError("device", given["device"], "left out where target is given")
        return Target(devices=(name_of("device", given["device"]),), paths=("device",))
    target = members("target", or_empty(given.get("target")), ("device", "devices", "arch"))
    if not target:
        return Target(devices=("auto",), paths=("target.device",))
    if len(target) > 1:
        raise FieldError("target", target, "one of device, devices and arch")
    if "arch" in target:
        return Target(arch=name_of("target.arch", target["arch"]))
    if "device" in target:
        return Target(devices=(name_of("target.device", target["device"]),), paths=("target.device",))
    keys: dict[str, str] = {}
    for index, key in enumerate(list_of("target.devices", target["devices"], MOST_DEVICES)):
        path = f"target.devices[{index}]"
        keys.setdefault(name_of(path, key), path)
    return Target(devices=tuple(keys), paths=tuple(keys.values()))


def _budget(value: object) -> Budget:
    given = members("budget", or_empty(value), ("trials", "seconds", "device_seconds"))
    trials, seconds, device = (given.get(name) for name in ("trials", "seconds", "device_seconds"))
    return Budget(
        trials=None if trials is None else whole("budget.trials", trials, 1, MOST_TRIALS),
        seconds=None if seconds is None else positive("budget.seconds", seconds, MOST_SECONDS),
        device_seconds=None if device is None else positive("budget.device_seconds", device, MOST_SECONDS),
    )


def _families(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = [name_of(f"families[{i}]", name) for i, name in enumerate(list_of("families", value, MOST_NAMES))]
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
        values = list_of(path, choices, MOST_VALUES) if isinstance(choices, list) else [choices]
        for index, choice in enumerate(values):
            here = f"{path}[{index}]" if isinstance(choices, list) else path
            short = len(choice) <= MOST_NAME if isinstance(choice, str) else isinstance(choice, int)
            if not short or (isinstance(choice, int) and abs(choice) > MOST_SEED):
                raise FieldError(here, choice, "a whole number, a word, true or false")
        params[name] = tuple(values)
    return params
