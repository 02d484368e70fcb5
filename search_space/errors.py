"""Which errors can the search space raise?

RooftileError (rooftile.errors)
├── FieldError            a schedule's or device's text is wrong (from rooftile.errors)
└── SpaceError            asked for something that the search space does not have
    ├── UnknownFamily     no family of that name, or one that is not built yet
    ├── UnknownDevice     no data at all for that device
    └── EmptySpace        no legal schedule was found, with the violations of the default one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooftile.errors import RooftileError

if TYPE_CHECKING:
    from search_space.violation import Violation


class SpaceError(RooftileError):
    """Asked for something that the search space does not have."""


class UnknownFamily(SpaceError):
    """No family of that name, or one that is not built yet."""


class UnknownDevice(SpaceError):
    """No data at all for that device."""


class EmptySpace(SpaceError):
    """No legal schedule was found."""

    def __init__(self, family: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        reasons = "; ".join(v.message for v in self.violations) or "none was found"
        super().__init__(f"{family} has no legal schedule here: {reasons}")
