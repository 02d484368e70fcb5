"""Which trials are there, and which is the best?

Who works on a trial, and what comes of it, is in `claims`; those functions are also names of this
module (`trials.claim_compile`), because callers think of them as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from . import clock, emulations, jobs, moves, races
from .claims import (
    claim_compile,
    claim_measure,
    compile_waits,
    expire,
    finish_compile,
    finish_measure,
    measure_waits,
    release,
    renew,
)
from .ends import cancel_open, fail
from .enums import JobProblemState, Stage, TrialState
from .errors import NotFound
from .evidence import measurement_record, verdict_record
from .models import JobProblem, Measurement, Problem, Trial, Verdict
from .records import (
    NewTrial,
    OutcomeCount,
    Page,
    Spent,
    TrialDetail,
    TrialProgress,
    TrialRecord,
    TrialToolchain,
)
from .rows import trial_record
from .sql import usable
from .transitions import JOB, TRIAL_OPEN, final

__all__ = [
    "best",
    "best_of_job",
    "cancel_open",
    "claim_compile",
    "claim_measure",
    "compile_waits",
    "counts",
    "counts_of_jobs",
    "counts_of_problems",
    "detail",
    "expire",
    "fail",
    "finish_compile",
    "finish_measure",
    "get",
    "in_flight",
    "listing",
    "many",
    "measure_waits",
    "of_problem",
    "progress",
    "propose",
    "ranked",
    "release",
    "renew",
    "spent",
    "toolchains",
    "top",
]

TIMED = (TrialState.MEASURED, TrialState.CULLED)
"""States of a trial that was timed."""


def propose(s: Session, job_problem_id: int, new: Sequence[NewTrial]) -> list[TrialRecord]:
    """Inserts the schedules that its job problem does not have yet, in the order given and numbered
    on from the last; returns the inserted ones. Nothing once the job or the problem has ended."""
    job_problem = s.get(JobProblem, job_problem_id)
    if job_problem is None:
        raise NotFound("job problem", job_problem_id)
    # The lock on the job orders proposals among each other and against a cancel: no trial is left open
    # in a job that has ended, and numbers have no gaps.
    job = jobs.lock(s, job_problem.job_id)
    s.refresh(job_problem)
    if job.state in final(JOB) or job_problem.state is not JobProblemState.SEARCHING:
        return []
    mine = Trial.job_problem_id == job_problem_id
    wanted = [one.schedule_key for one in new]
    known = set(s.scalars(select(Trial.schedule_key).where(mine, Trial.schedule_key.in_(wanted))))
    last = s.scalar(select(func.max(Trial.number)).where(mine))
    number = 0 if last is None else last + 1
    now = clock.now(s)
    rows: list[Trial] = []
    for one in new:
        if one.schedule_key in known:
            continue
        known.add(one.schedule_key)
        rows.append(
            Trial(
                job_id=job.id,
                job_problem_id=job_problem_id,
                number=number + len(rows),
                problem_key=job_problem.problem_key,
                device_key=job_problem.device_key,
                arch=job_problem.arch,
                family=one.family,
                schedule_key=one.schedule_key,
                source=one.source,
                predicted_us=one.predicted_us,
                state=TrialState.PROPOSED,
                stage=Stage.COMPILE,
                attempt=0,
                losses=0,
                contended=False,
                created_at=now,
                schedule=dict(one.schedule),
                log="",
            )
        )
    s.add_all(rows)
    s.flush()
    for row in rows:
        moves.born(s, row, data={"number": row.number, "source": row.source.value}, at=now)
    return [trial_record(row) for row in rows]


def get(s: Session, trial_id: int) -> TrialRecord | None:
    row = s.get(Trial, trial_id, populate_existing=True)
    return None if row is None else trial_record(row)


def detail(s: Session, trial_id: int) -> TrialDetail | None:
    """With plan, toolchain, log, evidence, verdicts and measurements (oldest first)."""
    row = s.get(Trial, trial_id, options=[undefer("*")], populate_existing=True)
    if row is None:
        return None
    verdicts = s.scalars(select(Verdict).where(Verdict.trial_id == trial_id).order_by(Verdict.id))
    times = s.scalars(select(Measurement).where(Measurement.trial_id == trial_id).order_by(Measurement.id))
    return TrialDetail(
        trial=trial_record(row),
        problem=s.get_one(Problem, row.problem_key).spec,
        pool_sha256=row.pool_sha256,
        plan=row.plan,
        toolchain=row.toolchain,
        resources=row.resources,
        log=row.log,
        evidence=row.evidence or {},
        verdicts=tuple(verdict_record(one) for one in verdicts),
        measurements=tuple(measurement_record(one) for one in times),
        emulation=emulations.of_trial(s, trial_id, whole=True),
    )


def of_problem(
    s: Session, job_problem_id: int, states: Sequence[TrialState] | None = None
) -> list[TrialRecord]:
    """All trials of a job problem by number."""
    query = select(Trial).where(Trial.job_problem_id == job_problem_id).order_by(Trial.number)
    if states is not None:
        query = query.where(Trial.state.in_(states))
    return [trial_record(row) for row in s.scalars(query)]


def progress(s: Session, job_problem_id: int, ids: Sequence[int] | None = None) -> list[TrialProgress]:
    """What the search has to know of the trials of a job problem, by number; of those with these ids where
    some are given."""
    columns = (
        Trial.id, Trial.schedule, Trial.schedule_key, Trial.state, Trial.reason, Trial.time_us,
        Trial.predicted_us, Trial.compile_s, Trial.device_s, Trial.finished_at,
    )  # fmt: skip
    query = select(*columns).where(Trial.job_problem_id == job_problem_id).order_by(Trial.number)
    if ids is not None:
        query = query.where(Trial.id.in_(ids))
    return [TrialProgress(*row) for row in s.execute(query)]


def in_flight(s: Session, job_problem_id: int) -> int:
    """How many trials of a job problem have not ended."""
    query = select(func.count()).where(Trial.job_problem_id == job_problem_id, Trial.state.in_(TRIAL_OPEN))
    return s.scalar(query) or 0


def waiting_s(s: Session, job_problem_id: int) -> float:
    """For how long the oldest trial of the problem that waits for its compile has waited; 0 if none does."""
    mine = (Trial.job_problem_id == job_problem_id) & (Trial.state == TrialState.PROPOSED)
    oldest = s.scalar(select(func.min(Trial.created_at)).where(mine))
    return 0.0 if oldest is None else (clock.now(s) - oldest).total_seconds()


def best(s: Session, job_problem_id: int) -> TrialRecord | None:
    """The fastest measured, undisturbed trial with a finite positive time."""
    found = top(s, job_problem_id, 1)
    return found[0] if found else None


def top(s: Session, job_problem_id: int, limit: int) -> list[TrialRecord]:
    """The fastest ones, as `best`, fastest first; equal times by number."""
    query = select(Trial).where(Trial.job_problem_id == job_problem_id, _promotable())
    return [trial_record(row) for row in s.scalars(query.order_by(Trial.time_us, Trial.number).limit(limit))]


def ranked(s: Session, job_problem_id: int, limit: int) -> list[TrialRecord]:
    """The best by the cost model of those that were compiled and judged, no device being asked; equal ones
    by number."""
    query = select(Trial).where(
        Trial.job_problem_id == job_problem_id,
        Trial.state == TrialState.RANKED,
        usable(Trial.predicted_us),
    )
    query = query.order_by(Trial.predicted_us, Trial.number).limit(limit)
    return [trial_record(row) for row in s.scalars(query.execution_options(populate_existing=True))]


def best_of_job(s: Session, job_id: int) -> dict[int, TrialRecord]:
    """`best` for each job problem of a job that has one, by job problem id."""
    order = (Trial.time_us, Trial.number)
    place = func.row_number().over(partition_by=Trial.job_problem_id, order_by=order)
    placed = select(Trial.id, place.label("place")).where(Trial.job_id == job_id, _promotable()).subquery()
    first = select(placed.c.id).where(placed.c.place == 1)
    found = s.scalars(select(Trial).where(Trial.id.in_(first)))
    return {row.job_problem_id: trial_record(row) for row in found}


def many(s: Session, ids: Collection[int]) -> dict[int, TrialRecord]:
    """Those of these trials that there are, by id."""
    return {row.id: trial_record(row) for row in s.scalars(select(Trial).where(Trial.id.in_(ids)))}


def counts(s: Session, *, job_id: int | None = None, job_problem_id: int | None = None) -> list[OutcomeCount]:
    """Trials by state and reason."""
    query = select(Trial.state, Trial.reason, func.count()).group_by(Trial.state, Trial.reason)
    if job_id is not None:
        query = query.where(Trial.job_id == job_id)
    if job_problem_id is not None:
        query = query.where(Trial.job_problem_id == job_problem_id)
    return _sorted(OutcomeCount(state, reason, count) for state, reason, count in s.execute(query).all())


def counts_of_jobs(s: Session, job_ids: Collection[int]) -> dict[int, list[OutcomeCount]]:
    """`counts` of each of these jobs that has trials, by job id."""
    return _counts_by(s, Trial.job_id, Trial.job_id.in_(job_ids))


def counts_of_problems(s: Session, job_id: int) -> dict[int, list[OutcomeCount]]:
    """`counts` of each problem of a job that has trials, by job problem id."""
    return _counts_by(s, Trial.job_problem_id, Trial.job_id == job_id)


def _counts_by(
    s: Session, owner: InstrumentedAttribute[int], where: ColumnElement[bool]
) -> dict[int, list[OutcomeCount]]:
    query = select(owner, Trial.state, Trial.reason, func.count()).where(where)
    found: dict[int, list[OutcomeCount]] = {}
    for one, state, reason, count in s.execute(query.group_by(owner, Trial.state, Trial.reason)).all():
        found.setdefault(one, []).append(OutcomeCount(state, reason, count))
    return {one: _sorted(rows) for one, rows in found.items()}


def _sorted(rows: Iterable[OutcomeCount]) -> list[OutcomeCount]:
    return sorted(rows, key=lambda row: (row.state.value, row.reason.value if row.reason else ""))


def spent(s: Session, job_problem_id: int) -> Spent:
    """What a job problem has used; its races' device time is counted too."""
    total, compile_s, device_s = s.execute(
        select(
            func.count(),
            func.sum(Trial.compile_s),
            func.sum(Trial.device_s),
        ).where(Trial.job_problem_id == job_problem_id)
    ).one()
    return Spent(
        trials=total,
        open_trials=in_flight(s, job_problem_id),
        compile_s=compile_s or 0.0,
        device_s=(device_s or 0.0) + races.device_s(s, job_problem_id),
    )


def listing(
    s: Session,
    *,
    job_id: int | None = None,
    job_problem_id: int | None = None,
    problem_key: str | None = None,
    device_key: str | None = None,
    family: str | None = None,
    states: Sequence[TrialState] | None = None,
    order: str = "newest",
    after: tuple[float, int] | tuple[int] | None = None,
    limit: int = 50,
) -> Page[TrialRecord]:
    """Trials by page. order: "newest", "oldest" (key: (id,)), "fastest" (only those with a time; key:
    (time_us, id)) or "predicted" (the same by predicted_us)."""
    query = select(Trial).limit(limit + 1)
    exact = {
        Trial.job_id: job_id,
        Trial.job_problem_id: job_problem_id,
        Trial.problem_key: problem_key,
        Trial.device_key: device_key,
        Trial.family: family,
    }
    query = query.where(*[column == value for column, value in exact.items() if value is not None])
    if states is not None:
        query = query.where(Trial.state.in_(states))
    if order in ("fastest", "predicted"):
        time = Trial.time_us if order == "fastest" else Trial.predicted_us
        query = query.where(usable(time)).order_by(time, Trial.id)
        if after is not None:
            time_us, last = after  # type: ignore[misc]
            # the first half alone lets the index jump to the place
            query = query.where(time >= time_us, (time > time_us) | (Trial.id > last))
    elif order == "newest":
        query = query.order_by(Trial.id.desc())
        if after is not None:
            query = query.where(Trial.id < after[-1])
    elif order == "oldest":
        query = query.order_by(Trial.id)
        if after is not None:
            query = query.where(Trial.id > after[-1])
    else:
        raise ValueError(f"order is {order!r}; it is one of newest, oldest, fastest, predicted")
    rows = s.scalars(query).all()
    page = tuple(trial_record(row) for row in rows[:limit])
    if len(rows) <= limit:
        return Page(page, None)
    edge = page[-1]
    keys = {"fastest": (edge.time_us, edge.id), "predicted": (edge.predicted_us, edge.id)}
    return Page(page, keys.get(order, (edge.id,)))


def _promotable() -> ColumnElement[bool]:
    # disturbed samples are kept, but never promoted
    promotable: ColumnElement[bool] = (
        (Trial.state == TrialState.MEASURED) & Trial.contended.is_(False) & usable(Trial.time_us)
    )
    return promotable


def toolchains(s: Session, device_key: str, family: str, limit: int) -> list[TrialToolchain]:
    """Which toolchains the newest timed trials of a family on a device were built by, newest first."""
    query = select(Trial.id, Trial.job_id, Trial.toolchain_key).where(
        Trial.device_key == device_key, Trial.family == family, Trial.state.in_(TIMED)
    )
    rows = s.execute(query.order_by(Trial.id.desc()).limit(limit)).all()
    return [TrialToolchain(*row) for row in rows]
