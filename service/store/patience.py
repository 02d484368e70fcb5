"""How long is Postgres waited for when it says nothing? A connection that gives up.

Postgres ends a statement at its own limit, and the kernel notices a host that is gone. Neither helps against
a server that is frozen: its kernel still acknowledges every byte. Then the client alone can end the wait.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

RV = TypeVar("RV")

SILENT_S = 5.0
"""After the server's own limit of a statement: one that lives has answered by then."""


class PatientConnection(psycopg.Connection[Any]):
    """As psycopg's; an answer that does not come in time ends it."""

    answer_s: float | None = None
    """Until the answer to one statement is there; None: for ever."""

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **options: Any) -> RV:
        if self.answer_s is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._bounded(gen, self.answer_s), *args, **options)

    def _bounded(self, gen: Generator[Any, Any, RV], most_s: float) -> Generator[Any, Any, RV]:
        """`gen`, until it was waited for so long. Whoever waits wakes it each tenth of a second."""
        until_s = time.monotonic() + most_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until_s:
                    # nothing more is asked on it, not even a rollback
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer came within {most_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            value: RV = end.value
            return value


def connect(answer_s: float | None, *args: Any, **options: Any) -> PatientConnection:
    """A connection that waits so long for each answer. Until it is there libpq's connect_timeout holds."""
    connection = PatientConnection.connect(*args, **options)
    connection.answer_s = answer_s
    return connection
