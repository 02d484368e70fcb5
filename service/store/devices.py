"""Which devices are known, and what are they?"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.periods import alive_s

from . import clock
from .enums import DeviceState, WorkerKind, WorkerState
from .errors import NotFound
from .models import Device, Worker
from .records import DeviceRecord, Json
from .sql import changed
from .sql import upsert as _upsert


def upsert(s: Session, device: DeviceRecord) -> None:
    """Writes key, name, kind, arch and data, and that it was seen now. State and roof stay as they are."""
    now = clock.now(s)
    described = {
        "name": device.name,
        "kind": device.kind,
        "arch": device.arch,
        "data": dict(device.data),
        "last_seen_at": now,
    }
    new = {"key": device.key, "state": DeviceState.AVAILABLE, "reason": "", "created_at": now}
    _upsert(s, Device, {**new, **described}, key=["key"], update=described)


def get(s: Session, key: str) -> DeviceRecord | None:
    row = s.get(Device, key, populate_existing=True)
    return None if row is None else _record(row, _reports(s))


def listing(s: Session) -> list[DeviceRecord]:
    """All, connected ones first."""
    reports = _reports(s)
    found = [_record(row, reports) for row in s.scalars(select(Device).order_by(Device.key))]
    return sorted(found, key=lambda device: not device.connected)


def connected(s: Session) -> list[DeviceRecord]:
    """In service, and a measure worker reported for it lately."""
    return [device for device in listing(s) if device.connected]


def set_roof(s: Session, key: str, roof: Json) -> None:
    """Stores the measured roofs; NotFound."""
    _change(s, key, roof=dict(roof), roof_at=clock.now(s))


def set_state(s: Session, key: str, state: DeviceState, reason: str = "") -> None:
    """Takes it out of service or back; NotFound."""
    _change(s, key, state=state, reason=reason)


def is_connected(s: Session, key: str) -> bool:
    """`connected` of one device, in one question."""
    since = clock.now(s) - timedelta(seconds=alive_s())
    reports = (
        select(Worker.id)
        .where(
            Worker.kind == WorkerKind.MEASURE,
            Worker.device_key == key,
            Worker.heartbeat_at >= since,
            Worker.state != WorkerState.WAITING,
        )
        .exists()
    )
    known = select(Device.key).where(Device.key == key, Device.state == DeviceState.AVAILABLE, reports)
    return s.scalar(known) is not None


def described(s: Session, keys: Collection[str]) -> dict[str, dict[str, Any]]:
    """What is known of these devices, of those that anybody described."""
    if not keys:
        return {}
    rows = s.execute(select(Device.key, Device.data).where(Device.key.in_(keys)))
    return {row.key: row.data for row in rows}


def in_service(s: Session, key: str) -> bool:
    """Whether it may be given work; a device nobody has described may."""
    state = s.scalar(select(Device.state).where(Device.key == key))
    return state is not DeviceState.OUT_OF_SERVICE


def serving(key: str) -> ColumnElement[bool]:
    """`in_service`, as a part of another question. For this package."""
    out = select(Device.key).where(Device.key == key, Device.state == DeviceState.OUT_OF_SERVICE)
    return ~out.exists()


def _change(s: Session, key: str, **columns: object) -> None:
    if changed(s, update(Device).where(Device.key == key).values(**columns)) != 1:
        raise NotFound("device", key)


def _reports(s: Session) -> dict[str, str]:
    """Devices that a measure worker reported for lately: "" where one has it, else what they wait for."""
    since = clock.now(s) - timedelta(seconds=alive_s())
    query = select(Worker.device_key, Worker.state, Worker.data)
    query = query.where(Worker.kind == WorkerKind.MEASURE, Worker.heartbeat_at >= since)
    found: dict[str, str] = {}
    for key, state, data in s.execute(query):
        if key is None:
            continue
        if state is not WorkerState.WAITING:
            found[key] = ""
        else:
            found.setdefault(key, str(data.get("waits_for")))
    return found


def _record(row: Device, reports: dict[str, str]) -> DeviceRecord:
    return DeviceRecord(
        key=row.key,
        name=row.name,
        kind=row.kind,
        arch=row.arch,
        data=row.data,
        roof=row.roof,
        roof_at=row.roof_at,
        state=row.state,
        reason=row.reason,
        last_seen_at=row.last_seen_at,
        connected=row.state is DeviceState.AVAILABLE and reports.get(row.key) == "",
        waits_for=reports.get(row.key, ""),
    )
