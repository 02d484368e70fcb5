"""How do tests get a job with trials into a store in one line?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from sqlalchemy.orm import Session

from service.store import devices, emulation_claims, jobs, trials
from service.store.enums import (
    JobProblemState,
    JobState,
    ProposalSource,
    TrialReason,
    TrialState,
    VerdictKind,
    WorkerKind,
    WorkerState,
)
from service.store.records import (
    Compiled,
    DeviceRecord,
    Emulated,
    EmulateOutcome,
    Failed,
    Json,
    Measured,
    MeasurementRecord,
    NewJob,
    NewJobProblem,
    NewTrial,
    ProblemRecord,
    TrialRecord,
    VerdictRecord,
)

ARCH = "x86-64-v3"
DEVICE = "cpu-test-6-85-4c-x86-64-v3"
POLICY: Mapping[str, Any] = {"cache": "cold", "launch": "eager"}
POLICY_KEY = "cold-eager"
TOOLCHAIN: Mapping[str, Any] = {"compiler": "cc", "version": "12.2"}
GPU_ARCH = "sm_80"


def key(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def problem(m: int = 8) -> ProblemRecord:
    spec = {"schema": 1, "op": "gemm", "m": m, "n": 64, "k": 64}
    return ProblemRecord(
        key=key(f"problem {m}"),
        layer_key=key("layer"),
        op="gemm",
        title=f"gemm {m}x64x64 f32 kn",
        spec=spec,
        dtype="f32",
    )


def new_job(*sizes: int, **changes: Any) -> NewJob:
    problems = [NewJobProblem(problem(m), DEVICE, ARCH, seed=7) for m in sizes or (8,)]
    values: dict[str, Any] = {
        "request": {"problem": {"op": "gemm"}},
        "target": {"device": DEVICE},
        "policy": POLICY,
        "policy_key": POLICY_KEY,
        "problems": problems,
    }
    return NewJob(**{**values, **changes})


def new_trial(number: int) -> NewTrial:
    return NewTrial(
        schedule={"schema": 1, "family": "gemm_x86", "tile": {"mr": number}},
        schedule_key=key(f"schedule {number}"),
        family="gemm_x86",
        source=ProposalSource.DEFAULT if number == 0 else ProposalSource.RANDOM,
        predicted_us=100.0 + number,
    )


def add_device(s: Session) -> None:
    devices.upsert(s, DeviceRecord(key=DEVICE, name="Test CPU", kind="cpu", arch=ARCH, data={"cores": 4}))


def running_job(s: Session, count: int = 3, *sizes: int, **changes: Any) -> tuple[int, list[TrialRecord]]:
    """A running job whose first problem is being searched, with so many proposed trials."""
    job, created = jobs.create(s, new_job(*sizes, **changes))
    assert created
    jobs.move(s, job.id, JobState.RUNNING)
    first = jobs.problems(s, job.id)[0]
    jobs.move_problem(s, first.id, JobProblemState.SEARCHING)
    return job.id, trials.propose(s, first.id, [new_trial(number) for number in range(count)])


def compiled(data: bytes = b"\x7fELF kernel", **changes: Any) -> Compiled:
    values: dict[str, Any] = {
        "artifact_sha256": sha256(data).hexdigest(),
        "artifact_bytes": data,
        "recipe": {"source": "x86/gemm.c"},
        "pool_sha256": None,
        "plan": {"schema": 1, "steps": []},
        "toolchain": TOOLCHAIN,
        "resources": {"text_bytes": 100},
        "log": "",
        "compile_s": 0.5,
    }
    return Compiled(**{**values, **changes})


def verdict(passed: bool = True) -> VerdictRecord:
    return VerdictRecord(
        kind=VerdictKind.DEVICE,
        passed=passed,
        seeds=(1, 2),
        checks=({"seed": 1, "error": 1e-6},),
        max_error=1e-6,
        bound=1e-4,
    )


def measurement(
    time_us: float, *, contended: bool = False, samples: Sequence[float] = ()
) -> MeasurementRecord:
    return MeasurementRecord(
        policy=POLICY,
        samples_us=tuple(samples) or (time_us,),
        median_us=time_us,
        q10_us=None,
        q90_us=None,
        runs=1,
        contended=contended,
        environment={"steal": 0.0},
        started_at=datetime.now(UTC),
    )


def measured(time_us: float, *, passed: bool = True, **changes: Any) -> Measured:
    contended = changes.pop("contended", False)
    return Measured(verdict(passed), measurement(time_us, contended=contended), **changes)


def failed(reason: TrialReason, evidence: Json | None = None, **changes: Any) -> Failed:
    return Failed(TrialState.FAILED, reason, evidence or {}, **changes)


def compile_all(s: Session, data: str = "kernel", count: int = 100, **changes: Any) -> int:
    """Claims and finishes every compile that waits, each with bytes of its own."""
    claims = trials.claim_compile(s, "compiler", count, 60, [ARCH, GPU_ARCH])
    for claim in claims:
        built = compiled(f"{data} {claim.trial_id}".encode(), **changes)
        assert trials.finish_compile(s, claim.claim_id, built)
    return len(claims)


def gpu_job(s: Session, count: int = 3, *, policy: str = "structure", **changes: Any) -> list[TrialRecord]:
    """A running job for a GPU arch without a device, being searched, with so many proposed trials."""
    problems = [NewJobProblem(problem(8), None, GPU_ARCH, seed=7)]
    wanted = {"problems": problems, "target": {"arch": GPU_ARCH}, "options": {"emulate": policy}}
    return running_job(s, count, **{**wanted, **changes})[1]


def emulated(passed: bool = True, **changes: Any) -> Emulated:
    """What an emulate worker finds: right, or a data race."""
    faults = [{"kind": "race", "message": "b[1] is read while it is written", "line": 90}]
    values: dict[str, Any] = {
        "verdict": VerdictRecord(VerdictKind.EMULATED, passed, (5,), ({"order": "late"},), 1e-3, 1e-2),
        "counters": {"bank_conflicts": 4},
        "seconds": 2.0,
        "reason": None if passed else TrialReason.RACE,
        "evidence": {} if passed else {"message": "b[1] is read while it is written", "faults": faults},
    }
    return Emulated(**{**values, **changes})


def emulate_all(s: Session, outcome: EmulateOutcome | None = None, count: int = 100) -> list[int]:
    """Claims and finishes the runs that wait, up to so many; the trials whose schedule was run."""
    ran = []
    while len(ran) < count and (claim := emulation_claims.claim(s, "emulator", 60, [GPU_ARCH])) is not None:
        assert emulation_claims.finish(s, claim.claim_id, outcome or emulated())
        ran.append(claim.trial_id)
    return ran


def measure_all(s: Session, times: Sequence[float]) -> list[int]:
    """Claims as many measures as there are times and finishes them with these; the trials' ids."""
    claims = trials.claim_measure(s, "measurer", DEVICE, len(times), 60)
    for claim, time_us in zip(claims, times, strict=True):
        assert trials.finish_measure(s, claim.claim_id, measured(time_us))
    return [claim.trial_id for claim in claims]


def beat(s: Session, worker_id: str = "measure-1") -> None:
    from service.store import workers

    workers.heartbeat(s, worker_id, WorkerKind.MEASURE, "host", 1, DEVICE, WorkerState.IDLE)
