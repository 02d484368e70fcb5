"""Do streams tell every event once, resume, end with their job, and leave everybody else alone?

A real server on a free port: the test client of Starlette cannot read a stream while it runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import event as sa_event
from sqlalchemy import update

from service.api import events, streams
from service.api.auth import COOKIE, Principal
from service.settings import Settings
from service.store import events as store_events
from service.store import logins, tokens
from service.store.enums import Scope
from service.store.models import Token

ADMIN = "admin-token-of-the-tests-0123456789"
HEADERS = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def server(app: FastAPI) -> Iterator[str]:
    """The address of a running server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        running = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=running.run, args=([listener],))
        thread.start()
        deadline = time.monotonic() + 20
        while not running.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        app.state.rooftile.stopping.set()
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def read(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events off the wire: event, id and decoded data."""
    event: dict[str, Any] = {}
    for line in lines:
        if line == "" and "data" in event:
            yield event
            event = {}
        elif line.startswith(":"):
            yield {"comment": line}
        elif line:
            name, _, value = line.partition(": ")
            if name != "retry":
                event[name] = json.loads(value) if name == "data" else value


def follow(url: str, job_id: int, **headers: str) -> list[dict[str, Any]]:
    """The whole stream of a job that ends."""
    with httpx2.stream(
        "GET", f"{url}/v1/jobs/{job_id}/events", headers={**HEADERS, **headers}, timeout=20
    ) as answer:
        assert answer.status_code == 200
        return [e for e in read(answer.iter_lines()) if "comment" not in e]


def test_a_stream_tells_each_event_once_and_ends_with_the_job(server: str, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    told: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: told.extend(follow(server, job.id)))
    thread.start()
    time.sleep(0.2)
    seed.trials(row, [900.0, 600.0])
    seed.end(job)
    thread.join(20)
    assert not thread.is_alive()
    ids = [int(e["id"]) for e in told[:-1]]
    assert ids == sorted(set(ids))
    assert told[0]["event"] == "job"
    assert told[0]["data"]["to"] == "queued"
    assert (told[-2]["event"], told[-2]["data"]["to"]) == ("job", "done")
    assert told[-1]["event"] == "end"
    assert [e["data"]["to"] for e in told if e["event"] == "trial"].count("measured") == 2
    for e in told[:-1]:
        assert e["data"]["job_id"] == job.id
        assert int(e["id"]) == e["data"]["id"]


def test_a_stream_goes_on_where_it_was_cut(server: str, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    seed.trials(row, [900.0, 600.0])
    seed.end(job)
    whole = follow(server, job.id)
    cut = whole[3]["id"]
    assert follow(server, job.id, **{"Last-Event-ID": cut}) == whole[4:]
    last = follow(server, job.id, **{"Last-Event-ID": whole[-1]["id"]})
    assert [e["event"] for e in last] == ["end"]
    wrong = httpx2.get(f"{server}/v1/jobs/{job.id}/events", headers={**HEADERS, "Last-Event-ID": "x"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "Last-Event-ID")


def test_proxies_are_told_not_to_hold_events_back_and_silence_is_pinged(
    server: str, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events.PING_S == 15.0  # the page of faults says so; proxies cut what is silent for 60 s
    monkeypatch.setattr(events, "PING_S", 0.2)
    seed.device()
    job = seed.job()
    url = f"{server}/v1/jobs/{job.id}/events"
    gzip = {**HEADERS, "Accept-Encoding": "gzip"}
    with httpx2.stream("GET", url, headers=gzip, timeout=10) as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert "Content-Encoding" not in answer.headers
        assert "no-store" in answer.headers["Cache-Control"]
        pings = 0
        for event in read(answer.iter_lines()):
            pings += event.get("comment") == ": ping"
            if pings == 3:
                break
    assert pings == 3


def test_forty_open_streams_hold_up_nobody(app: FastAPI, server: str, seed: Any) -> None:
    seed.device()
    job = seed.job()
    seed.start(job)
    with ExitStack() as stack:
        client = stack.enter_context(
            httpx2.Client(headers=HEADERS, timeout=20, limits=httpx2.Limits(max_connections=100))
        )
        streams = []
        for _ in range(40):
            answer = stack.enter_context(client.stream("GET", f"{server}/v1/jobs/{job.id}/events"))
            lines = read(answer.iter_lines())
            assert "comment" in next(lines)
            streams.append(lines)
        for _ in range(2):  # every stream is past its first look
            for lines in streams:
                assert next(lines)["event"] in ("job", "job_problem")
        # all of them together cost a look of the tail, four a second, and hold no connection
        engine = app.state.rooftile.database.engine()
        asked: list[str] = []
        sa_event.listen(engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
        time.sleep(1.0)
        assert sum("FROM events" in statement for statement in asked) <= 8
        assert len(asked) <= 16
        assert engine.pool.checkedout() <= 1
        times: dict[str, list[float]] = {"/healthz": [], "/readyz": [], "/v1/jobs": []}
        for n in range(10):
            for path, taken in times.items():
                start = time.monotonic()
                if path == "/v1/jobs":
                    body = {"problem": {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}, "seed": n}
                    body["device"] = "cpu-intel-6-85-8c-x86-64-v4"
                    assert client.post(f"{server}{path}", json=body).status_code == 202
                else:
                    assert client.get(f"{server}{path}").status_code == 200
                taken.append(time.monotonic() - start)
        for path, taken in times.items():
            assert sorted(taken)[len(taken) // 2] < 0.2, (path, taken)


def test_who_goes_is_forgotten(app: FastAPI, server: str, seed: Any) -> None:
    seed.device()
    job = seed.job()
    seed.start(job)
    followed, kept = app.state.rooftile.streams, []
    with ExitStack() as stack:
        client = stack.enter_context(httpx2.Client(headers=HEADERS, timeout=20))
        for _ in range(20):
            answer = stack.enter_context(client.stream("GET", f"{server}/v1/jobs/{job.id}/events"))
            kept.append(read(answer.iter_lines()))  # else its answer is closed
            assert next(kept[-1])
        until(lambda: followed.open == 20)
        assert "rooftile_event_streams 20.0" in client.get(f"{server}/metrics").text
    until(lambda: followed.open == 0)
    assert not followed._followers
    assert "rooftile_event_streams 0.0" in httpx2.get(f"{server}/metrics", headers=HEADERS).text


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_token_has_a_number_of_streams_and_a_process_too(
    server: str, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = seed.job()
    with seed.database.begin() as s:
        _, clear = tokens.create(s, "one", {Scope.READ})
    url, other = f"{server}/v1/jobs/{job.id}/events", {"Authorization": f"Bearer {clear}"}
    monkeypatch.setattr(streams, "MOST_OF_ONE", 2)
    monkeypatch.setattr(streams, "MOST_OPEN", 3)
    kept = []
    with httpx2.Client(timeout=20) as client, ExitStack() as stack:

        def stream(headers: dict[str, str]) -> httpx2.Response:
            answer = stack.enter_context(client.stream("GET", url, headers=headers))
            if answer.status_code == 200:
                kept.append(read(answer.iter_lines()))  # else it is closed
                while "event" not in next(kept[-1]):
                    pass
            return answer

        assert [stream(other).status_code for _ in range(3)] == [200, 200, 429]
        assert stream(HEADERS).status_code == 200
        refused = stream(HEADERS)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize("way", ["revoked", "logged out"])
def test_a_silent_stream_ends_with_the_right_to_read_it(
    server: str, seed: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(events, "PING_S", 600.0)
    seed.device()
    job = seed.job()
    with seed.database.begin() as s:
        if way == "logged out":
            redeemed = logins.redeem(s, logins.create_code(s, {Scope.READ}))
            assert redeemed is not None
            session, cookie = redeemed
            headers = {"Cookie": f"{COOKIE}={cookie}"}
        else:
            record, clear = tokens.create(s, "one", {Scope.READ})
            headers = {"Authorization": f"Bearer {clear}"}
    with httpx2.stream(
        "GET", f"{server}/v1/jobs/{job.id}/events", headers=headers, timeout=30
    ) as answer:  # the time is over if nothing comes for so long
        pieces = answer.iter_bytes()
        assert next(pieces)
        time.sleep(0.5)
        with seed.database.begin() as s:
            assert logins.revoke(s, session.id) if way == "logged out" else tokens.revoke(s, record.id)
        assert "event: end" not in b"".join(pieces).decode()


@pytest.mark.parametrize("way", ["revoked", "expired"])
def test_who_reads_a_long_history_stops_with_the_right_to_read_it(
    app: FastAPI, seed: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(events, "_BATCH", 1)
    if way == "expired":
        monkeypatch.setattr(events, "PING_S", 0.0)
    seed.device()
    job = seed.job()
    seed.trials(seed.start(job)[0], [900.0, 600.0, 700.0])
    with seed.database.begin() as s:
        record, _ = tokens.create(s, "one", {Scope.READ})
    who = Principal(f"token:{record.id}", frozenset({Scope.READ}), record.id, None, None)
    state = app.state.rooftile

    async def slowly() -> int:
        """How many pieces came after the token had ended."""
        pieces = events.stream(state, who, job.id, 0)
        for _ in range(2):
            assert await anext(pieces)
        if way == "revoked":
            with seed.database.begin() as s:
                assert tokens.revoke(s, record.id)
            with seed.database.read() as s:
                state.known_tokens.told(store_events.after(s, 0))
        else:
            with seed.database.begin() as s:
                s.execute(update(Token).where(Token.id == record.id).values(expires_at=record.created_at))
        return len([piece async for piece in pieces])

    assert asyncio.run(asyncio.wait_for(slowly(), 30)) == 0


@pytest.mark.parametrize("way", ["revoked", "expired", "logged out"])
def test_a_stream_ends_with_the_right_to_read_it(
    server: str, seed: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "expired":
        monkeypatch.setattr(events, "PING_S", 0.2)
    seed.device()
    job = seed.job()
    seed.start(job)
    url = f"{server}/v1/jobs/{job.id}/events"
    told: list[dict[str, Any]] = []
    with seed.database.begin() as s:
        if way == "logged out":
            redeemed = logins.redeem(s, logins.create_code(s, {Scope.READ}))
            assert redeemed is not None
            session, cookie = redeemed
            headers = {"Cookie": f"{COOKIE}={cookie}"}
        else:
            record, clear = tokens.create(s, "one", {Scope.READ}, 6.0 if way == "expired" else None)
            headers = {"Authorization": f"Bearer {clear}"}

    opened = threading.Event()

    def listen() -> None:
        with httpx2.stream("GET", url, headers=headers, timeout=20) as answer:
            assert answer.status_code == 200
            for one in read(answer.iter_lines()):
                opened.set()
                if "event" in one:
                    told.append(one)

    thread = threading.Thread(target=listen)
    thread.start()
    assert opened.wait(20)
    if way != "expired":
        with seed.database.begin() as s:
            assert logins.revoke(s, session.id) if way == "logged out" else tokens.revoke(s, record.id)
    thread.join(20)
    assert not thread.is_alive()
    assert told
    assert not [one for one in told if one["event"] == "end"]


def test_a_client_that_does_not_read_gets_the_rest_from_the_database(
    server: str, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_BEHIND", 3)
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    told: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: told.extend(follow(server, job.id)))
    thread.start()
    time.sleep(0.5)
    seed.trials(row, [900.0, 600.0, 700.0, 800.0])  # more than three in each transaction
    seed.end(job)
    thread.join(20)
    assert told == follow(server, job.id)
    assert [e["data"]["to"] for e in told if e["event"] == "trial"].count("measured") == 4


def _run(settings: Settings, port: int, **more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "ROOFTILE_HOME": str(settings.home),
        "ROOFTILE_DATABASE_URL": settings.database_url,
        "ROOFTILE_TOKEN": ADMIN,
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "service.api", "--port", str(port)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_says_where_it_listens_and_stops_at_once_with_streams_open(
    settings: Settings, seed: Any
) -> None:
    seed.device()
    job = seed.job()
    process = _run(settings, 0)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("listening on ")
        assert url.startswith("http://127.0.0.1:")
        with httpx2.stream("GET", f"{url}/v1/jobs/{job.id}/events", headers=HEADERS, timeout=20) as answer:
            lines = read(answer.iter_lines())
            next(lines)
            process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            list(lines)
            process.wait(10)
        assert time.monotonic() - start < 12  # a ping would come after 15
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_streams_leave_files_for_everybody_else(settings: Settings, seed: Any) -> None:
    seed.device()
    job = seed.job()
    with seed.database.begin() as s:
        texts = [tokens.create(s, f"reader {number}", {Scope.READ})[1] for number in range(5)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    try:
        process = _run(settings, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("listening on ")
        assert url.startswith("http://127.0.0.1:")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (200, 200))
        found, kept = [], []
        path, unbounded = f"{url}/v1/jobs/{job.id}/events", httpx2.Limits(max_connections=None)
        with httpx2.Client(timeout=30, limits=unbounded) as client, ExitStack() as stack:
            for text in texts:
                answers: Counter[int] = Counter()
                for _ in range(27):
                    headers = {"Authorization": f"Bearer {text}"}
                    answer = stack.enter_context(client.stream("GET", path, headers=headers))
                    if answer.status_code == 200:
                        kept.append(answer.iter_lines())  # else it is closed
                        next(kept[-1])
                    else:
                        answer.read()
                        assert answer.headers["Connection"] == "close"
                    answers[answer.status_code] += 1
                found.append(answers)
            assert found == [{200: 25, 429: 2}] * 4 + [{503: 27}]
            assert client.get(f"{url}/healthz").status_code == 200
            headers = {"Authorization": f"Bearer {texts[0]}"}
            assert client.get(f"{url}/v1/jobs", headers=headers).status_code == 200
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_one_sentence(settings: Settings) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        process = _run(settings, listener.getsockname()[1])
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("rooftile: Cannot listen on 127.0.0.1 port")


def test_a_database_that_is_not_there_is_one_sentence(settings: Settings) -> None:
    for url in ("postgresql://nobody:secret@127.0.0.1:1/none", "sqlite:////nowhere/at/all.db"):
        process = _run(settings, 0, ROOFTILE_DATABASE_URL=url)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert out == ""
        assert err.count("\n") == 1, err
        assert "secret" not in err
