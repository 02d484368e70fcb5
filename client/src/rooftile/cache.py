"""Where do the bytes that run come from, and how is it known that they are the right ones?

On disk an artifact is ROOFTILE_HOME/cache/<arch>/<sha256>.so: the arch is in the path because a home may be
shared by machines of different kinds, the hash because the name then says what the bytes must be. A wrong
file is deleted and fetched once more. There are raw bytes and nothing else here: no pickle, no code that is
not named by its hash.

What is loaded is never the file itself but a sealed copy in memory (memfd) of exactly the bytes that were
hashed. So nobody can change them between hashing and loading; a file that is overwritten later does not pull
the code from under a running kernel; and a home on a file system without exec rights works.

The folder must belong to this user alone (mode 0700), for whoever can write it can fill it. Where it does
not, or cannot be made or written, the cache says so once and works without it, fetching anew in each process.
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


# Descriptors of sealed copies by sha256, open as long as the process: the dynamic loader knows a library by
# the path it was given, so a number that is used again would give the library that had it before.
_sealed: dict[str, int] = {}
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


class ArtifactCache:
    """Paths of verified artifacts, ready for dlopen. Safe to use from several threads and processes."""

    def __init__(self, root: Path | None = None) -> None:
        self._given = root
        self._checked = False
        self._root: Path | None = None

    @property
    def root(self) -> Path | None:
        """The folder in use, or None in memory-only mode."""
        with _lock:
            return self._folder()

    def path(self, sha256: str, arch: str, fetch: Callable[[str], bytes]) -> Path:
        """A path whose bytes have that hash: of this process, from disk, else from `fetch(sha256)`.

        ArtifactError when what was fetched does not match either; what `fetch` raises passes through.
        """
        if not _SHA256.fullmatch(sha256):
            raise ArtifactError(f"an artifact is named by 64 hex digits, not {sha256[:80]!r}")
        if not _ARCH.fullmatch(arch):
            raise ArtifactError(f"not the name of an arch: {arch[:80]!r}")
        with _lock:
            if sha256 in _sealed:
                return Path(f"/proc/self/fd/{_sealed[sha256]}")
            folder = self._folder()
            file = None if folder is None else folder / arch / f"{sha256}.so"
            data = None if file is None else self._read(file, sha256)
            if data is None:
                data = self._fetched(sha256, fetch)
                if file is not None:
                    self._keep(file, data)
            return self._seal(sha256, data, file)

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
        warnings.warn(f"Rooftile keeps its artifacts in memory only: {why}", CacheWarning, stacklevel=5)

    @staticmethod
    def _read(path: Path, sha256: str) -> bytes | None:
        """The file's bytes when it is there and right. A wrong one is deleted: it can only mislead."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            # A link could lead to a folder that others write; regular files only.
            with open(os.open(path, flags), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError:
            data = b""
        if sha256_of(data) == sha256:
            return data
        with contextlib.suppress(OSError):  # what cannot be deleted cannot be replaced: then memory only
            path.unlink(missing_ok=True)
        return None

    def _keep(self, path: Path, data: bytes) -> None:
        try:
            self._write(path, data)
        except OSError as error:
            self._give_up(f"{path.parent} cannot be written ({error.strerror or error})")

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

    # -- the bytes --------------------------------------------------------------------------------------

    @staticmethod
    def _seal(sha256: str, data: bytes, file: Path | None) -> Path:
        """A copy in memory that cannot change any more."""
        try:
            descriptor = os.memfd_create(f"rooftile-{sha256}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(descriptor, "wb", closefd=False) as memory:
                memory.write(data)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            path = Path(f"/proc/self/fd/{descriptor}")
            path.stat()
        except OSError as error:
            # No memfd, no /proc, or too many open files: the file that was just checked has to do.
            if file is not None and file.exists():
                return file
            raise ArtifactError(f"no place for an artifact of {len(data)} bytes: {error}") from error
        _sealed[sha256] = descriptor
        return path

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
