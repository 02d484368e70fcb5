"""How does a process reach the database, and what happens when it can not?"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import stamina
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import ORMExecuteState, Session

from . import events
from .driver_errors import translate
from .engine import WRITES, make_engine, parse, shown
from .errors import StoreBusy, StoreError
from .limits import limits

T = TypeVar("T")

_ONLY_READS = "This session only reads; use Database.begin() to write."

# Engines inherited over a fork are parked here and never closed: closing one would say goodbye to the
# server on the parent's socket, or remove SQLite's WAL below the parent.
_inherited: list[Engine] = []


class _Writing(Session):
    """A session that commits; its events are written just before (see events.py)."""


class _Reading(Session):
    """A session that only reads."""


@event.listens_for(_Writing, "before_commit")
def _write_events(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint ends here; the events wait for the real commit
    session.flush()
    events.write_pending(session)


@event.listens_for(_Reading, "before_flush")
def _refuse_writes(session: Session, _context: Any, _instances: Any) -> None:
    if session.new or session.dirty or session.deleted:
        raise StoreError(_ONLY_READS)


@event.listens_for(_Reading, "do_orm_execute")
def _refuse_statements(state: ORMExecuteState) -> None:
    if not state.is_select and (state.is_insert or state.is_update or state.is_delete):
        raise StoreError(_ONLY_READS)


class Database:
    """One database. Cheap to make: nothing is opened before the first use; safe to keep over a fork.

    Every error of the driver leaves `read`, `begin` and `run` as an error of `service.store.errors`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "rooftile",
        pool_size: int = 2,
        max_overflow: int = 3,
        statement_s: float = math.inf,
    ) -> None:
        """`url`: sqlite:///FILE or postgresql://...; `name` becomes Postgres' application_name.

        Keep pools small: the sum over all processes has to stay below Postgres' max_connections.
        Limits of time and number come from the environment (limits.py; SettingsError); `statement_s` can
        only shorten the one of a statement.
        """
        self._url = parse(url)
        allowed = limits()
        self._limits = replace(allowed, statement_s=min(allowed.statement_s, statement_s))
        self._name = name
        self._pool_size = pool_size
        self._max_overflow = max_overflow
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._engine: Engine | None = None

    @property
    def dialect(self) -> str:
        """ "sqlite" or "postgresql"."""
        return self._url.get_backend_name()

    @property
    def shown(self) -> str:
        """Where it is, without user and password, for messages."""
        return shown(self._url)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that only reads, on the snapshot of its first query."""
        options: dict[str, Any] = {}
        if self.dialect == "postgresql":
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with (
            self._translated(),
            _Reading(self.engine().execution_options(**options), expire_on_commit=False) as session,
        ):
            yield session

    @contextmanager
    def glance(self) -> Iterator[Session]:
        """A session for questions that need not be answered as of one moment ("is there work?"): as `read`,
        but each is a transaction of its own, and on Postgres one message there and back instead of three."""
        options: dict[str, Any] = {}
        if self.dialect == "postgresql":
            options = {"isolation_level": "AUTOCOMMIT"}
        with (
            self._translated(),
            _Reading(self.engine().execution_options(**options), expire_on_commit=False) as session,
        ):
            yield session

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A session that writes: commits at the end of the block, rolls back on any exception."""
        with (
            self._translated(),
            _Writing(self.engine().execution_options(**{WRITES: True}), expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def run(self, fn: Callable[[Session], T]) -> T:
        """`fn` in a transaction of its own, again (with back-off) after StoreBusy: deadlock, lock, clash.

        `fn` may run several times, so it must do nothing but talk to its session.
        """
        for attempt in stamina.retry_context(
            on=StoreBusy, attempts=6, timeout=60.0, wait_initial=0.05, wait_max=2.0
        ):
            with attempt, self.begin() as session:
                return fn(session)
        raise AssertionError("the loop above returns or raises")

    def ping(self) -> None:
        """Returns if the database answers and has the tables of this code; raises StoreError else."""
        from .migrate import require_head

        with self.read() as session:
            require_head(session.connection(), self.shown)

    def alive(self) -> None:
        """Returns if the database answers; raises StoreError else."""
        with self.read() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Closes what is open; the Database may be used again afterwards."""
        if self._pid == os.getpid() and self._engine is not None:
            self._engine.dispose()
        self._engine = None

    def engine(self) -> Engine:
        """This process's engine; made at first use, and again in the child after a fork."""
        if self._pid != os.getpid():
            if self._engine is not None:
                _inherited.append(self._engine)
            # the lock too: another thread of the parent may have held it at the fork
            self._engine, self._lock, self._pid = None, threading.Lock(), os.getpid()
        engine = self._engine
        if engine is None:
            with self._lock:
                engine = self._engine
                if engine is None:
                    engine = self._engine = make_engine(
                        self._url,
                        name=self._name,
                        pool_size=self._pool_size,
                        max_overflow=self._max_overflow,
                        allowed=self._limits,
                    )
        return engine

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise translate(error, self._url) from error
