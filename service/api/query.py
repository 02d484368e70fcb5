"""Which query parameters does an endpoint of /v1 take? Another one, or one that comes twice, is refused.

Ignored, `?limt=5` would give another page than was asked for, and of `?state=done&state=failed` one half.
The same holds of a header that has one meaning: a proxy may have looked at the other one.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from rooftile.problem import nearest_name
from starlette.requests import Request

from service.api.errors import BadFieldError

_ONCE = frozenset(
    name.lower().encode()
    for name in (
        "Authorization",
        "Content-Encoding",
        "Content-Type",
        "Idempotency-Key",
        "Last-Event-ID",
        "X-CSRF-Token",
    )
)


def check_headers(request: Request) -> None:
    """BadFieldError for a header that comes twice and may not."""
    given = [name for name, _ in request.scope["headers"] if name in _ONCE]
    if len(set(given)) == len(given):
        return
    twice = max(given, key=given.count).decode("ascii").title()
    raise BadFieldError(f"{twice}: the header comes twice.", field=twice, allowed="once at most")


def check_query(request: Request) -> None:
    """BadFieldError for the first parameter that the endpoint of this request does not take."""
    given = [name for name, _ in request.query_params.multi_items()]
    if not given:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    names = tuple(_names(route.dependant))
    for position, name in enumerate(given):
        if name not in names:
            shown = name[:64] or '""'
            what = f"it takes {', '.join(names)}" if names else "it takes none"
            raise BadFieldError(
                f"{shown}: there is no such query parameter here; {what}.",
                field=shown,
                value=request.query_params[name],
                allowed=list(names),
                nearest=nearest_name(name, names),
            )
        if name in given[:position]:
            raise BadFieldError(
                f"{name}: the query parameter comes twice.",
                field=name,
                value=request.query_params.getlist(name),
                allowed="once at most",
            )


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
