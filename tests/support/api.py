"""What do tests of the API and the dashboard start from: a database with rows, an app over it, tokens?

Everything is written through the store's own functions, by the moves that workers make.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from rooftile.problem import Problem, parse_problem
from starlette.testclient import TestClient

from search_space.schedule import Schedule
from service.api.app import create_app
from service.jobs.submit import submit
from service.settings import Settings
from service.store import artifacts, devices, jobs, races, releases, tokens, trials, workers
from service.store.database import Database
from service.store.enums import (
    ArtifactKind,
    EntrantRole,
    JobProblemState,
    JobState,
    ProposalSource,
    Scope,
    TrialReason,
    TrialState,
    VerdictKind,
    Winner,
    WorkerKind,
    WorkerState,
)
from service.store.records import (
    Compiled,
    DeviceRecord,
    EntrantResult,
    Failed,
    JobProblemRecord,
    JobRecord,
    Measured,
    MeasurementRecord,
    NewEntrant,
    NewRelease,
    NewTrial,
    RaceOutcome,
    ReleaseRecord,
    TrialRecord,
    VerdictRecord,
)

CPU = "cpu-intel-6-85-8c-x86-64-v4"
POLICY = {"cache": "cold", "launch": "eager"}
ADMIN = "admin-token-of-the-tests-0123456789"
BASELINE = {
    "numpy": "2.4.6",
    "blas": [{"internal_api": "openblas", "version": "0.3.30", "architecture": "SkylakeX", "num_threads": 8}],
}
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def gemm(m: int = 8, n: int = 4096, k: int = 4096, **more: Any) -> dict[str, Any]:
    return {"op": "gemm", "m": m, "n": n, "k": k, "dtype": "f32", **more}


def schedule(number: int) -> Schedule:
    """A different schedule for each number, in the groups of a real one."""
    return Schedule.make(
        "gemm_x86",
        {
            "tile": {"mr": 2 + number % 7, "nr": 16 * (1 + number % 3), "kc": 128 << (number % 4)},
            "movement": {"pack_a": number % 2 == 0, "prefetch": number},
            "layout": {"panel": "k-major"},
            "roles": {"threads": 8},
            "order": {"loop": "nkm" if number % 2 else "mkn", "split_k": 1 + number % 2},
        },
    )


def toolchain(version: str = "12.2.0") -> dict[str, Any]:
    return {
        "schema": 1,
        "compiler": "gcc",
        "version": version,
        "linker": "ld 2.40",
        "target": "x86_64-linux-gnu",
        "arch": "x86-64-v4",
        "flags": ["-O3", "-fPIC", "-shared"],
        "sources_sha256": "ab" * 32,
    }


def plan() -> dict[str, Any]:
    return {
        "schema": 1,
        "family": "gemm_x86",
        "arch": "x86-64-v4",
        "kind": "x86",
        "entries": ["run"],
        "sizes": ["m", "n", "k"],
        "workspace": {"bytes": 0, "init": "none"},
        "steps": [{"op": "launch", "entry": "run", "threads": "threads", "args": []}],
        "deterministic": True,
        "valid_for": {"sizes": {}, "align": {}},
    }


def measurement(time_us: float, *, contended: bool = False, samples: int = 21) -> MeasurementRecord:
    spread = [time_us * (1 + 0.01 * ((i * 7) % 11 - 5) / 5) for i in range(samples)]
    return MeasurementRecord(
        policy=POLICY,
        samples_us=spread,
        median_us=time_us,
        q10_us=time_us * 0.992,
        q90_us=time_us * 1.008,
        runs=samples * 3,
        contended=contended,
        environment={"steal_ms": 0, "involuntary_switches": 2, "load": 0.4, "governor": "performance"},
        started_at=MOMENT,
    )


def verdict(*, passed: bool = True) -> VerdictRecord:
    return VerdictRecord(
        kind=VerdictKind.DEVICE,
        passed=passed,
        seeds=(1, 2, 3),
        checks=({"seed": 1, "norm_error": 3.1e-7, "margins": "untouched"},),
        max_error=3.1e-7 if passed else 0.7,
        bound=2.4e-6,
    )


@dataclass
class Seed:
    """Writes rows as the workers would."""

    database: Database

    def device(
        self,
        key: str = CPU,
        name: str = "Intel Xeon (Cascade Lake)",
        *,
        roof: bool = True,
        alive: bool = True,
    ) -> str:
        arch = key.split("c-", 1)[1] if key.startswith("cpu") else "sm_90a"
        kind = "cpu" if key.startswith("cpu") else "gpu"
        with self.database.begin() as s:
            devices.upsert(s, DeviceRecord(key=key, name=name, kind=kind, arch=arch))
            if roof:
                devices.set_roof(s, key, {"gflops": 1250.0, "read_gbps": 180.0})
            if alive:
                workers.heartbeat(
                    s, f"measure-{key}", WorkerKind.MEASURE, "host", 1, key, WorkerState.IDLE, {}
                )
        return key

    def job(self, body: Mapping[str, Any] | None = None, *, token_id: int | None = None) -> JobRecord:
        """A queued job, as POST /v1/jobs makes one."""
        asked = body or {"problem": gemm(), "device": CPU, "budget": {"trials": 60, "seconds": 60}}
        return self.database.run(lambda s: submit(s, asked, token_id=token_id))[0]

    def start(self, job: JobRecord) -> list[JobProblemRecord]:
        """The job runs and its first problem is searched."""
        with self.database.begin() as s:
            jobs.move(s, job.id, JobState.RUNNING)
            rows = jobs.problems(s, job.id)
            jobs.move_problem(s, rows[0].id, JobProblemState.SEARCHING)
            return jobs.problems(s, job.id)

    def propose(self, problem: JobProblemRecord, count: int) -> list[TrialRecord]:
        with self.database.begin() as s:
            first = len(trials.of_problem(s, problem.id))
            new = [
                NewTrial(
                    schedule=schedule(n).to_json(),
                    schedule_key=schedule(n).key,
                    family="gemm_x86",
                    source=ProposalSource.DEFAULT if n == 0 else ProposalSource.TPE,
                    predicted_us=700.0 + n,
                )
                for n in range(first, first + count)
            ]
            return trials.propose(s, problem.id, new)

    def compile(self, count: int, *, version: str = "12.2.0", failing: bool = False) -> list[int]:
        """The next proposed trials are compiled; their ids."""
        with self.database.begin() as s:
            claims = trials.claim_compile(s, "compile-1", count, 60.0, ["x86-64-v4"])
            for claim in claims:
                outcome: Compiled | Failed
                if failing:
                    outcome = Failed(
                        TrialState.FAILED,
                        TrialReason.COMPILE_ERROR,
                        {"log": "gemm.c:12:3: error: 'mr' undeclared", "exit": 1},
                    )
                else:
                    data = b"kernel of trial %d" % claim.trial_id
                    sha = _sha256(data)
                    pool = _sha256(b"pool")
                    artifacts.put(s, pool, b"pool", ArtifactKind.POOL, {}, "x86-64-v4")
                    outcome = Compiled(
                        artifact_sha256=sha,
                        artifact_bytes=data,
                        recipe={"source": "x86/gemm.c", "toolchain": toolchain(version)},
                        pool_sha256=pool,
                        plan=plan(),
                        toolchain=toolchain(version),
                        resources={"text_bytes": 4096, "stack_bytes": 0},
                        log="gemm.c: no warnings",
                        compile_s=0.41,
                    )
                assert trials.finish_compile(s, claim.claim_id, outcome)
            return [claim.trial_id for claim in claims]

    def measure(self, times: Sequence[float | TrialReason], *, contended: bool = False) -> list[int]:
        """The next compiled trials are measured, or fail for the reasons given; their ids."""
        with self.database.begin() as s:
            claims = trials.claim_measure(s, "measure-1", CPU, len(times), 60.0)
            assert len(claims) == len(times)
            best = min((t for t in times if isinstance(t, float)), default=1.0)
            for claim, time_us in zip(claims, times, strict=True):
                outcome: Measured | Failed
                if isinstance(time_us, TrialReason):
                    wrong = time_us is TrialReason.WRONG_RESULT
                    outcome = Failed(
                        TrialState.FAILED,
                        time_us,
                        {"first_wrong": [3, 17], "got": 0.5, "expected": 1.25},
                        verdict=verdict(passed=False) if wrong else None,
                    )
                else:
                    outcome = Measured(
                        verdict=verdict(),
                        measurement=measurement(time_us, contended=contended),
                        culled=time_us > 3 * best,
                    )
                assert trials.finish_measure(s, claim.claim_id, outcome)
            return [claim.trial_id for claim in claims]

    def trials(self, problem: JobProblemRecord, times: Sequence[float | TrialReason]) -> list[int]:
        """Trials that go all the way."""
        self.propose(problem, len(times))
        self.compile(len(times))
        return self.measure(times)

    def race(self, problem: JobProblemRecord, trial_ids: Sequence[int], baseline_us: float) -> int:
        """The race of the given finalists, at the times they have, against the Baseline."""
        with self.database.begin() as s:
            jobs.move_problem(s, problem.id, JobProblemState.RACING)
            entrants = [NewEntrant(f"trial-{n}", EntrantRole.FINALIST, n) for n in trial_ids]
            race = races.create(
                s, problem.id, [*entrants, NewEntrant("baseline", EntrantRole.BASELINE)], POLICY, 5
            )
        with self.database.begin() as s:
            claim = races.claim(s, "measure-1", CPU, 60.0)
            assert claim is not None
            results = []
            for entrant in claim.entrants:
                row = None if entrant.trial_id is None else trials.get(s, entrant.trial_id)
                time_us = baseline_us if row is None or row.time_us is None else row.time_us
                results.append(
                    EntrantResult(
                        name=entrant.name,
                        role=entrant.role,
                        trial_id=entrant.trial_id,
                        measurement=measurement(time_us),
                        verdict=verdict(),
                        failure=None,
                    )
                )
            outcome = RaceOutcome(entrants=results, noise={"relative": 0.006}, environment={"load": 0.2})
            assert races.finish(s, claim.claim_id, outcome)
        return race.id

    def release(
        self,
        problem: JobProblemRecord,
        trial_id: int | None,
        time_us: float,
        baseline_us: float,
        race_id: int | None = None,
    ) -> ReleaseRecord:
        with self.database.begin() as s:
            made = releases.create(
                s,
                NewRelease(
                    job_problem_id=problem.id,
                    policy=POLICY,
                    policy_key="cold-eager",
                    winner=Winner.BASELINE if trial_id is None else Winner.TRIAL,
                    trial_id=trial_id,
                    race_id=race_id,
                    time_us=time_us,
                    baseline_time_us=baseline_us,
                    noise={"band": 0.006, "twin": 0.004, "race": {"relative": 0.006}},
                    baseline={"time_us": baseline_us, "environment": BASELINE},
                    reason="",
                ),
            )
            return releases.publish(s, made.id)

    def end(self, job: JobRecord, state: JobState = JobState.DONE, message: str = "") -> None:
        with self.database.begin() as s:
            for problem in jobs.problems(s, job.id):
                if problem.finished_at is None:
                    to = JobProblemState.DONE if state is JobState.DONE else JobProblemState.FAILED
                    jobs.move_problem(s, problem.id, to)
            if state is JobState.DONE:
                jobs.move(s, job.id, JobState.FINISHING)
            jobs.move(s, job.id, state, message=message)

    def tuned(
        self,
        body: Mapping[str, Any] | None = None,
        times: Sequence[float | TrialReason] = (),
        baseline_us: float = 900.0,
    ) -> tuple[JobRecord, ReleaseRecord]:
        """A job from request to release."""
        job = self.job(body)
        problem = self.start(job)[0]
        ids = self.trials(problem, times or [900.0, 640.0, 700.0])
        fastest = [
            (t, n) for t, n in zip(times or [900.0, 640.0, 700.0], ids, strict=True) if isinstance(t, float)
        ]
        time_us, winner = min(fastest)
        race_id = self.race(problem, [winner], baseline_us)
        release = self.release(problem, winner, time_us, baseline_us, race_id)
        self.end(job)
        return job, release

    def token(self, *scopes: Scope) -> str:
        with self.database.begin() as s:
            return tokens.create(s, "a test", set(scopes))[1]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def problem_of(body: Mapping[str, Any]) -> Problem:
    return parse_problem(dict(body))


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A home of its own, on SQLite unless the test is parametrized (indirectly) with "postgres"."""
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return Settings(home=tmp_path, database_url=url, token=SecretStr(ADMIN))


@pytest.fixture
def seed(settings: Settings) -> Iterator[Seed]:
    database = Database(settings.database_url)
    yield Seed(database)
    database.close()


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[TestClient]:
    """A client without any token."""
    with TestClient(app, base_url="http://127.0.0.1:8417", follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(anonymous: TestClient) -> TestClient:
    """A client with the admin token."""
    anonymous.headers["Authorization"] = f"Bearer {ADMIN}"
    return anonymous


@pytest.fixture
def as_token(app: FastAPI) -> Callable[[str], TestClient]:
    """A further client with another token."""

    def make(token: str) -> TestClient:
        return TestClient(app, base_url="http://127.0.0.1:8417", headers={"Authorization": f"Bearer {token}"})

    return make
