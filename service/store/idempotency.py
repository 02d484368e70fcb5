"""Was this request answered before?"""

from __future__ import annotations

from sqlalchemy.orm import Session

from .records import IdempotencyRecord, Json


def begin(s: Session, owner: str, key: str, body_sha256: str) -> IdempotencyRecord | None:
    """None: go on (the key is taken until this transaction ends, others wait); else what was answered.
    IdempotencyConflict where the body was another. `owner` is who the key belongs to ("token:7")."""
    raise NotImplementedError


def finish(s: Session, owner: str, key: str, status: int, response: Json) -> None:
    """Keeps the answer, in the same transaction as what it tells of."""
    raise NotImplementedError


def forget(s: Session, older_than_s: float = 7 * 86400.0) -> int:
    raise NotImplementedError
