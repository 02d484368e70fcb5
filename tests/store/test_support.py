"""Can an unprivileged Postgres be started from binaries that only root may reach?"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from bench.servers import postgres


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_binaries_below_a_private_folder_are_copied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        binaries = postgres._binaries()
    except postgres.PostgresMissingError as missing:
        pytest.skip(str(missing))
    user = postgres._unprivileged_user()
    monkeypatch.setattr(postgres, "_may_try", lambda _binaries, _user: False)
    with tempfile.TemporaryDirectory(dir=postgres._memory_disk()) as folder:
        Path(folder).chmod(0o711)
        copied = postgres._reachable(binaries, user, Path(folder))
        assert copied != binaries
        told = subprocess.run(
            [str(copied / "postgres"), "--version"], capture_output=True, text=True, **postgres._as(user)
        )
        shutil.rmtree(Path(folder, "install"))
    assert told.stdout.startswith("postgres (PostgreSQL)"), told.stderr


def test_a_server_that_is_stopped_or_falls_over_keeps_what_was_committed(tmp_path: Path) -> None:
    try:
        server = postgres.Postgres.start(synchronous_commit="on")
    except postgres.PostgresMissingError as missing:
        pytest.skip(str(missing))
    with server:
        if os.environ.get(postgres.URL_VARIABLE):
            pytest.skip("this Postgres is somebody else's")
        url = server.create_database()
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE TABLE t (n int)")
        for number, immediately in enumerate((False, True)):
            with psycopg.connect(url.replace("+psycopg", "")) as connection:
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
            server.restart(immediately=immediately)
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
