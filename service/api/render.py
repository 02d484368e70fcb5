"""How does a row of the store become the JSON that an endpoint answers?

The dashboard shows the same objects, so that a page and the API never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from search_space.schedule import Schedule
from service.api import emulation_text, schemas
from service.store.enums import Winner
from service.store.records import (
    DemandRecord,
    DeviceRecord,
    EmulationRecord,
    EventRecord,
    MeasurementRecord,
    OutcomeCount,
    ReleaseRecord,
    TrialDetail,
    TrialRecord,
    VerdictRecord,
    WorkerRecord,
)


def schedule_text(schedule: Mapping[str, Any] | None) -> str:
    """The schedule in one line. A row of an older version that no longer parses is shown as it is."""
    if schedule is None:
        return ""
    try:
        return Schedule.from_json(schedule).one_line()
    except (ValueError, KeyError, TypeError):
        return json.dumps(schedule, separators=(",", ":"))


def schedule_long(schedule: Mapping[str, Any] | None) -> str:
    """The schedule over several lines, group by group."""
    if schedule is None:
        return ""
    try:
        return Schedule.from_json(schedule).long()
    except (ValueError, KeyError, TypeError):
        return json.dumps(schedule, indent=1)


def _object(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)


def outcome(row: OutcomeCount) -> schemas.Outcome:
    return schemas.Outcome(
        state=str(row.state), reason=None if row.reason is None else str(row.reason), count=row.count
    )


def counts(rows: Sequence[OutcomeCount]) -> dict[str, int]:
    """Trials by state, whatever the reason."""
    out: dict[str, int] = {}
    for row in rows:
        out[str(row.state)] = out.get(str(row.state), 0) + row.count
    return out


def _trial_fields(row: TrialRecord) -> dict[str, Any]:
    return {
        "id": row.id,
        "job_id": row.job_id,
        "job_problem_id": row.job_problem_id,
        "number": row.number,
        "problem_key": row.problem_key,
        "device": row.device_key,
        "arch": row.arch,
        "family": row.family,
        "schedule": dict(row.schedule),
        "schedule_text": schedule_text(row.schedule),
        "schedule_key": row.schedule_key,
        "source": str(row.source),
        "predicted_us": row.predicted_us,
        "state": str(row.state),
        "reason": None if row.reason is None else str(row.reason),
        "stage": str(row.stage),
        "attempt": row.attempt,
        "artifact": row.artifact_sha256,
        "time_us": row.time_us,
        "contended": row.contended,
        "compile_s": row.compile_s,
        "device_s": row.device_s,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


def trial(row: TrialRecord) -> schemas.Trial:
    return schemas.Trial(**_trial_fields(row))


def verdict(row: VerdictRecord) -> schemas.Verdict:
    return schemas.Verdict(
        kind=str(row.kind),
        passed=row.passed,
        seeds=list(row.seeds),
        checks=[dict(check) for check in row.checks],
        max_error=row.max_error,
        bound=row.bound,
    )


def emulation(row: EmulationRecord, of: TrialRecord, *, over: bool) -> schemas.Emulation:
    """`over`: the problem of the trial has ended, and nothing more is run for it."""
    faults = row.evidence.get("faults")
    return schemas.Emulation(
        id=row.id,
        state=str(row.state),
        reason=None if row.reason is None else str(row.reason),
        scope=str(row.scope),
        unrun=emulation_text.unrun(row, of, over=over),
        own=row.trial_id == of.id,
        trial_id=row.trial_id,
        schedule=dict(row.schedule),
        schedule_text=schedule_text(row.schedule),
        structure=dict(row.structure),
        seeds=list(row.seeds),
        seconds=row.seconds,
        max_error=row.max_error,
        bound=row.bound,
        checks=[dict(check) for check in row.checks if isinstance(check, Mapping)],
        counters=_object(row.counters),
        faults=[dict(fault) for fault in faults if isinstance(fault, Mapping)] if faults else [],
        evidence={name: value for name, value in row.evidence.items() if name != "faults"},
        text=emulation_text.long(row, of, over=over),
    )


def measurement(row: MeasurementRecord) -> schemas.Measurement:
    return schemas.Measurement(
        policy=dict(row.policy),
        samples_us=list(row.samples_us),
        median_us=row.median_us,
        q10_us=row.q10_us,
        q90_us=row.q90_us,
        runs=row.runs,
        contended=row.contended,
        environment=dict(row.environment),
        started_at=row.started_at,
    )


def trial_detail(
    row: TrialDetail, title: str, policy: Mapping[str, Any], *, over: bool
) -> schemas.TrialDetail:
    """`over`: the problem of the trial has ended."""
    request = repeat_request(row, policy)
    return schemas.TrialDetail(
        **_trial_fields(row.trial),
        problem=dict(row.problem),
        title=title,
        schedule_long=schedule_long(row.trial.schedule),
        pool=row.pool_sha256,
        launch=_object(row.plan),
        toolchain=_object(row.toolchain),
        resources=_object(row.resources),
        log=row.log,
        evidence=dict(row.evidence),
        verdicts=[verdict(v) for v in row.verdicts],
        emulation=None if row.emulation is None else emulation(row.emulation, row.trial, over=over),
        measurements=[measurement(m) for m in row.measurements],
        repeat=f"rooftile tune --spec - <<'JSON'\n{json.dumps(request, separators=(', ', ': '))}\nJSON",
        repeat_request=request,
    )


def repeat_request(row: TrialDetail, policy: Mapping[str, Any]) -> dict[str, Any]:
    """A job whose only schedule is this one: every parameter is fixed to the value it had."""
    groups = ("tile", "movement", "layout", "roles", "order")
    params = {
        name: value
        for group in groups
        for name, value in dict(row.trial.schedule.get(group) or {}).items()
        if isinstance(value, str | int | bool)
    }
    target = {"device": row.trial.device_key} if row.trial.device_key else {"arch": row.trial.arch}
    return {
        "problem": dict(row.problem),
        "target": target,
        "policy": dict(policy),
        "families": [row.trial.family],
        "params": params,
        "budget": {"trials": 1},
        "force": True,
    }


def level(row: ReleaseRecord) -> str:
    return "baseline" if row.winner is Winner.BASELINE else "exact"


def release(row: ReleaseRecord) -> schemas.Release:
    return schemas.Release(
        release_id=row.id,
        change_id=row.change_id,
        state=str(row.state),
        pinned=row.pinned,
        generation=row.generation,
        level=level(row),
        problem_key=row.problem_key,
        layer_key=row.layer_key,
        problem=dict(row.problem),
        title=row.title,
        device=row.device_key,
        arch=row.arch,
        policy=dict(row.policy),
        family=row.family,
        schedule=_object(row.schedule),
        schedule_text=schedule_text(row.schedule) if row.schedule is not None else None,
        time_us=row.time_us,
        baseline_time_us=row.baseline_time_us,
        artifact=row.artifact_sha256,
        pool=row.pool_sha256,
        launch=_object(row.plan),
        toolchain=_object(row.toolchain),
        noise=dict(row.noise),
        tie_set=[dict(entry) for entry in row.tie_set],
        baseline=dict(row.baseline),
        reason=row.reason,
        unproven=row.unproven,
        job_id=row.job_id,
        trial_id=row.trial_id,
        created_at=row.created_at,
        published_at=row.published_at,
        ended_at=row.ended_at,
    )


def device(row: DeviceRecord, workers: Sequence[WorkerRecord]) -> schemas.Device:
    """`workers`: those that report, whatever their device."""
    return schemas.Device(
        key=row.key,
        name=row.name,
        kind=row.kind,
        arch=row.arch,
        data=dict(row.data),
        roof=_object(row.roof),
        roof_at=row.roof_at,
        state=str(row.state),
        reason=row.reason or row.waits_for,
        connected=row.connected,
        last_seen_at=row.last_seen_at,
        workers=[
            schemas.DeviceWorker(
                id=one.id,
                host=one.host,
                state=str(one.state),
                started_at=one.started_at,
                heartbeat_at=one.heartbeat_at,
                data=dict(one.data),
            )
            for one in workers
            if one.device_key == row.key
        ],
    )


def demand(row: DemandRecord) -> schemas.Demand:
    return schemas.Demand(
        problem_key=row.problem_key,
        layer_key=row.layer_key,
        problem=dict(row.problem),
        title=row.title,
        device=row.device_key,
        policy=row.policy_key,
        level=row.level,
        count=row.count,
        first_seen_at=row.first_seen_at,
        last_seen_at=row.last_seen_at,
    )


def event(row: EventRecord) -> dict[str, Any]:
    """The data of one server-sent event."""
    return {
        "id": row.id,
        "kind": str(row.kind),
        "subject_id": row.subject_id,
        "job_id": row.job_id,
        "from": row.source,
        "to": row.to,
        "reason": row.reason,
        "data": dict(row.data),
        "at": row.at.isoformat(),
    }
