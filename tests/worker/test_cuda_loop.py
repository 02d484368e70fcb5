"""Does the measure worker of a GPU take its trials and races from the store, and write what came of them?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rooftile.problem import Gemm
from support.host_backend import plan, write_cubin
from support.planted_cuda import FAMILY, NAME

from search_space.device import Device
from service.bus import Doorbell, HostGate
from service.paths import device_lock_path
from service.settings import Settings
from service.store import devices, jobs, leases, races, trials
from service.store.database import Database
from service.store.enums import (
    EntrantRole,
    JobProblemState,
    JobState,
    ProposalSource,
    RaceState,
    TrialReason,
    TrialState,
    WorkerKind,
)
from service.store.records import (
    Compiled,
    DeviceRecord,
    NewEntrant,
    NewJob,
    NewJobProblem,
    NewTrial,
    ProblemRecord,
)
from worker.errors import DeviceBusyError
from worker.keeper import Keeper
from worker.measure.cuda_device import SharedGate
from worker.measure.cuda_session import CudaSession
from worker.measuring import MeasureWorker
from worker.ownership import own_device

KEY = "gpu-20b2-108sm-80g-p400"
POLICY = {"cache": "warm", "launch": "graph"}
PROBLEM = Gemm(8, 64, 64, "f32")


@dataclass
class Desk:
    database: Database
    worker: MeasureWorker
    folder: Path

    def job(self, faults: list[str]) -> tuple[int, list[int]]:
        """A job of the GPU whose trials are compiled, each to a file with its fault."""
        device = Device.for_key(KEY)
        record = ProblemRecord(
            PROBLEM.key, PROBLEM.layer().key, "gemm", PROBLEM.title(), PROBLEM.to_json(), "f32"
        )
        with self.database.begin() as s:
            devices.upsert(s, DeviceRecord(KEY, "A100", "gpu", "sm_80", device.to_json()))
            new = NewJob(
                request={}, target={"device": KEY}, policy=POLICY, policy_key="warm-graph",
                problems=[NewJobProblem(record, KEY, "sm_80", seed=7)],
            )  # fmt: skip
            job, _ = jobs.create(s, new)
            jobs.move(s, job.id, JobState.RUNNING)
            row = jobs.problems(s, job.id)[0]
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
            schedules = [FAMILY.make(PROBLEM, device, "good", n) for n in range(len(faults))]
            wanted = [NewTrial(one.to_json(), one.key, NAME, ProposalSource.RANDOM) for one in schedules]
            rows = trials.propose(s, row.id, wanted)
            for fault, claim in zip(
                faults, trials.claim_compile(s, "me", len(faults), 60.0, ["sm_80"]), strict=True
            ):
                data = write_cubin(self.folder / "k", fault=fault, us=50.0).read_bytes()
                sha256 = hashlib.sha256(data).hexdigest()
                made = Compiled(
                    sha256,
                    data,
                    {"kind": "kernel"},
                    None,
                    plan().to_json(),
                    {"compiler": "nvrtc"},
                    {},
                    "",
                    0.1,
                )
                assert trials.finish_compile(s, claim.claim_id, made)
        return job.id, [one.id for one in rows]

    def end(self, trial_id: int) -> Any:
        with self.database.read() as s:
            return trials.get(s, trial_id)


@pytest.fixture
def desk(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    keeper = Keeper(database, WorkerKind.MEASURE, KEY, uuid="GPU-test")
    keeper.start()
    with CudaSession(
        KEY, "GPU-test", backend="support.host_backend:make", budget_s=0.02, race_budget_s=0.2
    ) as session:
        gate = SharedGate(HostGate(tmp_path))
        doorbell = Doorbell(Settings(home=tmp_path / "home"))
        yield Desk(
            database, MeasureWorker(database, gate, doorbell, keeper, session, tmp_path / "home"), tmp_path
        )
    keeper.stop()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_trials_and_a_race_of_a_gpu(desk: Desk) -> None:
    job_id, (good, wrong, dead) = desk.job(["", "wrong value", "abort"])
    while desk.worker.step():
        pass
    assert desk.end(good).state is TrialState.MEASURED
    assert (desk.end(wrong).state, desk.end(wrong).reason) == (TrialState.FAILED, TrialReason.WRONG_RESULT)
    assert (desk.end(dead).state, desk.end(dead).reason) == (TrialState.FAILED, TrialReason.CRASH)
    with desk.database.begin() as s:
        row = jobs.problems(s, job_id)[0]
        jobs.move_problem(s, row.id, JobProblemState.RACING)
        entrants = [
            NewEntrant("best", EntrantRole.FINALIST, good),
            NewEntrant("twin", EntrantRole.TWIN, good),
            NewEntrant("vendor", EntrantRole.BASELINE),
        ]
        race = races.create(s, row.id, entrants, POLICY, 7)
    while desk.worker.step():
        pass
    with desk.database.read() as s:
        done = races.get(s, race.id)
        detail = trials.detail(s, good)
    assert done is not None
    assert done.state is RaceState.DONE
    assert all(one.measurement is not None for one in done.entrants)
    assert done.entrants[2].measurement is not None
    assert done.entrants[2].measurement.environment["baseline"] == "fast"
    assert detail is not None
    assert detail.verdicts[0].passed
    assert detail.measurements[0].environment["gpu"] == {"name": "host"}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_two_gpus_of_one_key_have_two_owners(database: Database) -> None:
    first, second, again = (
        Keeper(database, WorkerKind.MEASURE, KEY, uuid=uuid) for uuid in ("GPU-one", "GPU-two", "GPU-one")
    )
    one = own_device(database, first, KEY, uuid="GPU-one")
    two = own_device(database, second, KEY, uuid="GPU-two")
    try:
        with pytest.raises(DeviceBusyError, match=str(device_lock_path("GPU-one"))):
            own_device(database, again, KEY, uuid="GPU-one")
        with database.read() as s:
            assert leases.holder(s, first.device_lease) is not None
            assert leases.holder(s, second.device_lease) is not None
        assert first.device_lease != second.device_lease
    finally:
        one.close()
        two.close()
