"""What is the next step of a problem that is being searched?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooftile.problem import parse_problem
from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.jobs import budgets, canary, history, spending
from service.jobs.ending import end_search
from service.jobs.history import History
from service.jobs.proposing import Ask, Proposal
from service.jobs.step import Question, Rest, Step, Write
from service.jobs.submit import DEFAULT_TRIALS
from service.jobs.target import arch_model, device_model
from service.store import devices, jobs, quarantines, trials
from service.store.enums import JobProblemReason, TrialReason, TrialState
from service.store.records import JobProblemRecord, JobRecord, NewTrial, OutcomeCount
from service.store.transitions import TRIAL_OPEN

# Compiles run ahead of the device by this many trials; asked for again when half of them are done, so that
# a batch is worth the switch between compiling and measuring.
IN_FLIGHT = 8
LOW_WATER = 4
# Of a large budget a larger part may be under way: each question has its price, and what one more of the same
# moment costs in knowledge is little beside hundreds of trials.
IN_FLIGHT_MOST = 16
IN_FLIGHT_SHARE = 0.02
# While enough is under way, and where seconds count, and where they do not.
REST_S, REST_MOST_S = 1.0, 5.0
# With its seconds gone and no time measured yet, the default in flight may still end.
FIRST_TRIAL_GRACE_S = 20.0


def in_flight(row: JobProblemRecord) -> tuple[int, int]:
    """How many trials are asked for to be under way, and how few they must be for more to be asked for."""
    share = int(IN_FLIGHT_SHARE * (row.budget_trials or 0))
    most = min(max(IN_FLIGHT, share), IN_FLIGHT_MOST)
    return most, most * LOW_WATER // IN_FLIGHT


def step(s: Session, job: JobRecord, row: JobProblemRecord) -> Step | Rest | None:
    """End the search, question the device, ask for proposals, or nothing for now."""
    known = history.of_problem(s, job.id, row.id)
    spent, counts = known.spent, known.counts
    timed = _timed(counts)
    stop = budgets.stop_reason(job, row, spent, timed)
    if stop is JobProblemReason.BUDGET_SECONDS and timed == 0 and spent.open_trials > 0:
        late_s = budgets.elapsed_s(job, row) - (row.budget_seconds or 0.0)
        stop = stop if late_s > FIRST_TRIAL_GRACE_S else None
        if stop is None:
            return None
    if stop is not None:
        return spending.after_slice(s, job, row, stop, known) or _end(job, row, stop)
    if _no_compiler(counts):
        return _end(job, row, JobProblemReason.COMPILER_MISSING)
    suspicion = canary.step(s, job, row, known)
    if suspicion is not None:
        return suspicion
    if canary.waiting(row):
        return None
    if row.search.get("exhausted"):
        return _end(job, row, JobProblemReason.SPACE_EXHAUSTED) if spent.open_trials == 0 else None
    left = budgets.trials_left(row, spent)
    most, few = in_flight(row)
    if left == 0:
        return _rest(job, row, spent.open_trials)
    if spent.open_trials > few:
        return _rest(job, row, spent.open_trials - few)
    if job.options.get("early_stop", True) and budgets.converged(known.finished, spending.share_of(row)):
        return _end(job, row, JobProblemReason.CONVERGED)
    n = most - spent.open_trials
    wanted = n if left is None else min(n, left)
    return Question(row.id, wanted, lambda r: _ask(r, job, row, known, wanted))


def _rest(job: JobRecord, row: JobProblemRecord, ends: int) -> Rest:
    hurried = job.budget_seconds or row.budget_seconds or row.budget_device_seconds
    return Rest(ends, REST_S if hurried else REST_MOST_S)


def _end(job: JobRecord, row: JobProblemRecord, reason: JobProblemReason) -> Write:
    return Write(f"end search: {reason}", lambda s: end_search(s, job, row, reason))


def write(s: Session, job_problem_id: int, n: int, proposals: Sequence[Proposal]) -> int:
    """Insert what a proposer answered; fewer than asked for means that the space is exhausted."""
    new = [
        NewTrial(
            schedule=p.schedule.to_json(),
            schedule_key=p.schedule.key,
            family=p.schedule.family,
            source=p.source,
            predicted_us=p.predicted_us,
        )
        for p in proposals
    ]
    made = trials.propose(s, job_problem_id, new)
    if len(proposals) < n or not made:
        row = jobs.problem(s, job_problem_id)
        if row is not None:
            jobs.remember(s, job_problem_id, {**row.search, "exhausted": True})
    return len(made)


def _ask(s: Session, job: JobRecord, row: JobProblemRecord, known: History, n: int) -> Ask:
    described = None if row.device_key is None else devices.get(s, row.device_key)
    device = arch_model(row.arch) if row.device_key is None else device_model(row.device_key, described)
    families = tuple(row.search.get("families", ()))
    skip = set(known.cancelled)
    for family in families:
        skip |= quarantines.schedule_keys(s, family, row.arch)
    return Ask(
        name=str(row.id),
        problem=parse_problem(row.problem),
        device=device,
        families=families,
        seed=row.seed,
        trials=spending.share_of(row) or DEFAULT_TRIALS,
        n=n,
        limits={name: tuple(values) for name, values in (job.options.get("params") or {}).items()},
        done=tuple(known.done),
        in_flight=tuple(known.in_flight),
        skip=frozenset(skip),
        transfer=tuple(Schedule.from_json(one) for one in row.search.get("transfer", ())),
    )


def _timed(counts: Sequence[OutcomeCount]) -> int:
    return sum(one.count for one in counts if one.state in (*budgets.TIMED, TrialState.RANKED))


def _no_compiler(counts: Sequence[OutcomeCount]) -> bool:
    """Not one compile worked, for want of a compiler: no use to go through the budget."""
    ended: dict[Any, int] = {}
    for one in counts:
        if one.state not in TRIAL_OPEN:
            ended[one.reason] = ended.get(one.reason, 0) + one.count
    return set(ended) == {TrialReason.COMPILER_MISSING} and ended[TrialReason.COMPILER_MISSING] >= LOW_WATER
