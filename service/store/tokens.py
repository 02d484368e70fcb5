"""Who may use the API?

Tokens are 32 random bytes, so a plain sha256 is enough to store them safely: there is nothing to
guess. The clear text is returned once, by `create`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from . import audit, clock, events
from .enums import AuditAction, Scope
from .errors import TokenEnded, TokenOfAnother
from .models import Token
from .records import TokenRecord
from .sql import changed, insert_ignoring

REVOKED = "token_revoked"
"""The event by which API processes hear that what they know of tokens is old; `owner` in it is whose streams
are over: `token:7`, or `session:3`."""

FROM_ENVIRONMENT = "ROOFTILE_TOKEN"
OF_A_HOME = "serve "
"""The names of the service's own tokens: that of an API that ROOFTILE_TOKEN was given to, and how those begin
that `rooftile serve` keeps in its home. By them an older one is found and revoked."""


def is_own(name: str) -> bool:
    """Whether only the service itself names tokens so."""
    return name == FROM_ENVIRONMENT or name.startswith(OF_A_HOME)


def new_secret() -> str:
    """32 random bytes as text that is safe in headers, URLs and cookies."""
    return secrets.token_urlsafe(32)


def digest(clear: str) -> str:
    """What is stored of a secret."""
    return sha256(clear.encode("utf-8", "surrogatepass")).hexdigest()


def scopes_of(scopes: Collection[Scope]) -> list[str]:
    """As they are stored: sorted plain words."""
    return sorted(Scope(scope).value for scope in scopes)


def create(
    s: Session, name: str, scopes: Collection[Scope], expires_in_s: float | None = None
) -> tuple[TokenRecord, str]:
    """A new token and its clear text."""
    now = clock.now(s)
    clear = new_secret()
    row = Token(
        name=name[:200],
        token_sha256=digest(clear),
        scopes=scopes_of(scopes),
        created_at=now,
        expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
    )
    s.add(row)
    s.flush()
    return _record(row), clear


def ensure(s: Session, name: str, scopes: Collection[Scope], clear: str) -> TokenRecord:
    """Makes a token of this clear text (ROOFTILE_TOKEN, the file in ROOFTILE_HOME) with these scopes.
    An older token of the same name with another text is revoked. TokenEnded for a text whose token has ended:
    else whoever has one that leaked would only have to wait for the next start. TokenOfAnother for a text
    that was given to somebody: the variable is a client's too, and its holder would be admin."""
    now = clock.now(s)
    hashed = digest(clear)
    values = {"name": name, "token_sha256": hashed, "scopes": scopes_of(scopes), "created_at": now}
    made = insert_ignoring(s, Token, values)
    row = s.scalars(_with(hashed)).one()
    if not _valid(row, now):
        when = row.revoked_at or row.expires_at
        assert when is not None
        raise TokenEnded(
            f"The token given as {name} was revoked or has expired ({when:%Y-%m-%d %H:%M} UTC), and stays so:"
            " set another ROOFTILE_TOKEN, or remove the file `token` in ROOFTILE_HOME to get a new one."
        )
    if (row.name != name and not is_own(row.name)) or row.scopes != scopes_of(scopes):
        raise TokenOfAnother(
            f"The token given as {name} is token {row.id} ({row.name!r}), which was made for a client:"
            " set another ROOFTILE_TOKEN for the service, or none."
        )
    row.name = name  # a home that moved, or whose token became ROOFTILE_TOKEN
    s.flush()
    others = (Token.name == name) & (Token.token_sha256 != hashed) & Token.revoked_at.is_(None)
    ended = s.scalars(select(Token.id).where(others).order_by(Token.id)).all()
    changed(s, update(Token).where(others).values(revoked_at=now))
    for token_id in ended:
        events.note(s, None, REVOKED, {"owner": f"token:{token_id}"})
    who = audit.service()
    for token_id in ended:
        audit.write(s, who, AuditAction.TOKEN_REVOKED, f"token:{token_id}", {"name": name})
    if made:
        told = {"name": name, "scopes": scopes_of(scopes)}
        audit.write(s, who, AuditAction.TOKEN_MADE, f"token:{row.id}", told)
    return _record(row)


def check(s: Session, clear: str) -> TokenRecord | None:
    """The token of this clear text if it is valid now."""
    # found by its hash: the time of the look-up tells nothing about the text
    row = s.scalar(_with(digest(clear)))
    if row is None or not _valid(row, clock.now(s)):
        return None
    return _record(row)


def was_made(s: Session, clear: str) -> bool:
    """Whether there ever was a token of this clear text: one that has ended is no guess."""
    return s.scalar(_with(digest(clear))) is not None


def lives(s: Session, token_id: int) -> bool:
    """Whether it is valid still."""
    row = s.get(Token, token_id, populate_existing=True)
    return row is not None and _valid(row, clock.now(s))


def touch(s: Session, token_id: int) -> None:
    """Writes that it was used now (call at most once a minute)."""
    changed(s, update(Token).where(Token.id == token_id).values(last_used_at=clock.now(s)))


def revoke(s: Session, token_id: int) -> bool:
    """Ends it; False if it is unknown or was ended before."""
    live = (Token.id == token_id) & Token.revoked_at.is_(None)
    ended = changed(s, update(Token).where(live).values(revoked_at=clock.now(s))) == 1
    if ended:
        events.note(s, None, REVOKED, {"owner": f"token:{token_id}"})
    return ended


def listing(s: Session) -> list[TokenRecord]:
    """All, oldest first."""
    return [_record(row) for row in s.scalars(select(Token).order_by(Token.id))]


def _with(hashed: str) -> Select[Token]:
    return select(Token).where(Token.token_sha256 == hashed).execution_options(populate_existing=True)


def _valid(row: Token, now: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def _record(row: Token) -> TokenRecord:
    return TokenRecord(
        id=row.id,
        name=row.name,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
