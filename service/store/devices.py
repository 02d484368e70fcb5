"""Which devices are known, and what are they?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .enums import DeviceState
from .records import DeviceRecord, Json


def upsert(s: Session, device: DeviceRecord) -> None:
    """Writes key, name, kind, arch and data, and that it was seen now. State and roof stay as they are."""
    raise NotImplementedError


def get(s: Session, key: str) -> DeviceRecord | None:
    raise NotImplementedError


def listing(s: Session) -> list[DeviceRecord]:
    """All, connected ones first."""
    raise NotImplementedError


def connected(s: Session) -> list[DeviceRecord]:
    """In service, and a measure worker reported for it lately."""
    raise NotImplementedError


def set_roof(s: Session, key: str, roof: Json) -> None:
    """Stores the measured roofs; NotFound."""
    raise NotImplementedError


def set_state(s: Session, key: str, state: DeviceState, reason: str = "") -> None:
    """Takes it out of service or back; NotFound."""
    raise NotImplementedError
