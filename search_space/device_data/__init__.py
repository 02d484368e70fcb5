"""What is known of a CPU model before anything is measured on it?"""

from __future__ import annotations

from search_space.device_data.amd import AMD
from search_space.device_data.cpu_model import GENERIC, CpuModel
from search_space.device_data.intel import INTEL

__all__ = ["GENERIC", "CpuModel", "cpu_model"]


def cpu_model(vendor: str, family: int, model: int) -> CpuModel | None:
    """The entry for a CPU, or None where there is none."""
    # Hygon's Dhyana is AMD's first Zen under a family number of its own.
    table = {"intel": INTEL, "amd": AMD, "hygon": AMD}.get(vendor, ())
    return next(
        (e for e in table if e.family == family and any(lo <= model <= hi for lo, hi in e.models)), None
    )
