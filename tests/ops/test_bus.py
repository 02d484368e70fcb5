"""Do loops go on, do doorbells never hold anybody up, and do children die with their parent?"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import service.bus.loop as loop_module
from service.bus import (
    MAX_JOB_S,
    Doorbell,
    HostGate,
    Kind,
    Loop,
    make_celery,
    measure_queue,
    queue_of,
    task_of,
)
from service.jobs.request import MOST_SECONDS
from service.paths import shared_dir
from service.settings import Settings


def _cluster(tmp_path: Path, broker: str) -> Settings:
    return Settings(home=tmp_path, broker_url=broker)


def _wait(condition: object, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_names() -> None:
    assert queue_of(Kind.MEASURE, "cpu-x") == measure_queue("cpu-x") == "measure.cpu-x"
    assert [queue_of(kind) for kind in ("search", "compile", "emulate")] == ["search", "compile", "emulate"]
    assert task_of("search") == "search.advance"
    with pytest.raises(ValueError, match="device"):
        queue_of("measure")


def test_celery_is_a_doorbell_and_nothing_more(tmp_path: Path) -> None:
    conf = make_celery(_cluster(tmp_path, "redis://localhost:1/0")).conf
    assert conf.result_backend is None
    assert conf.task_ignore_result
    assert conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert not conf.worker_enable_remote_control
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.broker_connection_retry_on_startup
    # In the one place where kombu reads it, and above any job's limit (CE-01, CE-05).
    assert conf.broker_transport_options["visibility_timeout"] > MAX_JOB_S >= MOST_SECONDS


def test_a_loop_works_at_once_while_there_is_work_and_then_sweeps() -> None:
    left = [3]
    calls: list[float] = []

    def step() -> bool:
        calls.append(time.monotonic())
        left[0] -= 1
        return left[0] >= 0

    loop = Loop(step, sweep_s=0.3, name="t")
    loop.start()
    assert _wait(lambda: len(calls) >= 4, 0.25)
    assert not _wait(lambda: len(calls) >= 5, 0.15)
    loop.ring()
    assert _wait(lambda: len(calls) >= 5, 0.1)
    assert _wait(lambda: len(calls) >= 6, 1.0)
    loop.stop()
    assert loop.join(1.0)


def test_a_loop_keeps_still_while_somebody_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loop_module, "QUIET_S", 0.4)
    calls: list[float] = []

    def step() -> bool:
        calls.append(time.monotonic())
        return False

    gate = HostGate(shared_dir(tmp_path / "locks"))
    loop = Loop(step, sweep_s=0.01, name="t")
    loop.quiet = gate.measuring
    with gate.exclusive():
        assert gate.measuring()
        loop.start()
        time.sleep(1.0)
        assert 2 <= len(calls) <= 4  # at once, and then once in QUIET_S
    assert not gate.measuring()
    with gate.shared():
        assert not gate.measuring()
        before = len(calls)
        assert _wait(lambda: len(calls) > before + 10)
    loop.stop()
    assert loop.join(1.0)


def test_an_error_is_told_once_backed_off_and_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "BACKOFF_FIRST_S", 0.01)
    monkeypatch.setattr(loop_module, "BACKOFF_MOST_S", 0.1)
    calls: list[float] = []
    told: list[Exception] = []

    def step() -> bool:
        calls.append(time.monotonic())
        if len(calls) <= 5:
            raise RuntimeError("the database is away")
        return False

    loop = Loop(step, sweep_s=0.01, name="t", on_error=told.append)
    loop.start()
    assert _wait(lambda: len(calls) > 8)
    loop.stop()
    assert loop.join(1.0)
    assert [str(error) for error in told] == ["the database is away"]
    assert calls[5] - calls[4] > calls[2] - calls[1]


def test_a_failing_loop_can_be_stopped() -> None:
    def step() -> bool:
        raise RuntimeError("no")

    loop = Loop(step, sweep_s=0.01, name="t")
    loop.start()
    time.sleep(0.1)
    loop.stop()
    assert loop.join(0.5)


def test_embedded_doorbell_does_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    bell = Doorbell(Settings(home=tmp_path))
    bell.ring("search", 7)
    assert not [t for t in threading.enumerate() if t.name == "doorbell" and t not in before]
    bell.close()


@pytest.mark.parametrize("answers", ["refused", "never"])
def test_a_dead_broker_holds_nobody_up(tmp_path: Path, answers: str) -> None:
    """Refused at once, and a port that takes the connection and never says a word."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if answers == "never":
            silent.listen()
        _ring_in_vain(Doorbell(_cluster(tmp_path, f"redis://127.0.0.1:{port}/0")))


def _ring_in_vain(bell: Doorbell) -> None:
    started = time.monotonic()
    for number in range(3000):
        bell.ring("search", number)
        bell.ring("measure", device_key="cpu-x")
    bell.ring("no such kind")
    bell.ring("measure")
    assert time.monotonic() - started < 1.0
    started = time.monotonic()
    bell.close(0.2)
    assert time.monotonic() - started < 1.0


CHILD = """
import os, subprocess, sys, time
from service.bus import be_child
from service.bus.child import PARENT_VARIABLE
if len(sys.argv) == 1:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    child = subprocess.Popen([sys.executable, __file__, "child"], env=environment, start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(60)
assert be_child()
assert PARENT_VARIABLE not in os.environ
print("child", flush=True)
time.sleep(60)
"""


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_a_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "tree.py"
    script.write_text(CHILD)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == "child\n"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert _wait(lambda: _gone(pid), 2.0)


def test_a_child_whose_parent_died_before_it_asked_ends_itself(tmp_path: Path) -> None:
    code = "from service.bus import be_child; be_child(); print('alive')"
    # Pid 1 is not our parent: to the child this looks like a parent that went away.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROOFTILE_PARENT_PID": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""


def test_started_by_hand_it_is_nobodys_child() -> None:
    code = "from service.bus import be_child; print(be_child())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
