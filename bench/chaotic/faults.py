"""Which faults are there, and what does each do to the cluster?

A fault is struck at processes that hold a lease or an open transaction (holders.py); where none does, it
waits a little and then gives up, which is a miss and is not counted. A fault that lasts is undone before it
returns, so at the end of a run nothing is left but what the cluster made of it.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaotic.clock import set_clock
from bench.chaotic.cluster import LEASE_S, Cluster
from bench.chaotic.holders import holders
from bench.chaotic.process import Process, children_of
from service.bus.app import make_celery
from service.bus.names import Kind, queue_of, task_of
from service.settings import Settings

WAIT_S = 4.0
"""For a process that holds something."""
_LOOK_S = 0.02
WORKERS = ("search", "compile", "emulate", "measure")


@dataclass(frozen=True)
class Hit:
    """A fault that struck."""

    target: str
    """Whom: names of processes, or the server."""
    what: str
    """What was done, in a few words."""
    holding: int
    """How many of the processes that it struck held a lease or an open transaction."""
    of: str = "server"
    """Its kind of process."""


Strike = Callable[[Cluster, random.Random], Hit | None]


# ---------------------------------------------------------------- processes


def kill(cluster: Cluster, rng: random.Random) -> Hit | None:
    """SIGKILL to a process, or to one of its children: a compiler, a measuring process, a candidate."""
    with _victim(cluster, rng, *WORKERS, "api") as process:
        pid = None if process is None else process.pid
        if process is None or pid is None:
            return None
        below = children_of(pid)
        if below and rng.random() < 0.4:
            victim = rng.choice(below)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                return Hit(process.name, "SIGKILL to a child", 1, process.kind)
        struck = process.signal(signal.SIGKILL)
        return Hit(process.name, "SIGKILL", 1, process.kind) if struck else None


def freeze(cluster: Cluster, rng: random.Random) -> Hit | None:
    """SIGSTOP until its lease is over, then SIGCONT: it comes back with what others have by now."""
    with _victim(cluster, rng, *WORKERS, "api") as process:
        if process is None:
            return None
        with process.lock:
            pid = process.pid
            if pid is None:
                return None
            os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(LEASE_S * rng.uniform(1.1, 1.8))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return Hit(process.name, "SIGSTOP past its lease", 1, process.kind)


# ---------------------------------------------------------------- servers


def broker(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Stop it, kill it, or throw away all that it holds."""
    held = _holders(cluster)
    if not held:
        return None
    how = rng.choice(("stop", "kill", "flush"))
    with _broker_lock:
        if how == "flush":
            with cluster.valkey.client() as client:
                client.flushall()
        else:
            (cluster.valkey.stop if how == "stop" else cluster.valkey.kill)()
            time.sleep(rng.uniform(0.2, 3.0))
            cluster.valkey.start()
    return Hit("broker", how, len(held))


def database(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Restart it, in order or as after a power cut."""
    held = _holders(cluster)
    if not held:
        return None
    immediately = rng.random() < 0.5
    with _database_lock:
        cluster.postgres.halt(immediately=immediately)
        time.sleep(rng.uniform(0.0, 2.0))
        cluster.postgres.resume()
    return Hit("database", "power cut" if immediately else "restart", len(held))


# ---------------------------------------------------------------- connections


def cut(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Reset every connection of a process, and refuse it new ones for a while."""
    relays = [cluster.database_relay, cluster.broker_relay]
    with _victim(cluster, rng, *WORKERS, "api") as process:
        if process is None:
            return None
        gone = sum(relay.cut(process.name) for relay in relays)
    if rng.random() < 0.5:
        for relay in relays:
            relay.refuse(process.name)
        time.sleep(rng.uniform(0.2, 3.0))
        for relay in relays:
            relay.heal(process.name)
    return Hit(process.name, "connections cut", 1, process.kind) if gone else None


def slow(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Let every piece of its connections wait, or hold them altogether for longer than its lease."""
    relays = [cluster.database_relay, cluster.broker_relay]
    with _victim(cluster, rng, *WORKERS, "api") as process:
        if process is None:
            return None
        holding = process.kind == "api" or rng.random() < 0.4  # the API is held already
        for relay in relays:
            if holding:
                relay.hold(process.name)
            else:
                relay.slow(rng.uniform(0.02, 0.4), process.name)
        time.sleep(rng.uniform(0.5, 1.5) * LEASE_S)
        for relay in relays:
            relay.heal(process.name)
    return Hit(process.name, "connections held" if holding else "connections slowed", 1, process.kind)


# ---------------------------------------------------------------- resources


def disk(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Fill the disk that its home is on, or where that is not its own, let no file of it grow."""
    process = _holder(cluster, rng, "compile", "measure", "emulate")
    pid = None if process is None else process.pid
    if process is None or pid is None:
        return None
    if process.home in cluster.mounts:
        ballast = process.home / "ballast"
        _fill(ballast)
        time.sleep(rng.uniform(0.5, 4.0))
        ballast.unlink(missing_ok=True)
        return Hit(process.name, "disk full", 1, process.kind)
    with limited(process, pid, resource.RLIMIT_FSIZE, rng.choice((0, 4096))):
        time.sleep(rng.uniform(0.5, 4.0))
    return Hit(process.name, "no file may grow", 1, process.kind)


def memory(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Let it have hardly more address space than it has, or less: then it gets nothing new at all, and a
    child that it starts has half of that."""
    process = _holder(cluster, rng, *WORKERS)
    pid = None if process is None else process.pid
    if process is None or pid is None:
        return None
    size = _address_space(pid)
    if size is None:
        return None
    with limited(process, pid, resource.RLIMIT_AS, rng.choice((size // 2, size, size + (1 << 20)))):
        process.starved_at = time.monotonic() + 4.0
        time.sleep(rng.uniform(0.5, 4.0))
    return Hit(process.name, "memory starved", 1, process.kind)


def clock(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Move its clock by minutes to years, forth or back; another jump brings it back."""
    process = _holder(cluster, rng, *WORKERS)
    if process is None or process.clock is None:
        return None
    offset = rng.choice((-1, 1)) * int(10 ** rng.uniform(1.5, 7.5))
    set_clock(process.clock, offset)
    time.sleep(rng.uniform(1.5, 6.0))
    set_clock(process.clock, 0)
    return Hit(process.name, f"clock moved by {offset} s", 1, process.kind)


# ---------------------------------------------------------------- tasks


def twice(cluster: Cluster, rng: random.Random) -> Hit | None:
    """Deliver tasks again: each queue's, many times over, some held back and delivered late."""
    held = _holders(cluster)
    if not held:
        return None
    late = rng.random() < 0.5
    if late:
        cluster.broker_relay.hold()
    try:
        with _broker_lock:
            _send(cluster, rng.randrange(2, 20))
        if late:
            time.sleep(rng.uniform(0.5, LEASE_S))
    finally:
        if late:
            cluster.broker_relay.heal()
    return Hit("broker", "tasks twice and late" if late else "tasks twice", len(held))


FAULTS: dict[str, Strike] = {
    "kill": kill,
    "freeze": freeze,
    "broker": broker,
    "database": database,
    "cut": cut,
    "slow": slow,
    "disk": disk,
    "memory": memory,
    "clock": clock,
    "tasks": twice,
}
"""By kind."""


# ---------------------------------------------------------------- help

# One restart of a server at a time; and nothing is sent to one that is down on purpose.
_broker_lock = threading.Lock()
_database_lock = threading.Lock()


def _holders(cluster: Cluster) -> list[Process]:
    deadline = time.monotonic() + WAIT_S
    while not (found := holders(cluster)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _holder(cluster: Cluster, rng: random.Random, *kinds: str) -> Process | None:
    """One that holds something, of these kinds. A kind is drawn first, seldom struck ones rather than others;
    where none of it comes to hold anything, it is one of whoever does, again of the kind struck least: else
    those that hold most of the time would be the only ones."""
    wanted = draw_kind(cluster.struck, rng, kinds)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = [one for one in holders(cluster) if one.kind in kinds]
        chosen = [one for one in found if one.kind == wanted]
        if not chosen and found and time.monotonic() > deadline - WAIT_S / 2:
            least = min(cluster.struck[one.kind] for one in found)
            chosen = [one for one in found if cluster.struck[one.kind] == least]
        if chosen:
            return rng.choice(chosen)
        time.sleep(_LOOK_S)
    return None


def draw_kind(struck: Mapping[str, int], rng: random.Random, kinds: Sequence[str]) -> str:
    """One of these kinds of process: twice as likely as another that was struck twice as often."""
    return rng.choices(kinds, [1 / (1 + struck.get(kind, 0)) for kind in kinds])[0]


@contextmanager
def _victim(cluster: Cluster, rng: random.Random, *kinds: str) -> Iterator[Process | None]:
    """As `_holder`; the API among the kinds, which is made to hold something, for as long as this lasts."""
    if draw_kind(cluster.struck, rng, kinds) == "api":
        with _api_in_a_transaction(cluster) as api:
            yield api
    else:
        yield _holder(cluster, rng, *(kind for kind in kinds if kind != "api"))


@contextmanager
def _api_in_a_transaction(cluster: Cluster) -> Iterator[Process | None]:
    """The API, held in the midst of a transaction: what it asks reaches the database, and no answer comes
    back. None where it begins none."""
    api = cluster.named("api")
    cluster.database_relay.hold_answers(api.name)
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if api in holders(cluster):
                yield api
                return
            time.sleep(_LOOK_S)
        yield None
    finally:
        cluster.database_relay.heal(api.name)


def _fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * piece)


@contextmanager
def limited(process: Process, pid: int, kind: int, limit: int) -> Iterator[None]:
    """Lower the soft limit of a process and so of the children that it starts meanwhile, and of nobody that
    comes after it under its name."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit, before[1]))
    try:
        yield
    finally:
        with process.lock:
            for one in (pid, *children_of(pid)) if process.pid == pid else ():
                with suppress(ProcessLookupError):
                    soft, hard = resource.prlimit(one, kind)
                    if soft == limit:  # else it has one of its own
                        resource.prlimit(one, kind, (before[0] if hard == before[1] else hard, hard))


def _address_space(pid: int) -> int | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def _send(cluster: Cluster, times: int) -> None:
    settings = Settings(home=cluster.folder, database_url="sqlite:////unused", broker_url=cluster.valkey.url)
    app: Any = make_celery(settings)
    queues: list[tuple[Kind, str]] = [(kind, queue_of(kind)) for kind in Kind if kind is not Kind.MEASURE]
    queues += [(Kind.MEASURE, queue_of(Kind.MEASURE, key)) for key in cluster.devices]
    with app.connection_for_write() as connection:
        for kind, queue in queues:
            for _ in range(times):
                app.send_task(
                    task_of(kind), args=["1"], queue=queue, connection=connection, ignore_result=True
                )
