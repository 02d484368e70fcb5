"""Which release of the service does this process run, and by which periods does it go?"""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

from service.periods import lease_s


@cache
def own_version() -> str:
    """As it is installed; empty where it runs from a folder that never was."""
    try:
        return importlib.metadata.version("rooftile-server")
    except importlib.metadata.PackageNotFoundError:
        return ""


def told() -> dict[str, Any]:
    """What a worker's row says of it, for the doctor to compare."""
    return {"version": own_version(), "lease_s": lease_s()}
