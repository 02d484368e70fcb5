"""Which supervisor runs on this home, if any?"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from service.errors import HomeError, HomeInUseError
from service.paths import Home, home_error


@dataclass(frozen=True)
class Running:
    """What a supervisor says about itself in HOME/supervisor.json."""

    pid: int
    command: str
    database_url: str
    url: str | None
    ailments: tuple[str, ...] = ()
    """Of children that cannot live, a sentence each."""


class HomeLock:
    """flock on HOME/supervisor.lock. The kernel lets go of it when the supervisor dies, however it dies."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, me: Running) -> None:
        """Take the lock or raise HomeInUseError that names the holder."""
        if not self.try_acquire(me):
            raise HomeInUseError(in_use(self._home, running(self._home)))

    def try_acquire(self, me: Running) -> bool:
        """Take the lock; False where another process holds it."""
        try:
            descriptor = os.open(self._home.supervisor_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise home_error(self._home.root, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self.describe(me)
        return True

    def describe(self, me: Running) -> None:
        """Write who holds the lock; whole or not at all."""
        target = self._home.supervisor_state
        scratch = target.with_name(f"{target.name}.{os.getpid()}")
        try:
            scratch.write_text(json.dumps(asdict(me)) + "\n")
            scratch.chmod(0o600)
            scratch.replace(target)
        except OSError as error:
            raise home_error(self._home.root, error) from None

    def check(self) -> None:
        """HomeError where the lock's file is gone or another's: who starts on this home now would not see us,
        and what is written to a database that was removed with it is lost."""
        if self.held and not self._mine():
            raise HomeError(f"ROOFTILE_HOME {self._home.root} was removed or replaced while it was in use.")

    def release(self) -> None:
        if self._descriptor is not None:
            if self._mine():  # else it is what another supervisor says of itself
                self._home.supervisor_state.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _mine(self) -> bool:
        """Whether the lock's file in the home is still the one that is locked."""
        try:
            there = self._home.supervisor_lock.stat()
        except OSError:
            return False
        return self._descriptor is not None and os.path.samestat(there, os.fstat(self._descriptor))


def running(home: Home) -> Running | None:
    """The supervisor that holds the lock now; None where nobody does or it has not said who it is."""
    if not _locked(home.supervisor_lock):
        return None
    try:
        data = json.loads(home.supervisor_state.read_text())
        return Running(
            pid=int(data["pid"]),
            command=str(data["command"]),
            database_url=str(data["database_url"]),
            url=data["url"],
            ailments=tuple(map(str, data.get("ailments", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def in_use(home: Home, holder: Running | None) -> str:
    """The sentence that says who holds this home."""
    if holder is None:
        return f"Another rooftile supervisor runs on {home.root}; stop it or set ROOFTILE_HOME elsewhere."
    at = f" at {holder.url}" if holder.url else ""
    return (
        f"`rooftile {holder.command}` (process {holder.pid}) already runs on {home.root}{at}; "
        "stop it or set ROOFTILE_HOME elsewhere."
    )


def _locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
