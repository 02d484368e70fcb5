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

import itertools
import math
from collections.abc import Mapping, Sized
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
_SHOWN_MEMBERS = 6
_SHOWN_LEVELS = 3


def show_value(value: object) -> str:
    """How a refused value appears in a message: short, one line, ASCII. Of a list or object its first
    members; where they are not all, its length as well."""
    text = _shown(value, _SHOWN_LEVELS)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    if isinstance(value, (dict, list, tuple)):
        size = f" ({_kind(value)})"
        return text[: _SHOWN_CHARACTERS - 3 - len(size)] + "..." + size
    return text[: _SHOWN_CHARACTERS - 3] + "..."


def _shown(value: object, levels: int) -> str:
    """As show_value, of bounded work but not yet of bounded length."""
    if isinstance(value, _Missing):
        return "missing"
    if isinstance(value, (dict, list, tuple)):
        if value and not levels:
            return _kind(value)
        first = itertools.islice(value.items() if isinstance(value, dict) else value, _SHOWN_MEMBERS)
        if isinstance(value, dict):
            texts = [f"{_shown(name, 0)}: {_shown(one, levels - 1)}" for name, one in first]
        else:
            texts = [_shown(one, levels - 1) for one in first]
        if len(value) > _SHOWN_MEMBERS:
            texts.append(f"... ({_kind(value)})")
        return ("{%s}" if isinstance(value, dict) else "[%s]") % ", ".join(texts)
    try:
        return ascii(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an integer beyond Python's digit limit
        return f"a {type(value).__name__}"


def _kind(value: Sized) -> str:
    return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"


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
