"""What is the measuring process? `python -m worker.measure.child PARENT_PID`, a line for each request.

It imports numpy once, keeps the inputs and references of the present problem, has no threads when it forks,
and runs no candidate itself. Requests: `trial`, `race`, `roof`; `cancel` while one is under way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftile.launch.x86 import get_pool

from service.bus import die_with_parent
from worker.compile.capacity import usable_memory_bytes
from worker.measure.calibration import Calibrator
from worker.measure.candidate import Order, Tell, failed, outcome_of
from worker.measure.channel import LineReader, send
from worker.measure.machine import between, snapshot
from worker.measure.policy import FLOOR_BYTES, Policy
from worker.measure.problems import PreparedProblem, prepare
from worker.measure.process import Cancelled, CandidateProcess, Died, FaultGuard, Inbox, fork
from worker.measure.race import run_race
from worker.verify.arena import GuardedBuffer

_KEEP_BYTES = 512 << 20
# A roof needs two rounds during which the machine did nothing else; three times as many are tried.
_QUIET_ROUNDS = 2
_MOST_ROOF_FACTOR = 3


class MeasuringProcess:
    """The state between requests: prepared problems, and nothing of any candidate."""

    def __init__(self, guard: FaultGuard, inbox: Inbox) -> None:
        self._guard = guard
        self._inbox = inbox
        self._ready: OrderedDict[str, PreparedProblem] = OrderedDict()

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        op = message["op"]
        try:
            if op == "trial":
                return self._trial(message)
            if op == "race":
                return run_race(message, self._prepared(message), self._guard, self._inbox)
            if op == "roof":
                return self._roof(message)
        except Cancelled:
            return {"status": "cancelled"}
        except MemoryError as error:
            self._ready.clear()
            return failed(
                "out_of_memory", {"message": str(error) or "not enough memory to prepare the problem"}
            )
        except NotImplementedError as error:
            return failed("plan_invalid", {"message": str(error)})
        return failed("internal_error", {"message": f"unknown request {op!r}"})

    def _prepared(self, message: Mapping[str, Any]) -> PreparedProblem:
        policy = Policy.parse(message["policy"])
        seed = int(message["seed"])
        key = json.dumps([message["problem"], policy.to_json(), seed], sort_keys=True)
        found = self._ready.pop(key, None)
        if found is None:
            # Room first: both at once might not fit.
            while self._ready and self._kept_bytes() > _KEEP_BYTES:
                self._ready.popitem(last=False)
            found = prepare(message["problem"], policy, seed, message.get("llc_bytes"))
        self._ready[key] = found
        return found

    def _kept_bytes(self) -> int:
        return sum(data.set_bytes * (len(data.sets) + 1) for data in self._ready.values())

    def _trial(self, message: Mapping[str, Any]) -> dict[str, Any]:
        data = self._prepared(message)
        order = Order.parse(message)
        return self._one(
            fork(lambda tell, _commands: outcome_of(order, data, tell), self._guard, self._inbox)
        )

    def _roof(self, message: Mapping[str, Any]) -> dict[str, Any]:
        def work(tell: Tell, _commands: LineReader) -> dict[str, Any]:
            tell({"phase": "roof", "limit_s": 60.0})
            return measure_roof(message)

        return self._one(fork(work, self._guard, self._inbox))

    def _one(self, process: CandidateProcess) -> dict[str, Any]:
        try:
            answer = process.answer()
        except Died as death:
            return death.outcome
        process.close()
        return answer


def measure_roof(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arithmetic peak and memory bandwidth, each the best of many short runs spread over the time."""
    threads = int(message["threads"])
    pool = get_pool(message["pool_path"], threads)
    calibrator = Calibrator(Path(message["tool_path"]), pool, str(message["arch"]))
    llc = int(message.get("llc_bytes") or 0)
    wanted = max(4 * FLOOR_BYTES, 4 * llc)
    size = max(1 << 20, min(wanted, usable_memory_bytes() // 4))
    buffer = GuardedBuffer("stream", size, placement="start", offset=0)
    buffer.data()[:] = 0
    peaks: list[float] = []
    reads: list[float] = []
    rounds, quiet = int(message.get("rounds") or 5), 0
    for done in range(1, _MOST_ROOF_FACTOR * rounds + 1):
        before = snapshot()
        peaks += calibrator.peak_gflops(3)
        reads += calibrator.read_gbps(buffer, 3)
        quiet += between(before, snapshot(), threads).disturbed() is None
        if done >= rounds and quiet >= _QUIET_ROUNDS:
            break
    return {
        "contended": quiet < _QUIET_ROUNDS,
        "status": "roof",
        "gflops": max(peaks),
        "read_gbps": max(reads),
        "peaks": peaks,
        "reads": reads,
        "stream_bytes": size,
        "threads": threads,
        "cold_check": calibrator.cold_check(buffer),
    }


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
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    guard_path = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2] else None
    measuring = MeasuringProcess(FaultGuard(Path(guard_path) if guard_path else None), Inbox(reader))
    while True:
        line = reader.wait(3600.0)
        if line is None:
            if reader.closed:
                return 0
            continue
        message = json.loads(line)
        if message["op"] == "cancel":
            continue  # it came after the answer
        try:
            result = measuring.handle(message)
        except Exception as error:  # noqa: BLE001 - the worker is told, and asks again or not
            text = f"{type(error).__name__}: {error}"
            result = failed("internal_error", {"message": text, "trace": traceback.format_exc()[-4000:]})
        send(answers, {"id": message["id"], "result": result})


if __name__ == "__main__":
    sys.exit(main())
