"""Who runs a schedule in the emulator, and what follows from its outcome?

As for trials: a claim raises the attempt, which every reply carries, and holds a lease; what is lost is
given back; a run that keeps losing its worker ends undecided. A verdict that did not pass ends every trial
it speaks for, with the faults as evidence, and quarantines each as a wrong result does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session, undefer

from . import clock, ends, moves, shares
from .bounded import json_object, json_value, number
from .claims import MAX_CLAIMS
from .emulations import TRIES_MOST, WORKING, failure_of, point_at, wanted, wanting
from .enums import (
    QUARANTINE_REASONS,
    EmulationScope,
    EmulationState,
    JobState,
    Stage,
    TrialReason,
    TrialState,
)
from .evidence import add_verdict
from .models import Emulation, Job, Problem, Release, Trial
from .records import ClaimId, EmulateClaim, EmulateOutcome, Failed, Undecided
from .sql import changed
from .transitions import EMULATION_OPEN

# A person who pauses a job lets what is under way end.
_GOES_ON = (*WORKING, JobState.PAUSED)
_asker = func.coalesce(Emulation.job_id, 0)
_HIT = (
    TrialState.COMPILED,
    TrialState.MEASURING,
    TrialState.MEASURED,
    TrialState.RANKED,
    TrialState.CULLED,
)


def waits(s: Session, archs: Sequence[str]) -> bool:
    """Whether claim would find something; cheap, for a read session."""
    return bool(s.scalar(select(_waiting(archs).exists())))


def claim(s: Session, owner: str, lease_s: float, archs: Sequence[str]) -> EmulateClaim | None:
    """Takes the next run of the job whose turn it is (see shares.py): those of single trials first, because
    ends of jobs wait for them."""
    asking = list(set(_askers(s, _waiting(archs))))
    chosen = shares.first(s, shares.EMULATE, asking, lambda: _askers(s, _running()))
    query = _waiting(archs).where(_asker == chosen).order_by(Emulation.scope.desc(), Emulation.id).limit(1)
    locked = query.with_for_update(of=Emulation, skip_locked=True, key_share=True)
    row = s.scalar(locked.execution_options(populate_existing=True))
    if row is None:
        return None
    trial = _subject(s, row)
    if trial is None:
        return None
    now = clock.now(s)
    columns = {
        "attempt": row.attempt + 1,
        "lease_owner": owner,
        "lease_expires_at": now + timedelta(seconds=lease_s),
        "started_at": now,
        "trial_id": trial.id,
        "job_id": trial.job_id,
        "schedule": trial.schedule,
    }
    moves.transition(s, row, EmulationState.RUNNING, at=now, columns=columns)
    assert trial.plan is not None
    assert trial.artifact_sha256 is not None
    return EmulateClaim(
        emulation_id=row.id,
        attempt=row.attempt,
        scope=row.scope,
        job_id=trial.job_id,
        trial_id=trial.id,
        problem=s.get_one(Problem, trial.problem_key).spec,
        schedule=trial.schedule,
        family=trial.family,
        arch=trial.arch,
        device_key=trial.device_key,
        plan=trial.plan,
        artifact_sha256=trial.artifact_sha256,
        # the same run again has the same numbers
        seed=int(row.structure_key[:8], 16) & 0x7FFF_FFFF,
    )


def finish(s: Session, claim_id: ClaimId, outcome: EmulateOutcome) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed."""
    row = _lock(s, _is_held(claim_id))
    if row is None:
        return False
    asker = row.job_id  # of this run: one that did not end may be given to another
    if isinstance(outcome, Undecided):
        _undecided(s, row, outcome)
        _settle(s, asker, outcome.seconds)
        return True
    now = clock.now(s)
    verdict = outcome.verdict
    passed = verdict.passed and outcome.reason is None
    reason = None if passed else TrialReason(outcome.reason or TrialReason.WRONG_RESULT)
    if row.trial_id is not None:
        subject = s.get_one(Trial, row.trial_id)
        add_verdict(s, verdict, trial_id=row.trial_id, artifact_sha256=subject.artifact_sha256)
    columns = {
        "reason": reason,
        "seconds": number(outcome.seconds),
        "max_error": number(verdict.max_error),
        "bound": number(verdict.bound),
        "finished_at": now,
        "seeds": [int(seed) for seed in verdict.seeds],
        "checks": json_value([dict(check) for check in verdict.checks]),
        "counters": json_object(outcome.counters),
        "evidence": json_object(outcome.evidence),
        **ends.FREE,
    }
    to = EmulationState.PASSED if passed else EmulationState.FAILED
    told = {"trial_id": row.trial_id, "scope": str(row.scope)}
    moves.transition(s, row, to, reason, columns=columns, data=told, at=now)
    if reason is None:
        _let_go(s, row)
    else:
        _disprove(s, row, reason)
    _settle(s, asker, outcome.seconds)
    return True


def renew(s: Session, claim_id: ClaimId, lease_s: float) -> bool:
    """Extends the lease; False: stop, it is not held any more, or nobody wants it any more."""
    until = clock.now(s) + timedelta(seconds=lease_s)
    held = _is_held(claim_id) & wanted(_GOES_ON)
    return changed(s, update(Emulation).where(held).values(lease_expires_at=until)) == 1


def release(s: Session, claim_id: ClaimId) -> bool:
    """Gives a claim back unharmed; False: it was not held any more."""
    row = _lock(s, _is_held(claim_id))
    if row is None:
        return False
    _give_back(s, row, "released", over=row.attempt >= MAX_CLAIMS, losses=row.losses)
    return True


def expire(s: Session, *, owner: str | None = None, max_attempts: int = 3, limit: int = 100) -> list[int]:
    """As trials.expire, for runs in the emulator; the ids it touched."""
    lost = Emulation.lease_expires_at < clock.now(s) if owner is None else Emulation.lease_owner == owner
    query = (
        select(Emulation)
        .where(lost, Emulation.lease_owner.is_not(None), Emulation.state.in_(EMULATION_OPEN))
        .order_by(Emulation.id)
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
    )
    touched = []
    for row in s.scalars(query.execution_options(populate_existing=True)).all():
        losses = row.losses + 1
        over = losses >= max_attempts or row.attempt >= MAX_CLAIMS
        _give_back(s, row, TrialReason.WORKER_LOST, over=over, losses=losses)
        touched.append(row.id)
    return touched


# ---------------------------------------------------------------- what follows


def _let_go(s: Session, row: Emulation) -> None:
    """Trials that waited for this verdict are judged; releases that lacked it have it."""
    now = clock.now(s)
    for trial in _trials(s, row, [TrialState.COMPILED]):
        if trial.stage is Stage.EMULATE and not _waits_for_its_own(s, row, trial):
            ended = {"stage": Stage.DONE, "finished_at": now, **ends.FREE}
            moves.transition(s, trial, TrialState.RANKED, columns=ended, at=now)
    spoken_for = select(Trial.id).where(_of(row))
    unproven = select(Release).where(Release.unproven.is_(True), Release.trial_id.in_(spoken_for))
    for release in s.scalars(unproven.with_for_update(key_share=True)).all():
        release.unproven = False
        moves.stayed(s, release, "proven")  # clients and indexes learn it as any other change


def _waits_for_its_own(s: Session, row: Emulation, trial: Trial) -> bool:
    """Under the policy `all` the structure's word is not enough."""
    own = select(Emulation.id).where(
        Emulation.trial_id == trial.id, Emulation.id != row.id, Emulation.state.in_(EMULATION_OPEN)
    )
    return s.scalar(own.limit(1)) is not None


def _disprove(s: Session, row: Emulation, reason: TrialReason) -> None:
    for trial in _trials(s, row, _HIT):
        failure = failure_of(row, reason, trial.id)
        if trial.state is TrialState.CULLED:
            if reason in QUARANTINE_REASONS:
                ends.quarantine(s, trial, failure)
            continue
        columns = {"time_us": None} if trial.state is TrialState.MEASURED else {}
        ends.end(s, trial, failure, **columns)


def _undecided(s: Session, row: Emulation, outcome: Undecided) -> None:
    """The schedule that could not be run ends; another of its structure is tried, a few times."""
    tried = [*(row.evidence or {}).get("tried", []), row.trial_id]
    evidence = {**dict(outcome.evidence), "tried": tried}
    columns = {
        "reason": outcome.reason,
        "seconds": number(outcome.seconds),
        "finished_at": clock.now(s),
        "tries": row.tries + 1,
        "evidence": json_object(evidence),
        **ends.FREE,
    }
    told = {"trial_id": row.trial_id, "scope": str(row.scope)}
    moves.transition(s, row, EmulationState.UNDECIDED, outcome.reason, columns=columns, data=told)
    failure = Failed(TrialState.FAILED, outcome.reason, {**dict(outcome.evidence), "emulation_id": row.id})
    waiting = [one for one in _trials(s, row, [TrialState.COMPILED]) if one.stage is Stage.EMULATE]
    for trial in waiting:
        if trial.id == row.trial_id:
            ends.end(s, trial, failure)
    if row.scope is EmulationScope.TRIAL:
        return
    if row.tries < TRIES_MOST:
        others = wanting().where(_of(row), Trial.id.not_in([one for one in tried if one is not None]))
        other = s.scalar(others.order_by(Trial.id).limit(1).execution_options(populate_existing=True))
        if other is not None:
            point_at(s, row, other)
            return
    for trial in waiting:
        if trial.id != row.trial_id and not _waits_for_its_own(s, row, trial):
            ends.end(s, trial, failure)


def _give_back(s: Session, row: Emulation, reason: TrialReason | str, *, over: bool, losses: int) -> None:
    told = {"attempt": row.attempt, "losses": losses, "owner": row.lease_owner}
    if over:
        s.refresh(row, ["evidence"])
        _undecided(s, row, Undecided(TrialReason.WORKER_LOST, told))
        return
    columns = {"losses": losses, "started_at": None, **ends.FREE}
    moves.transition(s, row, EmulationState.QUEUED, reason, columns=columns, data=told)


# ---------------------------------------------------------------- queries


def _waiting(archs: Sequence[str]) -> Select[Emulation]:
    return select(Emulation).where(
        Emulation.state == EmulationState.QUEUED, Emulation.arch.in_(list(archs)), wanted()
    )


def _askers(s: Session, runs: Select[Emulation]) -> list[shares.Waiter]:
    """The job of each of these runs; one that is gone has no token and no priority."""
    asked = runs.outerjoin(Job, Job.id == Emulation.job_id)
    rows = s.execute(asked.with_only_columns(_asker, Job.token_id, func.coalesce(Job.priority, 0)))
    return [shares.Waiter(*row) for row in rows.all()]


def _running() -> Select[Emulation]:
    return select(Emulation).where(Emulation.state == EmulationState.RUNNING)


def _settle(s: Session, job_id: int | None, seconds: float | None) -> None:
    if job_id is not None:
        shares.settle(s, shares.EMULATE, job_id, number(seconds))


def _subject(s: Session, row: Emulation) -> Trial | None:
    """The trial whose schedule is run: the one that was named, unless its job ended meanwhile."""
    query = wanting().where(Trial.artifact_sha256.is_not(None)).options(undefer(Trial.plan))
    if row.trial_id is not None:
        named: Trial | None = s.scalar(
            query.where(Trial.id == row.trial_id).execution_options(populate_existing=True)
        )
        if named is not None or row.scope is EmulationScope.TRIAL:
            return named
    mine = query.where(_of(row)).order_by(Job.priority.desc(), Trial.job_id, Trial.number).limit(1)
    found: Trial | None = s.scalar(mine.execution_options(populate_existing=True))
    return found


def _trials(s: Session, row: Emulation, states: Sequence[TrialState]) -> list[Trial]:
    """The trials that an emulation speaks for, locked; by id, so that two of us never wait in a circle."""
    query = select(Trial).where(_of(row), Trial.state.in_(list(states))).order_by(Trial.id)
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    return list(s.scalars(locked))


def _of(row: Emulation) -> Any:
    """Trial: the emulation speaks for it."""
    if row.scope is EmulationScope.TRIAL:
        return Trial.id == row.trial_id
    return (
        (Trial.structure_key == row.structure_key)
        & (Trial.toolchain_key == row.toolchain_key)
        & (Trial.family == row.family)
    )


def _is_held(claim_id: ClaimId) -> Any:
    emulation_id, attempt = claim_id
    return (
        (Emulation.id == emulation_id)
        & (Emulation.attempt == attempt)
        & (Emulation.state == EmulationState.RUNNING)
        & Emulation.lease_owner.is_not(None)
    )


def _lock(s: Session, where: Any) -> Emulation | None:
    query = select(Emulation).where(where).with_for_update(key_share=True)
    query = query.options(undefer(Emulation.evidence))
    return s.scalar(query.execution_options(populate_existing=True))
