"""How are a few given schedules measured at one size, without a search and without a Release?

A probe is a problem of a sweep's job: at a tuned size once more with the winners of its neighbours, or at a
held-out size. Its schedules are trials like all others (compiled, proved right, timed), and race in turns
with the vendor's kernel, because only times of one session compare well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.jobs import budgets, history
from service.jobs.step import Rest, Step, Write
from service.store import jobs, races, trials
from service.store.enums import (
    EntrantRole,
    JobProblemState,
    ProposalSource,
    RaceState,
    TrialReason,
    TrialState,
)
from service.store.records import JobProblemRecord, JobRecord, NewEntrant, NewTrial, RaceRecord
from service.store.transitions import RACE_OPEN

RACES_MOST = 2
"""A race that was disturbed, or could not be run, is run once more."""


def wanted(schedules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a probe remembers."""
    return {"schedules": [dict(one) for one in schedules]}


def start(s: Session, job: JobRecord, row: JobProblemRecord, seconds: float | None) -> None:
    """Begin, with all its schedules at once."""
    jobs.set_budget(
        s, row.id, trials=row.budget_trials, seconds=seconds, device_seconds=row.budget_device_seconds
    )
    jobs.remember(s, row.id, {**row.search, "ran_s": job.ran_s})
    jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
    schedules = [Schedule.from_json(one) for one in row.search.get("schedules", ())]
    new = [NewTrial(one.to_json(), one.key, one.family, ProposalSource.TRANSFER) for one in schedules]
    trials.propose(s, row.id, new)


def step(s: Session, job: JobRecord, row: JobProblemRecord) -> Step | Rest | None:
    """Race what was timed, and end."""
    if row.state is JobProblemState.SEARCHING:
        left = history.of_problem(s, job.id, row.id).spent.open_trials
        if left and not budgets.out_of_time(job, row):
            return Rest(left, 1.0) if job.budget_seconds else Rest(left, 5.0)
        return Write("race probe", lambda w: _race_or_end(w, job, row))
    race = races.latest(s, row.id)
    if race is not None and race.state in RACE_OPEN:
        return None
    return Write("end probe", lambda w: _judge(w, job, row, race))


def _race_or_end(s: Session, job: JobRecord, row: JobProblemRecord) -> None:
    trials.cancel_open(s, job_problem_id=row.id, reason=TrialReason.BUDGET_SPENT)
    if not _race(s, job, row):
        _end(s, row, "None of its schedules gave a right result and a time.")


def _race(s: Session, job: JobRecord, row: JobProblemRecord) -> bool:
    timed = trials.of_problem(s, row.id, [TrialState.MEASURED])
    entrants = [NewEntrant(f"trial-{one.id}", EntrantRole.FINALIST, one.id) for one in timed]
    if not entrants:
        return False
    entrants.append(NewEntrant("baseline", EntrantRole.BASELINE))
    before = races.latest(s, row.id)
    number = 0 if before is None else before.number + 1
    races.create(s, row.id, entrants, job.policy, (row.seed + 7919 * (number + 1)) % (1 << 31))
    if row.state is JobProblemState.SEARCHING:
        jobs.move_problem(s, row.id, JobProblemState.RACING)
    return True


def _judge(s: Session, job: JobRecord, row: JobProblemRecord, race: RaceRecord | None) -> None:
    whole = race is not None and race.state is RaceState.DONE and not _disturbed(race)
    again = race is not None and race.number + 1 < RACES_MOST and not budgets.out_of_time(job, row)
    if not whole and again and _race(s, job, row):
        return
    _end(s, row, "Measured." if whole else "Timed; its race was disturbed, or could not be run.")


def _disturbed(race: RaceRecord) -> bool:
    return any(one.measurement is not None and one.measurement.contended for one in race.entrants)


def _end(s: Session, row: JobProblemRecord, text: str) -> None:
    jobs.move_problem(s, row.id, JobProblemState.DONE, None, text)
