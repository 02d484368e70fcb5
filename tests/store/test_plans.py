"""Do the queries that workers repeat all day stay away from the trials that ended?"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import event
from support.store import ARCH, DEVICE, GPU_ARCH, compile_all, emulated, gpu_job, running_job

from service.store import emulation_claims, emulations, trials
from service.store.database import Database


def test_sweeps_use_an_index(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.begin() as s:
        job_id, (trial, *_) = running_job(s, 2)
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "FROM trials" in statement:
            asked.append((statement, values))

    event.listen(database.engine(), "before_cursor_execute", note)
    with database.begin() as s:
        trials.compile_waits(s, [ARCH])
        trials.measure_waits(s, DEVICE)
        trials.claim_compile(s, "w", 1, 60, [ARCH])
        trials.claim_measure(s, "w", DEVICE, 1, 60)
        trials.expire(s)
        trials.expire(s, owner="w")
        trials.counts(s, job_id=job_id)
        trials.best(s, trial.job_problem_id)
        trials.in_flight(s, trial.job_problem_id)
        trials.listing(s, job_id=job_id, order="fastest")
        trials.listing(s, job_id=job_id)
        seen = list(asked)
        assert len(seen) >= 11
        for statement, values in seen:
            plan = s.connection().exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values).all()
            steps = [row[3] for row in plan]
            assert not any(re.search(r"SCAN trials", step) for step in steps), (statement, steps)
            assert any("trials USING" in step for step in steps), (statement, steps)
    database.close()


def test_runs_in_the_emulator_are_found_by_an_index(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.begin() as s:
        rows = gpu_job(s, 3)
        compile_all(s, structure={"layout": "tn"})
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            asked.append((statement, values))

    event.listen(database.engine(), "before_cursor_execute", note)
    with database.begin() as s:
        emulation_claims.waits(s, [GPU_ARCH])
        claim = emulation_claims.claim(s, "w", 60, [GPU_ARCH])
        assert claim is not None
        emulation_claims.expire(s)
        emulations.of_trial(s, rows[0].id)
        trials.ranked(s, rows[0].job_problem_id, 4)
        assert emulation_claims.finish(s, claim.claim_id, emulated())
        seen = list(asked)
        assert len(seen) >= 7
        for statement, values in seen:
            plan = s.connection().exec_driver_sql("EXPLAIN QUERY PLAN " + statement, values).all()
            steps = [row[3] for row in plan]
            assert not any(re.search(r"SCAN (trials|emulations|releases)", step) for step in steps), steps
    database.close()
