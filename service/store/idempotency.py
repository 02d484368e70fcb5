"""Was this request answered before?"""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256

from sqlalchemy import delete, text, update
from sqlalchemy.orm import Session

from . import clock
from .errors import Conflict, IdempotencyConflict
from .models import IdempotencyKey
from .records import IdempotencyRecord, Json
from .sql import changed, insert_ignoring


def begin(s: Session, owner: str, key: str, body_sha256: str) -> IdempotencyRecord | None:
    """None: go on (the key is taken until this transaction ends); else what was answered, or nothing yet
    where another request has the key now. IdempotencyConflict where the body was another. `owner` is who the
    key belongs to ("token:7")."""
    if not _mine(s, owner, key):
        return IdempotencyRecord(key=key, status=None, response=None)
    values = {"owner": owner, "key": key, "body_sha256": body_sha256, "created_at": clock.now(s)}
    if insert_ignoring(s, IdempotencyKey, values):
        return None
    row = s.get(IdempotencyKey, (owner, key), populate_existing=True)
    if row is None:
        raise Conflict(f"The request with Idempotency-Key {key!r} ended at this moment.")
    if row.body_sha256 != body_sha256:
        raise IdempotencyConflict(key)
    return IdempotencyRecord(key=row.key, status=row.status, response=row.response)


def _mine(s: Session, owner: str, key: str) -> bool:
    """Whether no other request has the key at this moment. On SQLite there is one writer at a time anyway. A
    process that dies loses the lock with its transaction, so a key is never in progress for ever."""
    if s.get_bind().dialect.name != "postgresql":
        return True
    name = sha256(f"{owner}\0{key}".encode()).digest()[:8]
    number = int.from_bytes(name, "big", signed=True)
    return bool(s.scalar(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": number}))


def finish(s: Session, owner: str, key: str, status: int, response: Json) -> None:
    """Keeps the answer, in the same transaction as what it tells of."""
    mine = (IdempotencyKey.owner == owner) & (IdempotencyKey.key == key)
    changed(s, update(IdempotencyKey).where(mine).values(status=status, response=dict(response)))


def forget(s: Session, older_than_s: float = 86400.0) -> int:
    """Drops old answers; returns how many."""
    since = clock.now(s) - timedelta(seconds=older_than_s)
    return changed(s, delete(IdempotencyKey).where(IdempotencyKey.created_at < since))
