"""Does the cluster shape do a job end to end: Postgres, Valkey, and each worker a process of its own?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from rooftile.device import local_cpu

from service.bus import Doorbell, measure_queue
from service.jobs.submit import submit
from service.settings import Settings
from service.store import devices, jobs, releases, trials, workers
from service.store.database import Database
from service.store.enums import JobProblemReason, JobState, TrialState
from service.store.records import JobRecord

ROOFTILE = str(Path(sys.executable).with_name("rooftile"))
# An alias of this CPU: it measures no roof and races for a second, for its times mean nothing.
WORKERS = (("search",), ("compile",), ("emulate",), ("measure", "--device", "alias"))
HOST = {"ROOFTILE_TEST_HOST": "one"}
DEVICE = str(replace(local_cpu().device_key, vendor="one"))
TRIALS = 4


class Cluster:
    """Workers as processes of their own, each with a home of its own, as on machines of their own."""

    def __init__(self, folder: Path, database_url: str, broker_url: str) -> None:
        self.settings = Settings(home=folder / "us", database_url=database_url, broker_url=broker_url)
        self.database = Database(database_url, name="rooftile-test")
        self.bell = Doorbell(self.settings)
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for command in WORKERS:
            environment = {
                **os.environ,
                "ROOFTILE_HOME": str(self._folder / command[0]),
                "ROOFTILE_DATABASE_URL": self.settings.database_url,
                "ROOFTILE_BROKER_URL": str(self.settings.broker_url),
                **HOST,
            }
            with (self._folder / f"{command[0]}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen([ROOFTILE, "worker", *command], env=environment, stdout=log, stderr=log)
                )

    def stop(self) -> list[int]:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(20) for process in self.processes]
        self.processes.clear()
        self.database.close()
        return codes

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            dead = [process.args for process in self.processes if process.poll() is not None]
            assert not dead, (dead, self.logs())
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self._folder.glob("*.log"))

    def connected(self) -> bool:
        with self.database.read() as s:
            return bool(devices.connected(s))

    def submit(self, m: int) -> int:
        body = {
            "problem": {"op": "gemm", "m": m, "n": 64, "k": 64, "dtype": "f32"},
            "budget": {"trials": TRIALS},
        }
        job, _created = submit(self.database, body)
        self.bell.ring("search", job.id)
        return job.id

    def rank(self) -> int:
        """One schedule for a GPU that is not here."""
        problem = {"op": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "f16"}
        body = {"problem": problem, "target": {"arch": "sm_80"}, "budget": {"trials": 1}}
        job, _created = submit(self.database, body)
        self.bell.ring("search", job.id)
        return job.id

    def job(self, job_id: int) -> JobRecord:
        with self.database.read() as s:
            job = jobs.get(s, job_id)
        assert job is not None
        return job

    def done(self, job_id: int) -> None:
        """The job ended as it should, whichever of our processes it came through."""
        self.wait(lambda: not self.job(job_id).open, 90)
        job = self.job(job_id)
        with self.database.read() as s:
            (problem,) = jobs.problems(s, job_id)
            rows = trials.of_problem(s, problem.id)
            assert problem.device_key is not None
            served = releases.best(s, problem.problem_key, problem.device_key, job.policy_key)
        assert len(rows) == TRIALS
        assert any(row.state is TrialState.MEASURED for row in rows)
        # Beside other work on this machine every race may be disturbed, and then nothing may be served.
        disturbed = problem.reason is JobProblemReason.RACE_FAILED and "disturbed" in problem.message
        assert job.state is (JobState.FAILED if disturbed else JobState.DONE), (job.message, self.logs())
        assert (served is None) is disturbed


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, broker: Any) -> Iterator[Cluster]:
    made = Cluster(tmp_path, postgres_url, broker.url)
    made.start()
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


def test_a_job_from_end_to_end_and_another_without_the_broker(cluster: Cluster, broker: Any) -> None:
    cluster.wait(cluster.connected, 90)
    client = redis.Redis.from_url(broker.url)
    ranked = cluster.rank()
    cluster.done(cluster.submit(8))
    # Each worker listens on its own queue; no result, reply or event queue appears.
    with cluster.database.read() as s:
        kinds = {(str(row.kind), row.device_key) for row in workers.alive(s)}
    assert {("search", None), ("compile", None), ("emulate", None), ("measure", DEVICE)} <= kinds
    names = {name.decode() for name in client.scan_iter()}
    queues = ("search", "compile", "emulate", measure_queue(DEVICE))
    assert {f"_kombu.binding.{queue}" for queue in queues} <= names
    assert not [name for name in names if "result" in name or "pidbox" in name or "celeryev" in name]
    # The health checks of the compose file see them, each on this host.
    environment = {**os.environ, **HOST, "ROOFTILE_DATABASE_URL": cluster.settings.database_url}
    for kind in ("search", "compile", "emulate", "measure"):
        subprocess.run([ROOFTILE, "worker", "alive", kind], env=environment, check=True, capture_output=True)
    # A job for a GPU arch goes through the emulate worker, which has the PTX from the database alone.
    cluster.wait(lambda: not cluster.job(ranked).open, 120)
    job = cluster.job(ranked)
    assert (job.state, job.message) == (JobState.DONE, "compiled and emulated, not yet timed")
    # The broker dies in the middle of a job: the sweep ends it all the same.
    job_id = cluster.submit(9)
    cluster.wait(lambda: cluster.job(job_id).state is not JobState.QUEUED, 30)
    broker.kill()
    cluster.done(job_id)
    assert cluster.stop() == [0, 0, 0, 0]
