"""Who did what, when, and from where?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request

from service.api import pages, schemas
from service.api.auth import needs
from service.api.openapi import errors
from service.api.routes.params import LimitQuery, TokenQuery, one_of
from service.api.state import state_of
from service.store import audit
from service.store.enums import AuditAction, Scope

router = APIRouter(tags=["audit"])


@router.get(
    "/v1/audit", dependencies=[needs(Scope.ADMIN)], responses=errors(), response_model=schemas.AuditPage
)
def list_audit(
    request: Request,
    limit: LimitQuery = None,
    page_token: TokenQuery = None,
    action: Annotated[str | None, Query(description="only this action")] = None,
) -> schemas.AuditPage:
    """Tokens made and revoked, logins, and what people did to releases and devices; newest first."""
    wanted = one_of(action, tuple(str(one) for one in AuditAction), "action")
    page = pages.page("audit", limit, page_token, (int,))
    with state_of(request).database.read() as s:
        found = audit.listing(
            s,
            action=None if wanted is None else AuditAction(wanted),
            after=page.after,  # type: ignore[arg-type]  # decode_token checked its shape
            limit=page.limit,
        )
    return schemas.AuditPage(
        audit=[
            schemas.Audit(
                id=row.id,
                at=row.at,
                actor=row.actor,
                action=row.action,
                subject=row.subject,
                origin=row.origin,
                data=dict(row.data),
            )
            for row in found.rows
        ],
        next_page_token=None if found.next is None else pages.encode_token("audit", found.next),
    )
