"""Who is asking, and what may they do?

A program sends a bearer token. A person's browser has a session cookie, given for a one-time link; with
a cookie, whatever is not a GET needs the session's CSRF token too (the cookie is SameSite=Strict, so
this is the second lock). Scopes: admin holds submit, submit holds read.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request

from service.api.errors import ForbiddenError, UnauthorizedError, UnavailableError
from service.api.query import check_headers, check_query
from service.api.state import AppState, state_of
from service.store import logins, tokens
from service.store.enums import Scope
from service.store.records import By, TokenRecord

COOKIE = "rooftile_session"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf"
REALM = 'Bearer realm="rooftile"'
_MAX_TOKEN = 512
_TOUCH_EVERY_S = 60.0

_HOLDS: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.SUBMIT, Scope.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a token, or a browser session."""

    owner: str
    """`token:7` or `session:3`: whose Idempotency-Keys these are."""
    scopes: frozenset[Scope]
    token_id: int | None
    session_id: int | None
    csrf: str | None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    def may_steer(self, job_token_id: int | None) -> bool:
        """Its own jobs with submit, every job with admin."""
        return self.may(Scope.ADMIN) or (self.may(Scope.SUBMIT) and job_token_id == self.token_id)

    @property
    def shown_scopes(self) -> list[str]:
        return [str(scope) for scope in Scope if scope in self.scopes]


def widen(scopes: frozenset[Scope]) -> frozenset[Scope]:
    return frozenset[Scope]().union(*(_HOLDS[scope] for scope in scopes))


def identify(request: Request) -> Principal | None:
    """The principal of the token or cookie, None where there is neither; 401 for a wrong one."""
    state = state_of(request)
    if state.tail.away:
        # at once: twenty threads that each wait for a connection would hold up everybody else for minutes
        raise UnavailableError("The database does not answer; ask again.", headers={"Retry-After": "2"})
    header = request.headers.get("authorization")
    if header is not None:
        return _of_token(state, header, _host(request))
    cookie = request.cookies.get(COOKIE)
    if not cookie or len(cookie) > _MAX_TOKEN:
        return None
    with state.database.read() as s:
        session = logins.check(s, cookie)
    if session is None:
        return None
    return Principal(
        owner=f"session:{session.id}",
        scopes=widen(session.scopes),
        token_id=None,
        session_id=session.id,
        csrf=session.csrf,
    )


def _of_token(state: AppState, header: str, host: str | None) -> Principal:
    kind, _, clear = header.partition(" ")
    clear = clear.strip()
    if kind.lower() != "bearer" or not clear or len(clear) > _MAX_TOKEN or not clear.isascii():
        raise _unauthorized("The Authorization header has to be `Bearer TOKEN`.", "invalid_request")
    hashed, epoch, asked_s = tokens.digest(clear), state.known_tokens.epoch(), time.monotonic()
    _check_guesser(state, hashed, host)
    with state.database.read() as s:
        token = tokens.check(s, clear)
        guess = token is None and not tokens.was_made(s, clear)
    if token is None:
        state.known_tokens.forget(hashed, host)
        if guess:
            state.limits.guessed(host)
        raise _unauthorized("This token is unknown, expired or revoked.", "invalid_token")
    state.known_tokens.keep(hashed, token, epoch, asked_s)
    state.known_tokens.let_in(hashed, host)
    _touch(state, token.id)
    return _principal(token)


def _check_guesser(state: AppState, hashed: str, host: str | None) -> None:
    """After too many wrong ones an address learns of no other whether it is right; its users go on."""
    if not state.known_tokens.seen(hashed, host):
        state.limits.check_guesser(host)


def _host(request: Request) -> str | None:
    return None if request.client is None else request.client.host


def by(request: Request, principal: Principal) -> By:
    """Whom the audit names for what this request does."""
    return By(actor=principal.owner, origin=_host(request) or "unknown")


def _principal(token: TokenRecord) -> Principal:
    return Principal(
        owner=f"token:{token.id}", scopes=widen(token.scopes), token_id=token.id, session_id=None, csrf=None
    )


class Standing:
    """Whether somebody who was let in may stay: for an answer that lasts."""

    def __init__(self, state: AppState, principal: Principal) -> None:
        self._state, self._principal = state, principal
        self._epoch, self._asked_s = state.known_tokens.epoch(), time.monotonic()

    def doubtful(self, most_s: float) -> bool:
        """Whether some token or session was ended since it asked, or that is so long ago; costs nothing."""
        late = time.monotonic() - self._asked_s >= most_s
        return late or self._epoch != self._state.known_tokens.epoch()

    def holds(self) -> bool:
        """Asks the database, in a thread. What runs out in time is seen by this alone."""
        self._epoch, self._asked_s = self._state.known_tokens.epoch(), time.monotonic()
        who = self._principal
        with self._state.database.read() as s:
            if who.session_id is not None:
                return logins.lives(s, who.session_id)
            return who.token_id is not None and tokens.lives(s, who.token_id)


def _touch(state: AppState, token_id: int) -> None:
    """Note that a token is in use, at most once a minute, so that reads stay reads."""
    now = time.monotonic()
    if now - state.touched.get(token_id, float("-inf")) >= _TOUCH_EVERY_S:
        state.touched[token_id] = now
        with state.database.begin() as s:
            tokens.touch(s, token_id)


def _unauthorized(detail: str, error: str | None = None) -> UnauthorizedError:
    challenge = REALM if error is None else f'{REALM}, error="{error}"'
    return UnauthorizedError(
        detail, field="Authorization", allowed="Bearer TOKEN", headers={"WWW-Authenticate": challenge}
    )


def check_scope(principal: Principal, scope: Scope) -> None:
    if not principal.may(scope):
        raise ForbiddenError(
            f"This needs the scope {scope}.",
            field="Authorization",
            value=principal.shown_scopes,
            allowed=[str(scope)],
            headers={"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{scope}"'},
        )


def check_csrf(principal: Principal, given: str | None) -> None:
    """Refuse a change by cookie that does not carry the session's CSRF token."""
    if principal.csrf is None:
        return  # a bearer token is not sent by a browser on its own
    if given is None or not hmac.compare_digest(given.encode("utf-8", "replace"), principal.csrf.encode()):
        raise ForbiddenError(
            "This form has no valid CSRF token; load the page again.",
            field=CSRF_FIELD,
            allowed="the page's token",
        )


def require(scope: Scope) -> Callable[[Request], Principal]:
    """Dependency of a /v1 endpoint: the principal, who has this scope and asks by parameters there are."""

    def dependency(request: Request) -> Principal:
        principal = _checked(request, identify(request), scope)
        _count(request, principal)
        return principal

    return dependency


async def admit(request: Request, scope: Scope) -> Principal:
    """As the dependency of `require`, for a lookup on the event loop: a token that was asked for a moment ago
    costs neither a thread nor a query."""
    header, state = request.headers.get("authorization"), state_of(request)
    known = None
    if header is not None and header[:7].lower() == "bearer ":
        hashed = tokens.digest(header[7:].strip())
        known = state.known_tokens.get(hashed)
    if known is not None:
        _check_guesser(state, hashed, _host(request))
        principal = _checked(request, _principal(known), scope)
    else:
        principal = _checked(request, await run_in_threadpool(identify, request), scope)
    limits = state.limits
    if not principal.may(Scope.ADMIN) and not limits.prepaid(principal.owner):
        await run_in_threadpool(limits.request, principal.owner)
    return principal


def _count(request: Request, principal: Principal) -> None:
    """One more request of this token; TooManyError over its rate."""
    if not principal.may(Scope.ADMIN):
        state_of(request).limits.request(principal.owner)


def _checked(request: Request, principal: Principal | None, scope: Scope) -> Principal:
    if principal is None:
        raise _unauthorized("This needs a bearer token.")
    if request.method not in ("GET", "HEAD"):
        check_csrf(principal, request.headers.get(CSRF_HEADER))
    check_scope(principal, scope)
    check_headers(request)
    check_query(request)
    return principal


def needs(scope: Scope) -> Any:
    """`Depends` on `require(scope)`, for the signature or the `dependencies` of a route."""
    return Depends(require(scope))
