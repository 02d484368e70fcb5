"""How do compiling and searching keep out of a measurement's way on one host?

`shared()` is taken by work that may run together (compile, search), `exclusive()` by a measurement on a
CPU device, which must be alone. Two flocks: who wants in takes the turnstile, then the room, then lets
go of the turnstile. A waiting measurement holds the turnstile, so no new compile slips in before it; a
compile that waits for the room holds it too, so a measuring loop cannot come back before it: neither
starves. Locks belong to open files, so threads of one process exclude each other like processes, and
the kernel releases them when a process dies. Waiting costs no CPU: a poll would disturb the measurement.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.paths import host_lock_dir, open_lock_file


class GateInterrupted(Exception):  # not a failure: the process was asked to stop
    """The process was told to stop while it waited at the gate."""


class _MainWait:
    """Whether the main thread waits in flock(2): then a signal handler may raise to get it out."""

    active = False


def interrupt_wait() -> None:
    """For signal handlers: leave a wait at the gate by raising GateInterrupted; else do nothing."""
    if _MainWait.active:
        raise GateInterrupted


class HostGate:
    """One gate per host (or per `folder`, in tests). Not re-entrant."""

    def __init__(self, folder: Path | None = None, name: str = "cpu") -> None:
        self._folder = host_lock_dir() if folder is None else folder
        self._turnstile = self._folder / f"gate-{name}.turnstile"
        self._room = self._folder / f"gate-{name}.room"

    @contextmanager
    def shared(self, timeout_s: float | None = None) -> Iterator[None]:
        """Together with other shared work, never with exclusive work. TimeoutError after `timeout_s`."""
        with self._enter(fcntl.LOCK_SH, timeout_s):
            yield

    @contextmanager
    def exclusive(self, timeout_s: float | None = None) -> Iterator[None]:
        """Alone on this host. TimeoutError after `timeout_s`."""
        with self._enter(fcntl.LOCK_EX, timeout_s):
            yield

    def measuring(self) -> bool:
        """Whether somebody is alone on this host right now. Never waits, costs some 20 us."""
        room = open_lock_file(self._room)
        try:
            fcntl.flock(room, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(room)
        return False

    def wanted(self) -> bool:
        """Whether somebody waits to get in (or is just passing). Never waits, costs some 20 us."""
        turnstile = open_lock_file(self._turnstile)
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(turnstile)
        return False

    @contextmanager
    def _enter(self, how: int, timeout_s: float | None) -> Iterator[None]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        room = open_lock_file(self._room)
        try:
            turnstile = open_lock_file(self._turnstile)
            try:
                _flock(turnstile, fcntl.LOCK_EX, deadline)
                _flock(room, how, deadline)
            finally:
                os.close(turnstile)  # closing lets go of the lock
            yield
        finally:
            os.close(room)


def _flock(descriptor: int, how: int, deadline: float | None) -> None:
    if deadline is None:
        if threading.current_thread() is not threading.main_thread():
            fcntl.flock(descriptor, how)
            return
        _MainWait.active = True
        try:
            fcntl.flock(descriptor, how)
        finally:
            _MainWait.active = False
        return
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("the host's gate did not open in time") from None
            time.sleep(0.005)
