"""What comes back over a real socket, also for bytes that no HTTP library would send?"""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from pydantic import SecretStr
from sqlalchemy import text
from support.api import ADMIN, Seed, gemm
from support.served import exchange, served, statuses

from service.api import protocol
from service.api.app import create_app
from service.api.auth import COOKIE
from service.settings import Settings
from service.store import logins
from service.store.database import Database
from service.store.enums import Scope

HOST = b"Host: 127.0.0.1\r\n"
WHO = b"Authorization: Bearer " + ADMIN.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
BODY = json.dumps({"problem": gemm(), "device": "cpu-intel-6-85-8c-x86-64-v4"}).encode()
SMUGGLED = b"GET /v1/jobs HTTP/1.1\r\n" + HOST + WHO + b"\r\n"


@pytest.fixture(scope="module")
def own(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One service for all tests of this file: none leaves anything that another would see."""
    home = tmp_path_factory.mktemp("wire")
    shutil.copy(sqlite_template, home / "rooftile.db")
    return Settings(home=home, token=SecretStr(ADMIN))


@pytest.fixture(scope="module")
def port(own: Settings) -> Iterator[int]:
    with served(create_app(own)) as number:
        yield number


@pytest.fixture
def seed(own: Settings) -> Iterator[Seed]:
    database = Database(own.database_url)
    yield Seed(database)
    database.close()


def post(*headers: bytes, body: bytes = b"", path: bytes = b"/v1/best") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + WHO + JSON + b"".join(headers) + b"\r\n" + body


def length(number: int | bytes) -> bytes:
    return b"Content-Length: " + (number if isinstance(number, bytes) else b"%d" % number) + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"


def test_answers_on_a_kept_connection_wait_for_no_acknowledgement(port: int) -> None:
    """With Nagle's algorithm on, each would take the 40 ms of a delayed acknowledgement."""
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1)
    took = []
    for _ in range(30):
        started = time.monotonic()
        assert pool.request("GET", "/healthz").status == 200
        took.append(time.monotonic() - started)
    assert pool.num_connections == 1
    assert min(took) < 0.03


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(post(length(5), CHUNKED, body=b"0\r\n\r\n" + SMUGGLED), id="length and chunked"),
        pytest.param(post(length(5), length(6), body=b"abcdef" + SMUGGLED), id="two lengths"),
        pytest.param(post(length(b"+5"), body=b"abcde" + SMUGGLED), id="length with a sign"),
        pytest.param(post(length(b"-5"), body=SMUGGLED), id="negative length"),
        pytest.param(post(length(b"0x5"), body=b"abcde" + SMUGGLED), id="length in hexadecimal"),
        pytest.param(post(length(b"5, 5"), body=b"abcde" + SMUGGLED), id="length as a list"),
        pytest.param(post(b"Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n" + SMUGGLED), id="xchunked"),
        pytest.param(post(b"Transfer-Encoding : chunked\r\n", body=b"0\r\n\r\n" + SMUGGLED), id="blank"),
        pytest.param(post(CHUNKED, body=b"zz\r\nabc\r\n" + SMUGGLED), id="chunk size that is none"),
        pytest.param(post(CHUNKED, body=b"F" * 17 + b"\r\nabc\r\n" + SMUGGLED), id="chunk size over 64 bits"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", id="folded header"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n", id="NUL in a header"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\rX: y\r\n\r\n", id="bare carriage return"),
        pytest.param(b"GET /health z HTTP/1.1\r\n" + HOST + b"\r\n", id="blank in the path"),
        pytest.param(b"GET /v1/jobs/\0 HTTP/1.1\r\n" + HOST + WHO + b"\r\n", id="NUL in the path"),
        pytest.param(b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n", id="unknown version"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_the_connection_closed(
    port: int, request_bytes: bytes
) -> None:
    """One answer at most: what is hidden behind it is never taken for a request of its own."""
    answer = exchange(port, request_bytes)
    assert statuses(answer) in ([400], []), answer
    assert b"jobs" not in answer
    assert statuses(exchange(port, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")) == [200]


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 2**23, id="one header without an end"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 2**20, id="headers without an end"),
        pytest.param(b"GET /" + b"a" * 2**23, id="a path without an end"),
        pytest.param(post(CHUNKED, body=b"0\r\n" + b"X: y\r\n" * 2**20), id="trailers without an end"),
        pytest.param(post(CHUNKED, body=b"0\r\nX: " + b"y" * 2**23), id="one trailer without an end"),
        pytest.param(post(CHUNKED, body=b"1;" + b"x" * 2**23), id="a chunk's extension without an end"),
    ],
)
def test_what_is_no_body_has_bounds_too(port: int, request_bytes: bytes) -> None:
    """Of eight MiB the service has taken a small part when it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        assert _cut(connection, request_bytes)
    assert statuses(exchange(port, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")) == [200]


def _cut(connection: socket.socket, request_bytes: bytes) -> bool:
    try:
        connection.sendall(request_bytes)
        while connection.recv(65536):
            pass
    except (ConnectionResetError, BrokenPipeError):
        return True
    except TimeoutError:
        return False  # all of it was taken, and more is waited for
    return True


def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    for begun in (b"", b"GET /healthz HTTP/1.1\r\nX: "):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(begun)
            assert connection.recv(10) == b""


def test_a_body_in_chunks_of_one_byte_is_within_them(port: int) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY + b" " * 50_000)
    assert statuses(exchange(port, post(CHUNKED, body=chunks + b"0\r\n\r\n"))) == [200]


def test_requests_one_after_the_other_each_have_their_answer(port: int) -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    assert statuses(exchange(port, one * 3, answers=3)) == [200] * 3
    assert statuses(exchange(port, post(length(len(BODY)), body=BODY) + one, answers=2)) == [200, 200]
    chunked = post(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    assert statuses(exchange(port, chunked + one, answers=2)) == [200, 200]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/static/../../../../etc/passwd", 404),
        (b"/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", 404),
        (b"/static/%252e%252e/%252e%252e/etc/passwd", 404),
        (b"/static//etc/passwd", 404),
        (b"/static/..%5c..%5cwindows%5cwin.ini", 404),
        (b"/static/%00", 404),
        (b"/static/", 404),
        (b"/v1/artifacts/../../etc/passwd", 404),
        (b"/v1/artifacts/..%2f..%2fetc%2fpasswd", 404),
        (b"/v1/artifacts/" + b"A" * 64, 404),
        (b"/v1/jobs/1%00", 404),
        (b"/v1/jobs/%0d%0aX-Evil:%201", 404),
        (b"//evil.example/", 404),
        (b"//evil.example/jobs", 404),
        (b"http://evil.example/healthz", 200),
        (b"/v1/jobs/", 404),
        (b"/v1//jobs", 404),
        (b"/V1/JOBS", 404),
    ],
)
def test_no_path_leads_out_of_what_is_served(port: int, target: bytes, status: int) -> None:
    answer = exchange(port, b"GET " + target + b" HTTP/1.1\r\nHost: evil.example\r\n" + WHO + b"\r\n")
    assert statuses(answer) == [status], answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"root:" not in body
    assert b"x-evil" not in head.lower()
    assert b"evil.example" not in head


def test_nobody_is_sent_to_another_host(port: int, seed: Seed) -> None:
    """Neither by the Host header, nor by what stands in the address of the login."""
    with seed.database.begin() as s:
        code = logins.create_code(s, {Scope.ADMIN})
    for target in (
        f"/login?code={code}&next=https://evil.example/",
        "/login?next=https://evil.example/",
        "/jobs",
        "/",
        "//evil.example",
        "/jobs/",
        "/login/",
    ):
        answer = exchange(
            port,
            f"GET {target} HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: evil.example\r\n\r\n".encode(),
        )
        head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").lower()
        locations = [line for line in head.split("\r\n") if line.startswith("location:")]
        assert all(line in ("location: /", "location: /login") for line in locations), (target, head)
        assert "evil" not in head


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/best", "/healthz", "/login", "/"])
def test_no_other_method_does_anything(port: int, method: str, path: str) -> None:
    answer = exchange(port, f"{method} {path} HTTP/1.1\r\n".encode() + HOST + WHO + b"\r\n")
    assert statuses(answer) == [405], answer
    assert b"access-control" not in answer.lower()


def test_a_method_cannot_be_changed_by_a_header(port: int) -> None:
    answer = exchange(
        port, b"GET /v1/jobs HTTP/1.1\r\n" + HOST + WHO + b"X-HTTP-Method-Override: POST\r\n\r\n"
    )
    assert statuses(answer) == [200]
    assert b'"jobs":[]' in answer.replace(b" ", b"")


def test_a_compressed_body_is_not_unpacked(port: int) -> None:
    """A bomb of a few bytes would be a gigabyte."""
    for coding in (b"gzip", b"deflate", b"br", b"zstd", b"identity, gzip", b"GZIP"):
        packed = gzip.compress(BODY)
        answer = exchange(
            port, post(length(len(packed)), b"Content-Encoding: " + coding + b"\r\n", body=packed)
        )
        assert statuses(answer) == [415], (coding, answer)


def test_a_header_that_comes_twice_is_refused(port: int) -> None:
    """A proxy may have looked at the one, and we at the other."""
    other = b"Authorization: Bearer another-token-0123456789\r\n"
    get = b"GET /v1/jobs HTTP/1.1\r\n" + HOST
    assert statuses(exchange(port, get + WHO + other + b"\r\n")) == [422]
    assert statuses(exchange(port, get + other + WHO + b"\r\n")) == [401]
    key = b"Idempotency-Key: a\r\n"
    for twice in (JSON, b"Content-Type: text/plain\r\n", key + key):
        answer = exchange(port, post(length(len(BODY)), twice, body=BODY, path=b"/v1/jobs"))
        assert statuses(answer) == [422], (twice, answer)


def test_a_body_that_ends_early_is_no_fault_of_ours(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Anybody with a token could fill the log with traces."""
    for _ in range(3):
        exchange(port, post(length(500), body=BODY[:20]), timeout_s=0.2)
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


def test_cookies_that_are_tricks_let_nobody_in(port: int, seed: Seed) -> None:
    with seed.database.begin() as s:
        made = logins.redeem(s, logins.create_code(s, {Scope.ADMIN}))
    assert made is not None
    good = made[1]

    def status(*cookies: str) -> int:
        lines = "".join(f"Cookie: {cookie}\r\n" for cookie in cookies).encode()
        found = statuses(exchange(port, b"GET /v1/devices HTTP/1.1\r\n" + HOST + lines + b"\r\n"))
        assert len(found) == 1
        return found[0]

    assert status(f"{COOKIE}={good}") == 200
    digest = _stored_hash(seed)
    for trick in (
        f"{COOKIE}=",
        f"{COOKIE}={good[:-1]}",
        f"{COOKIE}={good}x",
        f"{COOKIE}={good.swapcase()}",
        f"{COOKIE}={digest}",  # what the database holds is no way in
        f"{COOKIE.upper()}={good}",
        f" $Version=1; $Path=/; {COOKIE}2={good}",
        f"{COOKIE}=' OR 1=1 --",
        f"{COOKIE}={'x' * 5000}",
        f"token={good}",
    ):
        assert status(trick) == 401, trick


def _stored_hash(seed: Seed) -> str:
    with seed.database.read() as s:
        return str(
            s.execute(
                text("SELECT cookie_sha256 FROM browser_sessions ORDER BY id DESC LIMIT 1")
            ).scalar_one()
        )


def test_what_is_stored_of_a_token_is_no_token(port: int, seed: Seed) -> None:
    seed.token(Scope.ADMIN)
    with seed.database.read() as s:
        hashes = s.execute(text("SELECT token_sha256 FROM tokens")).scalars().all()
    assert hashes
    for one in hashes:
        header = f"Authorization: Bearer {one}\r\n".encode()
        assert statuses(exchange(port, b"GET /v1/jobs HTTP/1.1\r\n" + HOST + header + b"\r\n")) == [401]


def test_other_origins_are_told_nothing(port: int) -> None:
    """CORS is off: no answer, of whatever kind, names another origin."""
    asks: list[bytes] = [
        b"OPTIONS /v1/jobs HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /login HTTP/1.1\r\n",
    ]
    for ask in asks:
        answer = exchange(port, ask + HOST + WHO + b"Origin: https://evil.example\r\n\r\n")
        assert b"access-control-" not in answer.lower()
        assert b"cross-origin-resource-policy: same-origin" in answer.lower()


def test_nothing_sent_makes_the_service_ask_another_host(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No field is an address, and no setting but the database's and the broker's leads anywhere."""
    reached: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] != port:
            reached.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    evil = "http://169.254.169.254/latest/meta-data"
    for path, body in (
        ("/v1/jobs", {"problem": gemm(), "device": evil}),
        ("/v1/jobs", {"problem": evil, "callback": evil, "webhook": evil}),
        ("/v1/best", {"problem": gemm(), "device": evil}),
        ("/v1/demand", {"misses": [{"problem": gemm(), "device": evil, "level": evil}]}),
    ):
        data = json.dumps(body).encode()
        assert statuses(exchange(port, post(length(len(data)), body=data, path=path.encode()))) == [422]
    for path in (f"/v1/spaces?op=gemm&arch={evil}", f"/v1/releases?device={evil}"):
        statuses(exchange(port, f"GET {path} HTTP/1.1\r\n".encode() + HOST + WHO + b"\r\n"))
    assert reached == []
