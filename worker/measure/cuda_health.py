"""Is a GPU fit to be measured on? A kernel that nobody owns any more may spin on it for days (AT-08).

Before each problem: the device must fall idle while we do nothing, and a canary, a fixed stream of memory,
must take about as long as it ever did.
"""

from __future__ import annotations

import time
from typing import Any

from worker.measure.cuda_backend import Backend

# NVML averages over up to a second.
IDLE_WAIT_S = 4.0
MOST_IDLE_PERCENT = 10
# Against the best canary of this process, and against what the product's data sheet promises.
LEAST_OF_BEST = 0.7
LEAST_OF_SHEET = 0.4
_TRIES = 5


class UnhealthyError(Exception):
    """The device is not fit to be measured on; one sentence."""


class Health:
    """What a measuring process knows of its device's health."""

    def __init__(self, backend: Backend, sheet_gbs: float | None, idle_wait_s: float = IDLE_WAIT_S) -> None:
        self._backend = backend
        self._idle_wait_s = idle_wait_s
        self._sheet_gbs = sheet_gbs
        self._best_gbs = 0.0

    def check(self) -> dict[str, Any]:
        """What was found. Raises UnhealthyError."""
        self.wait_until_idle()
        gbs = 0.0
        for number in range(_TRIES):
            gbs = max(gbs, self._backend.canary_gbs())
            if self._slow(gbs) is None:
                break
            time.sleep(0.2 * number)
        reason = self._slow(gbs)
        if reason is not None:
            raise UnhealthyError(reason)
        self._best_gbs = max(self._best_gbs, gbs)
        return {"canary_gbs": round(gbs, 1), "best_gbs": round(self._best_gbs, 1)}

    def wait_until_idle(self) -> None:
        """The device must do nothing while we do nothing."""
        deadline = time.monotonic() + self._idle_wait_s
        percent = self._backend.idle_percent()
        while percent is not None and percent > MOST_IDLE_PERCENT:
            if time.monotonic() > deadline:
                raise UnhealthyError(
                    f"The device is {percent} % busy while this process does nothing: another process "
                    "computes on it, or a kernel was left spinning."
                )
            time.sleep(0.2)
            percent = self._backend.idle_percent()

    def _slow(self, gbs: float) -> str | None:
        if gbs < LEAST_OF_BEST * self._best_gbs:
            return f"The canary reaches {gbs:.0f} GB/s where it reached {self._best_gbs:.0f} before."
        if self._sheet_gbs and gbs < LEAST_OF_SHEET * self._sheet_gbs:
            return f"The canary reaches {gbs:.0f} GB/s; this product has {self._sheet_gbs:.0f}."
        return None
