"""Which tables are there?

Every table of the database, in the order: what is tuned, who works, jobs, trials, races, releases,
access. Over 400 lines: one file holds the whole schema, beside one migration that must equal it.

Wide columns (plan, log, evidence) come last and are deferred, so that lists do not read them.
Indexes exist for the queries that name them; each says which.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

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
    Stage,
    TrialReason,
    TrialState,
    VerdictKind,
    Winner,
    WorkerKind,
    WorkerState,
)
from .types import BigId, JsonColumn, Sha256, UtcTime, WordColumn

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)


def _id() -> Any:
    return mapped_column(BigId, primary_key=True)


def _json(*, null: bool = False, deferred: bool = False) -> Any:
    return mapped_column(JsonColumn, nullable=null, deferred=deferred)


def _time(*, null: bool = False) -> Any:
    return mapped_column(UtcTime, nullable=null)


def _ref(target: str, *, null: bool = False, delete: str | None = None) -> Any:
    return mapped_column(BigId, ForeignKey(target, ondelete=delete), nullable=null)


# ---------------------------------------------------------------- what is tuned, who works


class Problem(Base):
    __tablename__ = "problems"
    key: Mapped[str] = mapped_column(Sha256, primary_key=True)
    layer_key: Mapped[str] = mapped_column(Sha256, index=True)
    op: Mapped[str] = mapped_column(String(32))
    dtype: Mapped[str] = mapped_column(String(64))
    title: Mapped[str] = mapped_column(Text)
    spec: Mapped[dict[str, Any]] = _json()
    created_at: Mapped[datetime] = _time()


class Device(Base):
    __tablename__ = "devices"
    key: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(String(8))
    arch: Mapped[str] = mapped_column(String(64))
    state: Mapped[DeviceState] = mapped_column(WordColumn(DeviceState))
    reason: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = _json()
    roof: Mapped[dict[str, Any] | None] = _json(null=True)
    roof_at: Mapped[datetime | None] = _time(null=True)
    created_at: Mapped[datetime] = _time()
    last_seen_at: Mapped[datetime] = _time()


class Worker(Base):
    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[WorkerKind] = mapped_column(WordColumn(WorkerKind))
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    # no foreign key: a worker may report before it has described its device
    device_key: Mapped[str | None] = mapped_column(String(128))
    state: Mapped[WorkerState] = mapped_column(WordColumn(WorkerState))
    data: Mapped[dict[str, Any]] = _json()
    started_at: Mapped[datetime] = _time()
    heartbeat_at: Mapped[datetime] = _time()


class Lease(Base):
    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200), index=True)
    token: Mapped[int] = mapped_column(BigId)
    expires_at: Mapped[datetime] = _time()


class Share(Base):
    """What a job, or a token, was given of a queue."""

    __tablename__ = "shares"
    queue: Mapped[str] = mapped_column(String(160), primary_key=True)
    # job:31, token:7, or token: for all jobs without a token
    owner: Mapped[str] = mapped_column(String(64), primary_key=True)
    # of a job its token, of a token nothing
    parent: Mapped[str] = mapped_column(String(64))
    served_s: Mapped[float] = mapped_column(Float)
    start_s: Mapped[float] = mapped_column(Float)
    each_s: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[datetime] = _time()


# ---------------------------------------------------------------- jobs


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = _id()
    state: Mapped[JobState] = mapped_column(WordColumn(JobState))
    reason: Mapped[JobReason | None] = mapped_column(WordColumn(JobReason))
    message: Mapped[str] = mapped_column(Text)
    priority: Mapped[int] = mapped_column(Integer)
    seed: Mapped[int] = mapped_column(BigId)
    token_id: Mapped[int | None] = _ref("tokens.id", null=True, delete="SET NULL")
    dedup_key: Mapped[str | None] = mapped_column(String(128))
    policy_key: Mapped[str] = mapped_column(Sha256)
    budget_trials: Mapped[int | None] = mapped_column(BigId)
    budget_seconds: Mapped[float | None] = mapped_column(Float)
    budget_device_seconds: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[datetime] = _time()
    started_at: Mapped[datetime | None] = _time(null=True)
    finished_at: Mapped[datetime | None] = _time(null=True)
    running_since: Mapped[datetime | None] = _time(null=True)
    # since when single samples and long logs are gone (see retention.py)
    compacted_at: Mapped[datetime | None] = _time(null=True)
    ran_s: Mapped[float] = mapped_column(Float)
    policy: Mapped[dict[str, Any]] = _json()
    target: Mapped[dict[str, Any]] = _json()
    options: Mapped[dict[str, Any]] = _json()
    request: Mapped[dict[str, Any]] = _json()

    __table_args__ = (
        # one open job per request: of equal requests at the same moment the database lets one in
        Index(
            "uq_jobs_open_dedup_key",
            "dedup_key",
            unique=True,
            postgresql_where=text("finished_at IS NULL"),
            sqlite_where=text("finished_at IS NULL"),
        ),
        Index("ix_jobs_state_priority", "state", "priority", "id"),  # advanceable, counts
        Index("ix_jobs_token_id", "token_id", "id"),  # listing and owners.count_open of one token
        # retention: of which jobs are the details still here
        Index(
            "ix_jobs_whole",
            "id",
            postgresql_where=text("compacted_at IS NULL"),
            sqlite_where=text("compacted_at IS NULL"),
        ),
    )


class JobJoin(Base):
    """Who asked for a job too, or left one that goes on for others. Its first owner, or who took its place,
    is the job's own token."""

    __tablename__ = "job_joins"
    job_id: Mapped[int] = mapped_column(BigId, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    # 0 for whoever has no token: a browser's session, a command; so it refers to no row
    token_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    at: Mapped[datetime] = _time()
    left_at: Mapped[datetime | None] = _time(null=True)

    __table_args__ = (Index("ix_job_joins_token_id", "token_id"),)  # owners.count_open


class JobProblem(Base):
    __tablename__ = "job_problems"
    id: Mapped[int] = _id()
    job_id: Mapped[int] = _ref("jobs.id", delete="CASCADE")
    position: Mapped[int] = mapped_column(Integer)
    problem_key: Mapped[str] = mapped_column(Sha256, ForeignKey("problems.key"))
    # no foreign key: the device of a waiting job may be unknown yet
    device_key: Mapped[str | None] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(64))
    weight: Mapped[float] = mapped_column(Float)
    role: Mapped[JobProblemRole] = mapped_column(WordColumn(JobProblemRole), server_default="search")
    # which of the job's sweeps it belongs to
    line: Mapped[int | None] = mapped_column(Integer)
    state: Mapped[JobProblemState] = mapped_column(WordColumn(JobProblemState))
    reason: Mapped[JobProblemReason | None] = mapped_column(WordColumn(JobProblemReason))
    message: Mapped[str] = mapped_column(Text)
    budget_trials: Mapped[int | None] = mapped_column(BigId)
    budget_seconds: Mapped[float | None] = mapped_column(Float)
    budget_device_seconds: Mapped[float | None] = mapped_column(Float)
    seed: Mapped[int] = mapped_column(BigId)
    started_at: Mapped[datetime | None] = _time(null=True)
    finished_at: Mapped[datetime | None] = _time(null=True)
    # in which its device worked for other jobs while this problem was under way
    shared_s: Mapped[float] = mapped_column(Float, server_default="0")
    search: Mapped[dict[str, Any]] = _json()

    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        Index("ix_job_problems_problem_key", "problem_key", "device_key"),
        Index("ix_job_problems_device", "device_key", "state"),  # who shares a device
    )


# ---------------------------------------------------------------- trials and their evidence


class Artifact(Base):
    __tablename__ = "artifacts"
    sha256: Mapped[str] = mapped_column(Sha256, primary_key=True)
    kind: Mapped[ArtifactKind] = mapped_column(WordColumn(ArtifactKind))
    arch: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int] = mapped_column(BigId)
    stored: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime] = _time()
    recipe: Mapped[dict[str, Any]] = _json(deferred=True)
    data: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    # of a cubin: the text that the same compile emitted, for the emulator
    ptx: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)

    __table_args__ = (
        # how many bytes are kept
        Index(
            "ix_artifacts_stored",
            "kind",
            "size_bytes",
            postgresql_where=text("stored"),
            sqlite_where=text("stored = 1"),
        ),
    )


class Trial(Base):
    __tablename__ = "trials"
    id: Mapped[int] = _id()
    job_id: Mapped[int] = _ref("jobs.id", delete="CASCADE")
    job_problem_id: Mapped[int] = _ref("job_problems.id", delete="CASCADE")
    number: Mapped[int] = mapped_column(Integer)
    problem_key: Mapped[str] = mapped_column(Sha256, ForeignKey("problems.key"))
    device_key: Mapped[str | None] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(64))
    family: Mapped[str] = mapped_column(String(64))
    schedule_key: Mapped[str] = mapped_column(Sha256)
    source: Mapped[ProposalSource] = mapped_column(WordColumn(ProposalSource))
    predicted_us: Mapped[float | None] = mapped_column(Float)
    state: Mapped[TrialState] = mapped_column(WordColumn(TrialState))
    reason: Mapped[TrialReason | None] = mapped_column(WordColumn(TrialReason))
    stage: Mapped[Stage] = mapped_column(WordColumn(Stage))
    attempt: Mapped[int] = mapped_column(Integer)
    losses: Mapped[int] = mapped_column(Integer)
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None] = _time(null=True)
    artifact_sha256: Mapped[str | None] = mapped_column(Sha256, ForeignKey("artifacts.sha256"))
    # no foreign key: the pool is put by its own upload, before or after
    pool_sha256: Mapped[str | None] = mapped_column(Sha256)
    toolchain_key: Mapped[str | None] = mapped_column(Sha256)
    # what an emulated verdict depends on; None where the family is not emulated
    structure_key: Mapped[str | None] = mapped_column(Sha256)
    time_us: Mapped[float | None] = mapped_column(Float)
    contended: Mapped[bool] = mapped_column(Boolean)
    compile_s: Mapped[float | None] = mapped_column(Float)
    device_s: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[datetime] = _time()
    claimed_at: Mapped[datetime | None] = _time(null=True)
    finished_at: Mapped[datetime | None] = _time(null=True)
    schedule: Mapped[dict[str, Any]] = _json()
    plan: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    toolchain: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    resources: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    evidence: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    structure: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    log: Mapped[str] = mapped_column(Text, deferred=True)

    __table_args__ = (
        UniqueConstraint("job_problem_id", "schedule_key"),
        UniqueConstraint("job_problem_id", "number"),
        # claims and expiry look at the few that are not done; 100,000 ended trials cost them nothing
        Index("ix_trials_stage", "stage", "lease_owner", "job_id", "number"),
        Index("ix_trials_lease_expires_at", "lease_expires_at"),
        Index("ix_trials_job_outcome", "job_id", "state", "reason"),  # counts
        Index("ix_trials_job_listing", "job_id", "id"),  # listing by age
        Index("ix_trials_best", "job_problem_id", "state", "time_us", "number"),  # best, top, counts
        Index("ix_trials_job_fastest", "job_id", "time_us", "id"),  # listing by time
        Index("ix_trials_problem_fastest", "problem_key", "time_us", "id"),
        Index("ix_trials_artifact_sha256", "artifact_sha256"),  # prune
        Index("ix_trials_schedule", "arch", "schedule_key", "toolchain_key"),  # quarantine
        Index("ix_trials_structure", "structure_key", "toolchain_key"),  # whom an emulation speaks for
        # toolchains: the newest timed ones of a family on a device
        Index(
            "ix_trials_timed",
            "device_key",
            "family",
            "id",
            postgresql_where=text("state IN ('measured', 'culled')"),
            sqlite_where=text("state IN ('measured', 'culled')"),
        ),
    )


class Measurement(Base):
    __tablename__ = "measurements"
    id: Mapped[int] = _id()
    # None: the Baseline's, which belongs to its entrant only
    trial_id: Mapped[int | None] = _ref("trials.id", null=True, delete="CASCADE")
    median_us: Mapped[float] = mapped_column(Float)
    q10_us: Mapped[float | None] = mapped_column(Float)
    q90_us: Mapped[float | None] = mapped_column(Float)
    runs: Mapped[int] = mapped_column(BigId)
    contended: Mapped[bool] = mapped_column(Boolean)
    started_at: Mapped[datetime] = _time()
    policy: Mapped[dict[str, Any]] = _json()
    environment: Mapped[dict[str, Any]] = _json()
    samples_us: Mapped[list[float]] = _json()

    __table_args__ = (Index("ix_measurements_trial_id", "trial_id", "id"),)


class Verdict(Base):
    __tablename__ = "verdicts"
    id: Mapped[int] = _id()
    trial_id: Mapped[int | None] = _ref("trials.id", null=True, delete="CASCADE")
    artifact_sha256: Mapped[str | None] = mapped_column(Sha256)
    kind: Mapped[VerdictKind] = mapped_column(WordColumn(VerdictKind))
    passed: Mapped[bool] = mapped_column(Boolean)
    max_error: Mapped[float | None] = mapped_column(Float)
    bound: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[datetime] = _time()
    seeds: Mapped[list[int]] = _json()
    checks: Mapped[list[Any]] = _json()

    __table_args__ = (Index("ix_verdicts_trial_id", "trial_id", "id"),)


class Emulation(Base):
    """One run in the emulator: work to be claimed, then a verdict that is remembered."""

    __tablename__ = "emulations"
    id: Mapped[int] = _id()
    scope: Mapped[EmulationScope] = mapped_column(WordColumn(EmulationScope))
    family: Mapped[str] = mapped_column(String(64))
    arch: Mapped[str] = mapped_column(String(64))
    toolchain_key: Mapped[str] = mapped_column(Sha256)
    structure_key: Mapped[str] = mapped_column(Sha256)
    # whose schedule is run, and for which job: the verdict outlives both
    trial_id: Mapped[int | None] = _ref("trials.id", null=True, delete="SET NULL")
    job_id: Mapped[int | None] = mapped_column(BigId)
    state: Mapped[EmulationState] = mapped_column(WordColumn(EmulationState))
    reason: Mapped[TrialReason | None] = mapped_column(WordColumn(TrialReason))
    attempt: Mapped[int] = mapped_column(Integer)
    losses: Mapped[int] = mapped_column(Integer)
    # schedules of the structure that were tried
    tries: Mapped[int] = mapped_column(Integer)
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None] = _time(null=True)
    seconds: Mapped[float | None] = mapped_column(Float)
    max_error: Mapped[float | None] = mapped_column(Float)
    bound: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[datetime] = _time()
    started_at: Mapped[datetime | None] = _time(null=True)
    finished_at: Mapped[datetime | None] = _time(null=True)
    structure: Mapped[dict[str, Any]] = _json()
    schedule: Mapped[dict[str, Any]] = _json()
    seeds: Mapped[list[int]] = _json()
    checks: Mapped[list[Any]] = _json(deferred=True)
    counters: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)
    evidence: Mapped[dict[str, Any] | None] = _json(null=True, deferred=True)

    __table_args__ = (
        # a structure is paid for once
        Index(
            "uq_emulations_structure",
            "structure_key",
            "toolchain_key",
            "family",
            unique=True,
            postgresql_where=text("scope = 'structure'"),
            sqlite_where=text("scope = 'structure'"),
        ),
        Index(
            "uq_emulations_own",
            "trial_id",
            unique=True,
            postgresql_where=text("scope = 'trial'"),
            sqlite_where=text("scope = 'trial'"),
        ),
        Index("ix_emulations_trial_id", "trial_id"),  # the run of a trial, of either scope
        Index("ix_emulations_state", "state", "id"),  # claim
        Index("ix_emulations_lease_expires_at", "lease_expires_at"),
    )


class Quarantine(Base):
    __tablename__ = "quarantines"
    id: Mapped[int] = _id()
    family: Mapped[str] = mapped_column(String(64))
    arch: Mapped[str] = mapped_column(String(64))
    schedule_key: Mapped[str] = mapped_column(Sha256)
    toolchain_key: Mapped[str] = mapped_column(Sha256)
    device_key: Mapped[str | None] = mapped_column(String(128))
    artifact_sha256: Mapped[str | None] = mapped_column(Sha256)
    trial_id: Mapped[int | None] = _ref("trials.id", null=True, delete="SET NULL")
    reason: Mapped[TrialReason] = mapped_column(WordColumn(TrialReason))
    created_at: Mapped[datetime] = _time()
    lifted_at: Mapped[datetime | None] = _time(null=True)

    __table_args__ = (
        Index(
            "uq_quarantines_in_force",
            "arch",
            "schedule_key",
            "toolchain_key",
            unique=True,
            postgresql_where=text("lifted_at IS NULL"),
            sqlite_where=text("lifted_at IS NULL"),
        ),
        Index("ix_quarantines_artifact_sha256", "artifact_sha256"),  # prune
    )


# ---------------------------------------------------------------- races


class Race(Base):
    __tablename__ = "races"
    id: Mapped[int] = _id()
    job_id: Mapped[int] = _ref("jobs.id", delete="CASCADE")
    job_problem_id: Mapped[int] = _ref("job_problems.id", delete="CASCADE")
    number: Mapped[int] = mapped_column(Integer)
    device_key: Mapped[str] = mapped_column(String(128))
    state: Mapped[RaceState] = mapped_column(WordColumn(RaceState))
    reason: Mapped[TrialReason | None] = mapped_column(WordColumn(TrialReason))
    attempt: Mapped[int] = mapped_column(Integer)
    losses: Mapped[int] = mapped_column(Integer)
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None] = _time(null=True)
    seed: Mapped[int] = mapped_column(BigId)
    device_s: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[datetime] = _time()
    started_at: Mapped[datetime | None] = _time(null=True)
    finished_at: Mapped[datetime | None] = _time(null=True)
    policy: Mapped[dict[str, Any]] = _json()
    noise: Mapped[dict[str, Any] | None] = _json(null=True)
    environment: Mapped[dict[str, Any] | None] = _json(null=True)
    evidence: Mapped[dict[str, Any] | None] = _json(null=True)

    __table_args__ = (
        UniqueConstraint("job_problem_id", "number"),
        Index("ix_races_job_id", "job_id"),
        Index("ix_races_state", "state", "device_key"),  # claim
        Index("ix_races_lease_expires_at", "lease_expires_at"),
    )


class RaceEntrant(Base):
    __tablename__ = "race_entrants"
    id: Mapped[int] = _id()
    race_id: Mapped[int] = _ref("races.id", delete="CASCADE")
    position: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[EntrantRole] = mapped_column(WordColumn(EntrantRole))
    trial_id: Mapped[int | None] = _ref("trials.id", null=True)
    measurement_id: Mapped[int | None] = _ref("measurements.id", null=True)
    verdict_id: Mapped[int | None] = _ref("verdicts.id", null=True)
    failure_state: Mapped[TrialState | None] = mapped_column(WordColumn(TrialState))
    failure_reason: Mapped[TrialReason | None] = mapped_column(WordColumn(TrialReason))
    failure_evidence: Mapped[dict[str, Any] | None] = _json(null=True)

    __table_args__ = (
        UniqueConstraint("race_id", "name"),
        Index("ix_race_entrants_trial_id", "trial_id"),  # prune
    )


# ---------------------------------------------------------------- releases


class Release(Base):
    __tablename__ = "releases"
    id: Mapped[int] = _id()
    problem_key: Mapped[str] = mapped_column(Sha256, ForeignKey("problems.key"))
    layer_key: Mapped[str] = mapped_column(Sha256)
    device_key: Mapped[str] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(64))
    policy_key: Mapped[str] = mapped_column(Sha256)
    generation: Mapped[int] = mapped_column(Integer)
    state: Mapped[ReleaseState] = mapped_column(WordColumn(ReleaseState))
    pinned: Mapped[bool] = mapped_column(Boolean)
    winner: Mapped[Winner] = mapped_column(WordColumn(Winner))
    # plain numbers: a release outlives the job that found it
    job_id: Mapped[int] = mapped_column(BigId)
    job_problem_id: Mapped[int] = mapped_column(BigId)
    trial_id: Mapped[int | None] = mapped_column(BigId)
    race_id: Mapped[int | None] = mapped_column(BigId)
    family: Mapped[str | None] = mapped_column(String(64))
    schedule_key: Mapped[str | None] = mapped_column(Sha256)
    toolchain_key: Mapped[str | None] = mapped_column(Sha256)
    artifact_sha256: Mapped[str | None] = mapped_column(Sha256, ForeignKey("artifacts.sha256"))
    pool_sha256: Mapped[str | None] = mapped_column(Sha256)
    time_us: Mapped[float] = mapped_column(Float)
    baseline_time_us: Mapped[float | None] = mapped_column(Float)
    reason: Mapped[str] = mapped_column(Text)
    # an admin published it although no emulated verdict speaks for it
    unproven: Mapped[bool] = mapped_column(Boolean)
    change_id: Mapped[int] = mapped_column(BigId)
    created_at: Mapped[datetime] = _time()
    published_at: Mapped[datetime | None] = _time(null=True)
    ended_at: Mapped[datetime | None] = _time(null=True)
    policy: Mapped[dict[str, Any]] = _json()
    schedule: Mapped[dict[str, Any] | None] = _json(null=True)
    plan: Mapped[dict[str, Any] | None] = _json(null=True)
    toolchain: Mapped[dict[str, Any] | None] = _json(null=True)
    baseline: Mapped[dict[str, Any]] = _json()
    tie_set: Mapped[list[Any]] = _json()
    noise: Mapped[dict[str, Any]] = _json()

    __table_args__ = (
        UniqueConstraint("problem_key", "device_key", "policy_key", "generation"),
        # at most one is served
        Index(
            "uq_releases_published",
            "problem_key",
            "device_key",
            "policy_key",
            unique=True,
            postgresql_where=text("state = 'published'"),
            sqlite_where=text("state = 'published'"),
        ),
        Index("ix_releases_layer", "layer_key", "device_key", "state"),  # for_layer
        Index("ix_releases_state", "state", "id"),  # listing
        Index("ix_releases_change_id", "change_id"),  # changes
        Index("ix_releases_artifact_sha256", "artifact_sha256"),  # prune
        Index("ix_releases_trial_id", "trial_id"),  # whom a verdict speaks for
        Index("ix_releases_schedule", "arch", "schedule_key", "toolchain_key"),  # quarantined
    )


class DispatchTable(Base):
    """Which release to use at which size of a layer, as one sweep of a job found."""

    __tablename__ = "dispatch_tables"
    id: Mapped[int] = _id()
    layer_key: Mapped[str] = mapped_column(Sha256)
    device_key: Mapped[str] = mapped_column(String(128))
    policy_key: Mapped[str] = mapped_column(Sha256)
    # plain numbers: a table outlives the job that found it
    job_id: Mapped[int] = mapped_column(BigId)
    line: Mapped[int] = mapped_column(Integer)
    # the size that was swept; the other open sizes are in `fixed`
    axis: Mapped[str] = mapped_column(String(32))
    low: Mapped[int] = mapped_column(BigId)
    high: Mapped[int] = mapped_column(BigId)
    created_at: Mapped[datetime] = _time()
    fixed: Mapped[dict[str, Any]] = _json()
    # at each tuned size: who won, and what others lost there
    tuned: Mapped[list[Any]] = _json()
    held_out: Mapped[list[Any]] = _json()

    __table_args__ = (
        UniqueConstraint("job_id", "line", "device_key"),
        Index("ix_dispatch_tables_layer", "layer_key", "device_key", "policy_key", "id"),  # newest
    )


class DispatchInterval(Base):
    """Sizes from low to high, both included."""

    __tablename__ = "dispatch_intervals"
    table_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("dispatch_tables.id", ondelete="CASCADE"), primary_key=True
    )
    low: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    high: Mapped[int] = mapped_column(BigId)
    # the tuned size whose release it is
    tuned_at: Mapped[int] = mapped_column(BigId)
    release_id: Mapped[int] = mapped_column(BigId)
    # None: the vendor's kernel
    schedule_key: Mapped[str | None] = mapped_column(Sha256)
    # estimated, against the best known; None where nothing is known
    mean_loss: Mapped[float | None] = mapped_column(Float)
    worst_loss: Mapped[float | None] = mapped_column(Float)


# ---------------------------------------------------------------- events, access, demand


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = _id()
    kind: Mapped[EventKind] = mapped_column(WordColumn(EventKind))
    subject_id: Mapped[int] = mapped_column(BigId)
    # no foreign key: its check would lock the job's row after our event lock was taken (see events.py)
    job_id: Mapped[int | None] = mapped_column(BigId)
    source: Mapped[str | None] = mapped_column(String(32))
    to: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str | None] = mapped_column(String(64))
    at: Mapped[datetime] = _time()
    data: Mapped[dict[str, Any]] = _json()

    __table_args__ = (
        Index("ix_events_job_id", "job_id", "id"),
        # ids are never used twice, even if the newest row is deleted: readers resume by them
        {"sqlite_autoincrement": True},
    )


class Token(Base):
    __tablename__ = "tokens"
    id: Mapped[int] = _id()
    name: Mapped[str] = mapped_column(String(200))
    token_sha256: Mapped[str] = mapped_column(Sha256, unique=True)
    scopes: Mapped[list[str]] = _json()
    created_at: Mapped[datetime] = _time()
    expires_at: Mapped[datetime | None] = _time(null=True)
    revoked_at: Mapped[datetime | None] = _time(null=True)
    last_used_at: Mapped[datetime | None] = _time(null=True)


class LoginCode(Base):
    __tablename__ = "login_codes"
    id: Mapped[int] = _id()
    code_sha256: Mapped[str] = mapped_column(Sha256, unique=True)
    scopes: Mapped[list[str]] = _json()
    created_at: Mapped[datetime] = _time()
    expires_at: Mapped[datetime] = _time()
    used_at: Mapped[datetime | None] = _time(null=True)


class Login(Base):
    __tablename__ = "browser_sessions"
    id: Mapped[int] = _id()
    cookie_sha256: Mapped[str] = mapped_column(Sha256, unique=True)
    csrf: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[str]] = _json()
    created_at: Mapped[datetime] = _time()
    expires_at: Mapped[datetime] = _time()
    revoked_at: Mapped[datetime | None] = _time(null=True)


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"
    owner: Mapped[str] = mapped_column(String(100), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(Sha256)
    status: Mapped[int | None] = mapped_column(Integer)
    response: Mapped[dict[str, Any] | None] = _json(null=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime, index=True)


class Audit(Base):
    """What somebody did that others must be able to look up."""

    __tablename__ = "audit"
    id: Mapped[int] = _id()
    at: Mapped[datetime] = mapped_column(UtcTime, index=True)  # forget
    # token:7, session:3, or command
    actor: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(200))
    # an address, or the host of a command
    origin: Mapped[str] = mapped_column(String(200))
    data: Mapped[dict[str, Any]] = _json()

    __table_args__ = (
        Index("ix_audit_action", "action", "id"),  # listing of one action
        {"sqlite_autoincrement": True},
    )


class Demand(Base):
    __tablename__ = "demand"
    problem_key: Mapped[str] = mapped_column(Sha256, ForeignKey("problems.key"), primary_key=True)
    device_key: Mapped[str] = mapped_column(String(128), primary_key=True)
    policy_key: Mapped[str] = mapped_column(Sha256, primary_key=True)
    level: Mapped[str] = mapped_column(String(16))
    count: Mapped[int] = mapped_column(BigId)
    first_seen_at: Mapped[datetime] = _time()
    last_seen_at: Mapped[datetime] = _time()

    __table_args__ = (Index("ix_demand_count", "count"),)
