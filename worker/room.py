"""Is there room on this worker's disk for what it is about to claim?

A claim that ends for want of room goes back, but a trial may be claimed so many times only, and on a disk
that is nearly full a worker would use these up within a minute, for trials that others could do. So it looks
before it claims; where there is no room it waits, its row says for what, and it goes on when there is.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from service.errors import DiskFullError, HomeError
from service.paths import home_error
from service.store.errors import StoreFull
from worker.compile import eviction
from worker.keeper import Keeper

_log = structlog.get_logger("rooftile.worker")

LEAST_BYTES = 8 << 20
"""A kernel with its scratch folder takes less than 1 MiB, and several are built at once."""
PAUSE_FIRST_S, PAUSE_MOST_S = 1.0, 60.0
"""Between two looks at a disk that had no room; longer each time that a claim had to go back all the same."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Room:
    """What is free on the disk of a home."""

    def __init__(self, home: Path, *, least_bytes: int = LEAST_BYTES, pause_s: float = PAUSE_FIRST_S) -> None:
        self._home = home
        self._least_bytes = least_bytes
        self._pause_first_s = self._pause_s = pause_s
        self._lacking: str | None = None
        self._look_at = 0.0
        self._doubted = False

    def lacks(self) -> str | None:
        """What is missing, in a sentence; None: there is room. Microseconds, where there is."""
        if self._lacking is not None and time.monotonic() < self._look_at:
            return self._lacking
        self._lacking = self._look()
        self._look_at = time.monotonic() + self._pause_s
        return self._lacking

    def failed(self, error: Exception) -> None:
        """A claim went back for want of room. What counts from now on is whether a file can be written: a
        quota, or a limit on the size of files, is not seen in what is free."""
        self._lacking, self._doubted = str(error), True
        self._look_at = time.monotonic() + self._pause_s
        self._pause_s = min(PAUSE_MOST_S, 2 * self._pause_s)

    def sufficed(self) -> None:
        """Work was done."""
        self._pause_s = self._pause_first_s

    def _look(self) -> str | None:
        try:
            if self._free() < self._least_bytes:
                # What was long not used may go: the disk is smaller than the cache's limit.
                eviction.sweep(self._home / "cache" / "artifacts", 0)
            free = self._free()
            if free < self._least_bytes:
                return (
                    f"There are {free / 2**20:.1f} MiB left on the file system of {self._home}, and a worker"
                    f" needs {self._least_bytes / 2**20:.0f}; free some or set ROOFTILE_HOME elsewhere."
                )
            if self._doubted:
                self._try()
        except OSError as error:
            return str(home_error(self._home, error))
        self._doubted = False
        return None

    def _free(self) -> int:
        info = os.statvfs(self._home)
        if info.f_blocks == 0:  # a file system that does not say
            return self._least_bytes
        return info.f_bavail * info.f_frsize

    def _try(self) -> None:
        path = self._home / "work" / f".room-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._least_bytes)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)


class Roomy:
    """The step of a loop that claims nothing while the disk is full, and says so."""

    def __init__(self, step: Callable[[], bool], room: Room, keeper: Keeper) -> None:
        self._step = step
        self._room = room
        self._keeper = keeper

    def __call__(self) -> bool:
        lacking = self._room.lacks()
        self._keeper.lacks(lacking)
        if lacking is not None:
            return False
        try:
            did = self._step()
        except (DiskFullError, HomeError, StoreFull) as error:
            self._room.failed(error)
            return False
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._room.failed(error)
            return False
        if did:
            self._room.sufficed()
        return did
