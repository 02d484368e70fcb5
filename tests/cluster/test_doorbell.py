"""Does a message wake the worker it is for, and does work go on without a broker?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bench.chaotic.relay import Relay
from service.bus import Doorbell
from service.bus.app import BROKER_ANSWERS_S, make_celery
from service.bus.logs import setup_logs
from service.bus.names import MAX_JOB_S, VISIBILITY_TIMEOUT_S
from service.settings import Settings

WORKER = """
import sys, time
from service.bus import Loop, be_child, run_loop
from service.settings import get_settings
be_child()
steps = 0
def step():
    global steps
    steps += 1
    print(steps, time.time(), flush=True)
    return False
queue, sweep_s = sys.argv[1], float(sys.argv[2])
run_loop(Loop(step, sweep_s=sweep_s, name="probe"), get_settings(), [queue])
print("ended", flush=True)
"""


class Worker:
    def __init__(self, folder: Path, broker_url: str, queue: str, sweep_s: float) -> None:
        self._out = folder / f"{queue}.out"
        with self._out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, queue, str(sweep_s)],
                stdout=out,
                env={**os.environ, "ROOFTILE_HOME": str(folder), "ROOFTILE_BROKER_URL": broker_url},
            )

    def steps(self) -> int:
        return sum(line[:1].isdigit() for line in self._out.read_text().splitlines())

    def ended_well(self) -> bool:
        return self._out.read_text().endswith("ended\n")

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def wait_steps(self, count: int, seconds: float) -> bool:
        return self.wait(lambda: self.steps() >= count, seconds)


def job_of(message: Any) -> str:
    return str(json.loads(message)["headers"]["argsrepr"])


def wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def build(broker_url: str, queue: str, sweep_s: float) -> Worker:
        made.append(Worker(tmp_path, broker_url, queue, sweep_s))
        return made[-1]

    yield build
    for worker in made:
        worker.process.kill()
        worker.process.wait()


def test_a_message_wakes_its_worker_and_no_other(
    broker: Any, start: Callable[..., Worker], tmp_path: Path
) -> None:
    ours = start(broker.url, "measure.cpu-x", 60.0)
    other = start(broker.url, "compile", 60.0)
    client = redis.Redis.from_url(broker.url)
    assert ours.wait(lambda: sum(row["cmd"] == "brpop" for row in client.client_list()) == 2, 15.0)
    assert ours.wait_steps(1, 5.0)
    assert other.wait_steps(1, 5.0)
    bell = Doorbell(Settings(home=tmp_path, broker_url=broker.url))
    bell.ring("measure", device_key="cpu-x")
    assert ours.wait_steps(2, 3.0)
    time.sleep(0.3)
    assert ours.steps() == 2
    assert other.steps() == 1
    # No reply queues (CE-22).
    keys = {key.decode() for key in client.scan_iter()}
    assert not [key for key in keys if "pidbox" in key or "reply" in key or "celeryev" in key]
    # The visibility timeout that is really in use: what kombu's channel to this broker goes by (CE-05).
    with make_celery(Settings(home=tmp_path, broker_url=broker.url)).connection_for_read() as connection:
        assert connection.default_channel.visibility_timeout == VISIBILITY_TIMEOUT_S > MAX_JOB_S
    ours.process.send_signal(signal.SIGTERM)
    assert ours.wait(ours.ended_well, 8.0)
    assert ours.process.wait(5.0) == 0
    bell.close()


def test_without_a_broker_the_sweep_finds_work_and_a_broker_that_returns_is_used(
    broker: Any, start: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = start(broker.url, "search", 0.5)
    assert worker.wait_steps(2, 15.0)
    broker.kill()
    before = worker.steps()
    bell = Doorbell(Settings(home=tmp_path, broker_url=broker.url))
    started = time.monotonic()
    bell.ring("search", 1)
    assert time.monotonic() - started < 0.5
    assert worker.wait_steps(before + 4, 5.0)
    assert worker.process.poll() is None
    broker.start()
    client = redis.Redis.from_url(broker.url)
    assert worker.wait(lambda: any(row["cmd"] == "brpop" for row in client.client_list()), 40.0)
    assert worker.process.poll() is None
    bell.close()


def test_a_worker_may_start_before_its_broker(
    broker: Any, start: Callable[..., Worker], tmp_path: Path
) -> None:
    broker.kill()
    worker = start(broker.url, "search", 0.3)
    assert worker.wait_steps(4, 15.0)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait(lambda: worker.process.poll() is not None, 15.0)


def test_a_broker_that_goes_silent_holds_up_no_bell_for_long(
    broker: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    relay = Relay("127.0.0.1", broker.port)
    client = redis.Redis.from_url(broker.url)
    bell = Doorbell(Settings(home=tmp_path, broker_url=f"redis://127.0.0.1:{relay.port('bell')}/0"))
    setup_logs()
    try:
        bell.ring("search", 1)
        wait(lambda: client.llen("search") == 1, 30.0)
        relay.hold()  # nothing is closed: a firewall forgot the connection, a host was switched off
        bell.ring("search", 2)
        wait(lambda: "the broker does not answer" in capfd.readouterr().err, 4 * BROKER_ANSWERS_S)
        relay.heal()
        relay.cut()
        bell.ring("search", 3)
        wait(lambda: "['3']" in {job_of(text) for text in client.lrange("search", 0, -1)}, 30.0)
    finally:
        bell.close()
        relay.close()


def test_bells_of_a_thread_that_died_are_rung_by_the_next(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_memory(_settings: Settings) -> Any:
        raise MemoryError

    bell = Doorbell(Settings(home=tmp_path, broker_url=broker.url))
    died = threading.Event()
    monkeypatch.setattr("threading.excepthook", lambda _args: died.set())
    with monkeypatch.context() as context:
        context.setattr("service.bus.doorbell.make_celery", short_of_memory)
        bell.ring("search", 1)
        assert died.wait(30.0)
    wait(lambda: "doorbell" not in {thread.name for thread in threading.enumerate()}, 20.0)
    bell.ring("search", 1)
    wait(lambda: redis.Redis.from_url(broker.url).llen("search") == 1, 30.0)
    bell.close()


def test_a_worker_that_can_not_listen_ends_with_an_error(broker: Any, start: Callable[..., Worker]) -> None:
    redis.Redis.from_url(broker.url).set("search", "not a list")
    worker = start(broker.url, "search", 0.5)
    assert worker.process.wait(30.0) == 1
    assert not worker.ended_well()


def test_messages_are_json_and_expire(broker: Any, tmp_path: Path) -> None:
    bell = Doorbell(Settings(home=tmp_path, broker_url=broker.url))
    for _ in range(5):
        bell.ring("search", 7)
    bell.close(5.0)
    client = redis.Redis.from_url(broker.url)
    messages = [json.loads(text) for text in client.lrange("search", 0, -1)]
    assert 1 <= len(messages) <= 5
    for message in messages:
        assert message["content-type"] == "application/json"
        assert message["headers"]["task"] == "search.advance"
        assert message["headers"]["eta"] is None
        assert message["headers"]["expires"] is not None


def test_a_broker_that_evicts_is_told(broker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    from service.bus.broker import broker_info, eviction_warning, warn_of_eviction
    from service.bus.logs import setup_logs

    assert eviction_warning(broker_info(broker.url)) is None
    redis.Redis.from_url(broker.url).config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in (eviction_warning(broker_info(broker.url)) or "")
    setup_logs()
    warn_of_eviction(broker.url)
    assert "noeviction" in capfd.readouterr().err
