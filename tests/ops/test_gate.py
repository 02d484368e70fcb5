"""Does the host's gate exclude, across threads, processes and users, and starve nobody?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service import periods
from service.bus import GateInterrupted, HostGate
from service.bus.hostgate import interrupt_wait
from service.errors import SettingsError
from service.host import VARIABLE
from service.paths import bench_lock_path, device_lock_path, host_lock_dir, shared_dir

HOLD = """
import sys, time
from pathlib import Path
from service.bus import HostGate
gate = HostGate(Path(sys.argv[1]))
with getattr(gate, sys.argv[2])():
    print("in", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def gate(tmp_path: Path) -> HostGate:
    return HostGate(shared_dir(tmp_path / "locks"))


def _hold(folder: Path, how: str, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), how, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def _blocked(enter: Callable[..., object]) -> bool:
    try:
        with enter(timeout_s=0.05):  # type: ignore[attr-defined]
            return False
    except TimeoutError:
        return True


def test_shared_together_exclusive_alone(gate: HostGate, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    holder = _hold(folder, "shared", 60)
    try:
        assert not _blocked(gate.shared)
        assert _blocked(gate.exclusive)
        assert not _blocked(gate.shared)  # a wait that was given up leaves nothing locked
    finally:
        holder.kill()
        holder.wait()
    assert not _blocked(gate.exclusive)  # the dead hold nothing
    holder = _hold(folder, "exclusive", 60)
    try:
        assert _blocked(gate.shared)
        assert _blocked(gate.exclusive)
    finally:
        holder.kill()
        holder.wait()


def test_threads_exclude_each_other(gate: HostGate) -> None:
    with gate.exclusive():
        outcome: list[bool] = []
        thread = threading.Thread(target=lambda: outcome.append(_blocked(gate.shared)))
        thread.start()
        thread.join()
        assert outcome == [True]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_uses_the_same_gate() -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        Path(root).chmod(0o755)
        folder = shared_dir(Path(root) / "locks")
        gate = HostGate(folder)
        with gate.exclusive():
            pass  # the files are root's now
        # Imported as root: the interpreter may lie where others cannot read.
        code = (
            "import os, sys, time; from pathlib import Path; import service.bus;"
            f"os.setgid(65534); os.setuid(65534); sys.argv = ['', {str(folder)!r}, 'exclusive', '60']" + HOLD
        )
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "in\n"
            assert _blocked(gate.shared)
        finally:
            holder.kill()
            holder.wait()


def test_neither_side_starves(gate: HostGate) -> None:
    """Two readers that overlap all the time and one writer that comes back at once: both get turns."""
    stop = time.monotonic() + 2.0
    turns = {"shared": 0, "exclusive": 0}
    inside = 0
    guard = threading.Lock()
    wrong: list[str] = []

    def work(how: str, seconds: float) -> None:
        nonlocal inside
        while time.monotonic() < stop:
            with getattr(gate, how)():
                with guard:
                    if how == "exclusive" and inside:
                        wrong.append("exclusive beside shared")
                    inside += 1 if how == "shared" else 100
                    if how == "shared" and inside >= 100:
                        wrong.append("shared beside exclusive")
                time.sleep(seconds)
                with guard:
                    inside -= 1 if how == "shared" else 100
                    turns[how] += 1

    threads = [threading.Thread(target=work, args=("shared", 0.02)) for _ in range(3)]
    threads.append(threading.Thread(target=work, args=("exclusive", 0.02)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert turns["exclusive"] >= 8
    assert turns["shared"] >= 8


def test_a_waiting_measurement_keeps_new_compiles_out(gate: HostGate, tmp_path: Path) -> None:
    order: list[str] = []
    first = _hold(tmp_path / "locks", "shared", 0.6)

    def enter(how: str) -> None:
        with getattr(gate, how)():
            order.append(how)

    writer = threading.Thread(target=enter, args=("exclusive",))
    writer.start()
    time.sleep(0.2)
    reader = threading.Thread(target=enter, args=("shared",))
    reader.start()
    writer.join()
    reader.join()
    first.wait()
    assert order == ["exclusive", "shared"]


def test_who_is_alone_says_so_while_it_is_at_work(
    gate: HostGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(periods.VARIABLE, "4")
    before = gate.said()
    holder = _hold(tmp_path / "locks", "exclusive", 60)

    def speaks(seconds: float) -> bool:
        said, end = gate.said(), time.monotonic() + seconds
        while gate.said() == said and time.monotonic() < end:
            time.sleep(0.02)
        return gate.said() != said

    try:
        assert gate.said() != before
        assert speaks(30.0)
        with gate.past() as together:
            assert not together
        os.kill(holder.pid, signal.SIGSTOP)
        speaks(0.1)
        assert not speaks(5 * periods.renew_s())
        os.kill(holder.pid, signal.SIGCONT)
        assert speaks(30.0)
    finally:
        holder.kill()
        holder.wait()
    with gate.past() as together:
        assert together
        assert _blocked(gate.exclusive)
        assert not _blocked(gate.shared)


def test_a_signal_ends_the_wait(gate: HostGate, tmp_path: Path) -> None:
    holder = _hold(tmp_path / "locks", "exclusive", 60)
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: interrupt_wait())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(GateInterrupted), gate.shared():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
        holder.kill()
        holder.wait()
    os.kill(os.getpid(), 0)
    interrupt_wait()  # not waiting: nothing happens
    assert not _blocked(gate.exclusive)


def test_hosts_that_one_machine_plays_share_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    real = {host_lock_dir(), device_lock_path("x").parent, bench_lock_path().parent}
    assert len(real) == 1
    folders = set(real)
    for name in ("one", "two"):
        monkeypatch.setenv(VARIABLE, name)
        assert device_lock_path("x").parent == host_lock_dir()
        folders.add(host_lock_dir())
    assert len(folders) == 3
    monkeypatch.setenv(VARIABLE, "../up")
    with pytest.raises(SettingsError, match=VARIABLE):
        host_lock_dir()
