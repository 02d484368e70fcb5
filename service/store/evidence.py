"""How are verdicts, measurements and failures written and read back?"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy.orm import Session

from . import clock
from .bounded import json_object, json_value, number
from .enums import TrialReason, TrialState, VerdictKind
from .models import Measurement, Verdict
from .records import Failed, MeasurementRecord, VerdictRecord


def add_verdict(
    s: Session, verdict: VerdictRecord, *, trial_id: int | None, artifact_sha256: str | None
) -> Verdict:
    row = Verdict(
        trial_id=trial_id,
        artifact_sha256=artifact_sha256,
        kind=VerdictKind(verdict.kind),
        passed=verdict.passed,
        max_error=number(verdict.max_error),
        bound=number(verdict.bound),
        created_at=clock.now(s),
        seeds=[int(seed) for seed in verdict.seeds],
        checks=_as_list(json_value([dict(check) for check in verdict.checks])),
    )
    s.add(row)
    s.flush()
    return row


def add_measurement(s: Session, measurement: MeasurementRecord, *, trial_id: int | None) -> Measurement:
    row = Measurement(
        trial_id=trial_id,
        median_us=measurement.median_us,
        q10_us=number(measurement.q10_us),
        q90_us=number(measurement.q90_us),
        runs=measurement.runs,
        contended=measurement.contended,
        started_at=measurement.started_at,
        policy=json_object(measurement.policy),
        environment=json_object(measurement.environment),
        samples_us=[float(sample) for sample in measurement.samples_us if math.isfinite(sample)],
    )
    s.add(row)
    s.flush()
    return row


def verdict_record(row: Verdict) -> VerdictRecord:
    return VerdictRecord(
        kind=row.kind,
        passed=row.passed,
        seeds=tuple(row.seeds),
        checks=tuple(row.checks),
        max_error=row.max_error,
        bound=row.bound,
    )


def measurement_record(row: Measurement) -> MeasurementRecord:
    return MeasurementRecord(
        policy=row.policy,
        samples_us=tuple(row.samples_us),
        median_us=row.median_us,
        q10_us=row.q10_us,
        q90_us=row.q90_us,
        runs=row.runs,
        contended=row.contended,
        environment=row.environment,
        started_at=row.started_at,
    )


def fault_of(measurement: MeasurementRecord | None, verdict: VerdictRecord | None) -> Failed | None:
    """The failure that a result amounts to although nobody called it one; None: it stands.

    The store looks again because a wrong or impossible time that got in would be served.
    """
    if verdict is None or not verdict.passed:
        evidence: dict[str, Any] = {"verdict": "missing" if verdict is None else "did not pass"}
        reason = TrialReason.INTERNAL_ERROR if verdict is None else TrialReason.WRONG_RESULT
        return Failed(TrialState.FAILED, reason, evidence)
    if measurement is not None and not (math.isfinite(measurement.median_us) and measurement.median_us > 0):
        return Failed(TrialState.FAILED, TrialReason.INVALID_TIME, {"median_us": measurement.median_us})
    return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
