"""How does a process get the one thread pool that its x86 kernels run on?

The pool is an artifact of its own (kernels/x86/pool.c): a shared object with the functions of
kernels/x86/include/rooftile_abi.h. `get_pool` gives one for each artifact and process; kernels share it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from rooftile.errors import ArtifactError, LaunchError
from rooftile.launch.memory import Workspace

POOL_ABI = 1
E_THREADS = 1
E_FORKED = 2


# Which file each path was when it was loaded. The dynamic loader remembers libraries by path: for a path it
# knows it gives what it loaded then, whatever lies there now. A loaded file's number is not given to another,
# and its times say nothing: the artifact cache writes down in them when a file was last used.
_loaded: dict[str, tuple[int, ...]] = {}


def load_library(so_path: str | os.PathLike[str]) -> ctypes.CDLL:
    """dlopen with its symbols kept to itself; a library is never unloaded (threads may be inside it)."""
    # An absolute path: dlopen searches the library path for a bare name.
    path = str(Path(so_path).absolute())
    try:
        status = Path(path).stat()
        file = (status.st_dev, status.st_ino, status.st_size)
        if _loaded.get(path, file) != file:
            raise ArtifactError(
                f"{path} was loaded before and has other bytes now; give it a name of its own"
            )
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise ArtifactError(f"cannot load {os.fspath(so_path)}: {error}") from error
    _loaded[path] = file
    return library


def entry_address(library: ctypes.CDLL, entry: str) -> int:
    """Where an exported function starts."""
    try:
        function = getattr(library, entry)
    except AttributeError as error:
        raise ArtifactError(f"the artifact {library._name} exports no {entry!r}") from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise ArtifactError(f"the artifact {library._name} exports a null {entry!r}")
    return address


class Pool:
    """Threads for x86 kernels. `threads` counts the caller's own.

    `lock` is held while the shared workspace is in use and across plans of several steps; runs without either
    take turns inside the pool itself.
    """

    def __init__(self, so_path: str | os.PathLike[str], threads: int) -> None:
        if threads < 1:
            raise LaunchError(f"a pool needs at least one thread, not {threads}")
        self.path = os.fspath(so_path)
        self.threads = threads
        self.lock = threading.Lock()
        self._library = load_library(so_path)
        try:
            abi = self._library.rt_pool_abi()
            self._create = self._library.rt_pool_create
            # Called without argtypes and with ready ctypes objects: 0.2 us less for each run.
            self.run_c: Any = self._library.rt_pool_run
            self._destroy = self._library.rt_pool_destroy
        except AttributeError as error:
            raise ArtifactError(f"{self.path} is not a thread pool: {error}") from error
        if abi != POOL_ABI:
            raise ArtifactError(f"the pool {self.path} speaks ABI {abi}, this client speaks {POOL_ABI}")
        self._create.restype = ctypes.c_void_p
        self._destroy.restype = None
        self._workspace: Workspace | None = None
        # One object for the life of this Pool: prepared launches hold it, so that a pool made anew after a
        # fork reaches them without any check on the way.
        self.handle = ctypes.c_void_p(None)
        self._start()
        # Not at exit: other threads of the program may still be inside a kernel, and the system ends ours.
        weakref.finalize(self, _destroy, self._destroy, self.handle).atexit = False
        _pools.add(self)

    def _start(self) -> None:
        handle = self._create(self.threads)
        if not handle:
            raise LaunchError(f"the system gave no {self.threads} threads")
        self.handle.value = handle

    def run(self, function: ctypes.c_void_p, args: bytes, threads: int) -> None:
        """Run an entry on `threads` threads; returns when all have ended. Releases the GIL."""
        code = self.run_c(self.handle, function, args, threads)
        if code:
            self.again(code, function, args, threads)

    def again(self, code: int, function: ctypes.c_void_p, args: bytes, threads: int) -> None:
        """What to do when a run was refused: in a forked child make new threads and run, else explain."""
        if code == E_FORKED:
            with _registry_lock:
                if self.handle.value is None or self._stale(function):
                    self._start()
            code = self.run_c(self.handle, function, args, threads)
        if code == E_THREADS:
            raise LaunchError(f"the plan wants {threads} threads, the pool has {self.threads}")
        if code:
            raise LaunchError(f"the pool refused to run: code {code}")

    def _stale(self, function: ctypes.c_void_p) -> bool:
        # 0 threads is always refused: the answer only tells whether this process made the threads.
        return bool(self.run_c(self.handle, function, b"", 0) == E_FORKED)

    def workspace(self, size_bytes: int) -> int:
        """Address of scratch memory shared by all kernels of this pool. Hold `lock` until the run is over."""
        held = self._workspace
        if held is None or held.size_bytes < size_bytes:
            self._workspace = None  # the old one goes first: both at once might not fit
            held = self._workspace = Workspace(size_bytes)
        return held.address

    def close(self) -> None:
        """End the threads. Only for pools of one's own (tests, workers), never for one from get_pool."""
        _destroy(self._destroy, self.handle)


def _destroy(function: Any, handle: ctypes.c_void_p) -> None:
    address, handle.value = handle.value, None
    if address is not None:
        function(ctypes.c_void_p(address))


def get_pool(so_path: str | os.PathLike[str], threads: int) -> Pool:
    """The process's pool for this artifact, with at least `threads` threads.

    When more are wanted than the present one has, a larger one takes its place; kernels made before keep the
    old one, whose threads sleep while nobody calls them.
    """
    key = str(Path(so_path).resolve())
    with _registry_lock:
        pool = _by_path.get(key)
        if pool is None or pool.threads < threads:
            pool = _by_path[key] = Pool(so_path, threads)
        return pool


_registry_lock = threading.Lock()
_by_path: dict[str, Pool] = {}
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Locks that another thread held at the fork would stay locked for ever in the child."""
    global _registry_lock
    _registry_lock = threading.Lock()
    for pool in list(_pools):
        pool.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
