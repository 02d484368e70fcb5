"""What happens to one candidate in a GPU's measuring process: load, prove, time, prove again?

As candidate.py for the CPU, but that the process is not the candidate's own: a context costs a second, so it
is kept while candidates behave. It tells before each step what comes and how long that may take; who overruns
is killed with the process, and a CUDA error that sticks ends it (cuda_child.py).
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rooftile.errors import ArtifactError, DeviceError, LaunchError, PlanError
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import LaunchPlan

from worker.measure.candidate import Proof, Tell, failed
from worker.measure.cuda_backend import Backend, RoundTimer, Run
from worker.measure.cuda_problems import DeviceProblem
from worker.measure.limits import gpu_limit_s
from worker.measure.statistics import impossible
from worker.measure.timing import BUDGET_S, Timing, collect
from worker.verify.cases import Case
from worker.verify.checks import VerifyFailure
from worker.verify.device_checks import (
    DeviceCase,
    DeviceTarget,
    Launchable,
    check_device_case,
    new_workspace,
    skip_reason,
    workspace_bytes,
)
from worker.verify.device_elements import unsigned
from worker.verify.device_memory import DeviceBuffer

# A round of runs is at least this long: 400 times the half microsecond that events resolve.
ROUND_US = 200.0
MOST_REPEATS = 64
MOST_ROUND_US = 250_000.0
# Clocks rise and fall with the load over tens of milliseconds (AT-28).
WARM_UP_S = 0.05
# Beyond this a repeat of the first main case is dear, and the timed runs repeat the second anyhow.
_LONG_FLOPS = 1e13
# Of the work around a run: poison, compare, checksums, at 10 GB/s and some passes; doubled.
_CHECK_S_PER_BYTE = 2e-9
_MOST_RERUN_SETS = 4


@dataclass(frozen=True)
class CudaOrder:
    """What is asked for one candidate."""

    path: Path
    plan: LaunchPlan
    best_us: float | None
    roof: Mapping[str, Any] | None
    budget_s: float = BUDGET_S

    @staticmethod
    def parse(message: Mapping[str, Any]) -> CudaOrder:
        return CudaOrder(
            path=Path(message["so_path"]),
            plan=LaunchPlan.from_json(message["plan"]),
            best_us=message.get("best_us"),
            roof=message.get("roof"),
            budget_s=float(message.get("budget_s") or BUDGET_S),
        )


class RoundSampler:
    """Rounds over all sets, for timing.collect; where sets are too few, the cache is flushed before each."""

    most_batch = 1

    def __init__(self, timer: RoundTimer, data: DeviceProblem, runs: int) -> None:
        self._timer, self._data, self._runs = timer, data, runs
        self.count = 0

    def sample(self, batch: int) -> float:
        """One round; microseconds a run."""
        self._data.flush_cache()
        self.count += self._runs
        return self._timer.time_us()


class DeviceCandidate:
    """One kernel, ours or the vendor's, on one prepared problem."""

    def __init__(
        self,
        kernel: Launchable,
        data: DeviceProblem,
        tell: Tell,
        *,
        bitwise: bool,
        best_us: float | None = None,
    ) -> None:
        self.kernel, self.data = kernel, data
        self.backend: Backend = data.backend
        self.proof = Proof(data.seeds)
        self.estimate_us = 0.0
        self.targets: list[DeviceTarget] = []
        self.timer: RoundTimer | None = None
        self._tell, self._bitwise, self._best_us = tell, bitwise, best_us
        self._workspace: DeviceBuffer | None = None

    # -- proof ------------------------------------------------------------------------------------------

    def verify(self, *, timed_only: bool = False) -> None:
        """The problem itself, then its neighbours; or only the case that is timed. Raises VerifyFailure, or
        UnsuitableError."""
        for number, prepared in enumerate(self.data.mains):
            if timed_only and number == 0:
                continue
            reason = skip_reason(self.kernel, prepared)
            if reason is not None:
                raise UnsuitableError(reason)
            repeat = self._bitwise and (number == 1 or self.data.problem.flops < _LONG_FLOPS)
            self._case(prepared, repeat=int(repeat))
        for prepared in () if timed_only else self.data.neighbours:
            self._case(prepared, repeat=int(self._bitwise))

    def _case(self, prepared: DeviceCase, *, repeat: int) -> None:
        try:
            result = check_device_case(
                self.kernel, prepared, self.backend.memory, self._announce, repeat=repeat
            )
        except VerifyFailure as failure:
            self.proof.checks.append({**prepared.case.to_json(), "passed": False, "reason": failure.reason})
            raise
        self.proof.add(result)
        if prepared is self.data.mains[1] and result.run_us is not None:
            # With what the host needs for a launch and a wait: enough to say how long rounds may take.
            self.estimate_us = result.run_us

    def _announce(self, case: Case) -> None:
        problem = case.problem
        best = self._best_us if case.name.startswith("main") else None
        limit = gpu_limit_s(problem.flops, problem.min_bytes, best) + self._checking_s(case)
        self._tell({"phase": "verify", "case": case.to_json(), "limit_s": limit})

    def _checking_s(self, case: Case) -> float:
        return 2.0 + _CHECK_S_PER_BYTE * 8 * case.problem.batch * case.problem.m * case.problem.n

    # -- time -------------------------------------------------------------------------------------------

    def bind_sets(self) -> None:
        """Outputs for every set of buffers, poisoned, and one workspace, as a program would have it."""
        # A slow kernel does not go round hundreds of sets to be found slow.
        sets = self.data.sets[: max(2, int(MOST_ROUND_US / max(1.0, self.estimate_us)))]
        self._tell({"phase": "bind", "limit_s": 15.0 + 0.05 * len(sets)})
        size = workspace_bytes(self.kernel, sets[0].case)
        if size:
            self._workspace = new_workspace(size, self.backend.memory)
        self.targets = [DeviceTarget(self.kernel, one, self.backend.memory, self._workspace) for one in sets]

    def sampler(self) -> RoundSampler:
        """Rounds of all sets, repeated until one is long enough to be timed."""
        runs: list[Run] = [target.run_once for target in self.targets]
        self.alive()
        launch = self.data.policy.launch
        # Warm caches of instructions and tables; the estimate decides only how long a round is.
        timer = self.backend.timer(runs, launch)
        self.estimate_us = min(timer.time_us() for _ in range(3))
        self.alive()
        repeats = 1
        if self.data.flush is None and self.estimate_us > 0:
            wanted = int(ROUND_US / (self.estimate_us * len(runs))) + 1
            repeats = min(MOST_REPEATS, max(1, wanted))
        if repeats > 1:
            runs *= repeats
            timer = self.backend.timer(runs, launch)
        self.timer = timer
        return RoundSampler(timer, self.data, len(runs))

    def warm_up(self, sampler: RoundSampler) -> None:
        """Run until the clocks have settled."""
        spent = 0.0
        while spent < WARM_UP_S:
            self.alive()
            spent += max(1.0, sampler.sample(1) * sampler._runs) * 1e-6

    def alive(self) -> None:
        """The next round, or the next output to be looked at, comes now."""
        problem = self.data.problem
        one = gpu_limit_s(problem.flops, problem.min_bytes, self.estimate_us or self._best_us)
        # A few rounds at a time, each of all sets, at a fifth of the speed that is expected.
        rounds = 20.0 * len(self.targets) * self.estimate_us * 1e-6
        limit = 2.0 + one + rounds + self._checking_s(self.data.mains[1].case)
        self._tell({"phase": "time", "limit_s": limit})

    def halfway(self) -> None:
        """A kernel that stopped computing while it is timed leaves this one poisoned."""
        random.Random(self.data.seed).choice(self.targets).poison()

    def check_after(self) -> None:
        """What was timed was computed: outputs of every set that ran, then of fresh runs; inputs unharmed."""
        memory = self.backend.memory
        memory.synchronize()
        ran = [target for target in self.targets if target.runs or self.data.policy.launch == "graph"]
        self._compare(ran)
        again = ran[:_MOST_RERUN_SETS]
        for target in again:
            target.poison()
            target.run_once()
        memory.synchronize()
        self._compare(again)
        self.data.check_inputs()
        self.proof.checks.append(
            {"case": "after timing", "passed": True, "sets": len(ran), "again": len(again)}
        )

    def _compare(self, targets: list[DeviceTarget]) -> None:
        """All sets hold the same numbers: equal to a right one is right."""
        xp = self.backend.memory.xp
        first: Any = None
        for target in targets:
            self.alive()
            try:
                words = unsigned(xp.ascontiguousarray(target.output()))
                if self._bitwise and first is not None and bool((words == first).all()):
                    target.check_margins()
                    continue
                target.check()
                first = words
            except VerifyFailure as failure:
                failure.evidence["when"] = "after timing"
                self.proof.checks.append({"case": "after timing", "passed": False, "reason": failure.reason})
                raise

    def facts(self) -> dict[str, Any]:
        """What to record beside its times."""
        timer = self.timer
        if timer is None:
            return {}
        return {"method": timer.method, "host_us": timer.host_us, "kernels": timer.kernels()}

    # -- all of it --------------------------------------------------------------------------------------

    def trial(self, order: CudaOrder) -> dict[str, Any]:
        """The whole life of a candidate; its outcome as a message."""
        started_at = datetime.now(UTC)
        self.verify()
        self.bind_sets()
        sampler = self.sampler()
        self.warm_up(sampler)
        timing = self._time(sampler, order)
        self.check_after()
        data = self.data
        measured = timing.to_json()
        verdict = self.proof.to_json(True)
        wrong = impossible(
            measured["samples_us"], data.problem.flops, data.read_bytes, order.roof, cold=data.policy.cold
        )
        if wrong is not None:
            return failed("invalid_time", wrong, verdict)
        measured["started_at"] = started_at.isoformat()
        measured["policy"] = data.policy.to_json()
        measured["environment"] |= {"rotation": data.rotation.to_json(data.set_bytes), **self.facts()}
        measured["environment"]["sets_used"] = len(self.targets)
        return {"status": "measured", "verdict": verdict, "measurement": measured, "culled": timing.culled}

    def _time(self, sampler: RoundSampler, order: CudaOrder) -> Timing:
        timing = collect(
            sampler,
            self.backend.watch,
            estimate_us=self.estimate_us,
            best_us=order.best_us,
            budget_s=order.budget_s,
            halfway=self.halfway,
            alive=self.alive,
        )
        sampler.sample(1)  # the output that was poisoned halfway may have been the last thing
        return timing


def load(order: CudaOrder, data: DeviceProblem, tell: Tell) -> DeviceCandidate:
    """The candidate of an order, its cubin loaded."""
    tell({"phase": "load", "limit_s": 15.0})
    kernel = data.backend.kernel(order.path, order.plan)
    return DeviceCandidate(kernel, data, tell, bitwise=order.plan.deterministic, best_us=order.best_us)


class Poisoned(Exception):  # the process must end
    """The context is dead after this outcome."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__(outcome["reason"])
        self.outcome = outcome


def guarded(
    action: Callable[[], dict[str, Any]], backend: Backend, proof: Callable[[], Proof | None]
) -> dict[str, Any]:
    """The outcome of an action on the device, whatever happens. Raises Poisoned where the context died of
    it."""
    try:
        return action()
    except VerifyFailure as failure:
        known = proof()
        return failed(failure.reason, failure.evidence, None if known is None else known.to_json(False))
    except Exception as error:  # noqa: BLE001 - every way to fail has a name
        return device_failure(error, backend)


def device_failure(error: Exception, backend: Backend) -> dict[str, Any]:
    """The outcome that an exception stands for. Raises Poisoned for a CUDA error that sticks."""
    text = f"{type(error).__name__}: {error}"
    found = backend.verdict_of(error)
    if found is not None:
        reason, lives = found
        outcome = failed(reason, {"message": text})
        if not lives:
            raise Poisoned(outcome) from None
        return outcome
    if isinstance(error, MemoryError):
        return failed("out_of_memory", {"message": str(error) or "the device had not enough memory"})
    if isinstance(error, (UnsuitableError, PlanError)):
        return failed("plan_invalid", {"message": text})
    if isinstance(error, (LaunchError, ArtifactError, DeviceError)):
        return failed("launch_error", {"message": text})
    return failed("internal_error", {"message": text, "trace": traceback.format_exc()[-4000:]})
