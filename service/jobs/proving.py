"""What does a job want from the emulator, what does it wait for, and what may it say without?

A schedule of a CUDA family counts as proven when its own run in the emulator passed, or that of its
structure. During a search the store asks for structures as trials are compiled; here finalists are asked for
themselves, before a race is judged and, where no device was asked for, before the ranking is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from sqlalchemy.orm import Session

from service.jobs import budgets
from service.store import emulations, jobs, trials
from service.store.enums import EmulationState, JobProblemReason, JobProblemState, TrialState
from service.store.records import EmulationRecord, JobProblemRecord, JobRecord, TrialRecord

FINALISTS = 4
"""The best by the cost model that are run themselves where no device was asked for."""
# A race that has been run waits this long past the job's seconds for a verdict that is still out.
GRACE_S = 60.0


class Proof(Enum):
    """What the emulator says of one trial."""

    NOT_NEEDED = "not_needed"
    """Of its family the device's own check is the verdict."""
    PROVEN = "proven"
    WRONG = "wrong"
    OUT = "out"
    """Asked for, and not known yet."""
    MISSING = "missing"
    """Nobody asked, or nobody could run it to its end."""


def emulates(arch: str) -> bool:
    """Whether families of this arch need an emulated verdict."""
    return not arch.startswith("x86")


def policy(job: JobRecord) -> str:
    """structure, finalists, all or never."""
    return str(job.options.get("emulate", "structure"))


def proof(s: Session, trial: TrialRecord) -> Proof:
    """What is known about a trial now."""
    if not emulates(trial.arch):
        return Proof.NOT_NEEDED
    return _of(emulations.of_trial(s, trial.id))


def _of(run: EmulationRecord | None) -> Proof:
    if run is None or run.state is EmulationState.UNDECIDED:
        return Proof.MISSING
    known = {EmulationState.PASSED: Proof.PROVEN, EmulationState.FAILED: Proof.WRONG}
    return known.get(run.state, Proof.OUT)


# ---------------------------------------------------------------- beside a device


def ask_for_race(s: Session, job: JobRecord, row: JobProblemRecord, trial_ids: Sequence[int]) -> None:
    """Asks for the runs of those who race; what another job's trial is, that job has asked for."""
    if not emulates(row.arch) or policy(job) == "never":
        return
    for trial_id in trial_ids:
        trial = trials.get(s, trial_id)
        if trial is not None and trial.job_problem_id == row.id:
            emulations.want_own(s, trial_id)


def waits(s: Session, job: JobRecord, row: JobProblemRecord, trial_ids: Sequence[int]) -> bool:
    """A verdict on one of these trials is still out, and there is time to wait for it."""
    if not emulates(row.arch) or policy(job) == "never":
        return False
    if row.budget_seconds is not None and budgets.elapsed_s(job, row) > row.budget_seconds + GRACE_S:
        return False
    mine = [trial for one in trial_ids if (trial := trials.get(s, one)) is not None]
    return any(trial.job_problem_id == row.id and proof(s, trial) is Proof.OUT for trial in mine)


# ---------------------------------------------------------------- without a device


def begin(s: Session, job: JobRecord, row: JobProblemRecord, reason: JobProblemReason) -> bool:
    """Turn to the finalists of a search without a device; False where none needs to be run."""
    if not emulates(row.arch) or policy(job) == "never" or not trials.ranked(s, row.id, 1):
        return False
    jobs.remember(s, row.id, {**row.search, "stopped": str(reason)})
    jobs.move_problem(s, row.id, JobProblemState.PROVING, reason)
    return True


def told(s: Session, job: JobRecord, row: JobProblemRecord) -> str:
    """What was done with a ranking that nobody timed, in the words that every page uses."""
    if not emulates(row.arch):
        return "compiled, not yet timed"
    if policy(job) == "never":
        return "compiled, not yet timed; nor emulated, as was asked"
    best = trials.ranked(s, row.id, FINALISTS)
    proven = sum(1 for trial in best if proof(s, trial) is Proof.PROVEN)
    if best and proven == len(best):
        return "compiled and emulated, not yet timed"
    return f"compiled, not yet timed; the emulator's verdict is there for {proven} of the best {len(best)}"


def wrong_ones(s: Session, trial_ids: Sequence[int]) -> dict[int, TrialRecord]:
    """Of these trials, those that the emulator has ended since."""
    found = {}
    for trial_id in trial_ids:
        trial = trials.get(s, trial_id)
        if trial is not None and emulates(trial.arch):
            failed = trial.state is TrialState.FAILED or proof(s, trial) is Proof.WRONG
            if failed:
                found[trial_id] = trial
    return found
