"""What does the service answer when asked for the best kernel of a problem?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rooftile.errors import ServiceUnreachable

LEVELS = ("exact", "stale", "foreign", "bucket", "default", "baseline", "none")


@dataclass(frozen=True)
class Best:
    """One lookup. `level` says how sure the answer is and `reason` why; with a kernel of ours there are
    `artifact` and `pool` (sha256) and `launch` (a LaunchPlan's JSON)."""

    level: str
    reason: str
    problem_key: str
    device: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    release_id: int | None = None
    arch: str | None = None
    family: str | None = None
    schedule: Mapping[str, Any] | None = None
    schedule_text: str | None = None
    time_us: float | None = None
    baseline_time_us: float | None = None
    artifact: str | None = None
    pool: str | None = None
    launch: Mapping[str, Any] | None = None
    toolchain: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The answer as it came, with members that this client does not know."""

    @property
    def speedup(self) -> float | None:
        """Baseline time over our time, raced in one session; None where either is missing."""
        if self.time_us is None or self.baseline_time_us is None or self.time_us <= 0:
            return None
        return self.baseline_time_us / self.time_us

    @classmethod
    def from_json(cls, data: object) -> Best:
        """From the body of POST /v1/best. Newer services may say more; less is no answer of a service."""
        if not isinstance(data, Mapping) or not all(
            isinstance(data.get(n), str) for n in ("level", "reason", "problem_key")
        ):
            raise ServiceUnreachable("the answer to /v1/best has no level, reason and problem_key")
        if data["level"] not in LEVELS:
            raise ServiceUnreachable(
                f"the service answers with a level this client does not know: {data['level']!r}"
            )
        known = {f.name for f in fields(cls)} - {"data"}
        return cls(**{name: value for name, value in data.items() if name in known}, data=dict(data))
