"""How does the client talk to the service, and what does it make of bad answers?

One small transport over urllib3 (loaded on first use): bounded times, retries only where nothing was sent,
no redirects (a token must not travel), no proxies and no address but the configured one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from rooftile.errors import FieldError, ServiceError, ServiceUnreachable
from rooftile.home import home

if TYPE_CHECKING:
    import urllib3

DEFAULT_URL = "http://127.0.0.1:8417"
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 30.0
# A peer that sends a byte now and then never times out on a read: the whole answer has a limit too.
ANSWER_LIMIT_S = 120.0
_CHUNK_BYTES = 2**16
MAX_JSON_BYTES = 64 * 2**20
MAX_ARTIFACT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Answer:
    """A 2xx answer with JSON in it."""

    status: int
    data: Any
    headers: Mapping[str, str]


def service_url(url: str | None = None) -> str:
    """The service's base address: argument, ROOFTILE_URL, or the default of `rooftile serve`."""
    chosen = url or os.environ.get("ROOFTILE_URL", "").strip() or DEFAULT_URL
    try:
        parts = urlsplit(chosen)
        valid = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not parts.query
            and not parts.fragment
        )
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, a bracket without its other
        valid = False
    if not valid:
        raise FieldError("url", chosen, "an address like http://host:8417", DEFAULT_URL)
    return chosen.rstrip("/")


def service_token(token: str | None = None) -> str | None:
    """Argument, ROOFTILE_TOKEN, or the file that a local `rooftile serve` left for its user; None without."""
    chosen = token or os.environ.get("ROOFTILE_TOKEN", "").strip()
    if not chosen:
        try:
            chosen = (home() / "token").read_text(encoding="ascii").strip()
        except (OSError, RuntimeError, UnicodeDecodeError):
            return None
    if not chosen:
        return None
    if not chosen.isascii() or not chosen.isprintable() or " " in chosen:
        raise FieldError("token", "(not shown)", "printable ASCII without spaces")
    return chosen


class Transport:
    """Requests to one service."""

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url = service_url(url)
        self._token = service_token(token)
        self._pool: urllib3.PoolManager | None = None
        self._pid = 0

    def get(self, path: str, query: Mapping[str, str | None] | None = None) -> Answer:
        """GET of a JSON document."""
        return self._json("GET", path, query, None, {})

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """POST of a JSON document."""
        return self._json("POST", path, None, body, headers or {})

    def get_bytes(self, path: str) -> bytes:
        """GET of raw bytes (an artifact)."""
        accept = {"Accept": "application/octet-stream"}
        return self._request("GET", path, None, None, accept, MAX_ARTIFACT_BYTES)[1]

    # -- one request ------------------------------------------------------------------------------------

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        body: Any,
        headers: Mapping[str, str],
    ) -> Answer:
        response, content = self._request(method, path, query, body, headers, MAX_JSON_BYTES)
        if response.status == 204:
            return Answer(response.status, None, dict(response.headers))
        kind = response.headers.get("Content-Type", "")
        try:
            if "json" not in kind:
                raise ValueError(f"content type {kind!r}")
            data = _parsed(content)
        except ValueError as error:
            # A captive portal, a proxy's page, another program on that port.
            raise ServiceUnreachable(
                f"{self.url} answers, but not like a Rooftile service: {error}"
            ) from error
        return Answer(response.status, data, dict(response.headers))

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | None] | None,
        body: Any,
        headers: Mapping[str, str],
        limit_bytes: int,
    ) -> tuple[urllib3.BaseHTTPResponse, bytes]:
        import urllib3

        fields = {name: value for name, value in (query or {}).items() if value is not None}
        url = self.url + quote(path, safe="/:") + (f"?{urlencode(fields)}" if fields else "")
        sent = {"Accept": "application/json", **headers}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body, allow_nan=False).encode("utf-8")
        try:
            response = self._connections().request(
                method, url, body=data, headers=sent, redirect=False, preload_content=False
            )
            try:
                content = self._content(response, path, limit_bytes)
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise ServiceUnreachable(f"no answer from {self.url}: {_in_words(error)}") from error
        if 200 <= response.status < 300:
            return response, content
        if 300 <= response.status < 400:
            target = response.headers.get("Location", "nowhere")
            raise ServiceUnreachable(f"{self.url} redirects to {target!r}; set ROOFTILE_URL to that")
        raise ServiceError(response.status, _problem_of(response, content))

    def _content(self, response: urllib3.BaseHTTPResponse, path: str, limit_bytes: int) -> bytes:
        content = bytearray()
        end = time.monotonic() + ANSWER_LIMIT_S
        for chunk in response.stream(_CHUNK_BYTES):
            content += chunk
            if len(content) > limit_bytes or time.monotonic() > end:
                response.close()
                limit = f"{limit_bytes} bytes" if len(content) > limit_bytes else f"{ANSWER_LIMIT_S:.0f} s"
                raise ServiceUnreachable(f"{self.url} took over {limit} for {path}")
        return bytes(content)

    def _connections(self) -> urllib3.PoolManager:
        # Sockets must not be shared with a forked child: two processes would read each other's answers.
        if self._pool is None or self._pid != os.getpid():
            import urllib3

            self._pid = os.getpid()
            self._pool = urllib3.PoolManager(
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
                # A 503 with Retry-After is an answer too: what it says is told, not that there were too many.
                retries=urllib3.Retry(
                    connect=2,
                    read=0,
                    redirect=0,
                    status=0,
                    other=0,
                    backoff_factor=0.2,
                    respect_retry_after_header=False,
                ),
            )
        return self._pool


def _parsed(content: bytes) -> Any:
    """The JSON in `content`; ValueError for anything else, also where it is nested beyond reading."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


def _problem_of(response: urllib3.BaseHTTPResponse, content: bytes) -> dict[str, Any]:
    if "json" in response.headers.get("Content-Type", ""):
        try:
            data = _parsed(content)
        except ValueError:
            data = None
        if isinstance(data, dict):
            return data
    return {"title": response.reason or "error", "status": response.status}


def _in_words(error: BaseException) -> str:
    """What the system said: urllib3 wraps it two or three times, with reprs of its own objects."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        reason = getattr(seen, "reason", None)
        seen = reason if isinstance(reason, BaseException) else seen.__cause__
    text = str(getattr(error, "reason", None) or error)
    return text.split("): ", 1)[-1]
