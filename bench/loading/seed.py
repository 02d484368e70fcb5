"""How does a database get 100,000 trials and 10,000 releases within a minute?

One job goes through the store as every job does: trials proposed, compiled, measured, raced, released. Then
Postgres copies its rows for as many problems as are wanted, each a real Problem with its own key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rooftile.problem import Gemm
from sqlalchemy import Table, insert, text
from sqlalchemy.orm import Session

from search_space.device import Device
from search_space.registry import get_family
from service.jobs.problem_rows import problem_record
from service.store import devices, jobs, races, releases, trials
from service.store.database import Database
from service.store.enums import (
    EntrantRole,
    JobProblemState,
    JobState,
    ProposalSource,
    VerdictKind,
    Winner,
)
from service.store.models import Base, Job, JobProblem, Problem
from service.store.records import (
    Compiled,
    DeviceRecord,
    EntrantResult,
    Measured,
    MeasurementRecord,
    NewEntrant,
    NewJob,
    NewJobProblem,
    NewRelease,
    NewTrial,
    RaceOutcome,
    VerdictRecord,
)

DEVICE = "cpu-intel-6-85-8c-x86-64-v4"
POLICY: Mapping[str, Any] = {"cache": "cold", "launch": "eager"}
POLICY_KEY = "cold-eager"
TRIALS = 10
"""Of each problem."""
PROBLEMS_A_JOB = 20
_TOOLCHAIN = {"compiler": "gcc", "version": "12.2.0", "flags": "-O3 -march=x86-64-v4"}


@dataclass(frozen=True)
class Seeded:
    """What is in the database now."""

    problems: list[Gemm]
    jobs: int
    trials: int
    releases: int
    events: int


def problems(count: int) -> list[Gemm]:
    """Different ones."""
    return [Gemm(1 + n % 100, 64 * (1 + n // 100 % 50), 128 * (1 + n // 5000), "f32") for n in range(count)]


def seed(database: Database, count: int) -> Seeded:
    """`count` problems with ten trials and a release each. The database must be Postgres, and empty."""
    wanted = problems(count)
    with database.begin() as s:
        template = _template(s, Gemm(7, 4096, 4096, "f32"))
    with database.begin() as s:
        _copy_all(s, template, wanted)
    with database.engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # as a database that has been in use: else autovacuum comes upon it in the midst of what is measured
        connection.execute(text("VACUUM (ANALYZE)"))
    with database.read() as s:
        counts = {
            name: int(s.execute(text(f"SELECT count(*) FROM {name}")).scalar_one())
            for name in ("jobs", "trials", "releases", "events")
        }
    return Seeded(wanted, **counts)


# ---------------------------------------------------------------- one of each


def _template(s: Session, problem: Gemm) -> int:
    """A whole job through the store; its id."""
    device = Device.for_key(DEVICE)
    family = get_family("gemm_x86")
    devices.upsert(
        s, DeviceRecord(key=DEVICE, name="a CPU", kind="cpu", arch=device.arch.name, data=device.to_json())
    )
    devices.set_roof(s, DEVICE, {"gflops": 1250.0, "read_gbps": 180.0})
    row = NewJobProblem(problem_record(problem), DEVICE, device.arch.name, seed=7)
    job, _ = jobs.create(
        s,
        NewJob(
            request={"problem": problem.to_json(), "device": DEVICE},
            target={"device": DEVICE},
            policy=POLICY,
            policy_key=POLICY_KEY,
            problems=[row],
        ),
    )
    jobs.move(s, job.id, JobState.RUNNING)
    (searched,) = jobs.problems(s, job.id)
    jobs.move_problem(s, searched.id, JobProblemState.SEARCHING)
    schedule = family.default(problem, device)
    plan = family.plan(problem, device, schedule).to_json()
    proposed = [
        NewTrial(
            schedule=schedule.to_json(),
            schedule_key=hashlib.sha256(f"{schedule.key} {number}".encode()).hexdigest(),
            family=family.name,
            source=ProposalSource.DEFAULT if number == 0 else ProposalSource.RANDOM,
            predicted_us=100.0 + number,
        )
        for number in range(TRIALS)
    ]
    trials.propose(s, searched.id, proposed)
    for one in trials.claim_compile(s, "seed", TRIALS, 60.0, [device.arch.name]):
        data = f"kernel {one.trial_id}".encode()
        trials.finish_compile(s, one.claim_id, _compiled(data, plan))
    for claim in trials.claim_measure(s, "seed", DEVICE, TRIALS, 60.0):
        trials.finish_measure(s, claim.claim_id, Measured(_verdict(), _measurement(100.0 + claim.trial_id)))
    best = trials.top(s, searched.id, 1)[0]
    entrants = [
        NewEntrant("default", EntrantRole.DEFAULT, best.id),
        NewEntrant("twin", EntrantRole.TWIN, best.id),
        NewEntrant("baseline", EntrantRole.BASELINE),
    ]
    jobs.move_problem(s, searched.id, JobProblemState.RACING)
    races.create(s, searched.id, entrants, POLICY, 1)
    race = races.claim(s, "seed", DEVICE, 60.0)
    assert race is not None
    results = [
        EntrantResult(one.name, one.role, one.trial_id, _measurement(100.0), _verdict(), None)
        for one in race.entrants
    ]
    races.finish(s, race.claim_id, RaceOutcome(results, {"relative": 0.01}, {}, device_s=1.0))
    release = releases.create(
        s,
        NewRelease(
            job_problem_id=searched.id,
            policy=POLICY,
            policy_key=POLICY_KEY,
            winner=Winner.TRIAL,
            trial_id=best.id,
            race_id=race.race_id,
            time_us=101.0,
            baseline_time_us=150.0,
            tie_set=[],
            noise={"relative": 0.01},
            baseline={"name": "OpenBLAS"},
            reason="1.49 times as fast as the vendor's kernel",
            unproven=False,
        ),
    )
    releases.publish(s, release.id, "1.49 times as fast as the vendor's kernel")
    jobs.move_problem(s, searched.id, JobProblemState.DONE, None, "released")
    jobs.move(s, job.id, JobState.FINISHING)
    jobs.move(s, job.id, JobState.DONE)
    return job.id


def _compiled(data: bytes, plan: Mapping[str, Any]) -> Compiled:
    return Compiled(
        artifact_sha256=hashlib.sha256(data).hexdigest(),
        artifact_bytes=data,
        recipe={"source": "x86/gemm_stream.c", "defines": {"MR": 4}},
        pool_sha256=None,
        plan=plan,
        toolchain=_TOOLCHAIN,
        resources={"text_bytes": 14_000},
        log="",
        compile_s=0.4,
    )


def _verdict() -> VerdictRecord:
    checks = tuple({"seed": one, "error": 1e-6, "sizes": {"m": 7}} for one in range(4))
    return VerdictRecord(
        kind=VerdictKind.DEVICE, passed=True, seeds=(1, 2), checks=checks, max_error=1e-6, bound=1e-4
    )


def _measurement(time_us: float) -> MeasurementRecord:
    return MeasurementRecord(
        policy=POLICY,
        samples_us=tuple(time_us + 0.01 * n for n in range(60)),
        median_us=time_us,
        q10_us=time_us,
        q90_us=time_us + 0.6,
        runs=60,
        contended=False,
        environment={"load": [0.1, 0.1, 0.1], "steal_share": 0.0, "threads": 8, "batch": 4},
        started_at=datetime.now(UTC),
    )


# ---------------------------------------------------------------- many of each


def _copy_all(s: Session, template: int, wanted: list[Gemm]) -> None:
    now = datetime.now(UTC)
    records = [problem_record(one) for one in wanted]
    s.execute(
        insert(Problem),
        [
            {
                "key": one.key,
                "layer_key": one.layer_key,
                "op": one.op,
                "dtype": one.dtype,
                "title": one.title,
                "spec": dict(one.spec),
                "created_at": now,
            }
            for one in records
        ],
    )
    count = -(-len(wanted) // PROBLEMS_A_JOB)
    _copy(s, Job, "jobs o, generate_series(1, :count) n", f"o.id = {template}", {}, count=count)
    first = int(s.execute(text("SELECT min(id) FROM jobs WHERE id > :t"), {"t": template}).scalar_one())
    source = s.execute(text("SELECT * FROM job_problems WHERE job_id = :t"), {"t": template}).mappings().one()
    columns = [column.name for column in JobProblem.__table__.columns if column.name != "id"]
    s.execute(
        insert(JobProblem),
        [
            {
                **{name: source[name] for name in columns},
                "job_id": first + number // PROBLEMS_A_JOB,
                "position": number % PROBLEMS_A_JOB,
                "problem_key": one.key,
                "state": JobProblemState.DONE,
            }
            for number, one in enumerate(records)
        ],
    )
    mine = f"n.job_id > {template}"
    tables = Base.metadata.tables
    owner = {"job_id": "n.job_id", "job_problem_id": "n.id", "problem_key": "n.problem_key"}
    _copy(s, tables["trials"], "trials o, job_problems n", f"o.job_id = {template} AND {mine}", owner)
    matched = f"trials t, trials n WHERE t.job_id = {template} AND n.number = t.number AND {mine}"
    for name in ("measurements", "verdicts"):
        where = f"o.trial_id = x.old_id AND o.trial_id IN (SELECT id FROM trials WHERE job_id = {template})"
        pairs = f"(SELECT t.id AS old_id, n.id AS new_id FROM {matched}) x"
        # The newest of each: the race's lie beside the trial's.
        newest = f"o.id = (SELECT min(id) FROM {name} WHERE trial_id = x.old_id)"
        _copy(s, tables[name], f"{name} o, {pairs}", f"{where} AND {newest}", {"trial_id": "x.new_id"})
    _copy(
        s,
        tables["races"],
        "races o, job_problems n",
        f"o.job_id = {template} AND {mine}",
        {"job_id": "n.job_id", "job_problem_id": "n.id"},
    )
    best = f"""(SELECT n.job_problem_id, n.id FROM {matched} AND t.id =
        (SELECT trial_id FROM releases WHERE job_id = {template}))"""
    _copy(
        s,
        tables["releases"],
        f"releases o, problems p, job_problems n, races r, {best} b",
        f"o.job_id = {template} AND {mine} AND p.key = n.problem_key AND r.job_problem_id = n.id"
        " AND b.job_problem_id = n.id",
        {
            "problem_key": "p.key",
            "layer_key": "p.layer_key",
            "job_id": "n.job_id",
            "job_problem_id": "n.id",
            "trial_id": "b.id",
            "race_id": "r.id",
            "change_id": "o.change_id + n.id",
        },
    )
    pairs = f"(SELECT t.id AS old_id, n.id AS new_id, n.job_id FROM {matched}) x"
    told = f"o.kind = 'trial' AND o.subject_id = x.old_id AND o.job_id = {template}"
    _copy(s, tables["events"], f"events o, {pairs}", told, {"subject_id": "x.new_id", "job_id": "x.job_id"})


def _copy(
    s: Session, table: Table | type[Base], source: str, where: str, changes: Mapping[str, str], **bound: Any
) -> None:
    """INSERT INTO table SELECT the columns of its row `o`, but for the changes and a new id."""
    rows: Any = table if isinstance(table, Table) else table.__table__
    names = [column.name for column in rows.columns if column.name != "id"]
    chosen = ", ".join(changes.get(name, f'o."{name}"') for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    s.execute(text("SET LOCAL statement_timeout = 0"))
    s.execute(text(f"INSERT INTO {rows.name} ({listed}) SELECT {chosen} FROM {source} WHERE {where}"), bound)
