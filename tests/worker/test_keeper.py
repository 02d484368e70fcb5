"""Does a worker go on reporting and renewing, whatever went wrong with one report?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.store import leases, workers
from service.store.database import Database
from service.store.enums import WorkerKind, WorkerState
from service.store.records import LeaseRecord, WorkerRecord
from worker.keeper import Keeper
from worker.ownership import wait_for_device

T = TypeVar("T")


class Starved(Database):
    """Its host has no memory left for a while, which no driver's error tells."""

    starving = False
    refused = 0

    def run(self, fn: Callable[[Session], T]) -> T:
        if self.starving:
            self.refused += 1
            raise MemoryError
        return super().run(fn)


def test_memory_that_was_short_for_a_while_ends_no_reports(sqlite_url: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROOFTILE_LEASE_S", "4")
    database = Starved(sqlite_url)
    keeper = Keeper(database, WorkerKind.COMPILE)
    keeper.start()
    try:
        database.starving = True
        wait(lambda: database.refused > 0)
        database.starving = False
        since = reported(database)
        wait(lambda: reported(database) > since)
    finally:
        keeper.stop()
        database.close()


def test_a_device_stays_its_workers_own(database: Database, monkeypatch: Any) -> None:
    """With each report: else the lease would run out beside a worker that is well, and another take it."""
    monkeypatch.setenv("ROOFTILE_LEASE_S", "4")
    keeper = Keeper(database, WorkerKind.MEASURE, "cpu-test-6-85-4c-x86-64-v3")
    keeper.start()
    try:
        first = device_held(database, keeper)
        assert first is not None
        assert first.owner == keeper.owner

        def extended() -> bool:
            now = device_held(database, keeper)
            assert now is not None
            assert (now.owner, now.token) == (first.owner, first.token)  # never free meanwhile
            return bool(now.expires_at > first.expires_at)

        wait(extended)
        assert not keeper.device_lost
    finally:
        keeper.stop()
    assert device_held(database, keeper) is None


def test_it_is_kept_while_its_worker_gets_ready(database: Database, monkeypatch: Any) -> None:
    """The roof of a busy machine takes longer than a lease."""
    monkeypatch.setenv("ROOFTILE_LEASE_S", "4")
    key = "cpu-test-6-85-4c-x86-64-v4"
    keeper = Keeper(database, WorkerKind.MEASURE, key)
    ownership = wait_for_device(database, keeper, key)
    try:
        first = device_held(database, keeper)
        assert first is not None

        def extended() -> bool:
            now = device_held(database, keeper)
            assert now is not None
            return bool(now.expires_at > first.expires_at)

        wait(extended)
        assert (row_of(database).state, "getting ready" in row_of(database).data["waits_for"]) == (
            WorkerState.WAITING,
            True,
        )
        keeper.start()
        assert (row_of(database).state, "waits_for" in row_of(database).data) == (WorkerState.IDLE, False)
    finally:
        keeper.stop()
        ownership.close()


def device_held(database: Database, keeper: Keeper) -> LeaseRecord | None:
    with database.read() as s:
        return leases.holder(s, keeper.device_lease)


def reported(database: Database) -> Any:
    return row_of(database).heartbeat_at


def row_of(database: Database) -> WorkerRecord:
    with database.read() as s:
        (row,) = workers.listing(s)
    return row


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
