"""What is served, what changed since a client last looked, and how is a release steered?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api import lookup, pages, render, schemas
from service.api.auth import Principal, admit, by, needs
from service.api.body import an_object, check_media, parse_json
from service.api.openapi import errors, request_body
from service.api.routes.params import (
    MAX_ID,
    IdPath,
    LimitQuery,
    Sha256Path,
    TokenQuery,
    absent,
    plain,
    row_id,
    sha256,
)
from service.api.state import state_of
from service.jobs.releases import pin, publish_candidate, rollback, unpin, withdraw
from service.store import audit, problems, releases
from service.store.enums import AuditAction, Scope
from service.store.records import ReleaseRecord

router = APIRouter(tags=["releases"])

_BEST_BODY = {
    "type": "object",
    "required": ["problem"],
    "properties": {
        "problem": {"type": "object", "description": "a Problem, short or written out"},
        "device": {"type": "string", "default": "auto"},
        "policy": {
            "type": "object",
            "properties": {"cache": {"enum": ["cold", "warm"]}, "launch": {"enum": ["graph", "eager"]}},
        },
    },
}
_BEST_EXAMPLE = {
    "problem": {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
    "device": "auto",
    "policy": {"cache": "cold"},
}


@router.post(
    "/v1/best",
    responses=errors(body=True),
    response_model=schemas.Best,
    openapi_extra=request_body(_BEST_BODY, _BEST_EXAMPLE),
)
async def post_best(request: Request) -> Response:
    """The kernel to use for a problem on a device: always 200, with a level and the reason for it."""
    # By far the most frequent request, and always the same ones: no thread and no query where it was
    # answered before and nothing has changed.
    await admit(request, Scope.READ)
    check_media(request)
    body = await request.body()
    state = state_of(request)
    answer = state.index.answer(body)
    if answer is None:
        answer = await state.asking.ask(body, lookup.parse(an_object(parse_json(body))))
    state.metrics.looked_up(answer)
    return Response(answer, media_type="application/json")


@router.get(
    "/v1/releases",
    dependencies=[needs(Scope.READ)],
    responses=errors(),
    response_model=schemas.ReleaseChanges,
)
def list_changes(
    request: Request,
    device: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="`after` of the answer before")] = 0,
    limit: LimitQuery = pages.MAX_LIMIT,
) -> schemas.ReleaseChanges:
    """What changed since `after`, oldest change first: also what was superseded or withdrawn. Ask again with
    the answer's `after` while it says `more`."""
    most = pages.page("releases", limit, None, ()).limit
    with state_of(request).database.read() as s:
        rows = releases.changes(s, after=after, device_key=plain(device, "device"), limit=most + 1)
    more, rows = len(rows) > most, rows[:most]
    return schemas.ReleaseChanges(
        releases=[render.release(row) for row in rows],
        after=max((row.change_id for row in rows), default=after),
        more=more,
    )


@router.get(
    "/v1/problems/{key:id}",
    dependencies=[needs(Scope.READ)],
    responses=errors(404),
    response_model=schemas.ProblemOut,
)
def get_problem(
    request: Request, key: Sha256Path, limit: LimitQuery = None, page_token: TokenQuery = None
) -> schemas.ProblemOut:
    """A problem that was asked for before, what is served for it on each device, and its jobs in pages."""
    name = sha256(key, "problem", "problem_key")
    with state_of(request).database.read() as s:
        row = problems.get(s, name)
        if row is None:
            raise absent("problem", name, "problem_key")
        return lookup.problem(s, row, releases.for_problem(s, name), limit, page_token)


@router.get(
    "/v1/layers/{key:id}/table",
    dependencies=[needs(Scope.READ)],
    responses=errors(404),
    response_model=schemas.Table,
)
def get_table(
    request: Request,
    key: Sha256Path,
    device: Annotated[str, Query(max_length=200, description="a device's key, or auto")] = "auto",
    cache: Annotated[str | None, Query(max_length=20)] = None,
    launch: Annotated[str | None, Query(max_length=20)] = None,
    limit: LimitQuery = None,
    page_token: TokenQuery = None,
) -> schemas.Table:
    """The dispatch table of a layer on one device: what is served at each tuned size, 200 rows a page; and
    after a sweep, from which size to which each release is to be used, with the loss."""
    name = sha256(key, "layer", "layer_key")
    with state_of(request).database.read() as s:
        return lookup.table(s, name, device, cache, launch, limit=limit, token=page_token)


Decide = Callable[[Session, int], ReleaseRecord]
Admin = Annotated[Principal, needs(Scope.ADMIN)]


def _steer(
    request: Request, release_id: str, decide: Decide, principal: Principal, action: AuditAction
) -> schemas.Release:
    number = row_id(release_id, "release")
    database = state_of(request).database

    def change(s: Session) -> None:
        row = decide(s, number)
        told = {"problem": row.title, "device": row.device_key, "serves": row.id}
        audit.write(s, by(request, principal), action, f"release:{number}", told)

    database.run(change)
    # Read again: the change's id is drawn when the transaction commits.
    with database.read() as s:
        row = releases.get(s, number)
    if row is None:
        raise absent("release", number)
    state_of(request).index.forget([(row.problem_key, row.device_key, row.policy_key)])
    return render.release(row)


@router.post(
    "/v1/releases/{release_id:id}:pin",
    responses=errors(404, 409),
    response_model=schemas.Release,
)
def pin_release(request: Request, release_id: IdPath, principal: Admin) -> schemas.Release:
    """Keep serving this release, whatever later jobs find."""
    return _steer(request, release_id, pin, principal, AuditAction.RELEASE_PINNED)


@router.post(
    "/v1/releases/{release_id:id}:unpin",
    responses=errors(404, 409),
    response_model=schemas.Release,
)
def unpin_release(request: Request, release_id: IdPath, principal: Admin) -> schemas.Release:
    """Let a better release take its place again."""
    return _steer(request, release_id, unpin, principal, AuditAction.RELEASE_UNPINNED)


@router.post(
    "/v1/releases/{release_id:id}:rollback",
    responses=errors(404, 409),
    response_model=schemas.Release,
)
def rollback_release(request: Request, release_id: IdPath, principal: Admin) -> schemas.Release:
    """Stop serving this release and serve the one before it."""
    return _steer(request, release_id, rollback, principal, AuditAction.RELEASE_ROLLED_BACK)


@router.post(
    "/v1/releases/{release_id:id}:publish",
    responses=errors(404, 409),
    response_model=schemas.Release,
)
def publish_release(request: Request, release_id: IdPath, principal: Admin) -> schemas.Release:
    """Serve a candidate that no emulated verdict speaks for (`emulate: never`), marked unproven."""
    return _steer(request, release_id, publish_candidate, principal, AuditAction.RELEASE_PUBLISHED)


@router.post(
    "/v1/releases/{release_id:id}:withdraw",
    responses=errors(404, 409),
    response_model=schemas.Release,
)
def withdraw_release(request: Request, release_id: IdPath, principal: Admin) -> schemas.Release:
    """Take this release back for good; clients drop it at their next refresh."""
    return _steer(request, release_id, withdraw, principal, AuditAction.RELEASE_WITHDRAWN)
