"""How do the tables get to the version of this code?"""

from __future__ import annotations


def upgrade(url: str, revision: str = "head") -> str:
    """Brings the database there and returns the revision it has now. One migrator at a time; others wait."""
    raise NotImplementedError


def downgrade(url: str, revision: str = "base") -> str | None:
    """Takes the database back; None: no tables of ours are left."""
    raise NotImplementedError


def current(url: str) -> str | None:
    """The revision the database has; None where it was never migrated."""
    raise NotImplementedError


def head() -> str:
    """The revision this code needs."""
    raise NotImplementedError


def check(url: str) -> None:
    """SchemaMismatch unless current(url) == head(); its text says what to do."""
    raise NotImplementedError
