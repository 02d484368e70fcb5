"""How is the whole of a database put into one file, while others write to it, and taken back from it?

Bytes of artifacts lie in the database, so one file holds everything that is served. SQLite copies itself by
its own backup (a consistent snapshot, WAL included); a Postgres is asked for a dump by its own pg_dump.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

from sqlalchemy import URL

from .engine import parse, shown
from .errors import StoreError

DUMP_S = 3600.0
MOST_TOLD = 1000
"""Characters of what pg_dump says."""


class BackupError(StoreError):
    """It could not be written or read; the sentence says why."""


def backup(url: str, file: Path) -> None:
    """Writes `file`, which must not be there. Only its owner may read it."""
    place = parse(url)
    if file.exists():
        raise BackupError(f"{file} is there already; name another file.")
    partial = file.with_name(f"{file.name}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        if place.get_backend_name() == "sqlite":
            _copy_sqlite(Path(str(place.database)), partial)
        else:
            _run("pg_dump", place, "--format=custom", "--no-owner", "--no-privileges", f"--file={partial}")
        partial.replace(file)
    except OSError as error:
        raise BackupError(f"{file} cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def restore(url: str, file: Path) -> None:
    """Puts the contents of `file` into a database that has no tables yet."""
    place = parse(url)
    if not file.is_file():
        raise BackupError(f"There is no file {file}.")
    with file.open("rb") as opened:
        head = opened.read(16)
    if place.get_backend_name() == "sqlite":
        if not head.startswith(b"SQLite format 3"):
            raise BackupError(f"{file} is no backup of an SQLite database.")
        target = Path(str(place.database))
        if target.exists():
            raise BackupError(f"{target} is there already; move it away first.")
        _copy_sqlite(file, target)
        return
    if not head.startswith(b"PGDMP"):
        raise BackupError(f"{file} is no backup of a Postgres database (pg_dump's custom format).")
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run("pg_restore", place, *options, f"--dbname={place.database}", str(file))


def _copy_sqlite(source: Path, target: Path) -> None:
    if not source.is_file():
        raise BackupError(f"There is no database {source}.")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)
            (verdict,) = writing.execute("PRAGMA quick_check").fetchone()
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied to {target}: {error}.") from None
    if verdict != "ok":
        raise BackupError(f"{source} is damaged: {verdict}.")
    target.chmod(0o600)


def _run(program: str, place: URL, *arguments: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise BackupError(f"{program} was not found; install Postgres' client of the server's version.")
    # By the environment: a command line is read by every user of the host.
    environment = {
        **os.environ,
        "PGHOST": str(place.query.get("host") or place.host or ""),
        "PGPORT": str(place.port or ""),
        "PGUSER": place.username or "",
        "PGPASSWORD": str(place.password or ""),
        "PGDATABASE": place.database or "",
    }
    environment = {name: value for name, value in environment.items() if value}
    try:
        done = subprocess.run(
            [found, *arguments],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=DUMP_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BackupError(f"{program} took over {DUMP_S:.0f} s.") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").strip().splitlines()]
        # from the error on: what it is about, such as the two versions, stands on the lines after it
        first = next((n for n, line in enumerate(lines) if "error" in line.lower()), 0)
        told = " ".join(lines[first:]) or "no reason given"
        raise BackupError(f"{program} of {shown(place)} failed: {told[:MOST_TOLD]}")
