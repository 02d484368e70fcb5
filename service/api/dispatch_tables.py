"""What does a DispatchTable look like in an answer: which release from which size to which, at what loss?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from service.api import render, schemas
from service.store import dispatch, releases
from service.store.enums import ReleaseState
from service.store.records import DispatchIntervalRecord, DispatchTableRecord, ReleaseRecord

_SERVED = (ReleaseState.PUBLISHED, ReleaseState.SUPERSEDED)
"""What won once may be used on; what was withdrawn may not."""


def shown(s: Session, layer_key: str, device_key: str, policy_key: str) -> list[schemas.DispatchTable]:
    """The newest table of each swept size of a layer on a device."""
    tables = dispatch.newest(s, layer_key, device_key, policy_key)
    ids = {one.release_id for table in tables for one in table.intervals}
    known = {row.id: row for row in releases.several(s, sorted(ids))}
    return [_table(table, known) for table in tables]


def _table(table: DispatchTableRecord, known: Mapping[int, ReleaseRecord]) -> schemas.DispatchTable:
    held = [_held_out(one) for one in table.held_out]
    losses = [one.loss_percent for one in held if one.loss_percent is not None]
    return schemas.DispatchTable(
        table_id=table.id,
        job_id=table.job_id,
        created_at=table.created_at,
        axis=table.axis,
        low=table.low,
        high=table.high,
        fixed={name: int(size) for name, size in table.fixed.items()},
        tuned=[int(one["size"]) for one in table.tuned],
        intervals=[_interval(one, known.get(one.release_id)) for one in table.intervals],
        held_out=held,
        mean_loss_percent=sum(losses) / len(losses) if losses else None,
        worst_loss_percent=max(losses, default=None),
    )


def _interval(one: DispatchIntervalRecord, release: ReleaseRecord | None) -> schemas.DispatchInterval:
    served = release if release is not None and release.state in _SERVED else None
    return schemas.DispatchInterval(
        low=one.low,
        high=one.high,
        level="none" if served is None else render.level(served),
        tuned_at=one.tuned_at,
        release_id=one.release_id,
        release_state="gone" if release is None else str(release.state),
        schedule_text=None if served is None else render.schedule_text(served.schedule) or None,
        artifact=None if served is None else served.artifact_sha256,
        pool=None if served is None else served.pool_sha256,
        launch=None if served is None or served.plan is None else dict(served.plan),
        estimated_mean_loss_percent=_percent(one.mean_loss),
        estimated_worst_loss_percent=_percent(one.worst_loss),
    )


def _held_out(one: Mapping[str, Any]) -> schemas.HeldOut:
    return schemas.HeldOut(
        size=int(one["size"]), loss_percent=_percent(one["loss"]), raced=bool(one["raced"])
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
