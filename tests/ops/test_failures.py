"""Does each failure of the machine end in one clear sentence, exit code 1, and nothing left behind?"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from rooftile.cli import main

ROOFTILE = str(Path(sys.executable).with_name("rooftile"))
TUNE = ("tune", "gemm", "--m", "8", "--n", "64", "--k", "64", "--dtype", "f32", "--trials", "2")


def _run(
    home: Path, *arguments: str, seconds: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOFTILE_")}
    return subprocess.run(
        [ROOFTILE, *arguments],
        env={**environment, "ROOFTILE_HOME": str(home), **variables},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def _one_sentence(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> str:
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("rooftile: ")
    assert "Traceback" not in done.stderr + done.stdout
    for word in words:
        assert word in lines[0]
    return lines[0]


def _no_children(home: Path) -> bool:
    """No process of this home is left."""
    mark = f"ROOFTILE_HOME={home}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    return False
            except OSError:
                continue
    return True


def test_port_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        _one_sentence(_run(tmp_path / "h", "serve", "--port", port), port, "--port")
    assert _no_children(tmp_path / "h")


@pytest.mark.parametrize("command", [("serve", "--port", "0"), TUNE, ("migrate",)], ids=lambda c: c[0])
def test_database_unreachable(tmp_path: Path, command: tuple[str, ...]) -> None:
    url = "postgresql://somebody:hunter2@127.0.0.1:1/nothing"
    done = _run(tmp_path / "h", *command, ROOFTILE_DATABASE_URL=url)
    line = _one_sentence(done, "127.0.0.1")
    assert "hunter2" not in line
    assert _no_children(tmp_path / "h")
    assert not list((tmp_path / "h").glob("*.db*"))


def test_database_that_is_none(tmp_path: Path) -> None:
    home = tmp_path / "h"
    home.mkdir()
    (home / "rooftile.db").write_text("this is a shopping list, not a database\n" * 100)
    _one_sentence(_run(home, "serve", "--port", "0"), "database")
    assert (home / "rooftile.db").read_text().startswith("this is a shopping list")


@pytest.mark.parametrize("command", [("serve", "--port", "0"), TUNE], ids=lambda c: c[0])
def test_compiler_missing(tmp_path: Path, command: tuple[str, ...]) -> None:
    import importlib.util

    if importlib.util.find_spec("ziglang") is not None:
        pytest.skip("the ziglang wheel is a compiler")
    empty = tmp_path / "bin"
    empty.mkdir()
    done = _run(tmp_path / "h", *command, PATH=str(empty))
    _one_sentence(done, "compiler", "apt install gcc")
    assert _no_children(tmp_path / "h")


def test_a_compiler_missing_is_a_document_with_json(tmp_path: Path) -> None:
    done = _run(tmp_path / "h", *TUNE, "--json", CC="/no/such/compiler")
    assert done.returncode == 1
    assert "compiler" in json.loads(done.stdout)["error"]


def test_disk_full(tmp_path: Path) -> None:
    """On a file system of 128 KB that only this test's processes see."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    home = tmp_path / "h"
    home.mkdir()
    script = (
        f"mount -t tmpfs -o size=128k,mode=700 none {home} || exit 77;"
        f"{ROOFTILE} migrate; echo code $?; ls -A {home};"
        f"head -c 1000000 /dev/zero > {home}/fill 2>/dev/null; {ROOFTILE} serve --port 0; echo code $?"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script],
        env={**os.environ, "ROOFTILE_HOME": str(home)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.stdout.count("code 1\n") == 2, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert line.startswith("rooftile: ")
        assert "room" in line or "full" in line or "space" in line


def test_home_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _one_sentence(_run(tmp_path / "file", "serve", "--port", "0"), "ROOFTILE_HOME", "folder")
    _one_sentence(_run(Path("/proc/nowhere"), "serve", "--port", "0"), "ROOFTILE_HOME")


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "seventy"),
        ("serve", "--nonsense"),
        ("tune",),
        ("tune", "gemm", "--m", "-3", "--n", "64", "--k", "64", "--dtype", "f32"),
        ("tune", "gemm", "--m", "8", "--n", "64", "--k", "64", "--dtype", "float32"),
        ("tune", "--spec", "/no/such/file.json"),
        ("worker", "paint"),
        ("worker", "measure", "--device", "toaster"),
        ("token", "create"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2(
    tmp_path: Path,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "h"))
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.err.strip()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert not (tmp_path / "h").exists()


def test_a_second_signal_ends_a_start_that_waits(tmp_path: Path) -> None:
    """The first one is kept until the start is done, and another's migration may hold that up for minutes."""
    home = tmp_path / "h"
    home.mkdir()
    with FileLock(home / "rooftile.db.migrate.lock"):
        serve = subprocess.Popen(
            [ROOFTILE, "serve", "--port", "0"],
            env={**os.environ, "ROOFTILE_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 60.0
            while serve.poll() is None and time.monotonic() < deadline:
                # Only once its own handlers are there: the lock is what it takes after them.
                if (home / "supervisor.json").exists():
                    serve.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert serve.poll() not in (None, 0)
        finally:
            serve.kill()
            serve.communicate()
    assert _no_children(home)


def test_a_home_that_is_removed_ends_its_service(tmp_path: Path) -> None:
    """What it accepted afterwards would be written to a file that nobody can open again."""
    home = tmp_path / "h"
    serve = subprocess.Popen(
        [ROOFTILE, "serve", "--port", "0", "--no-workers"],
        env={**os.environ, "ROOFTILE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert serve.stdout is not None
        assert "Ctrl-C" in [serve.stdout.readline() for _ in range(3)][-1]
        home.rename(tmp_path / "elsewhere")
        _, errors = serve.communicate(timeout=30)
    finally:
        serve.kill()
        serve.communicate()
    assert serve.returncode == 1
    assert "removed or replaced while it was in use" in errors
    assert "Traceback" not in errors
    assert _no_children(home)


def test_two_supervisors_on_one_home(tmp_path: Path) -> None:
    home = tmp_path / "h"
    environment = {**os.environ, "ROOFTILE_HOME": str(home)}
    first = subprocess.Popen(
        [ROOFTILE, "serve", "--port", "0", "--no-workers"],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert first.stdout is not None
        url = first.stdout.readline().split()[-1]
        _one_sentence(_run(home, "serve", "--port", "0"), str(first.pid), url)
    finally:
        first.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert first.wait(30) == 0
    assert time.monotonic() - started < 20
    assert _no_children(home)
