"""How does a compiler run that may hang, eat the memory, or outlive its worker?

The compiler runs in a session of its own under a small shell that sets the limits and holds the read end
of a pipe. Whoever ends first decides: the compiler (normal), the wall limit (the group is killed from here),
or the worker (the pipe closes, and the shell kills its own group), so that no cc1 stays behind a worker
that was killed (CE-26). A shell and not preexec_fn, because compiles run from several threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES = 32_000

# $1 memory in KiB, $2 CPU seconds, $3 file size in 512-byte blocks; the rest is the command.
_SHELL = """
ulimit -v "$1"; ulimit -S -t "$2"; ulimit -H -t $(($2 + 2)); ulimit -f "$3"; ulimit -c 0; shift 3
exec 3<&0
( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 &
watcher=$!
"$@" </dev/null 3<&- &
wait $!
code=$?
{ kill -9 "$watcher"; wait "$watcher"; } >/dev/null 2>&1
exit "$code"
"""


@dataclass(frozen=True)
class Limits:
    """Of one compile. CPU time, because a busy machine makes everything slow (AT-14)."""

    cpu_s: int = 30
    wall_s: float = 120.0
    memory_bytes: int = 2 << 30
    file_bytes: int = 64 << 20


@dataclass(frozen=True)
class Finished:
    """How the run ended. `log` is what it wrote, cut to LOG_BYTES."""

    returncode: int
    log: str
    wall_s: float
    timed_out: bool


def run(command: Sequence[str], *, folder: Path, environment: Mapping[str, str], limits: Limits) -> Finished:
    """Run `command` in `folder` within `limits`; its whole group is gone when this returns."""
    started = time.monotonic()
    # In memory: on a full disk the log must still be able to say so.
    with os.fdopen(os.memfd_create("log"), "w+b") as log:
        process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _SHELL,
                "sh",
                str(limits.memory_bytes >> 10),
                str(limits.cpu_s),
                str(limits.file_bytes >> 9),
                *command,
            ],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if process.returncode is None:
                _kill_group(process)
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
        log.seek(0)
        text = shorten(log.read())
    return Finished(process.returncode, text, time.monotonic() - started, timed_out)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill all of it and wait, within a second, until it has gone."""
    end = time.monotonic() + 1.0
    # ProcessLookupError: it has.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while time.monotonic() < end:
            time.sleep(0.005)
            os.killpg(process.pid, 0)


def shorten(data: bytes) -> str:
    if len(data) > LOG_BYTES:
        half = LOG_BYTES // 2
        cut = f"\n... {len(data) - LOG_BYTES} bytes left out ...\n".encode()
        data = data[:half] + cut + data[-half:]
    return data.decode(errors="replace")
