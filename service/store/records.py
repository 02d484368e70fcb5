"""Which values cross the border of the store?

Frozen dataclasses, no ORM objects: they stay valid after the session is closed and can be made by
hand. Times are UTC and aware; durations say their unit. `Json` values must be plain JSON without
NaN (`service.store.bounded` makes any evidence so). Over 400 lines: it is the one list of shapes
that workers, jobs, search and API share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from .enums import (
    ArtifactKind,
    DeviceState,
    EmulationScope,
    EmulationState,
    EntrantRole,
    EventKind,
    JobProblemReason,
    JobProblemRole,
    JobProblemState,
    JobReason,
    JobState,
    ProposalSource,
    RaceState,
    ReleaseState,
    Scope,
    Stage,
    TrialReason,
    TrialState,
    VerdictKind,
    Winner,
    WorkerKind,
    WorkerState,
)

Json: TypeAlias = Mapping[str, Any]
ClaimId: TypeAlias = tuple[int, int]
"""(trial id or race id, attempt): the fencing number that each completion carries."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class By:
    """Who does something, and from where."""

    actor: str
    """`token:7`, `session:3`, `command` for whoever has the database's address, `service` for itself."""
    origin: str
    """An address, or the host of a command."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What somebody did."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    origin: str
    data: Json


@dataclass(frozen=True, slots=True)
class TrialToolchain:
    """By which toolchain a timed trial was built."""

    trial_id: int
    job_id: int
    toolchain_key: str | None


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a listing; `next` is the key to pass as `after`, None on the last page."""

    rows: tuple[T, ...]
    next: tuple[Any, ...] | None


# ---------------------------------------------------------------- problems, devices, workers


@dataclass(frozen=True)
class ProblemRecord:
    """One Problem: `spec` is its JSON written out in full, `dtype` a short form for filters."""

    key: str
    layer_key: str
    op: str
    title: str
    spec: Json
    dtype: str = ""


@dataclass(frozen=True)
class DeviceRecord:
    """One device product. `upsert` writes key, name, kind, arch and data; the rest is read only."""

    key: str
    name: str
    kind: str
    """"cpu" or "gpu"."""
    arch: str
    data: Json = field(default_factory=dict)
    roof: Json | None = None
    roof_at: datetime | None = None
    state: DeviceState = DeviceState.AVAILABLE
    reason: str = ""
    last_seen_at: datetime | None = None
    connected: bool = False
    """A worker that has it reported lately, and it is in service."""
    waits_for: str = ""
    """Who else has it, where the worker for it waits."""


@dataclass(frozen=True)
class WorkerRecord:
    id: str
    kind: WorkerKind
    host: str
    pid: int
    device_key: str | None
    state: WorkerState
    data: Json
    started_at: datetime
    heartbeat_at: datetime
    alive: bool


@dataclass(frozen=True)
class LeaseRecord:
    """A named lease; `token` grows each time it changes hands."""

    name: str
    owner: str
    token: int
    expires_at: datetime


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class NewJobProblem:
    """One problem on one device of a job to be created."""

    problem: ProblemRecord
    device_key: str | None
    arch: str
    weight: float = 1.0
    budget_trials: int | None = None
    budget_seconds: float | None = None
    budget_device_seconds: float | None = None
    seed: int = 0
    role: JobProblemRole = JobProblemRole.SEARCH
    line: int | None = None
    """Which of the job's sweeps it belongs to."""
    search: Json = field(default_factory=dict)


@dataclass(frozen=True)
class NewJob:
    """A job to be created. `dedup_key`: an open job with the same one is returned instead."""

    request: Json
    target: Json
    policy: Json
    policy_key: str
    problems: Sequence[NewJobProblem]
    budget_trials: int | None = None
    budget_seconds: float | None = None
    budget_device_seconds: float | None = None
    priority: int = 0
    seed: int = 0
    token_id: int | None = None
    dedup_key: str | None = None
    options: Json = field(default_factory=dict)
    state: JobState = JobState.QUEUED
    """QUEUED, WAITING, or DONE where there is nothing to do."""
    reason: JobReason | None = None
    message: str = ""


@dataclass(frozen=True)
class JobRecord:
    id: int
    state: JobState
    reason: JobReason | None
    message: str
    request: Json
    target: Json
    policy: Json
    policy_key: str
    options: Json
    budget_trials: int | None
    budget_seconds: float | None
    budget_device_seconds: float | None
    priority: int
    seed: int
    token_id: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    ran_s: float
    """Seconds spent in `running` and `finishing` up to the moment of reading."""

    @property
    def open(self) -> bool:
        return self.finished_at is None


@dataclass(frozen=True)
class JobProblemRecord:
    id: int
    job_id: int
    position: int
    problem_key: str
    layer_key: str
    problem: Json
    title: str
    device_key: str | None
    arch: str
    weight: float
    state: JobProblemState
    reason: JobProblemReason | None
    message: str
    budget_trials: int | None
    budget_seconds: float | None
    budget_device_seconds: float | None
    seed: int
    search: Json
    """What the search wants to remember about it; the store does not look inside."""
    started_at: datetime | None
    finished_at: datetime | None
    elapsed_s: float
    """Seconds since it was started (to its end, if ended), by the database's clock; 0 before."""
    shared_s: float
    """Seconds in which its device worked for other jobs while it was under way."""
    role: JobProblemRole = JobProblemRole.SEARCH
    line: int | None = None


@dataclass(frozen=True)
class DispatchIntervalRecord:
    """Sizes from low to high, both included, for which one release is to be used."""

    low: int
    high: int
    tuned_at: int
    """The tuned size whose release it is."""
    release_id: int
    schedule_key: str | None
    """None: the vendor's kernel."""
    mean_loss: float | None
    """Estimated, over the sizes of the interval: how much longer than the best known, as a share."""
    worst_loss: float | None


@dataclass(frozen=True)
class NewDispatchTable:
    """What a sweep ends in."""

    layer_key: str
    device_key: str
    policy_key: str
    job_id: int
    line: int
    axis: str
    low: int
    high: int
    fixed: Json
    tuned: Sequence[Json]
    held_out: Sequence[Json]
    intervals: Sequence[DispatchIntervalRecord]


@dataclass(frozen=True)
class DispatchTableRecord:
    id: int
    layer_key: str
    device_key: str
    policy_key: str
    job_id: int
    line: int
    axis: str
    low: int
    high: int
    fixed: Json
    tuned: tuple[Json, ...]
    held_out: tuple[Json, ...]
    intervals: tuple[DispatchIntervalRecord, ...]
    created_at: datetime


# ---------------------------------------------------------------- trials: work and outcomes


@dataclass(frozen=True)
class NewTrial:
    """A schedule that the search asks for."""

    schedule: Json
    schedule_key: str
    family: str
    source: ProposalSource
    predicted_us: float | None = None


@dataclass(frozen=True)
class CompileClaim:
    trial_id: int
    attempt: int
    job_id: int
    job_problem_id: int
    problem: Json
    schedule: Json
    family: str
    arch: str
    device_key: str | None

    @property
    def claim_id(self) -> ClaimId:
        return (self.trial_id, self.attempt)


@dataclass(frozen=True)
class Compiled:
    """A compile that gave an artifact."""

    artifact_sha256: str
    artifact_bytes: bytes
    recipe: Json
    pool_sha256: str | None
    plan: Json
    toolchain: Json
    resources: Json
    log: str
    compile_s: float
    ptx: bytes | None = None
    """The text that the same compile emitted, where the artifact is a cubin."""
    structure: Json | None = None
    """What an emulated verdict of it depends on; None where the family is not emulated."""


@dataclass(frozen=True)
class Failed:
    """An end without a time. `state` is REJECTED or FAILED; evidence is bounded by the store."""

    state: TrialState
    reason: TrialReason
    evidence: Json = field(default_factory=dict)
    compile_s: float | None = None
    device_s: float | None = None
    """Seconds of the device it used, where a device was asked."""
    verdict: VerdictRecord | None = None
    """The verdict with its evidence, where it came as far as being verified."""


CompileOutcome: TypeAlias = Compiled | Failed


@dataclass(frozen=True)
class MeasureClaim:
    trial_id: int
    attempt: int
    job_id: int
    job_problem_id: int
    problem: Json
    schedule: Json
    family: str
    arch: str
    plan: Json
    artifact_sha256: str
    pool_sha256: str | None
    policy: Json
    best_us: float | None
    """Best undisturbed time of its job problem so far, for the first cheap look."""
    seed: int

    @property
    def claim_id(self) -> ClaimId:
        return (self.trial_id, self.attempt)


@dataclass(frozen=True)
class VerdictRecord:
    """The outcome of a verification, with its evidence."""

    kind: VerdictKind
    passed: bool
    seeds: Sequence[int]
    checks: Sequence[Json]
    max_error: float | None
    bound: float | None


@dataclass(frozen=True)
class MeasurementRecord:
    """Every sample, and the machine while they were taken. One sample has no quantiles: None, not NaN."""

    policy: Json
    samples_us: Sequence[float]
    median_us: float
    q10_us: float | None
    q90_us: float | None
    runs: int
    contended: bool
    environment: Json
    started_at: datetime


@dataclass(frozen=True)
class Measured:
    """A measure that gave a time. A verdict that did not pass makes the trial `failed` all the same."""

    verdict: VerdictRecord
    measurement: MeasurementRecord
    culled: bool = False
    device_s: float | None = None


MeasureOutcome: TypeAlias = Measured | Failed


@dataclass(frozen=True)
class EmulateClaim:
    """One schedule to be run in the emulator."""

    emulation_id: int
    attempt: int
    scope: EmulationScope
    job_id: int
    trial_id: int
    problem: Json
    schedule: Json
    family: str
    arch: str
    device_key: str | None
    plan: Json
    artifact_sha256: str
    seed: int

    @property
    def claim_id(self) -> ClaimId:
        return (self.emulation_id, self.attempt)


@dataclass(frozen=True)
class Emulated:
    """A run that came to its end. `reason` and `evidence` where it did not pass."""

    verdict: VerdictRecord
    counters: Json
    seconds: float
    reason: TrialReason | None = None
    evidence: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Undecided:
    """A run that could not be brought to its end: it says nothing about the schedule."""

    reason: TrialReason
    evidence: Json = field(default_factory=dict)
    seconds: float | None = None


EmulateOutcome: TypeAlias = Emulated | Undecided


@dataclass(frozen=True)
class EmulationRecord:
    """One run in the emulator and what came of it. `schedule` is the one that was run, of trial `trial_id`.
    `checks`, `counters` and `evidence` are read where asked for."""

    id: int
    scope: EmulationScope
    family: str
    arch: str
    toolchain_key: str
    structure_key: str
    structure: Json
    trial_id: int | None
    job_id: int | None
    schedule: Json
    state: EmulationState
    reason: TrialReason | None
    attempt: int
    tries: int
    lease_owner: str | None
    seconds: float | None
    max_error: float | None
    bound: float | None
    seeds: Sequence[int]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    checks: Sequence[Json] = ()
    counters: Json | None = None
    evidence: Json = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.state in (EmulationState.QUEUED, EmulationState.RUNNING)


@dataclass(frozen=True)
class TrialRecord:
    """One trial as lists show it."""

    id: int
    job_id: int
    job_problem_id: int
    number: int
    problem_key: str
    device_key: str | None
    arch: str
    family: str
    schedule: Json
    schedule_key: str
    source: ProposalSource
    predicted_us: float | None
    state: TrialState
    reason: TrialReason | None
    stage: Stage
    attempt: int
    lease_owner: str | None
    artifact_sha256: str | None
    toolchain_key: str | None
    structure_key: str | None
    time_us: float | None
    contended: bool
    compile_s: float | None
    device_s: float | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class TrialDetail:
    """One trial with all of its evidence."""

    trial: TrialRecord
    problem: Json
    pool_sha256: str | None
    plan: Json | None
    toolchain: Json | None
    resources: Json | None
    log: str
    evidence: Json
    verdicts: tuple[VerdictRecord, ...]
    measurements: tuple[MeasurementRecord, ...]
    emulation: EmulationRecord | None = None
    """Its own run in the emulator, else that of its structure."""


@dataclass(frozen=True)
class OutcomeCount:
    state: TrialState
    reason: TrialReason | None
    count: int


class ProblemName(NamedTuple):
    """What lists of jobs show of a job problem."""

    title: str
    device_key: str | None
    arch: str


class TrialProgress(NamedTuple):
    """What the search has to know of a trial."""

    id: int
    schedule: Json
    schedule_key: str
    state: TrialState
    reason: TrialReason | None
    time_us: float | None
    predicted_us: float | None
    compile_s: float | None
    device_s: float | None
    finished_at: datetime | None


@dataclass(frozen=True)
class Spent:
    """What a job problem, or a job, has used so far."""

    trials: int
    open_trials: int
    compile_s: float
    device_s: float


# ---------------------------------------------------------------- races


@dataclass(frozen=True)
class NewEntrant:
    """Somebody who shall race; the Baseline has no trial."""

    name: str
    role: EntrantRole
    trial_id: int | None = None


@dataclass(frozen=True)
class Entrant:
    """Somebody who races, with what is needed to run them; all None for the Baseline."""

    name: str
    role: EntrantRole
    trial_id: int | None
    artifact_sha256: str | None
    pool_sha256: str | None
    plan: Json | None
    schedule: Json | None


@dataclass(frozen=True)
class RaceClaim:
    race_id: int
    attempt: int
    job_id: int
    job_problem_id: int
    problem: Json
    policy: Json
    seed: int
    entrants: tuple[Entrant, ...]

    @property
    def claim_id(self) -> ClaimId:
        return (self.race_id, self.attempt)


@dataclass(frozen=True)
class EntrantResult:
    """How an entrant did: a measurement with its verdict, or a failure."""

    name: str
    role: EntrantRole
    trial_id: int | None
    measurement: MeasurementRecord | None
    verdict: VerdictRecord | None
    failure: Failed | None


@dataclass(frozen=True)
class RaceOutcome:
    entrants: Sequence[EntrantResult]
    noise: Json
    environment: Json
    device_s: float | None = None


@dataclass(frozen=True)
class RaceRecord:
    """One race; `entrants` have results once it is done."""

    id: int
    job_id: int
    job_problem_id: int
    number: int
    device_key: str
    state: RaceState
    reason: TrialReason | None
    attempt: int
    policy: Json
    seed: int
    entrants: tuple[EntrantResult, ...]
    noise: Json | None
    environment: Json | None
    evidence: Json
    device_s: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


# ---------------------------------------------------------------- artifacts, quarantine


@dataclass(frozen=True)
class ArtifactRecord:
    sha256: str
    kind: ArtifactKind
    arch: str
    size_bytes: int
    recipe: Json
    stored: bool
    """Its bytes are in the database; if not they can be rebuilt from the recipe."""
    created_at: datetime


@dataclass(frozen=True)
class QuarantineRecord:
    id: int
    family: str
    arch: str
    schedule_key: str
    toolchain_key: str
    device_key: str | None
    artifact_sha256: str | None
    trial_id: int | None
    reason: TrialReason
    created_at: datetime
    lifted_at: datetime | None


# ---------------------------------------------------------------- releases


@dataclass(frozen=True)
class NewRelease:
    """A release to be written as `candidate`; what is served is copied from the trial."""

    job_problem_id: int
    policy: Json
    policy_key: str
    winner: Winner
    trial_id: int | None
    race_id: int | None
    time_us: float
    baseline_time_us: float | None
    tie_set: Sequence[Json] = ()
    noise: Json = field(default_factory=dict)
    baseline: Json = field(default_factory=dict)
    reason: str = ""
    unproven: bool = False
    """Its family needs an emulated verdict, and none speaks for it."""


@dataclass(frozen=True)
class ReleaseRecord:
    id: int
    problem_key: str
    layer_key: str
    problem: Json
    title: str
    op: str
    device_key: str
    arch: str
    policy: Json
    policy_key: str
    generation: int
    state: ReleaseState
    pinned: bool
    winner: Winner
    job_id: int
    job_problem_id: int
    trial_id: int | None
    race_id: int | None
    family: str | None
    schedule: Json | None
    schedule_key: str | None
    plan: Json | None
    toolchain: Json | None
    toolchain_key: str | None
    artifact_sha256: str | None
    pool_sha256: str | None
    time_us: float
    baseline_time_us: float | None
    baseline: Json
    tie_set: Sequence[Json]
    noise: Json
    reason: str
    unproven: bool
    created_at: datetime
    published_at: datetime | None
    ended_at: datetime | None
    change_id: int
    """Grows with every change of any release; the id of the event that told of the last one."""


@dataclass(frozen=True)
class ReleaseFilter:
    """Which releases a listing shows; None means any."""

    op: str | None = None
    dtype: str | None = None
    device_key: str | None = None
    arch: str | None = None
    layer_key: str | None = None
    problem_key: str | None = None
    policy_key: str | None = None
    states: tuple[ReleaseState, ...] = (ReleaseState.PUBLISHED,)
    winner: Winner | None = None


# ---------------------------------------------------------------- events, access, demand


@dataclass(frozen=True)
class EventRecord:
    id: int
    kind: EventKind
    subject_id: int
    job_id: int | None
    source: str | None
    """State before; None where it was made just now or nothing moved."""
    to: str
    reason: str | None
    data: Json
    at: datetime


@dataclass(frozen=True)
class TokenRecord:
    id: int
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True)
class BrowserSession:
    id: int
    csrf: str
    scopes: frozenset[Scope]
    expires_at: datetime


@dataclass(frozen=True)
class IdempotencyRecord:
    """What the first request with this key was answered; `status` is None while it is under way."""

    key: str
    status: int | None
    response: Json | None


@dataclass(frozen=True)
class NewDemand:
    """A lookup that did not find an exact answer."""

    problem: ProblemRecord
    device_key: str
    policy_key: str
    level: str
    count: int = 1


@dataclass(frozen=True)
class DemandRecord:
    problem_key: str
    layer_key: str
    problem: Json
    title: str
    device_key: str
    policy_key: str
    level: str
    count: int
    first_seen_at: datetime
    last_seen_at: datetime
