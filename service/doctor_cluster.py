"""Is the cluster that this process belongs to one that works? Broker, database, clocks, workers, Celery.

Called by the doctor where ROOFTILE_BROKER_URL is set, or the database is a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import text

from service import periods
from service.bus.app import make_celery
from service.bus.broker import broker_info, eviction_warning
from service.bus.names import VISIBILITY_TIMEOUT_S
from service.settings import Settings
from service.store import clock, devices, workers
from service.store.database import Database
from service.store.enums import WorkerKind
from service.store.records import WorkerRecord
from service.version import own_version

LEAST_POSTGRES = 15
LEAST_REDIS = (6, 2)
"""The oldest that its makers still mend; Valkey began at 7.2."""
SKEW_NOTE_S, SKEW_MOST_S = 0.5, 2.0
# Of each process at most: an API has 28 (threads for requests and streams), any other 5.
API_CONNECTIONS = 28
WORKER_CONNECTIONS = 5


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    """There and usable."""
    NOTE = "note"
    """Works without, or will be made when it is needed."""
    MISSING = "missing"
    """Tuning on this machine does not work without it."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    name: str
    state: State
    found: str
    fix: str = ""


def broker(settings: Settings, shown: str) -> Check:
    """Reachable, new enough, and it keeps what it is given."""
    import redis

    try:
        info = broker_info(str(settings.broker_url))
    except (redis.RedisError, OSError) as error:
        fix = "Start it or correct ROOFTILE_BROKER_URL; jobs go on meanwhile, found by each worker's sweep."
        return Check("broker", State.MISSING, f"{shown} does not answer: {error}", fix)
    return of_broker(info, shown)


def of_broker(info: dict[str, Any], shown: str) -> Check:
    """What the server says of itself."""
    is_valkey = "valkey_version" in info
    version = str(info.get("valkey_version" if is_valkey else "redis_version", "0"))
    found = f"{shown} ({'valkey' if is_valkey else 'redis'} {version})"
    if not is_valkey and _numbers(version) < LEAST_REDIS:
        fix = f"Use Valkey, or Redis {LEAST_REDIS[0]}.{LEAST_REDIS[1]} or newer."
        return Check("broker", State.MISSING, found, fix)
    warning = eviction_warning(info)
    if warning is not None:
        return Check("broker", State.NOTE, found, warning)
    return Check("broker", State.OK, f"{found}, noeviction")


def celery(settings: Settings) -> Check:
    """The options that are really in force, as Celery reads them."""
    conf = make_celery(settings).conf
    options = dict(conf.broker_transport_options)
    wanted: Sequence[tuple[str, object, object]] = (
        ("task_acks_late", conf.task_acks_late, True),
        ("worker_prefetch_multiplier", conf.worker_prefetch_multiplier, 1),
        ("result_backend", conf.result_backend, None),
        ("worker_enable_remote_control", conf.worker_enable_remote_control, False),
        ("worker_send_task_events", conf.worker_send_task_events, False),
        ("visibility_timeout", options.get("visibility_timeout"), VISIBILITY_TIMEOUT_S),
    )
    wrong = [f"{name} is {value!r}, not {good!r}" for name, value, good in wanted if value != good]
    if wrong:
        fix = "Take CELERY_... out of the environment and install rooftile-server again."
        return Check("celery", State.MISSING, "; ".join(wrong), fix)
    found = "acks late, prefetch 1, no result backend, no remote control, visibility timeout "
    return Check("celery", State.OK, f"{found}{VISIBILITY_TIMEOUT_S} s")


def of_database(settings: Settings) -> list[Check]:
    """Version, clock, connections and workers, from one look at a Postgres."""
    database = Database(settings.database_url, name="rooftile-doctor", pool_size=1, max_overflow=0)
    try:
        with database.read() as s:
            number = int(s.execute(text("SHOW server_version_num")).scalar_one())
            here, there = datetime.now(UTC), clock.now(s)
            names = ("max_connections", "superuser_reserved_connections")
            limits = [int(s.execute(text(f"SHOW {name}")).scalar_one()) for name in names]
            used = int(s.execute(text("SELECT count(*) FROM pg_stat_activity")).scalar_one())
            listed = workers.listing(s)
            alive = [one for one in listed if one.alive]
            out_of_service = [one.key for one in devices.listing(s) if one.state == "out_of_service"]
    finally:
        database.close()
    return [
        version(number),
        skew((here - there).total_seconds()),
        connections(limits[0] - limits[1], used, len(alive)),
        reporting(alive, out_of_service),
        uniform(listed, there),
    ]


def version(number: int) -> Check:
    """Of Postgres, as server_version_num has it: 170004."""
    found = f"{number // 10000}.{number % 10000}"
    if number // 10000 < LEAST_POSTGRES:
        return Check("postgres", State.MISSING, found, f"Use Postgres {LEAST_POSTGRES} or newer.")
    return Check("postgres", State.OK, found)


def skew(seconds: float) -> Check:
    """Leases run on the database's clock alone; what people read, and the expiry of TLS, does not."""
    found = f"this host is {abs(seconds):.2f} s {'ahead of' if seconds > 0 else 'behind'} the database"
    fix = "Run NTP (chrony, systemd-timesyncd) on both hosts."
    if abs(seconds) > SKEW_MOST_S:
        return Check("clock", State.MISSING, found, fix)
    if abs(seconds) > SKEW_NOTE_S:
        return Check("clock", State.NOTE, found, fix)
    return Check("clock", State.OK, found)


def connections(most: int, used: int, processes: int) -> Check:
    """Whether all pools, full at once, fit into what the server allows."""
    need = API_CONNECTIONS + WORKER_CONNECTIONS * processes
    found = f"{used} in use; one API and {processes} workers may open {need} of {most}"
    if need > most:
        fix = f"Set max_connections to {need + 10} or more (and {API_CONNECTIONS} for each further API)."
        return Check("connections", State.NOTE, found, fix)
    return Check("connections", State.OK, found)


def reporting(alive: Sequence[WorkerRecord], out_of_service: Sequence[str]) -> Check:
    """Who has reported lately, and which kinds nobody of has."""
    counts = {kind: sum(one.kind is kind for one in alive) for kind in _NEEDED}
    found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    found += f" in the last {periods.alive_s():.0f} s"
    if out_of_service:
        found += f"; out of service: {', '.join(out_of_service)}"
    lacking = [str(kind) for kind, count in counts.items() if not count]
    if lacking:
        commands = ", ".join(f"`rooftile worker {kind}`" for kind in lacking)
        fix = f"Nobody does the work of {', '.join(lacking)}: run {commands}."
        return Check("workers", State.NOTE, found, fix)
    if out_of_service:
        return Check("workers", State.NOTE, found, "See its reason: `rooftile device list`.")
    return Check("workers", State.OK, found)


def uniform(listed: Sequence[WorkerRecord], now: datetime) -> Check:
    """Whether all who report run this release and go by this ROOFTILE_LEASE_S: one renews by its own, and is
    judged by the others'."""
    ours = (own_version(), periods.lease_s())
    others = []
    for one in listed:
        theirs = (
            str(one.data.get("version", "?")),
            float(one.data.get("lease_s", ours[1])),
        )
        # A worker of longer periods reports seldom, and lives all the same.
        lately = now - one.heartbeat_at <= timedelta(seconds=1.5 * max(theirs[1], ours[1]))
        if lately and theirs != ours:
            others.append(f"{one.kind} on {one.host} has {theirs[0]}, {theirs[1]:g} s")
    found = f"release {ours[0] or '?'}, {periods.VARIABLE} {ours[1]:g} s"
    if others:
        fix = f"Install one release everywhere, and set {periods.VARIABLE} to one value in all processes."
        return Check("processes", State.NOTE, f"here {found}; {'; '.join(sorted(set(others)))}", fix)
    return Check("processes", State.OK, f"{found} in all workers")


_NEEDED = (WorkerKind.SEARCH, WorkerKind.COMPILE, WorkerKind.EMULATE, WorkerKind.MEASURE)


def safely(name: str, look: Callable[[], Check]) -> Check:
    """A doctor that dies of a finding is no use."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - as above
        return Check(name, State.MISSING, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
