"""Where do kernels, migrations, NVRTC, the files of a home and the locks of this host lie?"""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.errors import DataMissingError, DiskFullError, HomeError
from service.host import test_host

_PACKAGE = Path(__file__).resolve().parent


def source_root() -> Path | None:
    """The checkout that holds this very file, or None in an installed wheel."""
    root = _PACKAGE.parent
    if (root / "pyproject.toml").is_file() and (root / "kernels").is_dir() and (root / "migrations").is_dir():
        return root
    return None


def _data_dir(name: str) -> Path:
    root = source_root()
    # The source tree first, so that an edited kernel counts at once.
    folder = root / name if root is not None else _PACKAGE / "_data" / name
    if not folder.is_dir():
        raise DataMissingError(
            f"The folder {name} is missing from this installation ({folder}); install rooftile-server again."
        )
    return folder


def kernels_dir() -> Path:
    """The C and CUDA templates."""
    return _data_dir("kernels")


def migrations_dir() -> Path:
    """Alembic's folder (env.py and versions)."""
    return _data_dir("migrations")


# Namespace packages of NVIDIA's wheels whose folder `lib` holds the library.
_NVRTC_WHEELS = {12: ("nvidia.cuda_nvrtc",), 13: ("nvidia.cu13",)}


def nvrtc_library(major: int) -> str | None:
    """The NVRTC of a major version: path in its wheel, else the name the loader finds it by, else None.

    The wheel first, so that an installation of ours means the same compiler everywhere. Nothing is loaded.
    """
    soname = f"libnvrtc.so.{major}"
    for package in _NVRTC_WHEELS[major]:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = Path(folder) / "lib" / soname
            if path.is_file():
                return str(path)
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    found = any((Path(folder) / soname).is_file() for folder in folders) or soname in _loader_cache()
    return soname if found else None


@cache
def _loader_cache() -> frozenset[str]:
    """Names that ld.so knows. Its own table, because opening a library to see would map 140 MB here."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        try:
            done = subprocess.run([program, "-p"], capture_output=True, timeout=10.0, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = done.stdout.decode(errors="replace").splitlines()[1:]
        return frozenset(line.split()[0] for line in lines if line.strip())
    return frozenset()


@dataclass(frozen=True)
class Home:
    """The files under ROOFTILE_HOME. Everything in it is this user's alone (mode 0700)."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "rooftile.db"

    @property
    def token(self) -> Path:
        """The admin token that `serve` makes; local clients find it here (mode 0600)."""
        return self.root / "token"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def cache(self) -> Path:
        """Artifacts by sha256: of the client and of the local workers."""
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """Scratch folders of compiles and measurements; may be emptied whenever no worker runs."""
        return self.root / "work"

    @property
    def supervisor_lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def supervisor_state(self) -> Path:
        """JSON about the running supervisor: pid, URL; only to be believed while the lock is held."""
        return self.root / "supervisor.json"


def prepare_home(root: Path) -> Home:
    """Create the folders of a home, private to this user. Raises HomeError or DiskFullError."""
    home = Home(root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (home.logs, home.cache, home.work):
            folder.mkdir(mode=0o700, exist_ok=True)
        probe = root / f".probe-{os.getpid()}"
        # A block, not an empty file: a full file system still takes empty ones.
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise home_error(root, error) from None
    _make_private(root)
    return home


def home_error(root: Path, error: OSError) -> HomeError | DiskFullError:
    """The sentence for an OSError under the home."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"There is no room left on the file system of {root}; free some or set ROOFTILE_HOME elsewhere."
        )
    return HomeError(f"ROOFTILE_HOME {root} cannot be used: {error.strerror or error}.")


def _make_private(root: Path) -> None:
    """Take the rights of others away from a home that we own; leave a foreign folder as it is."""
    info = root.stat()
    if info.st_uid == os.getuid() and stat.S_IMODE(info.st_mode) & 0o077:
        root.chmod(stat.S_IMODE(info.st_mode) & 0o700)


def host_lock_dir() -> Path:
    """The folder of locks that all users of this host share.

    The choice may not depend on who asks: /run/lock where every user may write there (Debian, Ubuntu),
    else /tmp. Mode 1777, so that each user can add a lock and nobody removes another's.
    """
    run_lock = Path("/run/lock")
    ours = run_lock / "rooftile"
    try:
        mode = run_lock.stat().st_mode
        shared = stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777
    except OSError:
        shared = False
    folder = shared_dir(ours if shared or ours.is_dir() else Path("/tmp/rooftile-locks"))
    other = test_host()
    return folder if other is None else shared_dir(folder / f"test-{other}")


def shared_dir(folder: Path) -> Path:
    """Make `folder` usable by every user of the host and return it."""
    try:
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)  # mkdir's mode is cut by the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise HomeError(f"The shared lock folder {folder} cannot be created: {error.strerror}.") from None
    if folder.is_symlink() or not folder.is_dir():
        raise HomeError(f"The shared lock folder {folder} is not a folder; remove it.")
    return folder


def open_lock_file(path: Path) -> int:
    """A file descriptor on a lock file that every user may lock (mode 0666).

    Opens before it creates: with fs.protected_regular, O_CREAT on another user's file in a sticky
    folder is refused even to root.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for _attempt in range(3):
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666
            )
        except FileExistsError:
            continue
        except FileNotFoundError:  # its folder was removed under a process that runs: a cleaner of /tmp
            shared_dir(path.parent)
            continue
        os.fchmod(descriptor, 0o666)  # past the umask
        return descriptor
    raise HomeError(f"The lock file {path} cannot be opened; another program keeps removing it.")


def device_lock_path(device_key: str) -> Path:
    """The lock of the one process that owns a device on this host."""
    return host_lock_dir() / f"device-{device_key}.lock"


def bench_lock_path() -> Path:
    """The lock of a bench run: another than any device's, because a bench measures through the device's."""
    return host_lock_dir() / "bench.lock"
