"""What does a candidate's own process do: load, prove, time, prove again?

Everything here runs in a process forked for this one candidate, which may die at any instruction. It tells
the measuring process before each step what it is about to do and how long that may take.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rooftile.errors import ArtifactError, LaunchError, PlanError
from rooftile.launch.errors import UnsuitableError
from rooftile.launch.x86 import Pool, X86Kernel, get_pool
from rooftile.plan import LaunchPlan

from worker.measure.calibration import Calibrator
from worker.measure.limits import run_limit_s
from worker.measure.machine import CpuWatch
from worker.measure.problems import PreparedProblem
from worker.measure.statistics import impossible
from worker.measure.timing import BUDGET_S, Rotor, Run, Timing, collect
from worker.verify.arena import GuardedBuffer, Region
from worker.verify.checks import (
    CheckResult,
    Target,
    VerifyFailure,
    bind_kernel,
    check_case,
    new_workspace,
    skip_reason,
    workspace_bytes,
)
from worker.verify.poison import words
from worker.verify.prepared import PreparedCase

Tell = Callable[[Mapping[str, Any]], None]

# numpy's work around a run (poison, compare) at some 100 ns an element, doubled.
_CHECK_S_PER_ELEMENT = 400e-9
_MOST_RERUN_S = 0.05
_LONG_FLOPS = 4e9


@dataclass(frozen=True)
class Order:
    """What is asked for one candidate."""

    so_path: Path
    pool_path: Path
    plan: LaunchPlan
    threads: int
    best_us: float | None
    roof: Mapping[str, Any] | None
    tool_path: Path | None
    budget_s: float = BUDGET_S

    @staticmethod
    def parse(message: Mapping[str, Any]) -> Order:
        tool = message.get("tool_path")
        return Order(
            so_path=Path(message["so_path"]),
            pool_path=Path(message["pool_path"]),
            plan=LaunchPlan.from_json(message["plan"]),
            threads=int(message["threads"]),
            best_us=message.get("best_us"),
            roof=message.get("roof"),
            tool_path=Path(tool) if tool else None,
            budget_s=float(message.get("budget_s") or BUDGET_S),
        )


@dataclass
class Proof:
    """The verdict as it grows."""

    seeds: list[int]
    checks: list[dict[str, Any]] = field(default_factory=list)
    max_error: float | None = None
    bound: float | None = None

    def add(self, result: CheckResult) -> None:
        self.checks.append(result.to_json())
        if result.max_error is not None and result.case.name.startswith("main"):
            self.max_error = max(self.max_error or 0.0, result.max_error)
            self.bound = max(self.bound or 0.0, result.bound)

    def to_json(self, passed: bool) -> dict[str, Any]:
        return {
            "passed": passed,
            "seeds": self.seeds,
            "checks": self.checks,
            "max_error": self.max_error,
            "bound": self.bound,
        }


class Candidate:
    """One kernel on one prepared problem."""

    def __init__(self, order: Order, data: PreparedProblem, tell: Tell) -> None:
        self.order = order
        self.data = data
        self.proof = Proof(data.seeds)
        self._tell = tell
        self._last: dict[str, Any] = {}
        self.estimate_us = 0.0
        tell({"phase": "load", "limit_s": 10.0})
        self.pool: Pool = get_pool(order.pool_path, order.threads)
        self.kernel = X86Kernel(order.so_path, order.plan, self.pool)
        self.targets: list[Target] = []
        self._workspace: GuardedBuffer | None = None

    # -- proof ------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """The problem itself, then its neighbours. Raises VerifyFailure."""
        for prepared in self.data.mains:
            reason = skip_reason(self.kernel, prepared)
            if reason is not None:
                raise UnsuitableError(reason)
            # The runs that are timed repeat the second one anyhow; of a long one the first repeat is dear.
            repeat = prepared is self.data.mains[1] or self.data.problem.flops < _LONG_FLOPS
            result = self._case(prepared, repeat=repeat)
            self.estimate_us = result.run_us or 0.0
        for prepared in self.data.neighbours:
            self._case(prepared)

    def _case(self, prepared: PreparedCase, *, repeat: bool = False) -> CheckResult:
        try:
            result = check_case(self.kernel, prepared, self._announce(prepared), repeat=repeat)
        except VerifyFailure as failure:
            self.proof.checks.append({**prepared.case.to_json(), "passed": False, "reason": failure.reason})
            raise
        self.proof.add(result)
        return result

    def _announce(self, prepared: PreparedCase) -> Callable[[Iterable[Region]], None]:
        case = prepared.case
        is_main = case.name.startswith("main")
        problem = case.problem
        limit = run_limit_s(problem.flops, problem.min_bytes, self.order.best_us if is_main else None)
        limit += _CHECK_S_PER_ELEMENT * problem.batch * problem.m * problem.n

        def announce(regions: Iterable[Region]) -> None:
            self._tell(
                {
                    "phase": "verify",
                    "case": case.to_json(),
                    "limit_s": limit,
                    "regions": [region.to_json() for region in regions],
                }
            )

        return announce

    # -- time -------------------------------------------------------------------------------------------

    def bind_sets(self) -> None:
        """Outputs for every set of buffers, poisoned, and one workspace, as a program would have it."""
        sets = self.data.sets
        regions: list[Region] = []
        size = workspace_bytes(self.kernel, sets[0].case)
        if size:
            self._workspace = new_workspace(size, "start")
        for prepared in sets:
            target = Target(prepared, lambda found: regions.extend(found), workspace=self._workspace)
            bind_kernel(self.kernel, target)
            self.targets.append(target)
        self._tell({"phase": "time", "limit_s": 10.0, "regions": [region.to_json() for region in regions]})

    def alive(self) -> None:
        """The next chunk of samples, or the next output to be looked at, comes now."""
        problem = self.data.problem
        # A chunk is a few runs, or 20 ms of short ones.
        limit = 1.0 + run_limit_s(problem.flops, problem.min_bytes, self.estimate_us or self.order.best_us)
        limit += _CHECK_S_PER_ELEMENT * problem.batch * problem.m * problem.n
        self._tell({"phase": "time", "limit_s": limit})

    def flusher(self) -> Run | None:
        """What streams other data through the caches between rounds, where sets are too small to do it."""
        buffer = self.data.flush
        if buffer is None:
            return None
        if self.order.tool_path is not None:
            return Calibrator(self.order.tool_path, self.pool, self.kernel.plan.arch).reader(
                buffer.base, buffer.nbytes
            )
        words_of = buffer.data().view(np.uint64)
        return lambda: int(words_of[::8].sum())

    def time(self) -> Timing:
        rotor = Rotor([target.run_once for target in self.targets], self.flusher())
        chance = random.Random(self.data.seed)

        def halfway() -> None:
            # A kernel that stopped computing while it is timed leaves this one poisoned.
            chance.choice(self.targets).poison()

        return collect(
            rotor,
            CpuWatch(self.pool.threads),
            estimate_us=self.estimate_us,
            best_us=self.order.best_us,
            budget_s=self.order.budget_s,
            halfway=halfway,
            alive=self.alive,
        )

    def check_after(self) -> None:
        """What was timed was computed: outputs of every set that ran, then of a fresh run."""
        ran = [target for target in self.targets if target.runs]
        bitwise = self.kernel.plan.deterministic
        compare_all(ran, self.proof, bitwise=bitwise, alive=self.alive)
        started = time.monotonic()
        again = []
        for target in ran:
            self.alive()
            target.poison()
            target.run_once()
            again.append(target)
            if time.monotonic() - started > _MOST_RERUN_S:
                break
        compare_all(again, self.proof, bitwise=bitwise, alive=self.alive)
        self.proof.checks.append(
            {"case": "after timing", "passed": True, "sets": len(ran), "again": len(again)}
        )

    # -- all of it --------------------------------------------------------------------------------------

    def trial(self) -> dict[str, Any]:
        """The whole life of a candidate; its outcome as a message."""
        started_at = datetime.now(UTC)
        self.verify()
        self.bind_sets()
        timing = self.time()
        self.check_after()
        data = self.data
        measured = timing.to_json()
        wrong = impossible(
            measured["samples_us"],
            data.problem.flops,
            data.read_bytes,
            self.order.roof,
            cold=data.policy.cold,
        )
        verdict = self.proof.to_json(True)
        if wrong is not None:
            return failed("invalid_time", wrong, verdict)
        measured["started_at"] = started_at.isoformat()
        measured["policy"] = data.policy.to_json()
        measured["environment"]["rotation"] = data.rotation.to_json(data.set_bytes)
        return {"status": "measured", "verdict": verdict, "measurement": measured, "culled": timing.culled}


def compare_all(
    targets: list[Target], proof: Proof, *, bitwise: bool, alive: Callable[[], None] = lambda: None
) -> None:
    """Every output that was timed is right. All sets hold the same numbers: equal to a right one is right."""
    first: np.ndarray[Any, Any] | None = None
    for target in targets:
        alive()
        try:
            output = np.ascontiguousarray(target.output())
            if bitwise and first is not None and np.array_equal(words(output), first):
                target.check_margins()
                continue
            target.check()
            first = words(output)
        except VerifyFailure as failure:
            failure.evidence["when"] = "after timing"
            proof.checks.append({"case": "after timing", "passed": False, "reason": failure.reason})
            raise


def failed(
    reason: str, evidence: Mapping[str, Any], verdict: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """An outcome without a time."""
    return {"status": "failed", "reason": reason, "evidence": dict(evidence), "verdict": verdict}


def outcome_of(order: Order, data: PreparedProblem, tell: Tell) -> dict[str, Any]:
    """Run a trial and turn whatever happens, short of this process dying, into a message."""
    candidate: Candidate | None = None
    try:
        candidate = Candidate(order, data, tell)
        return candidate.trial()
    except VerifyFailure as failure:
        assert candidate is not None
        return failed(failure.reason, failure.evidence, candidate.proof.to_json(False))
    except Exception as error:  # noqa: BLE001 - every way to fail has a name
        return failure_of(error)


def failure_of(error: Exception) -> dict[str, Any]:
    """The outcome that an exception stands for."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return failed("out_of_memory", {"message": str(error) or "the host had not enough memory"})
    if isinstance(error, (UnsuitableError, PlanError)):
        return failed("plan_invalid", {"message": text})
    if isinstance(error, (LaunchError, ArtifactError)):
        return failed("launch_error", {"message": text})
    return failed("internal_error", {"message": text, "trace": traceback.format_exc()[-4000:]})
