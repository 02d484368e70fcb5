"""Which runs in the emulator are asked for, and what do they say about a trial?

One row is one run: work to be claimed first, a remembered verdict afterwards. A row of scope `structure`
speaks for every schedule of its (family, toolchain, structure), so a search pays for each structure once;
a row of scope `trial` for the one schedule that was run. Who claims and ends them is in `emulation_claims`.

Locks are taken in one order everywhere: the emulation's row, then the trials it speaks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session, undefer

from . import clock, moves
from .enums import EmulationScope, EmulationState, JobState, TrialReason, TrialState
from .models import Emulation, Job, JobProblem, Trial
from .records import EmulationRecord, Failed, Json
from .sql import insert_ignoring
from .transitions import JOB_PROBLEM, final

TRIES_MOST = 3
"""So many schedules of a structure are tried until one can be run to its end."""

WANTING = (TrialState.COMPILED, TrialState.MEASURING, TrialState.MEASURED, TrialState.RANKED)
"""Trials that a verdict may still help or harm. A culled one is out, whatever it computes."""

WORKING = (JobState.RUNNING, JobState.FINISHING)


def structure_key(structure: Mapping[str, Any]) -> str:
    """sha256 of a structure's canonical JSON."""
    canonical = json.dumps(dict(structure), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(canonical.encode()).hexdigest()


# ---------------------------------------------------------------- what is known


def of_trial(s: Session, trial_id: int, *, whole: bool = False) -> EmulationRecord | None:
    """What speaks for a trial: its own run, unless that says nothing and its structure's does. `whole`: with
    checks, counters and evidence."""
    trial = s.get(Trial, trial_id, populate_existing=True)
    if trial is None:
        return None
    own = _newest(s, Emulation.trial_id == trial_id, whole)
    if own is not None and own.state is not EmulationState.UNDECIDED:
        return record(own, whole=whole)
    found = _of_structure(s, trial, whole)
    if own is not None and (found is None or found.state is EmulationState.UNDECIDED):
        found = own
    return None if found is None else record(found, whole=whole)


def get(s: Session, emulation_id: int) -> EmulationRecord | None:
    """One run with all of its evidence."""
    row = s.get(Emulation, emulation_id, options=[undefer("*")], populate_existing=True)
    return None if row is None else record(row, whole=True)


def find(s: Session, family: str, toolchain: str, structure: str, *, lock: bool = False) -> Emulation | None:
    """The row of a structure. For this package."""
    query = select(Emulation).where(
        Emulation.scope == EmulationScope.STRUCTURE,
        Emulation.structure_key == structure,
        Emulation.toolchain_key == toolchain,
        Emulation.family == family,
    )
    if lock:
        query = query.with_for_update(key_share=True)
    return s.scalar(query.execution_options(populate_existing=True))


def record(row: Emulation, *, whole: bool = False) -> EmulationRecord:
    """For this package."""
    return EmulationRecord(
        id=row.id,
        scope=row.scope,
        family=row.family,
        arch=row.arch,
        toolchain_key=row.toolchain_key,
        structure_key=row.structure_key,
        structure=row.structure,
        trial_id=row.trial_id,
        job_id=row.job_id,
        schedule=row.schedule,
        state=row.state,
        reason=row.reason,
        attempt=row.attempt,
        tries=row.tries,
        lease_owner=row.lease_owner,
        seconds=row.seconds,
        max_error=row.max_error,
        bound=row.bound,
        seeds=tuple(row.seeds),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        checks=tuple(row.checks) if whole else (),
        counters=row.counters if whole else None,
        evidence=(row.evidence or {}) if whole else {},
    )


def _newest(s: Session, where: ColumnElement[bool], whole: bool) -> Emulation | None:
    query = select(Emulation).where(where).order_by(Emulation.id.desc()).limit(1)
    query = query.options(undefer("*")) if whole else query
    return s.scalar(query.execution_options(populate_existing=True))


def _of_structure(s: Session, trial: Trial, whole: bool) -> Emulation | None:
    if trial.structure_key is None or trial.toolchain_key is None:
        return None
    mine = (
        (Emulation.scope == EmulationScope.STRUCTURE)
        & (Emulation.structure_key == trial.structure_key)
        & (Emulation.toolchain_key == trial.toolchain_key)
        & (Emulation.family == trial.family)
    )
    return _newest(s, mine, whole)


def failure_of(row: Emulation, reason: TrialReason, trial_id: int) -> Failed:
    """What a failed verdict says about one trial that it speaks for. For this package."""
    told = {**(row.evidence or {}), "emulation_id": row.id}
    if row.trial_id != trial_id:
        said = str(told.get("message") or reason.doc)
        told |= {
            "message": f"A schedule of the same structure was found wrong in the emulator: {said}",
            "run_trial_id": row.trial_id,
            "run_schedule": row.schedule,
        }
    return Failed(TrialState.FAILED, reason, told)


# ---------------------------------------------------------------- what is asked for


def waiting_s(s: Session, job_id: int) -> float:
    """For how long the oldest run in the emulator that this job asked for has waited; 0 if none does."""
    mine = (Emulation.job_id == job_id) & (Emulation.state == EmulationState.QUEUED)
    oldest = s.scalar(select(func.min(Emulation.created_at)).where(mine))
    return 0.0 if oldest is None else (clock.now(s) - oldest).total_seconds()


def want_own(s: Session, trial_id: int) -> EmulationRecord | None:
    """Asks for a run of this trial's own schedule, once; None where its family is not emulated. It becomes
    the verdict of its structure where nobody asked for that yet."""
    trial = s.get(Trial, trial_id, options=[undefer(Trial.structure)], populate_existing=True)
    if trial is None or trial.structure is None or trial.structure_key is None or trial.toolchain_key is None:
        return None
    row = ensure(s, trial, trial.structure, trial.structure_key, trial.toolchain_key, own=True)
    return record(row)


def ensure(
    s: Session, trial: Trial, structure: Json, key: str, toolchain: str, *, own: bool
) -> Emulation:
    """The row that will speak for the trial, made where it is missing, and locked. For this package."""
    if own:
        mine = _newest(s, Emulation.trial_id == trial.id, whole=False)
        if mine is not None:
            return _locked(s, mine.id)
    made = {
        "scope": EmulationScope.STRUCTURE,
        "family": trial.family,
        "arch": trial.arch,
        "toolchain_key": toolchain,
        "structure_key": key,
        "trial_id": trial.id,
        "job_id": trial.job_id,
        "state": EmulationState.QUEUED,
        "attempt": 0,
        "losses": 0,
        "tries": 0,
        "created_at": clock.now(s),
        "structure": dict(structure),
        "schedule": trial.schedule,
        "seeds": [],
        "checks": [],
    }
    inserted = insert_ignoring(s, Emulation, made)
    row = find(s, trial.family, toolchain, key, lock=True)
    assert row is not None
    if inserted:
        moves.born(s, row, data={"trial_id": trial.id})
        return row
    if own and row.trial_id != trial.id:
        born = insert_ignoring(s, Emulation, {**made, "scope": EmulationScope.TRIAL})
        mine = _newest(s, Emulation.trial_id == trial.id, whole=False)
        assert mine is not None
        if born:
            moves.born(s, mine, data={"trial_id": trial.id})
        return _locked(s, mine.id)
    if row.state is EmulationState.UNDECIDED and row.tries < TRIES_MOST:
        point_at(s, row, trial)
    return row


def point_at(s: Session, row: Emulation, trial: Trial) -> None:
    """Lets a structure's run be that of another schedule, from the beginning. For this package."""
    columns = {
        "trial_id": trial.id,
        "job_id": trial.job_id,
        "schedule": trial.schedule,
        "reason": None,
        "losses": 0,
        "finished_at": None,
    }
    moves.transition(
        s, row, EmulationState.QUEUED, "another_schedule", columns=columns, data={"trial_id": trial.id}
    )


def _locked(s: Session, emulation_id: int) -> Emulation:
    query = select(Emulation).where(Emulation.id == emulation_id).with_for_update(key_share=True)
    return s.scalars(query.execution_options(populate_existing=True)).one()


# ---------------------------------------------------------------- who wants it


def speaks_for() -> ColumnElement[bool]:
    """Emulation and Trial, joined: the one speaks for the other."""
    of_structure = (
        (Trial.structure_key == Emulation.structure_key)
        & (Trial.toolchain_key == Emulation.toolchain_key)
        & (Trial.family == Emulation.family)
    )
    by_scope: ColumnElement[bool] = (
        (Emulation.scope == EmulationScope.STRUCTURE) & of_structure
    ) | ((Emulation.scope == EmulationScope.TRIAL) & (Trial.id == Emulation.trial_id))
    return by_scope


def wanted(states: tuple[JobState, ...] = WORKING) -> ColumnElement[bool]:
    """Of an Emulation: a trial that it speaks for is in a job in one of these states and can still use it."""
    return exists(wanting(states).where(speaks_for()).correlate(Emulation))


def wanting(states: tuple[JobState, ...] = WORKING) -> Select[Any]:
    """Trials that can still use a verdict, whose job is in one of these states: the next to run first."""
    return (
        select(Trial)
        .join(Job, Job.id == Trial.job_id)
        .join(JobProblem, JobProblem.id == Trial.job_problem_id)
        .where(
            Trial.state.in_(WANTING),
            Job.state.in_(states),
            JobProblem.state.not_in(final(JOB_PROBLEM)),
        )
    )
