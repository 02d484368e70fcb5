"""What does a person see while a job runs?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from service.store import jobs, trials
from service.store.database import Database
from service.store.enums import JobProblemState, JobState, TrialState
from service.store.records import JobRecord

# Looking is cheap, but it wakes a core beside a running measurement: not more often than needed.
LOOK_EVERY_S = 0.5
LOOK_LEAST_S = 2.0
LINE_EVERY_S = 10.0

_OPEN = (TrialState.PROPOSED, TrialState.COMPILED, TrialState.MEASURING)
_GOOD = (TrialState.MEASURED, TrialState.RANKED)


@dataclass(frozen=True)
class Standing:
    """One problem of the job at one moment."""

    id: int
    title: str
    state: JobProblemState
    done: int
    of: int | None
    measured: int
    culled: int
    bad: int
    best_us: float | None
    best_trial: int | None
    """Its id, as `rooftile trial` takes it."""
    timed: bool
    """A device was asked for; else schedules are ranked by the cost model."""
    elapsed_s: float
    seconds: float | None

    def words(self) -> str:
        parts = [f"{self.measured} measured", f"{self.culled} culled", f"{self.bad} failed"]
        if not self.timed:
            parts = [f"{self.measured} ranked", f"{self.bad} failed"]
        best = "" if self.best_us is None else f", best {self.best_us:.1f} us (trial {self.best_trial})"
        return f"{self.done} trial{'' if self.done == 1 else 's'} ({', '.join(parts)}){best}"


def look(database: Database, job_id: int) -> tuple[JobRecord | None, list[Standing]]:
    """The job and its problems now."""
    with database.read() as s:
        job = jobs.get(s, job_id)
        best = trials.best_of_job(s, job_id)
        rows = []
        for row in jobs.problems(s, job_id):
            counts = trials.counts(s, job_problem_id=row.id)
            done = [count for count in counts if count.state not in _OPEN]
            fastest = best.get(row.id)
            rows.append(
                Standing(
                    id=row.id,
                    title=row.title,
                    state=row.state,
                    done=sum(count.count for count in done),
                    of=row.budget_trials,
                    measured=sum(count.count for count in done if count.state in _GOOD),
                    culled=sum(count.count for count in done if count.state is TrialState.CULLED),
                    bad=sum(
                        count.count
                        for count in done
                        if count.state in (TrialState.FAILED, TrialState.REJECTED)
                    ),
                    timed=row.device_key is not None,
                    best_us=None if fastest is None else fastest.time_us,
                    best_trial=None if fastest is None else fastest.id,
                    elapsed_s=row.elapsed_s,
                    seconds=row.budget_seconds,
                )
            )
    return job, rows


class View:
    """Bars on a terminal, a line now and then elsewhere, nothing when `quiet`. Writes to stderr."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[int, TaskID] = {}
        self._told: dict[int, tuple[JobProblemState, float]] = {}
        if not quiet and console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[words]}"),
                console=console,
                refresh_per_second=2,
                transient=True,
            )

    def start(self) -> None:
        if self._bars is not None:
            self._bars.start()

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """One line above the bars."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, rows: list[Standing]) -> None:
        for row in rows:
            if self._bars is not None:
                self._draw(self._bars, row)
            elif not self._quiet:
                self._tell(row)

    def _draw(self, bars: Progress, row: Standing) -> None:
        done = _fraction(row)
        words = f"{row.state}: {row.words()}"
        if row.id not in self._tasks:
            self._tasks[row.id] = bars.add_task(row.title, total=1.0, words=words)
        bars.update(self._tasks[row.id], completed=done, words=words)

    def _tell(self, row: Standing) -> None:
        state, at = self._told.get(row.id, (JobProblemState.QUEUED, 0.0))
        now = time.monotonic()
        due = row.state is JobProblemState.SEARCHING and now - at >= LINE_EVERY_S
        if row.state is not state or due:
            self._told[row.id] = (row.state, now)
            self.say(f"{row.title}: {row.state}, {row.words()}")


def _fraction(row: Standing) -> float:
    """How much of its budget a problem has used: of trials or of seconds, whichever ends it first."""
    if row.state in (JobProblemState.DONE, JobProblemState.FAILED, JobProblemState.CANCELLED):
        return 1.0
    parts = [0.0]
    if row.of:
        parts.append(row.done / row.of)
    if row.seconds:
        parts.append(row.elapsed_s / row.seconds)
    return min(0.99, max(parts))


def ended(job: JobRecord) -> bool:
    return job.state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
