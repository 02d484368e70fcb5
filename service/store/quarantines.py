"""Which schedules computed wrongly under which toolchain?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from . import clock
from .enums import TrialReason
from .models import Quarantine
from .records import QuarantineRecord
from .sql import changed, insert_ignoring


def toolchain_key(toolchain: Mapping[str, Any]) -> str:
    """sha256 of a toolchain's canonical JSON: what trials, releases and quarantines are matched by."""
    canonical = json.dumps(dict(toolchain), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(canonical.encode()).hexdigest()


def add(
    s: Session,
    *,
    family: str,
    arch: str,
    schedule_key: str,
    toolchain_key: str,
    reason: TrialReason,
    device_key: str | None = None,
    artifact_sha256: str | None = None,
    trial_id: int | None = None,
) -> QuarantineRecord:
    """Writes it; one that is in force already is returned as it is."""
    values = {
        "family": family,
        "arch": arch,
        "schedule_key": schedule_key,
        "toolchain_key": toolchain_key,
        "device_key": device_key,
        "artifact_sha256": artifact_sha256,
        "trial_id": trial_id,
        "reason": reason,
        "created_at": clock.now(s),
        "lifted_at": None,
    }
    insert_ignoring(s, Quarantine, values)
    return _record(s.scalars(_in_force(arch, schedule_key, toolchain_key)).one())


def holds(s: Session, arch: str, schedule_key: str, toolchain_key: str) -> bool:
    return s.scalar(_in_force(arch, schedule_key, toolchain_key)) is not None


def schedule_keys(s: Session, family: str, arch: str, toolchain_key: str | None = None) -> set[str]:
    """Schedules not to propose."""
    query = select(Quarantine.schedule_key).where(
        Quarantine.family == family, Quarantine.arch == arch, Quarantine.lifted_at.is_(None)
    )
    if toolchain_key is not None:
        query = query.where(Quarantine.toolchain_key == toolchain_key)
    return set(s.scalars(query))


def listing(s: Session, limit: int = 200) -> list[QuarantineRecord]:
    """In force, newest first."""
    query = select(Quarantine).where(Quarantine.lifted_at.is_(None)).order_by(Quarantine.id.desc())
    return [_record(row) for row in s.scalars(query.limit(limit))]


def lift(s: Session, quarantine_id: int) -> bool:
    """Ends it; False if it was not in force."""
    in_force = (Quarantine.id == quarantine_id) & Quarantine.lifted_at.is_(None)
    return changed(s, update(Quarantine).where(in_force).values(lifted_at=clock.now(s))) == 1


def _in_force(arch: str, schedule_key: str, toolchain_key: str) -> Any:
    return select(Quarantine).where(
        Quarantine.arch == arch,
        Quarantine.schedule_key == schedule_key,
        Quarantine.toolchain_key == toolchain_key,
        Quarantine.lifted_at.is_(None),
    )


def _record(row: Quarantine) -> QuarantineRecord:
    return QuarantineRecord(
        id=row.id,
        family=row.family,
        arch=row.arch,
        schedule_key=row.schedule_key,
        toolchain_key=row.toolchain_key,
        device_key=row.device_key,
        artifact_sha256=row.artifact_sha256,
        trial_id=row.trial_id,
        reason=row.reason,
        created_at=row.created_at,
        lifted_at=row.lifted_at,
    )
