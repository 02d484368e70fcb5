"""Are children restarted when they die alone, given up when they cannot live, and gone when we are?"""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import service.supervisor.child as child_module
import service.supervisor.logfile as logfile_module
from service import doctor
from service.errors import ChildGaveUpError, HomeInUseError, PortTakenError
from service.paths import Home, prepare_home
from service.settings import Settings
from service.supervisor import HomeLock, Running, Supervisor, setup
from service.supervisor.child import Child, ChildSpec
from service.supervisor.lock import running
from service.supervisor.logfile import LogFile


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return prepare_home(tmp_path / "home")


@pytest.fixture
def make(home: Home) -> Iterator[Callable[[str], Child]]:
    made: list[Child] = []

    def build(code: str, told: list[str] | None = None, *, needed: bool = True) -> Child:
        lines: list[str] = [] if told is None else told
        spec = ChildSpec("probe", (sys.executable, "-c", code), needed)
        child = Child(spec, os.environ, home.logs, lambda name, text: lines.append(f"{name}: {text}"))
        made.append(child)
        return child

    yield build
    for child in made:
        child.terminate()
        child.wait(time.monotonic())


def _poll_until(child: Child, condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        child.poll()
        time.sleep(0.02)


def _poll_on(supervisor: Supervisor, before: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before()
        supervisor.poll()
        time.sleep(0.02)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_killed_child_comes_back_and_its_own_children_are_gone(
    make: Callable[..., Child], home: Home
) -> None:
    told: list[str] = []
    child = make(
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']);"
        " print('grandchild', p.pid, flush=True); time.sleep(60)",
        told,
    )
    child.start()
    first = child.pid
    assert first is not None
    log = home.logs / "probe.log"
    _poll_until(child, lambda: log.exists() and "grandchild" in log.read_text())
    grandchild = int(re.findall(r"grandchild (\d+)", log.read_text())[0])
    os.kill(first, signal.SIGKILL)
    _poll_until(child, lambda: child.pid not in (None, first))
    assert _gone(grandchild)
    assert child.restarts == 1
    assert told[0].startswith("probe: ended (killed by SIGKILL) after")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_one_that_cannot_live_is_given_up_with_its_last_words(
    make: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(child_module, "BACKOFF_MOST_S", 0.02)
    told: list[str] = []
    child = make("import sys; sys.exit('the moon is in the wrong house')", told)
    child.start()
    with pytest.raises(ChildGaveUpError) as caught:
        _poll_until(child, lambda: False)
    text = str(caught.value)
    assert all("restarting" in line and "the moon is in the wrong house" in line for line in told)
    assert len(told) == child_module.QUICK_DEATHS - 1  # a person need not wait for the end to learn why
    assert "the moon is in the wrong house" in text
    assert "probe.log" in text
    assert "exit code 1" in text
    assert "\n" not in text


def test_one_that_is_killed_after_a_while_is_started_again_but_one_that_keeps_ending_is_given_up(
    make: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was at work; the second waited in vain for what it needs, on a slow machine."""
    monkeypatch.setattr(child_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(child_module, "BACKOFF_MOST_S", 0.02)
    monkeypatch.setattr(child_module, "WELL_S", 0.0)
    killed = make("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    killed.start()
    _poll_until(killed, lambda: killed.restarts > child_module.QUICK_DEATHS)
    ending = make("raise SystemExit('somebody else has the device')")
    ending.start()
    with pytest.raises(ChildGaveUpError, match="somebody else has the device"):
        _poll_until(ending, lambda: False)


def test_one_that_the_rest_can_do_without_is_tried_again_now_and_then(
    make: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(child_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(child_module, "BACKOFF_MOST_S", 0.02)
    monkeypatch.setattr(child_module, "AILING_FIRST_S", 0.5)
    told: list[str] = []
    mended = tmp_path / "mended"
    code = (
        f"import pathlib, sys, time; pathlib.Path({str(mended)!r}).exists() or sys.exit('no moon');"
        "time.sleep(60)"
    )
    child = make(code, told, needed=False)
    child.start()
    _poll_until(child, lambda: child.ailment is not None)
    assert child.ailment is not None
    assert "no moon" in child.ailment
    assert child.ailment in told[-1]
    restarts = child.restarts
    ailing_since = time.monotonic()
    _poll_until(child, lambda: child.restarts > restarts)
    assert time.monotonic() - ailing_since >= 0.4  # and not as fast as before
    mended.touch()
    monkeypatch.setattr(child_module, "WELL_BEFORE_EXIT_S", 0.5)
    _poll_until(child, lambda: child.ailment is None)
    assert told[-1] == "probe: is well again"
    assert child.pid is not None


def test_a_service_goes_on_without_a_worker_that_cannot_live_and_a_command_does_not(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(child_module, "BACKOFF_MOST_S", 0.02)
    monkeypatch.setattr(child_module, "QUICK_DEATHS", 2)
    settings = Settings(home=home.root, database_url=f"sqlite:///{home.root}/r.db")
    told: list[str] = []
    # No machine has this device, so its worker ends at once, each time.
    nobody = "cpu-test-1-1-1c-x86-64-v3"
    serving = Supervisor(
        settings, command="serve", api=("127.0.0.1", 0), devices=(nobody,),
        surface=lambda name, text: told.append(f"{name}: {text}"),
    )  # fmt: skip
    serving.start()
    try:
        deadline = time.monotonic() + 60
        while not (found := running(home)) or not found.ailments:
            assert time.monotonic() < deadline, told
            serving.poll()
            time.sleep(0.02)
        assert nobody in found.ailments[0]
        assert [child.spec.name for child in serving.children if child.ailment] == [f"measure-{nobody}"]
        check = doctor._home(settings)
        assert check.state is doctor.State.NOTE
        assert nobody in check.found
    finally:
        serving.stop()
    tuning = Supervisor(settings, command="tune", api=None, devices=(nobody,))
    assert all(spec.needed for spec in tuning._specs())
    tuning.stop()


def test_an_api_that_cannot_live_ends_the_service(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(child_module, "BACKOFF_MOST_S", 0.02)
    settings = Settings(home=home.root, database_url=f"sqlite:///{home.root}/r.db")
    serving = Supervisor(
        settings, command="serve", api=("127.0.0.1", 0), workers=False, surface=lambda *_: None
    )
    serving.start()
    try:
        (api,) = serving.children
        with pytest.raises(ChildGaveUpError, match="api"):
            _poll_on(serving, lambda: None if api.pid is None else os.kill(api.pid, signal.SIGKILL))
    finally:
        serving.stop()


def test_errors_in_a_log_reach_the_person(make: Callable[..., Child], home: Home) -> None:
    told: list[str] = []
    child = make(
        "from service.bus import setup_logs; import structlog, time; setup_logs();"
        "log = structlog.get_logger('x'); log.info('quiet'); log.error('loud', n=1); time.sleep(60)",
        told,
    )
    child.start()
    _poll_until(child, lambda: bool(told))
    assert told == ["probe: loud n=1"]
    assert "quiet" in (home.logs / "probe.log").read_text()


def test_one_that_ignores_sigterm_is_killed(make: Callable[..., Child]) -> None:
    child = make(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('[error] ready', flush=True); time.sleep(60)",
        told := [],
    )
    child.start()
    _poll_until(child, lambda: bool(told))
    pid = child.pid
    assert pid is not None
    started = time.monotonic()
    child.terminate()
    child.wait(time.monotonic() + 0.3)
    assert time.monotonic() - started < 2.0
    assert _gone(pid)


def test_logs_are_rotated_by_size(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile_module, "MOST_BYTES", 1000)
    log = LogFile(home.logs / "x.log")
    for number in range(200):
        log.write(f"line {number:03d} of this log\n".encode())
    log.close()
    names = sorted(path.name for path in home.logs.iterdir())
    assert names == ["x.log", "x.log.1", "x.log.2"]
    assert all((home.logs / name).stat().st_size <= 1100 for name in names)
    assert (home.logs / "x.log").read_text().endswith("line 199 of this log\n")
    log = LogFile(home.logs / "no" / "such" / "folder.log")
    log.write(b"dropped\n")  # a log that cannot be written stops nothing
    assert list(log.last_lines) == ["dropped"]


def test_one_supervisor_a_home(home: Home) -> None:
    me = Running(os.getpid(), "serve", "sqlite:///x", "http://127.0.0.1:1")
    assert running(home) is None
    lock = HomeLock(home)
    lock.acquire(me)
    assert running(home) == me
    with pytest.raises(HomeInUseError) as caught:
        HomeLock(home).acquire(me)
    assert str(os.getpid()) in str(caught.value)
    assert "http://127.0.0.1:1" in str(caught.value)
    lock.release()
    assert running(home) is None
    assert HomeLock(home).try_acquire(me)


def test_the_lock_of_a_killed_supervisor_is_free(home: Home) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from service.paths import Home;"
        "from service.supervisor import HomeLock, Running;"
        f"HomeLock(Home(Path({str(home.root)!r}))).acquire(Running(os.getpid(), 'serve', 'd', None));"
        "print('held', flush=True); time.sleep(60)"
    )
    # The lock object must stay alive in the child, so it is kept by its name.
    code = code.replace("HomeLock(Home", "lock = HomeLock(Home").replace(").acquire", "); lock.acquire")
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = HomeLock(home)
    me = Running(os.getpid(), "serve", "d", None)
    assert not lock.try_acquire(me)
    holder.kill()
    holder.wait()
    assert running(home) is None
    assert lock.try_acquire(me)
    lock.release()


def test_ports() -> None:
    free = setup.free_port("127.0.0.1", 0)
    assert free > 1023
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"Port {port} .*--port"):
            setup.free_port("127.0.0.1", port)
    with pytest.raises(PortTakenError, match=r"192\.0\.2\.1"):
        setup.free_port("192.0.2.1", 0)
    with pytest.raises(PortTakenError, match="not an address"):
        setup.free_port("no-such-host.invalid", 0)


def test_the_admin_token_is_made_once_and_private(home: Home) -> None:
    token = setup.admin_token(home, None)
    assert len(token) >= 32
    assert setup.admin_token(home, None) == token
    assert stat.S_IMODE(home.token.stat().st_mode) == 0o600
    home.token.chmod(0o644)
    assert setup.admin_token(home, None) == token
    assert stat.S_IMODE(home.token.stat().st_mode) == 0o600
    assert setup.admin_token(home, "given-by-environment") == "given-by-environment"
