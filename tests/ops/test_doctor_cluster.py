"""Does the doctor see what is wrong with a cluster, and say what to do? With a real Postgres and Valkey."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from bench.servers.valkey import Valkey
from service import doctor_cluster as cluster
from service.bus import app as bus_app
from service.doctor import examine
from service.doctor_cluster import State
from service.host import host_name
from service.settings import Settings
from service.store import clock, workers
from service.store.database import Database
from service.store.enums import WorkerKind, WorkerState
from service.store.models import Worker
from service.version import told


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    made.start()
    yield made
    made.kill()


def test_a_cluster_that_is_well(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    database = Database(postgres_url)
    with database.begin() as s:
        for kind in (WorkerKind.SEARCH, WorkerKind.COMPILE, WorkerKind.EMULATE, WorkerKind.MEASURE):
            workers.heartbeat(s, f"{kind}-1", kind, "host", 1, None, WorkerState.IDLE, told())
    database.close()
    settings = Settings(home=tmp_path / "home", database_url=postgres_url, broker_url=valkey.url)
    found = {check.name: check for check in examine(settings)}
    for name in (
        "database",
        "broker",
        "celery",
        "postgres",
        "clock",
        "connections",
        "workers",
        "processes",
        "locks",
    ):
        assert found[name].state is State.OK, found[name]
        assert not found[name].fix
    assert "1 search, 1 compile, 1 emulate, 1 measure" in found["workers"].found
    assert "noeviction" in found["broker"].found


def test_a_compiler_is_needed_only_where_a_compile_worker_runs(
    valkey: Valkey, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images of the API and of search hold none."""
    bare = tmp_path / "bin"
    bare.mkdir()
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("CC", raising=False)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else real(name))
    settings = Settings(home=tmp_path / "home", database_url=postgres_url, broker_url=valkey.url)
    database = Database(postgres_url)

    def report(name: str, kind: WorkerKind, host: str, seconds_ago: float = 0.0) -> None:
        with database.begin() as s:
            workers.heartbeat(s, name, kind, host, 1, None, WorkerState.IDLE, told())
            then = clock.now(s) - timedelta(seconds=seconds_ago)
            s.execute(update(Worker).where(Worker.id == name).values(heartbeat_at=then))

    def look(asked: Settings = settings) -> cluster.Check:
        return next(one for one in examine(asked) if one.name == "compiler")

    report("search", WorkerKind.SEARCH, host_name())
    report("elsewhere", WorkerKind.COMPILE, "another-host")
    report("gone", WorkerKind.COMPILE, host_name(), 3600.0)
    elsewhere = look()
    assert elsewhere.state is State.NOTE
    assert "No C compiler" in elsewhere.found
    assert "compile worker" in elsewhere.fix
    # Without a broker this host does everything itself.
    assert look(settings.model_copy(update={"broker_url": None})).state is State.MISSING
    report("here", WorkerKind.COMPILE, host_name())
    assert look().state is State.MISSING
    database.close()


def test_a_broker_that_is_away_or_evicts(valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", database_url=postgres_url, broker_url=valkey.url)
    valkey.kill()
    away = cluster.broker(settings, "shown")
    assert away.state is State.MISSING
    assert "does not answer" in away.found
    evicting = cluster.of_broker({"valkey_version": "8.0.1", "maxmemory_policy": "allkeys-lru"}, "shown")
    assert evicting.state is State.NOTE
    assert "noeviction" in evicting.fix
    assert cluster.of_broker({"redis_version": "5.0.14"}, "shown").state is State.MISSING
    assert cluster.of_broker({"redis_version": "7.2.4"}, "shown").state is State.OK


def test_each_finding_says_what_to_do() -> None:
    assert cluster.version(140011).state is State.MISSING
    assert cluster.version(150000).state is State.OK
    assert [cluster.skew(s).state for s in (0.1, -1.0, 30.0)] == [State.OK, State.NOTE, State.MISSING]
    assert "behind" in cluster.skew(-30.0).found
    assert cluster.connections(97, 3, 4).state is State.OK
    crowded = cluster.connections(97, 3, 40)
    assert crowded.state is State.NOTE
    assert "max_connections" in crowded.fix
    nobody = cluster.reporting([], [])
    assert nobody.state is State.NOTE
    for kind in ("search", "compile", "emulate", "measure"):
        assert f"`rooftile worker {kind}`" in nobody.fix


def test_options_of_celery_that_are_not_ours_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, broker_url="redis://127.0.0.1:1/0")
    assert cluster.celery(settings).state is State.OK
    real = bus_app.make_celery

    def other(asked: Settings) -> object:
        made = real(asked)
        made.conf.worker_prefetch_multiplier = 4
        return made

    monkeypatch.setattr(cluster, "make_celery", other)
    wrong = cluster.celery(settings)
    assert wrong.state is State.MISSING
    assert "worker_prefetch_multiplier is 4, not 1" in wrong.found


def test_a_broker_with_sqlite_is_told(valkey: Valkey, tmp_path: Path) -> None:
    found = {check.name: check for check in examine(Settings(home=tmp_path / "home", broker_url=valkey.url))}
    assert found["postgres"].state is State.MISSING
    assert "Postgres" in found["postgres"].fix


def test_workers_of_another_release_or_other_periods_are_named(postgres_url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", database_url=postgres_url)
    database = Database(postgres_url)

    def report(name: str, kind: WorkerKind, seconds_ago: float = 0.0, **other: object) -> None:
        data = {**told(), **other}
        with database.begin() as s:
            workers.heartbeat(s, name, kind, f"host-of-{name}", 1, None, WorkerState.IDLE, data)
            then = clock.now(s) - timedelta(seconds=seconds_ago)
            s.execute(update(Worker).where(Worker.id == name).values(heartbeat_at=then))

    def look() -> cluster.Check:
        return next(one for one in cluster.of_database(settings) if one.name == "processes")

    report("same", WorkerKind.SEARCH)
    assert look().state is State.OK
    # It reports each 150 s, and is dead by what the doctor goes by.
    report("slow", WorkerKind.MEASURE, 200.0, lease_s=600.0)
    report("gone", WorkerKind.MEASURE, 2000.0, lease_s=600.0)
    report("old", WorkerKind.COMPILE, version="0.0.9")
    found = look()
    assert found.state is State.NOTE
    assert "compile on host-of-old has 0.0.9, 20 s" in found.found
    assert "measure on host-of-slow has" in found.found
    assert "600 s" in found.found
    assert "same" not in found.found
    assert "gone" not in found.found
    assert "ROOFTILE_LEASE_S" in found.fix
    database.close()
