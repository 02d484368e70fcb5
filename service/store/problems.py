"""Which problems are known?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .records import Page, ProblemRecord


def put(s: Session, problem: ProblemRecord) -> None:
    """Stores it unless its key is known."""
    raise NotImplementedError


def get(s: Session, key: str) -> ProblemRecord | None:
    raise NotImplementedError


def of_layer(s: Session, layer_key: str) -> list[ProblemRecord]:
    raise NotImplementedError


def listing(
    s: Session, *, op: str | None = None, after: tuple[str] | None = None, limit: int = 50
) -> Page[ProblemRecord]:
    """By key."""
    raise NotImplementedError
