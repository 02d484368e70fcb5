"""Does a token get as much as it may, over all processes, and does who guesses tokens disturb nobody?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event as sa_event
from starlette.testclient import TestClient
from support.api import ADMIN, CPU, gemm
from support.served import exchange, served

from bench.servers.valkey import Valkey
from service.api import limits
from service.api.app import create_app
from service.api.errors import TooManyError
from service.api.limits import Limits
from service.settings import Settings
from service.store.enums import Scope


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    made.start()
    yield made
    made.kill()


def let_in(one: Limits, owner: str, tries: int) -> int:
    """How many of so many requests are let in."""
    count = 0
    for _ in range(tries):
        try:
            one.request(owner)
            count += 1
        except TooManyError:
            pass
    return count


def test_a_token_has_its_rate_and_another_its_own(settings: Settings) -> None:
    one = Limits(settings.model_copy(update={"requests_per_s": 40}))
    assert let_in(one, "token:1", 30) == 30
    assert let_in(one, "token:2", 40) == 40
    assert let_in(one, "token:1", 300) < 100  # a slow machine may reach into the next second
    time.sleep(1.1)
    assert let_in(one, "token:1", 20) == 20
    free = Limits(settings.model_copy(update={"requests_per_s": 0}))
    assert let_in(free, "token:1", 5000) == 5000


def test_processes_share_a_rate_by_the_broker_and_count_alone_without_it(
    settings: Settings, broker: Valkey
) -> None:
    shared = settings.model_copy(update={"submissions_per_min": 10, "broker_url": broker.url})
    processes = [Limits(shared) for _ in range(3)]

    def submitted(owner: str) -> int:
        count = 0
        for n in range(60):
            try:
                processes[n % 3].submission(owner)
                count += 1
            except TooManyError:
                pass
        return count

    assert submitted("token:1") == 10
    broker.kill()
    start = time.monotonic()
    assert submitted("token:2") == 30  # each for itself
    assert time.monotonic() - start < 10  # one look at a broker that is away, not sixty
    broker.start()
    for one in processes:
        one._alone_until_s = 0.0
    assert submitted("token:3") == 10


def test_too_much_is_429_with_when_to_ask_again(settings: Settings, seed: Any) -> None:
    seed.device()
    few = settings.model_copy(update={"requests_per_s": 5, "submissions_per_min": 3})
    headers = {"Authorization": f"Bearer {seed.token(Scope.SUBMIT)}"}
    body = {"problem": gemm(), "device": CPU}
    with TestClient(create_app(few), base_url="http://127.0.0.1:8417") as client:
        posted = []
        for n in range(5):
            time.sleep(0.3)
            posted.append(client.post("/v1/jobs", json={**body, "seed": n}, headers=headers))
        assert [answer.status_code for answer in posted] == [202, 202, 202, 429, 429]
        assert posted[-1].headers["Content-Type"] == "application/problem+json"
        assert int(posted[-1].headers["Retry-After"]) >= 1
        for path in ("/v1/jobs", "/v1/best"):
            answers = [
                client.request("POST" if path == "/v1/best" else "GET", path, json=body, headers=headers)
                for _ in range(40)
            ]
            assert 429 in {answer.status_code for answer in answers}, path
            assert answers[0].status_code == 200 or path == "/v1/best"
        admin = {"Authorization": f"Bearer {ADMIN}"}
        assert {client.get("/v1/jobs", headers=admin).status_code for _ in range(40)} == {200}


def test_who_guesses_is_told_to_wait_and_disturbs_nobody(anonymous: TestClient, seed: Any) -> None:
    anonymous.app.state.rooftile.limits.most_guesses = 5  # type: ignore[attr-defined]
    good, right = ({"Authorization": f"Bearer {seed.token(Scope.READ)}"} for _ in range(2))
    assert anonymous.get("/v1/jobs", headers=good).status_code == 200
    answers = [anonymous.get("/v1/jobs", headers={"Authorization": f"Bearer guess-{n}"}) for n in range(8)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
    assert anonymous.post("/v1/best", json={}, headers={"Authorization": "Bearer x"}).status_code == 429
    assert anonymous.get("/login?code=guess").status_code == 429
    # Of the same address: who was here before goes on, and a right guess is as good as a wrong one.
    assert anonymous.get("/v1/jobs", headers=good).status_code == 200
    asked: list[str] = []
    engine = anonymous.app.state.rooftile.database.engine()  # type: ignore[attr-defined]
    sa_event.listen(engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert anonymous.get("/v1/jobs", headers=right).status_code == 429
    assert not [one for one in asked if "tokens" in one], "a guess too many costs the database nothing"
    # Nor does it help that its owner is at work, somewhere else.
    with TestClient(anonymous.app, base_url="http://127.0.0.1:8417", client=("192.0.2.7", 50000)) as owner:
        for _ in range(2):  # the second is one that this process knows from a moment ago
            ask = {"problem": gemm(), "device": CPU}
            assert owner.post("/v1/best", json=ask, headers=right).status_code == 200
            assert anonymous.post("/v1/best", json=ask, headers=right).status_code == 429
            assert anonymous.get("/v1/jobs", headers=right).status_code == 429
    assert anonymous.get("/v1/jobs", headers=good).status_code == 200


def test_the_table_of_guesses_stays_small(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ADDRESSES", 100)
    monkeypatch.setattr(limits, "MOST_GUESSES", 3)
    one = Limits(settings)
    for n in range(1000):
        one.guessed(f"10.0.{n // 250}.{n % 250}")
    assert len(one._guesses) == 100
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(TooManyError))
        for n in range(4):  # a customer's network of IPv6 is one address
            one.guessed(f"2001:db8:0:1::{n:x}")


def refused(one: Limits, host: str, tries: int) -> int:
    """How many of so many guesses are told to wait."""
    count = 0
    for _ in range(tries):
        try:
            one.guessed(host)
        except TooManyError as error:
            count += 1 <= int(error.headers["Retry-After"]) <= 60
    return count


def test_guesses_are_counted_over_all_processes_and_alone_without_the_broker(
    settings: Settings, broker: Valkey
) -> None:
    shared = settings.model_copy(update={"broker_url": broker.url})
    processes = [Limits(shared) for _ in range(3)]
    most = processes[0].most_guesses
    assert sum(refused(processes[n % 3], "10.0.0.1", 1) for n in range(most)) == 0
    assert [refused(one, "10.0.0.1", 1) for one in processes] == [1, 1, 1]
    assert refused(Limits(shared), "10.0.0.1", 1) == 1  # a process that was started just now
    assert refused(processes[0], "10.0.0.2", 1) == 0
    broker.kill()
    start = time.monotonic()
    assert [refused(one, "10.0.0.3", most + 5) for one in processes] == [5, 5, 5]
    assert time.monotonic() - start < 10  # one look at a broker that is away, not seventy-five


@pytest.mark.parametrize("proxies", ["", "127.0.0.1", "10.1.0.0/16,127.0.0.0/8"])
def test_an_address_that_was_passed_on_counts_only_from_a_named_proxy(
    settings: Settings, seed: Any, proxies: str
) -> None:
    app = create_app(settings.model_copy(update={"proxies": proxies}))
    app.state.rooftile.limits.most_guesses = 5
    with served(app) as port:

        def guess(number: int, address: str) -> int:
            head = f"Authorization: Bearer guess-{number}\r\nX-Forwarded-For: {address}\r\n"
            answer = exchange(port, f"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
            return int(answer.split(b" ", 2)[1])

        strangers = [guess(n, f"192.0.2.{n}") for n in range(8)]
        assert strangers == ([401] * 8 if proxies else [401] * 5 + [429] * 3)
        # what a client wrote itself stands before what the proxy added
        one = [guess(n, f"198.51.100.{n}, 203.0.113.9") for n in range(8)]
        assert one == ([401] * 5 if proxies else [429] * 5) + [429] * 3


def test_addresses_of_ipv4_are_told_apart_on_a_socket_of_both_kinds(settings: Settings) -> None:
    one = Limits(settings)
    assert refused(one, "::ffff:127.0.0.2", one.most_guesses + 1) == 1
    one.check_guesser("::ffff:127.0.0.3")
    with pytest.raises(TooManyError):
        one.check_guesser("127.0.0.2")  # the same, by whichever socket


def test_a_clock_that_is_set_back_shuts_nobody_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Limits(settings.model_copy(update={"requests_per_s": 40}))
    assert let_in(one, "token:1", 100) >= 40
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600.0)
    time.sleep(1.1)
    assert let_in(one, "token:1", 20) == 20


def test_the_table_of_counts_stays_small(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ADDRESSES", 100)
    one = limits._Windows()
    for n in range(1000):
        assert one.hit(("request", f"token:{n}"), 1, 0.0, 1)
    assert len(one._counts) <= 102


def test_proxies_are_addresses(settings: Settings) -> None:
    for everybody in ("0.0.0.0/0", "127.0.0.1,::/0"):
        with pytest.raises(ValueError, match="is everybody"):
            Settings(home=settings.home, proxies=everybody)
    for wrong in ("*", "proxy.example", "10.0.0.1/8", "127.0.0.1 10.0.0.1"):
        with pytest.raises(ValueError, match="must be addresses or networks"):
            Settings(home=settings.home, proxies=wrong)
    assert Settings(home=settings.home, proxies=" 127.0.0.1, ::1").proxy_networks == [
        "127.0.0.1/32",
        "::1/128",
    ]


def test_pages_of_other_origins_may_ask_only_where_a_person_said_so(
    settings: Settings, anonymous: TestClient
) -> None:
    origin = {"Origin": "https://dash.example"}
    asks = {
        **origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    assert "Access-Control-Allow-Origin" not in anonymous.get("/v1/jobs", headers=origin).headers
    assert anonymous.options("/v1/best", headers=asks).status_code == 405
    opened = settings.model_copy(update={"cors_origins": "https://dash.example"})
    with TestClient(create_app(opened), base_url="http://127.0.0.1:8417") as client:
        allowed = client.options("/v1/best", headers=asks)
        assert (allowed.status_code, allowed.headers["Access-Control-Allow-Origin"]) == (
            200,
            origin["Origin"],
        )
        assert "Access-Control-Allow-Credentials" not in allowed.headers
        other = {**asks, "Origin": "https://evil.example"}
        assert "Access-Control-Allow-Origin" not in client.options("/v1/best", headers=other).headers
    for wrong in ("dash.example", "https://dash.example/", "https://a.example/x", "*"):
        with pytest.raises(ValueError, match="must be origins"):
            Settings(home=settings.home, cors_origins=wrong)
