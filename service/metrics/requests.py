"""How many requests came, by route and status, how long did they take, how many streams are open?

Labels come from closed sets: the route is the template (`/v1/jobs/{id}`) and whatever matches none is one
label, however many paths a stranger tries.
"""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
OTHER = "other"
# Lookups are wanted within 15 ms, pages within 150: both are bounds here.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MOST_ROUTES = 300


class RequestFigures:
    """The families about requests, with the children of each label kept: looking one up costs more than
    counting."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "rooftile_http_requests",
            "Requests answered, by route, method and status.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rooftile_http_request_seconds",
            "Seconds from a request to the end of its answer; streams do not count.",
            ["route"],
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.under_way = Gauge(
            "rooftile_http_requests_under_way", "Requests being answered, streams too.", registry=registry
        )
        self.streams = Gauge("rooftile_event_streams", "Event streams that are open.", registry=registry)
        self._counters: dict[tuple[str, str, int], Any] = {}
        self._timers: dict[str, Any] = {}

    def answered(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """`seconds`: None for a stream."""
        method = method if method in _METHODS else OTHER
        if route not in self._timers and len(self._timers) >= _MOST_ROUTES:
            route = OTHER
        key = (route, method, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(route, method, str(status))
        counter.inc()
        if seconds is None:
            return
        timer = self._timers.get(route)
        if timer is None:
            timer = self._timers[route] = self._seconds.labels(route)
        timer.observe(seconds)


class CountRequests:
    """ASGI layer around all others, so that refusals of theirs are counted too."""

    def __init__(self, app: ASGIApp, figures: RequestFigures) -> None:
        self.app = app
        self.figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, stream = 500, False

        async def noting(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                if not stream and _is_stream(message):
                    stream = True
                    self.figures.streams.inc()
            await send(message)

        began = time.perf_counter()
        self.figures.under_way.inc()
        try:
            await self.app(scope, receive, noting)
        finally:
            self.figures.under_way.dec()
            if stream:
                self.figures.streams.dec()
            seconds = None if stream else time.perf_counter() - began
            self.figures.answered(route_of(scope), scope["method"], status, seconds)


def route_of(scope: Scope) -> str:
    """The template of the route that answered. A layer that copied the scope for a HEAD hides it."""
    path = getattr(scope.get("route"), "path_format", None)
    return path if isinstance(path, str) and path else OTHER


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )
