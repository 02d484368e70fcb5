"""How do the tables get to the version of this code?

One migrator at a time (several API processes may start at once): an advisory lock on Postgres, a lock
file beside the file on SQLite; the others wait, then find nothing to do. Each run is one transaction,
DDL included, so a killed migration leaves nothing behind. On Postgres DDL waits at most a second for
its own locks and tries again, because all reads queue up behind an ALTER TABLE that waits.
"""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import stamina
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from service.paths import migrations_dir

from .driver_errors import MIGRATE, translate
from .engine import WRITES, make_engine, parse, shown
from .errors import DatabaseUnreachable, SchemaMismatch, StoreBusy, StoreFull, StoreReadOnly
from .limits import limits

MIGRATE_LOCK = 0x526F6F66_00000002
"""Key of the advisory lock below which Postgres is migrated ("Roof", 2)."""
WAIT_S = 120.0
DDL_LOCK_S = 1.0
PAUSE_S = 2.0
"""Between two tries, in which those that queued up are served."""


def upgrade(url: str, revision: str = "head") -> str:
    """Brings the database there and returns the revision it has now. One migrator at a time; others wait."""
    reached = _migrate(url, lambda config: command.upgrade(config, revision))
    if reached is None:
        raise SchemaMismatch(f"The database {shown(parse(url))} has no tables after its migration.")
    return reached


def downgrade(url: str, revision: str = "base") -> str | None:
    """Takes the database back; None: no tables of ours are left."""
    return _migrate(url, lambda config: command.downgrade(config, revision))


def current(url: str) -> str | None:
    """The revision the database has; None where it was never migrated."""
    place = parse(url)
    if place.get_backend_name() == "sqlite" and not Path(str(place.database)).exists():
        return None  # opening it would create it
    with _opened(place) as engine, engine.connect() as connection:
        return _revision(connection)


@functools.cache
def head() -> str:
    """The revision this code needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def check(url: str) -> None:
    """SchemaMismatch unless current(url) == head(); its text says what to do."""
    _compare(current(url), shown(parse(url)))


def require_head(connection: Connection, place: str) -> None:
    """As `check`, on a connection that is open already."""
    _compare(_revision(connection), place)


def _compare(has: str | None, place: str) -> None:
    if has == head():
        return
    if has is None:
        raise SchemaMismatch(f"The database {place} has no tables yet; {MIGRATE}.")
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if has in known:
        raise SchemaMismatch(
            f"The database {place} is at revision {has}, this version needs {head()}; {MIGRATE}."
        )
    raise SchemaMismatch(f"The database {place} is at revision {has} of a newer version; use that version.")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _migrate(url: str, do: Callable[[Config], None]) -> str | None:
    place = parse(url)
    with _opened(place) as engine, _one_at_a_time(place, engine):
        for attempt in stamina.retry_context(
            on=StoreBusy, attempts=None, timeout=WAIT_S, wait_initial=0.2, wait_max=PAUSE_S
        ):
            with attempt:
                return _in_one_transaction(place, engine, do)
    raise AssertionError("the loop above returns or raises")


def _in_one_transaction(place: URL, engine: Engine, do: Callable[[Config], None]) -> str | None:
    config = _config()
    try:
        with engine.execution_options(**{WRITES: True}).begin() as connection:
            config.attributes["connection"] = connection
            do(config)
            return _revision(connection)
    except SQLAlchemyError as error:
        raise translate(error, place) from error
    except CommandError as error:
        raise SchemaMismatch(f"The database {shown(place)} cannot be migrated: {error}.") from error


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _opened(place: URL) -> Iterator[Engine]:
    if place.get_backend_name() == "sqlite" and not Path(str(place.database)).parent.is_dir():
        raise DatabaseUnreachable(
            f"The database {place.database} cannot be reached: its folder does not exist."
        )
    engine = make_engine(
        place,
        name="rooftile-migrate",
        pooled=False,
        allowed=replace(limits(), statement_s=0.0, lock_s=DDL_LOCK_S),
    )
    if place.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _without_foreign_keys)
    try:
        yield engine
    except SQLAlchemyError as error:
        raise translate(error, place) from error
    finally:
        engine.dispose()


def _without_foreign_keys(connection: Any, _record: Any) -> None:
    # SQLite changes a table by copying it and dropping the old one; the drop must not cascade
    connection.execute("PRAGMA foreign_keys=OFF")


@contextmanager
def _one_at_a_time(place: URL, engine: Engine) -> Iterator[None]:
    if place.get_backend_name() == "sqlite":
        with _file_lock(Path(f"{place.database}.migrate.lock")):
            yield
        return
    deadline = time.monotonic() + WAIT_S
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        key = {"key": MIGRATE_LOCK}
        # asked again and again rather than waited for: lock_timeout would end the wait
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
            if time.monotonic() > deadline:
                raise StoreBusy(f"Another process has been migrating {shown(place)} for {WAIT_S:.0f} s.")
            time.sleep(0.1)
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)


@contextmanager
def _file_lock(file: Path) -> Iterator[None]:
    lock = FileLock(file, timeout=WAIT_S)
    try:
        lock.acquire()
    except Timeout:
        raise StoreBusy(f"Another process has held {file} for {WAIT_S:.0f} s.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"The disk that holds the database is full ({file}).") from None
        raise StoreReadOnly(f"The lock file {file} cannot be made: {error.strerror}.") from None
    try:
        yield
    finally:
        lock.release()
