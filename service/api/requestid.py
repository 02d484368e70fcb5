"""Which request does a log line belong to?

A proxy's X-Request-ID is taken over where it is well-formed, else each request gets a number of its own. The
answer carries it, and so does every line that is logged while it is answered.
"""

from __future__ import annotations

import re
import secrets

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"
IN_SCOPE = "rooftile.request_id"
"""For what is said of a request outside this layer: of an error that nobody expected."""
_WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}", re.ASCII)


class RequestId:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist(HEADER)
        known = len(given) == 1 and _WELL_FORMED.fullmatch(given[0]) is not None
        request_id = given[0] if known else secrets.token_hex(8)
        scope[IN_SCOPE] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self.app(scope, receive, named)
