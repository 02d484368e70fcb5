"""Which worker processes are there, and do they live?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .enums import WorkerKind, WorkerState
from .records import Json, WorkerRecord

ALIVE_S = 30.0
"""A worker that reported within this time counts as alive; it should report every 5 s."""


def heartbeat(
    s: Session,
    worker_id: str,
    kind: WorkerKind,
    host: str,
    pid: int,
    device_key: str | None,
    state: WorkerState,
    data: Json | None = None,
) -> None:
    """Says that a worker lives and what it does; touches its device too."""
    raise NotImplementedError


def get(s: Session, worker_id: str) -> WorkerRecord | None:
    raise NotImplementedError


def listing(s: Session) -> list[WorkerRecord]:
    """All, by kind and id."""
    raise NotImplementedError


def alive(s: Session, kind: WorkerKind | None = None) -> list[WorkerRecord]:
    raise NotImplementedError


def remove(s: Session, worker_id: str) -> None:
    """A worker that ended in order takes its row with it."""
    raise NotImplementedError


def forget(s: Session, older_than_s: float = 86400.0) -> int:
    """Drops rows that have not reported for so long; returns how many."""
    raise NotImplementedError
