"""Does a restored service serve the same releases, with the same bytes? On both databases, by commands."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient
from support.api import ADMIN, Seed

import bench.servers.postgres as servers
from service.api.app import create_app
from service.cli.backup_command import main_backup, main_restore
from service.settings import Settings
from service.store.database import Database


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A database with tables, and an empty one of the same kind."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_url"), f"sqlite:///{tmp_path / 'restored.db'}"
    monkeypatch.setenv("PATH", f"{servers._binaries()}:{os.environ['PATH']}")
    return request.getfixturevalue("postgres_url"), request.getfixturevalue("empty_postgres_url")


def served(url: str, home: Path) -> Iterator[Any]:
    settings = Settings(home=home, database_url=url, token=SecretStr(ADMIN))
    with TestClient(create_app(settings), headers={"Authorization": f"Bearer {ADMIN}"}) as client:
        releases = client.get("/v1/releases").json()["releases"]
        yield releases
        for one in releases:
            sha = one["artifact"]
            yield sha, hashlib.sha256(client.get(f"/v1/artifacts/{sha}").content).hexdigest()
        body = {
            "problem": {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
            "device": releases[0]["device"],
        }
        yield client.post("/v1/best", json=body).json()


def test_a_restored_service_serves_the_same(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, empty = urls
    database = Database(url)
    seed = Seed(database)
    seed.device()
    seed.tuned()
    before = list(served(url, tmp_path / "home"))
    assert len(before[0]) == 1
    file = tmp_path / "backup"
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", url)
    assert main_backup([str(file), "--json"]) == 0  # while `database` is open
    assert json.loads(capsys.readouterr().out)["bytes"] == file.stat().st_size > 1000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main_backup([str(file)]) == 1  # never over another
    assert main_restore([str(file)]) == 1  # never into a database that has something
    assert "already" in capsys.readouterr().err
    database.close()

    monkeypatch.setenv("ROOFTILE_DATABASE_URL", empty)
    assert main_restore([str(file)]) == 0
    assert list(served(empty, tmp_path / "other")) == before


def test_what_is_no_backup_is_refused(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", urls[1])
    (tmp_path / "text").write_text("hello")
    assert main_restore([str(tmp_path / "text")]) == 1
    assert "is no backup" in capsys.readouterr().err
    assert main_restore([str(tmp_path / "nothing")]) == 1
    assert "There is no file" in capsys.readouterr().err


def test_what_pg_dump_says_is_told_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does that is older than the server."""
    programs = tmp_path / "bin"
    programs.mkdir()
    older = programs / "pg_dump"
    says = (
        "pg_dump: error: aborting because of server version mismatch\n"
        "pg_dump: detail: server version: 17.2; pg_dump version: 15.1"
    )
    older.write_text(f"#!/bin/sh\necho 'pg_dump: warning: noise\n{says}' >&2\nexit 1\n")
    older.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert main_backup([str(tmp_path / "file")]) == 1
    told = capsys.readouterr().err
    assert "failed: pg_dump: error: aborting" in told
    assert "server version: 17.2; pg_dump version: 15.1" in told
    assert "hunter2" not in told
