"""What does a compile worker do in one step: claim some trials, build them, write each outcome at once?"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from rooftile.device import ARCHS, X86_ARCHS
from rooftile.errors import PlanError
from rooftile.plan import LaunchPlan
from rooftile.problem import Problem, parse_problem

from search_space.cpu_device import CpuDevice
from search_space.device import Device
from search_space.family import BuildSpec
from search_space.gpu_device import GpuDevice
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.bus import Doorbell, HostGate, Kind, about
from service.errors import host_is_short
from service.periods import lease_s
from service.store import artifacts, devices, trials
from service.store.database import Database
from service.store.enums import ArtifactKind, TrialReason, TrialState
from service.store.errors import StoreFull
from service.store.records import CompileClaim, Compiled, CompileOutcome, Failed
from worker.compile import Artifact, compile_kernel, compile_pool
from worker.compile.capacity import compile_slots
from worker.compile.cuda import is_cuda
from worker.compile.farm import Order, compile_all
from worker.compile.nvrtc import cuda_archs_here
from worker.compile.toolchain import find_compiler
from worker.errors import CompileFailure, CompilerMissingError, DiskFullError, OperationError
from worker.keeper import Keeper, Stopping
from worker.verify.identity import NAME, proof_identity

_log = structlog.get_logger("rooftile.compile")

# The compiler did its work, and what it says of the kernel refuses the schedule.
_REJECTIONS = (TrialReason.SPILLS, TrialReason.RESOURCE_LIMIT)
# What the worker cannot work without. The claims go back, and the process ends with the sentence.
FATAL = (CompilerMissingError, DiskFullError, StoreFull)
POOL_KNOWN_S = 60.0
"""A thread pool that the database had is asked for again after so long."""


@dataclass(frozen=True)
class Task:
    """One claim worked out: what to compile, and how the result is run."""

    claim: CompileClaim
    build: BuildSpec
    plan: LaunchPlan
    structure: Mapping[str, Any] | None = None
    """What an emulated verdict of it depends on; None where nothing is emulated."""


def archs_here(*, alone: bool, without_c: bool = False) -> tuple[str, ...]:
    """What this machine's worker takes claims for. Raises CompilerMissingError where that is nothing.

    `alone`: no other machine compiles. Then CUDA archs are taken without an NVRTC too: their trials end as
    compiler_missing with a sentence that says how to get one, rather than wait for ever. So do trials for
    CPUs without a C compiler, where the worker goes on `without_c`; else it is what it cannot work without.
    """
    cuda = tuple(arch for arch in ARCHS if is_cuda(arch)) if alone else cuda_archs_here()
    try:
        find_compiler()
    except CompilerMissingError:
        if not cuda_archs_here() or (alone and not without_c):
            raise
        return X86_ARCHS + cuda if alone else cuda
    return X86_ARCHS + cuda


class CompileWorker:
    """The step of a compile loop."""

    def __init__(
        self,
        database: Database,
        gate: HostGate,
        doorbell: Doorbell,
        keeper: Keeper,
        home: Path,
        *,
        slots: int | None = None,
        root: Path | None = None,
        archs: Sequence[str] = ARCHS,
        without_c: bool = False,
    ) -> None:
        """`root` is where templates lie (default: kernels/ of this installation)."""
        self._archs = tuple(archs)
        self._without_c = without_c
        self._database = database
        self._gate = gate
        self._doorbell = doorbell
        self._keeper = keeper
        self._home = home
        self._slots = slots
        self._root = root
        self._pools: dict[str, float] = {}
        self.stopper: Stopping | None = None

    def step(self) -> bool:
        """True when there was something to do."""
        with self._database.glance() as session:
            if not trials.compile_waits(session, self._archs):
                return False
        # The gate first: a claim that waits for a measurement to end is a claim nobody works on.
        with self._gate.shared():
            return self._batch()

    def _batch(self) -> bool:
        slots = self._slots or compile_slots()
        owner = self._keeper.owner
        claims = self._database.run(
            lambda s: trials.claim_compile(s, owner, 2 * slots, lease_s(), self._archs)
        )
        if not claims:
            return False
        self._keeper.hold(claim.claim_id for claim in claims)
        try:
            self._work(claims, slots)
        except FATAL as error:
            if isinstance(error, OperationError):
                raise
            raise DiskFullError(str(error)) from None
        finally:
            # Whatever is still held goes back: a stop, an error of ours.
            self._keeper.give_back()
        return True

    def _work(self, claims: list[CompileClaim], slots: int) -> None:
        known = self._devices({claim.device_key for claim in claims if claim.device_key is not None})
        orders: list[Order[int]] = []
        tasks: dict[int, Task] = {}
        for claim in claims:
            planned = plan_task(claim, known)
            if isinstance(planned, Failed):
                self._finish(claim, planned, None)
                continue
            tasks[claim.trial_id] = planned
            orders.append(Order(claim.trial_id, self._order(planned)))
        for trial_id, outcome in compile_all(orders, slots=slots):
            task = tasks[trial_id]
            if isinstance(outcome, Exception) and (isinstance(outcome, FATAL) or host_is_short(outcome)):
                raise outcome
            if isinstance(outcome, CompileFailure) and outcome.reason is TrialReason.JOB_ENDED:
                continue  # not built: what is still held goes back
            pool = None
            if isinstance(outcome, Artifact) and not is_cuda(task.build.arch):
                pool = compile_pool(task.build.arch, home=self._home)
            self._finish(task.claim, compile_outcome(task, outcome, pool), pool)

    def _order(self, task: Task) -> Any:
        def build() -> Artifact:
            if self._keeper.lost(task.claim.claim_id) or (self.stopper and self.stopper.stopping):
                raise CompileFailure(TrialReason.JOB_ENDED, "not wanted any more", {})
            try:
                with about(job_id=task.claim.job_id, trial_id=task.claim.trial_id):
                    return compile_kernel(task.build, home=self._home, root=self._root)
            except CompilerMissingError as error:
                if not (is_cuda(task.build.arch) or self._without_c):
                    raise
                # What the rest of the work needs is still there.
                raise CompileFailure(TrialReason.COMPILER_MISSING, str(error), {}) from None

        return build

    def _devices(self, keys: set[str]) -> dict[str, Device]:
        with self._database.glance() as session:
            known = devices.described(session, keys)
        return {
            key: Device.from_json(known[key])
            if key in known and known[key].get("key") == key
            else Device.for_key(key)
            for key in keys
        }

    def _finish(self, claim: CompileClaim, outcome: CompileOutcome, pool: Artifact | None) -> None:
        """Write one outcome, at once: what is done stays done, whatever happens to the others."""

        known_s = float("-inf") if pool is None else self._pools.get(pool.sha256, float("-inf"))
        new_pool = pool is not None and time.monotonic() - known_s > POOL_KNOWN_S

        def write(session: Any) -> bool:
            if pool is not None and new_pool and artifacts.get_bytes(session, pool.sha256) is None:
                artifacts.put(session, pool.sha256, pool.data, ArtifactKind.POOL, pool.recipe, pool.arch)
            return trials.finish_compile(session, claim.claim_id, outcome)

        written = self._database.run(write)
        self._keeper.drop(claim.claim_id)
        if pool is not None and new_pool:
            self._pools[pool.sha256] = time.monotonic()
        if not written:
            _log.info("a late result was not needed", trial=claim.trial_id)
            return
        if isinstance(outcome, Compiled) and claim.device_key is not None:
            self._doorbell.ring(Kind.MEASURE, claim.job_id, device_key=claim.device_key)
        if isinstance(outcome, Compiled) and outcome.structure is not None:
            self._doorbell.ring(Kind.EMULATE, claim.job_id)
        if not isinstance(outcome, Compiled) or claim.device_key is None:
            # one that goes on to its device is no news to the search; one that was quarantined is seen
            # with its next sweep
            self._doorbell.ring(Kind.SEARCH, claim.job_id)


def plan_task(claim: CompileClaim, known: Mapping[str, Device]) -> Task | Failed:
    """Legality once more, then source, defines and LaunchPlan, which must be one for the problem's sizes."""
    try:
        problem: Problem = parse_problem(claim.problem)
        device = known[claim.device_key] if claim.device_key is not None else Device.for_arch(claim.arch)
        family = get_family(claim.family)
        schedule = Schedule.from_json(claim.schedule)
        violations = family.check(problem, device, schedule)
        if violations:
            told = [violation.to_json() for violation in violations]
            evidence = {
                "message": "; ".join(violation.message for violation in violations),
                "violations": told,
            }
            return Failed(TrialState.REJECTED, TrialReason.ILLEGAL, evidence)
        plan = family.plan(problem, device, schedule)
        if message := _unfit(plan, problem, device):
            return Failed(TrialState.REJECTED, TrialReason.PLAN_INVALID, {"message": message})
        structure = None
        if is_cuda(device.arch.name):
            structure = proof_structure(family.structure(problem, device, schedule))
        return Task(claim, family.build(problem, device, schedule), plan, structure)
    except Exception as error:
        if host_is_short(error):
            raise  # what is held goes back
        return _internal(error)  # one schedule's fault must not end the others


def _unfit(plan: LaunchPlan, problem: Problem, device: Device) -> str | None:
    """Why the plan cannot be launched at the problem's own sizes; None: it can. Where no device was asked for
    nobody else would find out: the emulator runs other sizes."""
    threads = device.cores if isinstance(device, CpuDevice) else 1
    sms = device.sms if isinstance(device, GpuDevice) else 0
    names = {**problem.plan_names(), "threads": threads, "sm_count": sms}
    try:
        plan.concrete(names)
    except PlanError as error:
        return str(error)
    return "; ".join(plan.check(names)) or None


def proof_structure(structure: Mapping[str, Any]) -> dict[str, Any]:
    """What a verdict is remembered by, beside family and toolchain: the structure, and who judged it."""
    return {**structure, NAME: proof_identity()}


def compile_outcome(task: Task, outcome: Artifact | Exception, pool: Artifact | None) -> CompileOutcome:
    """What the store is told."""
    if isinstance(outcome, Artifact):
        return Compiled(
            artifact_sha256=outcome.sha256,
            artifact_bytes=outcome.data,
            recipe=outcome.recipe,
            pool_sha256=None if pool is None else pool.sha256,
            plan=task.plan.to_json(),
            toolchain=outcome.toolchain,
            resources=outcome.resources,
            log=outcome.log,
            compile_s=outcome.compile_s,
            ptx=outcome.ptx,
            structure=task.structure,
        )
    if isinstance(outcome, CompileFailure):
        state = TrialState.REJECTED if outcome.reason in _REJECTIONS else TrialState.FAILED
        return Failed(state, outcome.reason, outcome.evidence)
    return _internal(outcome)


def _internal(error: Exception) -> Failed:
    trace = "".join(traceback.format_exception(error))[-8000:]
    message = f"{type(error).__name__}: {error}"
    return Failed(TrialState.FAILED, TrialReason.INTERNAL_ERROR, {"message": message, "trace": trace})


def clean_scratch(home: Path, older_than_s: float = 3600.0) -> int:
    """Remove what killed compiles and emulations left behind; returns how many folders and files went."""
    count = 0
    work = home / "work"
    for left in (*work.glob("compile-*"), *work.glob("emulate-*.ptx")):
        try:
            if time.time() - left.stat().st_mtime > older_than_s and os.access(left, os.W_OK):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()
                count += 1
        except OSError:
            continue
    return count
