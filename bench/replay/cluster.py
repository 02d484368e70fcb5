"""Which processes are a replayed run, and how much CPU has each of them used?

In the cluster shape Postgres, Valkey, and Celery workers: an API, a search, a compile and a measure worker.
In the embedded shape the same four processes over SQLite, without a broker: as below `rooftile serve`, whose
supervisor would start a measure worker for the real CPU.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from bench.common import BenchError
from bench.replay.device import HOST, TRIAL_S
from bench.replay.statements import TRANSACTION, counted
from bench.servers.postgres import Postgres, free_port
from bench.servers.spawn import spawn
from bench.servers.valkey import Valkey
from service.host import VARIABLE as TEST_HOST
from service.store import devices, migrate, tokens
from service.store.database import Database
from service.store.enums import Scope

KINDS = ("api", "search", "compile", "measure")
NAME = "rooftile-bench"
"""Of this process's own connections."""
START_S = 60.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass
class Run:
    """What runs, and how it is asked."""

    shape: str
    database: Database
    url: str
    token: str
    processes: Mapping[str, subprocess.Popen[bytes]]
    folder: Path
    postmaster: int | None
    valkey: int | None

    def post(self, path: str, body: Mapping[str, Any], token: str | None = None) -> Any:
        """A request over HTTP, as any client's."""
        return self._ask(path, json.dumps(body).encode(), token)

    def get(self, path: str) -> Any:
        return self._ask(path, None, None)

    def _ask(self, path: str, data: bytes | None, token: str | None) -> Any:
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def new_tokens(self, count: int) -> list[str]:
        """So many tokens that may submit."""
        with self.database.begin() as s:
            return [tokens.create(s, f"bench {i}", {Scope.SUBMIT})[1] for i in range(count)]

    def check(self) -> None:
        """BenchError when a process has ended."""
        for kind, process in self.processes.items():
            if process.poll() is not None:
                raise BenchError(f"the {kind} process ended: {self.log(kind)}")

    def log(self, kind: str) -> str:
        """The end of what a process said."""
        return (self.folder / f"{kind}.log").read_text(errors="replace")[-2000:]

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU by process since it began; of Postgres with all its backends, ended ones too, but
        those that this bench asks."""
        found = {kind: _used_s(process.pid) for kind, process in self.processes.items()}
        if self.postmaster is not None:
            asked = self._asked()
            found["postgres"] = _used_s(self.postmaster, ended=True) + sum(
                _used_s(pid) for pid in _children(self.postmaster) if pid not in asked
            )
        if self.valkey is not None:
            found["valkey"] = _used_s(self.valkey)
        return found

    def _asked(self) -> set[int]:
        query = text("SELECT pid FROM pg_stat_activity WHERE application_name = :name")
        with self.database.glance() as s:
            return set(s.scalars(query, {"name": NAME}))

    def statements(self) -> dict[str, int]:
        """Sent to the database by process, transactions left out, as counted a second ago."""
        return {
            kind: sum(count for text, count in counted(self.folder / kind).items() if text != TRANSACTION)
            for kind in self.processes
        }


@contextmanager
def running(folder: Path, shape: str, trial_s: float) -> Iterator[Run]:
    """Start it and wait until the device is connected; end it on leaving."""
    with ExitStack() as stack:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
        environment |= {TEST_HOST: HOST, TRIAL_S: str(trial_s)}
        postmaster = valkey = None
        if shape == "cluster":
            postgres = stack.enter_context(Postgres.start(synchronous_commit="on"))
            url = postgres.create_database()
            postmaster = _postmaster(url)
            broker = Valkey(folder)
            broker.start()
            stack.callback(broker.stop)
            with broker.client() as client:
                valkey = int(client.info("server")["process_id"])
            environment["ROOFTILE_BROKER_URL"] = broker.url
        else:
            url = f"sqlite:///{folder / 'rooftile.db'}"
        migrate.upgrade(url)
        token, port = secrets.token_hex(16), free_port()
        environment["ROOFTILE_DATABASE_URL"] = url
        # closed after the processes have ended
        database = Database(url, name=NAME)
        stack.callback(database.close)
        processes = {
            kind: stack.enter_context(_process(kind, folder, environment, token, port)) for kind in KINDS
        }
        run = Run(shape, database, f"http://127.0.0.1:{port}", token, processes, folder, postmaster, valkey)
        _wait_for_device(run)
        yield run


@contextmanager
def _process(
    kind: str, folder: Path, environment: Mapping[str, str], token: str, port: int
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.replay", kind]
    mine = {**environment, "ROOFTILE_HOME": str(folder / kind)}
    if kind == "api":
        command += ["--port", str(port)]
        mine["ROOFTILE_TOKEN"] = token
    with (folder / f"{kind}.log").open("wb") as log:
        process = spawn(command, env=mine, cwd=Path(__file__).parents[2], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_device(run: Run) -> None:
    deadline = time.monotonic() + START_S
    while True:
        run.check()
        with run.database.read() as s:
            known = devices.connected(s)
        with suppress(OSError):
            if known and run.get("/readyz"):
                return
        if time.monotonic() > deadline:
            raise BenchError(f"nothing was ready after {START_S:.0f} s: {run.log('measure')}")
        time.sleep(0.1)


# ---------------------------------------------------------------- CPU


def _postmaster(url: str) -> int | None:
    """The parent of a backend; None where Postgres runs on another machine."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        try:  # while it is connected: the backend ends with the connection
            return None if row is None else int(_stat(row[0])[1])
        except OSError:
            return None


def _used_s(pid: int, *, ended: bool = False) -> float:
    """User and system time; `ended`: with that of its children that ended. 0 for who is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return _TICK_S * sum(int(one) for one in fields[11 : 15 if ended else 13])


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(one) for one in text.split()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
