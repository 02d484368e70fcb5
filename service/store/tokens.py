"""Who may use the API?

Tokens are 32 random bytes, so a plain sha256 is enough to store them safely: there is nothing to
guess. The clear text is returned once, by `create`.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from .enums import Scope
from .records import TokenRecord


def create(
    s: Session, name: str, scopes: Collection[Scope], expires_in_s: float | None = None
) -> tuple[TokenRecord, str]:
    """A new token and its clear text."""
    raise NotImplementedError


def ensure(s: Session, name: str, scopes: Collection[Scope], clear: str) -> TokenRecord:
    """Makes a token of this clear text valid (ROOFTILE_TOKEN of `serve`, the file in ROOFTILE_HOME).
    An older token of the same name with another text is revoked."""
    raise NotImplementedError


def check(s: Session, clear: str) -> TokenRecord | None:
    """The token of this clear text if it is valid now."""
    raise NotImplementedError


def touch(s: Session, token_id: int) -> None:
    """Writes that it was used now (call at most once a minute)."""
    raise NotImplementedError


def revoke(s: Session, token_id: int) -> bool:
    raise NotImplementedError


def listing(s: Session) -> list[TokenRecord]:
    raise NotImplementedError
