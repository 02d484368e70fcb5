"""Which errors can the client raise, and what does each carry?

RooftileError
├── FieldError            a field of a request is wrong (also a ValueError): field, value, allowed, nearest
├── PlanError             a LaunchPlan is malformed or cannot be evaluated (also a ValueError)
├── DeviceError           the machine at hand cannot be described or has no kernels of ours
├── ServiceError          the service answered with an error: status and its problem+json
├── ServiceUnreachable    no answer from the service
├── ArtifactError         bytes that run are missing, do not match their hash, or cannot be loaded
└── LaunchError           a kernel was called with something its plan cannot do
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final


class RooftileError(Exception):
    """Root of everything this package raises on purpose."""


class _Missing:
    """The value of a field that was not given at all."""

    def __repr__(self) -> str:
        return "missing"


MISSING: Final = _Missing()

# Values are echoed into messages and HTTP answers: a hostile 10 MB string must not be.
_SHOWN_CHARACTERS = 80


def show_value(value: object) -> str:
    """How a refused value appears in a message: short, one line, ASCII."""
    if isinstance(value, _Missing):
        return "missing"
    if isinstance(value, (dict, list, tuple)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer beyond Python's digit limit
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


class FieldError(RooftileError, ValueError):
    """One field is wrong. `field` is its dotted JSON name, `allowed` says in words what would be right,
    `nearest` is the closest supported value when there is one."""

    def __init__(self, field: str, value: object, allowed: str, nearest: object = None) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        self.nearest = nearest
        if isinstance(value, _Missing):
            text = f"{field} is missing: {allowed}"
        else:
            text = f"{field}: {show_value(value)} is not allowed: {allowed}"
        if nearest is not None:
            text += f"; nearest: {nearest if isinstance(nearest, str) else ascii(nearest)}"
        super().__init__(text)

    def to_json(self) -> dict[str, Any]:
        """The members an HTTP answer shows; `value` is safe in strict JSON."""
        value: object = self.value
        if isinstance(value, _Missing):
            value = None
        elif isinstance(value, bool) or value is None:
            pass
        elif isinstance(value, int):
            # 2^53: beyond it JSON readers round, and a huge integer is text anyway.
            value = value if abs(value) <= 2**53 else show_value(value)
        elif isinstance(value, float):
            value = value if math.isfinite(value) else repr(value)
        elif isinstance(value, str):
            value = value if len(value) <= _SHOWN_CHARACTERS else value[: _SHOWN_CHARACTERS - 3] + "..."
        else:
            value = show_value(value)
        return {"field": self.field, "value": value, "allowed": self.allowed, "nearest": self.nearest}


class PlanError(RooftileError, ValueError):
    """A LaunchPlan is malformed, or its expressions cannot be evaluated for these sizes."""


class DeviceError(RooftileError):
    """The machine at hand cannot be described, or no kernel of ours can run on it."""


class ServiceError(RooftileError):
    """The service answered with an error. `problem` is its problem+json (or an empty mapping)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        title = self.problem.get("detail") or self.problem.get("title") or "no detail given"
        super().__init__(f"the service answered {status}: {title}")


class ServiceUnreachable(RooftileError):
    """No answer from the service: refused, timed out, or not a Rooftile service."""


class ArtifactError(RooftileError):
    """The bytes of a kernel are missing, do not match their hash, or cannot be loaded."""


class LaunchError(RooftileError):
    """A kernel was called with something its plan cannot do."""
