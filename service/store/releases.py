"""What is served, what was, and what changed since?

Primitives only: who wins, and when to publish, roll back or withdraw, is decided in service.jobs.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .enums import ReleaseState
from .records import NewRelease, Page, ReleaseFilter, ReleaseRecord


def create(s: Session, new: NewRelease) -> ReleaseRecord:
    """Writes a candidate with the next generation of its (problem, device, policy)."""
    raise NotImplementedError


def publish(s: Session, release_id: int, reason: str = "", *, over_pin: bool = False) -> ReleaseRecord:
    """Serves this release (a candidate, or for a rollback a superseded one); the one served until now
    becomes superseded. ReleasePinned if that one is pinned, unless `over_pin`."""
    raise NotImplementedError


def supersede(s: Session, release_id: int, reason: str = "") -> ReleaseRecord:
    """Stops serving this release without another in its place; may be published again later."""
    raise NotImplementedError


def withdraw(s: Session, release_id: int, reason: str) -> ReleaseRecord:
    """Takes it back for good; pinned or not. Withdrawing twice is a no-op."""
    raise NotImplementedError


def pin(s: Session, release_id: int, pinned: bool, reason: str = "") -> ReleaseRecord:
    """Sets or clears the pin."""
    raise NotImplementedError


def get(s: Session, release_id: int) -> ReleaseRecord | None:
    raise NotImplementedError


def best(s: Session, problem_key: str, device_key: str, policy_key: str) -> ReleaseRecord | None:
    """The published one."""
    raise NotImplementedError


def history(s: Session, problem_key: str, device_key: str, policy_key: str) -> list[ReleaseRecord]:
    """All generations, newest first."""
    raise NotImplementedError


def for_problem(
    s: Session, problem_key: str, policy_key: str | None = None, arch: str | None = None
) -> list[ReleaseRecord]:
    """Published ones of this problem on any device (of an arch): near misses, `foreign` answers."""
    raise NotImplementedError


def for_layer(
    s: Session, layer_key: str, device_key: str, policy_key: str | None = None
) -> list[ReleaseRecord]:
    """Published ones of this layer at any size on one device: dispatch tables, `bucket` answers."""
    raise NotImplementedError


def listing(
    s: Session, where: ReleaseFilter | None = None, *, after: tuple[int] | None = None, limit: int = 50
) -> Page[ReleaseRecord]:
    """Newest first by id, filtered."""
    raise NotImplementedError


def changes(
    s: Session, *, after: int = 0, device_key: str | None = None, limit: int = 200
) -> list[ReleaseRecord]:
    """What changed after `change_id` `after` (a client's bulk refresh), oldest change first: published,
    superseded and withdrawn ones, each once with its present state."""
    raise NotImplementedError


def quarantined(s: Session) -> list[ReleaseRecord]:
    """Published ones whose (schedule, toolchain) is in quarantine: to be withdrawn."""
    raise NotImplementedError


def counts(s: Session) -> dict[ReleaseState, int]:
    raise NotImplementedError
