"""What does this process tell to Prometheus?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import needs
from service.api.openapi import errors
from service.api.state import state_of
from service.metrics import CONTENT_TYPE
from service.store.enums import Scope

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    dependencies=[needs(Scope.READ)],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Figures"}, **errors()},
)
def metrics(request: Request) -> Response:
    """Figures of this process and of the database, in Prometheus' text format. Needs a token, as all else: a
    proxy on this host would make everybody a neighbour."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)
