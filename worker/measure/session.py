"""How does a worker have a candidate verified and timed without ever running it itself?"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from rooftile.device import local_cpu, parse_device_key
from rooftile.plan import LaunchPlan
from rooftile.problem import Problem

from service.store.enums import TrialReason
from service.store.records import Failed, Measured, RaceOutcome
from worker.errors import ChildLostError, TrialCancelled
from worker.measure.blas import clean_environment
from worker.measure.channel import LineReader, send
from worker.measure.oom import oom_kills
from worker.measure.outcomes import failed, lost, race_outcome, trial_outcome

_log = structlog.get_logger("rooftile.measure")

Cancelled = Callable[[], bool]

# How often `cancelled()` is asked, and how long the child may take to obey before it is killed.
_ASK_S = 0.2
_OBEY_S = 0.7
# The child has a deadline for every step of a candidate; this is for the child itself.
_SILENCE_S = 600.0
_ROOF_AGAIN_S = 15.0
# Before five in a row make the search ask whether it is the device.
_REPLACE_AFTER = 4
_MAYBE_NOT_ITS_FAULT = frozenset(
    {TrialReason.CRASH, TrialReason.HANG, TrialReason.LAUNCH_ERROR, TrialReason.INVALID_TIME}
)
_ROOF_RULES = frozenset({"compute_roof", "memory_roof"})


@dataclass(frozen=True)
class RaceEntrant:
    """One runner of a race. The Baseline has role `baseline` and no artifact."""

    name: str
    role: str
    trial_id: int | None = None
    plan: LaunchPlan | None = None
    so_path: Path | None = None
    pool_path: Path | None = None


@dataclass(frozen=True)
class Tools:
    """Paths of the helper artifacts; None where there was no compiler for them."""

    guard: Path | None = None
    calibrate: Path | None = None
    pool: Path | None = None


class MeasureSession:
    """One measuring process (and its candidates, one process each). Use as a context manager.

    `roof` is what `measure_roof()` gave before (None: times are judged only by being positive and finite).
    With `tools` a fault is told with its address, and the roof can be measured.
    """

    def __init__(
        self,
        device_key: str,
        *,
        threads: int | None = None,
        roof: Mapping[str, Any] | None = None,
        tools: Tools | None = None,
        budget_s: float | None = None,
        race_budget_s: float | None = None,
    ) -> None:
        cpu = local_cpu()
        key = parse_device_key(device_key)
        self.device_key = device_key
        self.arch = getattr(key, "arch", cpu.arch)
        self.threads = threads if threads is not None else cpu.cores
        self.roof: dict[str, Any] | None = dict(roof) if roof is not None else None
        self.tools = tools or Tools()
        self._llc_bytes = cpu.llc_total_bytes or cpu.llc_bytes
        self._budget_s = budget_s
        self._race_budget_s = race_budget_s
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: LineReader | None = None
        self._number = 0
        self._roof_checked_at = -1e9
        self._oom_kills = 0
        self._bad_in_a_row = 0
        self.restarts = 0

    # -- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the measuring process; its candidates die with it."""
        child, self._child, self._reader = self._child, None, None
        if child is None:
            return
        if child.poll() is None:  # else its number may belong to somebody else by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def restart(self) -> None:
        """A fresh measuring process (AT-07)."""
        self.close()
        self.restarts += 1

    def _suspect(self, outcome: Measured | Failed) -> None:
        """Candidates are forked from the measuring process: when it is ill, each of them dies of that."""
        bad = isinstance(outcome, Failed) and outcome.reason in _MAYBE_NOT_ITS_FAULT
        self._bad_in_a_row = self._bad_in_a_row + 1 if bad else 0
        if self._bad_in_a_row >= _REPLACE_AFTER:
            _log.warning("replacing the measuring process", failures_in_a_row=self._bad_in_a_row)
            self._bad_in_a_row = 0
            self.restart()

    @property
    def child_pid(self) -> int | None:
        """The measuring process, once it was needed."""
        return None if self._child is None else self._child.pid

    def _start(self) -> tuple[subprocess.Popen[bytes], LineReader]:
        if self._child is None or self._reader is None or self._child.poll() is not None:
            self.close()
            # One BLAS thread: this process forks, and a process with threads must not.
            environment = clean_environment(1)
            root = str(Path(__file__).resolve().parents[2])
            environment["PYTHONPATH"] = os.pathsep.join(
                part for part in (root, environment.get("PYTHONPATH")) if part
            )
            guard = str(self.tools.guard) if self.tools.guard is not None else ""
            self._child = subprocess.Popen(
                [sys.executable, "-m", "worker.measure.child", str(os.getpid()), guard],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            assert self._child.stdout is not None
            self._reader = LineReader(self._child.stdout.fileno())
        return self._child, self._reader

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
        limit_s: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> Measured | Failed:
        """Verify, time, verify again. Raises TrialCancelled within a second of `cancelled()`."""
        started = time.monotonic()
        request = {
            **self._common(problem, policy, seed),
            "op": "trial",
            "plan": plan.to_json(),
            "so_path": str(so_path),
            "pool_path": str(pool_path),
            "best_us": best_us,
            "budget_s": self._budget_s,
        }
        try:
            answer = self._ask_twice(request, limit_s or _SILENCE_S, cancelled)
            if self._beats_roof(answer) and self._raise_roof(cancelled):
                # Our roof was too low (it was measured on a busy machine): judge again by the better one.
                answer = self._ask({**request, "roof": self.roof}, limit_s or _SILENCE_S, cancelled)
        except ChildLostError as error:
            return lost(error, time.monotonic() - started)
        outcome = trial_outcome(answer, time.monotonic() - started)
        self._suspect(outcome)
        return outcome

    def race(
        self,
        problem: Problem,
        entrants: Sequence[RaceEntrant],
        policy: Mapping[str, Any],
        seed: int,
        rounds: int | None = None,
        *,
        limit_s: float | None = None,
        cancelled: Cancelled | None = None,
    ) -> RaceOutcome | Failed:
        """All entrants in turns, one process each, in shuffled order, until the noise is small.

        Each result's `measurement.environment["round_medians_us"]` has one median for each round (null where
        the entrant had failed by then), in the same order for all, so that ratios can be taken by round.
        `noise` is {"pair": [name, twin's name], "ratios": [twin / name of each round], "median_ratio": x,
        "q10": x, "q90": x, "relative": r, "rounds": n}: differences below `relative` (of the time) are none.
        Without a twin that ran, "pair" is null and "relative" is a cautious default.
        """
        started = time.monotonic()
        request = {
            **self._common(problem, policy, seed),
            "op": "race",
            "rounds": rounds,
            "budget_s": self._race_budget_s,
            "pool_path": str(self.tools.pool) if self.tools.pool is not None else None,
            "entrants": [
                {
                    "name": entrant.name,
                    "role": entrant.role,
                    "plan": None if entrant.plan is None else entrant.plan.to_json(),
                    "so_path": None if entrant.so_path is None else str(entrant.so_path),
                    "pool_path": None if entrant.pool_path is None else str(entrant.pool_path),
                }
                for entrant in entrants
            ],
        }
        try:
            answer = self._ask_twice(request, limit_s or 2 * _SILENCE_S, cancelled)
            failures = [one["failure"] for one in answer.get("entrants", ()) if one["failure"] is not None]
            if any(self._beats_roof(failure) for failure in failures) and self._raise_roof(cancelled):
                answer = self._ask({**request, "roof": self.roof}, limit_s or 2 * _SILENCE_S, cancelled)
        except ChildLostError as error:
            return lost(error, time.monotonic() - started)
        if answer["status"] == "failed":
            return failed(answer, time.monotonic() - started)
        return race_outcome(answer, entrants, time.monotonic() - started)

    def measure_roof(self, rounds: int = 5, *, cancelled: Cancelled | None = None) -> dict[str, Any]:
        """Measure the device's roof, keep it and return it. Raises ChildLostError where that fails."""
        if self.tools.calibrate is None or self.tools.pool is None:
            raise ChildLostError(
                "The calibration kernel is missing, so the device's roof cannot be measured."
            )
        answer = self._ask(
            {
                "op": "roof",
                "tool_path": str(self.tools.calibrate),
                "pool_path": str(self.tools.pool),
                "arch": self.arch,
                "threads": self.threads,
                "llc_bytes": self._llc_bytes,
                "rounds": rounds,
            },
            120.0,
            cancelled,
        )
        if answer["status"] != "roof":
            raise ChildLostError(
                f"The device's roof could not be measured: {answer['evidence'].get('message')}"
            )
        self._roof_checked_at = time.monotonic()
        fresh = {key: value for key, value in answer.items() if key != "status"}
        fresh |= {"dtype": "f32", "measured_at": datetime.now(UTC).isoformat()}
        old = self.roof or {}
        if old.get("threads") == fresh["threads"]:
            # The roof is the most that was ever seen: a busy hour does not lower it.
            for name in ("gflops", "read_gbps"):
                fresh[name] = max(float(old.get(name) or 0.0), float(fresh[name]))
        self.roof = fresh
        return fresh

    @property
    def roof_is_doubtful(self) -> bool:
        """It was measured on a busy machine, and not just now."""
        busy = self.roof is not None and bool(self.roof.get("contended"))
        return busy and time.monotonic() - self._roof_checked_at > _ROOF_AGAIN_S

    def _raise_roof(self, cancelled: Cancelled | None) -> bool:
        """Measure the roof again; True when it went up. Not each time: a kernel may really be impossible."""
        if self.tools.calibrate is None or time.monotonic() - self._roof_checked_at < _ROOF_AGAIN_S:
            return False
        before = dict(self.roof or {})
        try:
            self.measure_roof(cancelled=cancelled)
        except ChildLostError:
            return False
        now = self.roof or {}
        return any(
            float(now.get(name) or 0.0) > float(before.get(name) or 0.0) for name in ("gflops", "read_gbps")
        )

    @staticmethod
    def _beats_roof(answer: Mapping[str, Any]) -> bool:
        return answer.get("reason") == "invalid_time" and answer["evidence"].get("rule") in _ROOF_RULES

    def _common(self, problem: Problem, policy: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {
            "problem": problem.to_json(),
            "policy": dict(policy),
            "seed": seed,
            "threads": self.threads,
            "arch": self.arch,
            "llc_bytes": self._llc_bytes,
            "roof": self.roof,
            "tool_path": str(self.tools.calibrate) if self.tools.calibrate is not None else None,
        }

    def _ask_twice(
        self, message: Mapping[str, Any], limit_s: float, cancelled: Cancelled | None
    ) -> dict[str, Any]:
        """A measuring process that was lost is no candidate's fault: a fresh one gets the request too."""
        try:
            return self._ask(message, limit_s, cancelled)
        except ChildLostError as error:
            _log.warning("asking a fresh measuring process", error=str(error))
            self.restarts += 1
            return self._ask(message, limit_s, cancelled)

    def _ask(self, message: Mapping[str, Any], limit_s: float, cancelled: Cancelled | None) -> dict[str, Any]:
        child, reader = self._start()
        assert child.stdin is not None
        self._number += 1
        self._oom_kills = oom_kills()
        deadline = time.monotonic() + limit_s
        try:
            send(child.stdin.fileno(), {**message, "id": self._number})
        except BrokenPipeError:
            raise self._gone(child) from None
        while True:
            line = reader.pop()
            if line is not None:
                answer = json.loads(line)
                if answer["id"] == self._number:
                    result: dict[str, Any] = answer["result"]
                    return result
                continue
            if reader.closed:
                raise self._gone(child)
            if cancelled is not None and cancelled():
                self._cancel(child, reader)
                raise TrialCancelled("cancelled while it was measured")
            if time.monotonic() > deadline:
                self.close()
                raise ChildLostError(
                    f"The measuring process gave no answer within {limit_s:g} s and was replaced."
                )
            ready, _, _ = select.select([reader.descriptor], [], [], _ASK_S)
            if ready:
                reader.feed()

    def _cancel(self, child: subprocess.Popen[bytes], reader: LineReader) -> None:
        """Ask the child to drop what it does; kill it when it is too busy to listen."""
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            send(child.stdin.fileno(), {"op": "cancel"})
            if reader.wait(_OBEY_S) is not None:
                return
        self.close()

    def _gone(self, child: subprocess.Popen[bytes]) -> ChildLostError:
        status = child.wait()
        self.close()
        if status == -signal.SIGKILL and oom_kills() > self._oom_kills:
            return ChildLostError(
                "The measuring process was killed for want of memory and replaced.", memory=True
            )
        how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return ChildLostError(f"The measuring process {how} and was replaced.")
