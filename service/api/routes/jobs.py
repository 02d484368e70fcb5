"""How is a job created, seen, followed and steered?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.api import events, jobview, pages, schemas
from service.api.auth import REALM, Principal, needs
from service.api.body import json_object
from service.api.errors import (
    BadFieldError,
    ConflictError,
    ForbiddenError,
    TooManyError,
)
from service.api.openapi import errors, request_body
from service.api.routes.params import MAX_ID, IdPath, LimitQuery, TokenQuery, absent, one_of, row_id
from service.api.state import AppState, state_of
from service.bus import Kind
from service.jobs.control import cancel, leave, pause, resume
from service.jobs.request import MOST_PRIORITY, USUAL_PRIORITY, JobRequest
from service.jobs.submit import submit
from service.store import idempotency, jobs, owners
from service.store.enums import JobState, Scope
from service.store.records import JobRecord

router = APIRouter(tags=["jobs"])

OPS = ("gemm", "attention")

_BODY = {
    "type": "object",
    "properties": {
        "problem": {"type": "object", "description": "a Problem; a swept size is left out"},
        "sweep": {
            "type": "object",
            "description": "size name -> list of values, each tuned; or {from, to, tune, hold_out} (or sizes"
            " in place of from and to): at most `tune` of them are, `hold_out` others are only measured",
        },
        "problems": {
            "type": "array",
            "items": {"type": "object"},
            "description": "{problem, sweep, weight} each; with a weight the budget goes where weight x time"
            " falls most, without each problem has an equal share",
        },
        "target": {"type": "object", "description": "{device} or {devices} or {arch}; default auto"},
        "device": {"type": "string", "description": "short for target.device"},
        "budget": {"type": "object", "description": "{trials, seconds, device_seconds}, of the whole job"},
        "policy": {"type": "object", "description": "{cache: cold|warm, launch: graph|eager}"},
        "seed": {"type": "integer"},
        "force": {"type": "boolean"},
        "priority": {
            "type": "integer",
            "minimum": -MOST_PRIORITY,
            "maximum": MOST_PRIORITY,
            "description": f"of what waits, the highest goes first; above {USUAL_PRIORITY}: admin",
        },
        "families": {"type": "array", "items": {"type": "string"}},
        "params": {"type": "object"},
        "emulate": {"enum": ["structure", "finalists", "all", "never"]},
    },
}
_EXAMPLE = {
    "problem": {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "f32"},
    "target": {"device": "auto"},
    "budget": {"trials": 60, "seconds": 60},
}


@router.post(
    "/v1/jobs",
    status_code=202,
    responses={
        **errors(409, 429, body=True),
        202: {
            "description": "The job is accepted (or an open one with the same request was found).",
            "model": schemas.JobCreated,
            "headers": {"Location": {"schema": {"type": "string"}, "description": "the job's path"}},
        },
    },
    openapi_extra=request_body(_BODY, _EXAMPLE),
)
def post_job(
    request: Request,
    principal: Annotated[Principal, needs(Scope.SUBMIT)],
    body: Annotated[dict[str, Any], Depends(json_object)],
    idempotency_key: Annotated[
        str | None, Header(description="the same key with the same body gives the first answer again")
    ] = None,
) -> Response:
    """Create a tuning job. 202, Location, and the job's id."""
    state = state_of(request)
    key = _idempotency_key(idempotency_key)
    if not principal.may(Scope.ADMIN):
        state.limits.submission(principal.owner)
    most = state.settings.open_jobs
    answer = state.database.run(lambda s: _create(s, principal, key, body, most))
    state.doorbell.ring(Kind.SEARCH, answer["id"])
    return Response(
        json.dumps(answer),
        status_code=202,
        media_type="application/json",
        headers={"Location": answer["url"]},
    )


def _idempotency_key(text: str | None) -> str | None:
    if text is None:
        return None
    if not text.strip() or len(text) > 200 or not text.isascii() or not text.isprintable():
        raise BadFieldError(
            "Idempotency-Key has to be 1 to 200 printable ASCII characters.",
            field="Idempotency-Key",
            value=text,
            allowed="1 to 200 printable ASCII characters",
        )
    return text.strip()


def _create(
    s: Session, principal: Principal, key: str | None, body: dict[str, Any], most_open: int
) -> dict[str, Any]:
    """In one transaction: look the key up, create the job, keep the answer under the key."""
    if key is not None:
        digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        before = idempotency.begin(s, principal.owner, key, digest)
        if before is not None:
            if before.response is None:
                raise ConflictError(
                    "The first request with this Idempotency-Key is still being answered.",
                    field="Idempotency-Key",
                    value=key,
                    allowed="the same request again, when the first has its answer",
                    headers={"Retry-After": "1"},
                )
            return dict(before.response)
    asked = JobRequest.parse(body)
    # Here, not before the key was looked up: an answer that was given is given again.
    _check_priority(principal, asked.priority)
    job, created = submit(s, asked, token_id=principal.token_id)
    if job.open and not principal.may(Scope.ADMIN):
        open_jobs = owners.count_open(s, principal.token_id)
        if open_jobs > most_open:  # raising takes the new job back, or that it was joined
            raise TooManyError(
                f"This token has {most_open} open jobs; wait for one to end, or cancel one.",
                field="Authorization",
                value={"open_jobs": open_jobs},
                allowed={"open_jobs": most_open},
                headers={"Retry-After": "30"},
            )
    url = f"/v1/jobs/{job.id}"
    answer = schemas.JobCreated(
        id=job.id,
        state=str(job.state),
        reason=None if job.reason is None else str(job.reason),
        message=job.message,
        created=created,
        url=url,
        events_url=f"{url}/events",
    ).model_dump(mode="json")
    if key is not None:
        idempotency.finish(s, principal.owner, key, 202, answer)
    return answer


def _check_priority(principal: Principal, priority: int) -> None:
    """Fair shares hold among equals, so who may go before others may starve them."""
    if priority > USUAL_PRIORITY and not principal.may(Scope.ADMIN):
        raise ForbiddenError(
            f"A priority above {USUAL_PRIORITY} goes before everybody's jobs; that needs the scope admin.",
            field="priority",
            value=priority,
            allowed=f"a whole number from {-MOST_PRIORITY} to {USUAL_PRIORITY}",
            headers={"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{Scope.ADMIN}"'},
        )


@router.get("/v1/jobs", dependencies=[needs(Scope.READ)], responses=errors(), response_model=schemas.JobPage)
def list_jobs(
    request: Request,
    limit: LimitQuery = None,
    page_token: TokenQuery = None,
    state: Annotated[str | None, Query(description="only jobs in this state")] = None,
    op: Annotated[str | None, Query(description="only jobs with a problem of this op")] = None,
) -> schemas.JobPage:
    """Jobs, newest first."""
    wanted = one_of(state, tuple(str(state) for state in JobState), "state")
    with state_of(request).database.read() as s:
        return page_of_jobs(s, wanted, one_of(op, OPS, "op"), limit, page_token)


def page_of_jobs(
    s: Session, state: str | None, op: str | None, limit: int | None, token: str | None
) -> schemas.JobPage:
    """One page, filtered."""
    page = pages.page("jobs", limit, token, (int,))
    found = jobs.listing(
        s,
        states=None if state is None else [JobState(state)],
        op=op,
        after=page.after,  # type: ignore[arg-type]  # decode_token checked its shape
        limit=page.limit,
    )
    return schemas.JobPage(
        jobs=jobview.summaries(s, found.rows),
        next_page_token=None if found.next is None else pages.encode_token("jobs", found.next),
    )


@router.get(
    "/v1/jobs/{job_id:id}",
    dependencies=[needs(Scope.READ)],
    responses=errors(404),
    response_model=schemas.Job,
)
def get_job(request: Request, job_id: IdPath) -> schemas.Job:
    """A job: its state, trials by outcome, the best so far, and each of its problems."""
    with state_of(request).database.read() as s:
        return jobview.full(s, existing(s, row_id(job_id, "job")))


def existing(s: Session, job_id: int) -> JobRecord:
    job = jobs.get(s, job_id)
    if job is None:
        raise absent("job", job_id)
    return job


@router.get(
    "/v1/jobs/{job_id:id}/events",
    dependencies=[needs(Scope.READ)],
    response_class=StreamingResponse,
    responses={
        **errors(404),
        200: {
            "description": "Events job, job_problem, trial, race, release, note; last of all `end`.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
)
def get_events(
    request: Request,
    job_id: IdPath,
    principal: Annotated[Principal, needs(Scope.READ)],
    after: Annotated[int | None, Query(ge=0, le=MAX_ID, description="go on after this id")] = None,
    last_event_id: Annotated[str | None, Header(description="as a reconnecting browser sends it")] = None,
) -> Response:
    """The job's events as they happen, from the first one (or after Last-Event-ID); ends with the job."""
    state = state_of(request)
    first = events.parse_last_event_id(last_event_id, after)
    number = row_id(job_id, "job")
    with state.database.read() as s:
        existing(s, number)
    state.streams.check_room(principal.owner)
    return StreamingResponse(
        events.stream(state, principal, number, first), media_type="text/event-stream", headers=events.HEADERS
    )


Move = Callable[[Session, int], JobRecord]


def steer(state: AppState, principal: Principal, job_id: int, move: Move) -> JobRecord:
    """Cancel, pause or resume a job that the principal may steer, and wake who has to act on it. An admin
    does it for all; the cancel of an owner is for himself, and his pause needs that nobody else wants the
    job."""

    def change(s: Session) -> JobRecord:
        existing(s, job_id)
        if principal.may(Scope.ADMIN):
            return move(s, job_id)
        if move is cancel and owners.was_of(s, job_id, principal.token_id):
            return leave(s, job_id, principal.token_id)
        if not steers(s, principal, job_id):
            raise _forbidden(job_id, "belongs to another token")
        if move is pause and len(owners.of(s, job_id)) > 1:
            raise _forbidden(job_id, "was asked for by others too, for whom it would stop")
        return move(s, job_id)

    moved = state.database.run(change)
    state.doorbell.ring(Kind.SEARCH, job_id)
    return moved


def steers(s: Session, principal: Principal, job_id: int) -> bool:
    """Whether the job is one of its own, or it may steer every job."""
    return principal.may(Scope.ADMIN) or any(principal.may_steer(owner) for owner in owners.of(s, job_id))


def _forbidden(job_id: int, why: str) -> ForbiddenError:
    return ForbiddenError(
        f"Job {job_id} {why}; that needs the scope admin.", field="id", value=job_id, allowed=["admin"]
    )


def _steered(request: Request, principal: Principal, job_id: str, move: Move) -> schemas.Job:
    state = state_of(request)
    number = row_id(job_id, "job")
    steer(state, principal, number, move)
    with state.database.read() as s:
        return jobview.full(s, existing(s, number))


Steerer = Annotated[Principal, needs(Scope.SUBMIT)]


@router.post("/v1/jobs/{job_id:id}:cancel", responses=errors(404, 409), response_model=schemas.Job)
def cancel_job(request: Request, job_id: IdPath, principal: Steerer) -> schemas.Job:
    """End a job; what it found stays. One that others asked for too goes on for them; an admin ends it for
    all."""
    return _steered(request, principal, job_id, cancel)


@router.post("/v1/jobs/{job_id:id}:pause", responses=errors(404, 409), response_model=schemas.Job)
def pause_job(request: Request, job_id: IdPath, principal: Steerer) -> schemas.Job:
    """Stop a job for now: trials in flight end, no new ones start. One that others asked for too: admin."""
    return _steered(request, principal, job_id, pause)


@router.post("/v1/jobs/{job_id:id}:resume", responses=errors(404, 409), response_model=schemas.Job)
def resume_job(request: Request, job_id: IdPath, principal: Steerer) -> schemas.Job:
    """Go on with a paused job."""
    return _steered(request, principal, job_id, resume)
