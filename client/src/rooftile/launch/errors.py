"""Which errors does the launcher raise, and which of them may be answered with the Baseline instead?

LaunchError (rooftile.errors)   the call is wrong: a shape, a dtype, a missing operand, out over an input
└── UnsuitableError             the call is right, but this plan cannot do it: strides, alignment, ranges
ArtifactError (rooftile.errors) the shared object does not load, or lacks what the plan names
"""

from __future__ import annotations

from rooftile.errors import ArtifactError, LaunchError


class UnsuitableError(LaunchError):
    """Legal for the problem, not for this plan. A Kernel that has a Baseline runs that and counts it."""


__all__ = ["ArtifactError", "LaunchError", "UnsuitableError"]
