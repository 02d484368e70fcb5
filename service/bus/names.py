"""What are the queues and tasks called?"""

from __future__ import annotations

from enum import StrEnum

# No job may ask for more seconds than this (service.jobs.request says so too). The broker's visibility
# timeout lies above it (CE-01).
MAX_JOB_S = 30 * 24 * 3600
VISIBILITY_TIMEOUT_S = MAX_JOB_S + 3600
# A doorbell older than this says nothing the sweep has not found: workers drop it unread.
BELL_EXPIRES_S = 60


class Kind(StrEnum):
    """Who is rung."""

    SEARCH = "search"
    """A job may move: the search workers advance it."""
    COMPILE = "compile"
    """Trials were proposed: a compile worker takes them."""
    EMULATE = "emulate"
    """Compiled CUDA trials wait for their verdict by emulation."""
    MEASURE = "measure"
    """Compiled trials or a race wait for the worker of one device."""


def measure_queue(device_key: str) -> str:
    """The queue of the one worker that owns this device."""
    return f"{Kind.MEASURE}.{device_key}"


def queue_of(kind: Kind | str, device_key: str | None = None) -> str:
    """The queue that is rung; `measure` needs the device."""
    if Kind(kind) is Kind.MEASURE:
        if not device_key:
            raise ValueError("the queue of measure needs a device key")
        return measure_queue(device_key)
    return str(Kind(kind))


_TASKS = {
    Kind.SEARCH: "search.advance",
    Kind.COMPILE: "compile.ring",
    Kind.EMULATE: "emulate.ring",
    Kind.MEASURE: "measure.ring",
}


def task_of(kind: Kind | str) -> str:
    """The name of the Celery task that rings this kind."""
    return _TASKS[Kind(kind)]
