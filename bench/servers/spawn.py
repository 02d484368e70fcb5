"""How does a server die with this process, whichever thread started it?

The kernel sends a parent-death signal when the *thread* that started the child ends, so servers are all
started from one thread that lives as long as the process does.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PR_SET_PDEATHSIG = 1
_SIGINT = 2
_starter = ThreadPoolExecutor(1, thread_name_prefix="servers")


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """subprocess.Popen in a session of its own, ended (SIGINT) when this process ends."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # runs after the change of user
            **options,
        )

    return _starter.submit(start).result()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGINT)
