"""What came of a tuning job: which numbers stand in the table at the end, and in its JSON?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rooftile.problem import Problem, parse_problem
from sqlalchemy.orm import Session

from search_space.schedule import Schedule
from service.api import emulation_text
from service.jobs import proving
from service.store import devices, emulations, jobs, races, releases, trials
from service.store.enums import (
    EntrantRole,
    JobProblemReason,
    JobProblemRole,
    JobProblemState,
    RaceState,
    TrialReason,
    TrialState,
    Winner,
)
from service.store.records import (
    DeviceRecord,
    EntrantResult,
    JobProblemRecord,
    JobRecord,
    RaceRecord,
    TrialRecord,
)
from service.web import roof

RANKED_SHOWN = 10

_BAD = (TrialState.REJECTED, TrialState.FAILED)
_OURS = (EntrantRole.FINALIST, EntrantRole.DEFAULT, EntrantRole.INCUMBENT)


@dataclass(frozen=True)
class Share:
    """How near a time is to the roof that bounds the problem on this machine."""

    of: float
    bound: str
    """"compute" or "memory"."""
    roof: float
    unit: str
    """GFLOP/s or GB/s of `roof`, as measured on this machine."""


@dataclass(frozen=True)
class Ranked:
    """One schedule in the order of the cost model, where no device was asked for."""

    trial_id: int
    number: int
    predicted_us: float
    emulated: str | None
    """What the emulator says of it; None on x86, whose verdict is the device's."""
    schedule_line: str


@dataclass(frozen=True)
class ProblemResult:
    """One problem of the job. Times are of our own best kernel, from the race where one ended."""

    problem: Mapping[str, Any]
    problem_key: str
    title: str
    device: str | None
    state: str
    reason: str | None
    message: str
    """What is to be said about its end beyond `reason`; the reason's meaning where nothing is."""
    best_us: float | None
    raced: bool
    disturbed: bool
    """Other work ran on the device beside every sample of this time: it is no number to rely on."""
    gflops: float | None
    share: Share | None
    baseline_us: float | None
    baseline_disturbed: bool
    baseline_name: str | None
    ratio: float | None
    """Baseline time over ours: above 1 we are faster. None where either was disturbed."""
    noise: Mapping[str, Any] | None
    served: str | None
    """What a client is given: `trial`, `baseline`, or None where nothing was published."""
    schedule: Mapping[str, Any] | None
    schedule_line: str | None
    trial_id: int | None
    trials: Mapping[str, int]
    examples: Mapping[str, int]
    """Of each outcome in `trials` that is a failure or a rejection: the id of the first such trial."""
    ranked: tuple[Ranked, ...] = ()
    """Without a device: the best by the cost model, best first; nothing was timed."""


@dataclass(frozen=True)
class JobResult:
    job_id: int
    state: str
    reason: str | None
    message: str
    seconds: float
    results: tuple[ProblemResult, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def collect(s: Session, job: JobRecord) -> JobResult:
    """Read the state of a job, finished or not."""
    # what a sweep only measures has no answer of its own
    tuned = [row for row in jobs.problems(s, job.id) if row.role is JobProblemRole.SEARCH]
    rows = tuple(_problem_result(s, job, row) for row in tuned)
    return JobResult(
        job_id=job.id,
        state=str(job.state),
        reason=None if job.reason is None else str(job.reason),
        message=job.message,
        seconds=job.ran_s,
        results=rows,
    )


def _problem_result(s: Session, job: JobRecord, row: JobProblemRecord) -> ProblemResult:
    problem = parse_problem(dict(row.problem))
    device = devices.get(s, row.device_key) if row.device_key else None
    best = trials.best(s, row.id) or _fastest(s, row.id)
    race = races.latest(s, row.id)
    time_us, raced_trial, disturbed = _raced(race)
    base = _baseline(race)
    baseline_us = None if base is None or base.measurement is None else base.measurement.median_us
    baseline_disturbed = base is not None and base.measurement is not None and base.measurement.contended
    trial = trials.get(s, raced_trial) if raced_trial is not None else best
    if time_us is None and best is not None:
        time_us, disturbed = best.time_us, best.contended
    released = None
    if row.device_key is not None:
        released = releases.best(s, row.problem_key, row.device_key, job.policy_key)
    gflops = problem.flops / time_us / 1e3 if time_us else None
    return ProblemResult(
        problem=dict(row.problem),
        problem_key=row.problem_key,
        title=row.title,
        device=row.device_key,
        state=str(row.state),
        reason=None if row.reason is None else str(row.reason),
        message=row.message or ("" if row.reason is None else row.reason.doc),
        best_us=time_us,
        raced=raced_trial is not None,
        disturbed=disturbed,
        gflops=gflops,
        share=_share(problem, time_us, device, str(job.policy.get("cache", "cold"))),
        baseline_us=baseline_us,
        baseline_disturbed=baseline_disturbed,
        baseline_name=None if base is None else base.name,
        ratio=baseline_us / time_us
        if baseline_us and time_us and not (disturbed or baseline_disturbed)
        else None,
        noise=dict(race.noise) if race is not None and race.noise is not None else None,
        served=None if released is None else str(released.winner),
        schedule=dict(trial.schedule) if trial is not None else None,
        schedule_line=_line(trial),
        trial_id=None if trial is None else trial.id,
        trials=outcomes(s, row.id),
        examples=_examples(s, row.id),
        ranked=_ranking(s, row) if row.device_key is None else (),
    )


def _ranking(s: Session, row: JobProblemRecord) -> tuple[Ranked, ...]:
    found = []
    for trial in trials.ranked(s, row.id, RANKED_SHOWN):
        emulated = None
        if proving.emulates(trial.arch):
            emulated = emulation_text.short(
                emulations.of_trial(s, trial.id), trial, over=row.finished_at is not None
            )
        assert trial.predicted_us is not None
        line = Schedule.from_json(dict(trial.schedule)).one_line()
        found.append(Ranked(trial.id, trial.number, trial.predicted_us, emulated, line))
    return tuple(found)


def outcomes(s: Session, job_problem_id: int) -> dict[str, int]:
    """Trials by outcome: the state, with the reason where the state alone says too little."""
    counts: dict[str, int] = {}
    for row in trials.counts(s, job_problem_id=job_problem_id):
        name = _outcome(row.state, row.reason)
        counts[name] = counts.get(name, 0) + row.count
    return counts


def _outcome(state: TrialState, reason: TrialReason | None) -> str:
    return f"{state}: {reason}" if state in _BAD and reason is not None else str(state)


def _examples(s: Session, job_problem_id: int) -> dict[str, int]:
    """For each outcome that somebody may want to look into, the first trial that had it."""
    found: dict[str, int] = {}
    for trial in trials.of_problem(s, job_problem_id, _BAD):
        found.setdefault(_outcome(trial.state, trial.reason), trial.id)
    return found


def _fastest(s: Session, job_problem_id: int) -> TrialRecord | None:
    """The fastest of those that were all disturbed."""
    page = trials.listing(s, job_problem_id=job_problem_id, order="fastest", limit=1)
    return page.rows[0] if page.rows else None


def _raced(race: RaceRecord | None) -> tuple[float | None, int | None, bool]:
    """Time and trial of our fastest entrant in a race that ended, and whether its time was disturbed."""
    if race is None or race.state is not RaceState.DONE:
        return None, None, False
    timed = [
        (entrant.measurement.median_us, entrant.trial_id, entrant.measurement.contended)
        for entrant in race.entrants
        if entrant.role in _OURS and entrant.measurement is not None and entrant.failure is None
    ]
    return min(timed, key=lambda row: row[0]) if timed else (None, None, False)


def _baseline(race: RaceRecord | None) -> EntrantResult | None:
    """How the Baseline did in a race that ended."""
    if race is None or race.state is not RaceState.DONE:
        return None
    for entrant in race.entrants:
        if entrant.role is EntrantRole.BASELINE and entrant.measurement is not None:
            return entrant
    return None


def _line(trial: TrialRecord | None) -> str | None:
    return None if trial is None else Schedule.from_json(dict(trial.schedule)).one_line()


def _share(problem: Problem, time_us: float | None, device: DeviceRecord | None, cache: str) -> Share | None:
    """None where there is no time or no roof was measured."""
    if device is None or device.roof is None:
        return None
    reached = roof.share(problem, time_us, device.roof, cache)
    if reached.share is None:
        return None
    if reached.kind == "compute":
        limit = roof.peak_gflops(device.roof, problem.dtype.acc)
    else:
        limit = roof.bandwidth_gbs(device.roof)
    if limit is None:
        return None
    return Share(reached.share, reached.kind, limit, "GFLOP/s" if reached.kind == "compute" else "GB/s")


def show(result: JobResult, console: Console) -> None:
    """The table at the end."""
    if any(row.ranked for row in result.results):
        _show_ranking(result, console)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("problem", no_wrap=True)
    for heading in ("best", "GFLOP/s", "of the roof", "baseline", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("served", no_wrap=True)
    for row in result.results:
        table.add_row(
            row.title,
            _time(row.best_us) + ("*" if row.disturbed else ""),
            "" if row.gflops is None else f"{row.gflops:.1f}",
            "" if row.share is None else f"{row.share.of:.0%} {row.share.bound}",
            _time(row.baseline_us) + ("*" if row.baseline_disturbed else ""),
            _ratio(row.ratio),
            _served(row),
        )
    console.print(table)
    if any(row.disturbed or row.baseline_disturbed for row in result.results):
        console.print("* disturbed: other work ran on the device while it was timed")
    if any(_all_disturbed(row) for row in result.results):
        console.print(
            "Other work disturbed every race: wait until the machine is idle and run this again, "
            "or give it more time (--seconds).",
            soft_wrap=True,
        )
    for row in result.results:
        console.print(Text(f"\n{row.title}", style="bold"))
        if row.schedule_line:
            of = "" if row.trial_id is None else f"trial {row.trial_id}, "
            console.print(Text(f"  schedule  {of}{row.schedule_line}"), soft_wrap=True)
        _show_trials(row, console)
        if row.share is not None:
            console.print(
                Text(f"  roof      {row.share.roof:.1f} {row.share.unit} ({row.share.bound}), measured")
            )
        _show_end(row, console)


def _all_disturbed(row: ProblemResult) -> bool:
    """No race of this problem counted, because of other work on the machine."""
    return row.reason == JobProblemReason.RACE_FAILED and "disturbed" in row.message


def _show_trials(row: ProblemResult, console: Console) -> None:
    if row.trials:
        parts = ", ".join(
            f"{count} {name}" + (f", e.g. trial {row.examples[name]}" if name in row.examples else "")
            for name, count in sorted(row.trials.items())
        )
        console.print(Text(f"  trials    {sum(row.trials.values())}: {parts}"), soft_wrap=True)


def _show_end(row: ProblemResult, console: Console) -> None:
    if row.reason:
        told = f": {row.message}" if row.message and row.state != JobProblemState.DONE else ""
        console.print(Text(f"  ended     {row.state}, {row.reason}{told}"), soft_wrap=True)


def _show_ranking(result: JobResult, console: Console) -> None:
    """What was compiled and judged: nobody timed it, and the heading says so."""
    for row in result.results:
        console.print(Text(f"{row.title}: {row.message}", style="bold"), soft_wrap=True)
        emulated = any(one.emulated is not None for one in row.ranked)
        if row.ranked:
            console.print(Text("  rank  trial   expected" + ("  in the emulator" if emulated else "")))
        for rank, one in enumerate(row.ranked, 1):
            told = f"  {one.emulated or 'not emulated'}" if emulated else ""
            # The schedule in a line of its own: no terminal is wide enough for both.
            console.print(
                Text(f"  {rank:>4}  {one.trial_id:>5}  {_time(one.predicted_us):>9}{told}"), soft_wrap=True
            )
            console.print(Text(f"        {one.schedule_line}", style="dim"), soft_wrap=True)
        _show_trials(row, console)
        _show_end(row, console)
    console.print("expected: by the cost model of the family; nothing was timed")


def _time(value_us: float | None) -> str:
    if value_us is None:
        return ""
    return f"{value_us / 1e3:.3f} ms" if value_us >= 1e3 else f"{value_us:.1f} us"


def _ratio(value: float | None) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:.2f}x", style="green" if value > 1.0 else "yellow")


def _served(row: ProblemResult) -> str:
    if row.served is None:
        return "nothing"
    return "the Baseline" if row.served == Winner.BASELINE else "ours"
