"""Which device is replayed, and how is its every trial and race waited out?"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooftile.device import CpuIdentity, local_cpu
from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from bench.replay.recording import recording
from service.host import VARIABLE, test_host
from service.store.enums import EntrantRole, TrialReason, TrialState, VerdictKind
from service.store.records import (
    EntrantResult,
    Failed,
    Measured,
    MeasurementRecord,
    RaceOutcome,
    VerdictRecord,
)
from worker.errors import DeviceMismatchError, TrialCancelled
from worker.measure.session import Cancelled, MeasureSession, RaceEntrant

HOST = "replay"
TRIAL_S = "ROOFTILE_BENCH_TRIAL_S"
"""Seconds of the device that each trial takes; a race takes as long as two."""
MARK = {"replay": recording().name}
"""In everything that is written: nothing of it was run here."""
# As the search's own rule: a candidate this much slower than the best is not looked at for long.
_CULLED = 1.15
_ASK_S = 0.2


def replayed_cpu() -> CpuIdentity:
    """This machine's CPU under a key that no real device has. DeviceMismatchError outside of a test."""
    if test_host() != HOST:
        raise DeviceMismatchError(f"Recorded times are replayed for tests alone: {VARIABLE} is not {HOST}.")
    return replace(local_cpu(), vendor=HOST, name=f"replay of {recording().name}")


def replayed_key() -> str:
    """Of the replayed device on this machine, for whoever asks for it from outside."""
    return str(replace(local_cpu().device_key, vendor=HOST))


class ReplaySession(MeasureSession):
    """Waits as long as a trial takes, and answers what was recorded."""

    def __init__(self, device_key: str) -> None:
        super().__init__(device_key, threads=1)
        self._trial_s = float(os.environ.get(TRIAL_S, "0.5"))

    def trial(
        self,
        problem: Problem,
        plan: LaunchPlan,
        so_path: Path,
        pool_path: Path | None,
        policy: Mapping[str, Any],
        seed: int,
        best_us: float | None = None,
        *,
        limit_s: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> Measured | Failed:
        started = time.monotonic()
        time_us = _recorded_us(so_path)
        self._wait(self._trial_s, cancelled)
        culled = best_us is not None and time_us > _CULLED * best_us
        took_s = time.monotonic() - started
        return Measured(_verdict(seed), _measurement(time_us, policy), culled, took_s)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[RaceEntrant],
        policy: Mapping[str, Any],
        seed: int,
        rounds: int | None = None,
        *,
        limit_s: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> RaceOutcome | Failed:
        started = time.monotonic()
        self._wait(2 * self._trial_s, cancelled)
        results = []
        for one in entrants:
            if one.so_path is None:
                told = {**MARK, "message": "The vendor's kernel was not recorded."}
                missing = Failed(TrialState.FAILED, TrialReason.LAUNCH_ERROR, told)
                results.append(EntrantResult(one.name, EntrantRole(one.role), None, None, None, missing))
                continue
            measurement = _measurement(_recorded_us(one.so_path), policy)
            role = EntrantRole(one.role)
            results.append(EntrantResult(one.name, role, one.trial_id, measurement, _verdict(seed), None))
        return RaceOutcome(tuple(results), {"relative": 0.005}, MARK, time.monotonic() - started)

    def _wait(self, seconds: float, cancelled: Cancelled | None) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if cancelled is not None and cancelled():
                raise TrialCancelled("cancelled while it was replayed")
            time.sleep(min(left_s, _ASK_S))


def _recorded_us(path: Path) -> float:
    time_us = recording().time_us(json.loads(path.read_bytes())["values"])
    assert time_us is not None  # it was legal
    return time_us


def _measurement(time_us: float, policy: Mapping[str, Any]) -> MeasurementRecord:
    return MeasurementRecord(policy, (time_us,), time_us, None, None, 1, False, MARK, datetime.now(UTC))


def _verdict(seed: int) -> VerdictRecord:
    return VerdictRecord(VerdictKind.DEVICE, True, (seed,), (dict(MARK),), None, None)
