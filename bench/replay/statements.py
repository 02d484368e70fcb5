"""How many statements does a process of a replayed run send to the database, and which?

Counted in the process itself, below SQLAlchemy, as the driver is told: BEGIN, COMMIT and the pool's pings are
not among them. A thread writes the counts to a file of the process's home; the bench reads it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

WRITE_S = 1.0
"""Seldom: what counts is among what is measured."""
TRANSACTION = "(transaction)"
"""Stands for each commit or rollback."""


def count_statements(home: Path) -> None:
    """From now on, for as long as the process lives."""
    counts: Counter[str] = Counter()

    def statement(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        counts[text] += 1  # the same object each time: no hash is taken again

    def transaction(_connection: Any) -> None:
        counts[TRANSACTION] += 1

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", transaction)
    event.listen(Engine, "rollback", transaction)
    threading.Thread(target=_write, args=(counts, _file(home)), name="statements", daemon=True).start()


def counted(home: Path) -> dict[str, int]:
    """What the process of this home has sent so far."""
    try:
        found: dict[str, int] = json.loads(_file(home).read_text())
    except FileNotFoundError:
        return {}
    return found


def _file(home: Path) -> Path:
    return home / "statements.json"


def _write(counts: Counter[str], file: Path) -> None:
    stop = threading.Event()
    part = file.with_suffix(".part")
    while not stop.wait(WRITE_S):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(dict(counts)))
        part.replace(file)
