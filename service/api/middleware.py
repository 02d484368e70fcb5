"""What is done to every request and every answer, whatever the route?

Three pure ASGI layers (Starlette's BaseHTTPMiddleware would wrap streams in a task group of its own):
a limit on the body that also holds for chunked ones, an ETag on everything read with GET, and the
headers that keep a browser from doing what the dashboard does not need.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import PROBLEM_JSON, ApiError, TooLargeError, UnavailableError

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                # What is shown depends on who asks, so a shared cache may keep none of it.
                headers.setdefault("Cache-Control", "private, no-cache")
                headers.add_vary_header("Authorization")
                headers.add_vary_header("Cookie")
            await send(message)

        await self.app(scope, receive, send_with_headers)


MOST_UNDER_WAY = 256
"""Requests in one process."""
_UNCOUNTED = re.compile(r"/healthz|/v1/jobs/[^/:]+/events")


class Overload:
    """503 at once when more requests are under way than could be answered soon. The streams of jobs do not
    count, they last and have a bound of their own (streams.py), and /healthz is always answered."""

    def __init__(self, app: ASGIApp, most: int | None = None) -> None:
        self.app = app
        self.most = MOST_UNDER_WAY if most is None else most
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _UNCOUNTED.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        if self.under_way >= self.most:
            await _send_problem(
                send,
                UnavailableError("The service is overloaded; ask again later.", headers={"Retry-After": "1"}),
            )
            return
        self.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.under_way -= 1


class BodyLimit:
    """413 at once where Content-Length says so, else at the first byte over the limit."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > self.max_bytes):
            await _send_problem(send, self._too_large(declared))
            return
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.max_bytes:
                    raise self._too_large(None)
            return message

        await self.app(scope, receive_counted, send)

    def _too_large(self, declared: str | None) -> TooLargeError:
        return TooLargeError(
            f"The body is over the limit of {self.max_bytes} bytes.",
            field="body",
            value=declared and declared[:40],
            allowed={"max_bytes": self.max_bytes},
            headers={"Connection": "close"},
        )


class Conditional:
    """ETag from the hash of the body on 200 answers to GET, 304 where the client has it, HEAD from GET."""

    # A stream has no end to hash, and htmx must not see a 304 in place of a live fragment.
    _streams = ("text/event-stream",)

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD" and not scope["path"].startswith("/login")
        if head:
            scope = {**scope, "method": "GET"}
        await _ConditionalAnswer(self.app, Headers(scope=scope).getlist("if-none-match"), head).run(
            scope, receive, send
        )


class _ConditionalAnswer:
    def __init__(self, app: ASGIApp, wanted: Iterable[str], head: bool) -> None:
        self.app = app
        self.wanted = list(wanted)
        self.head = head
        self.start: Message | None = None
        self.passing = False
        self.chunks: list[bytes] = []

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def hold(message: Message) -> None:
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type", "")
                self.passing = message["status"] != 200 or kind.startswith(Conditional._streams)
                if self.passing:
                    await send(message)
                else:
                    self.start = message
            elif self.passing:
                await send({**message, "body": b""} if self.head else message)
            elif message["type"] == "http.response.body":
                self.chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    await self._finish(send)

        await self.app(scope, receive, hold)

    async def _finish(self, send: Send) -> None:
        assert self.start is not None
        body = b"".join(self.chunks)
        headers = MutableHeaders(scope=self.start)
        etag = headers.get("etag") or f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers["ETag"] = etag
        if matches(self.wanted, etag):
            self.start["status"] = 304
            for name in ("content-length", "content-type"):
                if name in headers:
                    del headers[name]
            body = b""
        else:
            headers["Content-Length"] = str(len(body))
        await send(self.start)
        await send({"type": "http.response.body", "body": b"" if self.head else body})


def matches(wanted: Iterable[str], etag: str) -> bool:
    """Weak comparison of If-None-Match (RFC 9110, 13.1.2)."""
    bare = etag.removeprefix("W/")
    return any(
        part.strip() == "*" or part.strip().removeprefix("W/") == bare
        for header in wanted
        for part in header.split(",")
    )


async def _send_problem(send: Send, error: ApiError) -> None:
    body = json.dumps(error.problem()).encode()
    headers = {"Content-Type": PROBLEM_JSON, "Content-Length": str(len(body)), **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
