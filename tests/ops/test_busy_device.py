"""Does the service go on while somebody else has its device, say who that is, and take it when it is free?"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rooftile.cli import main
from rooftile.device import local_cpu

from service.bus.lockholder import lock_holder
from service.paths import device_lock_path, open_lock_file

ROOFTILE = str(Path(sys.executable).with_name("rooftile"))


@pytest.fixture
def lock() -> Iterator[int]:
    """This process has the device of this machine."""
    descriptor = open_lock_file(device_lock_path(local_cpu().key))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def _wait_for(what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_serve_waits_for_its_device_and_names_the_holder(tmp_path: Path, lock: int) -> None:
    home = tmp_path / "h"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    service = subprocess.Popen(
        [ROOFTILE, "serve", "--port", "0"], env=kept | {"ROOFTILE_HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert service.stdout is not None
        url = service.stdout.readline().split()[3]
        token = (home / "token").read_text().strip()

        def get(path: str) -> Any:
            asked = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=10.0) as answer:
                return json.load(answer)

        def device() -> dict[str, Any]:
            found: list[dict[str, Any]] = get("/v1/devices")["devices"]
            return found[0] if found else {"reason": "", "connected": False}

        _wait_for("the holder is told", lambda: f"rocess {os.getpid()} (" in device()["reason"])
        assert not device()["connected"]
        _wait_for("the others report", lambda: get("/readyz")["missing"] == ["measure"])
        log = home / "logs" / f"measure-{local_cpu().key}.log"
        _wait_for("its log says so", lambda: log.exists() and f"rocess {os.getpid()} (" in log.read_text())
        fcntl.flock(lock, fcntl.LOCK_UN)
        _wait_for("it takes the device", lambda: device()["connected"])
        assert device()["reason"] == ""
        assert get("/readyz")["missing"] == []
    finally:
        service.send_signal(signal.SIGTERM)
        _, said = service.communicate(timeout=20)
    assert f"rocess {os.getpid()} (" in said  # in the terminal too
    assert "ended" not in said  # no process had to be started twice


def test_who_waits_for_a_device_ends_when_told(tmp_path: Path, lock: int) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    environment = kept | {"ROOFTILE_HOME": str(tmp_path / "h")}
    subprocess.run([ROOFTILE, "migrate"], env=environment, check=True, capture_output=True, timeout=60)
    command = [sys.executable, "-m", "worker", "measure", "--device", local_cpu().key]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "waiting for the device" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10.0) == 0
    finally:
        process.kill()
        process.communicate()


def test_doctor_names_who_measures(
    tmp_path: Path, lock: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "h"))
    main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert f"{local_cpu().key} is measured on by process {os.getpid()} (" in checks["locks"]["found"]


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    descriptor = open_lock_file(path)
    try:
        assert lock_holder(path) is None
        code = (
            "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX);"
            "print('held', flush=True); time.sleep(60)"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "ROOFTILE_HOME": "/somewhere"},
        )  # fmt: skip
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            told = lock_holder(path)
            assert told is not None
            assert told.startswith(f"process {holder.pid} (python")
            assert "ROOFTILE_HOME=/somewhere" in told
        finally:
            holder.kill()
            holder.communicate()
        assert lock_holder(path) is None
    finally:
        os.close(descriptor)
