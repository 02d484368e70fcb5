"""How does a client fetch the bytes that run?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import needs
from service.api.errors import NotFoundError
from service.api.openapi import errors
from service.api.routes.params import WHERE, Sha256Path, sha256
from service.api.state import state_of
from service.store import artifacts
from service.store.enums import Scope

router = APIRouter(tags=["artifacts"])


class Bytes(Response):
    media_type = "application/octet-stream"


@router.get(
    "/v1/artifacts/{digest:id}",
    dependencies=[needs(Scope.READ)],
    response_class=Bytes,
    responses={
        **errors(404),
        200: {
            "description": "The bytes, which never change under this name.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
def get_artifact(request: Request, digest: Sha256Path) -> Response:
    """The bytes whose sha256 this is. 404 also where only the recipe is kept (the detail says so)."""
    name = sha256(digest, "artifact", "sha256")
    with state_of(request).database.read() as s:
        data = artifacts.get_bytes(s, name)
        known = data is not None or artifacts.get(s, name) is not None
    if data is None:
        why = " Its recipe is known, but bytes are kept of finalists and releases only."
        raise NotFoundError(
            f"There is no artifact {name}." + (why if known else ""),
            field="sha256",
            value=name,
            allowed=WHERE["artifact"],
        )
    return Bytes(
        data,
        headers={
            "ETag": f'"{name}"',
            "Cache-Control": "private, max-age=31536000, immutable",
            "Content-Disposition": f'attachment; filename="{name}"',
        },
    )
