"""Which query parameters does an endpoint of /v1 take? Another one, or one that comes twice, is refused.

Ignored, `?limt=5` would give another page than was asked for, and of `?state=done&state=failed` one half.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from rooftile.problem import nearest_name
from starlette.requests import Request

from service.api.errors import BadFieldError


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
