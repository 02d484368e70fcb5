"""What does an error of the database driver mean to us?"""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from .engine import shown
from .errors import (
    Conflict,
    DatabaseUnreachable,
    SchemaMismatch,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
)

MIGRATE = "run `rooftile migrate`"

# SQLSTATE classes and codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_UNREACHABLE = ("08", "28", "57P01", "57P02", "57P03", "3D000")
_CONFLICT = ("40001", "40P01", "23505")
_BUSY = ("55P03", "57014", "25P03", "53300", "53200")
_SCHEMA = ("42P01", "42703", "3F000")
_READ_ONLY = ("25006", "42501")


# libpq repeats the address before each cause
_ADDRESS = re.compile(r"^(connection failed: )?(connection to server (at|on) .*? failed: )?(FATAL:\s+)?")


def translate(error: SQLAlchemyError, url: URL) -> StoreError:
    """The error of ours that says the same in one sentence."""
    place = shown(url)
    if isinstance(error, PoolTimeout):
        return StoreBusy(f"All connections to the database {place} are in use.")
    if isinstance(error, DBAPIError) and error.orig is not None:
        if isinstance(error.orig, sqlite3.Error):
            return _sqlite(error.orig, Path(str(url.database)))
        return _postgres(error.orig, place)
    return StoreError(f"The database {place} refused: {_line(error)}")


def _sqlite(error: sqlite3.Error, file: Path) -> StoreError:
    name = str(getattr(error, "sqlite_errorname", "") or "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"The database {file} stayed locked by another process.")
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and _disk_full(file)):
        return StoreFull(f"The disk that holds the database {file} is full.")
    if name.startswith("SQLITE_CANTOPEN"):
        why = "its folder does not exist" if not file.parent.is_dir() else "it cannot be opened"
        return DatabaseUnreachable(f"The database {file} cannot be reached: {why}.")
    if name.startswith("SQLITE_IOERR"):
        return DatabaseUnreachable(f"The database {file} cannot be reached: reading or writing it fails.")
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return StoreReadOnly(f"The database {file} may not be written by this user.")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(f"The file {file} is not a database, or is damaged.")
    if name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return Conflict(f"Another process wrote the same row first ({_line(error)}).")
    if str(error).startswith(("no such table", "no such column")):
        return SchemaMismatch(f"The database {file} does not have the tables of this version; {MIGRATE}.")
    return StoreError(f"The database {file} refused: {_line(error)}.")


def _postgres(error: Any, place: str) -> StoreError:
    state = getattr(error, "sqlstate", None)
    # libpq gives no code where it did not come to a connection, or lost it
    if state is None:
        kind = type(error).__name__
        if kind in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
            return DatabaseUnreachable(f"The database {place} cannot be reached: {_line(error)}.")
        return StoreError(f"The database {place} refused: {_line(error)}.")
    if state.startswith(_UNREACHABLE):
        return DatabaseUnreachable(f"The database {place} cannot be reached: {_line(error)}.")
    if state.startswith(_CONFLICT):
        return Conflict(f"Another process changed the same rows first ({_line(error)}).")
    if state.startswith(_BUSY):
        return StoreBusy(f"The database {place} did not answer in time: {_line(error)}.")
    if state == "53100":
        return StoreFull(f"The disk that holds the database {place} is full.")
    if state.startswith(_READ_ONLY):
        return StoreReadOnly(f"The database {place} may not be written: {_line(error)}.")
    if state.startswith(_SCHEMA):
        return SchemaMismatch(f"The database {place} does not have the tables of this version; {MIGRATE}.")
    if state.startswith("XX00"):
        return StoreDamaged(f"The database {place} is damaged: {_line(error)}.")
    return StoreError(f"The database {place} refused: {_line(error)}.")


def _line(error: BaseException) -> str:
    """Its last telling line: libpq puts the cause after the address."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    noise = ("DETAIL", "HINT", "Is the server", "[SQL", "LINE")
    keep = [line for line in lines if not line.startswith(noise)]
    line = _ADDRESS.sub("", keep[0]) if keep else type(error).__name__
    return line.rstrip(".: ")


def _disk_full(file: Path) -> bool:
    try:
        return shutil.disk_usage(file.parent).free < 1 << 20
    except OSError:
        return False
