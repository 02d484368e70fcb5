"""How long does a search worker wait while somebody measures on its host, and what if that never ends?

It waits without a poll, but for a short while in each step: then the job is put aside, and the step goes on
to what needs little CPU (other jobs' ends and budgets, giving back what the dead held). A thread keeps its
place in the line meanwhile, so a measurement that comes back at once does not shut it out.

A measurement that has said nothing for a lease (its worker is frozen: stopped, or its container paused) has
lost its claim, so its time counts for nothing, and jobs go on past it. They go past the line too where nobody
measures and it does not move; then with a lock of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from service import periods
from service.bus import HostGate
from service.bus.hostgate import interruptible
from service.jobs.step import PutAside

_log = structlog.get_logger("rooftile.search")

# As long as a Loop puts a sweep off while somebody measures, and longer than most turns of a measurement.
WAIT_S = 2.0
# Nobody can be measured while a place that came up is kept, so it is not kept for long.
KEEP_S = 1.0
# Who has not looked for so long was frozen itself, and has not seen that a measurement said nothing.
BLINK_S = 10.0


class WayIn:
    """The gate of one search worker's host, for questions to its proposer. Not for several threads."""

    def __init__(self, gate: HostGate) -> None:
        self._gate = gate
        self._place: _Place | None = None
        self._left_s = WAIT_S
        self._aside: dict[int, None] = {}
        self._alone = False
        self._said = -1
        self._looked_s = self._since_s = time.monotonic()
        self._stuck = False

    @property
    def waits(self) -> bool:
        """A job was put aside in this step."""
        return bool(self._aside)

    def new_step(self) -> list[int]:
        """The jobs that were put aside, who waits longest first."""
        self._left_s = WAIT_S
        self._look()
        return list(self._aside)

    def forget(self, job_id: int) -> None:
        """It is looked at now."""
        self._aside.pop(job_id, None)

    @contextmanager
    def take(self, job_id: int) -> Iterator[None]:
        """Ask within this. Raises PutAside."""
        with ExitStack() as held:
            if not self._in(held):
                self._aside[job_id] = None
                raise PutAside
            yield

    def _in(self, held: ExitStack) -> bool:
        if self._place is None:
            try:
                held.enter_context(self._gate.shared(timeout_s=0.0))
                return True
            except TimeoutError:
                pass
        if not self._stuck and self._wait(held):
            return True
        self._look()
        if not self._stuck:
            return False
        return held.enter_context(self._gate.past()) or self._alone

    def _wait(self, held: ExitStack) -> bool:
        began_s = time.monotonic()
        if self._place is None or self._place.gone:
            self._place = _Place(self._gate)
        with interruptible():
            came = self._place.enter(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))
        if came:
            held.callback(self._place.leave)
            self._place = None
        return came

    def _look(self) -> None:
        """Whether the gate has been shut for a lease, with no word from a measurement."""
        now_s, said, alone = time.monotonic(), self._gate.said(), self._gate.measuring()
        shut = alone or self._gate.wanted()
        if not shut or (said, alone) != (self._said, self._alone) or now_s - self._looked_s > BLINK_S:
            self._since_s = now_s
        self._said, self._alone, self._looked_s = said, alone, now_s
        stuck = now_s - self._since_s >= periods.lease_s()
        if stuck and not self._stuck and alone:
            _log.warning("who measures on this host says nothing (frozen?): the search goes on beside it")
        self._stuck = stuck


class _Place:
    """A place in the line at the gate, held by a thread until its turn comes, and a moment longer."""

    def __init__(self, gate: HostGate) -> None:
        self._gate = gate
        self._lock = threading.Lock()
        self._came = threading.Event()
        self._taken = threading.Event()
        self._left = threading.Event()
        self.gone = False
        """Its turn came, and nobody took it."""
        threading.Thread(target=self._stand, name="gate", daemon=True).start()

    def enter(self, timeout_s: float) -> bool:
        """True: we are in, until `leave`."""
        if not self._came.wait(timeout_s):
            return False
        with self._lock:
            if not self.gone:
                self._taken.set()
        return not self.gone

    def leave(self) -> None:
        self._left.set()

    def _stand(self) -> None:
        with self._gate.shared():
            self._came.set()
            self._taken.wait(KEEP_S)
            with self._lock:
                self.gone = not self._taken.is_set()
            if not self.gone:
                self._left.wait()
