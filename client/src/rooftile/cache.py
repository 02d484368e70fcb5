"""Where do the bytes that run come from, and how is it known that they are the right ones?

An artifact lives under ROOFTILE_HOME/cache/<arch>/<sha256>.so: the arch is in the path because a home may be
shared by machines of different kinds, the hash because the name then says what the bytes must be. Every load
hashes the file again; a wrong one is deleted and fetched once more. There are raw bytes and nothing else
here: no pickle, no code that is not named by its hash.

The folder must belong to this user alone (mode 0700), for whoever can write it can make us run code. Where it
does not, or cannot be made or written, the cache says so once and works without it: bytes are then kept in a
sealed memory file of this process (memfd), which nobody else can reach and nothing can change.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from rooftile.errors import ArtifactError
from rooftile.home import home

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ARCH = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class CacheWarning(UserWarning):
    """The disk cache is not used; everything works, but is fetched anew by each process."""


def sha256_of(data: bytes) -> str:
    """Hex digest that names an artifact."""
    return hashlib.sha256(data).hexdigest()


class ArtifactCache:
    """Paths of verified artifacts, ready for dlopen. Safe to use from several threads and processes."""

    def __init__(self, root: Path | None = None) -> None:
        self._given = root
        self._lock = threading.Lock()
        self._checked = False
        self._root: Path | None = None
        # Memory files by (arch, sha256); the descriptors stay open as long as the process.
        self._memory: dict[tuple[str, str], int] = {}

    @property
    def root(self) -> Path | None:
        """The folder in use, or None in memory-only mode."""
        with self._lock:
            return self._folder()

    def path(self, sha256: str, arch: str, fetch: Callable[[str], bytes]) -> Path:
        """A path whose bytes have that hash: from disk, else from `fetch(sha256)`.

        ArtifactError when what was fetched does not match either; what `fetch` raises passes through.
        """
        if not _SHA256.fullmatch(sha256):
            raise ArtifactError(f"an artifact is named by 64 hex digits, not {sha256[:80]!r}")
        if not _ARCH.fullmatch(arch):
            raise ArtifactError(f"not the name of an arch: {arch[:80]!r}")
        with self._lock:
            folder = self._folder()
            if folder is None:
                return self._in_memory(sha256, arch, fetch)
            path = folder / arch / f"{sha256}.so"
            if self._holds(path, sha256):
                return path
            data = self._fetched(sha256, fetch)
            try:
                self._write(path, data)
            except OSError as error:
                self._give_up(f"{path.parent} cannot be written ({error.strerror or error})")
                return self._in_memory(sha256, arch, lambda _: data)
            # What is loaded must be what was hashed: read it back, in the folder only we can write.
            if not self._holds(path, sha256):
                raise ArtifactError(f"{path} does not hold what was just written to it")
            return path

    # -- the folder -------------------------------------------------------------------------------------

    def _folder(self) -> Path | None:
        if not self._checked:
            self._checked = True
            try:
                root = (self._given or home() / "cache").absolute()
                root.parent.mkdir(parents=True, exist_ok=True)
                root.mkdir(mode=0o700, exist_ok=True)
                self._root = root
                reason = why_not_private(root) or why_replaceable(root.parent)
            except (OSError, RuntimeError) as error:
                reason = f"it cannot be made ({error})"
            if reason is not None:
                self._give_up(f"{self._root or 'the cache folder'} is not used: {reason}")
        return self._root

    def _give_up(self, why: str) -> None:
        self._root = None
        warnings.warn(f"Rooftile keeps its artifacts in memory only: {why}", CacheWarning, stacklevel=4)

    @staticmethod
    def _holds(path: Path, sha256: str) -> bool:
        """True when the file is there and right. A wrong one is deleted: it can only mislead."""
        try:
            # A link could lead to a folder that others write; regular files only.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path, flags), "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return False
        except OSError:
            found = ""
        if found == sha256:
            return True
        with contextlib.suppress(OSError):  # what cannot be deleted cannot be replaced either: then memory
            path.unlink(missing_ok=True)
        return False

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if (reason := why_not_private(path.parent)) is not None:
            raise OSError(reason)
        descriptor, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    # -- without a folder -------------------------------------------------------------------------------

    def _in_memory(self, sha256: str, arch: str, fetch: Callable[[str], bytes]) -> Path:
        descriptor = self._memory.get((arch, sha256))
        if descriptor is None:
            data = self._fetched(sha256, fetch)
            try:
                descriptor = os.memfd_create(f"rooftile-{sha256[:16]}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            except OSError as error:
                raise ArtifactError(f"no place for an artifact of {len(data)} bytes: {error}") from error
            self._memory[arch, sha256] = descriptor
        # Through the descriptor and not by name: sealed bytes cannot change after they were hashed.
        return Path(f"/proc/self/fd/{descriptor}")

    @staticmethod
    def _fetched(sha256: str, fetch: Callable[[str], bytes]) -> bytes:
        for _ in range(2):  # a cut or damaged transfer gets one more try
            data = fetch(sha256)
            if sha256_of(data) == sha256:
                return data
        raise ArtifactError(
            f"artifact {sha256} came as {len(data)} bytes with sha256 {sha256_of(data)}, twice: not loaded"
        )


def why_not_private(folder: Path) -> str | None:
    """None for a folder that only this user can write and read; else the reason in words."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return f"{folder} has mode {mode:04o}; others must have no rights there (chmod 700)"
    return None


def why_replaceable(folder: Path) -> str | None:
    """None unless others could rename what lies in `folder` and put their own in its place."""
    status = folder.stat()
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        return f"others can write {folder} (mode {stat.S_IMODE(status.st_mode):04o}; chmod go-w)"
    if status.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {status.st_uid}"
    return None
