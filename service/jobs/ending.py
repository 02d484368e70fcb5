"""How does a search end: in a race, ranked without a device, or with nothing, and why?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.jobs import racing
from service.jobs.counting import failures, failures_in_words, only_compiler_missing
from service.store import devices, jobs, trials
from service.store.enums import (
    DeviceState,
    JobProblemReason,
    JobProblemState,
    TrialReason,
    TrialState,
)
from service.store.records import JobProblemRecord, JobRecord, OutcomeCount
from service.store.transitions import JOB_PROBLEM, final

_BUDGET = (
    JobProblemReason.BUDGET_TRIALS,
    JobProblemReason.BUDGET_SECONDS,
    JobProblemReason.BUDGET_DEVICE_SECONDS,
)


def end_search(
    s: Session, job: JobRecord, row: JobProblemRecord, reason: JobProblemReason, message: str = ""
) -> None:
    """Cancel what is in flight, then race the finalists; without any, end the problem."""
    why = TrialReason.BUDGET_SPENT if reason in _BUDGET else TrialReason.JOB_ENDED
    trials.cancel_open(s, job_problem_id=row.id, reason=why)
    counts = trials.counts(s, job_problem_id=row.id)
    if row.device_key is None:
        _end_ranked(s, row, reason, counts)
        return
    jobs.remember(s, row.id, {**row.search, "stopped": str(reason)})
    if racing.start(s, job, row, reason):
        return
    if only_compiler_missing(counts):
        text = f"No compiler for {row.arch} is installed where its trials were compiled."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.COMPILER_MISSING, text)
        return
    text = f"No schedule gave a right result and a time ({reason}): {failures_in_words(counts)}."
    told = {"failures": failures(counts), "stopped": str(reason)}
    jobs.move_problem(
        s, row.id, JobProblemState.FAILED, JobProblemReason.NO_PASSING_TRIAL, message or text, told
    )


def _end_ranked(
    s: Session, row: JobProblemRecord, reason: JobProblemReason, counts: Sequence[OutcomeCount]
) -> None:
    """No device was asked for: the compiled trials stand in the order of the cost model."""
    ranked = sum(one.count for one in counts if one.state is TrialState.RANKED)
    if ranked:
        cpu = row.arch.startswith("x86")
        text = "compiled, not yet timed" if cpu else "compiled and emulated, not yet timed"
        told = {"ranked": ranked, "failures": failures(counts)}
        jobs.move_problem(s, row.id, JobProblemState.DONE, reason, text, told)
    elif only_compiler_missing(counts):
        text = f"No compiler for {row.arch} is installed where its trials were compiled."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.COMPILER_MISSING, text)
    else:
        text = f"No schedule could be compiled ({reason}): {failures_in_words(counts)}."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.NO_PASSING_TRIAL, text)


def fail_device(s: Session, job: JobRecord, row: JobProblemRecord, sentence: str) -> None:
    """Take a problem's device out of service, and end every problem of the job that needs it."""
    assert row.device_key is not None
    devices.set_state(s, row.device_key, DeviceState.OUT_OF_SERVICE, sentence)
    for one in jobs.problems(s, job.id):
        if one.device_key == row.device_key and one.state not in final(JOB_PROBLEM):
            trials.cancel_open(s, job_problem_id=one.id)
            told = {"device_key": row.device_key}
            why = JobProblemReason.DEVICE_OUT_OF_SERVICE
            jobs.move_problem(s, one.id, JobProblemState.FAILED, why, sentence, told)
