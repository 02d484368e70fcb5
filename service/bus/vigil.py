"""How does a worker that can never go on again come to an end, so that another can begin?

A process that lives but does nothing is worse than one that died: its heartbeat says that all is well, its
leases are renewed, and nobody starts it again. Three ways there are known, and each ends the process here,
with the stacks of its threads in the log:

* a thread that it cannot do without has ended (memory was short even for the handling of an error);
* a thread waits in `Thread.start` for one that never began: it had no memory for its first step, and CPython
  (3.11 to 3.13 at least) then leaves whoever started it waiting for ever;
* a step lasts longer than any does.

Time is counted in looks, not read from a clock: a process that was stopped (SIGSTOP, a paused container) has
not been stuck meanwhile.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from types import FrameType

import structlog

from service.bus.loop import Loop

_log = structlog.get_logger("rooftile.vigil")

STATUS = 70
"""Of a process that ends here (EX_SOFTWARE)."""
LOOK_S = 1.0
START_MOST_LOOKS = 20
STEP_MOST_LOOKS = 3600
"""The longest steps are races (a Baseline may take three minutes to be ready) and runs in the emulator."""
_START = threading.Thread.start.__code__


class Vigil:
    """Watches the threads of this process from one of its own, from `start` to `end`."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._vital: list[threading.Thread] = []
        self._starting: dict[FrameType, int] = {}
        self._step: tuple[int | None, int] = (None, 0)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vigil", daemon=True)
            self._thread.start()

    def watch(self, loop: Loop) -> None:
        """The loop that is this process's work. Once it is told to stop, threads may end."""
        self._loop = loop

    def vital(self, thread: threading.Thread) -> None:
        """Without this one the process is of no use."""
        self._vital.append(thread)

    def end(self) -> None:
        """Look no more: the process is to end."""
        self._over.set()

    def trouble(self) -> str | None:
        """One look. What cannot be mended, in words; None: all goes on."""
        loop = self._loop
        if loop is None or not loop.stopping:
            for thread in self._vital:
                if not thread.is_alive():
                    return f"its thread {thread.name} has ended"
        waiting = (_waits_in_start(top) for top in sys._current_frames().values())
        self._starting = {one: self._starting.get(one, 0) + 1 for one in waiting if one is not None}
        if any(looks > START_MOST_LOOKS for looks in self._starting.values()):
            return "it waits for a thread that never began (memory was short)"
        under_way = None if loop is None else loop.under_way
        last, looks = self._step
        looks = looks + 1 if under_way is not None and under_way == last else 0
        self._step = (under_way, looks)
        if loop is not None and looks > STEP_MOST_LOOKS:
            return f"a step of its {loop.name} loop has not ended for {looks * LOOK_S:.0f} s"
        return None

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                found = self.trouble()
            except MemoryError:
                continue  # the next look may have some
            if found is not None and not self._over.is_set():
                _end(found)


def _waits_in_start(frame: FrameType | None) -> FrameType | None:
    """The frame of `Thread.start` that a thread is in."""
    while frame is not None:
        if frame.f_code is _START:
            return frame
        frame = frame.f_back
    return None


def _end(found: str) -> None:
    with contextlib.suppress(Exception):
        _log.error(f"this process ends, because {found}")
    with contextlib.suppress(Exception):
        sys.stderr.flush()
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(STATUS)


VIGIL = Vigil()
"""Of this process; begun by `be_child`."""
