"""How does a person's browser get and keep access?"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from .enums import Scope
from .records import BrowserSession


def create_code(s: Session, scopes: Collection[Scope], expires_in_s: float = 600.0) -> str:
    """A code for one login; returns its clear text."""
    raise NotImplementedError


def redeem(s: Session, code: str, session_s: float = 30 * 86400.0) -> tuple[BrowserSession, str] | None:
    """Spends the code: (session, clear text of its cookie); None if it is unknown, spent or too old."""
    raise NotImplementedError


def check(s: Session, cookie: str) -> BrowserSession | None:
    """The session of this cookie if it is valid now."""
    raise NotImplementedError


def revoke(s: Session, session_id: int) -> bool:
    """Logs out."""
    raise NotImplementedError
