"""How does openapi.json come to name every error, and stay strict JSON?

FastAPI documents a 422 of its own shape; ours is a problem document, so each route says which
statuses it can end with, and the schema of the document is put in once.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.api.errors import PROBLEM_JSON, title

_WHY = {
    400: "The body is not strict JSON in UTF-8 (NaN, a key that comes twice, nested too deep...).",
    401: "No bearer token, or one that nobody knows.",
    403: "The token lacks the scope.",
    404: "There is no such thing.",
    405: "The method is not possible at this path.",
    409: "The state does not allow it, or the first request with this Idempotency-Key is under way.",
    413: "The body is over the limit.",
    415: "The body is not sent as application/json.",
    422: "A field or query parameter is unknown or has a value that is not allowed; the document names both.",
    429: "The token asks, submits or has open more than it may, or the address guesses; see Retry-After.",
    500: "A fault of ours; the log has the trace.",
    503: "The database does not answer; Retry-After says when to ask again.",
}

PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail", "field", "value", "allowed", "nearest"],
    "properties": {
        "type": {"type": "string", "description": "urn:rooftile:problem:..., stable"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "one sentence for a person"},
        "field": {"type": ["string", "null"], "description": "the field that is wrong, as a dotted path"},
        "value": {"description": "what was sent for it, cut short"},
        "allowed": {"description": "what would be right"},
        "nearest": {"description": "the nearest value that is supported, or null"},
    },
}

# Statuses that any authenticated endpoint may end with.
_ALWAYS = (401, 403, 422, 429, 500, 503)
# Statuses of an endpoint that reads a JSON body.
_BODY = (400, 413, 415)


def errors(*statuses: int, body: bool = False, open_to_all: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the given statuses, and those that every such route shares."""
    shared = (422, 500, 503) if open_to_all else _ALWAYS
    return {
        status: {
            "description": f"{title(status)}. {_WHY[status]}",
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({*statuses, *shared, *(_BODY if body else ())})
    }


def request_body(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is checked by hand."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": example}},
        }
    }


def install(app: FastAPI) -> None:
    """Replace app.openapi by one that knows the problem document and the bearer scheme."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM_SCHEMA
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "a token with read, submit or admin"},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/") or path == "/metrics":
                operation["security"] = [{"bearer": []}]
    return document
