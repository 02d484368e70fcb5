"""Which exception becomes which answer?

Every path that can fail ends here, so that no answer of ours is anything but problem+json: our own
ApiErrors, the client library's FieldError, the store's and the jobs' errors, what Starlette raises
for an unknown path or method, what FastAPI finds wrong in a query, and whatever nobody expected.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from rooftile.errors import MISSING, FieldError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from service.api.errors import (
    PROBLEM_JSON,
    ApiError,
    BadBodyError,
    BadFieldError,
    ConflictError,
    NotFoundError,
    UnavailableError,
    problem,
)
from service.api.middleware import SECURITY_HEADERS
from service.api.requestid import HEADER, IN_SCOPE
from service.jobs import errors as job_errors
from service.store import errors as store_errors

_log = structlog.get_logger("rooftile.api")

AsPage = Callable[[Request, dict[str, Any], dict[str, str]], Response | None]
"""The same problem as a page for a person, or None where a program is asking."""

# How long a client should wait before it asks again, in seconds.
_RETRY_UNREACHABLE = "5"
_RETRY_BUSY = "1"


class ProblemResponse(Response):
    """A problem document as an answer."""

    media_type = PROBLEM_JSON

    def __init__(self, document: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
        super().__init__(body, status_code=document["status"], headers=headers)


def respond(error: ApiError) -> ProblemResponse:
    return ProblemResponse(error.problem(), error.headers)


def translate(error: Exception) -> ApiError | None:
    """The ApiError that says what `error` says, or None when it is a fault of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FieldError):
        return BadFieldError(
            str(error),
            field=error.field,
            value=None if error.value is MISSING else error.value,
            allowed=error.allowed,
            nearest=error.nearest,
        )
    if isinstance(error, store_errors.StoreError):
        return _of_store(error)
    if isinstance(error, job_errors.NotFound):
        return NotFoundError(
            _sentence(error), field="id", value=error.ident, allowed=f"the id of a {error.noun} that is there"
        )
    if isinstance(error, job_errors.IllegalMove):
        possible = list(error.allowed) or f"what a {error.noun} that is {error.state} can do"
        return ConflictError(_sentence(error), field="state", value=error.state, allowed=possible)
    return None


def _of_store(error: store_errors.StoreError) -> ApiError | None:
    if isinstance(error, store_errors.NotFound):
        allowed = f"the id of a {error.what} that is there"
        return NotFoundError(str(error), field="id", value=error.key, allowed=allowed)
    if isinstance(error, store_errors.IllegalTransition):
        possible = error.allowed or "nothing: it is final"
        return ConflictError(str(error), field="state", value=error.source, allowed=possible)
    if isinstance(error, store_errors.ReleasePinned):
        return ConflictError(str(error), field="pinned", value=True, allowed=False)
    if isinstance(error, store_errors.IdempotencyConflict):
        allowed = "a key that is new, or the body that it came with"
        return BadFieldError(str(error), field="Idempotency-Key", value=error.key, allowed=allowed)
    if isinstance(error, store_errors.StoreBusy):
        return UnavailableError(str(error), headers={"Retry-After": _RETRY_BUSY})
    if isinstance(
        error,
        store_errors.DatabaseUnreachable
        | store_errors.StoreFull
        | store_errors.StoreReadOnly
        | store_errors.StoreDamaged
        | store_errors.SchemaMismatch
        | store_errors.UnsuitableDatabase,
    ):
        return UnavailableError(str(error), headers={"Retry-After": _RETRY_UNREACHABLE})
    return None


class _Handlers:
    """The handlers of one app."""

    def __init__(self, as_page: AsPage) -> None:
        self.as_page = as_page

    def answer(self, request: Request, document: dict[str, Any], headers: dict[str, str]) -> Response:
        return self.as_page(request, document, headers) or ProblemResponse(document, headers)

    async def known(self, request: Request, error: Exception) -> Response:
        translated = translate(error)
        if translated is None:
            return await self.unexpected(request, error)
        return self.answer(request, translated.problem(), translated.headers)

    async def http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        return self.answer(request, _of_http(request, error, headers), headers)

    async def validation(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return self.answer(request, _of_validation(error).problem(), {})

    async def unexpected(self, request: Request, error: Exception) -> Response:
        # The trace goes to the log; what a stranger sees says nothing about our insides.
        # As text: structlog's own rendering shows every local variable, tokens too, and takes seconds.
        trace = "".join(traceback.format_exception(error))
        request_id = str(request.scope.get(IN_SCOPE, ""))
        about = {"method": request.method, "path": request.url.path, "request_id": request_id}
        _log.error("unexpected error", **about, trace=trace)
        detail = "Something went wrong in the service; its log has the trace."
        # said here: the layers that would have added them are left when this is called
        headers = {HEADER: request_id, **SECURITY_HEADERS, "Cache-Control": "private, no-cache"}
        return self.answer(request, problem(500, "internal", detail), headers)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Who went away before the body was whole reads no answer; that is no fault of ours, and not logged."""
    return respond(BadBodyError("The body ended early.", field="body", allowed="the whole body"))


def _of_http(request: Request, error: HTTPException, headers: dict[str, str]) -> dict[str, Any]:
    """What Starlette says of an unknown path or a method that is not possible there."""
    path = request.url.path
    slug, detail, field, value = {
        404: ("not-found", f"There is nothing at {path}.", "path", path),
        405: ("method-not-allowed", f"{request.method} is not possible at {path}.", "method", request.method),
    }.get(error.status_code, ("http-error", str(error.detail), None, None))
    allowed: object = "a path of /openapi.json"
    if "Allow" in headers:
        allowed = [method.strip() for method in headers["Allow"].split(",")]
    return problem(error.status_code, slug, detail, field=field, value=value, allowed=allowed)


def _of_validation(error: RequestValidationError) -> BadFieldError:
    """What FastAPI refuses in a query, path, header or form: the first thing that is wrong, by name."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    field = ".".join(location[1:]) or location[0]
    context = first.get("ctx") or {}
    allowed: object = context.get("expected")
    if allowed is None:
        bounds = ("ge", "le", "gt", "lt", "min_length", "max_length")
        allowed = {key: value for key, value in context.items() if key in bounds}
    # Pydantic says what is wanted: "Input should be a valid integer, unable to parse string as an integer".
    wanted = first["msg"].partition(", ")[0].removeprefix("Input should be ")
    allowed = allowed or ("a value: it is required" if first["type"] == "missing" else wanted)
    value = None if first["type"] == "missing" else first.get("input")
    return BadFieldError(f"{field}: {first['msg']}.", field=field, value=value, allowed=allowed)


def install(app: FastAPI, as_page: AsPage) -> None:
    """Register every handler."""
    handlers = _Handlers(as_page)
    for kind in (ApiError, FieldError, store_errors.StoreError, job_errors.JobError):
        app.add_exception_handler(kind, handlers.known)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(HTTPException, handlers.http)
    app.add_exception_handler(RequestValidationError, handlers.validation)
    app.add_exception_handler(Exception, handlers.unexpected)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
