"""How much, and for how long, may a client send that is no body?

The parser below uvicorn knows no limit for the head of a request (path and headers) nor for what stands
between the pieces of a chunked body: one connection without any token could fill the memory, or sit there for
ever. Whoever is over the bounds is cut.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 20.0
"""From the first byte of a request, or from the connection, to the end of its head."""

# A body in chunks of one byte has five bytes around each.
_PER_BODY_BYTE = 8
_REFUSED = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """HTTP/1.1 with bounds on all of a request but its body, which has a limit of its own (BodyLimit)."""

    _left = MAX_HEAD_BYTES
    _in_body = False
    _too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body and self._too_late is None:
            self._wait_for_head()
        self._left -= len(data)
        super().data_received(data)
        if self._left < 0 and not self.transport.is_closing():
            if not self._in_body:
                self.transport.write(_REFUSED)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._left, self._in_body = MAX_HEAD_BYTES, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._left += _PER_BODY_BYTE * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._left, self._in_body = MAX_HEAD_BYTES, False
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._too_late = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
