"""How many of a family's legal schedules compile, and why not the others?"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftile.problem import Problem, parse_problem

from bench.common import BenchError, say
from bench.compiling.costs import compiling
from search_space.device import Device
from search_space.errors import UnknownFamily
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from worker.compile.farm import Order, compile_all
from worker.errors import CompileFailure

_BIG = {"op": "gemm", "m": 4096, "n": 4096, "k": 4096}
SPACES: Mapping[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "gemm_sm80": (
        "sm_80",
        (
            {**_BIG, "dtype": "bf16"},
            {**_BIG, "dtype": "f16", "layout": {"b": "nk"}, "epilogue": {"bias": "n", "activation": "gelu"}},
            {**_BIG, "dtype": "bf16", "layout": {"a": "km", "b": "kn"}, "beta": "any"},
            {**_BIG, "dtype": "tf32"},
            {**_BIG, "dtype": "s8", "layout": {"b": "nk"}},
        ),
    ),
    "gemm_sm90": (
        "sm_90a",
        (
            {**_BIG, "dtype": "bf16", "layout": {"b": "nk"}},
            {**_BIG, "dtype": "f16", "epilogue": {"bias": "n", "activation": "gelu"}},
            {**_BIG, "dtype": "bf16", "layout": {"a": "km", "b": "kn"}, "beta": "any"},
        ),
    ),
    "gemm_sm70": (
        "sm_70",
        (
            {**_BIG, "dtype": "f16"},
            {**_BIG, "dtype": "f16", "layout": {"b": "nk"}, "epilogue": {"bias": "n", "activation": "relu"}},
            {**_BIG, "dtype": "f16", "layout": {"a": "km", "b": "kn"}, "beta": "any"},
        ),
    ),
}
"""family -> (arch, problems): the draws are shared out among the problems."""


SEED = 20261
_MOST_TRIES = 2_000_000


def draw(
    family: Family, problem: Problem, device: Device, count: int, rng: random.Random
) -> tuple[list[Schedule], int]:
    """`count` different legal schedules, each legal one as likely as any other, and how many draws it took.

    By rejection: a uniform draw from the product of all choices, kept where it is legal.
    """
    parameters = family.parameters(problem, device)
    found: dict[str, Schedule] = {}
    for tries in range(1, _MOST_TRIES + 1):
        values = {one.name: rng.choice(one.choices) for one in parameters}
        schedule = Schedule.of(family.name, parameters, values)
        if not family.check(problem, device, schedule):
            found.setdefault(schedule.key, schedule)
            if len(found) == count:
                return list(found.values()), tries
    raise BenchError(f"{family.name}: {len(found)} of {count} legal schedules after {_MOST_TRIES} draws")


def share(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Compile what was drawn from one family; the failures with their reasons."""
    try:
        family = get_family(name)
    except UnknownFamily as error:
        raise BenchError(str(error)) from None
    arch, specs = SPACES[name]
    device, rng = Device.for_arch(arch), random.Random(SEED)
    problems = [parse_problem(spec) for spec in specs]
    orders: list[Order[tuple[str, Schedule]]] = []
    draws = 0
    for i, problem in enumerate(problems):
        mine = count // len(problems) + (1 if i < count % len(problems) else 0)
        schedules, tries = draw(family, problem, device, mine, rng)
        draws += tries
        for schedule in schedules:
            build = family.build(problem, device, schedule)
            orders.append(Order((problem.title(), schedule), compiling(build, folder / f"share-{name}")))
    say(f"{name}: compiling {len(orders)} schedules out of {draws} draws")
    started, compiled, seconds = time.monotonic(), 0, []
    reasons: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    for (title, schedule), outcome in compile_all(orders):
        if isinstance(outcome, CompileFailure):
            reasons[str(outcome.reason)] += 1
            told = {"reason": str(outcome.reason), "message": outcome.message}
            failures.append({"problem": title, "schedule": schedule.values(), **told})
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            compiled += 1
            if not outcome.cached:
                seconds.append(outcome.compile_s)
    row = {
        "kind": "share",
        "family": name,
        "arch": arch,
        "problems": [problem.to_json() for problem in problems],
        "drawn": len(orders),
        "draws": draws,
        "compiled": compiled,
        "share": round(compiled / len(orders), 4),
        "reasons": dict(reasons),
        "failures": failures,
        "wall_s": round(time.monotonic() - started, 1),
        "compile_s_median": round(statistics.median(seconds), 3) if seconds else None,
        "compile_s_most": round(max(seconds), 3) if seconds else None,
    }
    say(f"{name}: {compiled} of {len(orders)} compile; {dict(reasons)}; {row['wall_s']} s")
    return row
