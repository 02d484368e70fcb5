"""How does one process tell another that there is work, without ever waiting for it?"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from service.bus.app import make_celery
from service.bus.names import BELL_EXPIRES_S, Kind, queue_of, task_of
from service.settings import Settings

_log = structlog.get_logger("rooftile.doorbell")

_MOST_PENDING = 1000


@dataclass(frozen=True)
class _Bell:
    kind: Kind
    queue: str
    args: tuple[str, ...]


class Doorbell:
    """`ring()` returns at once and never raises. Embedded it does nothing: workers sweep.

    A thread sends the messages, so a broker that is down or slow holds nobody up; what does not fit
    its short queue is dropped, because every worker sweeps the database anyway.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pending: queue.Queue[_Bell | None] = queue.Queue(_MOST_PENDING)
        self._waiting: set[_Bell] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._closed = False
        self._dropping = False

    def ring(self, kind: Kind | str, *args: object, device_key: str | None = None) -> None:
        """Say that there is work of this kind; `args` (a job's id) are hints. `measure` needs the device."""
        if self._settings.embedded or self._closed:
            return
        try:
            bell = _Bell(Kind(kind), queue_of(kind, device_key), tuple(str(arg) for arg in args))
            with self._lock:
                if bell not in self._waiting:  # else the same bell is about to ring
                    self._pending.put_nowait(bell)
                    self._waiting.add(bell)
                # A thread that died (memory was short) is followed by another, which finds what it left.
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._send_all, name="doorbell", daemon=True)
                    self._thread.start()
        except queue.Full:
            return
        except Exception as error:  # noqa: BLE001 - a doorbell may fail, its caller may not
            _log.warning("cannot ring", kind=str(kind), error=str(error))

    def close(self, timeout_s: float = 1.0) -> None:
        """Send what is pending, within `timeout_s`; the rest is dropped."""
        self._closed = True
        thread = self._thread
        if thread is not None and thread.is_alive():
            with suppress(queue.Full):
                self._pending.put_nowait(None)
            thread.join(timeout_s)
        self._dropping = True

    def _send_all(self) -> None:
        app: Any = make_celery(self._settings)
        while True:
            bell = self._pending.get()
            if bell is None or self._dropping:
                return
            with self._lock:
                self._waiting.discard(bell)
            try:
                app.send_task(
                    task_of(bell.kind),
                    args=list(bell.args),
                    queue=bell.queue,
                    expires=BELL_EXPIRES_S,
                    ignore_result=True,
                    retry=False,
                )
                if self._failing:
                    self._failing = False
                    _log.info("the broker answers again")
            except Exception as error:  # noqa: BLE001 - see the class
                if not self._failing:
                    self._failing = True
                    _log.warning("the broker does not answer; workers sweep instead", error=str(error))
