"""How does a person log in and out: a link that works once, a cookie no script can read?"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.api.auth import COOKIE, by, check_csrf
from service.api.state import state_of
from service.store import audit, logins
from service.store.enums import AuditAction
from service.store.records import BrowserSession, By
from service.web.guard import Viewer
from service.web.templates_env import page

router = APIRouter(include_in_schema=False)

SESSION_S = 30 * 86400
_REFUSED = "This link has been used, is older than ten minutes, or was never made. Get a new one."


@router.get("/login")
def login(request: Request, code: Annotated[str | None, Query(max_length=200)] = None) -> Response:
    """With a code: log this browser in and show the dashboard. Without: say how to get a link."""
    if code is None:
        return page("login.html", None, refused=None)
    state = state_of(request)
    usable = code.isascii() and code.isprintable()
    host = None if request.client is None else request.client.host
    state.limits.check_guesser(host)
    spent = state.database.run(lambda s: _redeem(s, code, host)) if usable else None
    if spent is None:
        state.limits.guessed(host)
        return page("login.html", None, status=403, refused=_REFUSED)
    _session, cookie = spent
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie(COOKIE, cookie, **_cookie_options(request), max_age=SESSION_S)
    return answer


def _redeem(s: Session, code: str, host: str | None) -> tuple[BrowserSession, str] | None:
    spent = logins.redeem(s, code, SESSION_S)
    if spent is None:
        # who guesses is in the log of the limits; the audit must not grow by what strangers send
        return None
    session = spent[0]
    told = {"scopes": sorted(str(scope) for scope in session.scopes)}
    who = By(f"session:{session.id}", host or "unknown")
    audit.write(s, who, AuditAction.LOGIN, f"session:{session.id}", told)
    return spent


@router.post("/logout")
def logout(request: Request, principal: Viewer, csrf: Annotated[str, Form(max_length=200)] = "") -> Response:
    """End this browser's session."""
    check_csrf(principal, csrf)
    if principal.session_id is not None:
        session_id = principal.session_id

        def end(s: Session) -> None:
            if logins.revoke(s, session_id):
                audit.write(s, by(request, principal), AuditAction.LOGOUT, f"session:{session_id}")

        state_of(request).database.run(end)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, **_cookie_options(request))
    return answer


def _cookie_options(request: Request) -> dict[str, Any]:
    # Plain http on the loopback interface is the default shape, and there Secure would lose the cookie.
    return {"httponly": True, "samesite": "strict", "path": "/", "secure": request.url.scheme == "https"}
