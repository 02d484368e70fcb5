"""How does a process reach the database, and what happens when it can not?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy.orm import Session

T = TypeVar("T")


class Database:
    """One database. Cheap to make: nothing is opened before the first use; safe to keep over a fork.

    Every error of the driver leaves `read`, `begin` and `run` as an error of `service.store.errors`.
    """

    def __init__(
        self, url: str, *, name: str = "rooftile", pool_size: int = 2, max_overflow: int = 3
    ) -> None:
        """`url`: sqlite:///FILE or postgresql://...; `name` becomes Postgres' application_name."""
        raise NotImplementedError

    @property
    def dialect(self) -> str:
        """"sqlite" or "postgresql"."""
        raise NotImplementedError

    @property
    def shown(self) -> str:
        """The address without its password, for messages."""
        raise NotImplementedError

    def read(self) -> AbstractContextManager[Session]:
        """A session that only reads, on one snapshot where the database gives one."""
        raise NotImplementedError

    def begin(self) -> AbstractContextManager[Session]:
        """A session that writes: commits at the end of the block, rolls back on any exception."""
        raise NotImplementedError

    def run(self, fn: Callable[[Session], T]) -> T:
        """`fn` in a transaction of its own, again (with back-off) after StoreBusy: deadlock, lock, clash."""
        raise NotImplementedError

    def ping(self) -> None:
        """Returns if the database answers and has the tables of this code; raises StoreError else."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what is open; the Database may be used again afterwards."""
        raise NotImplementedError
