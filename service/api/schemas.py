"""What does each answer look like in JSON?

Pydantic models of what goes out; what comes in is checked by the parsers of `rooftile.problem` and
`service.jobs`, whose errors name the field. Times in microseconds, moments in UTC. A number that can
pass 2^53 (flops, bytes) is sent as a float on purpose.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

JsonObject = dict[str, Any]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Policy(Model):
    cache: str
    launch: str


class Budget(Model):
    trials: int | None
    seconds: float | None
    device_seconds: float | None


class Outcome(Model):
    state: str
    reason: str | None
    count: int


class BestOfJob(Model):
    """The fastest right trial of a problem so far; `baseline_time_us` is there once the race is run. Where no
    device was asked for, the best by the cost model: it has no `time_us`."""

    problem_key: str
    title: str
    device: str | None
    trial_id: int
    trial_number: int
    time_us: float | None
    predicted_us: float | None
    emulated: str | None = Field(description="what the emulator says of it, in words; null on x86")
    baseline_time_us: float | None
    speedup: float | None
    schedule: JsonObject
    schedule_text: str
    release_id: int | None


class JobProblem(Model):
    id: int
    position: int
    problem_key: str
    layer_key: str
    title: str
    problem: JsonObject
    device: str | None
    arch: str
    weight: float
    role: str = Field(description="search, or of a sweep's sizes that are only measured: cross, held_out")
    state: str
    reason: str | None
    message: str
    budget: Budget
    elapsed_s: float
    counts: dict[str, int]
    best: BestOfJob | None


class JobSummary(Model):
    id: int
    state: str
    reason: str | None
    message: str
    titles: list[str] = Field(description="of the first problems of the job")
    problem_count: int
    devices: list[str]
    policy: JsonObject
    budget: Budget
    priority: int
    counts: dict[str, int]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    ran_s: float


class Job(JobSummary):
    request: JsonObject
    target: JsonObject
    options: JsonObject
    seed: int
    outcomes: list[Outcome] = Field(description="trials by state and reason")
    best: BestOfJob | None = Field(
        description="of the first problem that has one; each problem has its own under `problems`"
    )
    problems: list[JobProblem]
    last_event_id: int


class JobCreated(Model):
    """What POST /v1/jobs answers: the job itself, and whether an open one with the same request was found."""

    id: int
    state: str
    reason: str | None
    message: str
    created: bool
    url: str
    events_url: str


class JobPage(Model):
    jobs: list[JobSummary]
    next_page_token: str | None


class Trial(Model):
    id: int
    job_id: int
    job_problem_id: int
    number: int
    problem_key: str
    device: str | None
    arch: str
    family: str
    schedule: JsonObject
    schedule_text: str
    schedule_key: str
    source: str
    predicted_us: float | None
    state: str
    reason: str | None
    stage: str
    attempt: int
    artifact: str | None
    time_us: float | None
    contended: bool
    compile_s: float | None
    device_s: float | None
    created_at: datetime
    finished_at: datetime | None


class TrialPage(Model):
    trials: list[Trial]
    next_page_token: str | None


class Verdict(Model):
    kind: str
    passed: bool
    seeds: list[int]
    checks: list[JsonObject]
    max_error: float | None
    bound: float | None


class Measurement(Model):
    policy: JsonObject
    samples_us: list[float]
    median_us: float
    q10_us: float | None
    q90_us: float | None
    runs: int
    contended: bool
    environment: JsonObject
    started_at: datetime


class Emulation(Model):
    """A run in the emulator that speaks for a trial: its own, or that of its structure."""

    id: int
    state: str
    reason: str | None
    scope: str = Field(description="structure: it speaks for all trials of its structure; trial: for one")
    unrun: str | None = Field(
        description="why this trial waits for no verdict though the run has none; null otherwise"
    )
    own: bool = Field(description="the run is of this trial's own schedule")
    trial_id: int | None = Field(description="the trial whose schedule was run")
    schedule: JsonObject
    schedule_text: str
    structure: JsonObject
    seeds: list[int]
    seconds: float | None
    max_error: float | None
    bound: float | None
    checks: list[JsonObject] = Field(description="one for each problem and order that was run")
    counters: JsonObject | None
    faults: list[JsonObject] = Field(description="with source line, warp, buffer and stage")
    evidence: JsonObject
    text: str = Field(description="all of it, for people")


class TrialDetail(Trial):
    problem: JsonObject
    title: str
    schedule_long: str
    pool: str | None
    launch: JsonObject | None
    toolchain: JsonObject | None
    resources: JsonObject | None
    log: str
    evidence: JsonObject
    verdicts: list[Verdict]
    emulation: Emulation | None
    measurements: list[Measurement]
    repeat: str = Field(description="a command that tries this schedule again")
    repeat_request: JsonObject = Field(description="the same as a body of POST /v1/jobs")


class Release(Model):
    release_id: int
    change_id: int
    state: str
    pinned: bool
    generation: int
    level: str = Field(description="exact, or baseline where the vendor's kernel won")
    problem_key: str
    layer_key: str
    problem: JsonObject
    title: str
    device: str
    arch: str
    policy: JsonObject
    family: str | None
    schedule: JsonObject | None
    schedule_text: str | None
    time_us: float
    baseline_time_us: float | None
    artifact: str | None
    pool: str | None
    launch: JsonObject | None
    toolchain: JsonObject | None
    noise: JsonObject
    tie_set: list[JsonObject]
    baseline: JsonObject
    reason: str
    unproven: bool = Field(description="an admin published it without the emulated verdict its family needs")
    job_id: int
    trial_id: int | None
    created_at: datetime
    published_at: datetime | None
    ended_at: datetime | None


class ReleaseChanges(Model):
    releases: list[Release]
    after: int = Field(description="pass it as `after` the next time")
    more: bool


class Best(Model):
    """The answer of a lookup; everything but level, reason, problem_key, device and policy may be null."""

    level: str = Field(description="exact, stale, baseline or none")
    reason: str
    problem_key: str
    problem: JsonObject
    device: str | None
    policy: JsonObject
    release_id: int | None
    generation: int | None
    arch: str | None
    family: str | None
    schedule: JsonObject | None
    schedule_text: str | None
    time_us: float | None
    baseline_time_us: float | None
    artifact: str | None
    pool: str | None
    launch: JsonObject | None
    toolchain: JsonObject | None
    noise: JsonObject | None
    tie_set: list[JsonObject] | None
    unproven: bool | None = Field(description="an admin published it without its emulated verdict")
    published_at: datetime | None


class ProblemJob(Model):
    job_id: int
    device: str | None = Field(description="null: it was ranked for an arch")
    arch: str
    state: str
    reason: str | None
    message: str
    trial_id: int | None = Field(description="of the best by the cost model, where it was ranked for an arch")
    predicted_us: float | None


class ProblemOut(Model):
    problem_key: str
    layer_key: str
    op: str
    title: str
    problem: JsonObject
    flops: float
    min_bytes: float
    releases: list[Release]
    jobs: list[ProblemJob] = Field(description="that tuned it or are to, newest first, page by page")
    next_page_token: str | None = Field(description="of `jobs`")


class TableRow(Model):
    sizes: dict[str, int]
    problem_key: str
    release_id: int
    level: str
    time_us: float
    baseline_time_us: float | None
    artifact: str | None
    pool: str | None
    schedule: JsonObject | None
    schedule_text: str | None
    launch: JsonObject | None


class DispatchInterval(Model):
    """Sizes from low to high, both included."""

    low: int
    high: int
    level: str = Field(description="exact: the kernel below; baseline: the vendor's; none: withdrawn since")
    tuned_at: int = Field(description="the size at which its release won its race")
    release_id: int
    release_state: str
    schedule_text: str | None
    artifact: str | None
    pool: str | None
    launch: JsonObject | None
    estimated_mean_loss_percent: float | None = Field(
        description="how much longer than the best known, over the interval's sizes; null: nothing is known"
    )
    estimated_worst_loss_percent: float | None


class HeldOut(Model):
    size: int
    loss_percent: float | None = Field(
        description="how much longer the table's choice took than the fastest of its neighbours' winners and"
        " the vendor's kernel, measured; null: it has no time"
    )
    raced: bool = Field(description="in turns in one session; else from single trials")


class DispatchTable(Model):
    """What a sweep ended in: the sizes between tuned ones too."""

    table_id: int
    job_id: int
    created_at: datetime
    axis: str
    low: int
    high: int
    fixed: dict[str, int] = Field(description="the other open sizes")
    tuned: list[int]
    intervals: list[DispatchInterval]
    held_out: list[HeldOut]
    mean_loss_percent: float | None = Field(description="measured, over the held-out sizes")
    worst_loss_percent: float | None


class Table(Model):
    layer_key: str
    device: str
    policy: JsonObject | None
    open: list[str]
    rows: list[TableRow] = Field(description="by size, page by page")
    dispatch: list[DispatchTable] = Field(description="the newest of each swept size")
    next_page_token: str | None


class PortfolioMember(Model):
    schedule_key: str
    schedule: JsonObject | None
    schedule_text: str
    problems: list[str] = Field(description="problem keys for which it is the one to take")


class Portfolio(Model):
    """At most ten schedules that are good for many problems, by the times of all jobs."""

    family: str
    loss_percent: float = Field(description="the stated loss: covered problems lose at most so much")
    problem_count: int
    covered: int
    mean_loss_percent: float | None
    worst_loss_percent: float | None
    fewest: bool = Field(description="no fewer would cover as many; else found greedily")
    members: list[PortfolioMember]
    uncovered: list[str]


class PortfolioList(Model):
    device: str
    policy: JsonObject
    portfolios: list[Portfolio]


class DemandAccepted(Model):
    accepted: int


class Demand(Model):
    problem_key: str
    layer_key: str
    problem: JsonObject
    title: str
    device: str
    policy: str
    level: str
    count: int
    first_seen_at: datetime
    last_seen_at: datetime


class DemandList(Model):
    demand: list[Demand]
    next_page_token: str | None


class DeviceWorker(Model):
    """A process that measures on a device, as it last reported."""

    id: str
    host: str
    state: str
    started_at: datetime
    heartbeat_at: datetime
    data: JsonObject
    """Of a GPU its uuid, driver, memory, power limit and clocks; of a CPU its threads."""


class Device(Model):
    key: str
    name: str
    kind: str
    arch: str
    data: JsonObject
    roof: JsonObject | None
    roof_at: datetime | None
    state: str
    reason: str
    connected: bool
    last_seen_at: datetime | None
    workers: list[DeviceWorker]


class DeviceList(Model):
    devices: list[Device]


class Arch(Model):
    name: str
    kind: str
    families: list[str]
    devices: list[str]
    note: str


class ArchList(Model):
    archs: list[Arch]


class Parameter(Model):
    name: str
    group: str
    choices: list[Any]
    doc: str


class Reason(Model):
    rule: str
    message: str
    numbers: JsonObject


class FamilySpace(Model):
    family: str
    version: str
    supported: bool
    why_not: list[Reason]
    groups: dict[str, list[Parameter]]
    default: JsonObject | None
    default_text: str | None


class SpaceOut(Model):
    op: str
    arch: str
    dtype: str
    problem: JsonObject
    device: str | None
    supported: bool
    families: list[FamilySpace]
    why_not: list[Reason]


class Audit(Model):
    """What somebody did."""

    id: int
    at: datetime
    actor: str = Field(description="token:7, session:3, command, or service")
    action: str
    subject: str = Field(description="what it was done to: release:7, token:3, device:KEY")
    origin: str = Field(description="an address, or the host of a command")
    data: JsonObject


class AuditPage(Model):
    audit: list[Audit]
    next_page_token: str | None


class Health(Model):
    status: str


class Ready(Model):
    status: str
    database: str
    workers: dict[str, int]
    devices: list[str]
    missing: list[str] = Field(description="kinds of worker of which none reports: jobs wait for them")
    checks: dict[str, str] = Field(
        description="database, migrations, broker (of a cluster), clock: `ok`, or what is wrong with it"
    )
