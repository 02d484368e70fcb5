"""How long may somebody be silent before others take over? ROOFTILE_LEASE_S, and what follows from it.

All processes of a service must have the same value: a worker renews by its own, and is judged by the others'.
"""

from __future__ import annotations

import os
from functools import cache

from service.errors import SettingsError

VARIABLE = "ROOFTILE_LEASE_S"
DEFAULT_S = 20.0
LEAST_S, MOST_S = 4.0, 600.0


def lease_s() -> float:
    """Seconds after which a worker that says nothing loses its work. SettingsError where it is no time."""
    return _seconds(os.environ.get(VARIABLE))


def renew_s() -> float:
    """How often a worker says that it still works on what it holds."""
    return lease_s() / 20


def heartbeat_s() -> float:
    """How often a worker says that it lives."""
    return lease_s() / 4


def alive_s() -> float:
    """A worker that reported within this time counts as alive."""
    return 1.5 * lease_s()


def device_lease_s() -> float:
    """For how long a device is a worker's own that says nothing."""
    return 1.5 * lease_s()


def job_lease_s() -> float:
    """For how long a job is one search worker's: longer than any question to the proposer takes."""
    return 0.75 * lease_s()


def reaper_lease_s() -> float:
    """For how long giving back what the dead held is one search worker's task."""
    return lease_s() / 2


def reap_every_s() -> float:
    """How often that is done."""
    return lease_s() / 10


@cache
def _seconds(text: str | None) -> float:
    if not text:
        return DEFAULT_S
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not LEAST_S <= value <= MOST_S:
        raise SettingsError(f"{VARIABLE}: must be {LEAST_S:.0f} to {MOST_S:.0f} seconds.")
    return value
