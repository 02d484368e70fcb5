"""Which cluster is tormented: its servers, its relays, its processes, and the view from outside?

API, two search, two compile, one emulate and three measure workers. Each worker takes itself for a host of
its own, so it shares no lock with another; the three devices are aliases of this machine's CPU. Every process
reaches Postgres and Valkey by a port of its own through a relay.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rooftile.device import local_cpu
from sqlalchemy import make_url

from bench.chaotic.clock import preload
from bench.chaotic.process import Process, Tender
from bench.chaotic.relay import Relay
from bench.servers.postgres import Postgres, free_port
from bench.servers.valkey import Valkey
from service.host import VARIABLE as TEST_HOST
from service.paths import host_lock_dir
from service.store import migrate
from service.store.database import Database

LEASE_S = 5.0
MARK = "ROOFTILE_BENCH_CHAOS"
HOME_MIB = 96
"""Of the disk that each worker's home is, where a disk of its own may be mounted."""

MEASURERS = ("alpha", "beta", "gamma")


@dataclass
class Cluster:
    """All of it. `url` is the API's own address; `database` goes to Postgres without a relay."""

    folder: Path
    postgres: Postgres
    valkey: Valkey
    database_relay: Relay
    broker_relay: Relay
    processes: list[Process]
    tender: Tender
    database: Database
    url: str
    token: str
    mark: str
    mounts: list[Path]
    locks: list[Path]
    """Folders of the made-up hosts' locks."""
    devices: list[str]
    struck: Counter[str] = field(default_factory=Counter)
    """How often processes of each kind were."""

    def named(self, name: str) -> Process:
        return next(one for one in self.processes if one.name == name)

    def kinds(self, *kinds: str) -> list[Process]:
        return [one for one in self.processes if one.kind in kinds]


def alias_key(host: str) -> str:
    """The device that the measure worker of a made-up host offers."""
    return str(replace(local_cpu().device_key, vendor=host))


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start it; on leaving, end whatever is left of it."""
    with Postgres.start(synchronous_commit="on", max_connections=150) as postgres:
        valkey = Valkey(folder)
        valkey.start()
        made = None
        try:
            made = _make(folder, postgres, valkey)
            made.tender.start()
            yield made
        finally:
            if made is not None:
                _unmake(made)
            valkey.kill()


def _make(folder: Path, postgres: Postgres, valkey: Valkey) -> Cluster:
    url = postgres.create_database()
    migrate.upgrade(url)
    parsed = make_url(url)
    database_relay = Relay("127.0.0.1", int(parsed.port or 5432))
    broker_relay = Relay("127.0.0.1", valkey.port)
    mark = f"{MARK}={secrets.token_hex(8)}"
    token = secrets.token_hex(16)
    run = secrets.token_hex(3)  # no two runs share the locks of a host
    api_port = free_port()
    mounts: list[Path] = []
    processes = []
    members: list[tuple[str, str, tuple[str, ...]]] = [
        ("api", "api", ("service.api", "--host", "127.0.0.1", "--port", str(api_port)))
    ]
    members += [(f"search{n}", "search", ("service.search",)) for n in (1, 2)]
    members += [(f"compile{n}", "compile", ("worker", "compile", "--jobs", "2")) for n in (1, 2)]
    members += [("emulate1", "emulate", ("worker", "emulate"))]
    members += [(host, "measure", ("worker", "measure", "--device", "alias")) for host in MEASURERS]
    for name, kind, command in members:
        home = folder / name
        home.mkdir(mode=0o700)
        if kind in ("compile", "measure", "emulate") and _mount(home):
            mounts.append(home)
        clock = None
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROOFTILE_")}
        if kind != "api":
            library = preload()
            if library is not None:
                clock = folder / f"{name}.clock"
                environment |= library.environment(clock)
        environment |= {
            "ROOFTILE_HOME": str(home),
            "ROOFTILE_DATABASE_URL": _through(url, database_relay.port(name)),
            "ROOFTILE_BROKER_URL": f"redis://127.0.0.1:{broker_relay.port(name)}/0",
            "ROOFTILE_LEASE_S": str(LEASE_S),
            "ROOFTILE_CACHE_MIB": "16",
            TEST_HOST: name + run,
            **dict([mark.split("=")]),
        }
        if kind == "api":
            environment["ROOFTILE_TOKEN"] = token
        processes.append(Process(name, kind, command, environment, home, clock, folder / f"{name}.log"))
    return Cluster(
        folder=folder,
        postgres=postgres,
        valkey=valkey,
        database_relay=database_relay,
        broker_relay=broker_relay,
        processes=processes,
        tender=Tender(processes),
        database=Database(url, name="chaos", pool_size=3, max_overflow=5),
        url=f"http://127.0.0.1:{api_port}",
        token=token,
        mark=mark,
        mounts=mounts,
        locks=[host_lock_dir() / f"test-{process.host}" for process in processes],
        devices=[alias_key(name + run) for name in MEASURERS],
    )


def _unmake(made: Cluster) -> None:
    made.tender.close()
    for process in made.processes:
        if process.running is not None and process.running.poll() is None:
            process.running.kill()
            process.running.wait()
    made.database.close()
    made.database_relay.close()
    made.broker_relay.close()
    for mount in made.mounts:
        subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)
    for locks in made.locks:
        with suppress(OSError):
            shutil.rmtree(locks)


def _through(url: str, port: int) -> str:
    parsed = make_url(url).set(host="127.0.0.1", port=port)
    return parsed.render_as_string(hide_password=False)


def _mount(home: Path) -> bool:
    """Give a home a small disk of its own; False where only root may, and we are not."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={HOME_MIB}m,mode=0700", "rooftile-chaos", str(home)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
