"""What does a caller see when the database is missing, full, locked, damaged, or not suited?"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from support.store import new_job

from service.store import engine, jobs, migrate, tokens
from service.store.database import Database
from service.store.engine import NETWORK_FILESYSTEMS, filesystem_of
from service.store.enums import Scope
from service.store.errors import (
    Conflict,
    DatabaseUnreachable,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    UnsuitableDatabase,
)

ROOT = Path(__file__).parents[2]


def test_an_unreachable_postgres_is_one_sentence_without_the_password() -> None:
    database = Database("postgresql://someone:hunter2@127.0.0.1:1/rooftile")
    with pytest.raises(DatabaseUnreachable) as caught, database.read() as s:
        s.execute(text("SELECT 1"))
    message = str(caught.value)
    assert message == "The database 127.0.0.1:1/rooftile cannot be reached: Connection refused."
    assert "hunter2" not in message
    assert "\n" not in message


def test_a_wrong_password_or_name_is_unreachable_too(postgres_url: str) -> None:
    wrong = make_url(postgres_url).set(database="nothing_here").render_as_string(hide_password=False)
    with pytest.raises(DatabaseUnreachable) as caught:
        Database(wrong).alive()
    assert str(caught.value).endswith(
        '/nothing_here cannot be reached: database "nothing_here" does not exist.'
    )


def admin_sees(admin: Database, pid: int) -> bool:
    with admin.glance() as s:
        return bool(s.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}))


def test_a_postgres_that_dies_under_us_is_unreachable_and_comes_back(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, admin = Database(postgres_url), Database(postgres_url)
    kill = text("SELECT pg_terminate_backend(:pid)")

    def dies() -> None:
        with database.begin() as s:
            pid = s.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with admin.begin() as other:
                other.execute(kill, {"pid": pid})
            s.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnreachable):
        dies()
    database.alive()
    # one that died while it lay in the pool is replaced without an error, used just now or long ago
    for rested_s in (3600.0, 0.0):
        monkeypatch.setattr(engine, "RESTED_S", rested_s)
        with database.read() as s:
            pid = s.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with admin.begin() as other:
            other.execute(kill, {"pid": pid})
        while admin_sees(admin, pid):
            time.sleep(0.01)
        database.alive()
    database.close()
    admin.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/missing/rooftile.db")
    with pytest.raises(DatabaseUnreachable, match="its folder does not exist"):
        database.alive()
    with pytest.raises(DatabaseUnreachable, match="its folder does not exist"):
        migrate.upgrade(f"sqlite:///{tmp_path}/missing/rooftile.db")


def test_a_database_without_tables_asks_for_migrate(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path}/new.db", empty_postgres_url):
        database = Database(url)
        database.alive()
        with pytest.raises(SchemaMismatch, match="run `rooftile migrate`"):
            database.ping()
        with pytest.raises(SchemaMismatch, match="run `rooftile migrate`"), database.read() as s:
            jobs.counts(s)
        with pytest.raises(SchemaMismatch, match="no tables yet"):
            migrate.check(url)
        database.close()


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("These are notes, not tables. " * 100)
    with pytest.raises(StoreDamaged, match="not a database"):
        Database(f"sqlite:///{file}").alive()


def test_a_full_sqlite_is_said_so_and_nothing_is_half_written(sqlite_url: str) -> None:
    database = Database(sqlite_url)

    def fill(s) -> None:  # type: ignore[no-untyped-def]
        pages = s.execute(text("PRAGMA page_count")).scalar_one()
        s.execute(text(f"PRAGMA max_page_count={pages + 4}"))  # the disk's end, as SQLite sees it
        for _ in range(50):
            jobs.create(s, new_job(request={"text": "x" * 5000}))

    with pytest.raises(StoreFull, match="is full"), database.begin() as s:
        fill(s)
    with database.read() as s:
        assert jobs.counts(s) == {}
    database.close()


SMALL_DISK = """
    set -e
    mount -t tmpfs -o size=64k tmpfs "$1"
    exec "$2" -c 'import sys; from service.store import migrate; migrate.upgrade(sys.argv[1])' "sqlite:///$1/x.db"
"""


def test_the_migration_says_that_the_disk_is_full(tmp_path: Path) -> None:
    # in a mount namespace of its own: the small disk is gone with the process
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    done = subprocess.run(
        [*alone, "sh", "-c", textwrap.dedent(SMALL_DISK), "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("service.store.errors.StoreFull: The disk that holds the database"), last


def _as_nobody(url: str, sink: multiprocessing.SimpleQueue[str]) -> None:
    os.setgid(65534)
    os.setuid(65534)
    try:
        with Database(url).begin() as s:
            jobs.create(s, new_job())
    except StoreError as error:
        sink.put(f"{type(error).__name__}: {error}")
    else:
        sink.put("written")


@pytest.mark.skipif(os.geteuid() != 0, reason="drops the rights of root in a child")
def test_a_file_of_another_user_is_read_only(sqlite_template: Path) -> None:
    context = multiprocessing.get_context("fork")
    sink: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rooftile.db")
        shutil.copy(sqlite_template, file)
        Path(folder).chmod(0o755)
        file.chmod(0o644)
        child = context.Process(target=_as_nobody, args=(f"sqlite:///{file}", sink))
        child.start()
        told = sink.get()
        child.join()
    assert told == f"StoreReadOnly: The database {file} may not be written by this user."


def test_unsuitable_databases_are_refused_by_name(tmp_path: Path) -> None:
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"):
        with pytest.raises(UnsuitableDatabase, match="memory"):
            Database(url)
    with pytest.raises(UnsuitableDatabase, match="mysql"):
        Database("mysql://localhost/rooftile")
    with pytest.raises(UnsuitableDatabase, match="cannot be read"):
        Database("not a url")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n"
        "server:/x /srv/my\\040data nfs4 rw 0 0\n"
        "tmpfs /srv/my\\040data/t tmpfs rw 0 0\n"
    )
    assert filesystem_of(Path("/srv/my data/rooftile.db"), mounts) == "nfs4"
    assert filesystem_of(Path("/srv/my data/t/rooftile.db"), mounts) == "tmpfs"
    assert filesystem_of(Path("/srv/my data2/rooftile.db"), mounts) == "ext4"
    assert "nfs4" in NETWORK_FILESYSTEMS


def test_a_network_disk_is_refused_with_the_word_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.engine.filesystem_of", lambda _file: "nfs4")
    with pytest.raises(UnsuitableDatabase, match="Postgres"):
        Database(f"sqlite:///{tmp_path}/rooftile.db").alive()


def test_a_glance_asks_without_a_transaction(database: Database) -> None:
    with database.glance() as s:
        assert s.scalar(text("SELECT 1")) == 1
        with pytest.raises(StoreError, match="only reads"):
            jobs.raise_priority(s, 1, 2)
        if database.dialect == "postgresql":
            assert s.connection().connection.dbapi_connection.autocommit  # type: ignore[union-attr]
    with database.read() as s:  # the connection has forgotten it
        if database.dialect == "postgresql":
            assert not s.connection().connection.dbapi_connection.autocommit  # type: ignore[union-attr]


def test_a_reading_session_refuses_to_write(database: Database) -> None:
    with pytest.raises(StoreError), database.read() as s:
        jobs.create(s, new_job())
    with pytest.raises(StoreError), database.read() as s:
        tokens.revoke(s, 1)
    with database.read() as s:
        assert jobs.counts(s) == {}


def test_an_exception_rolls_back(database: Database) -> None:
    def fails() -> None:
        with database.begin() as s:
            jobs.create(s, new_job())
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fails()
    with database.read() as s:
        assert jobs.counts(s) == {}


def test_run_tries_again_after_a_clash(database: Database) -> None:
    calls = []

    def step(s) -> str:  # type: ignore[no-untyped-def]
        calls.append(jobs.create(s, new_job())[0].id)
        if len(calls) < 3:
            raise Conflict("somebody was faster")
        return "done"

    assert database.run(step) == "done"
    assert len(calls) == 3
    with database.read() as s:
        assert sum(jobs.counts(s).values()) == 1


def test_deadlocks_on_postgres_are_tried_again(postgres_url: str) -> None:
    database = Database(postgres_url, pool_size=2)
    with database.begin() as s:
        one, two = jobs.create(s, new_job())[0].id, jobs.create(s, new_job())[0].id
    barrier = threading.Barrier(2, timeout=20)
    tries: list[int] = []

    def cross(first: int, second: int) -> None:
        def step(s) -> None:  # type: ignore[no-untyped-def]
            tries.append(first)
            jobs.lock(s, first)
            if len(tries) <= 2:
                barrier.wait()
            jobs.lock(s, second)

        database.run(step)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == 3  # one of them was the victim, once
    database.close()


def test_a_used_up_pool_says_busy_quickly(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTILE_DATABASE_POOL_WAIT_S", "0.2")
    database = Database(sqlite_url, pool_size=1, max_overflow=0)
    with database.read() as s:
        s.execute(text("SELECT 1"))
        started = time.monotonic()
        with pytest.raises(StoreBusy, match="in use"):
            database.alive()
        assert time.monotonic() - started < 2
    database.close()


def _child_counts(database: Database, sink: multiprocessing.SimpleQueue[int]) -> None:
    with database.begin() as s:
        jobs.create(s, new_job())
    with database.read() as s:
        sink.put(sum(jobs.counts(s).values()))


def test_a_database_outlives_a_fork(database: Database) -> None:
    """The child makes an engine of its own and leaves the parent's connections alone."""
    with database.begin() as s:
        jobs.create(s, new_job())
    context = multiprocessing.get_context("fork")
    sink: multiprocessing.SimpleQueue[int] = context.SimpleQueue()
    for expected in (2, 3):
        child = context.Process(target=_child_counts, args=(database, sink))
        child.start()
        assert sink.get() == expected
        child.join()
        assert child.exitcode == 0
        with database.read() as s:
            assert sum(jobs.counts(s).values()) == expected


def test_settings_of_the_connections(database: Database) -> None:
    with database.read() as s:
        if database.dialect == "sqlite":
            values = {
                name: s.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
            }
            assert values == {
                "journal_mode": "wal",
                "busy_timeout": 30000,
                "foreign_keys": 1,
                "synchronous": 1,
            }
        else:
            values = {
                name: s.execute(text(f"SHOW {name}")).scalar_one()
                for name in (
                    "statement_timeout",
                    "lock_timeout",
                    "idle_in_transaction_session_timeout",
                    "application_name",
                )
            }
            assert values == {
                "statement_timeout": "30s",
                "lock_timeout": "5s",
                "idle_in_transaction_session_timeout": "1min",
                "application_name": "rooftile-test",
            }


def test_a_writer_waits_for_another_on_sqlite(sqlite_url: str) -> None:
    """A read that turns into a write would fail at once; BEGIN IMMEDIATE waits."""
    database = Database(sqlite_url)
    other = sqlite3.connect(str(make_url(sqlite_url).database), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, lambda: other.execute("COMMIT")).start()
    started = time.monotonic()
    with database.begin() as s:
        tokens.create(s, "t", [Scope.READ])
    assert time.monotonic() - started > 0.2
    other.close()
    database.close()
