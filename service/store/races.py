"""Which races are there, who runs one, and how did it end?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, and_, func, select, update
from sqlalchemy.orm import Session, undefer

from . import claims, clock, devices, ends, jobs, moves, shares, waiting
from .bounded import json_object, number
from .enums import QUARANTINE_REASONS, EntrantRole, RaceState, TrialReason, TrialState
from .errors import NotFound, StoreError
from .evidence import add_measurement, add_verdict, fault_of, measurement_record, verdict_record
from .models import Job, JobProblem, Measurement, Problem, Race, RaceEntrant, Trial, Verdict
from .records import (
    ClaimId,
    Entrant,
    EntrantResult,
    Failed,
    Json,
    NewEntrant,
    RaceClaim,
    RaceOutcome,
    RaceRecord,
)
from .sql import changed
from .transitions import RACE_OPEN

_FREE: dict[str, Any] = {"lease_owner": None, "lease_expires_at": None}

# A finalist that fails like this in the race is not good enough to be served, however fast it was.
_DISPROVES = QUARANTINE_REASONS | {
    TrialReason.HANG,
    TrialReason.CRASH,
    TrialReason.INVALID_TIME,
    TrialReason.LAUNCH_ERROR,
    TrialReason.PLAN_INVALID,
}


def create(
    s: Session, job_problem_id: int, entrants: Sequence[NewEntrant], policy: Json, seed: int
) -> RaceRecord:
    """Writes a race of the job problem's device. Entrants with a trial must have its artifact; the race is
    run on the problem of the first one's trial, which is another's where a canary comes from elsewhere."""
    locked = select(JobProblem).where(JobProblem.id == job_problem_id).with_for_update(key_share=True)
    job_problem = s.scalar(locked.execution_options(populate_existing=True))
    if job_problem is None:
        raise NotFound("job problem", job_problem_id)
    if job_problem.device_key is None:
        raise StoreError(f"Job problem {job_problem_id} has no device to race on.")
    last = s.scalar(select(func.max(Race.number)).where(Race.job_problem_id == job_problem_id))
    race = Race(
        job_id=job_problem.job_id,
        job_problem_id=job_problem_id,
        number=0 if last is None else last + 1,
        device_key=job_problem.device_key,
        state=RaceState.QUEUED,
        attempt=0,
        losses=0,
        seed=seed,
        created_at=clock.now(s),
        policy=dict(policy),
    )
    s.add(race)
    s.flush()
    for position, one in enumerate(entrants):
        if one.trial_id is not None:
            trial = s.get(Trial, one.trial_id)
            if trial is None or trial.artifact_sha256 is None:
                raise StoreError(f"Trial {one.trial_id} has no artifact and can not race.")
        s.add(
            RaceEntrant(
                race_id=race.id, position=position, name=one.name, role=one.role, trial_id=one.trial_id
            )
        )
    s.flush()
    moves.born(s, race, data={"entrants": len(entrants)})
    return _record(s, race)


def device_s(s: Session, job_problem_id: int) -> float:
    """Seconds of the device that the races of a job problem took."""
    return s.scalar(select(func.sum(Race.device_s)).where(Race.job_problem_id == job_problem_id)) or 0.0


def waits(s: Session, device_key: str) -> bool:
    """Whether claim would find something; cheap, for a read session."""
    return bool(s.scalar(select(and_(_waiting(device_key).exists(), devices.serving(device_key)))))


def claim(s: Session, owner: str, device_key: str, lease_s: float) -> RaceClaim | None:
    """Takes a race of this device when it is its job's turn, among the jobs that have trials waiting for the
    device and those that have a race: the oldest of that job. None while the device is out of service."""
    racing = waiting.owners_of_races(s, device_key)
    if not racing or not devices.in_service(s, device_key):
        return None
    rivals = waiting.owners_of_trials(s, waiting.measures(device_key))
    under_way = waiting.measures_under_way(s, device_key)
    chosen = shares.first(s, shares.measure(device_key), list({*racing, *rivals}), under_way)
    query = _waiting(device_key).where(Race.job_id == chosen).order_by(Race.id).limit(1)
    locked = query.with_for_update(of=Race, skip_locked=True, key_share=True)
    race = s.scalar(locked.execution_options(populate_existing=True))
    if race is None:
        return None
    now = clock.now(s)
    lease = {
        "attempt": race.attempt + 1,
        "lease_owner": owner,
        "lease_expires_at": now + timedelta(seconds=lease_s),
        "started_at": now,
    }
    moves.transition(s, race, RaceState.RACING, at=now, columns=lease)
    rows = s.execute(
        select(RaceEntrant, Trial)
        .outerjoin(Trial, Trial.id == RaceEntrant.trial_id)
        .where(RaceEntrant.race_id == race.id)
        .order_by(RaceEntrant.position)
        .options(undefer(Trial.plan))
    ).all()
    return RaceClaim(
        race_id=race.id,
        attempt=race.attempt,
        job_id=race.job_id,
        job_problem_id=race.job_problem_id,
        problem=_problem(s, race, [trial for _, trial in rows]),
        policy=race.policy,
        seed=race.seed,
        entrants=tuple(_entrant(entrant, trial) for entrant, trial in rows),
    )


def finish(s: Session, claim_id: ClaimId, outcome: RaceOutcome | Failed) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed. An entrant whose result
    was wrong loses its trial's time and is quarantined, in the same transaction."""
    race = _lock(s, _is_held(claim_id))
    if race is None:
        return False
    now = clock.now(s)
    used = number(outcome.device_s)
    if used is None:
        used = (now - race.started_at).total_seconds() if race.started_at is not None else 0.0
    columns: dict[str, Any] = {"finished_at": now, "device_s": (race.device_s or 0.0) + used, **_FREE}
    if isinstance(outcome, Failed):
        reason = TrialReason(outcome.reason)
        columns |= {"reason": reason, "evidence": json_object(outcome.evidence)}
        moves.transition(s, race, RaceState.FAILED, reason, columns=columns, at=now)
        _charge(s, race, used)
        return True
    results = {result.name: result for result in outcome.entrants}
    rows = s.scalars(select(RaceEntrant).where(RaceEntrant.race_id == race.id)).all()
    if len(results) != len(outcome.entrants) or set(results) != {row.name for row in rows}:
        raise StoreError(f"The outcome of race {race.id} does not name its entrants, each once.")
    for row in rows:
        _write(s, row, results[row.name])
    columns |= {"noise": json_object(outcome.noise), "environment": json_object(outcome.environment)}
    moves.transition(s, race, RaceState.DONE, columns=columns, at=now)
    _charge(s, race, used)
    return True


def renew(s: Session, claim_id: ClaimId, lease_s: float) -> bool:
    """Extends the lease; False: it is not held any more, stop."""
    until = clock.now(s) + timedelta(seconds=lease_s)
    return changed(s, update(Race).where(_is_held(claim_id)).values(lease_expires_at=until)) == 1


def release(s: Session, claim_id: ClaimId) -> bool:
    """Gives a claim back unharmed; False: it was not held any more."""
    race = _lock(s, _is_held(claim_id))
    if race is None:
        return False
    _give_back(s, race, "released", over=race.attempt >= claims.MAX_CLAIMS, losses=race.losses)
    return True


def expire(s: Session, *, owner: str | None = None, max_attempts: int = 3, limit: int = 100) -> list[int]:
    """As trials.expire, for races; ids of the races it touched."""
    lost = Race.lease_expires_at < clock.now(s) if owner is None else Race.lease_owner == owner
    query = (
        select(Race)
        .where(lost, Race.lease_owner.is_not(None), Race.state.in_(RACE_OPEN))
        .order_by(Race.id)
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
    )
    touched = []
    for race in s.scalars(query.execution_options(populate_existing=True)).all():
        losses = race.losses + 1
        over = losses >= max_attempts or race.attempt >= claims.MAX_CLAIMS
        _give_back(s, race, TrialReason.WORKER_LOST, over=over, losses=losses)
        touched.append(race.id)
    return touched


def cancel_open(s: Session, job_id: int, reason: TrialReason = TrialReason.JOB_ENDED) -> int:
    """Cancels the races of a job that have not ended; returns how many."""
    query = select(Race).where(Race.job_id == job_id, Race.state.in_(RACE_OPEN)).order_by(Race.id)
    rows = s.scalars(query.with_for_update(key_share=True).execution_options(populate_existing=True)).all()
    now = clock.now(s)
    for race in rows:
        columns = {"reason": reason, "finished_at": now, **_FREE}
        moves.transition(s, race, RaceState.CANCELLED, reason, columns=columns, at=now)
    return len(rows)


def get(s: Session, race_id: int) -> RaceRecord | None:
    race = s.get(Race, race_id, populate_existing=True)
    return None if race is None else _record(s, race)


def latest(s: Session, job_problem_id: int) -> RaceRecord | None:
    """The newest race of a job problem."""
    query = select(Race).where(Race.job_problem_id == job_problem_id).order_by(Race.number.desc()).limit(1)
    race = s.scalar(query.execution_options(populate_existing=True))
    return None if race is None else _record(s, race)


def of_job(s: Session, job_id: int) -> list[RaceRecord]:
    """All races of a job, oldest first."""
    query = select(Race).where(Race.job_id == job_id).order_by(Race.id)
    return _records(s, s.scalars(query.execution_options(populate_existing=True)).all())


def _waiting(device_key: str) -> Select[Race]:
    return (
        select(Race)
        .join(Job, Job.id == Race.job_id)
        .where(waiting.races(device_key), Job.state.in_(waiting.RACES_OF))
    )


def _charge(s: Session, race: Race, used: float) -> None:
    jobs.stand_still(s, race.device_key, race.job_id, used)
    shares.settle(s, shares.measure(race.device_key), race.job_id, used, usual=False)


def _is_held(claim_id: ClaimId) -> Any:
    race_id, attempt = claim_id
    return (
        (Race.id == race_id)
        & (Race.attempt == attempt)
        & (Race.state == RaceState.RACING)
        & Race.lease_owner.is_not(None)
    )


def _lock(s: Session, where: Any) -> Race | None:
    query = select(Race).where(where).with_for_update(key_share=True)
    return s.scalar(query.execution_options(populate_existing=True))


def _give_back(s: Session, race: Race, reason: TrialReason | str, *, over: bool, losses: int) -> None:
    told = {"attempt": race.attempt, "losses": losses, "owner": race.lease_owner}
    if over:
        lost = TrialReason.WORKER_LOST
        ended = {"reason": lost, "finished_at": clock.now(s), "evidence": told, "losses": losses, **_FREE}
        moves.transition(s, race, RaceState.FAILED, lost, columns=ended, data=told)
    else:
        columns = {"losses": losses, "started_at": None, **_FREE}
        moves.transition(s, race, RaceState.QUEUED, reason, columns=columns, data=told)


def _problem(s: Session, race: Race, entered: Sequence[Trial | None]) -> Json:
    """What the race is run on."""
    first = next((trial.job_problem_id for trial in entered if trial is not None), race.job_problem_id)
    return s.get_one(Problem, s.get_one(JobProblem, first).problem_key).spec


def _write(s: Session, row: RaceEntrant, result: EntrantResult) -> None:
    failure = result.failure
    verdict = result.verdict if result.verdict is not None else (failure.verdict if failure else None)
    artifact = None if row.trial_id is None else s.get_one(Trial, row.trial_id).artifact_sha256
    # What a canary does tells about the device, and nothing about its trial.
    trial_id = None if row.role is EntrantRole.CANARY else row.trial_id
    if verdict is not None:
        row.verdict_id = add_verdict(s, verdict, trial_id=trial_id, artifact_sha256=artifact).id
    if failure is None:
        failure = fault_of(result.measurement, verdict)
        if failure is None and result.measurement is None:
            failure = Failed(TrialState.FAILED, TrialReason.INTERNAL_ERROR, {"measurement": "missing"})
    if failure is None:
        assert result.measurement is not None
        row.measurement_id = add_measurement(s, result.measurement, trial_id=trial_id).id
        return
    row.failure_state = TrialState(failure.state)
    row.failure_reason = TrialReason(failure.reason)
    row.failure_evidence = json_object(failure.evidence)
    s.flush()
    if trial_id is not None and failure.reason in _DISPROVES:
        # the verdict is written already
        ends.disprove(s, trial_id, Failed(failure.state, failure.reason, failure.evidence))


def _entrant(row: RaceEntrant, trial: Trial | None) -> Entrant:
    return Entrant(
        name=row.name,
        role=row.role,
        trial_id=row.trial_id,
        artifact_sha256=None if trial is None else trial.artifact_sha256,
        pool_sha256=None if trial is None else trial.pool_sha256,
        plan=None if trial is None else trial.plan,
        schedule=None if trial is None else trial.schedule,
    )


def _result(row: RaceEntrant, measurement: Measurement | None, verdict: Verdict | None) -> EntrantResult:
    failure = None
    if row.failure_reason is not None:
        state = row.failure_state or TrialState.FAILED
        failure = Failed(state, row.failure_reason, row.failure_evidence or {})
    return EntrantResult(
        name=row.name,
        role=row.role,
        trial_id=row.trial_id,
        measurement=None if measurement is None else measurement_record(measurement),
        verdict=None if verdict is None else verdict_record(verdict),
        failure=failure,
    )


def _record(s: Session, race: Race) -> RaceRecord:
    return _records(s, [race])[0]


def _records(s: Session, races: Sequence[Race]) -> list[RaceRecord]:
    rows = s.execute(
        select(RaceEntrant, Measurement, Verdict)
        .outerjoin(Measurement, Measurement.id == RaceEntrant.measurement_id)
        .outerjoin(Verdict, Verdict.id == RaceEntrant.verdict_id)
        .where(RaceEntrant.race_id.in_([race.id for race in races]))
        .order_by(RaceEntrant.race_id, RaceEntrant.position)
    ).all()
    entered: dict[int, list[EntrantResult]] = {race.id: [] for race in races}
    for entrant, measurement, verdict in rows:
        entered[entrant.race_id].append(_result(entrant, measurement, verdict))
    return [_told(race, entered[race.id]) for race in races]


def _told(race: Race, entrants: Sequence[EntrantResult]) -> RaceRecord:
    return RaceRecord(
        id=race.id,
        job_id=race.job_id,
        job_problem_id=race.job_problem_id,
        number=race.number,
        device_key=race.device_key,
        state=race.state,
        reason=race.reason,
        attempt=race.attempt,
        policy=race.policy,
        seed=race.seed,
        entrants=tuple(entrants),
        noise=race.noise,
        environment=race.environment,
        evidence=race.evidence or {},
        device_s=race.device_s,
        created_at=race.created_at,
        started_at=race.started_at,
        finished_at=race.finished_at,
    )
