"""What is a GPU's measuring process? `python -m worker.measure.cuda_child PARENT_PID`, a line for each
request.

It owns the CUDA context and the inputs and references of the present problem, and runs candidates itself: a
context a candidate would cost a second each. The worker watches the limits that are told before each step,
and kills the whole process group of who overruns; a CUDA error that sticks is answered, and then the process
ends. Whatever the next candidate meets is fresh.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftile.plan import LaunchPlan
from rooftile.problem import Gemm, parse_problem

from service.bus import die_with_parent
from worker.measure.candidate import failed
from worker.measure.channel import LineReader, send
from worker.measure.cuda_backend import Backend
from worker.measure.cuda_candidate import CudaOrder, DeviceCandidate, Poisoned, device_failure, guarded, load
from worker.measure.cuda_health import Health, UnhealthyError
from worker.measure.cuda_problems import DeviceProblem, prepare_on_device
from worker.measure.cuda_race import run_device_race
from worker.measure.limits import gpu_limit_s
from worker.measure.policy import Policy
from worker.verify.cases import Case
from worker.verify.device_checks import check_device_case, prepare_device_case

_BACKEND = "worker.measure.cuda_backend:cupy_backend"
_PREPARE_S = 120.0
_CASE_FIELDS = ("name", "placement", "offset", "seed", "alpha", "beta", "pad", "align", "out_is_c")


class DeviceProcess:
    """The state between requests: the device, and prepared problems."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._backend: Backend | None = None
        self._health: Health | None = None
        self._ready: OrderedDict[str, DeviceProblem] = OrderedDict()

    def tell(self, message: Mapping[str, Any]) -> None:
        send(self._answers, message)

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises Poisoned with an answer after which the process must end."""
        op = message["op"]
        if op == "open":
            return self._open(message)
        assert self._backend is not None, "opened first"
        if op == "verify":
            return guarded(lambda: self._verify(message), self._backend, lambda: None)
        try:
            data = self._prepared(message)
        except UnhealthyError as error:
            return {"status": "unhealthy", "message": str(error)}
        except NotImplementedError as error:
            return failed("plan_invalid", {"message": str(error)})
        except Exception as error:  # noqa: BLE001 - no candidate has run: never its fault
            self._ready.clear()
            return device_failure(error, self._backend)
        if op == "race":
            return run_device_race(message, data, self.tell)
        candidates: list[DeviceCandidate] = []

        def trial() -> dict[str, Any]:
            order = CudaOrder.parse(message)
            candidates.append(load(order, data, self.tell))
            return candidates[0].trial(order)

        answer = guarded(trial, self._backend, lambda: candidates[0].proof if candidates else None)
        if answer["status"] == "failed" and "into the read-only" in str(answer["evidence"].get("where")):
            self._ready.clear()  # what all candidates read is spoilt
        return answer

    def _open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.tell({"phase": "open", "limit_s": 90.0})
        module, _, name = str(message.get("backend") or _BACKEND).partition(":")
        try:
            self._backend = getattr(importlib.import_module(module), name)(dict(message))
            self._health = Health(self._backend, message.get("sheet_gbs"), float(message["idle_wait_s"]))
            found = self._health.check()
        except UnhealthyError as error:
            return {"status": "unhealthy", "message": str(error)}
        return {"status": "open", "l2_bytes": self._backend.l2_bytes, **found}

    def _verify(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A kernel on cases of their own, without any timing."""
        assert self._backend is not None
        self.tell({"phase": "load", "limit_s": 15.0})
        backend, plan = self._backend, LaunchPlan.from_json(message["plan"])
        kernel = backend.kernel(Path(message["so_path"]), plan)
        rows: list[dict[str, Any]] = []
        for number, one in enumerate(message["cases"]):
            problem = parse_problem(one["problem"])
            assert isinstance(problem, Gemm)
            case = Case(problem=problem, **{name: one[name] for name in _CASE_FIELDS})
            limit = 10.0 + gpu_limit_s(problem.flops, problem.min_bytes, None)
            self.tell({"phase": "verify", "number": number, "case": case.to_json(), "limit_s": limit})
            prepared = prepare_device_case(case, backend.memory)
            result = check_device_case(
                kernel, prepared, backend.memory, lambda _: None, repeat=int(message["repeat"])
            )
            rows.append(result.to_json())
        return {"status": "verified", "checks": rows}

    def _prepared(self, message: Mapping[str, Any]) -> DeviceProblem:
        assert self._backend is not None
        assert self._health is not None
        policy = Policy.parse(message["policy"])
        seed = int(message["seed"])
        key = json.dumps([message["problem"], policy.to_json(), seed], sort_keys=True)
        found = self._ready.pop(key, None)
        if found is None:
            self.tell({"phase": "prepare", "limit_s": _PREPARE_S})
            self._ready.clear()  # room first: two problems at once might not fit
            self._health.check()
            found = prepare_on_device(message["problem"], policy, seed, self._backend)
        self._ready[key] = found
        return found


def main() -> int:
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    # What anybody prints goes to stderr: stdout is the protocol.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(answers, False)
    reader = LineReader(os.dup(0))
    process = DeviceProcess(answers)
    while True:
        line = reader.wait(3600.0)
        if line is None:
            if reader.closed:
                return 0
            continue
        message = json.loads(line)
        last = False
        started = time.monotonic()
        try:
            result = process.handle(message)
        except Poisoned as death:
            result, last = death.outcome, True
        except Exception as error:  # noqa: BLE001 - the worker is told, and asks again or not
            text = f"{type(error).__name__}: {error}"
            result = failed("internal_error", {"message": text, "trace": traceback.format_exc()[-4000:]})
        answer = {"id": message["id"], "result": result, "last": last, "device_s": time.monotonic() - started}
        send(answers, answer)
        if last:
            # Without the destructors: each would ask the dead context to give something back.
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
