"""What runs in the process of one emulation, which may be killed? `python -m worker.verify.proof_main`.

A task as JSON on stdin, the outcome as one JSON object on stdout. Everything that can go wrong inside becomes
an outcome; what ends the process itself, its parent sees.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.bus.child import die_with_parent
from service.store.enums import TrialReason

_NO_ROOM = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")
"""What the dynamic loader says of it."""


def main() -> int:
    task = json.loads(sys.stdin.buffer.read())
    die_with_parent(int(task["parent_pid"]))
    memory = int(task["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # Whatever a library prints must not stand in the outcome.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        outcome = prove_task(task)
    except Exception as error:  # noqa: BLE001 - whatever it is, one schedule's fault must not end the others
        outcome = _outcome_of(error, memory)
    with os.fdopen(out, "wb") as pipe:
        pipe.write(json.dumps(outcome, default=str).encode())
    return 0


def _outcome_of(error: Exception, memory: int) -> dict[str, Any]:
    # A library that finds no room to be loaded into is an ImportError.
    no_room = isinstance(error, ImportError) and any(text in str(error) for text in _NO_ROOM)
    if no_room or isinstance(error, MemoryError):
        message = f"The emulator needed more than {memory >> 20} MiB."
        return _undecided(TrialReason.EMULATE_MEMORY, {"message": message})
    trace = "".join(traceback.format_exception(error))[-8000:]
    message = f"{type(error).__name__}: {error}"
    return _undecided(TrialReason.INTERNAL_ERROR, {"message": message, "trace": trace})


def prove_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of one task, as JSON."""
    # Late: the parent knows at once that the process is there, and the limits hold for these too.
    from rooftile.problem import parse_problem

    from emulator import Limits, Order
    from search_space.device import Device
    from search_space.registry import get_family
    from search_space.schedule import Schedule
    from worker.verify.emulated import UndecidedError, prove

    seed = int(task["seed"])
    try:
        verdict = prove(
            Path(task["ptx"]).read_bytes(),
            get_family(str(task["family"])),
            parse_problem(task["problem"]),
            Device.from_json(task["device"]),
            Schedule.from_json(task["schedule"]),
            extra=(Order("random", seed),) if task["random"] else (),
            seed=seed,
            limits=Limits(seconds=float(task["run_s"])),
        )
    except UndecidedError as error:
        return _undecided(error.reason, error.evidence)
    return {
        "passed": verdict.passed,
        "reason": None if verdict.reason is None else str(verdict.reason),
        "seeds": list(verdict.seeds),
        "checks": [dict(check) for check in verdict.checks],
        "max_error": verdict.max_error,
        "bound": verdict.bound,
        "counters": dict(verdict.counters),
        "evidence": dict(verdict.evidence),
        "seconds": verdict.seconds,
    }


def _undecided(reason: TrialReason, evidence: Mapping[str, Any]) -> dict[str, Any]:
    return {"undecided": str(reason), "evidence": dict(evidence)}


if __name__ == "__main__":
    sys.exit(main())
