"""How fast can this device be, as measured on it once for each toolchain and start of the machine?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from service.store import devices
from service.store.database import Database
from worker.errors import ChildLostError
from worker.measure.session import MeasureSession

_log = structlog.get_logger("rooftile.measure")

KEEP = timedelta(hours=12)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def device_roof(database: Database, session: MeasureSession) -> dict[str, Any] | None:
    """The roof of the session's device: the stored one where it is of this boot and toolchain and not old,
    else measured now and stored. None where it cannot be measured (no compiler)."""
    if session.tools.calibrate is None:
        return None
    identity = {"boot": _boot(), "artifact": session.tools.calibrate.stem, "threads": session.threads}
    with database.read() as reading:
        record = devices.get(reading, session.device_key)
    if record is not None and record.roof is not None and _fits(dict(record.roof), identity):
        # Also one of a busy machine: the worker measures it again when it finds the time.
        session.roof = dict(record.roof)
        return session.roof
    return refresh_roof(database, session)


def refresh_roof(database: Database, session: MeasureSession) -> dict[str, Any] | None:
    """Measure and store; None where that fails."""
    try:
        roof = session.measure_roof()
    except ChildLostError as error:
        _log.warning("no roof: times are only checked to be positive", error=str(error))
        return None
    if not roof["cold_check"]["ok"]:
        _log.warning(
            "buffers that were rotated out of the cache are not slower to read than ones that were not: "
            "cold times may be warm ones",
            **roof["cold_check"],
        )
    save_roof(database, session)
    return roof


def save_roof(database: Database, session: MeasureSession) -> None:
    """Store the session's roof with what it belongs to."""
    if session.roof is None or session.tools.calibrate is None:
        return
    identity = {"boot": _boot(), "artifact": session.tools.calibrate.stem, "threads": session.threads}
    session.roof = {**session.roof, **identity}
    roof = session.roof
    database.run(lambda s: devices.set_roof(s, session.device_key, roof))


def _fits(roof: dict[str, Any], identity: dict[str, Any]) -> bool:
    if any(roof.get(name) != value for name, value in identity.items()):
        return False
    try:
        return datetime.now(UTC) - datetime.fromisoformat(roof["measured_at"]) < KEEP
    except (KeyError, ValueError, TypeError):
        return False


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
