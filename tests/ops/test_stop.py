"""Does each process end in order when it is told to: exit code 0, its work free within a second, at once when
told twice; and are its log lines JSON where one asks for that? Real processes, Postgres and Valkey."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import make_url, select, text, update

from bench.chaotic.process import children_of
from bench.chaotic.relay import Relay
from bench.servers.postgres import free_port
from bench.servers.valkey import Valkey
from service.jobs.submit import submit
from service.store import tokens, trials, workers
from service.store.database import Database
from service.store.enums import Scope
from service.store.models import Lease, Trial

PATIENCE_S = 60.0
GRACE_S = 10.0
"""What one takes, at most, where all that it needs is there."""
STOP_GRACE_S = 20.0
"""What compose gives a process (stop_grace_period)."""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    made.start()
    yield made
    made.kill()


class Processes:
    """Workers of a cluster, each with a home of its own, logging JSON."""

    def __init__(self, folder: Path, url: str, broker: Valkey) -> None:
        self.folder = folder
        self.database = Database(url, name="rooftile-test")
        self.environment = {
            **os.environ,
            "ROOFTILE_DATABASE_URL": url,
            "ROOFTILE_BROKER_URL": broker.url,
            "ROOFTILE_LOG_FORMAT": "json",
            "ROOFTILE_LEASE_S": "60",
            "ROOFTILE_TEST_HOST": "stopping",
            "PYTHONSAFEPATH": "1",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        environment = {**self.environment, "ROOFTILE_HOME": str(self.folder / name), **more}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], env=environment, stdout=log, stderr=log, cwd=self.folder
            )
        self.running.append(process)
        return process

    def wait(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, (what, self.logs())
            time.sleep(0.05)

    def reports(self, kind: str) -> bool:
        with self.database.read() as s:
            return any(str(one.kind) == kind for one in workers.alive(s))

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.log").read_text().splitlines()]

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.database.close()


@pytest.fixture
def processes(tmp_path: Path, postgres_url: str, valkey: Valkey) -> Iterator[Processes]:
    made = Processes(tmp_path, postgres_url, valkey)
    yield made
    made.close()


def end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> float:
    """SIGTERM; the exit code must be 0. Returns how long it took."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(grace_s) == 0
    return time.monotonic() - began


def test_idle_workers_end_in_order_with_and_without_their_broker(
    processes: Processes, valkey: Valkey
) -> None:
    search = processes.start("search", "service.search")
    compiling = processes.start("compile", "worker", "compile")
    emulating = processes.start("emulate", "worker", "emulate")
    measuring = processes.start("measure", "worker", "measure", "--device", "alias")
    for kind in ("search", "compile", "emulate", "measure"):
        processes.wait(lambda kind=kind: processes.reports(kind), kind)  # type: ignore[misc]
    time.sleep(1.0)
    for process in (search, measuring):
        end(process)
    valkey.kill()
    time.sleep(1.5)  # Celery notices, and waits for it
    for process in (compiling, emulating):
        end(process)
    with processes.database.read() as s:
        assert workers.listing(s) == []
        now = s.scalar(text("select clock_timestamp()"))
        assert [one.name for one in s.scalars(select(Lease)) if one.expires_at > now] == []
    told = [line for name in ("search", "compile", "emulate", "measure") for line in processes.lines(name)]
    assert all({"timestamp", "level", "event", "pid"} <= set(line) for line in told)
    celerys = [line for line in told if str(line.get("logger", "")).startswith("celery")]
    assert celerys  # that the broker went away
    assert {line["process"] for line in celerys} <= {"compile", "emulate"}
    assert all(str(line["worker"]).startswith(line["process"]) for line in celerys)


def slow_compiler(folder: Path) -> Path:
    """One that takes a minute."""
    slow = folder / "slow-cc"
    slow.write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*-dumpmachine*|*probe*) exec cc "$@";; esac\nsleep 60\n'
    )
    slow.chmod(0o755)
    return slow


def gemm(processes: Processes) -> dict[str, Any]:
    return {
        "problem": {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"},
        "target": {"arch": _arch(processes)},
        "budget": {"trials": 4},
    }


def test_what_a_worker_was_doing_is_free_within_a_second(processes: Processes, tmp_path: Path) -> None:
    """Its compiler takes a minute: what it has claimed can be claimed again long before."""
    slow = slow_compiler(tmp_path)
    search = processes.start("search", "service.search")
    compiling = processes.start("compile", "worker", "compile", CC=str(slow))
    processes.start("measure", "worker", "measure", "--device", "alias")
    processes.wait(lambda: processes.reports("measure"), "measure")
    processes.database.run(lambda s: submit(s, gemm(processes)))
    held = lambda: _held(processes.database)  # noqa: E731
    processes.wait(lambda: held() > 0, "a claim")
    time.sleep(0.5)
    began = time.monotonic()
    compiling.send_signal(signal.SIGTERM)
    processes.wait(lambda: held() == 0, "given back", 20.0)
    assert time.monotonic() - began < 5.0  # 0.5 s, on a machine that does other things too; its lease: 60 s
    assert compiling.wait(GRACE_S) == 0
    assert not _children_named("slow-cc")
    end(search)


def test_what_a_killed_worker_was_doing_waits_for_its_lease_and_not_for_the_broker(
    processes: Processes, tmp_path: Path
) -> None:
    """On a host that nobody else can look at. Its bell was never acknowledged, and would ring in hours."""
    lease = {"ROOFTILE_LEASE_S": "5"}
    search = processes.start("search", "service.search", **lease)
    compiler, stuck = tmp_path / "cc-that-hangs", tmp_path / "stuck"
    compiler.write_text(f'#!/bin/sh\nif [ -e {stuck} ]; then sleep 60; fi\nexec cc "$@"\n')
    compiler.chmod(0o755)
    far = {**lease, "ROOFTILE_TEST_HOST": "far", "CC": str(compiler)}
    killed = processes.start("far", "worker", "compile", **far)
    processes.wait(lambda: processes.reports("compile"), "compile")
    stuck.touch()
    processes.database.run(lambda s: submit(s, gemm(processes)))
    processes.wait(lambda: _held(processes.database) > 0, "a claim")
    killed.kill()
    killed.wait()
    query = select(Trial.id).where(Trial.lease_owner.is_not(None))
    with processes.database.read() as s:
        held = s.scalars(query).all()
    assert held
    next_one = processes.start("compile", "worker", "compile", **lease)

    def built() -> bool:
        with processes.database.read() as s:
            trials = s.scalars(select(Trial).where(Trial.id.in_(held))).all()
            return all(trial.artifact_sha256 is not None for trial in trials)

    processes.wait(built, "built by another", 45.0)
    for process in (next_one, search):
        end(process)


@pytest.mark.parametrize("how", ["refuses", "says nothing"])
def test_workers_end_while_the_database_is_away(processes: Processes, tmp_path: Path, how: str) -> None:
    """Also one that is in the midst of a compile, and with a database that took the connection and is silent,
    which no time limit of its driver ends. What they held comes back when its lease is over."""
    url = make_url(processes.environment["ROOFTILE_DATABASE_URL"])
    relay = Relay(url.host or "127.0.0.1", url.port or 5432)
    through = url.set(host="127.0.0.1", port=relay.port("all")).render_as_string(hide_password=False)
    processes.environment["ROOFTILE_DATABASE_URL"] = through
    try:
        processes.start("search", "service.search")
        processes.start("compile", "worker", "compile", CC=str(slow_compiler(tmp_path)))
        processes.start("emulate", "worker", "emulate")
        processes.start("measure", "worker", "measure", "--device", "alias")
        for kind in ("search", "compile", "emulate", "measure"):
            processes.wait(lambda kind=kind: processes.reports(kind), kind)  # type: ignore[misc]
        processes.database.run(lambda s: submit(s, gemm(processes)))
        processes.wait(lambda: _held(processes.database) > 0, "a claim")
        processes.wait(lambda: bool(_children_named("sleep\x0060")), "a compile")
        below = [pid for one in processes.running for pid in children_of(one.pid)]
        if how == "says nothing":
            relay.hold()
        else:
            relay.refuse()
            relay.cut()
        time.sleep(1.5)  # keepers and sweeps notice
        for process in processes.running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        for process in processes.running:
            assert process.wait(max(0.0, deadline - time.monotonic())) == 0, processes.logs()
    finally:
        relay.close()
    processes.wait(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in below), "children are gone")
    assert _held(processes.database) > 0  # nobody could be told
    with processes.database.begin() as s:
        s.execute(update(Trial).values(lease_expires_at=text("clock_timestamp() - interval '1 s'")))
        trials.expire(s)
    assert _held(processes.database) == 0


def test_told_twice_it_ends_at_once(processes: Processes) -> None:
    search = processes.start("search", "service.search")
    processes.wait(lambda: processes.reports("search"), "search")
    time.sleep(1.0)
    search.send_signal(signal.SIGSTOP)  # so that both have come when it goes on
    search.send_signal(signal.SIGTERM)
    search.send_signal(signal.SIGINT)
    search.send_signal(signal.SIGCONT)
    assert search.wait(GRACE_S) in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_the_api_ends_with_streams_open(processes: Processes) -> None:
    with processes.database.begin() as s:
        token = tokens.create(s, "a test", {Scope.ADMIN})[1]
    port = free_port()
    api = processes.start("api", "service.api", "--port", str(port))
    client = httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, timeout=30
    )
    processes.wait(lambda: _answers(client), "the API")
    body = {"problem": {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f16"}, "target": {"arch": "sm_80"}}
    job = client.post("/v1/jobs", json=body).json()["id"]
    ready = client.get("/readyz").json()
    assert ready["checks"] == {"database": "ok", "migrations": "ok", "broker": "ok", "clock": "ok"}
    with client.stream("GET", f"/v1/jobs/{job}/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        seconds = end(api)
        assert seconds < GRACE_S
        for _line in lines:  # the stream ends by itself
            pass
    client.close()


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx2.HTTPError:
        return False


def _held(database: Database) -> int:
    with database.read() as s:
        return len(s.scalars(select(Trial.id).where(Trial.lease_owner.is_not(None))).all())


def _arch(processes: Processes) -> str:
    from rooftile.device import local_cpu

    return local_cpu().arch


def _children_named(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
