"""Which tables did sweeps end in: of a layer on a device, which release at which size?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from . import clock
from .models import DispatchInterval, DispatchTable
from .records import DispatchIntervalRecord, DispatchTableRecord, NewDispatchTable

MOST_LOOKED_AT = 200


def create(s: Session, new: NewDispatchTable) -> int:
    """Writes a table with its intervals, once for each line and device of a job; its id."""
    known = s.scalar(
        select(DispatchTable.id).where(
            DispatchTable.job_id == new.job_id,
            DispatchTable.line == new.line,
            DispatchTable.device_key == new.device_key,
        )
    )
    if known is not None:
        return known
    row = DispatchTable(
        layer_key=new.layer_key,
        device_key=new.device_key,
        policy_key=new.policy_key,
        job_id=new.job_id,
        line=new.line,
        axis=new.axis,
        low=new.low,
        high=new.high,
        created_at=clock.now(s),
        fixed=dict(new.fixed),
        tuned=[dict(one) for one in new.tuned],
        held_out=[dict(one) for one in new.held_out],
    )
    s.add(row)
    s.flush()
    for one in new.intervals:
        s.add(
            DispatchInterval(
                table_id=row.id,
                low=one.low,
                high=one.high,
                tuned_at=one.tuned_at,
                release_id=one.release_id,
                schedule_key=one.schedule_key,
                mean_loss=one.mean_loss,
                worst_loss=one.worst_loss,
            )
        )
    s.flush()
    return row.id


def lines_of_job(s: Session, job_id: int) -> set[tuple[int, str]]:
    """(line, device key) of the tables that a job has given."""
    query = select(DispatchTable.line, DispatchTable.device_key).where(DispatchTable.job_id == job_id)
    return {(line, key) for line, key in s.execute(query)}


def of_job(s: Session, job_id: int) -> list[DispatchTableRecord]:
    """The tables that a job has given."""
    query = select(DispatchTable).where(DispatchTable.job_id == job_id).order_by(DispatchTable.id)
    return _records(s, s.scalars(query).all())


def newest(s: Session, layer_key: str, device_key: str, policy_key: str) -> list[DispatchTableRecord]:
    """Of each swept size, with the others fixed, and each range the latest."""
    line = (
        DispatchTable.layer_key == layer_key,
        DispatchTable.device_key == device_key,
        DispatchTable.policy_key == policy_key,
    )
    # `fixed` is JSON, by which not every database groups: the few tables of a layer are sorted out here
    query = select(DispatchTable).where(*line).order_by(DispatchTable.id.desc()).limit(MOST_LOOKED_AT)
    found: dict[tuple[object, ...], DispatchTable] = {}
    for row in s.scalars(query):
        found.setdefault((row.axis, row.low, row.high, *sorted(row.fixed.items())), row)
    return _records(s, sorted(found.values(), key=lambda row: row.id))


def _records(s: Session, rows: Sequence[DispatchTable]) -> list[DispatchTableRecord]:
    query = select(DispatchInterval).where(DispatchInterval.table_id.in_([row.id for row in rows]))
    held: dict[int, list[DispatchIntervalRecord]] = {}
    for one in s.scalars(query.order_by(DispatchInterval.table_id, DispatchInterval.low)):
        held.setdefault(one.table_id, []).append(
            DispatchIntervalRecord(
                low=one.low,
                high=one.high,
                tuned_at=one.tuned_at,
                release_id=one.release_id,
                schedule_key=one.schedule_key,
                mean_loss=one.mean_loss,
                worst_loss=one.worst_loss,
            )
        )
    return [
        DispatchTableRecord(
            id=row.id,
            layer_key=row.layer_key,
            device_key=row.device_key,
            policy_key=row.policy_key,
            job_id=row.job_id,
            line=row.line,
            axis=row.axis,
            low=row.low,
            high=row.high,
            fixed=row.fixed,
            tuned=tuple(row.tuned),
            held_out=tuple(row.held_out),
            intervals=tuple(held.get(row.id, ())),
            created_at=row.created_at,
        )
        for row in rows
    ]
