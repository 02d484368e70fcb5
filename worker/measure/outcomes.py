"""How do the measuring process's answers become the records that the store takes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from service.store.enums import EntrantRole, TrialReason, TrialState, VerdictKind
from service.store.records import (
    EntrantResult,
    Failed,
    Measured,
    MeasurementRecord,
    RaceOutcome,
    VerdictRecord,
)
from worker.errors import ChildLostError

# Rejected, not failed: nothing ran.
_REJECTIONS = frozenset({TrialReason.PLAN_INVALID, TrialReason.ILLEGAL})


class Named(Protocol):
    """An entrant, as far as its result is concerned."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def trial_id(self) -> int | None: ...


def lost(error: ChildLostError, device_s: float) -> Failed:
    reason = TrialReason.OUT_OF_MEMORY if error.memory else TrialReason.INTERNAL_ERROR
    return Failed(TrialState.FAILED, reason, {"message": str(error)}, device_s=device_s)


def failed(answer: Mapping[str, Any], device_s: float | None) -> Failed:
    reason = TrialReason(answer["reason"])
    state = TrialState.REJECTED if reason in _REJECTIONS else TrialState.FAILED
    return Failed(
        state, reason, answer["evidence"], device_s=device_s, verdict=_verdict(answer.get("verdict"))
    )


def _verdict(value: Mapping[str, Any] | None) -> VerdictRecord | None:
    if value is None:
        return None
    return VerdictRecord(
        VerdictKind.DEVICE,
        bool(value["passed"]),
        tuple(value["seeds"]),
        tuple(value["checks"]),
        value["max_error"],
        value["bound"],
    )


def _measurement(value: Mapping[str, Any]) -> MeasurementRecord:
    return MeasurementRecord(
        policy=value["policy"],
        samples_us=tuple(value["samples_us"]),
        median_us=value["median_us"],
        q10_us=value["q10_us"],
        q90_us=value["q90_us"],
        runs=value["runs"],
        contended=value["contended"],
        environment=value["environment"],
        started_at=datetime.fromisoformat(value["started_at"]),
    )


def trial_outcome(answer: Mapping[str, Any], device_s: float) -> Measured | Failed:
    if answer["status"] != "measured":
        return failed(answer, device_s)
    verdict = _verdict(answer["verdict"])
    assert verdict is not None
    return Measured(verdict, _measurement(answer["measurement"]), bool(answer["culled"]), device_s)


def race_outcome(answer: Mapping[str, Any], entrants: Sequence[Named], device_s: float) -> RaceOutcome:
    results = []
    for entrant, one in zip(entrants, answer["entrants"], strict=True):
        results.append(
            EntrantResult(
                name=entrant.name,
                role=EntrantRole(entrant.role),
                trial_id=entrant.trial_id,
                measurement=None if one["measurement"] is None else _measurement(one["measurement"]),
                verdict=_verdict(one["verdict"]),
                failure=None if one["failure"] is None else failed(one["failure"], None),
            )
        )
    return RaceOutcome(tuple(results), answer["noise"], answer["environment"], device_s)
