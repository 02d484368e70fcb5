"""Which jobs and job problems are there, and how do they move?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from . import clock, moves, owners
from . import problems as problem_rows
from .enums import JobProblemReason, JobProblemState, JobReason, JobState
from .errors import Conflict, NotFound
from .models import Job, JobProblem, Problem
from .records import JobProblemRecord, JobRecord, Json, NewJob, NewJobProblem, Page, ProblemName
from .sql import changed, insert_ignoring
from .transitions import JOB, JOB_PROBLEM, final

_RUNS = (JobState.RUNNING, JobState.FINISHING)
_JOB_FINAL = final(JOB)
_PROBLEM_FINAL = final(JOB_PROBLEM)


class Sharer(NamedTuple):
    """A running job of a device; `active`: its problem there has begun."""

    job_id: int
    token_id: int | None
    priority: int
    active: bool


def create(s: Session, new: NewJob) -> tuple[JobRecord, bool]:
    """Writes the job, its problems and its first event. (job, True), or (the open job with the same
    dedup_key, False): of equal requests at the same moment exactly one creates. The job that is joined has
    the higher of the priorities from then on, and one owner more."""
    now = clock.now(s)
    ended = new.state in _JOB_FINAL
    if new.dedup_key is not None and not ended and (twin := _open_twin(s, new.dedup_key)) is not None:
        return _joined(s, twin, new, now), False
    job = Job(
        state=new.state,
        reason=new.reason,
        message=new.message,
        priority=new.priority,
        seed=new.seed,
        token_id=new.token_id,
        dedup_key=None,
        policy_key=new.policy_key,
        budget_trials=new.budget_trials,
        budget_seconds=new.budget_seconds,
        budget_device_seconds=new.budget_device_seconds,
        created_at=now,
        finished_at=now if ended else None,
        ran_s=0.0,
        policy=dict(new.policy),
        target=dict(new.target),
        options=dict(new.options),
        request=dict(new.request),
    )
    if new.dedup_key is not None:
        # The unique index decides between equal requests: the later one waits here for the earlier
        # one's commit, and then finds its job.
        values = {c.key: getattr(job, c.key) for c in Job.__mapper__.column_attrs if c.key != "id"}
        if not insert_ignoring(s, Job, {**values, "dedup_key": new.dedup_key}):
            twin = _open_twin(s, new.dedup_key)
            if twin is None:
                raise Conflict("The open job with the same request ended at this moment.")
            return _joined(s, twin, new, now), False
        job = s.scalars(_newest_with(new.dedup_key)).one()
    else:
        s.add(job)
        s.flush()
    for position, one in enumerate(new.problems):
        _add(s, job.id, position, one, now if ended else None)
    s.flush()
    moves.born(s, job, at=now)
    return _job(job, now), True


def extend(s: Session, job_id: int, more: Sequence[NewJobProblem]) -> None:
    """Gives a running job more problems; nothing once it has ended."""
    job = lock(s, job_id)
    if job.state in _JOB_FINAL:
        return
    last = s.scalar(select(func.max(JobProblem.position)).where(JobProblem.job_id == job_id))
    for position, one in enumerate(more, 0 if last is None else last + 1):
        _add(s, job_id, position, one, None)
    s.flush()


def get(s: Session, job_id: int) -> JobRecord | None:
    query = select(Job, clock.column(s)).where(Job.id == job_id)
    found = s.execute(query.execution_options(populate_existing=True)).one_or_none()
    if found is None:
        return None
    clock.told(s, found[1])
    return _job(found[0], clock.now(s))


def searches(s: Session, job_problem_id: int) -> bool:
    """Whether the job runs and this problem of it is being searched."""
    query = select(JobProblem.id).join(Job, Job.id == JobProblem.job_id)
    under_way = query.where(Job.state == JobState.RUNNING, JobProblem.state == JobProblemState.SEARCHING)
    return s.scalar(under_way.where(JobProblem.id == job_problem_id)) is not None


def listing(
    s: Session,
    *,
    states: Sequence[JobState] | None = None,
    token_id: int | None = None,
    op: str | None = None,
    after: tuple[int] | None = None,
    limit: int = 50,
) -> Page[JobRecord]:
    """Newest first; `op`: with a problem of it; `after` is the `next` of the page before."""
    query = select(Job).order_by(Job.id.desc()).limit(limit + 1)
    if states is not None:
        query = query.where(Job.state.in_(states))
    if token_id is not None:
        query = query.where(Job.token_id == token_id)
    if op is not None:
        mine = select(JobProblem.id).join(Problem, Problem.key == JobProblem.problem_key)
        query = query.where(mine.where(JobProblem.job_id == Job.id, Problem.op == op).exists())
    if after is not None:
        query = query.where(Job.id < after[0])
    rows = s.scalars(query).all()
    now = clock.now(s)
    more = len(rows) > limit
    return Page(tuple(_job(row, now) for row in rows[:limit]), (rows[limit - 1].id,) if more else None)


def advanceable(s: Session, after: int = 0, limit: int = 100) -> tuple[list[int], int]:
    """Ids of jobs that a search worker should look at (open and not paused) by priority, then age, and the
    `after` of its next call: all that run, and of those that may begin `limit`, the next ones in turn."""
    ranks = select(Job.priority, Job.id)
    running = [*s.execute(ranks.where(Job.state.in_(_RUNS)))]
    idle = ranks.where(Job.state.in_((JobState.QUEUED, JobState.WAITING))).order_by(Job.id)
    found = [*s.execute(idle.where(Job.id > after).limit(limit))]
    if after > 0 and len(found) < limit:
        found += s.execute(idle.where(Job.id <= after).limit(limit - len(found)))
    ordered = sorted((*running, *found), key=lambda row: (-row.priority, row.id))
    return [row.id for row in ordered], found[-1].id if found else 0


def sharers(s: Session, device_key: str) -> list[Sharer]:
    """The running jobs that have a problem of this device which has not ended."""
    query = (
        select(Job.id, Job.token_id, Job.priority, JobProblem.state)
        .join(JobProblem, JobProblem.job_id == Job.id)
        .where(
            Job.state == JobState.RUNNING,
            JobProblem.device_key == device_key,
            JobProblem.state.not_in(_PROBLEM_FINAL),
        )
    )
    found: dict[int, Sharer] = {}
    for job_id, token_id, priority, state in s.execute(query):
        active = state is not JobProblemState.QUEUED
        known = found.get(job_id)
        found[job_id] = Sharer(job_id, token_id, priority, active or (known is not None and known.active))
    return list(found.values())


def stand_still(s: Session, device_key: str, job_id: int, used_s: float) -> None:
    """Tells the others that share a device that it worked so long for this job: it is not on their clocks.
    For this package."""
    query = (
        select(JobProblem.id)
        .join(Job, Job.id == JobProblem.job_id)
        .where(
            JobProblem.device_key == device_key,
            JobProblem.state.in_((JobProblemState.SEARCHING, JobProblemState.RACING)),
            Job.id != job_id,
            Job.state == JobState.RUNNING,
        )
        # one that is being moved at this moment has its clock a trial ahead: better than to wait for it
        .with_for_update(of=JobProblem, skip_locked=True, key_share=True)
    )
    if ids := list(s.scalars(query)):
        longer = update(JobProblem).where(JobProblem.id.in_(ids))
        changed(s, longer.values(shared_s=JobProblem.shared_s + used_s))


def counts(s: Session) -> dict[JobState, int]:
    """How many jobs there are in each state (states with none are left out)."""
    rows = s.execute(select(Job.state, func.count()).group_by(Job.state)).all()
    return {row[0]: row[1] for row in rows}


def move(
    s: Session,
    job_id: int,
    to: JobState,
    reason: JobReason | None = None,
    message: str = "",
    data: Json | None = None,
) -> JobRecord:
    """Moves a job by the transition table and writes the event. NotFound, IllegalTransition, Conflict.
    Moving to the state it has already is a no-op (reason and message are renewed, no event)."""
    job = lock(s, job_id)
    now = clock.now(s)
    columns: dict[str, Any] = {"reason": reason, "message": message}
    if job.state is to:
        _set(s, job, columns)
        return _job(job, now)
    # the clock of the job: only what it spends in running and finishing counts
    if job.running_since is not None and to not in _RUNS:
        columns["ran_s"] = job.ran_s + (now - job.running_since).total_seconds()
        columns["running_since"] = None
    elif job.running_since is None and to in _RUNS:
        columns["running_since"] = now
    if to is JobState.RUNNING and job.started_at is None:
        columns["started_at"] = now
    if to in _JOB_FINAL:
        columns["finished_at"] = now
    moves.transition(s, job, to, reason, columns=columns, data=data, at=now)
    return _job(job, now)


def lock(s: Session, job_id: int) -> Job:
    """The row, locked against other moves until the transaction ends; NotFound. For this package."""
    query = select(Job).where(Job.id == job_id).with_for_update(key_share=True)
    job = s.scalar(query.execution_options(populate_existing=True))
    if job is None:
        raise NotFound("job", job_id)
    return job


def leave(s: Session, job_id: int, token_id: int | None) -> bool:
    """As `owners.leave`, for an open job that is locked here."""
    return owners.leave(s, lock(s, job_id), token_id)


def raise_priority(s: Session, job_id: int, priority: int) -> bool:
    """Gives an open job this priority where its own is lower; whether it was. Else nothing is locked."""
    lower = (Job.id == job_id) & Job.finished_at.is_(None) & (Job.priority < priority)
    return changed(s, update(Job).where(lower).values(priority=priority)) == 1


def problems(s: Session, job_id: int) -> list[JobProblemRecord]:
    """The problems of a job in their order."""
    query = _problems().where(JobProblem.job_id == job_id).order_by(JobProblem.position)
    now = clock.now(s)
    return [_problem(row, spec, now) for row, spec in s.execute(query).all()]


def names(s: Session, job_ids: Sequence[int]) -> dict[int, list[ProblemName]]:
    """What the problems of each of these jobs are called, in their order, by job id."""
    query = (
        select(JobProblem.job_id, Problem.title, JobProblem.device_key, JobProblem.arch)
        .join(Problem, Problem.key == JobProblem.problem_key)
        .where(JobProblem.job_id.in_(job_ids))
        .order_by(JobProblem.job_id, JobProblem.position)
    )
    found: dict[int, list[ProblemName]] = {job_id: [] for job_id in job_ids}
    for job_id, title, device_key, arch in s.execute(query).all():
        found[job_id].append(ProblemName(title, device_key, arch))
    return found


def problem(s: Session, job_problem_id: int) -> JobProblemRecord | None:
    found = s.execute(_problems().where(JobProblem.id == job_problem_id)).one_or_none()
    return None if found is None else _problem(found[0], found[1], clock.now(s))


def of_problem_key(
    s: Session,
    problem_key: str,
    device_key: str | None = None,
    limit: int = 50,
    *,
    before: int | None = None,
) -> list[JobProblemRecord]:
    """Where a problem was or is tuned, newest first; with `before` those of a lower id."""
    query = _problems().where(JobProblem.problem_key == problem_key).order_by(JobProblem.id.desc())
    if before is not None:
        query = query.where(JobProblem.id < before)
    if device_key is not None:
        query = query.where(JobProblem.device_key == device_key)
    now = clock.now(s)
    return [_problem(row, spec, now) for row, spec in s.execute(query.limit(limit)).all()]


def move_problem(
    s: Session,
    job_problem_id: int,
    to: JobProblemState,
    reason: JobProblemReason | None = None,
    message: str = "",
    data: Json | None = None,
) -> JobProblemRecord:
    """As `move`, for one problem. SEARCHING sets started_at, an end sets finished_at."""
    row = _lock_problem(s, job_problem_id)
    now = clock.now(s)
    columns: dict[str, Any] = {"reason": reason, "message": message}
    if row.state is to:
        _set(s, row, columns)
    else:
        if to is JobProblemState.SEARCHING and row.started_at is None:
            columns["started_at"] = now
        if to in _PROBLEM_FINAL:
            columns["finished_at"] = now
        moves.transition(s, row, to, reason, columns=columns, data=data, at=now)
    return _problem(row, _spec(s, row), now)


def set_budget(
    s: Session,
    job_problem_id: int,
    *,
    trials: int | None,
    seconds: float | None,
    device_seconds: float | None,
) -> None:
    """Sets the share of a problem, as when an earlier one leaves seconds over."""
    _change_problem(
        s, job_problem_id, budget_trials=trials, budget_seconds=seconds, budget_device_seconds=device_seconds
    )


def remember(s: Session, job_problem_id: int, search: Json) -> None:
    """Replaces `search` of the problem."""
    _change_problem(s, job_problem_id, search=dict(search))


def _joined(s: Session, twin: Job, new: NewJob, now: datetime) -> JobRecord:
    """The open job, for one more who asked for the same. It goes on where it was paused: nobody pauses it
    for others."""
    if twin.priority < new.priority:
        raise_priority(s, twin.id, new.priority)
        s.refresh(twin)
    if owners.has(s, twin, new.token_id):
        return _job(twin, now)  # as a rule who asks again: nothing is locked
    job = lock(s, twin.id)  # against the cancel of the last owner
    if job.finished_at is not None:
        raise Conflict("The open job with the same request ended at this moment.")
    if not owners.has(s, job, new.token_id):
        owners.join(s, job, new.token_id)
        if job.state is JobState.PAUSED:
            return move(s, job.id, JobState.QUEUED)
    return _job(job, now)


def _add(s: Session, job_id: int, position: int, one: NewJobProblem, ended_at: datetime | None) -> None:
    """`ended_at`: of a job that has nothing to do."""
    problem_rows.put(s, one.problem)
    s.add(
        JobProblem(
            job_id=job_id,
            position=position,
            problem_key=one.problem.key,
            device_key=one.device_key,
            arch=one.arch,
            weight=one.weight,
            role=one.role,
            line=one.line,
            state=JobProblemState.QUEUED if ended_at is None else JobProblemState.DONE,
            reason=None if ended_at is None else JobProblemReason.EMPTY_PROBLEM,
            message="",
            budget_trials=one.budget_trials,
            budget_seconds=one.budget_seconds,
            budget_device_seconds=one.budget_device_seconds,
            seed=one.seed,
            finished_at=ended_at,
            shared_s=0.0,
            search=dict(one.search),
        )
    )


def _open_twin(s: Session, dedup_key: str) -> Job | None:
    return s.scalar(select(Job).where(Job.dedup_key == dedup_key, Job.finished_at.is_(None)))


def _newest_with(dedup_key: str) -> Select[Job]:
    return select(Job).where(Job.dedup_key == dedup_key).order_by(Job.id.desc()).limit(1)


def _problems() -> Select[JobProblem, Problem]:
    query = select(JobProblem, Problem).join(Problem, Problem.key == JobProblem.problem_key)
    return query.execution_options(populate_existing=True)


def _lock_problem(s: Session, job_problem_id: int) -> JobProblem:
    query = select(JobProblem).where(JobProblem.id == job_problem_id).with_for_update(key_share=True)
    row = s.scalar(query.execution_options(populate_existing=True))
    if row is None:
        raise NotFound("job problem", job_problem_id)
    return row


def _spec(s: Session, row: JobProblem) -> Problem:
    return s.get_one(Problem, row.problem_key)


def _set(s: Session, row: Job | JobProblem, columns: dict[str, Any]) -> None:
    model = type(row)
    changed(s, update(model).where(model.id == row.id).values(**columns))
    for name, value in columns.items():
        set_committed_value(row, name, value)


def _change_problem(s: Session, job_problem_id: int, **columns: Any) -> None:
    if changed(s, update(JobProblem).where(JobProblem.id == job_problem_id).values(**columns)) != 1:
        raise NotFound("job problem", job_problem_id)


def _job(row: Job, now: datetime) -> JobRecord:
    running = 0.0 if row.running_since is None else (now - row.running_since).total_seconds()
    return JobRecord(
        id=row.id,
        state=row.state,
        reason=row.reason,
        message=row.message,
        request=row.request,
        target=row.target,
        policy=row.policy,
        policy_key=row.policy_key,
        options=row.options,
        budget_trials=row.budget_trials,
        budget_seconds=row.budget_seconds,
        budget_device_seconds=row.budget_device_seconds,
        priority=row.priority,
        seed=row.seed,
        token_id=row.token_id,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        ran_s=row.ran_s + max(0.0, running),
    )


def _problem(row: JobProblem, problem: Problem, now: datetime) -> JobProblemRecord:
    end = row.finished_at or now
    return JobProblemRecord(
        id=row.id,
        job_id=row.job_id,
        position=row.position,
        problem_key=row.problem_key,
        layer_key=problem.layer_key,
        problem=problem.spec,
        title=problem.title,
        device_key=row.device_key,
        arch=row.arch,
        weight=row.weight,
        state=row.state,
        reason=row.reason,
        message=row.message,
        budget_trials=row.budget_trials,
        budget_seconds=row.budget_seconds,
        budget_device_seconds=row.budget_device_seconds,
        seed=row.seed,
        search=row.search,
        shared_s=row.shared_s,
        role=row.role,
        line=row.line,
        started_at=row.started_at,
        finished_at=row.finished_at,
        elapsed_s=0.0 if row.started_at is None else max(0.0, (end - row.started_at).total_seconds()),
    )
