"""What do clients look for and not find?"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request

from service.api import lookup, pages, render, schemas
from service.api.auth import needs
from service.api.body import json_object
from service.api.openapi import errors, request_body
from service.api.routes.params import LimitQuery, TokenQuery, plain
from service.api.state import state_of
from service.store import demand
from service.store.enums import Scope

router = APIRouter(tags=["demand"])

_BODY = {
    "type": "object",
    "required": ["misses"],
    "properties": {
        "misses": {
            "type": "array",
            "minItems": 1,
            "maxItems": lookup.MOST_MISSES,
            "items": {
                "type": "object",
                "required": ["problem", "device"],
                "properties": {
                    "problem": {"type": "object"},
                    "device": {"type": "string"},
                    "policy": {"type": "object"},
                    "level": {"type": "string"},
                    "count": {"type": "integer", "minimum": 1},
                },
            },
        }
    },
}
_EXAMPLE = {
    "misses": [
        {
            "problem": {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
            "device": "cpu-intel-6-85-8c-x86-64-v4",
            "level": "none",
            "count": 3,
        }
    ]
}


@router.post(
    "/v1/demand",
    status_code=202,
    dependencies=[needs(Scope.READ)],
    responses=errors(body=True),
    response_model=schemas.DemandAccepted,
    openapi_extra=request_body(_BODY, _EXAMPLE),
)
def post_demand(
    request: Request, body: Annotated[dict[str, Any], Depends(json_object)]
) -> schemas.DemandAccepted:
    """Lookups of a client that found no exact answer, with how often: they become ranked tuning demand. Fewer
    are accepted where there is no room for new ones."""
    rows = lookup.parse_misses(body)
    with state_of(request).database.begin() as s:
        accepted = demand.add(s, rows)
    return schemas.DemandAccepted(accepted=accepted)


@router.get(
    "/v1/demand",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.DemandList,
)
def list_demand(
    request: Request,
    limit: LimitQuery = None,
    page_token: TokenQuery = None,
    device: Annotated[str | None, Query(max_length=200)] = None,
) -> schemas.DemandList:
    """The most wanted problems first."""
    page = pages.page("demand", limit, page_token, (int, str, str, str))
    with state_of(request).database.read() as s:
        found = demand.ranked(
            s,
            device_key=plain(device, "device"),
            after=page.after,  # type: ignore[arg-type]  # decode_token checked its shape
            limit=page.limit,
        )
    return schemas.DemandList(
        demand=[render.demand(row) for row in found.rows],
        next_page_token=None if found.next is None else pages.encode_token("demand", found.next),
    )
