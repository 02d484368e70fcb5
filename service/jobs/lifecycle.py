"""When does a job run, which of its problems starts next, and how does it end?

Problems of one job and device run one after another. Jobs share a device: whose trial or race is next is
decided claim by claim (service/store/shares.py), and the seconds in which the device worked for others are
not counted. So that what is kept ready for each stays bounded, so many of one token share it at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rooftile.problem import parse_problem
from sqlalchemy.orm import Session

from search_space.registry import families_for
from service.jobs import budgets, manning, probing, spending, sweeping, transfer
from service.jobs.step import Step, Write
from service.store import artifacts, devices, jobs, leases
from service.store.enums import JobProblemReason, JobProblemRole, JobProblemState, JobReason, JobState
from service.store.records import DeviceRecord, JobProblemRecord, JobRecord
from service.store.transitions import JOB_PROBLEM, final

ACTIVE = (JobProblemState.SEARCHING, JobProblemState.RACING, JobProblemState.PROVING)
_ENDED = final(JOB_PROBLEM)
SHARERS_MOST = 8
"""Jobs of one token that may have a problem under way on one device. Those of lower priority do not count."""

_CROWDED = (
    f"{SHARERS_MOST} jobs of this token are under way on its device, or come before it: it begins when one"
    " of them ends."
)

_REASONS = {
    JobProblemReason.COMPILER_MISSING: JobReason.COMPILER_MISSING,
    JobProblemReason.NO_FAMILY: JobReason.NO_FAMILY,
    JobProblemReason.NO_PASSING_TRIAL: JobReason.NO_PASSING_TRIAL,
    JobProblemReason.BUDGET_SECONDS: JobReason.BUDGET_SPENT,
    JobProblemReason.DEVICE_OUT_OF_SERVICE: JobReason.DEVICE_OUT_OF_SERVICE,
    JobProblemReason.RACE_FAILED: JobReason.NO_PASSING_TRIAL,
}


# ---------------------------------------------------------------- may it run?


def before_running(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> Step | None:
    """A queued or waiting job starts when a device of it is connected and free."""
    todo = [row for row in rows if row.state not in _ENDED]
    if todo and job.reason is JobReason.NO_WORKER and all(manning.lacking(s, row) for row in todo):
        return None
    if not todo or any(startable(s, job, row) or _goes_on(s, job, row) for row in todo):
        return Write("run", lambda w: _move(w, job, JobState.RUNNING))
    if any(connected(s, row.device_key) for row in todo):
        if job.state is JobState.WAITING or job.message != _CROWDED:
            return Write("queue", lambda w: _move(w, job, JobState.QUEUED, _CROWDED))
        return None
    if job.state is JobState.WAITING:
        return None
    return Write("wait", lambda w: _wait(w, job, todo))


def while_running(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> Step | None:
    """Start the next problem of a device that has none, end the job, or wait for a device that is gone."""
    todo = [row for row in rows if row.state not in _ENDED]
    if (sweep := sweeping.step(s, job, rows)) is not None:
        return sweep
    if not todo:
        return Write("finish", lambda w: _move(w, job, JobState.FINISHING))
    busy = {row.device_key for row in todo if row.state in ACTIVE}
    ready = [row for row in todo if row.device_key not in busy and startable(s, job, row)]
    if ready:
        row = sweeping.first(job, rows, [one for one in ready if one.device_key == ready[0].device_key])
        return Write("start problem", lambda w: start(w, job, rows, row))
    rests = [row for row in todo if row.state is JobProblemState.RESTING and row.device_key not in busy]
    rests = [row for row in rests if _goes_on(s, job, row)]
    if rests:
        mine = [row for row in rests if row.device_key == rests[0].device_key]
        return spending.resting(s, job, rows, mine)
    if not any(connected(s, row.device_key) for row in todo):
        return Write("wait", lambda w: _wait(w, job, todo))
    if text := manning.stuck(s, job, [row for row in todo if row.state in ACTIVE]):
        return Write("wait", lambda w: _wait_for_worker(w, job, text))
    return None


def connected(s: Session, device_key: str | None) -> bool:
    """A worker that owns the device reports, and it is in service. No device asked for: always."""
    if device_key is None:
        return True
    return devices.is_connected(s, device_key)


def startable(s: Session, job: JobRecord, row: JobProblemRecord) -> bool:
    """A queued problem that nothing stands before. A size of 0 needs no device."""
    if row.state is not JobProblemState.QUEUED:
        return False
    if parse_problem(row.problem).empty:
        return True
    return connected(s, row.device_key) and _free(s, job, row.device_key)


def _goes_on(s: Session, job: JobRecord, row: JobProblemRecord) -> bool:
    """A problem that was under way when its job was paused or lost its device."""
    under_way = row.state in ACTIVE or row.state is JobProblemState.RESTING
    return under_way and connected(s, row.device_key) and _free(s, job, row.device_key)


def _free(s: Session, job: JobRecord, device_key: str | None) -> bool:
    """The device has a place for another job of the token: not too many have one, or come before this one."""
    if device_key is None:
        return True
    before = 0
    for other in jobs.sharers(s, device_key):
        if other.job_id == job.id or other.token_id != job.token_id:
            continue
        if other.active:
            before += other.priority >= job.priority
        else:
            before += (-other.priority, other.job_id) < (-job.priority, job.id)
    return before < SHARERS_MOST


def _move(s: Session, job: JobRecord, to: JobState, message: str = "") -> None:
    jobs.move(s, job.id, to, message=message)


def _wait(s: Session, job: JobRecord, todo: Sequence[JobProblemRecord]) -> None:
    keys = list(dict.fromkeys(row.device_key for row in todo if row.device_key is not None))
    jobs.move(s, job.id, JobState.WAITING, *why_without({key: devices.get(s, key) for key in keys}))


def why_without(known: Mapping[str, DeviceRecord | None]) -> tuple[JobReason, str]:
    """Why none of these devices (by key) takes work: the reason of a job that waits, and its message."""
    out = [one for one in known.values() if one is not None and one.reason and not one.connected]
    if out and len(out) == len(known):
        return JobReason.DEVICE_OUT_OF_SERVICE, _out_of_service(out[0])
    text = f"No worker for {', '.join(known)} is connected."
    others = [one.waits_for for one in known.values() if one is not None and one.waits_for]
    if others:
        text = f"The device's worker waits: {others[0]}"
    return JobReason.NO_DEVICE, text


def _wait_for_worker(s: Session, job: JobRecord, text: str) -> None:
    jobs.move(s, job.id, JobState.WAITING, JobReason.NO_WORKER, text)


def _out_of_service(device: DeviceRecord) -> str:
    return f"Device {device.key} is out of service: {device.reason}"


# ---------------------------------------------------------------- start and end


def start(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord], row: JobProblemRecord) -> None:
    """Begin one problem with its share of what is left."""
    problem = parse_problem(row.problem)
    if problem.empty:
        text = "A size is 0: there is nothing to tune."
        jobs.move_problem(s, row.id, JobProblemState.DONE, JobProblemReason.EMPTY_PROBLEM, text)
        return
    wanted = job.options.get("families")
    able = [family.name for family in families_for(problem, row.arch)]
    names = able if wanted is None else [name for name in wanted if name in able]
    if not names:
        text = f"No family of this version computes it on {row.arch}."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.NO_FAMILY, text)
        return
    seconds = budgets.left_over(job, rows, row)
    if seconds is not None and seconds <= 0:
        text = "The job's seconds were used up before it began."
        jobs.move_problem(s, row.id, JobProblemState.FAILED, JobProblemReason.BUDGET_SECONDS, text)
        return
    if row.role is not JobProblemRole.SEARCH:
        probing.start(s, job, row, seconds)
        return
    jobs.set_budget(
        s,
        row.id,
        trials=row.budget_trials,
        seconds=seconds,
        device_seconds=row.budget_device_seconds,
    )
    near = [dict(schedule) for schedule in transfer.winners(s, job, rows, row, problem, names)]
    jobs.remember(s, row.id, {"ran_s": job.ran_s, "families": names, "transfer": near})
    if spending.shares(job, rows, row):
        spending.begin(s, job, rows, row)
    jobs.move_problem(s, row.id, JobProblemState.SEARCHING)


def finish(s: Session, job: JobRecord, rows: Sequence[JobProblemRecord]) -> None:
    """Drop what nobody needs any more and give the job its end."""
    artifacts.prune(s, job.id)
    leases.forget(s, leases.job_lease(job.id))
    good = [row for row in rows if row.state is JobProblemState.DONE]
    bad = [row for row in rows if row.state is JobProblemState.FAILED]
    if not good:
        reason = _REASONS.get(bad[0].reason) if bad and bad[0].reason is not None else None
        text = bad[0].message if bad else ""
        if len(bad) > 1:
            text = f"None of {len(bad)} problems has an answer. {bad[0].title}: {text}"
        jobs.move(s, job.id, JobState.FAILED, reason or JobReason.INTERNAL_ERROR, text)
        return
    text = ""
    if bad:
        text = f"{len(bad)} of {len(rows)} problems failed. {bad[0].title}: {bad[0].message}"
    elif len(rows) == 1:
        text = rows[0].message
    jobs.move(s, job.id, JobState.DONE, None, text)
