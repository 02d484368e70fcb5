"""What came of a peer's compile, and what did it cost?"""

from __future__ import annotations

import resource
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiled:
    """One compile: CPU-seconds of this process and of the compilers it started, and what came of it."""

    cpu_s: float
    ptx: str
    cubin_bytes: int


def cpu_s() -> float:
    """CPU-seconds of this process and its finished children so far."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
