"""Was a process ended by somebody else, as by a system short of memory, or by its own doing?"""

from __future__ import annotations

import signal

# What the kernel short of memory sends, and what its watchmen in user space (earlyoom, systemd-oomd) and
# people send. A fault of the process's own is another signal (SIGSEGV, SIGABRT), and would come again.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


def killed_from_outside(returncode: int) -> bool:
    """Whether an exit code, of a process (-9) or of a shell that waited for one (137), tells of such a
    signal. Then the same once more may well succeed."""
    return any(returncode in (-number, 128 + number) for number in _FROM_OUTSIDE)


def how_ended(returncode: int) -> str:
    """In words: `ended by SIGKILL`, `ended with exit code 3`."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"ended by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal
        return f"ended by signal {-returncode}"
