"""What was measured at the tuned sizes of a line: who won, and what do the others' winners lose there?

Ratios of one race come first, those of a race of neighbours' winners before those of the finalists; times of
single trials, which were taken one after another, only where no race tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooftile.errors import RooftileError
from rooftile.plan import LaunchPlan
from sqlalchemy.orm import Session

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.jobs import dispatch
from service.jobs.decide import ratio
from service.jobs.dispatch import BASELINE, Interval, Known
from service.jobs.lines import Line
from service.jobs.target import device_model
from service.store import devices, jobs, races, releases, trials
from service.store.enums import EntrantRole, JobProblemRole, JobProblemState, RaceState, TrialState, Winner
from service.store.records import EntrantResult, JobProblemRecord, JobRecord, RaceRecord

CLEARLY_SLOWER = 0.15
"""What lost so much in single trials is not raced again."""


@dataclass
class Facts:
    """What is known of a line on one device."""

    line: Line
    device: Device
    known: list[Known] = field(default_factory=list)
    """By size."""
    releases: dict[int, int] = field(default_factory=dict)
    """Size -> id of the Release that is served there."""
    schedules: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    plans: dict[str, LaunchPlan] = field(default_factory=dict)
    raced: set[tuple[int, str]] = field(default_factory=set)

    def asks(self, size: int, name: str) -> bool:
        """Whether a neighbour's winner should be raced at this size."""
        one = next(known for known in self.known if known.size == size)
        if name in (one.winner, BASELINE) or (size, name) in self.raced:
            return False
        return one.losses.get(name, 0.0) < CLEARLY_SLOWER

    def usable(self, name: str, low: int, high: int) -> bool:
        """Whether the plan of a winner holds from one size to another, and its schedule is legal at both."""
        if name == BASELINE:
            return True
        plan, schedule = self.plans.get(name), self.schedules.get(name)
        if plan is None or schedule is None:
            return False
        given = plan.valid_for.sizes.get(self.line.axis)
        if low < high and given is not None and given.multiple_of > 1:
            return False
        try:
            parsed = Schedule.from_json(schedule)
            family = get_family(parsed.family)
            for size in {low, high}:
                problem = self.line.problem(size)
                if plan.check(problem.plan_names()) or family.check(problem, self.device, parsed):
                    return False
        except (RooftileError, KeyError, ValueError):
            return False
        return True


def of_line(s: Session, job: JobRecord, line: Line, mine: Sequence[JobProblemRecord]) -> Facts:
    """From the rows of a line's problems on one device."""
    key = mine[0].device_key
    assert key is not None
    facts = Facts(line, device_model(key, devices.get(s, key)))
    found = []
    for row in mine:
        if row.role is JobProblemRole.SEARCH and row.state is JobProblemState.DONE:
            served = releases.best(s, row.problem_key, key, job.policy_key)
            if served is not None:
                found.append((int(row.problem[line.axis]), row, served))
    for size, _, served in found:
        facts.releases[size] = served.id
        if served.winner is Winner.TRIAL and served.schedule is not None and served.schedule_key is not None:
            facts.schedules[served.schedule_key] = served.schedule
            if served.plan is not None:
                facts.plans[served.schedule_key] = LaunchPlan.from_json(served.plan)
    names = {BASELINE, *facts.schedules}
    for size, row, served in sorted(found, key=lambda one: one[0]):
        winner = BASELINE if served.winner is Winner.BASELINE else served.schedule_key or ""
        again = [
            one for one in mine if one.role is JobProblemRole.CROSS and one.problem_key == row.problem_key
        ]
        losses = _losses(s, [*again, row], winner, names)
        facts.raced |= {(size, name) for name in losses.raced}
        band = served.noise.get("band")
        noise = float(band) if isinstance(band, (int, float)) else 0.0
        facts.known.append(Known(size, winner, losses.by_name, noise))
    return facts


def best_schedule(s: Session, job: JobRecord, job_problem_id: int) -> Mapping[str, Any] | None:
    """What is served for a problem, else its fastest trial."""
    row = jobs.problem(s, job_problem_id)
    if row is None or row.device_key is None:
        return None
    served = releases.best(s, row.problem_key, row.device_key, job.policy_key)
    if served is not None and served.schedule is not None:
        return served.schedule
    best = trials.best(s, row.id)
    return None if best is None else best.schedule


def held_out_losses(
    s: Session,
    line: Line,
    mine: Sequence[JobProblemRecord],
    facts: Facts,
    intervals: Sequence[Interval],
) -> list[dict[str, Any]]:
    """At each held-out size, how much longer the table's choice takes than the best that was measured there;
    None where it has no time."""
    found = []
    for row in mine:
        if row.role is not JobProblemRole.HELD_OUT:
            continue
        size = int(row.problem[line.axis])
        choice = dispatch.choice_at(intervals, size)
        names = {BASELINE, *facts.schedules}
        losses = _losses(s, [row], choice or "", names)
        loss = losses.by_name.get(choice or "")
        best = min(losses.by_name, key=lambda name: (losses.by_name[name], name), default=None)
        found.append(
            {
                "size": size,
                "choice": choice,
                "best": best,
                "loss": loss,
                "raced": choice in losses.raced,
                "measured": len(losses.by_name),
            }
        )
    return sorted(found, key=lambda one: int(one["size"]))


# ---------------------------------------------------------------- losses at one size


@dataclass
class _Losses:
    by_name: dict[str, float]
    raced: set[str]


def _losses(s: Session, rows: Sequence[JobProblemRecord], winner: str, names: set[str]) -> _Losses:
    """Of these candidates at one size, from its rows, the most trusted first; the best has 0."""
    found: dict[str, float] = {}
    for row in rows:
        race = races.latest(s, row.id)
        if race is None or race.state is not RaceState.DONE:
            continue
        entered = _entered(s, race, names)
        start = winner if winner in entered else min(entered, key=lambda n: _median(entered[n]), default=None)
        if start is None:
            continue
        base = found.get(start, 0.0)
        if found and start not in found:
            continue
        for name, one in entered.items():
            found.setdefault(name, (1 + base) * ratio(one, entered[start]) - 1)
    raced = set(found)
    for row in rows:
        times = _times(s, row, names)
        start = min((n for n in found if n in times), key=lambda n: (found[n], n), default=None)
        if start is None and not found:
            start = winner if winner in times else min(times, key=lambda n: times[n], default=None)
        if start is not None:
            base = found.get(start, 0.0)
            for name, time_us in times.items():
                found.setdefault(name, (1 + base) * time_us / times[start] - 1)
    least = min(found.values(), default=0.0)
    return _Losses({name: (1 + loss) / (1 + least) - 1 for name, loss in found.items()}, raced)


def _entered(s: Session, race: RaceRecord, names: set[str]) -> dict[str, EntrantResult]:
    """Who ran undisturbed in a race, by candidate."""
    ours = trials.many(s, {one.trial_id for one in race.entrants if one.trial_id is not None})
    found: dict[str, EntrantResult] = {}
    for one in race.entrants:
        if one.failure is not None or one.measurement is None or one.measurement.contended:
            continue
        name = BASELINE if one.role is EntrantRole.BASELINE else ""
        if one.trial_id is not None and one.role is not EntrantRole.TWIN and one.trial_id in ours:
            name = ours[one.trial_id].schedule_key
        if name in names:
            found.setdefault(name, one)
    return found


def _median(one: EntrantResult) -> float:
    assert one.measurement is not None
    return one.measurement.median_us


def _times(s: Session, row: JobProblemRecord, names: set[str]) -> dict[str, float]:
    rows = trials.of_problem(s, row.id, [TrialState.MEASURED, TrialState.CULLED])
    return {
        one.schedule_key: one.time_us
        for one in rows
        if one.schedule_key in names and one.time_us is not None and not one.contended
    }
