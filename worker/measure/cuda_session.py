"""How does a worker have a CUDA candidate verified and timed without ever touching the GPU itself?

The worker's side of cuda_child.py. It opens the measuring process with this one GPU visible, watches the
limits that are told before each step, kills the process group of who overruns, and says of each end whose it
was. What a candidate leaves behind, a dead context or a spinning kernel, ends with its process; the next one
meets a fresh one, after the device was found healthy.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from service.store.records import Failed, Measured, RaceOutcome
from worker.errors import ChildLostError, DeviceUnhealthyError, TrialCancelled
from worker.measure.candidate import failed as failed_answer
from worker.measure.channel import LineReader, send
from worker.measure.cuda_health import IDLE_WAIT_S
from worker.measure.oom import oom_kills
from worker.measure.outcomes import failed, lost, race_outcome, trial_outcome
from worker.measure.session import Cancelled, RaceEntrant
from worker.verify.cases import Case

_log = structlog.get_logger("rooftile.measure")

# How often `cancelled()` is asked.
_ASK_S = 0.2
# A process that is killed ends at once, unless the driver still waits for the device.
_KILL_WAIT_S = 15.0
# Of steps in which no candidate runs: what dies there is nobody's fault.
_OURS = frozenset({"start", "open", "prepare"})
_START_S = 60.0
# What makes the vendor's library, or every launch, slower than it is, or another library than it is.
HANDICAPS = (
    "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE",
    "CUBLASLT_DISABLE_TENSOR_OP", "CUBLAS_LOGINFO_DBG", "CUBLASLT_LOG_LEVEL", "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATION_STRATEGY", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUPY_TF32", "CUPY_ACCELERATORS", "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    "CUDA_INJECTION64_PATH",
)  # fmt: skip


class _Ended(Exception):  # an outcome
    """The process is gone: the answer that stands for it, the step it was in, whether that was a
    candidate's."""

    def __init__(self, answer: dict[str, Any], step: Mapping[str, Any]) -> None:
        super().__init__(answer["reason"])
        self.answer = answer
        self.step = dict(step)

    @property
    def ours(self) -> bool:
        return self.step.get("phase") in _OURS


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    reader: LineReader
    step: dict[str, Any] = field(default_factory=lambda: {"phase": "start"})
    deadline: float = 0.0
    oom_kills: int = 0


class CudaSession:
    """One measuring process on one GPU. Use as a context manager; called like a MeasureSession."""

    roof_is_doubtful = False

    def __init__(
        self,
        device_key: str,
        uuid: str,
        *,
        roof: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        budget_s: float | None = None,
        race_budget_s: float | None = None,
        idle_wait_s: float = IDLE_WAIT_S,
        backend: str | None = None,
    ) -> None:
        """`roof` is {"gflops": {dtype: peak}, "read_gbps": rate} of the product (None: times are judged only
        by being positive and finite); `facts` go beside each measurement. `backend` names another
        module:function than CuPy's, for tests."""
        self.device_key = device_key
        self.uuid = uuid
        self.roof: dict[str, Any] | None = dict(roof) if roof is not None else None
        self._facts = dict(facts or {})
        self._budget_s, self._race_budget_s = budget_s, race_budget_s
        self._backend = backend
        self._idle_wait_s = idle_wait_s
        self._child: _Child | None = None
        self._number = 0
        self.restarts = 0

    # -- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def child_pid(self) -> int | None:
        """The measuring process, once it was needed."""
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        """End the measuring process and all it started. DeviceUnhealthyError where the driver does not let it
        go."""
        child, self._child = self._child, None
        if child is None:
            return
        process = child.process
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            raise DeviceUnhealthyError(
                f"The measuring process {process.pid} on {self.device_key} was killed and does not end: "
                "the driver still waits for the device."
            ) from None

    def open(self) -> dict[str, Any]:
        """Start the measuring process where there is none, and have it look at the device's health."""
        if self._child is not None and self._child.process.poll() is None:
            return {}
        self.close()
        self._child = self._start()
        try:
            answer = self._request(
                {
                    "op": "open",
                    "uuid": self.uuid,
                    "facts": self._facts,
                    "backend": self._backend,
                    "idle_wait_s": self._idle_wait_s,
                    "sheet_gbs": (self.roof or {}).get("read_gbps"),
                },
                None,
            )
        except _Ended as end:
            raise ChildLostError(
                f"The measuring process did not open the device: {_text(end.answer)}"
            ) from None
        self._unhealthy(answer)
        if answer["status"] != "open":
            raise ChildLostError(f"The measuring process did not open the device: {_text(answer)}")
        return answer

    def _start(self) -> _Child:
        environment = {name: value for name, value in os.environ.items() if name not in HANDICAPS}
        # Device 0 of the child is this GPU, whatever the order of the others.
        environment["CUDA_VISIBLE_DEVICES"] = self.uuid
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (root, environment.get("PYTHONPATH")) if part
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "worker.measure.cuda_child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        child = _Child(process, LineReader(process.stdout.fileno()), oom_kills=oom_kills())
        child.deadline = time.monotonic() + _START_S
        return child

    # -- requests ---------------------------------------------------------------------------------------

    def trial(
        self,
        problem: Problem,
        plan: LaunchPlan,
        so_path: Path,
        pool_path: Path | None,
        policy: Mapping[str, Any],
        seed: int,
        best_us: float | None = None,
        *,
        cancelled: Cancelled | None = None,
    ) -> Measured | Failed:
        """Verify, time, verify again. Raises TrialCancelled within a second of `cancelled()`."""
        started = time.monotonic()
        request = {
            **self._common(problem, policy, seed),
            "op": "trial",
            "plan": plan.to_json(),
            "so_path": str(so_path),
            "best_us": best_us,
            "budget_s": self._budget_s,
        }
        try:
            answer = self._ask(request, cancelled)
        except ChildLostError as error:
            return lost(error, time.monotonic() - started)
        return trial_outcome(answer, time.monotonic() - started)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[RaceEntrant],
        policy: Mapping[str, Any],
        seed: int,
        rounds: int | None = None,
        *,
        cancelled: Cancelled | None = None,
    ) -> RaceOutcome | Failed:
        """All entrants in turns, in shuffled order, until the noise is small; the result as MeasureSession's.
        An entrant that takes the process with it is out, and the others race again."""
        started = time.monotonic()
        out: dict[str, dict[str, Any]] = {}
        while True:
            racing = [one for one in entrants if one.name not in out]
            request = {
                **self._common(problem, policy, seed),
                "op": "race",
                "rounds": rounds,
                "budget_s": self._race_budget_s,
                "entrants": [
                    {
                        "name": one.name,
                        "role": one.role,
                        "plan": None if one.plan is None else one.plan.to_json(),
                        "so_path": None if one.so_path is None else str(one.so_path),
                    }
                    for one in racing
                ],
            }
            try:
                answer = self._once(request, cancelled)
                break
            except _Ended as end:
                name = end.step.get("entrant")
                if end.ours or name is None or name in out:
                    return lost(ChildLostError(_text(end.answer)), time.monotonic() - started)
                _log.warning(
                    "an entrant took the measuring process with it", entrant=name, why=_text(end.answer)
                )
                out[str(name)] = end.answer
            except ChildLostError as error:
                return lost(error, time.monotonic() - started)
        if answer["status"] == "failed":
            return failed(answer, time.monotonic() - started)
        found = {one["name"]: one for one in answer["entrants"]}
        for name, failure in out.items():
            found[name] = {"name": name, "measurement": None, "verdict": None, "failure": failure}
        answer["entrants"] = [found[one.name] for one in entrants]
        return race_outcome(answer, entrants, time.monotonic() - started)

    def verify(
        self, plan: LaunchPlan, so_path: Path, cases: Sequence[Case], *, repeat: int = 2
    ) -> dict[str, Any]:
        """Run a kernel on these cases, each `repeat` times more, and judge: {"status": "verified", "checks":
        [...]} or a failure with its reason and evidence. ChildLostError where it was nobody's fault."""
        return self._ask(
            {
                "op": "verify",
                "plan": plan.to_json(),
                "so_path": str(so_path),
                "repeat": repeat,
                "cases": [{**asdict(case), "problem": case.problem.to_json()} for case in cases],
            },
            None,
        )

    # -- asking -----------------------------------------------------------------------------------------

    def _common(self, problem: Problem, policy: Mapping[str, Any], seed: int) -> dict[str, Any]:
        roof = None
        if self.roof is not None:
            dtype = getattr(problem, "dtype", None)
            peak = self.roof.get("gflops", {}).get(getattr(dtype, "a", ""), 0.0)
            roof = {"gflops": peak, "read_gbps": self.roof.get("read_gbps")}
        return {"problem": problem.to_json(), "policy": dict(policy), "seed": seed, "roof": roof}

    def _ask(self, message: Mapping[str, Any], cancelled: Cancelled | None) -> dict[str, Any]:
        """The answer; a process that died of a candidate is one. ChildLostError where it was nobody's fault,
        twice."""
        for attempt in range(2):
            try:
                return self._once(message, cancelled)
            except _Ended as end:
                if not end.ours:
                    return end.answer
                if attempt:
                    raise ChildLostError(_text(end.answer)) from None
                _log.warning("asking a fresh measuring process", why=_text(end.answer))
        raise AssertionError("unreachable")

    def _once(self, message: Mapping[str, Any], cancelled: Cancelled | None) -> dict[str, Any]:
        self.open()
        answer = self._request(message, cancelled)
        self._unhealthy(answer)
        return answer

    def _unhealthy(self, answer: Mapping[str, Any]) -> None:
        if answer["status"] == "unhealthy":
            self.close()
            raise DeviceUnhealthyError(f"The device {self.device_key} is not fit: {answer['message']}")

    def _request(self, message: Mapping[str, Any], cancelled: Cancelled | None) -> dict[str, Any]:
        """One request to the child that there is. Raises _Ended when the process is gone."""
        child = self._child
        assert child is not None
        assert child.process.stdin is not None
        self._number += 1
        child.step = {"phase": "start"}
        child.deadline = time.monotonic() + _START_S
        try:
            send(child.process.stdin.fileno(), {**message, "id": self._number})
        except BrokenPipeError:
            raise self._gone(child) from None
        while True:
            line = child.reader.pop()
            if line is not None:
                answer = self._take(child, line)
                if answer is not None:
                    return answer
                continue
            if child.reader.closed:
                raise self._gone(child)
            if cancelled is not None and cancelled():
                # It computes in this very process: there is nobody in it who would listen.
                self.close()
                raise TrialCancelled("cancelled while it was measured")
            left = child.deadline - time.monotonic()
            if left <= 0.0:
                raise self._hung(child)
            ready, _, _ = select.select([child.reader.descriptor], [], [], min(left, _ASK_S))
            if ready:
                child.reader.feed()

    def _take(self, child: _Child, line: str) -> dict[str, Any] | None:
        message = json.loads(line)
        if "phase" in message:
            child.deadline = time.monotonic() + float(message.pop("limit_s"))
            # The entrant stays known while it tells of its own steps.
            kept = {} if message["phase"] in _OURS else {"entrant": child.step.get("entrant")}
            child.step = {**{k: v for k, v in kept.items() if v is not None}, **message}
            return None
        if message.get("id") != self._number:
            return None
        result: dict[str, Any] = message["result"]
        if message.get("last"):
            step = dict(child.step)
            self.restarts += 1
            self.close()
            raise _Ended({**result, "evidence": {**result["evidence"], "step": step}}, step)
        return result

    def _hung(self, child: _Child) -> _Ended:
        step = dict(child.step)
        self.restarts += 1
        self.close()
        message = f"did not end within its limit in step {step.get('phase')} and was killed"
        return _Ended(failed_answer("hang", {"message": message, "step": step}), step)

    def _gone(self, child: _Child) -> _Ended:
        step = dict(child.step)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(2.0)
        status = child.process.poll()
        self.restarts += 1
        self.close()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            if -status == signal.SIGKILL and oom_kills() > child.oom_kills:
                text = "the kernel killed the measuring process for want of memory"
                return _Ended(failed_answer("out_of_memory", {"message": text, "step": step}), step)
            return _Ended(
                failed_answer(
                    "crash", {"message": f"its process died of {name}", "signal": name, "step": step}
                ),
                step,
            )
        text = f"its process ended with status {status}"
        return _Ended(failed_answer("crash", {"message": text, "status": status, "step": step}), step)


def _text(answer: Mapping[str, Any]) -> str:
    evidence = answer.get("evidence") or {}
    return (
        f"{answer.get('reason') or answer.get('status')}: {evidence.get('message') or answer.get('message')}"
    )
