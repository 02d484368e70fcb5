"""Does a worker go on reporting and renewing, whatever went wrong with one report?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service.store import workers
from service.store.database import Database
from service.store.enums import WorkerKind
from worker.keeper import Keeper

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


def reported(database: Database) -> Any:
    with database.read() as s:
        (row,) = workers.listing(s)
    return row.heartbeat_at


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
