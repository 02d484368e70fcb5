"""Do the layers around every route keep their promises: ETag, body limit, headers, overload?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from service.api import handlers, middleware
from service.api.app import create_app
from service.api.errors import ApiError, TooLargeError
from service.settings import Settings


async def _hello(_request: Request) -> Response:
    return PlainTextResponse("hello")


async def _echo(request: Request) -> Response:
    return JSONResponse({"bytes": len(await request.body())})


async def _stream(_request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    return StreamingResponse(parts(), media_type="text/event-stream")


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return handlers.respond(error)


@pytest.fixture
def client() -> TestClient:
    app = Starlette(
        routes=[
            Route("/hello", _hello),
            Route("/echo", _echo, methods=["POST"]),
            Route("/stream", _stream),
        ],
        exception_handlers={TooLargeError: _problem},
        middleware=[
            Middleware(middleware.SecurityHeaders),
            Middleware(middleware.Conditional),
            Middleware(middleware.BodyLimit, max_bytes=100),
        ],
    )
    return TestClient(app)


def test_what_is_read_with_get_has_an_etag_and_answers_304(client: TestClient) -> None:
    first = client.get("/hello")
    etag = first.headers["ETag"]
    again = client.get("/hello", headers={"If-None-Match": f'"other", W/{etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["ETag"] == etag
    assert client.get("/hello", headers={"If-None-Match": "*"}).status_code == 304
    assert client.get("/hello", headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_is_get_without_its_body(client: TestClient) -> None:
    answer = client.head("/hello")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Length"] == "5"
    assert answer.headers["ETag"] == client.get("/hello").headers["ETag"]


def test_a_stream_has_no_etag(client: TestClient) -> None:
    answer = client.get("/stream", headers={"If-None-Match": "*"})
    assert answer.status_code == 200
    assert "ETag" not in answer.headers
    assert answer.text == "data: 1\n\n"


def test_the_body_limit_holds_with_and_without_a_declared_length(client: TestClient) -> None:
    def chunks() -> AsyncIterator[bytes] | object:
        for _ in range(50):
            yield b"x" * 10

    assert client.post("/echo", content=b"x" * 100).json() == {"bytes": 100}
    for content in (b"x" * 101, chunks()):
        answer = client.post("/echo", content=content)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["field"] == "body"


@pytest.mark.parametrize("length", ["1" * 5000, "101", "999999999999999999999"])
def test_a_huge_declared_length_is_refused_without_reading(client: TestClient, length: str) -> None:
    answer = client.post("/echo", headers={"Content-Length": length}, content=b"x")
    assert answer.status_code == 413


def test_the_browser_is_told_what_it_may_do(client: TestClient) -> None:
    headers = client.get("/hello").headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Authorization" in headers["Vary"]
    assert headers["Cache-Control"] == "private, no-cache"


def test_the_app_refuses_what_is_too_much(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MOST_UNDER_WAY", 0)
    with TestClient(create_app(settings)) as client:
        for path in (
            "/v1/jobs", "/v1/artifacts/events", "/v1/problems/healthz", "/jobs/1/events", "/readyz",
            "/v1/jobs/1/events/", "/v1/jobs/1:x/events", "/v1/jobs/1/2/events", "/v1/jobs/1/events%0A",
        ):  # fmt: skip
            refused = client.get(path)
            assert (refused.status_code, refused.headers.get("Retry-After")) == (503, "1"), path
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/jobs/1/events").status_code == 401


def test_overload_is_answered_at_once_and_streams_do_not_count() -> None:
    gate = asyncio.Event()

    async def slow(scope: object, receive: object, send: object) -> None:
        await gate.wait()

    layer = middleware.Overload(slow, most=2)
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def run() -> None:
        def call(path: str) -> asyncio.Task[None]:
            scope = {"type": "http", "path": path, "method": "GET", "headers": []}
            return asyncio.create_task(layer(scope, None, send))  # type: ignore[arg-type]

        tasks = [call("/v1/jobs/1/events") for _ in range(5)] + [call("/v1/jobs") for _ in range(2)]
        await asyncio.sleep(0)
        assert not sent
        await call("/v1/jobs")
        assert sent[0]["status"] == 503
        gate.set()
        await asyncio.gather(*tasks)
        assert layer.under_way == 0

    asyncio.run(run())
