"""Does a job wait, and say for what, when no worker is there that could do its next step?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from support.hands import ARCH, DEVICE, Hands, drive
from support.job_views import job_of

from service.jobs.advance import advance
from service.jobs.submit import submit
from service.periods import alive_s
from service.search.proposer import Proposer
from service.store import clock, jobs, workers
from service.store.database import Database
from service.store.enums import (
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    WorkerKind,
    WorkerState,
)
from service.store.models import Trial

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}


def post(hands: Hands) -> int:
    body = {"problem": PROBLEM, "target": {"device": DEVICE}, "budget": {"trials": 6}, "force": True}
    return submit(hands.db, body)[0].id


def compiler(db: Database, *archs: str, gone: bool = False) -> None:
    """A compile worker of another machine reports, or ends."""
    with db.begin() as s:
        if gone:
            workers.remove(s, "compile-1")
        else:
            told = {"archs": list(archs)}
            workers.heartbeat(s, "compile-1", WorkerKind.COMPILE, "far", 1, None, WorkerState.IDLE, told)


def some_time_ago(db: Database) -> None:
    """What was proposed has waited for longer than a worker may be silent."""
    with db.begin() as s:
        s.execute(update(Trial).values(created_at=clock.now(s) - timedelta(seconds=alive_s() + 1)))


def test_a_job_whose_kernels_nobody_compiles_waits_and_says_so(both: Hands, proposer: Proposer) -> None:
    compiler(both.db, "sm_80")  # it does others
    job_id = post(both)
    advance(both.db, job_id, proposer)
    assert job_of(both.db, job_id).state is JobState.RUNNING  # one may be starting at this moment
    some_time_ago(both.db)
    advance(both.db, job_id, proposer)
    waiting = job_of(both.db, job_id)
    assert (waiting.state, waiting.reason) == (JobState.WAITING, JobReason.NO_WORKER)
    assert ARCH in waiting.message
    assert "rooftile worker compile" in waiting.message
    assert not advance(both.db, job_id, proposer)
    assert job_of(both.db, job_id).ran_s == waiting.ran_s  # its clock stands still
    compiler(both.db, "sm_80", ARCH)
    assert advance(both.db, job_id, proposer)
    running = job_of(both.db, job_id)
    assert (running.state, running.reason, running.message) == (JobState.RUNNING, None, "")
    assert drive(both, job_id, proposer).state is JobState.DONE


def test_one_with_nothing_left_to_do_waits_for_nobody(hands: Hands, proposer: Proposer) -> None:
    compiler(hands.db, "sm_80")
    job_id = post(hands)
    advance(hands.db, job_id, proposer)
    some_time_ago(hands.db)
    advance(hands.db, job_id, proposer)
    assert job_of(hands.db, job_id).reason is JobReason.NO_WORKER
    with hands.db.begin() as s:
        for row in jobs.problems(s, job_id):
            jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.INTERNAL_ERROR, "a test")
    assert advance(hands.db, job_id, proposer)
    assert job_of(hands.db, job_id).state is JobState.FAILED


@pytest.mark.parametrize("data", [[ARCH], None])
def test_with_a_worker_that_can_it_is_a_matter_of_patience(
    hands: Hands, proposer: Proposer, data: list[str] | None
) -> None:
    """One that is busy with others, or that names no archs, may come to it yet."""
    with hands.db.begin() as s:
        told = {} if data is None else {"archs": data}
        workers.heartbeat(s, "compile-1", WorkerKind.COMPILE, "elsewhere", 1, None, WorkerState.BUSY, told)
    job_id = post(hands)
    advance(hands.db, job_id, proposer)
    some_time_ago(hands.db)
    advance(hands.db, job_id, proposer)
    assert job_of(hands.db, job_id).state is JobState.RUNNING
    compiler(hands.db, gone=True)
    advance(hands.db, job_id, proposer)
    assert job_of(hands.db, job_id).reason is JobReason.NO_WORKER
