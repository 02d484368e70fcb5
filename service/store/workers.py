"""Which worker processes are there, and do they live?"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.periods import alive_s

from . import clock
from .bounded import json_object
from .enums import WorkerKind, WorkerState
from .models import Device, Worker
from .records import Json, WorkerRecord
from .sql import changed, upsert


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
    """Says that a worker lives and what it does; touches its device too, unless it waits for that."""
    now = clock.now(s)
    told = {
        "kind": kind,
        "host": host,
        "pid": pid,
        "device_key": device_key,
        "state": state,
        "data": json_object(data or {}, 8 * 1024),
        "heartbeat_at": now,
    }
    upsert(s, Worker, {"id": worker_id, "started_at": now, **told}, key=["id"], update=told)
    if device_key is not None and state is not WorkerState.WAITING:
        changed(s, update(Device).where(Device.key == device_key).values(last_seen_at=now))


def get(s: Session, worker_id: str) -> WorkerRecord | None:
    row = s.get(Worker, worker_id, populate_existing=True)
    return None if row is None else _record(row, clock.now(s))


def listing(s: Session) -> list[WorkerRecord]:
    """All, by kind and id."""
    now = clock.now(s)
    return [_record(row, now) for row in s.scalars(select(Worker).order_by(Worker.kind, Worker.id))]


def alive(s: Session, kind: WorkerKind | None = None) -> list[WorkerRecord]:
    return [one for one in listing(s) if one.alive and (kind is None or one.kind is kind)]


def lacking(s: Session, kind: WorkerKind, arch: str) -> bool:
    """Whether no worker of the kind that does this arch reports. One that names no archs does all."""
    return not any(arch in one.data.get("archs", (arch,)) for one in alive(s, kind))


def remove(s: Session, worker_id: str) -> None:
    """A worker that ended in order takes its row with it."""
    changed(s, delete(Worker).where(Worker.id == worker_id))


def forget(s: Session, older_than_s: float = 86400.0) -> int:
    """Drops rows that have not reported for so long; returns how many."""
    since = clock.now(s) - timedelta(seconds=older_than_s)
    return changed(s, delete(Worker).where(Worker.heartbeat_at < since))


def _record(row: Worker, now: datetime) -> WorkerRecord:
    return WorkerRecord(
        id=row.id,
        kind=row.kind,
        host=row.host,
        pid=row.pid,
        device_key=row.device_key,
        state=row.state,
        data=row.data,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        alive=now - row.heartbeat_at <= timedelta(seconds=alive_s()),
    )
