"""What can go wrong in a search?

    RooftileError
    └── SearchError
        └── NoSpace     the limits asked for leave no legal schedule
"""

from __future__ import annotations

from rooftile.errors import RooftileError


class SearchError(RooftileError):
    """A search cannot go on."""


class NoSpace(SearchError):
    """The parameter limits of the job leave no legal schedule."""
