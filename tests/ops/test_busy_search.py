"""Does a search worker go on reporting from the midst of a step that takes long? As a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from service.store import workers
from service.store.database import Database
from service.store.enums import WorkerKind

CODE = """
import sys, time
from service.search.worker import SearchWorker

def step(self):
    print("in a step", flush=True)
    time.sleep(600)

SearchWorker.step = step
from service.search.__main__ import main
sys.exit(main())
"""


def test_a_busy_search_worker_lives(sqlite_url: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "ROOFTILE_HOME": str(tmp_path / "home"),
        "ROOFTILE_DATABASE_URL": sqlite_url,
        "ROOFTILE_LEASE_S": "4",
    }
    command = [sys.executable, "-c", CODE]
    database = Database(sqlite_url, name="rooftile-test")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in a step\n"
            first = _reported(database)
            deadline = time.monotonic() + 30
            while _reported(database) <= first:
                assert time.monotonic() < deadline, "it is taken for dead"
                time.sleep(0.05)
        finally:
            process.kill()
            database.close()


def _reported(database: Database) -> datetime:
    with database.read() as s:
        (row,) = [one for one in workers.listing(s) if one.kind is WorkerKind.SEARCH]
    return row.heartbeat_at
