"""How does a search end: in a race, ranked without a device, or with nothing, and why?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.jobs import proving, racing
from service.jobs.counting import failures, failures_in_words, only_compiler_missing
from service.store import devices, jobs, trials
from service.store.enums import (
    DeviceState,
    JobProblemReason,
    JobProblemState,
    TrialReason,
    TrialState,
)
from service.store.records import JobProblemRecord, JobRecord
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
        if not proving.begin(s, job, row, reason):
            end_ranked(s, job, row, reason)
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


def end_ranked(s: Session, job: JobRecord, row: JobProblemRecord, reason: JobProblemReason) -> None:
    """No device was asked for: the compiled trials stand in the order of the cost model."""
    counts = trials.counts(s, job_problem_id=row.id)
    ranked = sum(one.count for one in counts if one.state is TrialState.RANKED)
    if ranked:
        told = {"ranked": ranked, "failures": failures(counts)}
        text = proving.told(s, job, row)
        jobs.move_problem(s, row.id, JobProblemState.DONE, reason, text, told)
    elif only_compiler_missing(counts):
        text = f"No compiler for {row.arch} is installed where its trials were compiled."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.COMPILER_MISSING, text)
    else:
        done = "compiled and found right in the emulator" if proving.emulates(row.arch) else "compiled"
        text = f"No schedule was {done} ({reason}): {failures_in_words(counts)}."
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
