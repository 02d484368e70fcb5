"""The workers' part in tests of jobs: claims, finishes, and says what a schedule's time is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from rooftile.problem import parse_problem
from support.store import emulated, failed, measured, measurement, verdict
from support.toy_family import true_us

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.jobs.advance import advance
from service.jobs.proposing import Proposer
from service.jobs.target import arch_model
from service.store import devices, emulation_claims, jobs, races, trials, workers
from service.store.database import Database
from service.store.enums import EntrantRole, JobState, TrialReason, WorkerKind, WorkerState
from service.store.records import (
    CompileClaim,
    Compiled,
    DeviceRecord,
    EmulateOutcome,
    Entrant,
    EntrantResult,
    Failed,
    JobRecord,
    Measured,
    RaceOutcome,
)

ARCH = "x86-64-v4"
DEVICE = "cpu-intel-6-85-2c-x86-64-v4"
OTHER_DEVICE = "cpu-amd-25-1-8c-x86-64-v3"
BASELINE_US = 9000.0
TOOLCHAIN: Mapping[str, Any] = {"compiler": "cc", "version": "12.2"}

Outcome = Measured | Failed | None
"""None: whatever `time_us` says."""


GPU_DEVICE = Device.for_arch("sm_80").key


def connect(db: Database, *keys: str) -> None:
    """A measure worker for each device reports."""
    for key in keys or (DEVICE,):
        device = Device.for_key(key)
        with db.begin() as s:
            devices.upsert(
                s,
                DeviceRecord(
                    key=key, name=device.name, kind=key[:3], arch=device.arch.name, data=device.to_json()
                ),
            )
            workers.heartbeat(s, f"measure-{key}", WorkerKind.MEASURE, "elsewhere", 1, key, WorkerState.IDLE)


def disconnect(db: Database, key: str = DEVICE) -> None:
    with db.begin() as s:
        workers.remove(s, f"measure-{key}")


@dataclass
class Hands:
    """Compile and measure workers in one; every hook may be replaced."""

    db: Database
    device_key: str = DEVICE
    time_us: Callable[[Schedule], float] = true_us
    time_at: Callable[[Mapping[str, Any], Schedule], float] | None = None
    """Where the time depends on the problem too: instead of `time_us`."""
    on_compile: Callable[[Schedule], Failed | None] = lambda schedule: None
    on_measure: Callable[[Schedule], Outcome] = lambda schedule: None
    on_entrant: Callable[[Entrant], EntrantResult | None] = lambda entrant: None
    baseline_us: float | None = BASELINE_US
    toolchain: Mapping[str, Any] = field(default_factory=lambda: TOOLCHAIN)
    noise: float = 0.0
    seed: int = 0
    compiled: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    races: list[list[str]] = field(default_factory=list)
    raced_problems: list[Mapping[str, Any]] = field(default_factory=list)
    on_emulate: Callable[[Schedule], EmulateOutcome | None] = lambda schedule: None
    emulated: list[int] = field(default_factory=list)
    """Trials whose schedule was run in the emulator."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def compile(self, limit: int = 100) -> int:
        with self.db.begin() as s:
            claims = trials.claim_compile(s, "compiler", limit, 60, [ARCH, "x86-64-v3", "sm_80"])
        for claim in claims:
            schedule = Schedule.from_json(claim.schedule)
            outcome = self.on_compile(schedule) or self.built(schedule, claim)
            with self.db.begin() as s:
                assert trials.finish_compile(s, claim.claim_id, outcome)
            self.compiled.append(claim.trial_id)
        return len(claims)

    def built(self, schedule: Schedule, claim: CompileClaim) -> Compiled:
        device = arch_model(claim.arch) if claim.device_key is None else Device.for_key(claim.device_key)
        family: Any = get_family(claim.family)
        problem = parse_problem(claim.problem)
        plan = family.plan(problem, device, schedule)
        cuda = not claim.arch.startswith("x86")
        data = f"{schedule.key} {self.toolchain}".encode()
        return Compiled(
            artifact_sha256=sha256(data).hexdigest(),
            artifact_bytes=data,
            recipe={"source": "x86/toy.c"},
            pool_sha256=None,
            plan=plan.to_json(),
            toolchain=self.toolchain,
            resources={},
            log="",
            compile_s=0.01,
            ptx=b".version 8.7" if cuda else None,
            structure=family.structure(problem, device, schedule) if cuda else None,
        )

    def emulate(self, limit: int = 100) -> int:
        for count in range(limit):
            with self.db.begin() as s:
                claim = emulation_claims.claim(s, "emulator", 60, ["sm_80"])
            if claim is None:
                return count
            outcome = self.on_emulate(Schedule.from_json(claim.schedule)) or emulated()
            with self.db.begin() as s:
                assert emulation_claims.finish(s, claim.claim_id, outcome)
            self.emulated.append(claim.trial_id)
        return limit

    def measure(self, limit: int = 100) -> int:
        with self.db.begin() as s:
            claims = trials.claim_measure(s, "measurer", self.device_key, limit, 60)
        for claim in claims:
            schedule = Schedule.from_json(claim.schedule)
            outcome = self.on_measure(schedule) or self.timed(schedule, claim.best_us, claim.problem)
            with self.db.begin() as s:
                assert trials.finish_measure(s, claim.claim_id, outcome)
            self.measured.append(claim.trial_id)
        return len(claims)

    def timed(
        self, schedule: Schedule, best_us: float | None, problem: Mapping[str, Any] | None = None
    ) -> Measured:
        time_us = self._noisy(self._time_us(problem, schedule))
        culled = best_us is not None and time_us > 1.15 * best_us
        return measured(time_us, culled=culled, device_s=0.001)

    def race(self) -> int:
        with self.db.begin() as s:
            claim = races.claim(s, "measurer", self.device_key, 60)
        if claim is None:
            return 0
        self.races.append([one.name for one in claim.entrants])
        self.raced_problems.append(claim.problem)
        results = [self.on_entrant(one) or self.raced(one, problem=claim.problem) for one in claim.entrants]
        with self.db.begin() as s:
            assert races.finish(s, claim.claim_id, RaceOutcome(results, {}, {}, device_s=0.01))
        return 1

    def raced(
        self, entrant: Entrant, *, contended: bool = False, problem: Mapping[str, Any] | None = None
    ) -> EntrantResult:
        if entrant.role is EntrantRole.BASELINE:
            if self.baseline_us is None:
                failure = failed(TrialReason.CRASH)
                return EntrantResult(entrant.name, entrant.role, None, None, None, failure)
            time_us = self.baseline_us
        else:
            assert entrant.schedule is not None
            time_us = self._time_us(problem, Schedule.from_json(entrant.schedule))
        record = measurement(self._noisy(time_us), contended=contended)
        return EntrantResult(entrant.name, entrant.role, entrant.trial_id, record, verdict(), None)

    def _time_us(self, problem: Mapping[str, Any] | None, schedule: Schedule) -> float:
        if self.time_at is None or problem is None:
            return self.time_us(schedule)
        return self.time_at(problem, schedule)

    def _noisy(self, time_us: float) -> float:
        return time_us * (1 + self._random.uniform(-self.noise, self.noise))


def drive(hands: Hands, job_id: int, proposer: Proposer, *, rounds: int = 400, batch: int = 100) -> JobRecord:
    """Advance and work in turns until the job has ended or nothing moves any more."""
    still = 0
    for _ in range(rounds):
        did = advance(hands.db, job_id, proposer, owner="test")
        did = bool(hands.compile(batch)) | bool(hands.measure(batch)) | bool(hands.race()) | did
        did = bool(hands.emulate(batch)) | did
        with hands.db.read() as s:
            job = jobs.get(s, job_id)
        assert job is not None
        if not job.open or job.state is JobState.PAUSED:
            return job
        still = 0 if did else still + 1
        if still > 2:
            return job
    raise AssertionError(f"job {job_id} is still {job.state}")
