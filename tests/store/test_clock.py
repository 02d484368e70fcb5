"""Is the database asked for the time once in a while, and is what is told in between right?"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from service.store import clock
from service.store.database import Database


def test_a_session_asks_once_and_then_adds_what_has_passed(postgres_url: str) -> None:
    db = Database(postgres_url)
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "clock_timestamp" in statement:
            asked.append(statement)

    event.listen(db.engine(), "before_cursor_execute", note)
    with db.read() as s:
        first = clock.now(s)
        time.sleep(0.02)
        second = clock.now(s)
    assert len(asked) == 1
    assert timedelta(seconds=0.02) <= second - first
    assert abs(datetime.now(UTC) - second) < timedelta(seconds=60)
    with db.read() as s:
        clock.now(s)
    assert len(asked) == 2
    db.close()


def test_who_was_stopped_in_between_asks_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(postgres_url)
    with db.read() as s:
        first = clock.now(s)
        passed = time.monotonic
        for jump in (100.0, -100.0):
            monkeypatch.setattr(clock.time, "monotonic", lambda jump=jump: passed() + jump)
            assert abs(clock.now(s) - first) < timedelta(seconds=60)
    db.close()
