"""Who races when a search has ended, and what is done with the result?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooftile.errors import RooftileError
from rooftile.plan import LaunchPlan
from rooftile.problem import Problem, parse_problem
from sqlalchemy.orm import Session

from service.jobs import budgets, proving
from service.jobs import releases as publishing
from service.jobs.counting import failures_in_words
from service.jobs.decide import Decision, Facts, Verb, decide
from service.jobs.step import Step, Write
from service.store import events, jobs, races, trials
from service.store.enums import (
    EntrantRole,
    JobProblemReason,
    JobProblemState,
    RaceState,
    ReleaseState,
    TrialReason,
    TrialState,
    Winner,
)
from service.store.records import (
    EntrantResult,
    Failed,
    JobProblemRecord,
    JobRecord,
    NewEntrant,
    RaceRecord,
    ReleaseRecord,
    TrialRecord,
)
from service.store.transitions import RACE_OPEN

FINALISTS_MOST = 4
FINALISTS_WITHIN = 1.10
DISTURBED_MOST = 3
DISTURBED_MOST_LATE = 2
"""A disturbed race is run twice more; once more where the problem's seconds are used up."""
LOST_MOST = 2
"""A race that lost its worker for good is run once more."""
RACES_MOST = 6
RACES_MOST_LATE = 2


# ---------------------------------------------------------------- before


def start(s: Session, job: JobRecord, row: JobProblemRecord, reason: JobProblemReason | None) -> bool:
    """Write the race of a problem; False when nobody of ours can enter."""
    entrants = _entrants(s, job, row)
    if not entrants:
        return False
    before = races.latest(s, row.id)
    number = 0 if before is None else before.number + 1
    races.create(s, row.id, entrants, job.policy, (row.seed + 7919 * (number + 1)) % (1 << 31))
    proving.ask_for_race(s, job, row, [one.trial_id for one in entrants if one.trial_id is not None])
    if row.state is JobProblemState.SEARCHING:
        jobs.move_problem(s, row.id, JobProblemState.RACING, reason)
    return True


def _entrants(s: Session, job: JobRecord, row: JobProblemRecord) -> list[NewEntrant]:
    """Up to four finalists within 10 % of the best, the default, what is served, the best's twin, and the
    vendor's kernel."""
    finalists = _finalists(s, row)
    if not finalists:
        return []
    served = publishing.served_for(s, job, row)
    entered: dict[int, NewEntrant] = {}
    for trial in finalists:
        name, role = f"trial-{trial.id}", EntrantRole.FINALIST
        if served is not None and _same(trial, served):
            name, role = f"served-{served.id}", EntrantRole.INCUMBENT
        elif trial.number == 0:
            name, role = "default", EntrantRole.DEFAULT
        entered[trial.id] = NewEntrant(name, role, trial.id)
    default = next(iter(trials.of_problem(s, row.id, [TrialState.MEASURED, TrialState.CULLED])), None)
    if default is not None and default.number == 0 and default.id not in entered:
        role = EntrantRole.DEFAULT
        entered[default.id] = NewEntrant("default", role, default.id)
    if served is not None and served.trial_id is not None:
        known = any(one.role is EntrantRole.INCUMBENT for one in entered.values())
        if not known and served.trial_id not in entered:
            name = f"served-{served.id}"
            entered[served.trial_id] = NewEntrant(name, EntrantRole.INCUMBENT, served.trial_id)
    twin = NewEntrant("twin", EntrantRole.TWIN, finalists[0].id)
    return [*entered.values(), twin, NewEntrant("baseline", EntrantRole.BASELINE)]


def _finalists(s: Session, row: JobProblemRecord) -> list[TrialRecord]:
    """The fastest undisturbed trials; where all were disturbed, the fastest of those: the race decides."""
    best = trials.top(s, row.id, FINALISTS_MOST)
    if not best:
        measured = trials.of_problem(s, row.id, [TrialState.MEASURED])
        timed = [(one.time_us, one.number, one) for one in measured if one.time_us is not None]
        best = [one for _, _, one in sorted(timed, key=lambda t: t[:2])][:FINALISTS_MOST]
    if not best or best[0].time_us is None:
        return []
    limit = best[0].time_us * FINALISTS_WITHIN
    return [one for one in best if one.time_us is not None and one.time_us <= limit]


def _same(trial: TrialRecord, served: ReleaseRecord) -> bool:
    return trial.schedule_key == served.schedule_key and trial.artifact_sha256 == served.artifact_sha256


# ---------------------------------------------------------------- after


def step(s: Session, job: JobRecord, row: JobProblemRecord) -> Step | None:
    """Judge a race that has ended; None while it waits or runs."""
    race = races.latest(s, row.id)
    if race is None or race.state is RaceState.CANCELLED:
        return Write("race again", lambda w: _again(w, job, row, "The race was cancelled."))
    if race.state in RACE_OPEN:
        return None
    if race.state is RaceState.FAILED:
        return Write("race failed", lambda w: _failed(w, job, row, race))
    if proving.waits(s, job, row, _trial_ids(race)):
        return None
    return Write("judge race", lambda w: judge(w, job, row, race))


def judge(s: Session, job: JobRecord, row: JobProblemRecord, race: RaceRecord) -> None:
    """Publish, keep, or race again; a wrong result takes its releases back first."""
    publishing.withdraw_quarantined(s)
    facts = _facts(s, parse_problem(row.problem), race)
    served = publishing.served_for(s, job, row)
    entrants = _still_right(s, race)
    decision = decide(entrants, facts, publishing.as_served(served), race.noise)
    for sentence in decision.failures:
        events.note(s, job.id, "finalist_failed", {"job_problem_id": row.id, "text": sentence})
    told = {"decision": decision.verb.value, "race_id": race.id, "reason": decision.reason}
    reason = _stopped(row)
    if decision.verb is Verb.AGAIN:
        _disturbed(s, job, row, decision, served)
    elif decision.verb is Verb.NEXT:
        _again(s, job, row, f"No finalist passed its re-check: {decision.reason}.")
    elif decision.verb is Verb.KEEP:
        assert served is not None
        text = f"Release {served.id} stays: {decision.reason}."
        told["release_id"] = served.id
        jobs.move_problem(s, row.id, JobProblemState.DONE, reason, text, told)
    else:
        release = publishing.publish(s, job, row, race, decision, facts)
        told["release_id"] = release.id
        text = f"Release {release.id}: {decision.reason}."
        if release.unproven:
            why = f"{publishing.unproven_because(job)} ({decision.reason})"
            text = f"Release {release.id} is not served: {why}."
            events.note(s, job.id, "unproven", {"release_id": release.id, "text": text})
        elif release.state is not ReleaseState.PUBLISHED:
            text = f"Release {release.id} is not served: the one before it is pinned ({decision.reason})."
        elif decision.winner is Winner.BASELINE:
            text = f"Release {release.id} serves the vendor's kernel: {decision.reason}."
        jobs.move_problem(s, row.id, JobProblemState.DONE, reason, text, told)


def _trial_ids(race: RaceRecord) -> list[int]:
    return sorted({one.trial_id for one in race.entrants if one.trial_id is not None})


def _still_right(s: Session, race: RaceRecord) -> list[EntrantResult]:
    """The results, without those whom the emulator found wrong while they raced."""
    wrong = proving.wrong_ones(s, _trial_ids(race))
    entrants = []
    for one in race.entrants:
        trial = wrong.get(one.trial_id or 0)
        if trial is not None and one.failure is None:
            reason = trial.reason or TrialReason.WRONG_RESULT
            one = replace(one, failure=Failed(TrialState.FAILED, reason))
        entrants.append(one)
    return entrants


def _disturbed(
    s: Session, job: JobRecord, row: JobProblemRecord, decision: Decision, served: ReleaseRecord | None
) -> None:
    """Race again, a bounded number of times; then nothing is promoted."""
    disturbed = int(row.search.get("disturbed", 0)) + 1
    jobs.remember(s, row.id, {**row.search, "disturbed": disturbed})
    told = {"job_problem_id": row.id, "text": decision.reason, "times": disturbed}
    events.note(s, job.id, "race_disturbed", told)
    most = DISTURBED_MOST_LATE if budgets.out_of_time(job, row) else DISTURBED_MOST
    if disturbed < most and start(s, job, row, None):
        return
    sentence = f"All {disturbed} races were disturbed ({decision.reason})"
    if served is not None:
        text = f"{sentence}; release {served.id} stays."
        jobs.move_problem(s, row.id, JobProblemState.DONE, JobProblemReason.RACE_FAILED, text)
    else:
        text = f"{sentence}; nothing was released. The trials' times stay, marked as they were taken."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.RACE_FAILED, text)


def _failed(s: Session, job: JobRecord, row: JobProblemRecord, race: RaceRecord) -> None:
    lost = int(row.search.get("lost_races", 0)) + 1
    jobs.remember(s, row.id, {**row.search, "lost_races": lost})
    if lost < LOST_MOST and start(s, job, row, None):
        return
    text = f"The race could not be run to its end: {race.reason}."
    jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.RACE_FAILED, text)


def _again(s: Session, job: JobRecord, row: JobProblemRecord, sentence: str) -> None:
    """Race those that are left, or end with nothing."""
    run = races.latest(s, row.id)
    most = RACES_MOST_LATE if budgets.out_of_time(job, row) else RACES_MOST
    if (run is None or run.number + 1 < most) and start(s, job, row, None):
        return
    counts = trials.counts(s, job_problem_id=row.id)
    text = f"{sentence} In all, {failures_in_words(counts)}."
    jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.NO_PASSING_TRIAL, text)


def _stopped(row: JobProblemRecord) -> JobProblemReason | None:
    stopped = row.search.get("stopped")
    return None if stopped is None else JobProblemReason(stopped)


def _facts(s: Session, problem: Problem, race: RaceRecord) -> dict[int, Facts]:
    found = {}
    for trial_id in {e.trial_id for e in race.entrants if e.trial_id is not None}:
        detail = trials.detail(s, trial_id)
        if detail is not None:
            found[trial_id] = Facts(
                trial_id=trial_id,
                schedule_key=detail.trial.schedule_key,
                artifact_sha256=detail.trial.artifact_sha256,
                toolchain_key=detail.trial.toolchain_key,
                workspace_bytes=_workspace_bytes(problem, detail.plan, detail.trial.device_key),
            )
    return found


def _workspace_bytes(problem: Problem, plan: Mapping[str, Any] | None, device_key: str | None) -> int:
    """How much workspace the plan asks for at this problem; 0 where that cannot be worked out."""
    if plan is None:
        return 0
    cores = 1
    for part in (device_key or "").split("-"):
        if part.endswith("c") and part[:-1].isdigit():
            cores = int(part[:-1])
    try:
        names = {**problem.plan_names(), "threads": cores, "sm_count": cores}
        return LaunchPlan.from_json(plan).concrete(names).workspace_bytes
    except RooftileError:
        return 0
