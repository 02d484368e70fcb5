"""How does a person's browser get and keep access?"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from . import clock, events
from .enums import Scope
from .models import Login, LoginCode
from .records import BrowserSession
from .sql import changed
from .tokens import REVOKED, digest, new_secret, scopes_of


def create_code(s: Session, scopes: Collection[Scope], expires_in_s: float = 600.0) -> str:
    """A code for one login; returns its clear text."""
    now = clock.now(s)
    code = new_secret()
    s.add(
        LoginCode(
            code_sha256=digest(code),
            scopes=scopes_of(scopes),
            created_at=now,
            expires_at=now + timedelta(seconds=expires_in_s),
        )
    )
    s.flush()
    return code


def redeem(s: Session, code: str, session_s: float = 30 * 86400.0) -> tuple[BrowserSession, str] | None:
    """Spends the code: (session, clear text of its cookie); None if it is unknown, spent or too old."""
    now = clock.now(s)
    fresh = LoginCode.used_at.is_(None) & (LoginCode.expires_at > now)
    good = (LoginCode.code_sha256 == digest(code)) & fresh
    # the update decides: of two that come with the same code, one gets a session
    if changed(s, update(LoginCode).where(good).values(used_at=now)) != 1:
        return None
    spent = s.scalars(select(LoginCode).where(LoginCode.code_sha256 == digest(code))).one()
    cookie = new_secret()
    row = Login(
        cookie_sha256=digest(cookie),
        csrf=new_secret(),
        scopes=spent.scopes,
        created_at=now,
        expires_at=now + timedelta(seconds=session_s),
    )
    s.add(row)
    s.flush()
    return _record(row), cookie


def check(s: Session, cookie: str) -> BrowserSession | None:
    """The session of this cookie if it is valid now."""
    row = s.scalar(
        select(Login)
        .where(
            Login.cookie_sha256 == digest(cookie),
            Login.revoked_at.is_(None),
            Login.expires_at > clock.now(s),
        )
        .execution_options(populate_existing=True)
    )
    return None if row is None else _record(row)


def lives(s: Session, session_id: int) -> bool:
    """Whether it is valid still."""
    row = s.get(Login, session_id, populate_existing=True)
    return row is not None and row.revoked_at is None and row.expires_at > clock.now(s)


def revoke(s: Session, session_id: int) -> bool:
    """Logs out; False if it was out already."""
    live = (Login.id == session_id) & Login.revoked_at.is_(None)
    ended = changed(s, update(Login).where(live).values(revoked_at=clock.now(s))) == 1
    if ended:
        events.note(s, None, REVOKED, {"owner": f"session:{session_id}"})
    return ended


def revoke_all(s: Session) -> list[int]:
    """Logs every browser out, also one that has a link and did not use it yet; returns the sessions."""
    now = clock.now(s)
    # first the codes: a session that one of them made meanwhile is seen below
    changed(s, update(LoginCode).where(LoginCode.used_at.is_(None)).values(used_at=now))
    live = Login.revoked_at.is_(None) & (Login.expires_at > now)
    ids = s.scalars(select(Login.id).where(live).order_by(Login.id)).all()
    return [one for one in ids if revoke(s, one)]


def forget(s: Session) -> int:
    """Drops codes and sessions that ran out; returns how many."""
    now = clock.now(s)
    codes = changed(s, delete(LoginCode).where(LoginCode.expires_at < now))
    return codes + changed(s, delete(Login).where(Login.expires_at < now))


def _record(row: Login) -> BrowserSession:
    scopes = frozenset(Scope(scope) for scope in row.scopes)
    return BrowserSession(id=row.id, csrf=row.csrf, scopes=scopes, expires_at=row.expires_at)
