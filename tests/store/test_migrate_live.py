"""Do migrations go forward and back with rows in every table, and while the service reads and starts?"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import op
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    func,
    insert,
    inspect,
    select,
    text,
)
from support.api import Seed

from service.store import migrate
from service.store.database import Database
from service.store.engine import WRITES, make_engine, parse
from service.store.errors import SchemaMismatch
from service.store.models import Base
from service.store.types import UtcTime, WordColumn


def _revisions() -> list[str]:
    """All, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(migrate._config()).walk_revisions()]


@contextmanager
def _connected(url: str, **limits: Any) -> Iterator[Connection]:
    """A connection that does not care which version the tables have."""
    engine = make_engine(parse(url), name="rooftile-test", pooled=False, **limits)
    with engine.execution_options(**{WRITES: True}).connect() as connection:
        yield connection
    engine.dispose()


# -- rows in every table ----------------------------------------------------------------------------------


def _value(connection: Connection, column: Column[Any]) -> Any:
    for key in column.foreign_keys:
        return connection.scalar(select(key.column).limit(1))
    kind = column.type
    if isinstance(kind, WordColumn):
        return next(iter(kind.words))
    if isinstance(kind, UtcTime):
        return datetime.now(UTC)
    for known, value in (
        (Boolean, False),
        (Integer, 1),
        (Float, 1.0),
        (String, "a" * min(64, getattr(kind, "length", 64) or 64)),
        (JSON, {"a": 1}),
        (LargeBinary, b"\x00\xff"),
    ):
        if isinstance(kind, known):
            return value
    raise AssertionError(f"{column}: a row with a {kind!r} cannot be made up")


def _fill(connection: Connection, table: Table) -> None:
    """One row, made up."""
    wanted = [
        column
        for column in table.columns
        if not column.nullable and column is not table.autoincrement_column and column.server_default is None
    ]
    connection.execute(insert(table).values({column: _value(connection, column) for column in wanted}))


def _counts(url: str) -> dict[str, int]:
    """Rows of each table that is there, whatever the version."""
    with _connected(url) as connection:
        names = inspect(connection).get_table_names()
        return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in names}


def test_step_by_step_back_and_forth_with_rows_in_every_table(database_url: str) -> None:
    database = Database(database_url)
    seed = Seed(database)
    seed.device()
    job, release = seed.tuned()
    seed.job()
    database.close()
    tables = Base.metadata.sorted_tables
    with _connected(database_url) as connection:
        for table in tables:
            if not connection.scalar(select(func.count()).select_from(table)):
                _fill(connection, table)
        connection.commit()
    before = _counts(database_url)
    assert set(before) - {"alembic_version"} == {table.name for table in tables}
    assert all(before.values()), before
    revisions = _revisions()
    assert revisions[0] == migrate.head()
    for older in revisions[1:]:
        assert migrate.downgrade(database_url, older) == older
        now = _counts(database_url)
        kept = {name: before[name] for name in now}
        assert {**now, "events": 0} == {**kept, "events": 0}, (
            "what is kept is kept whole (events of new kinds go)"
        )
        with pytest.raises(SchemaMismatch, match=f"at revision {older}, this version needs {migrate.head()}"):
            database.ping()
    for newer in [*reversed(revisions[:-1])]:
        assert migrate.upgrade(database_url, newer) == newer
    database.ping()
    with database.read() as s:
        found = s.execute(text("SELECT id FROM jobs WHERE state = 'done'")).scalars().all()
        served = s.execute(text("SELECT id FROM releases WHERE state = 'published'")).scalars().all()
    assert list(found) == [job.id]
    assert list(served) == [release.id]
    seed.job(
        {
            "problem": {"op": "gemm", "m": 3, "n": 64, "k": 64, "dtype": "f32"},
            "device": "cpu-x-1-1-1c-x86-64-v3",
        }
    )
    database.close()
    assert migrate.downgrade(database_url) is None
    assert set(_counts(database_url)) <= {"alembic_version"}


def test_no_type_is_left_behind(postgres_url: str) -> None:
    """SV-10: a type of ours that outlives its table would stop the next upgrade."""
    query = """SELECT typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
               WHERE n.nspname = 'public' AND typtype IN ('e', 'd')"""
    rest = """SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
              WHERE nspname = 'public'"""
    with _connected(postgres_url) as connection:
        assert connection.execute(text(query)).all() == []
        assert connection.execute(text(rest)).all() != []
    migrate.downgrade(postgres_url)
    with _connected(postgres_url) as connection:
        left = set(connection.execute(text(rest)).scalars())
    assert left <= {"alembic_version", "alembic_version_pkc"}
    assert migrate.upgrade(postgres_url) == migrate.head()


# -- while others work ------------------------------------------------------------------------------------


def test_reads_are_served_while_a_migration_waits_for_its_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SV-07: whoever comes after an ALTER TABLE that waits, waits behind it."""
    migrate.downgrade(postgres_url, "0002")
    monkeypatch.setattr(migrate, "DDL_LOCK_S", 0.5)
    read = "SELECT count(*) FROM job_problems"
    ended: list[str] = []
    with _connected(postgres_url) as long:
        long.execute(text(read))  # its lock is kept until its transaction ends
        migration = threading.Thread(target=lambda: ended.append(migrate.upgrade(postgres_url)))
        migration.start()
        try:
            _wait_for_the_lock(postgres_url)
            monkeypatch.setenv("ROOFTILE_DATABASE_LOCK_S", "3")
            until, served = time.monotonic() + 3, 0
            while time.monotonic() < until:
                with _connected(postgres_url) as reader:
                    reader.execute(
                        text(read)
                    )  # behind a migration without limit: an error after three seconds
                served += 1
            assert served >= 3
            assert ended == []
        finally:
            long.rollback()
            migration.join(60)
    assert ended == [migrate.head()]


def _wait_for_the_lock(url: str) -> None:
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE wait_event_type = 'Lock' AND application_name = 'rooftile-migrate'"""
    with _connected(url) as watch:
        deadline = time.monotonic() + 30
        while not watch.scalar(text(query)):
            watch.rollback()
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _upgrade(url: str, sink: multiprocessing.SimpleQueue[tuple[str, int]]) -> None:
    """In a process of its own: (what it came to, how many tables this one made)."""
    made: list[object] = []
    create = op.create_table

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args[0])
        return create(*args, **kwargs)

    op.create_table = counted
    try:
        sink.put((migrate.upgrade(url), len(made)))
    except Exception as error:
        sink.put((repr(error), len(made)))
        raise


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_four_processes_at_once_one_migrates(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """SV-11, and once more on the finished database."""
    url = (
        f"sqlite:///{tmp_path}/new.db" if kind == "sqlite" else request.getfixturevalue("empty_postgres_url")
    )
    context = multiprocessing.get_context("fork")
    for migrators in (1, 0):
        sink: multiprocessing.SimpleQueue[tuple[str, int]] = context.SimpleQueue()
        processes = [context.Process(target=_upgrade, args=(url, sink)) for _ in range(4)]
        for process in processes:
            process.start()
        told = [sink.get() for _ in processes]
        for process in processes:
            process.join()
        assert [reached for reached, _ in told] == [migrate.head()] * 4
        assert sum(made > 0 for _, made in told) == migrators


@pytest.mark.parametrize(
    ("module", "version", "sentence"),
    [
        (
            "worker emulate",
            "0001",
            f"is at revision 0001, this version needs {migrate.head()}; run `rooftile migrate`.",
        ),
        ("service.api --port 0", "9999", "is at revision 9999 of a newer version; use that version."),
    ],
)
def test_processes_refuse_to_start_on_another_version(
    sqlite_url: str, tmp_path: Path, module: str, version: str, sentence: str
) -> None:
    with _connected(sqlite_url) as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        connection.commit()
    environment = {**os.environ, "ROOFTILE_HOME": str(tmp_path), "ROOFTILE_DATABASE_URL": sqlite_url}
    done = subprocess.run(
        [sys.executable, "-m", *module.split()], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(sentence), done.stderr
    assert "Traceback" not in done.stderr
