"""What is left when the storm is over: is every job explained, every trial answered once, nothing held?"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rooftile import Client, Gemm
from rooftile.cache import ArtifactCache
from rooftile.errors import RooftileError
from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session

from bench.chaotic.cluster import Cluster
from bench.chaotic.process import processes_of
from bench.chaotic.work import Posted
from service.store import artifacts, workers
from service.store.claims import MAX_CLAIMS
from service.store.enums import EventKind, JobState, ReleaseState, TrialState, Winner
from service.store.models import (
    Event,
    Job,
    JobProblem,
    Measurement,
    Problem,
    RaceEntrant,
    Release,
    Trial,
    Verdict,
)
from service.store.transitions import JOB, JOB_PROBLEM, TRIAL, final

_JOB_ENDS, _PROBLEM_ENDS, _TRIAL_ENDS = final(JOB), final(JOB_PROBLEM), final(TRIAL)
# Times that a race or the emulator may take away again: the result was accepted before.
_ANSWERED = frozenset({*_TRIAL_ENDS, TrialState.MEASURED, TrialState.RANKED})
_TOLERANCE = 1e-4


@dataclass
class Findings:
    """Sentences, by what they count as. All empty: nothing is wrong."""

    jobs_unexplained: list[str] = field(default_factory=list)
    trials_lost: list[str] = field(default_factory=list)
    trials_double: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    releases_wrong: list[str] = field(default_factory=list)
    ends: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How jobs and trials ended: what, state, reason."""
    jobs: int = 0
    trials: int = 0
    releases: int = 0
    releases_ours: int = 0
    """Those that a kernel of ours won, not the vendor's."""
    kernels_run: int = 0


def audit_store(s: Session, posted: Sequence[Posted], found: Findings) -> None:
    """Jobs and trials, once every job has ended."""
    known = {job.id: job for job in s.scalars(select(Job))}
    for one in posted:
        if one.job_id is None:
            found.jobs_unexplained.append(f"{one.key} was never taken")
        elif len(one.answers) != 1:
            found.jobs_unexplained.append(f"{one.key} was given the ids {sorted(one.answers)}")
    for number in sorted(set(known) - {one.job_id for one in posted}):
        found.jobs_unexplained.append(f"job {number} was made, and nobody was told")
    found.jobs = len(known)
    for job in known.values():
        found.ends["job", str(job.state), str(job.reason or "")] += 1
        _audit_job(s, job, found)
    answers: dict[int, int] = {}
    query = select(Event.subject_id, Event.source, Event.to).where(Event.kind == EventKind.TRIAL)
    for trial_id, source, to in s.execute(query):
        if to in _ANSWERED and source not in _ANSWERED:
            answers[trial_id] = answers.get(trial_id, 0) + 1
    proved = set(s.scalars(select(Verdict.trial_id).where(Verdict.passed.is_(True))))
    timed: Counter[int | None] = Counter(s.scalars(select(Measurement.trial_id).where(~_of_a_race())))
    keys: set[tuple[int, str]] = set()
    for trial in s.scalars(select(Trial).order_by(Trial.id)):
        found.trials += 1
        found.ends["trial", str(trial.state), str(trial.reason or "")] += 1
        name = f"trial {trial.id} of job {trial.job_id}"
        if trial.state not in _ANSWERED:
            found.trials_lost.append(f"{name} is {trial.state} though its job has ended")
        if answers.get(trial.id, 0) == 0:
            found.trials_lost.append(f"{name} has no accepted result")
        elif answers[trial.id] > 1:
            found.trials_double.append(f"{name} has {answers[trial.id]} accepted results")
        if timed[trial.id] > 1:
            found.trials_double.append(f"{name} was timed {timed[trial.id]} times")
        if trial.attempt > MAX_CLAIMS:
            found.trials_double.append(f"{name} was claimed {trial.attempt} times")
        if trial.state is TrialState.MEASURED and trial.id not in proved:
            found.trials_lost.append(f"{name} has a time and no verdict that passed")
        if (trial.job_problem_id, trial.schedule_key) in keys:
            found.trials_double.append(f"{name} tries a schedule again")
        keys.add((trial.job_problem_id, trial.schedule_key))


def _of_a_race() -> ColumnElement[bool]:
    return select(RaceEntrant.id).where(RaceEntrant.measurement_id == Measurement.id).exists()


def _audit_job(s: Session, job: Job, found: Findings) -> None:
    if job.state not in _JOB_ENDS:
        found.jobs_unexplained.append(f"job {job.id} is still {job.state}")
        return
    if job.state is JobState.FAILED and not (job.reason and job.message):
        found.jobs_unexplained.append(f"job {job.id} failed and does not say why")
    for row in s.scalars(select(JobProblem).where(JobProblem.job_id == job.id)):
        if row.state not in _PROBLEM_ENDS:
            found.jobs_unexplained.append(f"job {job.id}: problem {row.id} is still {row.state}")
        elif job.state is not JobState.CANCELLED and not (row.reason or row.message):
            found.jobs_unexplained.append(f"job {job.id}: problem {row.id} does not say how it ended")
        tried = s.scalar(select(func.count()).where(Trial.job_problem_id == row.id)) or 0
        if row.budget_trials is not None and tried > row.budget_trials:
            found.trials_double.append(
                f"job {job.id}: problem {row.id} has {tried} trials, and {row.budget_trials} were asked for"
            )


def audit_leases(s: Session, found: Findings) -> None:
    """Once every worker has ended in order."""
    for table in ("trials", "races", "emulations"):
        query = f"SELECT id, lease_owner FROM {table} WHERE lease_owner IS NOT NULL"
        for row in s.execute(text(query)):
            found.orphans.append(f"{table} {row[0]} is still claimed by {row[1]}")
    for row in s.execute(text("SELECT name, owner FROM leases WHERE expires_at > now()")):
        found.orphans.append(f"the lease {row[0]} is still held by {row[1]}")
    for worker in workers.alive(s):  # one that was killed is listed for a while, and known not to live
        found.orphans.append(f"{worker.id} is still listed as a worker that lives")


def audit_host(cluster: Cluster, found: Findings) -> None:
    """Processes and locks, once every worker has ended in order."""
    for pid in processes_of(cluster.mark, [process.home for process in cluster.processes]):
        command = Path(f"/proc/{pid}/cmdline")
        try:
            shown = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
        except OSError:
            continue
        found.orphans.append(f"process {pid} is left: {shown}")
    for folder in cluster.locks:
        for path in folder.iterdir() if folder.is_dir() else ():
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.orphans.append(f"the lock {path.name} of {folder.name} is still held")
            finally:
                os.close(descriptor)


def audit_releases(cluster: Cluster, found: Findings) -> None:
    """Each is what its trial was measured with, its bytes have their hash and a verdict that passed; what is
    served runs through the client and is right. The API must be running."""
    with cluster.database.read() as s:
        rows = list(s.scalars(select(Release).where(Release.state == ReleaseState.PUBLISHED)))
        served = {(row.problem_key, row.device_key, row.policy_key) for row in rows}
        if len(served) != len(rows):
            found.releases_wrong.append("two releases are served for one problem, device and policy")
        for row in rows:
            _audit_release(s, row, found)
        specs = {row.id: s.get_one(JobProblem, row.job_problem_id).problem_key for row in rows}
        wanted = select(Problem.key, Problem.spec).where(Problem.key.in_(specs.values()))
        problems = {row.key: row.spec for row in s.execute(wanted)}
    found.releases = len(rows)
    found.releases_ours = sum(row.winner is Winner.TRIAL for row in rows)
    # Kernels of aliases stay in the run: never in the cache of who runs it.
    client = Client(cluster.url, cluster.token, cache=ArtifactCache(cluster.folder / "client"))
    rng = np.random.default_rng(1)
    for row in rows:
        spec = problems[specs[row.id]]
        try:
            kernel = client.kernel(spec, row.device_key)
        except RooftileError as error:
            found.releases_wrong.append(f"release {row.id} cannot be fetched: {error}")
            continue
        if kernel.best.release_id != row.id:
            found.releases_wrong.append(f"release {row.id} is published, {kernel.best.release_id} is served")
        problem = Gemm(spec["m"], spec["n"], spec["k"], "f32")
        a = rng.uniform(-1, 1, (problem.m, problem.k)).astype(np.float32)
        b = rng.uniform(-1, 1, (problem.k, problem.n)).astype(np.float32)
        if not np.allclose(kernel(a, b), a.astype(np.float64) @ b, atol=_TOLERANCE):
            found.releases_wrong.append(f"release {row.id} computes something else")
        found.kernels_run += 1


def _audit_release(s: Session, row: Release, found: Findings) -> None:
    if row.winner is not Winner.TRIAL:
        return
    name = f"release {row.id}"
    trial = None if row.trial_id is None else s.get(Trial, row.trial_id)
    # The default races though it was culled, and may win there: the race is what decides.
    if trial is None or trial.state not in (TrialState.MEASURED, TrialState.CULLED):
        found.releases_wrong.append(f"{name} has no trial that was timed")
        return
    if (row.artifact_sha256, row.schedule_key) != (trial.artifact_sha256, trial.schedule_key):
        found.releases_wrong.append(f"{name} is not what its trial was measured with")
    data = artifacts.get_bytes(s, str(row.artifact_sha256))
    if data is None or hashlib.sha256(data).hexdigest() != row.artifact_sha256:
        found.releases_wrong.append(f"{name}: its bytes are missing or have another hash")
    same = Verdict.artifact_sha256 == row.artifact_sha256
    if s.scalar(select(Verdict.id).where(same, Verdict.passed.is_(True)).limit(1)) is None:
        found.releases_wrong.append(f"{name} has no verdict that passed")
