"""What is known about a job right now, put together from its rows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.api import emulation_text, render, schemas
from service.jobs import proving
from service.store import emulations, events, jobs, races, releases, trials
from service.store.enums import EntrantRole, RaceState
from service.store.records import (
    JobProblemRecord,
    JobRecord,
    OutcomeCount,
    ProblemName,
    RaceRecord,
    ReleaseRecord,
    TrialRecord,
)

SHOWN_TITLES = 4


def summaries(s: Session, rows: Sequence[JobRecord]) -> list[schemas.JobSummary]:
    """Jobs as lists show them."""
    ids = [job.id for job in rows]
    named, counts = jobs.names(s, ids), trials.counts_of_jobs(s, ids)
    return [
        schemas.JobSummary(**_summary_fields(job, named[job.id], render.counts(counts.get(job.id, ()))))
        for job in rows
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    """What the problems of one job need, by job problem id; all of it asked for at once."""

    counts: Mapping[int, Sequence[OutcomeCount]]
    fastest: Mapping[int, TrialRecord]
    raced: Mapping[int, RaceRecord]
    releases: Mapping[int, ReleaseRecord]
    """Those that were made by this job and are served."""
    trials: Mapping[int, TrialRecord]
    """Of the races, by trial id."""


def _look(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> _Found:
    raced = {
        race.job_problem_id: race for race in races.of_job(s, job.id) if race.state is RaceState.DONE
    }  # oldest first, so the newest of a problem stays
    lines = {(row.problem_key, row.device_key, job.policy_key) for row in rows if row.device_key is not None}
    served = [release for release, _ in releases.served(s, lines).values()] if lines else []
    entered = {one.trial_id for race in raced.values() for one in race.entrants if one.trial_id is not None}
    return _Found(
        counts=trials.counts_of_problems(s, job.id),
        fastest=trials.best_of_job(s, job.id),
        raced=raced,
        releases={release.job_problem_id: release for release in served},
        trials=trials.many(s, entered) if entered else {},
    )


def full(s: Session, job: JobRecord) -> schemas.Job:
    """A job with its problems, its outcomes and the best of each problem."""
    rows = jobs.problems(s, job.id)
    outcomes = trials.counts(s, job_id=job.id)
    found = _look(s, job, rows)
    problems = [_problem(s, row, found) for row in rows]
    return schemas.Job(
        **_summary_fields(job, rows, render.counts(outcomes)),
        request=dict(job.request),
        target=dict(job.target),
        options=dict(job.options),
        seed=job.seed,
        outcomes=[render.outcome(row) for row in outcomes],
        best=next((problem.best for problem in problems if problem.best is not None), None),
        problems=problems,
        last_event_id=events.latest_id(s, job.id),
    )


def _summary_fields(
    job: JobRecord, rows: Sequence[JobProblemRecord | ProblemName], counts: Mapping[str, int]
) -> dict[str, Any]:
    devices = dict.fromkeys(row.device_key or row.arch for row in rows)
    return {
        "id": job.id,
        "state": str(job.state),
        "reason": None if job.reason is None else str(job.reason),
        "message": job.message,
        "titles": [row.title for row in rows[:SHOWN_TITLES]],
        "problem_count": len(rows),
        "devices": list(devices),
        "policy": dict(job.policy),
        "budget": schemas.Budget(
            trials=job.budget_trials, seconds=job.budget_seconds, device_seconds=job.budget_device_seconds
        ),
        "priority": job.priority,
        "counts": dict(counts),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "ran_s": job.ran_s,
    }


def _problem(s: Session, row: JobProblemRecord, found: _Found) -> schemas.JobProblem:
    return schemas.JobProblem(
        id=row.id,
        position=row.position,
        problem_key=row.problem_key,
        layer_key=row.layer_key,
        title=row.title,
        problem=dict(row.problem),
        device=row.device_key,
        arch=row.arch,
        weight=row.weight,
        role=str(row.role),
        state=str(row.state),
        reason=None if row.reason is None else str(row.reason),
        message=row.message,
        budget=schemas.Budget(
            trials=row.budget_trials, seconds=row.budget_seconds, device_seconds=row.budget_device_seconds
        ),
        elapsed_s=row.elapsed_s,
        counts=render.counts(found.counts.get(row.id, ())),
        best=_best(s, row, found),
    )


def baseline_us(race: RaceRecord | None) -> float | None:
    """The Baseline's median in this race."""
    for entrant in race.entrants if race is not None else ():
        if entrant.role is EntrantRole.BASELINE and entrant.measurement is not None:
            return entrant.measurement.median_us
    return None


def _best(s: Session, row: JobProblemRecord, found: _Found) -> schemas.BestOfJob | None:
    """The fastest trial; after the race by the race's times, which alone compare with the Baseline. Where no
    device was asked for, the best by the cost model."""
    fastest, race = found.fastest.get(row.id), found.raced.get(row.id)
    if fastest is None:
        return _ranked(s, row) if row.device_key is None else None
    trial, time_us = fastest, fastest.time_us
    release = found.releases.get(row.id)
    if race is not None:
        timed = [
            (entrant.measurement.median_us, entrant.trial_id)
            for entrant in race.entrants
            if entrant.trial_id is not None and entrant.measurement is not None and entrant.failure is None
        ]
        # A tie is broken by the release, which is what is served.
        served = [pair for pair in timed if release is not None and pair[1] == release.trial_id]
        if timed:
            time_us, trial_id = min(served or timed)
            trial = found.trials.get(trial_id, fastest)
    if time_us is None:
        return None
    baseline = baseline_us(race)
    return schemas.BestOfJob(
        problem_key=row.problem_key,
        title=row.title,
        device=row.device_key,
        trial_id=trial.id,
        trial_number=trial.number,
        time_us=time_us,
        predicted_us=trial.predicted_us,
        emulated=_emulated(s, row, trial),
        baseline_time_us=baseline,
        speedup=baseline / time_us if baseline is not None else None,
        schedule=dict(trial.schedule),
        schedule_text=render.schedule_text(trial.schedule),
        release_id=None if release is None else release.id,
    )


def _ranked(s: Session, row: JobProblemRecord) -> schemas.BestOfJob | None:
    best = trials.ranked(s, row.id, 1)
    if not best:
        return None
    trial = best[0]
    return schemas.BestOfJob(
        problem_key=row.problem_key,
        title=row.title,
        device=None,
        trial_id=trial.id,
        trial_number=trial.number,
        time_us=None,
        predicted_us=trial.predicted_us,
        emulated=_emulated(s, row, trial),
        baseline_time_us=None,
        speedup=None,
        schedule=dict(trial.schedule),
        schedule_text=render.schedule_text(trial.schedule),
        release_id=None,
    )


def _emulated(s: Session, row: JobProblemRecord, trial: TrialRecord) -> str | None:
    if not proving.emulates(trial.arch):
        return None
    return emulation_text.short(emulations.of_trial(s, trial.id), trial, over=row.finished_at is not None)
