"""How does a client of the tormented API ask, and which answers are worth another try?"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

ANSWER_S = 10.0
_TRY_S = 0.5


class NoAnswer(Exception):  # expected: the service is being tormented
    """Nobody answered, or the answer was a failure of the service that may pass."""


class Caller:
    """Calls to the API with one token; a connection for each, as after a failure."""

    def __init__(self, url: str, token: str, timeout_s: float = ANSWER_S) -> None:
        self._place = urlsplit(url)
        self._token = token
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """Status and JSON. NoAnswer where it is worth another try."""
        headers = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        status, text = self._asked(method, path, data, headers)
        try:
            tree = json.loads(text) if text else None
        except ValueError as error:
            raise NoAnswer(f"{status}: no JSON") from error
        if (status == 409 and key is not None) or status in (429, 503):
            raise NoAnswer(f"{status}: {tree}")
        return status, tree

    def read(self, path: str) -> tuple[int, bytes]:
        """Status and body as it is. NoAnswer as for `call`."""
        status, data = self._asked("GET", path, None, {})
        if status in (429, 503):
            raise NoAnswer(str(status))
        return status, data

    @contextmanager
    def stream(self, path: str, last_event_id: int) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read line by line. Errors of the connection are the caller's."""
        connection = self._connection()
        try:
            headers = {**self._headers(), "Last-Event-ID": str(last_event_id)}
            connection.request("GET", path, headers=headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def until(self, method: str, path: str, body: Any, key: str | None, deadline: float) -> tuple[int, Any]:
        """`call` until it is answered; NoAnswer when the time is over."""
        while True:
            try:
                return self.call(method, path, body, key)
            except NoAnswer:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_TRY_S)

    def _asked(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, data, {**self._headers(), **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(str(error)) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            str(self._place.hostname), self._place.port, timeout=self._timeout_s
        )

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}
