"""Who may see a page? Whoever is not logged in is sent to the page that says how."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from service.api.auth import Principal, check_scope, identify
from service.api.errors import UnauthorizedError
from service.store.enums import Scope


class LoginNeeded(Exception):  # not an error: it is answered by a redirect
    """Raised by pages of the dashboard."""


def viewer(request: Request) -> Principal:
    """Dependency of every page."""
    try:
        principal = identify(request)
    except UnauthorizedError:
        principal = None
    if principal is None:
        raise LoginNeeded
    check_scope(principal, Scope.READ)
    return principal


Viewer = Annotated[Principal, Depends(viewer)]
