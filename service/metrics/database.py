"""Which figures come from the database, and how seldom is it asked?

At most once in GATHER_S a process, however often one scrapes. They are the same in every API process of a
service: take the maximum over instances, never the sum.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.store import figures
from service.store.database import Database
from service.store.errors import StoreError
from service.store.figures import Figures, Followed

GATHER_S = 5.0
GATHER_BYTES_S = 60.0


class DatabaseCollector(Collector):
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._figures: Figures | None = None
        self._gathered_s = float("-inf")
        self._followed = Followed()
        self._bytes: dict[str, tuple[int, int]] = {}
        self._bytes_s = float("-inf")
        self._took_s = 0.0
        self._up = False

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would gather at its start to learn the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            self._gather()
            yield _gauge("rooftile_database_up", "Whether the database answered the last look.", self._up)
            yield _gauge("rooftile_database_look_seconds", "Seconds that the look took.", self._took_s)
            yield from self._pool()
            if self._up and self._figures is not None:
                yield from _of(self._figures)
                yield from self._of_followed()

    def _gather(self) -> None:
        began = time.monotonic()
        if began - self._gathered_s < GATHER_S:
            return
        self._gathered_s = began
        try:
            with self._database.read() as s:
                self._figures = figures.look(s)
            with self._database.read() as s:
                figures.follow(s, self._followed)
                if began - self._bytes_s >= GATHER_BYTES_S:
                    self._bytes, self._bytes_s = figures.kept_bytes(s), began
            self._up = True
        except StoreError:
            self._up = False
        self._took_s = time.monotonic() - began

    def _pool(self) -> Iterable[Metric]:
        pool = self._database.engine().pool
        family = GaugeMetricFamily(
            "rooftile_database_pool_connections",
            "Connections of this process to the database; most is how many it may open.",
            labels=["state"],
        )
        for state in ("size", "checkedout", "checkedin"):
            method = getattr(pool, state, None)
            if method is not None:
                family.add_metric([{"checkedout": "used", "checkedin": "idle"}.get(state, "kept")], method())
        most = getattr(pool, "_max_overflow", None)
        size = getattr(pool, "size", None)
        if isinstance(most, int) and size is not None:
            family.add_metric(["most"], size() + most)
        yield family

    def _of_followed(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "rooftile_trials",
            "Trials that came to an end, by outcome and reason.",
            labels=["state", "reason"],
        )
        for (state, reason), count in sorted(self._followed.trials.items()):
            ended.add_metric([state, reason], count)
        yield ended
        yield _by(
            "rooftile_device_noise_ratio",
            "Band inside which two times of the device's newest race count as equal.",
            "device",
            self._followed.noise,
        )
        sizes = {kind: size for kind, (_count, size) in self._bytes.items()}
        counts = {kind: count for kind, (count, _size) in self._bytes.items()}
        yield _by("rooftile_artifact_bytes", "Bytes of artifacts that are kept.", "kind", sizes)
        yield _by("rooftile_artifacts_kept", "Artifacts whose bytes are kept.", "kind", counts)


def _of(look: Figures) -> Iterable[Metric]:
    lengths = {name: queue.length for name, queue in look.queues.items()}
    ages = {name: queue.oldest_s for name, queue in look.queues.items()}
    yield _by("rooftile_queue_length", "What waits, by queue.", "queue", lengths)
    yield _by(
        "rooftile_queue_oldest_seconds", "Since the oldest that waits was asked for, by queue.", "queue", ages
    )
    claims = GaugeMetricFamily("rooftile_claims", "Work that a worker has claimed.", labels=["kind", "state"])
    for (kind, state), count in look.claims.items():
        claims.add_metric([kind, state], count)
    yield claims
    yield _by("rooftile_leases", "Named leases that are held.", "kind", look.leases)
    states = GaugeMetricFamily("rooftile_workers", "Processes of workers.", labels=["kind", "state"])
    for kind, one in look.workers.items():
        for state, count in one.states.items():
            states.add_metric([kind, state], count)
    yield states
    yield _by(
        "rooftile_worker_heartbeat_age_seconds",
        "Since a worker of the kind last reported.",
        "kind",
        {kind: one.youngest_s for kind, one in look.workers.items() if one.youngest_s is not None},
    )
    yield _by("rooftile_jobs", "Jobs by state.", "state", look.jobs)
    yield _by("rooftile_releases", "Releases by state.", "state", look.releases)
    named = GaugeMetricFamily(
        "rooftile_device_connected", "Whether a worker offers the device.", labels=["device", "arch"]
    )
    for device, known in look.devices.items():
        named.add_metric([device, known.arch], known.connected)
    yield named
    out = {device: known.out_of_service for device, known in look.devices.items()}
    yield _by("rooftile_device_out_of_service", "Whether the device gets no work.", "device", out)
    yield CounterMetricFamily("rooftile_events", "Number of the newest event.", value=look.events)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
