"""How much slower is one schedule than another, in one race of this machine?

All entrants are built anew and take turns, one process each, as in the product's own races; a loss is the
median over the rounds of the ratio to the reference, so that what changes slowly on the machine cancels.
"""

from __future__ import annotations

import fcntl
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu
from rooftile.problem import Problem

from bench.common import BenchError
from search_space.device import local_device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.bus import HostGate
from service.paths import device_lock_path, open_lock_file
from service.store.records import Failed, RaceOutcome
from worker.compile import compile_kernel
from worker.compile.cache import ArtifactCache
from worker.errors import CompileFailure
from worker.measure.session import MeasureSession, RaceEntrant, Tools
from worker.measure.tools import build_tools

POLICY = {"cache": "cold", "launch": "eager"}
REFERENCE, TWIN = "reference", "twin"
RACE_S = 20.0
"""Twice what a job gives its own race: the figure is a few percent."""
WAIT_S = 600.0


@contextmanager
def device_alone() -> Iterator[None]:
    """This CPU is measured by nobody else, and nothing of ours compiles on the host meanwhile."""
    path = device_lock_path(str(local_cpu().key))
    deadline = time.monotonic() + WAIT_S
    with open(open_lock_file(path), "rb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BenchError(f"another process has held {path} for {WAIT_S:.0f} s") from None
                time.sleep(0.5)
        with HostGate().exclusive():
            yield


def losses(
    problem: Problem, schedules: Mapping[str, Schedule], home: Path, *, race_s: float = RACE_S
) -> dict[str, Any]:
    """Loss of each schedule against the one called `reference`, in percent; `noise_percent` of the same bytes
    against themselves; the race's rounds. One that is the same schedule as another runs once."""
    tools = build_tools(local_cpu().arch, home)
    distinct: dict[str, str] = {}
    entrants: list[RaceEntrant] = []
    for name, schedule in schedules.items():
        first = distinct.setdefault(schedule.key, name)
        if first == name:
            entrants.append(_entrant(name, "finalist", problem, schedule, home, tools))
    entrants.append(_entrant(TWIN, "twin", problem, schedules[REFERENCE], home, tools))
    with (
        device_alone(),
        MeasureSession(str(local_cpu().key), tools=tools, race_budget_s=race_s) as session,
    ):
        outcome = session.race(problem, entrants, POLICY, seed=1)
    if isinstance(outcome, Failed):
        raise BenchError(f"the last race failed: {outcome.reason}: {outcome.evidence.get('message')}")
    rounds = _rounds(outcome)
    return {
        "losses_percent": {
            name: _loss(rounds, distinct[schedule.key]) for name, schedule in schedules.items()
        },
        "noise_percent": 100.0 * float(outcome.noise["relative"]),
        "rounds": len(rounds[REFERENCE]),
        "times_us": {name: statistics.median(one for one in mine if one) for name, mine in rounds.items()},
    }


def _entrant(
    name: str, role: str, problem: Problem, schedule: Schedule, home: Path, tools: Tools
) -> RaceEntrant:
    family, device = get_family(schedule.family), local_device()
    if found := family.check(problem, device, schedule):
        raise BenchError(
            f"{name} is not legal here any more ({found[0].message}): record the reference again"
        )
    try:
        artifact = compile_kernel(family.build(problem, device, schedule), home=home)
    except CompileFailure as failure:
        raise BenchError(f"{name} could not be built again: {failure}") from failure
    path = ArtifactCache(home).put_bytes(artifact.sha256, artifact.data)
    return RaceEntrant(name, role, None, family.plan(problem, device, schedule), path, tools.pool)


def _rounds(outcome: RaceOutcome) -> dict[str, list[float | None]]:
    """Medians by entrant and round. BenchError where one did not come through: it was proved right before."""
    found: dict[str, list[float | None]] = {}
    for entrant in outcome.entrants:
        if entrant.measurement is None:
            failure = entrant.failure
            why = "no time" if failure is None else f"{failure.reason}: {failure.evidence.get('message')}"
            raise BenchError(f"{entrant.name} did not finish the last race ({why})")
        found[entrant.name] = list(entrant.measurement.environment["round_medians_us"])
    return found


def _loss(rounds: Mapping[str, list[float | None]], name: str) -> float:
    pairs = zip(rounds[name], rounds[REFERENCE], strict=True)
    return 100.0 * (statistics.median(one / other for one, other in pairs if one and other) - 1.0)
