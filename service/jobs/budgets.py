"""When has one problem of a job been searched enough?

Seconds are the job's own: the database's clock while the job runs, less what the device worked for others
meanwhile, so that neither a pause nor a neighbour costs anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.jobs.lines import weight_to_come
from service.store.enums import JobProblemReason, TrialState
from service.store.records import JobProblemRecord, JobRecord, Spent, TrialProgress

# Entrants of a full race: four finalists, default, incumbent, twin, Baseline.
RACERS = 8
# A race on a CPU takes 8 to 9 seconds: 6 of turns, the rest for every entrant to prove itself.
RACE_LEAST_S = 11.0
RACE_MOST_SHARE = 0.40
# Where no device was asked for, the same part at most is kept for the finalists' runs in the emulator: four,
# of some ten seconds each.
PROVE_LEAST_S = 40.0
# "No longer improves": no gain over 1 % in the last 16 trials, or in the last quarter of the budget.
GAIN_LEAST = 0.01
PATIENCE_TRIALS = 16
PATIENCE_SHARE = 0.25
TIMED_LEAST = 24

TIMED = (TrialState.MEASURED, TrialState.CULLED)


def elapsed_s(job: JobRecord, row: JobProblemRecord) -> float:
    """Seconds of the job's clock since this problem was started, without those of others on its device."""
    before_s = float(row.search.get("used_s", 0.0))  # until its last rest
    return max(0.0, before_s + job.ran_s - float(row.search.get("ran_s", job.ran_s)) - row.shared_s)


def left_over(job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> float | None:
    """A problem's share of the seconds that are left, by weight among those of its device that have not
    ended; None without a limit."""
    if job.budget_seconds is None:
        return None
    mine = [one for one in rows if one.device_key == row.device_key]
    open_weight = sum(one.weight for one in mine if one.finished_at is None) + weight_to_come(job, mine)
    left = job.budget_seconds - job.ran_s + sum(one.shared_s for one in mine)
    return max(0.0, left * row.weight / open_weight) if open_weight > 0 else 0.0


def race_reserve_s(row: JobProblemRecord, spent: Spent, timed: int) -> float:
    """Seconds of a problem's share that are kept for its race: as long as that many trials took, and what a
    race takes at least, but not over 40 % of the share."""
    share = row.budget_seconds or 0.0
    each = spent.device_s / timed if timed else 0.0
    return min(max(RACERS * each, RACE_LEAST_S), RACE_MOST_SHARE * share)


def out_of_time(job: JobRecord, row: JobProblemRecord) -> bool:
    """Its seconds are used up; what is under way may end."""
    return row.budget_seconds is not None and elapsed_s(job, row) >= row.budget_seconds


def stop_reason(job: JobRecord, row: JobProblemRecord, spent: Spent, timed: int) -> JobProblemReason | None:
    """The part of the budget that is used up, if one is."""
    if row.budget_seconds is not None:
        search_s = row.budget_seconds
        if row.device_key is not None:
            search_s -= race_reserve_s(row, spent, timed)
        elif not row.arch.startswith("x86") and job.options.get("emulate") != "never":
            search_s -= min(PROVE_LEAST_S, RACE_MOST_SHARE * row.budget_seconds)
        if elapsed_s(job, row) >= search_s:
            return JobProblemReason.BUDGET_SECONDS
    if row.budget_device_seconds is not None and spent.device_s >= row.budget_device_seconds:
        return JobProblemReason.BUDGET_DEVICE_SECONDS
    if row.budget_trials is not None and spent.trials >= row.budget_trials and spent.open_trials == 0:
        return JobProblemReason.BUDGET_TRIALS
    return None


def trials_left(row: JobProblemRecord, spent: Spent) -> int | None:
    """How many more may be proposed; None without a limit."""
    return None if row.budget_trials is None else max(0, row.budget_trials - spent.trials)


def converged(finished: Sequence[TrialProgress], budget_trials: int | None) -> bool:
    """Whether the last trials brought no gain over 1 %; `finished` in the order in which they ended."""
    timed = sum(1 for row in finished if row.state in TIMED)
    patience = max(PATIENCE_TRIALS, int(PATIENCE_SHARE * (budget_trials or len(finished))))
    if timed < TIMED_LEAST or len(finished) <= patience:
        return False
    before = _best(finished[:-patience])
    now = _best(finished)
    return before is not None and now is not None and before <= now * (1 + GAIN_LEAST)


def _best(rows: Sequence[TrialProgress]) -> float | None:
    times = [row.time_us for row in rows if row.state is TrialState.MEASURED and row.time_us is not None]
    return min(times, default=None)
