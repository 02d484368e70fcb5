"""What do all requests of one app share?"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import anyio
from starlette.requests import HTTPConnection

from service.api.asking import Asking
from service.api.index import ReleaseIndex
from service.api.known import KnownTokens
from service.api.limits import Limits
from service.api.readiness import Readiness
from service.api.streams import Streams
from service.api.tail import Tail
from service.bus import Doorbell
from service.metrics import Metrics
from service.settings import Settings
from service.store.database import Database

VERSION = "0.1.0"
# Threads on which streams read what was before them, apart from the threads of ordinary requests: however
# many streams are opened, and however slow the database is, /healthz still finds a thread.
STREAM_THREADS = 8
# Threads of ordinary requests.
REQUEST_THREADS = 20


@dataclass
class AppState:
    """Made once by `create_app`; one engine a process."""

    settings: Settings
    database: Database
    doorbell: Doorbell
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server shuts down: streams end by themselves, so that the port is free at once."""
    touched: dict[int, float] = field(default_factory=dict)
    """When each token's use was last written down, by the monotonic clock."""
    known_tokens: KnownTokens = field(default_factory=KnownTokens)
    stream_limiter: anyio.CapacityLimiter | None = None
    limits: Limits = field(init=False)
    tail: Tail = field(init=False)
    index: ReleaseIndex = field(init=False)
    asking: Asking = field(init=False)
    streams: Streams = field(init=False)
    metrics: Metrics = field(init=False)
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.limits = Limits(self.settings)
        self.tail = Tail(self.database, self.stopping)
        self.index = ReleaseIndex(self.database, self.tail)
        self.asking = Asking(self.database, self.index)
        self.streams = Streams(self.database)
        self.metrics = Metrics(self.database, VERSION)
        self.readiness = Readiness(self.settings)

    def limiter(self) -> anyio.CapacityLimiter:
        """Made in the running loop, which a CapacityLimiter belongs to."""
        if self.stream_limiter is None:
            self.stream_limiter = anyio.CapacityLimiter(STREAM_THREADS)
        return self.stream_limiter


def state_of(connection: HTTPConnection) -> AppState:
    state = connection.app.state.rooftile
    assert isinstance(state, AppState)
    return state
