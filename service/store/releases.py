"""What is served, what was, and what changed since?

Primitives only: who wins, and when to publish, roll back or withdraw, is decided in service.jobs.
A record returned by the transaction that made a change still has the old `change_id`: the new one is
drawn when that transaction commits (events.py says why).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Select, bindparam, func, select, tuple_
from sqlalchemy.orm import Session, undefer

from . import clock, moves
from .enums import ReleaseState, TrialState, Winner
from .errors import NotFound, ReleasePinned, StoreError
from .models import JobProblem, Problem, Quarantine, Release, Trial
from .records import NewRelease, Page, ReleaseFilter, ReleaseRecord

_Q = TypeVar("_Q", bound=Select[*tuple[Any, ...]])


def create(s: Session, new: NewRelease) -> ReleaseRecord:
    """Writes a candidate with the next generation of its (problem, device, policy)."""
    job_problem = s.get(JobProblem, new.job_problem_id)
    if job_problem is None:
        raise NotFound("job problem", new.job_problem_id)
    if job_problem.device_key is None:
        raise StoreError(f"Job problem {new.job_problem_id} has no device to release for.")
    if not (math.isfinite(new.time_us) and new.time_us > 0):
        raise StoreError(f"A release needs a finite positive time, not {new.time_us}.")
    problem = s.get_one(Problem, job_problem.problem_key)
    line = (
        Release.problem_key == problem.key,
        Release.device_key == job_problem.device_key,
        Release.policy_key == new.policy_key,
    )
    last = s.scalar(select(func.max(Release.generation)).where(*line))
    row = Release(
        problem_key=problem.key,
        layer_key=problem.layer_key,
        device_key=job_problem.device_key,
        arch=job_problem.arch,
        policy_key=new.policy_key,
        generation=1 if last is None else last + 1,
        state=ReleaseState.CANDIDATE,
        pinned=False,
        winner=new.winner,
        job_id=job_problem.job_id,
        job_problem_id=job_problem.id,
        trial_id=new.trial_id,
        race_id=new.race_id,
        time_us=new.time_us,
        baseline_time_us=new.baseline_time_us,
        reason=new.reason,
        unproven=new.unproven,
        change_id=0,
        created_at=clock.now(s),
        policy=dict(new.policy),
        baseline=dict(new.baseline),
        tie_set=[dict(one) for one in new.tie_set],
        noise=dict(new.noise),
        **_served(s, new),
    )
    s.add(row)
    s.flush()
    moves.born(s, row)
    return _record(row, problem)


def publish(s: Session, release_id: int, reason: str = "", *, over_pin: bool = False) -> ReleaseRecord:
    """Serves this release (a candidate, or for a rollback a superseded one); the one served until now
    becomes superseded. ReleasePinned if that one is pinned, unless `over_pin`."""
    row = _lock(s, release_id)
    if row.state is ReleaseState.PUBLISHED:
        return _with_problem(s, row)
    served = s.scalar(
        select(Release)
        .where(
            Release.problem_key == row.problem_key,
            Release.device_key == row.device_key,
            Release.policy_key == row.policy_key,
            Release.state == ReleaseState.PUBLISHED,
        )
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    now = clock.now(s)
    if served is not None:
        if served.pinned and not over_pin:
            raise ReleasePinned(served.id)
        gone = {"pinned": False, "ended_at": now}
        moves.transition(
            s, served, ReleaseState.SUPERSEDED, reason, columns=gone, data={"by": row.id}, at=now
        )
    columns: dict[str, Any] = {"published_at": now, "ended_at": None}
    if reason:
        columns["reason"] = reason
    moves.transition(s, row, ReleaseState.PUBLISHED, reason, columns=columns, at=now)
    return _with_problem(s, row)


def set_unproven(s: Session, release_id: int, unproven: bool) -> ReleaseRecord:
    """Says whether an emulated verdict is missing that its family needs."""
    row = _lock(s, release_id)
    if row.unproven != unproven:
        row.unproven = unproven
        s.flush()
        # what is shown of it changed, so whoever keeps a copy has to hear of it
        moves.stayed(s, row, "unproven" if unproven else "proven")
    return _with_problem(s, row)


def supersede(s: Session, release_id: int, reason: str = "") -> ReleaseRecord:
    """Stops serving this release without another in its place; may be published again later."""
    return _retire(s, release_id, ReleaseState.SUPERSEDED, reason)


def withdraw(s: Session, release_id: int, reason: str) -> ReleaseRecord:
    """Takes it back for good; pinned or not. Withdrawing twice is a no-op."""
    return _retire(s, release_id, ReleaseState.WITHDRAWN, reason)


def pin(s: Session, release_id: int, pinned: bool, reason: str = "") -> ReleaseRecord:
    """Sets or clears the pin; StoreError unless it is published."""
    row = _lock(s, release_id)
    if row.pinned == pinned:
        return _with_problem(s, row)
    if row.state is not ReleaseState.PUBLISHED:
        raise StoreError(f"Release {release_id} is {row.state}; only a published one can be pinned.")
    row.pinned = pinned
    s.flush()
    moves.stayed(s, row, "pinned" if pinned else "unpinned", data={"reason": reason})
    return _with_problem(s, row)


def lock(s: Session, release_id: int) -> ReleaseRecord:
    """As it is now, and stays until this transaction ends but for what this one does."""
    return _with_problem(s, _lock(s, release_id))


def get(s: Session, release_id: int) -> ReleaseRecord | None:
    return _one(s, _releases().where(Release.id == release_id))


def lines(s: Session, release_ids: Sequence[int]) -> list[tuple[str, str, str]]:
    """(problem key, device key, policy key) of each of these releases."""
    query = select(Release.problem_key, Release.device_key, Release.policy_key)
    return [(row[0], row[1], row[2]) for row in s.execute(query.where(Release.id.in_(release_ids)))]


def newest_trial(s: Session, device_key: str, policy_key: str) -> int | None:
    """The trial behind the newest release of ours that is served for a device, whatever its problem."""
    query = select(Release.trial_id).where(
        Release.device_key == device_key,
        Release.policy_key == policy_key,
        Release.state == ReleaseState.PUBLISHED,
        Release.trial_id.is_not(None),
    )
    return s.scalar(query.order_by(Release.id.desc()).limit(1))


def best(s: Session, problem_key: str, device_key: str, policy_key: str) -> ReleaseRecord | None:
    """The published one."""
    line = _line(_releases(), problem_key, device_key, policy_key)
    return _one(s, line.where(Release.state == ReleaseState.PUBLISHED))


def served(
    s: Session, lines: Collection[tuple[str, str, str]]
) -> dict[tuple[str, str, str], tuple[ReleaseRecord, str | None]]:
    """By (problem key, device key, policy key): the published one, and by which toolchain the newest timed
    trial of its family on its device was built. All that lookups need, in one statement for all of them."""
    rows = s.connection().execute(_SERVED, {"lines": list(lines)}).all()
    found = {}
    for row in rows:
        values = row._mapping
        told = {name: values[name] for name in _SHOWN} | {"tie_set": tuple(values["tie_set"])}
        record = ReleaseRecord(**told)
        line = (record.problem_key, record.device_key, record.policy_key)
        found[line] = (record, values["newest_toolchain"])
    return found


def history(s: Session, problem_key: str, device_key: str, policy_key: str) -> list[ReleaseRecord]:
    """All generations, newest first."""
    line = _line(_releases(), problem_key, device_key, policy_key)
    return _all(s, line.order_by(Release.generation.desc()))


def for_problem(
    s: Session, problem_key: str, policy_key: str | None = None, arch: str | None = None
) -> list[ReleaseRecord]:
    """Published ones of this problem on any device (of an arch): near misses, `foreign` answers."""
    where = ReleaseFilter(problem_key=problem_key, policy_key=policy_key, arch=arch)
    return _all(s, _filtered(_releases(), where).order_by(Release.id))


def for_layer(
    s: Session, layer_key: str, device_key: str, policy_key: str | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Id and problem of the published ones of this layer at any size on one device: what a table holds."""
    where = ReleaseFilter(layer_key=layer_key, device_key=device_key, policy_key=policy_key)
    query = select(Release.id, Problem.spec).join(Problem, Problem.key == Release.problem_key)
    return [(row[0], row[1]) for row in s.execute(_filtered(query, where).order_by(Release.id))]


def several(s: Session, ids: Sequence[int]) -> list[ReleaseRecord]:
    """Those of these ids, in their order."""
    found = {row.id: row for row in _all(s, _releases().where(Release.id.in_(ids)))}
    return [found[one] for one in ids if one in found]


def listing(
    s: Session, where: ReleaseFilter | None = None, *, after: tuple[int] | None = None, limit: int = 50
) -> Page[ReleaseRecord]:
    """Newest first by id, filtered."""
    query = _filtered(_releases(), where or ReleaseFilter()).order_by(Release.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(Release.id < after[0])
    rows = _all(s, query)
    return Page(tuple(rows[:limit]), (rows[limit - 1].id,) if len(rows) > limit else None)


def changes(
    s: Session, *, after: int = 0, device_key: str | None = None, limit: int = 200
) -> list[ReleaseRecord]:
    """What changed after `change_id` `after` (a client's bulk refresh), oldest change first: published,
    superseded and withdrawn ones, each once with its present state."""
    query = _releases().where(Release.change_id > after, Release.state != ReleaseState.CANDIDATE)
    if device_key is not None:
        query = query.where(Release.device_key == device_key)
    return _all(s, query.order_by(Release.change_id).limit(limit))


def quarantined(s: Session) -> list[ReleaseRecord]:
    """Published ones whose (schedule, toolchain) is in quarantine: to be withdrawn."""
    query = _releases().join(
        Quarantine,
        (Quarantine.arch == Release.arch)
        & (Quarantine.schedule_key == Release.schedule_key)
        & (Quarantine.toolchain_key == Release.toolchain_key)
        & Quarantine.lifted_at.is_(None),
    )
    return _all(s, query.where(Release.state == ReleaseState.PUBLISHED).order_by(Release.id))


def counts(s: Session) -> dict[ReleaseState, int]:
    """How many releases there are in each state (states with none are left out)."""
    rows = s.execute(select(Release.state, func.count()).group_by(Release.state)).all()
    return {row[0]: row[1] for row in rows}


def _served(s: Session, new: NewRelease) -> dict[str, Any]:
    if new.winner is Winner.BASELINE:
        return {}
    wanted = [undefer(Trial.plan), undefer(Trial.toolchain)]
    trial = None if new.trial_id is None else s.get(Trial, new.trial_id, options=wanted)
    if trial is None or trial.artifact_sha256 is None or trial.plan is None:
        raise StoreError(f"Trial {new.trial_id} has no artifact and can not be released.")
    return {
        "family": trial.family,
        "schedule": trial.schedule,
        "schedule_key": trial.schedule_key,
        "plan": trial.plan,
        "toolchain": trial.toolchain,
        "toolchain_key": trial.toolchain_key,
        "artifact_sha256": trial.artifact_sha256,
        "pool_sha256": trial.pool_sha256,
    }


def _retire(s: Session, release_id: int, to: ReleaseState, reason: str) -> ReleaseRecord:
    row = _lock(s, release_id)
    if row.state is not to:
        now = clock.now(s)
        columns = {"pinned": False, "ended_at": now, "reason": reason}
        moves.transition(s, row, to, reason, columns=columns, at=now)
    return _with_problem(s, row)


def _lock(s: Session, release_id: int) -> Release:
    query = select(Release).where(Release.id == release_id).with_for_update(key_share=True)
    row = s.scalar(query.execution_options(populate_existing=True))
    if row is None:
        raise NotFound("release", release_id)
    return row


def _releases() -> Select[Release, Problem]:
    query = select(Release, Problem).join(Problem, Problem.key == Release.problem_key)
    return query.execution_options(populate_existing=True)


def _line(
    query: Select[Release, Problem], problem_key: str, device_key: str, policy_key: str
) -> Select[Release, Problem]:
    return query.where(
        Release.problem_key == problem_key,
        Release.device_key == device_key,
        Release.policy_key == policy_key,
    )


def _filtered(query: _Q, where: ReleaseFilter) -> _Q:
    exact = {
        Problem.op: where.op,
        Problem.dtype: where.dtype,
        Release.device_key: where.device_key,
        Release.arch: where.arch,
        Release.layer_key: where.layer_key,
        Release.problem_key: where.problem_key,
        Release.policy_key: where.policy_key,
        Release.winner: where.winner,
    }
    query = query.where(*[column == value for column, value in exact.items() if value is not None])
    return query.where(Release.state.in_(where.states)) if where.states else query


def _one(s: Session, query: Select[Release, Problem]) -> ReleaseRecord | None:
    found = s.execute(query).one_or_none()
    return None if found is None else _record(found[0], found[1])


def _all(s: Session, query: Select[Release, Problem]) -> list[ReleaseRecord]:
    return [_record(row, problem) for row, problem in s.execute(query).all()]


def _with_problem(s: Session, row: Release) -> ReleaseRecord:
    return _record(row, s.get_one(Problem, row.problem_key))


def _record(row: Release, problem: Problem) -> ReleaseRecord:
    return ReleaseRecord(
        id=row.id,
        problem_key=row.problem_key,
        layer_key=row.layer_key,
        problem=problem.spec,
        title=problem.title,
        op=problem.op,
        device_key=row.device_key,
        arch=row.arch,
        policy=row.policy,
        policy_key=row.policy_key,
        generation=row.generation,
        state=row.state,
        pinned=row.pinned,
        winner=row.winner,
        job_id=row.job_id,
        job_problem_id=row.job_problem_id,
        trial_id=row.trial_id,
        race_id=row.race_id,
        family=row.family,
        schedule=row.schedule,
        schedule_key=row.schedule_key,
        plan=row.plan,
        toolchain=row.toolchain,
        toolchain_key=row.toolchain_key,
        artifact_sha256=row.artifact_sha256,
        pool_sha256=row.pool_sha256,
        time_us=row.time_us,
        baseline_time_us=row.baseline_time_us,
        baseline=row.baseline,
        tie_set=tuple(row.tie_set),
        noise=row.noise,
        reason=row.reason,
        unproven=row.unproven,
        created_at=row.created_at,
        published_at=row.published_at,
        ended_at=row.ended_at,
        change_id=row.change_id,
    )


def _served_statement() -> Select[Any]:
    newest = (
        select(Trial.toolchain_key)
        .where(
            Trial.device_key == Release.device_key,
            Trial.family == Release.family,
            Trial.state.in_((TrialState.MEASURED, TrialState.CULLED)),
        )
        .order_by(Trial.id.desc())
        .limit(1)
        .correlate(Release)
        .scalar_subquery()
    )
    columns = [getattr(Release, name) for name in _SHOWN if name not in _OF_PROBLEM]
    of_problem = [column.label(name) for name, column in _OF_PROBLEM.items()]
    return (
        select(*columns, *of_problem, newest.label("newest_toolchain"))
        .join(Problem, Problem.key == Release.problem_key)
        .where(
            tuple_(Release.problem_key, Release.device_key, Release.policy_key).in_(
                bindparam("lines", expanding=True)
            ),
            Release.state == ReleaseState.PUBLISHED,
        )
    )


_SHOWN = tuple(one.name for one in fields(ReleaseRecord))
_OF_PROBLEM = {"problem": Problem.spec, "title": Problem.title, "op": Problem.op}
_SERVED = _served_statement()
