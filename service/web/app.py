"""How does the dashboard become part of the application?"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from service.api.errors import UnauthorizedError
from service.api.handlers import respond
from service.web import login, pages
from service.web.guard import LoginNeeded
from service.web.templates_env import STATIC, page

# Everything else is the dashboard's, and its errors are pages.
_MACHINE = ("/v1/", "/healthz", "/readyz", "/openapi.json", "/static/")


class _Static(StaticFiles):
    """Files whose address holds their hash may be kept for good."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        kept = "public, max-age=31536000, immutable" if b"v=" in scope["query_string"] else "no-cache"
        response.headers["Cache-Control"] = kept
        return response


def mount(app: FastAPI) -> None:
    """Add the pages, the static files and the way to the login page."""
    app.include_router(login.router)
    app.include_router(pages.router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    app.add_exception_handler(LoginNeeded, _to_login)


async def _to_login(request: Request, _error: Exception) -> Response:
    if request.headers.get("hx-request") == "true":
        # A fragment must not be replaced by the login page; htmx follows this header instead.
        answer: Response = respond(
            UnauthorizedError("The login has ended.", field="Cookie", allowed="a login's cookie")
        )
        answer.headers["HX-Redirect"] = "/login"
        return answer
    return RedirectResponse("/login", status_code=303)


def as_page(request: Request, document: dict[str, Any], headers: dict[str, str]) -> Response | None:
    """A problem document as a page, where a person is looking."""
    if request.url.path.startswith(_MACHINE) or "text/html" not in request.headers.get("accept", ""):
        return None
    answer = page("error.html", None, status=document["status"], problem=document)
    answer.headers.update(headers)
    return answer
