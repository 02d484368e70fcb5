"""What do clients look for and not find?"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from .records import DemandRecord, NewDemand


def add(s: Session, rows: Sequence[NewDemand]) -> None:
    """Adds to the counts of (problem, device, policy)."""
    raise NotImplementedError


def ranked(s: Session, *, device_key: str | None = None, limit: int = 100) -> list[DemandRecord]:
    """Most wanted first."""
    raise NotImplementedError


def clear(s: Session, problem_key: str, device_key: str, policy_key: str) -> bool:
    """Forgets it: it is served now."""
    raise NotImplementedError
