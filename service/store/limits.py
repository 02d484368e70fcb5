"""How long may the database keep a process waiting, and how many connections may it hold?

Set by the environment. The defaults suit both shapes; an operator sets them alike for all processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from service.errors import SettingsError

PREFIX = "ROOFTILE_DATABASE_"

# field -> least and most that is allowed
_RANGES: dict[str, tuple[float, float]] = {
    "connect_s": (1, 60),
    "statement_s": (1, 3600),
    "lock_s": (0.1, 600),
    "idle_s": (1, 3600),
    "silence_s": (1, 600),
    "pool": (1, 1000),
    "pool_wait_s": (0.1, 60),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Each is the variable ROOFTILE_DATABASE_ and its name: ROOFTILE_DATABASE_STATEMENT_S."""

    connect_s: float = 5.0
    """Until a connection is there."""
    statement_s: float = 30.0
    """One statement; longer ones are ended by Postgres."""
    lock_s: float = 5.0
    """Waiting for one lock."""
    idle_s: float = 60.0
    """A transaction in which nothing happens; Postgres ends its connection, so that a leak is no outage."""
    silence_s: float = 15.0
    """Bytes that nobody acknowledges: after it a connection whose other end is gone is dropped."""
    pool: float = 1000
    """Most connections of one process, whatever its kind would take."""
    pool_wait_s: float = 5.0
    """Waiting for a connection of the own pool."""


def limits() -> Limits:
    """Those of the environment. SettingsError names the variable that is wrong."""
    given = {}
    for field in fields(Limits):
        variable = PREFIX + field.name.upper()
        text = os.environ.get(variable)
        if text:
            given[field.name] = _number(variable, text, *_RANGES[field.name])
    return Limits(**given)


def _number(variable: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:  # NaN is neither
        raise SettingsError(f"{variable}: must be a number from {least:g} to {most:g}.")
    return value
