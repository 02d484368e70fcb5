"""Is there a worker at all that compiles, or proves, what a running job waits for?

Without one a job would spend its seconds on nothing. It waits instead, says for what, and its clock stands
still. Not at once: workers that are just being started, or started again, report within a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.periods import alive_s
from service.store import emulations, trials, workers
from service.store.enums import JobProblemState, WorkerKind
from service.store.records import JobProblemRecord, JobRecord


def lacking(s: Session, row: JobProblemRecord) -> WorkerKind | None:
    """A kind of worker that the problem cannot do without and that does not report."""
    return next((kind for kind in _kinds(row) if workers.lacking(s, kind, row.arch)), None)


def stuck(s: Session, job: JobRecord, active: Sequence[JobProblemRecord]) -> str:
    """Why none of the problems under way goes on, in a sentence; empty where one does."""
    text = ""
    for row in active:
        kind = lacking(s, row)
        if kind is None or _waiting_s(s, job, row, kind) < alive_s():
            return ""
        text = f"No {kind} worker for {row.arch} reports: `rooftile worker {kind}` starts one."
    return text


def _kinds(row: JobProblemRecord) -> Sequence[WorkerKind]:
    if row.state is JobProblemState.PROVING:
        return (WorkerKind.EMULATE,)
    # On a device what the emulator says may come late, or never.
    return (WorkerKind.COMPILE,) if row.device_key is not None else (WorkerKind.COMPILE, WorkerKind.EMULATE)


def _waiting_s(s: Session, job: JobRecord, row: JobProblemRecord, kind: WorkerKind) -> float:
    return emulations.waiting_s(s, job.id) if kind is WorkerKind.EMULATE else trials.waiting_s(s, row.id)
