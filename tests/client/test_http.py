"""What does the client make of services that are away, slow, wrong, hostile, or not a service at all?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rooftile import http
from rooftile.errors import FieldError, ServiceError, ServiceUnreachable
from rooftile.http import Transport, service_token, service_url


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_json_there_and_back(peer: Any) -> None:
    peer.routes["POST /base/v1/best"] = lambda request: (200, {"got": request.json}, "application/json")
    answer = Transport(peer.url + "/base/", "secret").post("/v1/best", {"m": 1}, {"Idempotency-Key": "x"})
    assert answer.data == {"got": {"m": 1}}
    (request,) = peer.seen
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == "x"


def test_queries_leave_out_what_is_none(peer: Any) -> None:
    peer.routes["GET /v1/jobs?state=done"] = (200, {"jobs": []})
    assert Transport(peer.url).get("/v1/jobs", {"state": "done", "op": None}).data == {"jobs": []}
    assert "Authorization" not in peer.seen[0].headers


def test_problem_documents_become_service_errors(peer: Any) -> None:
    document = {
        "title": "Bad field",
        "detail": "m: -1 is not allowed",
        "status": 422,
        "field": "m",
        "nearest": 0,
    }
    peer.routes["POST /v1/jobs"] = (422, document, "application/problem+json")
    with pytest.raises(ServiceError, match="answered 422: m: -1 is not allowed") as caught:
        Transport(peer.url).post("/v1/jobs", {})
    assert (caught.value.status, caught.value.problem) == (422, document)


@pytest.mark.parametrize("status", [429, 503])
def test_an_answer_that_asks_for_patience_is_told_in_its_own_words(peer: Any, status: int) -> None:
    document = {
        "title": "Unavailable",
        "detail": "The database does not answer; ask again.",
        "status": status,
    }
    kind = "application/problem+json"
    peer.routes["GET /v1/jobs"] = (status, document, kind, {"Retry-After": "1"})
    with pytest.raises(ServiceError, match=f"answered {status}: The database does not answer") as caught:
        Transport(peer.url).get("/v1/jobs")
    assert caught.value.problem == document


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"", b"{"])
def test_errors_without_a_document_are_errors_too(peer: Any, body: bytes) -> None:
    peer.routes["GET /v1/jobs/1"] = (503, body, "application/json" if body == b"{" else "text/html")
    with pytest.raises(ServiceError, match="503"):
        Transport(peer.url).get("/v1/jobs/1")


@pytest.mark.parametrize(
    ("body", "kind"), [(b"<html>Log in</html>", "text/html"), (b"<html>", "application/json")]
)
def test_a_captive_portal_is_no_service(peer: Any, body: bytes, kind: str) -> None:
    peer.routes["GET /v1/jobs/1"] = (200, body, kind)
    with pytest.raises(ServiceUnreachable, match="not like a Rooftile service"):
        Transport(peer.url).get("/v1/jobs/1")


def test_redirects_are_not_followed(peer: Any) -> None:
    """The token belongs to the configured address and to no other."""
    peer.routes["GET /v1/jobs/1"] = (302, {}, "application/json", {"Location": f"{peer.url}/v1/other"})
    with pytest.raises(ServiceUnreachable, match="redirects to"):
        Transport(peer.url, "secret").get("/v1/jobs/1")
    assert len(peer.seen) == 1


def test_only_the_configured_address_is_contacted(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    peer.routes["GET /v1/jobs/1"] = (200, {"state": "done"})
    assert Transport(peer.url).get("/v1/jobs/1").data == {"state": "done"}


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(
        ServiceUnreachable, match=f"no answer from http://127.0.0.1:{port}: Connection refused"
    ):
        Transport(f"http://127.0.0.1:{port}").get("/v1/jobs")
    assert time.monotonic() - start < 5


def test_an_answer_that_never_comes(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.3)
    start = time.monotonic()
    with pytest.raises(ServiceUnreachable, match="Read timed out"):
        Transport(silent).get("/v1/jobs")
    with pytest.raises(ServiceUnreachable):
        Transport(silent).post("/v1/jobs", {})
    assert time.monotonic() - start < 5


def test_an_answer_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_LIMIT_S", 0.5)
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
            )
            while not stop.wait(0.05):
                try:
                    connection.sendall(b" " * http._CHUNK_BYTES)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        start = time.monotonic()
        with pytest.raises(ServiceUnreachable, match="took over 0 s"):
            Transport(f"http://127.0.0.1:{listener.getsockname()[1]}").get("/v1/jobs")
        assert time.monotonic() - start < 5
        stop.set()
        thread.join(5)


def test_answers_have_a_largest_size(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ARTIFACT_BYTES", 1000)
    peer.routes["GET /v1/artifacts/x"] = (200, b"x" * 1000, "application/octet-stream")
    peer.routes["GET /v1/artifacts/y"] = (200, b"x" * 200_000, "application/octet-stream")
    transport = Transport(peer.url)
    assert len(transport.get_bytes("/v1/artifacts/x")) == 1000
    with pytest.raises(ServiceUnreachable, match="took over 1000 bytes"):
        transport.get_bytes("/v1/artifacts/y")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_makes_its_own_connection(peer: Any) -> None:
    peer.routes["GET /v1/jobs/1"] = (200, {"who": "me"})
    transport = Transport(peer.url)
    transport.get("/v1/jobs/1")
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if transport.get("/v1/jobs/1").data == {"who": "me"} else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert transport.get("/v1/jobs/1").data == {"who": "me"}


# -- address and token ------------------------------------------------------------------------------------


def test_where_the_address_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_url() == "http://127.0.0.1:8417"
    monkeypatch.setenv("ROOFTILE_URL", "https://tiles.example/rooftile/")
    assert service_url() == "https://tiles.example/rooftile"
    assert service_url("http://other:1/") == "http://other:1"


@pytest.mark.parametrize(
    "url",
    [
        "host:8417",
        "ftp://host",
        "http://",
        "http://h:port",
        "http://h/?q=1",
        "//h",
        "http://[::1",
        "http://[x]/",
    ],
)
def test_wrong_addresses_name_the_field(url: str) -> None:
    with pytest.raises(FieldError) as caught:
        Transport(url)
    assert caught.value.field == "url"


def test_where_the_token_comes_from(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_token() is None
    own_home.mkdir()
    (own_home / "token").write_text("from-file\n")
    assert service_token() == "from-file"
    monkeypatch.setenv("ROOFTILE_TOKEN", "from-environment")
    assert service_token() == "from-environment"
    assert service_token("given") == "given"
    with pytest.raises(FieldError) as caught:
        service_token("two words\r\nX-Header: 1")
    assert "words" not in str(caught.value)


# -- what an import brings --------------------------------------------------------------------------------


def test_importing_brings_no_numpy_no_urllib3_and_opens_nothing() -> None:
    code = """
import socket, sys
socket.socket = None
import rooftile
from rooftile import Gemm, parse_problem, LaunchPlan, RooftileError
import rooftile.cli
assert not {"numpy", "urllib3", "cupy", "torch"} & set(sys.modules), sorted(sys.modules)
rooftile.Client("http://127.0.0.1:9")
assert not {"numpy", "urllib3", "cupy", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("status", [200, 500])
def test_json_nested_beyond_reading_is_a_bad_answer(peer: Any, status: int) -> None:
    peer.routes["GET /v1/jobs/1"] = (status, b"[" * 100_000, "application/json")
    with pytest.raises(ServiceUnreachable if status == 200 else ServiceError):
        Transport(peer.url).get("/v1/jobs/1")
