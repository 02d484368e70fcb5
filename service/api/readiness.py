"""What does this process need that is not there? Each by name, for /readyz.

Without the database or its tables it can answer nothing, so it is not ready. Without the broker jobs go on by
each worker's own sweep, and a clock that is wrong spoils only what people read: both are told, as warnings.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from service.api.errors import UnavailableError
from service.bus.broker import broker_fault
from service.settings import Settings
from service.store import clock
from service.store.database import Database
from service.store.errors import SchemaMismatch, StoreError

SKEW_MOST = timedelta(seconds=2)
_BROKER_EVERY_S = 5.0


@dataclass
class Readiness:
    """One an app. The broker is asked once in five seconds at most, and holds nobody up for over two."""

    settings: Settings
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked_s: float = float("-inf")
    _broker: str = "ok"

    def checks(self, database: Database) -> dict[str, str]:
        """What is here: "ok" or a sentence. StoreError where the database does not answer or has other
        tables."""
        database.ping()
        with database.read() as s:
            apart = abs(datetime.now(UTC) - clock.now(s))
        found = {"database": "ok", "migrations": "ok"}
        if self.settings.broker_url is not None:
            found["broker"] = self._of_broker(self.settings.broker_url)
        late = apart > SKEW_MOST
        told = (
            f"This host's clock and the database's are {apart.total_seconds():.0f} s apart; run NTP on both."
        )
        return {**found, "clock": told if late else "ok"}

    def _of_broker(self, url: str) -> str:
        with self._lock:
            now = time.monotonic()
            if now - self._asked_s >= _BROKER_EVERY_S:
                self._broker = broker_fault(url) or "ok"
                self._asked_s = time.monotonic()
            return self._broker


def unready(error: StoreError) -> UnavailableError:
    """503 that names the check which failed."""
    name = "migrations" if isinstance(error, SchemaMismatch) else "database"
    return UnavailableError(str(error), field=name, headers={"Retry-After": "5"})
