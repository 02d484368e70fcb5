"""Do doctor, migrate and token say and do what they should, and is --json one document?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rooftile.cli import main
from rooftile.device import local_cpu

from service.store import devices, logins, tokens, workers
from service.store.database import Database
from service.store.enums import Scope, WorkerKind, WorkerState
from service.store.records import DeviceRecord


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("URL", "TOKEN", "DATABASE_URL", "BROKER_URL"):
        monkeypatch.delenv(f"ROOFTILE_{name}", raising=False)
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "h"))
    return tmp_path / "h"


def _json(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0, last: tuple[str, ...] = ()
) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json", *last]) == code
    return json.loads(capsys.readouterr().out)


def _checks(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, str]]:
    document = _json(capsys, "doctor", code=code)
    assert document["healthy"] is (code == 0)
    return {check["name"]: check for check in document["checks"]}


@pytest.mark.usefixtures("home")
def test_doctor_on_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    checks = _checks(capsys)
    assert set(checks) == {
        "python", "device", "compiler", "nvrtc", "blas", "gpu", "kernels",
        "home", "disk", "database", "broker", "locks", "port",
    }  # fmt: skip
    assert local_cpu().key in checks["device"]["found"]
    assert checks["database"]["state"] == "note"  # not made yet, and that is fine
    assert main(["migrate"]) == 0
    assert _checks(capsys)["database"]["state"] == "ok"
    assert main(["doctor"]) == 0
    assert "compiler" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_doctor_says_what_is_missing_and_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/x")
    monkeypatch.setenv("ROOFTILE_BROKER_URL", "redis://:hunter2@127.0.0.1:1/0")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    checks = _checks(capsys, code=1)
    assert {name for name, check in checks.items() if check["state"] == "missing"} == {
        "database",
        "broker",
    }
    assert checks["compiler"]["state"] == "note"  # of a cluster: another host may compile
    assert "apt install gcc" in checks["compiler"]["fix"]
    assert checks["blas"]["state"] == "note"
    assert "OPENBLAS_CORETYPE" in checks["blas"]["fix"]
    assert "hunter2" not in json.dumps(checks)


@pytest.mark.usefixtures("home")
def test_a_compiler_that_does_not_work_is_found_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setenv("CC", false)
    assert _checks(capsys, code=1)["compiler"]["state"] == "missing"
    monkeypatch.setenv("CC", "gcc 'without an end")
    compiler = _checks(capsys, code=1)["compiler"]
    assert compiler["found"].startswith("The C compiler that CC names")
    babble = tmp_path / "babble"
    babble.write_bytes(b"#!/bin/sh\nprintf '\\377\\201 noise' >&2; exit 1\n")
    babble.chmod(0o755)
    monkeypatch.setenv("CC", str(babble))
    assert "noise" in _checks(capsys, code=1)["compiler"]["found"]


def test_migrate_up_and_down(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    up = _json(capsys, "migrate")
    assert up["changed"]
    assert up["before"] is None
    assert not _json(capsys, "migrate")["changed"]
    down = _json(capsys, "migrate", "--down")
    assert down["before"] == up["after"]
    assert down["after"] != up["after"]
    assert (home / "rooftile.db").exists()


def test_tokens(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["migrate"]) == 0
    made = _json(capsys, "token", "create", "robot", "--scope", "submit", "--days", "2")
    assert made["scopes"] == ["submit"]
    database = Database(f"sqlite:///{home}/rooftile.db")
    with database.read() as s:
        found = tokens.check(s, made["token"])
    assert found is not None
    assert found.scopes == {Scope.SUBMIT}
    listed = _json(capsys, "token", "list")
    assert [row["name"] for row in listed["tokens"]] == ["robot"]
    assert made["token"] not in json.dumps(listed)
    assert main(["token", "list"]) == 0
    assert "expires" in (shown := capsys.readouterr().out)
    assert listed["tokens"][0]["expires_at"][:10] in shown
    assert main(["token", "revoke", str(made["id"])]) == 0
    with database.read() as s:
        assert tokens.check(s, made["token"]) is None
    for number in ("99", "9" * 20, "-" + "9" * 20):
        for what in ("revoke", "logout"):
            told = _json(capsys, "token", what, code=1, last=("--", number))["error"]
            assert told.startswith("There is no "), told
            assert number in told
    for name in ("ROOFTILE_TOKEN", "serve this:/home"):
        assert "own tokens" in _json(capsys, "token", "create", name, code=2)["error"]
    for name in ("", " ", "\udcff", "a\nb", "x" * 201):
        assert "printable text" in _json(capsys, "token", "create", name, code=2)["error"]
    for days in ("inf", "nan", "1e12", "-1"):
        assert "--days" in _json(capsys, "token", "create", "y", "--days", days, code=2)["error"]
    assert len(_json(capsys, "token", "list")["tokens"]) == 1
    link = _json(capsys, "token", "link", "--url", "https://tiles.example/")["link"]
    base, _, code = link.partition("/login?code=")
    assert base == "https://tiles.example"
    with database.begin() as s:
        assert logins.redeem(s, code) is not None
    with database.begin() as s:
        assert logins.redeem(s, code) is None
    database.close()


def test_devices(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["migrate"]) == 0
    key = "cpu-intel-6-85-8c-x86-64-v4"
    database = Database(f"sqlite:///{home / 'rooftile.db'}")
    with database.begin() as s:
        devices.upsert(s, DeviceRecord(key=key, name="Xeon", kind="cpu", arch="x86-64-v4"))
        workers.heartbeat(s, "w", WorkerKind.MEASURE, "box", 1, key, WorkerState.IDLE)
    database.close()
    assert _json(capsys, "device", "list")["devices"] == [
        {"key": key, "name": "Xeon", "state": "available", "connected": True, "hosts": ["box"], "reason": ""}
    ]
    assert _json(capsys, "device", "suspend", key, "too hot")["state"] == "out_of_service"
    assert main(["device", "list"]) == 0
    shown = capsys.readouterr().out
    assert "out of service" in shown
    assert "too hot" in shown
    assert _json(capsys, "device", "resume", key)["state"] == "available"
    assert _json(capsys, "device", "list")["devices"][0]["connected"]
    assert "gpu-nothing" in _json(capsys, "device", "suspend", "gpu-nothing", "x", code=1)["error"]


def test_token_without_tables_is_one_sentence(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["token", "list"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "migrate" in said


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "words",
    [("tune", "gemm", "--m", "8", "--nn", "4"), ("tune", "--spec"), ("doctor", "--jsn"), ("token", "x")],
)
def test_wrong_use_has_its_document_too(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    document = _json(capsys, *words, code=2)
    assert set(document) == {"error"}
    assert f"rooftile {words[0]} --help" in document["error"]


@pytest.mark.usefixtures("home")
def test_a_wrong_field_is_named_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    gemm = ("tune", "gemm", "--m", "8", "--n", "8", "--k", "-1", "--dtype", "f32")
    document = _json(capsys, *gemm, code=2)
    assert (document["field"], document["value"], document["nearest"]) == ("problem.k", -1, 0)
