"""What does a process tell to Prometheus? One `Metrics` an app; its text is what GET /metrics answers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.metrics.database import DatabaseCollector
from service.metrics.requests import CountRequests, RequestFigures
from service.store.database import Database

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LEVELS = ("exact", "stale", "foreign", "bucket", "default", "baseline", "none")

__all__ = ["CONTENT_TYPE", "CountRequests", "Metrics", "RequestFigures"]


class Metrics:
    """All figures of one app. A registry of its own: tests have several apps in a process."""

    def __init__(self, database: Database, version: str) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestFigures(self.registry)
        lookups = Counter(
            "rooftile_lookups", "Answers of POST /v1/best by level.", ["level"], registry=self.registry
        )
        self._lookups = {level: lookups.labels(level) for level in LEVELS}
        Info("rooftile", "What runs here.", registry=self.registry).info(
            {"version": version, "database": database.dialect}
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(DatabaseCollector(database))

    def looked_up(self, answer: bytes) -> None:
        """A lookup was answered so. The level is read from the bytes: most answers are kept as those."""
        level = answer.partition(b'"level":"')[2].partition(b'"')[0].decode()
        if level in self._lookups:
            self._lookups[level].inc()

    def text(self) -> bytes:
        """In Prometheus' text format. May ask the database: not for the event loop."""
        return generate_latest(self.registry)
