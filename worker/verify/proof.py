"""How does an emulation run so that it can be paused for a measurement, and killed when it does not end?"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from service.store.enums import TrialReason, VerdictKind
from service.store.records import Emulated, EmulateOutcome, Undecided, VerdictRecord
from worker.endings import how_ended, killed_from_outside

# An outcome is some kilobytes; what goes on beyond this is no outcome.
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class ProofLimits:
    """Of one emulation. Seconds count while it runs, not while it is paused."""

    seconds: float = 300.0
    run_s: float = 120.0
    """Of one problem in one order."""
    memory_bytes: int = 4 << 30


DEFAULT_LIMITS = ProofLimits()


class ProofProcess:
    """One `worker.verify.proof_main`. Leaving the context kills whatever of it is left."""

    def __init__(self, task: Mapping[str, Any], limits: ProofLimits = DEFAULT_LIMITS) -> None:
        self._task = task
        self._limits = limits
        self._output = bytearray()
        self._started: float | None = None
        self.ran_s = 0.0
        self.killed = False
        """Somebody else ended it before it gave an outcome: the schedule is not to blame."""

    def __enter__(self) -> Self:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "ROOFTILE_TOKEN"},
            # The small float64 products must not take the cores of others.
            "OPENBLAS_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "PYTHONSAFEPATH": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "worker.verify.proof_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._started = time.monotonic()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limits = {"memory_bytes": self._limits.memory_bytes, "run_s": self._limits.run_s}
        task = {**self._task, **limits, "parent_pid": os.getpid()}
        with contextlib.suppress(BrokenPipeError):  # its end says more
            self._process.stdin.write(json.dumps(task).encode())
            self._process.stdin.close()
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float) -> EmulateOutcome | None:
        """Let it run for so long at most; its outcome, or None while it has none."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not self._selector.select(left):
                break
            if not self._read():
                self._process.wait()
                return self._outcome()
            if len(self._output) > _MOST_BYTES:
                return Undecided(TrialReason.EMULATE_CRASH, {"message": "Its outcome did not end."})
        if self.seconds >= self._limits.seconds:
            message = f"The emulator was killed after {self._limits.seconds:g} s."
            return Undecided(TrialReason.EMULATE_TIMEOUT, {"message": message}, self.seconds)
        return None

    @property
    def seconds(self) -> float:
        """How long it has run, pauses left out."""
        running = 0.0 if self._started is None else time.monotonic() - self._started
        return self.ran_s + running

    def pause(self) -> None:
        """Stop it where it is."""
        if self._started is not None:
            self.ran_s = self.seconds
            self._started = None
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After a pause."""
        if self._started is None:
            self._started = time.monotonic()
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> bool:
        """False at the end of its output."""
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._output += data
        return bool(data)

    def _outcome(self) -> EmulateOutcome:
        code = self._process.returncode
        try:
            told = json.loads(bytes(self._output))
        except ValueError:
            self.killed = killed_from_outside(code)
            message = f"The emulator's process {how_ended(code)} and gave no outcome."
            evidence = {"message": message, "returncode": code}
            return Undecided(TrialReason.EMULATE_CRASH, evidence, self.seconds)
        return outcome_of(told, self.seconds)


def outcome_of(told: Mapping[str, Any], seconds: float) -> EmulateOutcome:
    """What a process wrote, as the store takes it."""
    if "undecided" in told:
        return Undecided(TrialReason(told["undecided"]), dict(told["evidence"]), seconds)
    verdict = VerdictRecord(
        kind=VerdictKind.EMULATED,
        passed=bool(told["passed"]),
        seeds=tuple(told["seeds"]),
        checks=tuple(told["checks"]),
        max_error=told["max_error"],
        bound=told["bound"],
    )
    reason = None if told["reason"] is None else TrialReason(told["reason"])
    return Emulated(verdict, dict(told["counters"]), float(told["seconds"]), reason, dict(told["evidence"]))
