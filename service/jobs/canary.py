"""When failures come in a row: is it the schedules, or the device?

After five schedules in a row that crashed, hung or lost their worker, a schedule that is known to run is
run again: one of this problem, else one that is served for this device. If it runs, the search goes on; if
it fails too, the device is taken out of service and its problems end with that reason, instead of burning the
budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.jobs import history
from service.jobs.ending import end_search, fail_device
from service.jobs.history import History
from service.jobs.step import Step, Write
from service.store import events, jobs, races, releases, trials
from service.store.enums import EntrantRole, JobProblemReason, RaceState, TrialReason, TrialState
from service.store.records import (
    JobProblemRecord,
    JobRecord,
    NewEntrant,
    RaceRecord,
    TrialProgress,
    TrialRecord,
)
from service.store.transitions import RACE_OPEN

SUSPECT_AFTER = 5
# Without any schedule that is known to run on the device there is no canary.
GIVE_UP_AFTER = 10
CANARIES_MOST = 3
# A known schedule that takes this many times as long says the device is not well either.
SLOW = 5.0

SUSPICIOUS = frozenset(
    {
        TrialReason.CRASH,
        TrialReason.HANG,
        TrialReason.WORKER_LOST,
        TrialReason.OUT_OF_BOUNDS,
        TrialReason.LAUNCH_ERROR,
        TrialReason.DEVICE_LOST,
        TrialReason.INVALID_TIME,
        TrialReason.INTERNAL_ERROR,
    }
)


def waiting(row: JobProblemRecord) -> bool:
    """A canary is out: nothing new until it is back."""
    return row.search.get("canary") is not None


def step(s: Session, job: JobRecord, row: JobProblemRecord, known: History) -> Step | None:
    """Send a canary, judge one, or give up; None while there is nothing to suspect."""
    if waiting(row):
        race = races.get(s, int(row.search["canary"]))
        if race is None or race.state not in RACE_OPEN:
            return Write("judge canary", lambda w: _judge(w, job, row, race))
        return None
    if row.device_key is None:
        return None
    streak = _streak(known.finished, int(row.search.get("cleared", 0)))
    if streak < SUSPECT_AFTER:
        return None
    good = _known_good(s, job, row)
    if good is None:
        if streak >= GIVE_UP_AFTER:
            reason = JobProblemReason.NO_PASSING_TRIAL
            return Write("give up", lambda w: end_search(w, job, row, reason))
        return None
    if int(row.search.get("canaries", 0)) >= CANARIES_MOST:
        return Write("give up", lambda w: _give_up(w, job, row))
    return Write("send canary", lambda w: _send(w, job, row, good, known.spent.trials))


def _streak(finished: Sequence[TrialProgress], cleared: int) -> int:
    """Suspicious failures at the end of what has finished, later than what a canary has cleared."""
    count = 0
    for row in reversed(finished[cleared:]):
        if row.reason not in SUSPICIOUS:
            break
        count += 1
    return count


def _known_good(s: Session, job: JobRecord, row: JobProblemRecord) -> TrialRecord | None:
    """The default where it ran, else the best, else what is served for the device."""
    first = next(iter(trials.of_problem(s, row.id, [TrialState.MEASURED])), None)
    if first is not None:
        return first if first.number == 0 else trials.best(s, row.id) or first
    assert row.device_key is not None
    served = releases.newest_trial(s, row.device_key, job.policy_key)
    return None if served is None else trials.get(s, served)


def _send(s: Session, job: JobRecord, row: JobProblemRecord, known: TrialRecord, count: int) -> None:
    race = races.create(s, row.id, [NewEntrant("canary", EntrantRole.CANARY, known.id)], job.policy, row.seed)
    search = {**row.search, "canary": race.id, "canary_us": known.time_us}
    search["canaries"] = int(row.search.get("canaries", 0)) + 1
    jobs.remember(s, row.id, search)
    told = {"job_problem_id": row.id, "race_id": race.id, "trial_id": known.id, "trials": count}
    events.note(s, job.id, "canary", told)


def _judge(s: Session, job: JobRecord, row: JobProblemRecord, race: RaceRecord | None) -> None:
    fault = _fault(row, race)
    search = {**row.search, "canary": None}
    if fault is None:
        cleared = len(history.of_problem(s, job.id, row.id).finished)
        jobs.remember(s, row.id, {**search, "cleared": cleared})
        return
    jobs.remember(s, row.id, search)
    sentence = (
        f"{SUSPECT_AFTER} schedules in a row failed on the device, and one that had run before {fault}: "
        f"device {row.device_key} is out of service."
    )
    fail_device(s, job, row, sentence)


def _fault(row: JobProblemRecord, race: RaceRecord | None) -> str | None:
    """What is wrong with a canary that came back; None when it is well."""
    if race is None or race.state is RaceState.CANCELLED:
        return None
    if race.state is RaceState.FAILED:
        return f"could not be run again ({race.reason})"
    entrant = race.entrants[0]
    if entrant.failure is not None:
        return f"failed this time ({entrant.failure.reason})"
    if entrant.verdict is not None and not entrant.verdict.passed:
        return "gave a wrong result this time"
    before = row.search.get("canary_us")
    if entrant.measurement is not None and before and entrant.measurement.median_us > SLOW * float(before):
        return f"took {entrant.measurement.median_us / float(before):.1f} times as long as then"
    return None


def _give_up(s: Session, job: JobRecord, row: JobProblemRecord) -> None:
    told = {"job_problem_id": row.id, "canaries": CANARIES_MOST}
    events.note(s, job.id, "too_many_failures", told)
    end_search(s, job, row, JobProblemReason.NO_PASSING_TRIAL)
