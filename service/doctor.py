"""What does Rooftile need on this machine, is it there, and how does one get what is missing?"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rooftile.device import local_cpu
from rooftile.errors import RooftileError

from service import doctor_cluster as cluster
from service.bus.lockholder import lock_holder
from service.compilers import HOW_TO_GET_ONE, NVRTC_EXTRA, compilers, none_found
from service.doctor_cluster import Check, State
from service.errors import OperationError
from service.host import host_name
from service.paths import (
    Home,
    host_lock_dir,
    kernels_dir,
    migrations_dir,
    nvrtc_library,
    open_lock_file,
    prepare_home,
)
from service.settings import Settings
from service.store import migrate, workers
from service.store.database import Database
from service.store.enums import WorkerKind
from service.store.errors import StoreError
from service.supervisor import setup
from service.supervisor.lock import running

DEFAULT_PORT = 8417
_LEAST_FREE_BYTES = 200 * 2**20
_ENOUGH_FREE_BYTES = 2 * 2**30
# Variables that make OpenBLAS or numpy slower than it is. The Baseline's child takes the first two away.
_HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS")


def examine(settings: Settings) -> list[Check]:
    """Every check, in the order a person would look."""
    checks: list[Callable[[Settings], Check]] = [
        _python, _device, _compiler, _nvrtc, _blas, _gpu, _kernels, _home, _disk, _database, _broker, _locks,
        _port,
    ]  # fmt: skip
    return [*(_safely(check, settings) for check in checks), *_of_cluster(settings)]


def _of_cluster(settings: Settings) -> list[Check]:
    found = []
    if settings.broker_url is not None:
        found.append(cluster.safely("celery", lambda: cluster.celery(settings)))
    if sqlite_path(settings.database_url) is None:
        with contextlib.suppress(StoreError):  # the check of the database has told it
            found += cluster.of_database(settings)
    elif settings.broker_url is not None:
        fix = "Set ROOFTILE_DATABASE_URL to a Postgres database; several hosts cannot share an SQLite file."
        found.append(Check("postgres", State.MISSING, "a broker, but SQLite as database", fix))
    return found


def _safely(check: Callable[[Settings], Check], settings: Settings) -> Check:
    name = check.__name__.strip("_")
    try:
        return check(settings)
    except (OperationError, StoreError, RooftileError) as error:
        return Check(name, State.MISSING, " ".join(str(error).split()))
    except Exception as error:  # noqa: BLE001 - a doctor that dies of a finding is no use
        return Check(name, State.MISSING, f"{type(error).__name__}: {error}")


def _python(_settings: Settings) -> Check:
    version = platform.python_version()
    try:
        ours = importlib.metadata.version("rooftile-server")
    except importlib.metadata.PackageNotFoundError:
        ours = "not installed"
    found = f"{version} at {sys.executable}, rooftile-server {ours}"
    return Check("python", State.OK, found)


def _device(_settings: Settings) -> Check:
    cpu = local_cpu()
    wanted = [
        name for name in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16") if name in cpu.features
    ]
    return Check("device", State.OK, f"{cpu.key} ({cpu.name}; {' '.join(wanted)})")


def _compiler(settings: Settings) -> Check:
    reasons = []
    for name, command in compilers():
        problem = _try_compiler(command)
        if problem is None:
            return Check("compiler", State.OK, f"{name}: {_version(command)}")
        reasons.append(f"{name}: {problem}")
    found = "; ".join(reasons) if reasons else none_found()
    if settings.broker_url is None or _compiles_here(settings):
        return Check("compiler", State.MISSING, found, HOW_TO_GET_ONE)
    fix = f"Needed where a compile worker runs, and none of this host reports. {HOW_TO_GET_ONE}"
    return Check("compiler", State.NOTE, found, fix)


def _compiles_here(settings: Settings) -> bool:
    """Whether a compile worker of this host reported lately. No where the database does not tell, which is a
    finding of its own check."""
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return False
    with contextlib.suppress(StoreError):
        database = Database(settings.database_url, name="rooftile-doctor", pool_size=1, max_overflow=0)
        try:
            with database.read() as s:
                return any(one.host == host_name() for one in workers.alive(s, WorkerKind.COMPILE))
        finally:
            database.close()
    return False


def _nvrtc(_settings: Settings) -> Check:
    found = {major: library for major in (13, 12) if (library := nvrtc_library(major)) is not None}
    fix = f"To compile for GPUs (no GPU is needed for that): {NVRTC_EXTRA}."
    if not found:
        return Check("nvrtc", State.NOTE, "none found; nothing is compiled for GPUs", fix)
    text = ", ".join(f"{major}: {library}" for major, library in found.items())
    if 12 not in found:
        return Check("nvrtc", State.NOTE, f"{text}; none of version 12, so not for sm_70", fix)
    return Check("nvrtc", State.OK, text)


def _try_compiler(command: list[str]) -> str | None:
    """Build one shared object as the x86 families need it; None when it works, else why not."""
    with tempfile.TemporaryDirectory(prefix="rooftile-doctor-") as folder:
        source = Path(folder) / "probe.c"
        source.write_text("#include <immintrin.h>\n__m256 f(__m256 a) { return _mm256_fmadd_ps(a, a, a); }\n")
        target = Path(folder) / "probe.so"
        try:
            done = subprocess.run(
                [*command, "-O2", "-mavx2", "-mfma", "-shared", "-fPIC", "-o", str(target), str(source)],
                capture_output=True, text=True, errors="replace", timeout=120, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0 or not target.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return lines[0] if lines else f"exit code {done.returncode}"
    return None


def _version(command: list[str]) -> str:
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.stdout.splitlines()[0] if done.stdout else " ".join(command)


def _blas(_settings: Settings) -> Check:
    # In a child: importing numpy here would start BLAS' threads in whoever asks.
    code = (
        "import json, numpy, threadpoolctl as t; print(json.dumps([numpy.__version__, t.threadpool_info()]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        return Check("blas", State.MISSING, "numpy does not load", "Run `pip install numpy threadpoolctl`.")
    version, pools = json.loads(done.stdout)
    blas: dict[str, Any] = next((pool for pool in pools if pool.get("user_api") == "blas"), {})
    found = f"numpy {version}, {blas.get('internal_api', 'unknown BLAS')} {blas.get('version', '')}"
    found += f" ({blas.get('architecture', 'unknown')} kernels, {blas.get('num_threads', '?')} threads)"
    handicaps = [name for name in _HANDICAPS if os.environ.get(name)]
    limits = [name for name in _THREAD_LIMITS if os.environ.get(name)]
    if handicaps or limits:
        fix = f"Set in the environment: {', '.join(handicaps + limits)}."
        if handicaps:
            fix += " The Baseline is measured without the first " + str(len(handicaps)) + "."
        return Check("blas", State.NOTE, found, fix)
    return Check("blas", State.OK, found)


def _gpu(_settings: Settings) -> Check:
    nodes = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    library = ctypes.util.find_library("cuda")
    if not nodes and library is None:
        fix = "For an NVIDIA GPU install its driver and `pip install 'rooftile-server[cuda13]'` (or cuda12)."
        return Check("gpu", State.NOTE, "none found; jobs run on the CPU", fix)
    found = f"{', '.join(nodes) or 'no device file'}; driver library {library or 'not found'}"
    if importlib.util.find_spec("cupy") is None:
        return Check(
            "gpu", State.NOTE, found, "Run `pip install 'rooftile-server[cuda13]'` (or cuda12) to use it."
        )
    return Check("gpu", State.OK, found)


def _kernels(_settings: Settings) -> Check:
    return Check("kernels", State.OK, f"{kernels_dir()}, migrations {migrations_dir()}")


def _home(settings: Settings) -> Check:
    home = prepare_home(settings.home)
    holder = running(home)
    mode = stat.S_IMODE(home.root.stat().st_mode)
    found = f"{home.root} (mode {mode:04o})"
    if holder is not None:
        found += f", `rooftile {holder.command}` runs as process {holder.pid}"
    if holder is not None and holder.ailments:
        return Check("home", State.NOTE, f"{found}: {' '.join(holder.ailments)}", f"See {home.logs}.")
    if mode & 0o077:
        return Check("home", State.NOTE, found, f"Others may read it: `chmod 700 {home.root}`.")
    return Check("home", State.OK, found)


def _disk(settings: Settings) -> Check:
    free = shutil.disk_usage(settings.home).free
    found = f"{free / 2**30:.1f} GiB free at {settings.home}"
    fix = "Free some space or set ROOFTILE_HOME elsewhere."
    if free < _LEAST_FREE_BYTES:
        return Check("disk", State.MISSING, found, fix)
    if free < _ENOUGH_FREE_BYTES:
        return Check("disk", State.NOTE, found, fix)
    return Check("disk", State.OK, found)


def _database(settings: Settings) -> Check:
    shown = shown_url(settings.database_url)
    path = sqlite_path(settings.database_url)
    if path is not None and not path.exists():
        return Check(
            "database", State.NOTE, f"{shown} does not exist yet", "`serve`, `tune` or `migrate` make it."
        )
    current, newest = migrate.current(settings.database_url), migrate.head()
    if current != newest:
        found = f"{shown} is at {current or 'no schema'}, this version needs {newest}"
        # `serve` and `tune` bring a file of their own up to date; on a server no process starts before that
        state = State.NOTE if path is not None else State.MISSING
        return Check("database", state, found, "Run `rooftile migrate`.")
    return Check("database", State.OK, f"{shown} (schema {current})")


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite address; None for a server."""
    scheme, _, rest = url.partition("://")
    return Path(rest.partition("?")[0].removeprefix("/")) if scheme.startswith("sqlite") and rest else None


def shown_url(url: str) -> str:
    """An address without its password."""
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    scheme, _, rest = head.partition("://")
    return f"{scheme}://{rest.partition(':')[0]}:***@{tail}"


def _broker(settings: Settings) -> Check:
    if settings.broker_url is None:
        return Check("broker", State.OK, "none: embedded, workers sweep the database")
    return cluster.broker(settings, shown_url(settings.broker_url))


def _locks(_settings: Settings) -> Check:
    folder = host_lock_dir()
    os.close(open_lock_file(folder / "doctor.lock"))
    found = f"{folder}, shared by all users of this host"
    for path in sorted(folder.glob("device-*.lock")):
        holder = lock_holder(path)
        if holder is not None:
            found += f"; {path.stem.removeprefix('device-')} is measured on by {holder}"
    return Check("locks", State.OK, found)


def _port(settings: Settings) -> Check:
    holder = running(Home(settings.home))
    if holder is not None and holder.url:
        return Check("port", State.OK, f"served at {holder.url}")
    try:
        setup.free_port("127.0.0.1", DEFAULT_PORT)
    except OperationError:
        return Check("port", State.NOTE, f"{DEFAULT_PORT} is taken", "Use `rooftile serve --port N`.")
    return Check("port", State.OK, f"{DEFAULT_PORT} is free")
