"""How is an engine set up so that SQLite and Postgres behave alike for us?

SQLite: WAL, 30 s busy timeout, foreign keys, synchronous NORMAL (a power cut may lose the last
commits, never damages the file; a killed process loses nothing). Transactions that write begin with
BEGIN IMMEDIATE, so that they wait for the lock instead of failing when a read turns into a write.
Postgres: statement, lock and idle-in-transaction limits, a small pool with pre-ping, a name.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from .errors import UnsuitableDatabase

BUSY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5
POOL_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_MS = 30_000
LOCK_TIMEOUT_MS = 5_000
IDLE_IN_TRANSACTION_MS = 60_000

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
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Engine:
    """An engine that has opened nothing yet."""
    pool: dict[str, Any] = (
        {"pool_size": pool_size, "max_overflow": max_overflow, "pool_timeout": POOL_TIMEOUT_S}
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
    limits = {
        "statement_timeout": statement_timeout_ms,
        "lock_timeout": lock_timeout_ms,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "timezone": "UTC",
    }
    connect_args = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": name[:63],
        "options": " ".join(f"-c {key}={value}" for key, value in limits.items()),
    }
    return create_engine(
        url, connect_args=connect_args, json_serializer=_json_text, pool_pre_ping=pooled, **pool
    )


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
