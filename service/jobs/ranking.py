"""What is the next step of a problem without a device, once its search has ended?

Its finalists are run in the emulator, each itself; then the order of the cost model is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.jobs import budgets, ending, proving
from service.jobs.proving import Proof
from service.jobs.step import Step, Write
from service.store import emulations, jobs, trials
from service.store.enums import JobProblemReason
from service.store.records import JobProblemRecord, JobRecord

RUNS_MOST = 12
"""Finalists that turn out wrong are followed by the ones behind them, up to so many runs in all."""


def step(s: Session, job: JobRecord, row: JobProblemRecord) -> Step | None:
    """Ask for the next runs, wait for them, or give the ranking as the answer."""
    best = trials.ranked(s, row.id, proving.FINALISTS)
    if not budgets.out_of_time(job, row):
        asked = [int(one) for one in row.search.get("run", ())]
        new = [trial.id for trial in best if trial.id not in asked][: max(0, RUNS_MOST - len(asked))]
        if new:
            return Write("ask for finalists", lambda w: _ask(w, row, asked, new))
        if any(proving.proof(s, trial) is Proof.OUT for trial in best if trial.id in asked):
            return None
    return Write("end ranking", lambda w: _end(w, job, row))


def _ask(s: Session, row: JobProblemRecord, asked: Sequence[int], new: Sequence[int]) -> None:
    for trial_id in new:
        emulations.want_own(s, trial_id)
    jobs.remember(s, row.id, {**row.search, "run": [*asked, *new]})


def _end(s: Session, job: JobRecord, row: JobProblemRecord) -> None:
    ending.end_ranked(s, job, row, JobProblemReason(row.search["stopped"]))
