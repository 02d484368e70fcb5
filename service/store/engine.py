"""How is an engine set up so that SQLite and Postgres behave alike for us?

SQLite: WAL, 30 s busy timeout, foreign keys, synchronous NORMAL (a power cut may lose the last
commits, never damages the file; a killed process loses nothing). Transactions that write begin with
BEGIN IMMEDIATE, so that they wait for the lock instead of failing when a read turns into a write.
Postgres: statement, lock and idle-in-transaction limits, a small pool, a name, and an end to connections
whose other end is gone. The limits are settings (limits.py). A connection that has rested is asked whether
it still lives before it is used; of one that answered a moment ago a look at the socket says it, for with
statements of a tenth of a millisecond the question would be a fifth of all that a worker sends. The one used
last is used next, for it knows most statements already.
"""

from __future__ import annotations

import json
import os
import select
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.pool import NullPool

from .errors import UnsuitableDatabase
from .limits import Limits, limits

BUSY_TIMEOUT_S = 30.0

RESTED_S = 1.0
"""A connection that was used within this time is taken to live."""
_USED = "rooftile_used_s"

WRITES = "rooftile_writes"
"""Execution option of a connection whose transactions write."""

# Their advisory locks do not hold between hosts, and WAL needs shared memory that they do not have.
# fmt: off
NETWORK_FILESYSTEMS = frozenset([
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs",
    "gpfs", "pvfs2", "ocfs2", "gfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph",
])
# fmt: on


def parse(url: str) -> URL:
    """The URL with our drivers filled in; UnsuitableDatabase names what is wrong with it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UnsuitableDatabase(
            "The database URL cannot be read; it should be sqlite:///FILE or postgresql://USER@HOST/NAME."
        ) from None
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query.get("mode") == "memory":
            raise UnsuitableDatabase(
                "An SQLite database in memory cannot be shared by processes; give a file or use Postgres."
            )
        return parsed.set(drivername="sqlite+pysqlite")
    raise UnsuitableDatabase(f"A {backend} database is not supported; use sqlite:///FILE or postgresql://...")


def shown(url: URL) -> str:
    """Where the database is, without user or password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    place = url.query.get("host") or url.host or "local socket"
    port = f":{url.port}" if url.port else ""
    return f"{place}{port}/{url.database or ''}"


def make_engine(
    url: URL,
    *,
    name: str,
    pool_size: int = 2,
    max_overflow: int = 3,
    pooled: bool = True,
    allowed: Limits | None = None,
) -> Engine:
    """An engine that has opened nothing yet. `allowed`: default, what the environment says."""
    allowed = allowed or limits()
    most = min(pool_size + max_overflow, int(allowed.pool))
    size = min(pool_size, most)
    pool: dict[str, Any] = (
        {"pool_size": size, "max_overflow": most - size, "pool_timeout": allowed.pool_wait_s}
        if pooled
        else {"poolclass": NullPool}
    )
    if url.get_backend_name() == "sqlite":
        refuse_network_disk(Path(str(url.database)))
        engine = create_engine(
            url, connect_args={"timeout": BUSY_TIMEOUT_S}, json_serializer=_json_text, **pool
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = {
        "statement_timeout": round(allowed.statement_s * 1e3),
        "lock_timeout": round(allowed.lock_s * 1e3),
        "idle_in_transaction_session_timeout": round(allowed.idle_s * 1e3),
        "timezone": "UTC",
    }
    connect_args = {
        # libpq waits for at least two seconds
        "connect_timeout": round(allowed.connect_s),
        "application_name": name.replace(" ", "-")[:63],
        "options": " ".join(f"-c {key}={value}" for key, value in options.items()),
        **_silence(allowed.silence_s),
    }
    from . import patience  # loads psycopg, which SQLite does without

    if pooled:
        pool["pool_use_lifo"] = True
    engine = create_engine(url, connect_args=connect_args, json_serializer=_json_text, **pool)
    answer_s = allowed.statement_s + patience.SILENT_S if allowed.statement_s else None
    event.listen(
        engine,
        "do_connect",
        lambda _dialect, _record, args, options: patience.connect(answer_s, *args, **options),
    )
    if not pooled:
        return engine
    event.listen(engine, "checkin", _rest)
    event.listen(engine, "checkout", partial(_wake, engine.dialect))
    return engine


def _rest(_connection: Any, record: Any) -> None:
    record.info[_USED] = time.monotonic()


def _wake(dialect: Any, connection: Any, record: Any, _proxy: Any) -> None:
    used_s = record.info.get(_USED)
    if used_s is None or (time.monotonic() - used_s < RESTED_S and _silent(connection)):
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error:
        # the pool makes another, and trusts none of those that are older than this moment
        raise InvalidatePoolError from None


def _silent(connection: Any) -> bool:
    """The server has said nothing since: one that ends says so, or closes."""
    try:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False


def _silence(seconds: float) -> dict[str, int]:
    """Options of libpq by which a host that vanished without a word (power, cable, firewall) is noticed:
    by probes while we wait for an answer, and by what nobody acknowledges while we send."""
    third = max(1, round(seconds / 3))
    return {
        "keepalives": 1,
        "keepalives_idle": third,
        "keepalives_interval": third,
        "keepalives_count": 2,
        "tcp_user_timeout": round(seconds * 1e3),
    }


def _json_text(value: Any) -> str:
    # NaN is not JSON: Postgres refuses it, SQLite would keep it and break every other reader
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # no transaction handling by the driver: it would begin late and commit before DDL
    connection.isolation_level = None
    cursor = connection.cursor()
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError:
            # the change of mode does not wait for the lock by itself, as all else does
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise UnsuitableDatabase(
                f"The file system below the SQLite file does not allow WAL (mode {mode}); use Postgres."
            )
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def refuse_network_disk(file: Path) -> None:
    """Best effort: UnsuitableDatabase where the file would lie on a network file system."""
    kind = filesystem_of(file)
    if kind in NETWORK_FILESYSTEMS:
        raise UnsuitableDatabase(
            f"{file} lies on a network file system ({kind}), where SQLite's locks do not hold; "
            "set ROOFTILE_DATABASE_URL to a Postgres database."
        )


def filesystem_of(file: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the file system a path is (or would be) on; None where nobody can tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    path = os.path.realpath(file)
    best, kind = "", None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # the last of equal mount points is the one on top
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
