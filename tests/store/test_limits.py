"""Do the limits of the environment hold on a real Postgres, and is every wait ended by one of them?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from service.errors import SettingsError
from service.store import patience
from service.store.database import Database
from service.store.errors import DatabaseUnreachable, StoreBusy, StoreError
from service.store.limits import Limits, limits

Env = pytest.MonkeyPatch


def _set(env: Env, **values: object) -> None:
    for name, value in values.items():
        env.setenv(f"ROOFTILE_DATABASE_{name.upper()}", str(value))


@contextmanager
def _opened(url: str, name: str = "rooftile-test") -> Iterator[Database]:
    database = Database(url, name=name)
    try:
        yield database
    finally:
        database.close()


def _show(database: Database, *names: str) -> list[str]:
    with database.read() as s:
        return [s.execute(text(f"SHOW {name}")).scalar_one() for name in names]


NAMES = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "timezone")


def test_they_come_from_the_environment(postgres_url: str, monkeypatch: Env) -> None:
    with _opened(postgres_url) as database:
        assert _show(database, *NAMES) == ["30s", "5s", "1min", "UTC"]
    _set(monkeypatch, statement_s=7, lock_s=0.5, idle_s=90)
    with _opened(postgres_url) as database:
        assert _show(database, *NAMES) == ["7s", "500ms", "90s", "UTC"]
        assert database.engine().pool.size() == 2  # type: ignore[attr-defined]
    with _opened(postgres_url, "rooftile token") as database:
        assert _show(database, "application_name") == ["rooftile-token"]


def test_a_statement_a_lock_and_a_full_pool_are_waited_for_so_long_only(
    postgres_url: str, monkeypatch: Env
) -> None:
    _set(monkeypatch, statement_s=1, lock_s=0.3, pool=1, pool_wait_s=0.3)
    with _opened(postgres_url) as database, _opened(postgres_url) as other:
        with pytest.raises(StoreBusy, match="statement timeout"), database.read() as s:
            s.execute(text("SELECT pg_sleep(60)"))
        with other.begin() as holding:
            holding.execute(text("LOCK TABLE jobs"))
            with pytest.raises(StoreBusy, match="lock timeout"), database.read() as s:
                s.execute(text("SELECT count(*) FROM jobs"))
        with database.read() as s:
            s.execute(text("SELECT 1"))
            started = time.monotonic()
            with pytest.raises(StoreBusy, match="in use"):
                database.alive()
            assert time.monotonic() - started < 10
        database.alive()


def test_a_transaction_that_was_forgotten_is_ended_and_was_named(postgres_url: str, monkeypatch: Env) -> None:
    """SV-08: left open it would hold its locks, and keep rows from being cleaned up, for hours."""
    _set(monkeypatch, idle_s=1, pool=1)
    with _opened(postgres_url, "rooftile-leak") as leaking, _opened(postgres_url) as other:
        with pytest.raises(StoreError):
            _leak(leaking, other)
        leaking.alive()


def _leak(leaking: Database, other: Database) -> None:
    query = "SELECT state FROM pg_stat_activity WHERE application_name = 'rooftile-leak'"
    with leaking.begin() as forgotten:
        forgotten.execute(text("LOCK TABLE jobs"))
        with other.read() as s:
            assert s.execute(text(query)).scalar_one() == "idle in transaction"
        with other.begin() as s:  # waits for the lock until the leak is ended, for less than its own limit
            s.execute(text("LOCK TABLE jobs"))
        forgotten.execute(text("SELECT 1"))


def test_a_host_that_vanishes_is_noticed(postgres_url: str, monkeypatch: Env) -> None:
    """What the kernel is told; a cable cannot be pulled here."""
    _set(monkeypatch, silence_s=30)
    with _opened(postgres_url) as database, database.engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        with socket.socket(fileno=os.dup(driver.fileno())) as kernel:
            assert kernel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 2
            assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_a_server_that_takes_connections_and_says_nothing_is_waited_for_so_long_only(
    monkeypatch: Env,
) -> None:
    _set(monkeypatch, connect_s=2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(silent.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        started = time.monotonic()
        with (
            _opened(f"postgresql://u:secret@127.0.0.1:{silent.getsockname()[1]}/d") as database,
            pytest.raises(StoreError) as told,
        ):
            database.alive()
        assert time.monotonic() - started < 20
        assert "secret" not in str(told.value)
        silent.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for one in taken:
        one.close()


def test_a_server_that_is_frozen_is_given_up_and_the_next_connection_works(
    postgres_url: str, monkeypatch: Env
) -> None:
    """Its kernel goes on acknowledging, so no limit of our kernel's holds; it ends no statement itself."""
    _set(monkeypatch, statement_s=1)
    monkeypatch.setattr(patience, "SILENT_S", 1.0)
    with _opened(postgres_url) as database:
        for of in (database.read, database.begin):
            with database.read() as s:
                backend = s.execute(text("SELECT pg_backend_pid()")).scalar_one()
            _freeze(backend)
            thaw = threading.Timer(20.0, os.kill, (backend, signal.SIGCONT))  # who waits for ever fails
            thaw.start()
            started = time.monotonic()
            try:
                with pytest.raises(DatabaseUnreachable, match="no answer came within 2 s"), of() as s:
                    s.execute(text("SELECT 1"))
            finally:
                thaw.cancel()
                os.kill(backend, signal.SIGCONT)
            assert 1.5 < time.monotonic() - started < 20
            with database.read() as s:
                assert s.execute(text("SELECT pg_backend_pid()")).scalar_one() != backend
        # one that works is not given up: each statement has its own time
        with database.read() as s:
            for _ in range(4):
                s.execute(text("SELECT pg_sleep(0.7)"))


def _freeze(backend: int) -> None:
    try:
        os.kill(backend, signal.SIGSTOP)
    except (ProcessLookupError, PermissionError):
        pytest.skip("Postgres runs elsewhere, or as somebody else")


def test_a_caller_can_only_shorten_a_statement(postgres_url: str, monkeypatch: Env) -> None:
    for given, wanted in ((7.0, "7s"), (90.0, "30s")):
        database = Database(postgres_url, name="rooftile-test", statement_s=given)
        assert _show(database, "statement_timeout") == [wanted]
        database.close()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("STATEMENT_S", "0", "from 1 to 3600"),
        ("LOCK_S", "soon", "from 0.1 to 600"),
        ("POOL", "nan", "from 1 to 1000"),
        ("IDLE_S", "inf", "from 1 to 3600"),
        ("CONNECT_S", "-1", "from 1 to 60"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(monkeypatch: Env, name: str, value: str, allowed: str) -> None:
    _set(monkeypatch, **{name: value})
    with pytest.raises(SettingsError, match=f"ROOFTILE_DATABASE_{name}: must be a number {allowed}"):
        limits()


def test_a_process_says_so_when_it_starts(sqlite_url: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "ROOFTILE_HOME": str(tmp_path),
        "ROOFTILE_DATABASE_URL": sqlite_url,
        "ROOFTILE_DATABASE_POOL": "many",
    }
    done = subprocess.run(
        [sys.executable, "-m", "service.api", "--port", "0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "rooftile: ROOFTILE_DATABASE_POOL: must be a number from 1 to 1000."


def test_no_limit_is_left_out_of_what_may_be_set(monkeypatch: Env) -> None:
    for field in Limits.__slots__:  # type: ignore[attr-defined]
        monkeypatch.setenv(f"ROOFTILE_DATABASE_{field.upper()}", "9")
    assert limits() == Limits(9, 9, 9, 9, 9, 9, 9)
