"""Which schedules computed wrongly under which toolchain?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from .enums import TrialReason
from .records import QuarantineRecord


def toolchain_key(toolchain: Mapping[str, Any]) -> str:
    """sha256 of a toolchain's canonical JSON: what trials, releases and quarantines are matched by."""
    raise NotImplementedError


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
    raise NotImplementedError


def holds(s: Session, arch: str, schedule_key: str, toolchain_key: str) -> bool:
    raise NotImplementedError


def schedule_keys(s: Session, family: str, arch: str, toolchain_key: str | None = None) -> set[str]:
    """Schedules not to propose."""
    raise NotImplementedError


def listing(s: Session, limit: int = 200) -> list[QuarantineRecord]:
    """In force, newest first."""
    raise NotImplementedError


def lift(s: Session, quarantine_id: int) -> bool:
    """Ends it; False if it was not in force."""
    raise NotImplementedError
