"""How does a worker go on: claim, do, complete, until it is told to stop?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from rooftile.errors import RooftileError

from service.bus.hostgate import GateInterrupted
from service.errors import OperationError
from service.store.errors import StoreError

_log = structlog.get_logger("rooftile.loop")

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 5.0
# After so many empty sweeps in a row the pause grows, up to IDLE_FACTOR times: an idle service should
# not wake the machine 25 times a second for ever.
IDLE_SWEEPS = 100
IDLE_FACTOR = 12.0
# An empty sweep takes 2 to 7 ms of a core (queries through SQLAlchemy on SQLite): at 25 a second, two idle
# workers would take a quarter of the core that a measurement is using. Asking the gate takes 20 us. So
# while somebody measures there is one sweep in QUIET_S.
QUIET_S = 2.0


class Loop:
    """Calls `step` until stopped: again at once when it did something, else after `sweep_s` or a ring.

    An exception in a step never ends the loop. It is logged once, however often it repeats, handed to
    `on_error`, and the next try waits longer each time (0.2 s up to 5 s).
    """

    def __init__(
        self,
        step: Callable[[], bool],
        *,
        sweep_s: float,
        name: str,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name = name
        self._step = step
        self._sweep_s = sweep_s
        self._on_error = on_error
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.quiet: Callable[[], bool] | None = None
        """Asked before each sweep: True puts it off, by QUIET_S at most."""
        self._steps = 0
        self.under_way: int | None = None
        """Number of the step that is being done; None between steps."""

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def wait_stopped(self) -> None:
        """Returns when somebody has called `stop()`."""
        self._stop.wait()

    def ring(self) -> None:
        """There may be work: look now."""
        self._bell.set()

    def stop(self) -> None:
        """End after the current step. Safe in a signal handler."""
        self._stop.set()
        self._bell.set()

    def run(self) -> None:
        """Run in this thread until `stop()`."""
        idle = 0
        stepped_s = float("-inf")
        while not self._stop.is_set():
            self._bell.clear()
            if self.quiet is not None and time.monotonic() - stepped_s < QUIET_S and self.quiet():
                self._stop.wait(self._sweep_s)
                continue
            stepped_s = time.monotonic()
            try:
                did = self._do()
            except GateInterrupted:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker must go on
                if self._recover(error):
                    idle = 0
                continue
            if did:
                idle = 0
                continue
            idle += 1
            factor = min(IDLE_FACTOR, max(1.0, idle / IDLE_SWEEPS))
            if self._bell.wait(self._sweep_s * factor):
                idle = 0

    def start(self) -> threading.Thread:
        """Run in a daemon thread of its own."""
        self._thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self._thread.start()
        return self._thread

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread of `start()`; True when it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _do(self) -> bool:
        self._steps += 1
        self.under_way = self._steps
        try:
            return self._step()
        finally:
            self.under_way = None

    def _recover(self, error: Exception) -> bool:
        """Report `error`, then try again with back-off until a step passes. False when stopped meanwhile."""
        pause_s = BACKOFF_FIRST_S
        tries = 1
        self._report(error)
        seen = {_signature(error)}
        while not self._stop.wait(pause_s):
            pause_s = min(BACKOFF_MOST_S, pause_s * 2)
            tries += 1
            try:
                self._do()
            except GateInterrupted:
                continue
            except Exception as again:  # noqa: BLE001 - as above
                if _signature(again) not in seen:
                    seen.add(_signature(again))
                    self._report(again)
                continue
            _log.info("recovered", loop=self.name, tries=tries)
            return True
        return False

    def _report(self, error: Exception) -> None:
        # Errors of ours are one sentence that says all; anything else is a bug and needs its traceback.
        expected = isinstance(error, (OperationError, StoreError, RooftileError))
        trace = {} if expected else {"exc_info": error}
        _log.error("step failed", loop=self.name, error=_signature(error), **trace)
        if self._on_error is not None:
            self._on_error(error)


def _signature(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
