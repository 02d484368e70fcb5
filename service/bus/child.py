"""How does a process die with its parent, whatever kills the parent?"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import structlog

from service.bus.logs import setup_logs
from service.bus.vigil import VIGIL

_log = structlog.get_logger("rooftile.child")

_PR_SET_PDEATHSIG = 1
# Set by the supervisor in the environment of its children only: the process they may not outlive.
PARENT_VARIABLE = "ROOFTILE_PARENT_PID"


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signal_number` to this process when its parent ends, also by SIGKILL.

    The kernel looks at the parent's *thread*: who starts children must start them from a thread that
    lives as long as the process. A parent that died before this call is noticed by its changed pid.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


INNERMOST = 6
"""Calls of each thread that are told."""
LAST_S = 9.0
"""From being told to stop to the end of a process whose end in order hangs. Compose kills after 20 s."""


def leave_at_last() -> None:
    """This process was told to stop, and ends, whatever holds it up: a database that is there and says
    nothing may do so for long. What it holds is free when its lease runs out."""

    def end() -> None:
        time.sleep(LAST_S)
        text = f"not ended in order within {LAST_S:.0f} s of being told to; it ends now"
        with contextlib.suppress(Exception):  # whatever it is: the end must come
            _log.error(text, threads=where_threads_are())
        leave(0)

    threading.Thread(target=end, name="last-resort", daemon=True).start()


def where_threads_are() -> dict[str, str]:
    """Where each other thread of this process stands, the innermost call first: what holds it up."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {}
    for ident, top in sys._current_frames().items():
        if ident != threading.get_ident():
            calls = reversed(traceback.extract_stack(top)[-INNERMOST:])
            place = " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls)
            found[names.get(ident, str(ident))] = place
    return found


def stop_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handler of SIGTERM for a process that has nothing to put in order yet."""
    leave_at_last()
    sys.exit(0)


def leave(code: int) -> NoReturn:
    """End this process now, whatever its threads are at: Python would wait for those of a pool."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def be_child() -> bool:
    """First line of every process that a supervisor starts. True when it runs under a supervisor.

    Started by hand (a cluster worker, a shell) the variable is absent and nothing happens. The variable
    is taken out of the environment, so that grandchildren do not take it for theirs. Logs go to stderr,
    which the supervisor writes to HOME/logs.
    """
    setup_logs()
    VIGIL.start()
    # Until it knows how to end in order, there is nothing to put in order. As a container's first process it
    # would not even see the signal without a handler.
    signal.signal(signal.SIGTERM, stop_at_once)
    text = os.environ.pop(PARENT_VARIABLE, None)
    if text is None:
        return False
    die_with_parent(int(text))
    # Ctrl-C reaches the whole group of a terminal; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return True
