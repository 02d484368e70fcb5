"""How does a job get on: one short step after another, whoever asks, however often?

`advance` looks at the database, takes the next step under the job's lease, and looks again. Looking and
writing share a transaction, so a step that was overtaken is not taken. Only the question to the proposer
is asked with no session open; what it answers is written after the lease was checked again. A crash
anywhere leaves rows that the next `advance` goes on from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import structlog
from sqlalchemy.orm import Session

from service import periods
from service.host import host_name
from service.jobs import lifecycle, probing, racing, ranking, searching
from service.jobs.errors import NoLegalSchedule
from service.jobs.proposing import Ask, Proposer
from service.jobs.step import PutAside, Question, Rest, Step, Write
from service.store import jobs, leases, trials
from service.store.database import Database
from service.store.enums import JobProblemReason, JobProblemRole, JobProblemState, JobState
from service.store.records import JobProblemRecord, JobRecord

_log = structlog.get_logger("rooftile.jobs")

STEPS_MOST = 32

Gate = Callable[[], AbstractContextManager[None]]


def default_owner() -> str:
    """A name for this process's leases."""
    return f"search:{host_name()}:{os.getpid()}"


def advance(
    db: Database,
    job_id: int,
    proposer: Proposer,
    *,
    owner: str | None = None,
    gate: Gate = nullcontext,
    rests: Callable[[Rest], None] = lambda rest: None,
) -> bool:
    """Take every step that can be taken now. False when there was none, or another process is at it.

    `gate` is entered around questions to the proposer: they need the CPU that a measurement may be using.
    Where it raises PutAside the question is left for another time.
    `rests` is told, in the end, how long there will be nothing to do, where that is known.
    """
    who = owner or default_owner()
    did = False
    for _ in range(STEPS_MOST):
        with db.glance() as s:  # only to see whether there is one: it is looked at again to take it
            step = look(s, job_id)
        if isinstance(step, Rest):
            rests(step)
        if step is None or isinstance(step, Rest):
            break
        if isinstance(step, Question):
            try:
                with gate():
                    took = _ask(db, job_id, proposer, who)
            except PutAside:
                break
        else:
            took = _write(db, job_id, who)
        if not took:
            break
        did = True
    return did


def look(s: Session, job_id: int) -> Step | Rest | None:
    """The next step of a job; None or a Rest: there is none now. Only reads."""
    job = jobs.get(s, job_id)
    if job is None or not job.open or job.state is JobState.PAUSED:
        return None
    rows = jobs.problems(s, job_id)
    if job.state in (JobState.QUEUED, JobState.WAITING):
        return lifecycle.before_running(s, job, rows)
    if job.state is JobState.FINISHING:
        return Write("end job", lambda w: lifecycle.finish(w, job, rows))
    rests: list[Rest | None] = []
    for row in rows:
        if row.state not in lifecycle.ACTIVE:
            continue
        step = _problem_step(s, job, row)
        if step is not None and not isinstance(step, Rest):
            return step
        rests.append(step)
    step = lifecycle.while_running(s, job, rows)
    return _all_of(rests) if step is None else step


def _all_of(rests: Sequence[Rest | None]) -> Rest | None:
    """One that suits every problem; None where one does not say."""
    found: Rest | None = None
    for rest in rests:
        if rest is None:
            return None
        found = rest if found is None else found.shorter(rest)
    return found


def _problem_step(s: Session, job: JobRecord, row: JobProblemRecord) -> Step | Rest | None:
    if row.role is not JobProblemRole.SEARCH:
        return probing.step(s, job, row)
    if row.state is JobProblemState.SEARCHING:
        return searching.step(s, job, row)
    if row.state is JobProblemState.RACING:
        return racing.step(s, job, row)
    if row.state is JobProblemState.PROVING:
        return ranking.step(s, job, row)
    return None


def _write(db: Database, job_id: int, owner: str) -> bool:
    """Look again and write, in one transaction under the job's lease."""

    def act(s: Session) -> bool:
        name = leases.job_lease(job_id)
        if leases.acquire(s, name, owner, periods.job_lease_s()) is None:
            return False
        step = look(s, job_id)
        if isinstance(step, Write):
            step.apply(s)
            _log.debug("step", job=job_id, step=step.name)
        leases.release(s, name, owner)
        return isinstance(step, Write | Question)

    return db.run(act)


def _ask(db: Database, job_id: int, proposer: Proposer, owner: str) -> bool:
    """Take the lease, ask with no session open, and write the answer if the lease is still ours."""
    name = leases.job_lease(job_id)

    def take(s: Session) -> tuple[Question, Ask] | bool:
        if leases.acquire(s, name, owner, periods.job_lease_s()) is None:
            return False
        step = look(s, job_id)
        if isinstance(step, Question):
            return step, step.ask(s)
        leases.release(s, name, owner)
        return isinstance(step, Write)

    taken = db.run(take)
    if isinstance(taken, bool):
        return taken
    question, ask = taken
    try:
        proposals = proposer.propose(ask)
    except NoLegalSchedule as error:
        sentence = f"{error}."
        return db.run(lambda s: _no_space(s, job_id, question, owner, sentence))
    except BaseException:
        db.run(lambda s: leases.release(s, name, owner))
        raise

    def keep(s: Session) -> bool:
        if not leases.renew(s, name, owner, periods.job_lease_s()):
            return False
        if jobs.searches(s, question.job_problem_id):
            searching.write(s, question.job_problem_id, question.n, proposals)
        leases.release(s, name, owner)
        return True

    return db.run(keep)


def _no_space(s: Session, job_id: int, question: Question, owner: str, sentence: str) -> bool:
    name = leases.job_lease(job_id)
    if not leases.renew(s, name, owner, periods.job_lease_s()):
        return False
    row = jobs.problem(s, question.job_problem_id)
    if row is not None and row.state is JobProblemState.SEARCHING:
        trials.cancel_open(s, job_problem_id=row.id)
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.SPACE_EXHAUSTED, sentence)
    leases.release(s, name, owner)
    return True
