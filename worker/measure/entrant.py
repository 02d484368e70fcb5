"""What does one runner of a race do in its own process: prove itself, then run in bursts when told?"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from worker.measure import machine
from worker.measure.candidate import Candidate, Order, Proof, Tell, failed, failure_of
from worker.measure.channel import LineReader
from worker.measure.problems import PreparedProblem
from worker.measure.timing import MOST_BATCH, Rotor, choose_batch
from worker.verify.checks import VerifyFailure

# Time of one turn of one entrant: long against waking threads, short against changes of the machine.
BURST_S = 0.03
MOST_RUNS = 60
# Longer runs do not need one to warm up, and would pay dearly for it.
_WARM_UP_BELOW_US = 20_000.0


class Runner(Protocol):
    """A kernel of ours or the Baseline, as a race sees them."""

    @property
    def proof(self) -> Proof: ...

    @property
    def estimate_us(self) -> float: ...

    @property
    def threads(self) -> int: ...

    def verify(self) -> None:
        """Raises VerifyFailure."""
        ...

    def rotor(self) -> Rotor:
        """Buffers of its own, ready to be timed."""
        ...

    def check_after(self) -> None:
        """Raises VerifyFailure when what was timed was not computed."""
        ...

    def facts(self) -> dict[str, Any]:
        """What to record beside its times."""
        ...


class KernelRunner:
    """One of our kernels."""

    def __init__(self, order: Order, data: PreparedProblem, tell: Tell) -> None:
        self._candidate = Candidate(order, data, tell)

    @property
    def proof(self) -> Proof:
        return self._candidate.proof

    @property
    def estimate_us(self) -> float:
        return self._candidate.estimate_us

    @property
    def threads(self) -> int:
        return self._candidate.pool.threads

    def verify(self) -> None:
        self._candidate.verify()

    def rotor(self) -> Rotor:
        self._candidate.bind_sets()
        return Rotor([target.run_once for target in self._candidate.targets], self._candidate.flusher())

    def check_after(self) -> None:
        self._candidate.check_after()

    def facts(self) -> dict[str, Any]:
        return {"threads": self.threads}


def serve(runner: Callable[[], Runner], tell: Tell, commands: LineReader) -> dict[str, Any] | None:
    """Prove, then obey `burst` until `finish`. Every way out is an answer."""
    mine: Runner | None = None
    started_at = datetime.now(UTC)
    try:
        mine = runner()
        mine.verify()
        rotor = mine.rotor()
        batch = choose_batch(rotor, mine.estimate_us)
        warm = min(rotor.sample(batch) for _ in range(2 if mine.estimate_us < 100_000 else 1))
        gc.disable()
        idle_s = machine.wait_until_idle()
        tell({"status": "ready", "estimate_us": warm, "batch": batch, "idle_s": idle_s})
        while True:
            line = commands.wait(3600.0)
            if line is None:
                return None
            message = json.loads(line)
            if message["op"] == "finish":
                break
            tell(_burst(mine, rotor, int(message["samples"]), batch))
        mine.check_after()
        return {
            "status": "finished",
            "verdict": mine.proof.to_json(True),
            "facts": mine.facts(),
            "started_at": started_at.isoformat(),
            "runs": rotor.count,
        }
    except VerifyFailure as failure:
        return failed(
            failure.reason, failure.evidence, mine.proof.to_json(False) if mine is not None else None
        )
    except Exception as error:  # noqa: BLE001 - told to the race
        return failure_of(error)


def burst_samples(estimate_us: float, batch: int) -> int:
    """Samples in one turn: some 30 ms of them, at least one."""
    one_s = max(1e-9, estimate_us * batch * 1e-6)
    return max(1, min(MOST_RUNS, math.ceil(BURST_S / one_s)))


def _burst(mine: Runner, rotor: Rotor, samples: int, batch: int) -> dict[str, Any]:
    if mine.estimate_us < _WARM_UP_BELOW_US:
        # Threads of this process slept while others ran; waking them is not what is measured.
        rotor.sample(min(batch * 4, rotor.most_batch, MOST_BATCH))
    before = machine.snapshot()
    values = [rotor.sample(batch) for _ in range(samples)]
    disturbance = machine.between(before, machine.snapshot(), mine.threads)
    idle_s = machine.wait_until_idle()
    return {
        "status": "burst",
        "samples_us": values,
        "disturbed": disturbance.disturbed(),
        "disturbance": disturbance.to_json(),
        "idle_s": idle_s,
        "at_s": time.monotonic(),
    }


def order_with(message: Mapping[str, Any], **more: Any) -> Order:
    """The order of one entrant, from the race's message."""
    return Order.parse({**message, **more})
