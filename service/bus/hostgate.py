"""How do compiling and searching keep out of a measurement's way on one host?

`shared()` is taken by work that may run together (compile, search), `exclusive()` by a measurement on a
CPU device, which must be alone. Two flocks: who wants in takes the turnstile, then the room, then lets
go of the turnstile. A waiting measurement holds the turnstile, so no new compile slips in before it; a
compile that waits for the room holds it too, so a measuring loop cannot come back before it: neither
starves. Locks belong to open files, so threads of one process exclude each other like processes, and
the kernel releases them when a process dies. Waiting costs no CPU: a poll would disturb the measurement.

A process that is frozen (SIGSTOP, a paused container) does not die and keeps its locks. So who is alone here
says now and then that it is at work, by the room's time of change (`said`); who must not wait for the frozen
looks at that, and then goes `past` them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service import periods
from service.paths import host_lock_dir, open_lock_file


class GateInterrupted(Exception):  # not a failure: the process was asked to stop
    """The process was told to stop while it waited at the gate."""


class _MainWait:
    """Whether the main thread waits at the gate: then a signal handler may raise to get it out."""

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
        with self._enter(fcntl.LOCK_EX, timeout_s) as room, _at_work(room):
            yield

    @contextmanager
    def past(self) -> Iterator[bool]:
        """Without a wait, past whoever stands in line. True: together with other shared work, and no
        measurement can begin meanwhile. False: somebody is alone here, and nothing keeps out of its way."""
        room = open_lock_file(self._room)
        try:
            try:
                fcntl.flock(room, fcntl.LOCK_SH | fcntl.LOCK_NB)
                together = True
            except BlockingIOError:
                together = False
            yield together
        finally:
            os.close(room)

    def said(self) -> int:
        """Changes when somebody begins to be alone on this host and, while it is at work, every
        `periods.renew_s()`. Never waits."""
        room = open_lock_file(self._room)
        try:
            return os.fstat(room).st_mtime_ns
        finally:
            os.close(room)

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
    def _enter(self, how: int, timeout_s: float | None) -> Iterator[int]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        room = open_lock_file(self._room)
        try:
            turnstile = open_lock_file(self._turnstile)
            try:
                _flock(turnstile, fcntl.LOCK_EX, deadline)
                _flock(room, how, deadline)
            finally:
                os.close(turnstile)  # closing lets go of the lock
            yield room
        finally:
            os.close(room)


@contextmanager
def _at_work(room: int) -> Iterator[None]:
    """Say so, as long as this process runs."""
    left = threading.Event()

    def tell() -> None:
        while not left.wait(periods.renew_s()):
            with suppress(OSError):
                os.utime(room)

    with suppress(OSError):
        os.utime(room)
    thread = threading.Thread(target=tell, name="at-the-gate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


@contextmanager
def interruptible() -> Iterator[None]:
    """Around a wait at the gate: in the main thread `interrupt_wait` ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _MainWait.active = True
    try:
        yield
    finally:
        _MainWait.active = False


def _flock(descriptor: int, how: int, deadline: float | None) -> None:
    if deadline is None:
        with interruptible():
            fcntl.flock(descriptor, how)
        return
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("the host's gate did not open in time") from None
            time.sleep(0.005)
