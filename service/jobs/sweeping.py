"""What does a sweep do next: which size is tuned, from which starts, what is measured again, and what is its
table?

When all problems of a line have ended on a device, `step` adds the next one: a size where most is lost by
what is known; then, at tuned sizes, the neighbours' winners that were not raced there; then held-out sizes;
and in the end it writes the DispatchTable. All of it follows from the rows, so a crash loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from service.jobs import dispatch, lines, probing, sweep_facts
from service.jobs.dispatch import BASELINE
from service.jobs.lines import CROSS_SCHEDULES, PROBE_SCHEDULES, Line
from service.jobs.problem_rows import problem_record
from service.jobs.step import Step, Write
from service.jobs.sweep_facts import Facts
from service.store import dispatch as tables
from service.store import events, jobs, trials
from service.store.enums import JobProblemRole, JobProblemState
from service.store.records import (
    DispatchIntervalRecord,
    JobProblemRecord,
    JobRecord,
    NewDispatchTable,
    NewJobProblem,
)
from service.store.transitions import JOB_PROBLEM, final

TRIALS_LEAST = 6
"""With fewer left a further size is not begun."""
PROBE_LEAST_S = 15.0
"""A race of few takes as long as one of many: 8 to 9 seconds on a CPU."""

_ENDED = final(JOB_PROBLEM)
SEARCH, CROSS, HELD_OUT = JobProblemRole.SEARCH, JobProblemRole.CROSS, JobProblemRole.HELD_OUT


def first(
    job: JobRecord, rows: Sequence[JobProblemRecord], ready: Sequence[JobProblemRecord]
) -> JobProblemRecord:
    """Which of these to begin: in the job's order, but within a line the size that is farthest from those
    that were begun, so that those between have neighbours to learn from."""
    chosen = ready[0]
    if chosen.line is None or chosen.role is not SEARCH:
        return chosen
    line = lines.of_job(job)[chosen.line]
    mine = [one for one in rows if _of(one, chosen.line, chosen.device_key) and one.role is SEARCH]
    begun = [int(one.problem[line.axis]) for one in mine if one.state is not JobProblemState.QUEUED]
    sizes = {int(one.problem[line.axis]): one for one in ready if one in mine}
    return sizes[lines.farthest(begun, sorted(sizes))] if begun else chosen


def neighbours(
    s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord
) -> list[Mapping[str, Any]]:
    """What was best at the nearest tuned sizes below and above."""
    if row.line is None or row.device_key is None:
        return []
    axis = lines.of_job(job)[row.line].axis
    mine = [one for one in rows if _of(one, row.line, row.device_key) and one.role is SEARCH]
    done = sorted((int(one.problem[axis]), one.id) for one in mine if one.id != row.id and _begun(one))
    size = int(row.problem[axis])
    below, above = [one for one in done if one[0] < size], [one for one in done if one[0] > size]
    found: list[Mapping[str, Any]] = []
    for pair in (below[-1:], above[:1]):
        for _, row_id in pair:
            best = sweep_facts.best_schedule(s, job, row_id)
            if best is not None:
                found.append(best)
    return found


def step(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> Step | None:
    """The next step of a line whose problems have all ended on a device."""
    found = lines.of_job(job)
    if not found:
        return None
    written = tables.lines_of_job(s, job.id)
    for index, line in enumerate(found):
        keys = dict.fromkeys(one.device_key for one in rows if one.line == index)
        for key in keys:
            mine = [one for one in rows if _of(one, index, key)]
            ready = all(one.state in _ENDED for one in mine) and any(_answered(one) for one in mine)
            if key is not None and ready and (index, key) not in written:
                return Write("sweep", partial(_on, job=job, index=index, line=line, mine=mine))
    return None


def _of(row: JobProblemRecord, line: int, device_key: str | None) -> bool:
    return row.line == line and row.device_key == device_key


def _answered(row: JobProblemRecord) -> bool:
    return row.role is SEARCH and row.state is JobProblemState.DONE


def _begun(row: JobProblemRecord) -> bool:
    return row.state is not JobProblemState.QUEUED


def _on(s: Session, *, job: JobRecord, index: int, line: Line, mine: Sequence[JobProblemRecord]) -> None:
    facts = sweep_facts.of_line(s, job, line, mine)
    roles = {one.role for one in mine}
    more: list[NewJobProblem] = []
    if line.chosen and facts.known:
        budget = _Left(s, job, line, mine)
        if not roles & {CROSS, HELD_OUT}:
            more = _another_size(index, line, mine, facts, budget)
            more = more or _cross(index, line, mine, facts, budget)
        if not more and HELD_OUT not in roles:
            more = _held_out(index, line, mine, facts, budget)
    if more:
        jobs.extend(s, job.id, more)
        told = {
            "line": index,
            "role": str(more[0].role),
            "sizes": [one.problem.spec[line.axis] for one in more],
        }
        events.note(s, job.id, "sweep", told)
        return
    write_table(s, job, index, line, mine, facts)


class _Left:
    """What is left of a line's budget on one device."""

    def __init__(self, s: Session, job: JobRecord, line: Line, mine: Sequence[JobProblemRecord]) -> None:
        counts = trials.counts_of_problems(s, job.id)
        spent = sum(one.count for row in mine for one in counts.get(row.id, ()))
        self.trials = None if line.trials is None else line.trials - spent
        shared_s = sum(one.shared_s for one in mine)
        self.seconds = None if job.budget_seconds is None else job.budget_seconds - job.ran_s + shared_s

    def probes(self, count: int, schedules: int) -> int:
        """How many of so many probes there is budget for."""
        if self.trials is not None:
            count = min(count, self.trials // max(1, schedules))
        if self.seconds is not None:
            count = min(count, int(self.seconds / PROBE_LEAST_S))
        return max(0, count)

    def take(self, probes: int, schedules: int) -> None:
        if self.trials is not None:
            self.trials -= probes * schedules
        if self.seconds is not None:
            self.seconds -= probes * PROBE_LEAST_S


def _another_size(
    index: int, line: Line, mine: Sequence[JobProblemRecord], facts: Facts, left: _Left
) -> list[NewJobProblem]:
    """The size where most may be gained, while one may still be tuned."""
    begun = [one for one in mine if one.role is SEARCH]
    more = line.tune - len(begun)
    if more <= 0 or (left.seconds is not None and left.seconds < 2 * PROBE_LEAST_S):
        return []
    share = None
    if left.trials is not None:
        share = (left.trials - line.reserve_trials()) // more
        if share < TRIALS_LEAST:
            return []
    sizes = {int(one.problem[line.axis]) for one in begun}
    size = dispatch.next_size(facts.known, line.between, sorted(sizes))
    if size is None:
        return []
    return [_row(line, index, mine, size, SEARCH, (), share)]


def _cross(
    index: int, line: Line, mine: Sequence[JobProblemRecord], facts: Facts, left: _Left
) -> list[NewJobProblem]:
    """At tuned sizes once more, the neighbours' winners that were not raced with the winner there."""
    known, carried = facts.known, dispatch.settled(facts.known)
    found = []
    for i, one in enumerate(known):
        near = [other.winner for other in (*known[max(0, i - 1) : i], *known[i + 1 : i + 2])]
        near += [other.winner for other in carried[max(0, i - 1) : i]]
        names = [name for name in dict.fromkeys(near) if facts.asks(one.size, name)]
        if names:
            names = [one.winner, *names]
            schedules = [facts.schedules[name] for name in names if name in facts.schedules]
            found.append(_row(line, index, mine, one.size, CROSS, schedules[:CROSS_SCHEDULES], None))
    # those of the held-out sizes come after them
    keep = left.probes(line.hold_out, PROBE_SCHEDULES)
    left.take(keep, PROBE_SCHEDULES)
    return found[: left.probes(len(found), CROSS_SCHEDULES)]


def _held_out(
    index: int, line: Line, mine: Sequence[JobProblemRecord], facts: Facts, left: _Left
) -> list[NewJobProblem]:
    """Sizes that were not tuned, each with what the table says there and what won nearby."""
    intervals = dispatch.build(facts.known, line.low, line.high, facts.usable)
    count = left.probes(line.hold_out, PROBE_SCHEDULES)
    found = []
    for size in dispatch.held_out(facts.known, line.between, count):
        choice = dispatch.choice_at(intervals, size)
        near = sorted(facts.known, key=lambda one: (lines.distance(one.size, size), one.size))
        names = dict.fromkeys([*([choice] if choice else []), *(one.winner for one in near)])
        schedules = [facts.schedules[name] for name in names if name in facts.schedules]
        if schedules:
            found.append(_row(line, index, mine, size, HELD_OUT, schedules[:PROBE_SCHEDULES], None))
    return found


def _row(
    line: Line,
    index: int,
    mine: Sequence[JobProblemRecord],
    size: int,
    role: JobProblemRole,
    schedules: Sequence[Mapping[str, Any]],
    share: int | None,
) -> NewJobProblem:
    probe = role is not SEARCH
    return NewJobProblem(
        problem=problem_record(line.problem(size)),
        device_key=mine[0].device_key,
        arch=mine[0].arch,
        weight=line.weight * (lines.PROBE_WEIGHT if probe else 1.0),
        budget_trials=len(schedules) if probe else share,
        budget_device_seconds=None if probe else line.share_device_seconds(),
        seed=mine[0].seed,
        role=role,
        line=index,
        search=probing.wanted(schedules) if probe else {},
    )


# ---------------------------------------------------------------- the table


def write_table(
    s: Session, job: JobRecord, index: int, line: Line, mine: Sequence[JobProblemRecord], facts: Facts
) -> None:
    """Write what the line has come to; a table without intervals where nothing is served at any size."""
    intervals = dispatch.build(facts.known, line.low, line.high, facts.usable)
    device_key, problem = mine[0].device_key, line.problem(line.low)
    assert device_key is not None
    fixed = {name: problem.to_json()[name] for name in problem.layer().open if name != line.axis}
    table_id = tables.create(
        s,
        NewDispatchTable(
            layer_key=problem.layer().key,
            device_key=device_key,
            policy_key=job.policy_key,
            job_id=job.id,
            line=index,
            axis=line.axis,
            low=line.low,
            high=line.high,
            fixed=fixed,
            tuned=[
                {
                    "size": one.size,
                    "winner": one.winner,
                    "release_id": facts.releases[one.size],
                    "noise": one.noise,
                    "losses": dict(sorted(one.losses.items())),
                }
                for one in facts.known
            ],
            held_out=sweep_facts.held_out_losses(s, line, mine, facts, intervals),
            intervals=[
                DispatchIntervalRecord(
                    low=one.low,
                    high=one.high,
                    tuned_at=one.tuned_at,
                    release_id=facts.releases[one.tuned_at],
                    schedule_key=None if one.choice == BASELINE else one.choice,
                    mean_loss=one.mean_loss,
                    worst_loss=one.worst_loss,
                )
                for one in intervals
            ],
        ),
    )
    told = {"line": index, "table_id": table_id, "intervals": len(intervals)}
    events.note(s, job.id, "dispatch_table", told)
