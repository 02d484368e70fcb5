"""Which process of this host holds a lock file? For the person who waits for it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_MOST_CHARACTERS = 120


def lock_holder(path: Path) -> str | None:
    """The process with a flock on `path` in words: number, command and, where it may be read, its home.
    "another process" where the kernel names none (it runs in another container); None: nobody holds it."""
    pid = _pid_of(path)
    if pid is None:
        return None
    if pid <= 0:
        return "another process"
    words = [_command(pid), _home(pid)]
    inside = ", ".join(word for word in words if word)
    return f"process {pid} ({inside})" if inside else f"process {pid}"


def _pid_of(path: Path) -> int | None:
    """From /proc/locks, where a line is `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. A number that is
    not of our numbering is 0 or less there."""
    try:
        info = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    for line in lines:
        fields = line.split()
        # Who waits has an arrow in the second field.
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place:
            return int(fields[4])
    return None


def _command(pid: int) -> str:
    try:
        parts = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return ""
    parts[0] = parts[0].rpartition("/")[2]
    return shlex.join(parts)[:_MOST_CHARACTERS] if parts[0] else ""


def _home(pid: int) -> str:
    """Only of one's own processes; root sees all."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((one.decode(errors="replace") for one in variables if one.startswith(b"ROOFTILE_HOME=")), "")
