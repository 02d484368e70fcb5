"""Which host is this? The machine's own name, or the one that a test gives this process.

ROOFTILE_TEST_HOST lets one machine play several, for tests that need a cluster: a process with it takes
itself for a machine of that name. Rows and leases say that name, its host locks lie in a folder of their own,
and `rooftile worker measure --device alias` offers the CPU under a key with that name for a vendor. Times of
such devices mean nothing, for they share one CPU: no release made with it may be used elsewhere.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from service.errors import SettingsError

VARIABLE = "ROOFTILE_TEST_HOST"
ALIAS = "alias"
"""Of `--device`: the CPU under the test host's name."""
_WORD = re.compile(r"[a-z][a-z0-9]{0,15}", re.ASCII)


def test_host() -> str | None:
    """The name that a test gave; None on a real host. SettingsError where it is none."""
    word = os.environ.get(VARIABLE)
    if not word:
        return None
    if _WORD.fullmatch(word) is None:
        raise SettingsError(f"{VARIABLE}: must be up to 16 small letters and digits, a letter first.")
    return word


def boot_mark() -> str:
    """What tells this machine's kernel from another of the same name: containers of two machines may be
    called alike, those of one machine share its locks. "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return ""


def host_name() -> str:
    """What rows, owners of leases and log lines call this host."""
    return test_host() or socket.gethostname()
