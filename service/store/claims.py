"""Who may work on a trial, and what came of it?

Claim, renew, finish, give back, expire. A claim is a compare-and-swap on (state, attempt) that nobody
holds a lease on; it raises the attempt, and each reply must carry it. On Postgres the rows are locked
with SKIP LOCKED, so that claimers do not queue behind each other; on SQLite the transaction has the
write lock from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, select, tuple_, update
from sqlalchemy.orm import Session, undefer

from . import artifacts, clock, devices, emulations, jobs, moves, quarantines, shares, waiting
from .bounded import json_object, text
from .ends import FREE, end, lock, lock_of_token
from .enums import ArtifactKind, EmulationState, JobState, Stage, TrialReason, TrialState
from .evidence import add_measurement, add_verdict, fault_of
from .models import Emulation, Job, JobProblem, Problem, Trial
from .records import (
    ClaimId,
    CompileClaim,
    Compiled,
    CompileOutcome,
    Failed,
    MeasureClaim,
    Measured,
    MeasureOutcome,
    TrialRecord,
)
from .rows import trial_record
from .sql import changed, usable
from .transitions import TRIAL_OPEN

MAX_CLAIMS = 20
"""A trial that was given back in order again and again ends all the same."""

_OPEN_STAGES = [stage for stage in Stage if stage is not Stage.DONE]


def _taker(s: Session, waits: ColumnElement[bool]) -> Callable[[int, int], list[Trial]]:
    """Locks up to so many trials of a job that wait and that it has not given yet."""
    given: list[int] = []

    def take(job_id: int, count: int) -> list[Trial]:
        query = select(Trial).where(waits, Trial.job_id == job_id, Trial.id.not_in(given))
        query = query.order_by(Trial.number).limit(count).options(undefer(Trial.plan))
        locked = query.with_for_update(skip_locked=True, key_share=True)
        rows = list(s.scalars(locked.execution_options(populate_existing=True)))
        given.extend(row.id for row in rows)
        return rows

    return take


def _any(s: Session, waits: ColumnElement[bool], *also: ColumnElement[bool]) -> bool:
    running = select(Trial.id).join(Job, Job.id == Trial.job_id).where(waits, Job.state == JobState.RUNNING)
    return bool(s.scalar(select(and_(running.exists(), *also))))


def compile_waits(s: Session, archs: Sequence[str]) -> bool:
    """Whether claim_compile would find something; cheap, for a read session."""
    return _any(s, waiting.compiles(archs))


def measure_waits(s: Session, device_key: str) -> bool:
    """Whether claim_measure would find something; cheap, for a read session."""
    return _any(s, waiting.measures(device_key), devices.serving(device_key))


def claim_compile(
    s: Session, owner: str, limit: int, lease_s: float, archs: Sequence[str]
) -> list[CompileClaim]:
    """Takes up to `limit` trials to compile, of the running jobs whose turn it is (see shares.py)."""
    now = clock.now(s)
    claimed: set[int] = set()
    waits = waiting.compiles(archs)
    dealt = shares.deal(
        s,
        shares.COMPILE,
        waiting.owners_of_trials(s, waits),
        waiting.compiles_under_way(s),
        limit,
        _taker(s, waits),
    )
    for attempt, group in _by_attempt(dealt):
        seen = (
            Trial.id.in_([trial.id for trial in group])
            & (Trial.state == TrialState.PROPOSED)
            & (Trial.attempt == attempt)
            & Trial.lease_owner.is_(None)
        )
        taken = update(Trial).where(seen).values(**_lease(owner, lease_s, now, attempt)).returning(Trial.id)
        claimed.update(s.scalars(taken, execution_options={"synchronize_session": False}))
    specs = _specs(s, {trial.problem_key for trial in dealt})
    return [
        CompileClaim(
            trial_id=trial.id,
            attempt=trial.attempt + 1,
            job_id=trial.job_id,
            job_problem_id=trial.job_problem_id,
            problem=specs[trial.problem_key],
            schedule=trial.schedule,
            family=trial.family,
            arch=trial.arch,
            device_key=trial.device_key,
        )
        for trial in dealt
        if trial.id in claimed
    ]


def _by_attempt(dealt: Sequence[Trial]) -> list[tuple[int, list[Trial]]]:
    """Nearly always all in one."""
    found: dict[int, list[Trial]] = {}
    for trial in dealt:
        found.setdefault(trial.attempt, []).append(trial)
    return list(found.items())


def _specs(s: Session, keys: set[str]) -> dict[str, Any]:
    return {
        row.key: row.spec for row in s.execute(select(Problem.key, Problem.spec).where(Problem.key.in_(keys)))
    }


def finish_compile(s: Session, claim_id: ClaimId, outcome: CompileOutcome) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed. A schedule whose structure is
    known to be wrong ends at once, with that evidence."""
    if isinstance(outcome, Failed):
        held = _held(s, claim_id, TrialState.PROPOSED)
        if held is not None:
            end(s, held[0], outcome)
            shares.charge(s, shares.COMPILE, held[0].job_id, held[1], outcome.compile_s)
        return held is not None
    key = quarantines.toolchain_key(outcome.toolchain)
    # Before the trial is locked, as by whoever ends an emulation.
    emulation, policy = _emulation(s, claim_id, outcome, key)
    held = _held(s, claim_id, TrialState.PROPOSED)
    if held is None:
        return False
    trial, token_id = held
    built = _built(s, trial, outcome, key)
    if emulation is not None and emulation.state is EmulationState.FAILED:
        # before the quarantine, which knows less
        assert emulation.reason is not None
        found = emulations.failure_of(emulation, emulation.reason, trial.id)
        end(s, trial, found, **built)
    elif quarantines.holds(s, trial.arch, trial.schedule_key, key):
        failure = Failed(TrialState.REJECTED, TrialReason.QUARANTINED, {"toolchain_key": key})
        end(s, trial, failure, **built)
    elif trial.device_key is not None:
        onward = {"stage": Stage.MEASURE, "losses": 0, **FREE}
        moves.transition(s, trial, TrialState.COMPILED, columns={**built, **onward})
    elif emulation is not None and policy in _EMULATED and emulation.state is not EmulationState.PASSED:
        if emulation.state is EmulationState.UNDECIDED:
            assert emulation.reason is not None
            told = {**(emulation.evidence or {}), "emulation_id": emulation.id}
            end(s, trial, Failed(TrialState.FAILED, emulation.reason, told), **built)
        else:
            onward = {"stage": Stage.EMULATE, "losses": 0, **FREE}
            moves.transition(s, trial, TrialState.COMPILED, columns={**built, **onward})
    else:
        # no device was asked for: judged by the cost model is all it gets
        now = clock.now(s)
        ended = {"stage": Stage.DONE, "finished_at": now, **FREE}
        moves.transition(s, trial, TrialState.RANKED, at=now, columns={**built, **ended})
    shares.charge(s, shares.COMPILE, trial.job_id, token_id, outcome.compile_s)
    return True


_EMULATED = ("structure", "all")
"""Policies under which each trial of a search gets a verdict, its own or its structure's."""


def _emulation(
    s: Session, claim_id: ClaimId, outcome: Compiled, toolchain_key: str
) -> tuple[Emulation | None, str]:
    """The run that will speak for a trial, asked for where the job's policy wants it, and the policy."""
    if outcome.structure is None:
        return None, "never"
    trial = s.scalar(select(Trial).where(_is_held(*claim_id)).execution_options(populate_existing=True))
    if trial is None:
        return None, "never"
    policy = str(s.get_one(Job, trial.job_id).options.get("emulate", "structure"))
    key = emulations.structure_key(outcome.structure)
    known = emulations.find(s, trial.family, toolchain_key, key)
    wrong = known is not None and known.state is EmulationState.FAILED
    if policy not in _EMULATED or wrong:
        return known, policy
    own = policy == "all"
    return emulations.ensure(s, trial, outcome.structure, key, toolchain_key, own=own), policy


def claim_measure(
    s: Session, owner: str, device_key: str, limit: int, lease_s: float, *, ahead: bool = False
) -> list[MeasureClaim]:
    """Takes up to `limit` compiled trials of this device, of the running jobs whose turn it is; fewer when it
    is a race's turn next. None while the device is out of service. `ahead`: the device is still at work, and
    nobody has looked for a race: none when it is a race's turn."""
    if not devices.in_service(s, device_key):
        return []
    waits = waiting.measures(device_key)
    racing = waiting.owners_of_races(s, device_key)
    owners = waiting.owners_of_trials(s, waits)
    under_way = waiting.measures_under_way(s, device_key)
    if ahead and racing:
        chosen = shares.first(s, shares.measure(device_key), list({*racing, *owners}), under_way)
        if chosen in {one.job_id for one in racing}:
            return []
    if not owners:
        return []
    if ahead and _holds_a_suspect(s, owner):
        return []
    now = clock.now(s)
    dealt = shares.deal(
        s,
        shares.measure(device_key),
        owners,
        under_way,
        limit,
        _taker(s, waits),
        stop_at=racing,
    )
    dealt = _apart(dealt)
    for attempt, group in _by_attempt(dealt):
        lease = _lease(owner, lease_s, now, attempt)
        moves.transition_all(s, group, TrialState.MEASURING, at=now, columns=lease)
    about = _about(s, {trial.job_problem_id for trial in dealt})
    claims = []
    for trial in dealt:
        assert trial.artifact_sha256 is not None
        assert trial.plan is not None
        seed, policy, spec, best_us = about[trial.job_problem_id]
        claims.append(
            MeasureClaim(
                trial_id=trial.id,
                attempt=trial.attempt,
                job_id=trial.job_id,
                job_problem_id=trial.job_problem_id,
                problem=spec,
                schedule=trial.schedule,
                family=trial.family,
                arch=trial.arch,
                plan=trial.plan,
                artifact_sha256=trial.artifact_sha256,
                pool_sha256=trial.pool_sha256,
                policy=policy,
                best_us=best_us,
                # differs by trial, and is the same again when the trial is measured again
                seed=(seed * 1_000_003 + trial.number) % (1 << 31),
            )
        )
    return claims


def _about(s: Session, ids: set[int]) -> dict[int, tuple[int, Any, Any, float | None]]:
    """Seed, policy, problem and best time so far of these job problems."""
    if not ids:
        return {}
    query = (
        select(JobProblem.id, JobProblem.seed, Job.policy, Problem.spec, _best_us())
        .join(Job, Job.id == JobProblem.job_id)
        .join(Problem, Problem.key == JobProblem.problem_key)
        .where(JobProblem.id.in_(ids))
    )
    return {row[0]: (row[1], row[2], row[3], row[4]) for row in s.execute(query)}


def _apart(dealt: list[Trial]) -> list[Trial]:
    """What has lost a worker before goes alone: if it is what kills them, it takes no others along again."""
    lost = next((place for place, trial in enumerate(dealt) if trial.losses > 0), None)
    return dealt if lost is None else dealt[: max(1, lost)]


def _holds_a_suspect(s: Session, owner: str) -> bool:
    """Whether what the owner measures now has lost a worker before."""
    held = (Trial.stage == Stage.MEASURE) & (Trial.lease_owner == owner) & (Trial.losses > 0)
    return s.scalar(select(Trial.id).where(held).limit(1)) is not None


def finish_measure(s: Session, claim_id: ClaimId, outcome: MeasureOutcome) -> bool:
    """Writes the outcome; False: the claim is stale, and nothing was changed. A reason of
    QUARANTINE_REASONS also puts (schedule, toolchain) into quarantine, in the same transaction."""
    held = _held(s, claim_id, TrialState.MEASURING)
    if held is None:
        return False
    trial, token_id = held
    now = clock.now(s)
    used = outcome.device_s
    if used is None and trial.claimed_at is not None:
        used = max(0.0, (now - trial.claimed_at).total_seconds())
    device_s = (trial.device_s or 0.0) + (used or 0.0)
    failure = outcome if isinstance(outcome, Failed) else None
    if isinstance(outcome, Measured):
        add_verdict(s, outcome.verdict, trial_id=trial.id, artifact_sha256=trial.artifact_sha256)
        failure = fault_of(outcome.measurement, outcome.verdict)
    if failure is not None:
        end(s, trial, failure, device_s=device_s)
    elif isinstance(outcome, Measured):
        add_measurement(s, outcome.measurement, trial_id=trial.id)
        told = {"time_us": outcome.measurement.median_us, "contended": outcome.measurement.contended}
        to = TrialState.CULLED if outcome.culled else TrialState.MEASURED
        reason = TrialReason.SLOWER if outcome.culled else None
        ended = {"stage": Stage.DONE, "reason": reason, "finished_at": now, "device_s": device_s, **FREE}
        moves.transition(s, trial, to, reason, columns={**ended, **told}, data=told, at=now)
    assert trial.device_key is not None
    jobs.stand_still(s, trial.device_key, trial.job_id, used or 0.0)
    shares.charge(s, shares.measure(trial.device_key), trial.job_id, token_id, used)
    return True


def renew(s: Session, claim_ids: Sequence[ClaimId], lease_s: float) -> list[ClaimId]:
    """Extends the leases; returns the claims that are still held: stop work on the others."""
    if not claim_ids:
        return []
    until = clock.now(s) + timedelta(seconds=lease_s)
    # locked in order, so that two renewals never wait for each other's rows in a circle
    held = select(Trial.id).where(
        tuple_(Trial.id, Trial.attempt).in_(sorted(claim_ids)),
        Trial.lease_owner.is_not(None),
        Trial.state.in_(TRIAL_OPEN),
    )
    held = held.order_by(Trial.id).with_for_update(key_share=True)
    renewed = update(Trial).where(Trial.id.in_(held)).values(lease_expires_at=until)
    renewed = renewed.returning(Trial.id, Trial.attempt).execution_options(synchronize_session=False)
    return sorted((row.id, row.attempt) for row in s.execute(renewed))


def release(s: Session, claim_ids: Sequence[ClaimId]) -> int:
    """Gives claims back unharmed (a worker that stops); returns how many were still held."""
    held = 0
    for trial_id, attempt in sorted(claim_ids):
        trial = lock(s, _is_held(trial_id, attempt))
        if trial is not None:
            _give_back(s, trial, "released", over=trial.attempt >= MAX_CLAIMS)
            held += 1
    return held


def expire(
    s: Session, *, owner: str | None = None, max_attempts: int = 3, limit: int = 100
) -> list[TrialRecord]:
    """Gives back the trials whose lease ran out (or all that `owner` holds: it is known dead). One
    that lost its worker `max_attempts` times ends as failed: worker_lost. Returns what it touched."""
    lost = Trial.lease_expires_at < clock.now(s) if owner is None else Trial.lease_owner == owner
    # by stage and lease, which are indexed; ordered by id SQLite would walk through every trial ever
    query = (
        select(Trial)
        .where(lost, Trial.lease_owner.is_not(None), Trial.stage.in_(_OPEN_STAGES))
        .order_by(Trial.lease_expires_at)
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
    )
    touched = []
    for trial in s.scalars(query.execution_options(populate_existing=True)).all():
        losses = trial.losses + 1
        over = losses >= max_attempts or trial.attempt >= MAX_CLAIMS
        _give_back(s, trial, TrialReason.WORKER_LOST, over=over, losses=losses)
        touched.append(trial_record(trial))
    return touched


def _lease(owner: str, lease_s: float, now: datetime, attempt: int) -> dict[str, Any]:
    return {
        "attempt": attempt + 1,
        "lease_owner": owner,
        "lease_expires_at": now + timedelta(seconds=lease_s),
        "claimed_at": now,
    }


def _is_held(trial_id: int, attempt: int) -> Any:
    return (
        (Trial.id == trial_id)
        & (Trial.attempt == attempt)
        & Trial.lease_owner.is_not(None)
        & Trial.state.in_(TRIAL_OPEN)
    )


def _held(s: Session, claim_id: ClaimId, state: TrialState) -> tuple[Trial, int | None] | None:
    """The trial, locked, and its job's token."""
    return lock_of_token(s, _is_held(*claim_id) & (Trial.state == state))


def _give_back(
    s: Session, trial: Trial, reason: TrialReason | str, *, over: bool, losses: int | None = None
) -> None:
    losses = trial.losses if losses is None else losses
    told = {"attempt": trial.attempt, "losses": losses, "owner": trial.lease_owner}
    if over:
        failure = Failed(TrialState.FAILED, TrialReason.WORKER_LOST, told)
        end(s, trial, failure, losses=losses)
    elif trial.state is TrialState.MEASURING:
        columns = {"losses": losses, **FREE}
        moves.transition(s, trial, TrialState.COMPILED, reason, columns=columns, data=told)
    else:
        changed(s, update(Trial).where(Trial.id == trial.id).values(losses=losses, **FREE))
        s.refresh(trial)
        moves.stayed(s, trial, reason, data=told)


def _built(s: Session, trial: Trial, outcome: Compiled, toolchain_key: str) -> dict[str, Any]:
    artifacts.put(
        s,
        outcome.artifact_sha256,
        outcome.artifact_bytes,
        ArtifactKind.KERNEL,
        outcome.recipe,
        trial.arch,
        outcome.ptx,
    )
    structure = outcome.structure
    return {
        "artifact_sha256": outcome.artifact_sha256,
        "pool_sha256": outcome.pool_sha256,
        "toolchain_key": toolchain_key,
        "toolchain": dict(outcome.toolchain),
        "plan": dict(outcome.plan),
        "resources": json_object(outcome.resources),
        "log": text(outcome.log),
        "compile_s": outcome.compile_s,
        "structure": None if structure is None else dict(structure),
        "structure_key": None if structure is None else emulations.structure_key(structure),
    }


def _best_us() -> ScalarSelect[float | None]:
    """The best time of a JobProblem."""
    query = select(Trial.time_us).where(
        Trial.job_problem_id == JobProblem.id,
        Trial.state == TrialState.MEASURED,
        Trial.contended.is_(False),
        usable(Trial.time_us),
    )
    return query.order_by(Trial.time_us).limit(1).correlate(JobProblem).scalar_subquery()
