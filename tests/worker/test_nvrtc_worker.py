"""Does the compile worker build CUDA trials beside those of a CPU, each with its own end?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rooftile.device import CUDA_ARCHS, X86_ARCHS
from rooftile.problem import Gemm
from support.planted_cuda import ARCH, FAMILY, NAME, also_planted_cuda, write_cuda_template

from search_space.device import Device
from service.bus import Doorbell, HostGate
from service.settings import Settings
from service.store import artifacts, jobs, trials
from service.store.database import Database
from service.store.enums import (
    JobProblemState,
    JobState,
    ProposalSource,
    Stage,
    TrialReason,
    TrialState,
    WorkerKind,
)
from service.store.records import NewJob, NewJobProblem, NewTrial, ProblemRecord, TrialRecord
from worker.compile import nvrtc
from worker.compiling import CompileWorker, archs_here
from worker.errors import CompilerMissingError
from worker.keeper import Keeper

PROBLEM = Gemm(8, 128, 128, "f16")
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclass
class Desk:
    """A compile worker and its database."""

    database: Database
    worker: CompileWorker
    home: Path

    def job(self, kinds: list[str]) -> list[TrialRecord]:
        device = Device.for_arch(ARCH)
        record = ProblemRecord(
            PROBLEM.key, PROBLEM.layer().key, "gemm", PROBLEM.title(), PROBLEM.to_json(), "f16"
        )
        with self.database.begin() as s:
            new = NewJob(
                request={},
                target={"arch": ARCH},
                policy={"cache": "cold", "launch": "graph"},
                policy_key="cold-graph",
                problems=[NewJobProblem(record, None, ARCH, seed=7)],
            )
            job, _ = jobs.create(s, new)
            jobs.move(s, job.id, JobState.RUNNING)
            row = jobs.problems(s, job.id)[0]
            jobs.move_problem(s, row.id, JobProblemState.SEARCHING)
            schedules = [FAMILY.make(PROBLEM, device, kind, number) for number, kind in enumerate(kinds)]
            wanted = [NewTrial(one.to_json(), one.key, NAME, ProposalSource.RANDOM) for one in schedules]
            return trials.propose(s, row.id, wanted)

    def end(self, trial: TrialRecord) -> TrialRecord:
        with self.database.read() as s:
            found = trials.get(s, trial.id)
        assert found is not None
        return found

    def run(self) -> None:
        while self.worker.step():
            pass


@pytest.fixture
def desk(database: Database, tmp_path: Path) -> Iterator[Desk]:
    keeper = Keeper(database, WorkerKind.COMPILE)
    keeper.start()
    home = tmp_path / "home"
    root = write_cuda_template(tmp_path / "kernels")
    with also_planted_cuda():
        doorbell = Doorbell(Settings(home=home))
        yield Desk(
            database, CompileWorker(database, HostGate(tmp_path), doorbell, keeper, home, root=root), home
        )
    keeper.stop()


ENDS = {
    "does not compile": (TrialState.FAILED, TrialReason.COMPILE_ERROR),
    "crashes": (TrialState.FAILED, TrialReason.COMPILE_CRASH),
    "no entry": (TrialState.FAILED, TrialReason.COMPILE_ERROR),
    "spills": (TrialState.REJECTED, TrialReason.SPILLS),
    "too much shared": (TrialState.REJECTED, TrialReason.RESOURCE_LIMIT),
}


def test_each_trial_ends_as_what_it_is_and_the_good_ones_go_on(desk: Desk) -> None:
    rows = desk.job(["good", *ENDS, "shared"])
    desk.run()
    for row, (state, reason) in zip(rows[1:-1], ENDS.values(), strict=True):
        ended = desk.end(row)
        assert (ended.state, ended.reason) == (state, reason)
        assert ended.lease_owner is None
    for row in (rows[0], rows[-1]):
        good = desk.end(row)
        assert (good.state, good.stage) == (TrialState.COMPILED, Stage.EMULATE)
        with desk.database.read() as s:
            detail = trials.detail(s, row.id)
            assert detail is not None
            assert detail.pool_sha256 is None  # threads of a GPU need no pool
            assert detail.toolchain is not None
            assert detail.toolchain["compiler"] == "nvrtc"
            assert good.artifact_sha256 is not None
            ptx = artifacts.get_ptx(s, good.artifact_sha256)
            data = artifacts.get_bytes(s, good.artifact_sha256)
        assert ptx is not None
        assert b".visible .entry gemm" in ptx
        assert data is not None
        assert data[:4] == b"\x7fELF"
    with desk.database.read() as s:
        told = trials.detail(s, rows[4].id)
    assert told is not None
    assert "spill stores" in told.evidence["log"]


@on_sqlite
def test_without_nvrtc_its_trials_end_by_name_and_the_worker_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = desk.job(["good", "shared"])
    with monkeypatch.context() as gone:
        gone.setattr(nvrtc, "find_library", lambda _arch: None)
        desk.run()
    for row in rows:
        assert (desk.end(row).state, desk.end(row).reason) == (
            TrialState.FAILED,
            TrialReason.COMPILER_MISSING,
        )
    with desk.database.read() as s:
        told = trials.detail(s, rows[0].id)
    assert told is not None
    assert "rooftile-server[compile]" in told.evidence["message"]
    (later,) = desk.job(["good"])
    desk.run()
    assert desk.end(later).state is TrialState.COMPILED


@on_sqlite
def test_a_worker_takes_what_it_has_a_compiler_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archs_here(alone=True) == archs_here(alone=False) == X86_ARCHS + CUDA_ARCHS
    (row,) = desk.job(["good"])
    desk.worker._archs = X86_ARCHS
    assert not desk.worker.step()
    assert desk.end(row).state is TrialState.PROPOSED
    monkeypatch.setenv("CC", "no-such-compiler")
    assert archs_here(alone=False) == CUDA_ARCHS
    with pytest.raises(CompilerMissingError):
        archs_here(alone=True)
    assert archs_here(alone=True, without_c=True) == X86_ARCHS + CUDA_ARCHS
    assert archs_here(alone=False, without_c=True) == CUDA_ARCHS
    monkeypatch.setattr(nvrtc, "find_library", lambda _arch: None)
    for without_c in (False, True):  # with neither there is nothing to do
        with pytest.raises(CompilerMissingError):
            archs_here(alone=False, without_c=without_c)
        with pytest.raises(CompilerMissingError):
            archs_here(alone=True, without_c=without_c)
    monkeypatch.delenv("CC")
    assert archs_here(alone=False) == X86_ARCHS
    assert archs_here(alone=True) == X86_ARCHS + CUDA_ARCHS
