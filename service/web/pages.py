"""Which pages does the dashboard have, and how are their forms answered?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query
from rooftile.problem import OPS, parse_problem
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.api.auth import check_csrf, check_scope
from service.api.errors import NotFoundError
from service.api.routes.jobs import existing, page_of_jobs, steer
from service.api.routes.params import one_of, plain, row_id
from service.api.routes.trials import ORDERS, trial_detail
from service.api.state import state_of
from service.jobs.control import cancel, pause, resume
from service.store import devices
from service.store.enums import JobReason, JobState, Scope, TrialReason, TrialState
from service.web import jobpage, roof, views
from service.web.guard import Viewer
from service.web.templates_env import page

router = APIRouter(include_in_schema=False)

Text = Annotated[str | None, Query(max_length=512)]
_MOVES = {"cancel": cancel, "pause": pause, "resume": resume}


@router.get("/")
def best(
    request: Request,
    viewer: Viewer,
    text: Text = None,
    op: Text = None,
    dtype: Text = None,
    device: Text = None,
    page_token: Text = None,
) -> Response:
    """Best configurations, filtered by what stands in the address."""
    filters = views.Filters(
        text=plain(text, "text"),
        op=one_of(op, tuple(OPS), "op"),
        dtype=plain(dtype, "dtype", 40),
        device=plain(device, "device"),
    )
    with state_of(request).database.read() as s:
        rows, pager, known = views.best_page(s, filters, page_token or None)
        tried = bool(rows) or bool(page_of_jobs(s, None, None, 1, None).jobs)
    return page(
        "best.html",
        viewer,
        here="best",
        rows=rows,
        tried=tried,
        page=pager,
        filters=filters,
        choices=views.choices(known),
    )


@router.get("/jobs")
def job_list(request: Request, viewer: Viewer, state: Text = None, page_token: Text = None) -> Response:
    """Jobs, newest first."""
    names = tuple(str(state) for state in JobState)
    wanted = one_of(state, names, "state")
    with state_of(request).database.read() as s:
        found = page_of_jobs(s, wanted, None, views.ROWS, page_token or None)
    suffix = f"state={wanted}&" if wanted else ""
    return page(
        "jobs.html",
        viewer,
        here="jobs",
        jobs=found.jobs,
        state=wanted,
        states=names,
        policy_text=views.policy_text,
        reason_docs={str(reason): reason.doc for reason in JobReason},
        page=views.Pager(
            first=(f"/jobs?{suffix}".rstrip("?&") if page_token else None),
            next=f"/jobs?{suffix}page_token={found.next_page_token}" if found.next_page_token else None,
        ),
    )


def _choice(problem: int | None, order: str | None, state: str | None, token: str | None) -> jobpage.Choice:
    return jobpage.Choice(
        problem=problem,
        order=one_of(order, tuple(ORDERS), "order") or "newest",
        state=one_of(state, tuple(str(name) for name in TrialState), "state"),
        page_token=token or None,
    )


def _job(request: Request, viewer: Viewer, job_id: str, choice: jobpage.Choice, template: str) -> Response:
    number = row_id(job_id, "job")
    with state_of(request).database.read() as s:
        context = jobpage.context(s, existing(s, number), choice, viewer)
    return page(template, viewer, here="jobs", **context)


@router.get("/jobs/{job_id}")
def job(
    request: Request,
    viewer: Viewer,
    job_id: str,
    problem: int | None = None,
    order: Text = None,
    state: Text = None,
    page_token: Text = None,
) -> Response:
    """One job; while it is open the page follows its events."""
    return _job(request, viewer, job_id, _choice(problem, order, state, page_token), "job.html")


@router.get("/jobs/{job_id}/live")
def job_live(
    request: Request,
    viewer: Viewer,
    job_id: str,
    problem: int | None = None,
    order: Text = None,
    state: Text = None,
    page_token: Text = None,
) -> Response:
    """The part of a job's page that changes, for htmx."""
    return _job(request, viewer, job_id, _choice(problem, order, state, page_token), "live.html")


@router.post("/jobs/{job_id}/{verb}")
def steer_job(
    request: Request,
    viewer: Viewer,
    job_id: str,
    verb: str,
    csrf: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """A button of a job's page: pause, resume or cancel."""
    if verb not in _MOVES:
        raise NotFoundError(
            f"A job cannot be told to {verb[:40]}.", field="path", value=verb, allowed=list(_MOVES)
        )
    check_csrf(viewer, csrf)
    check_scope(viewer, Scope.SUBMIT)
    number = row_id(job_id, "job")
    steer(state_of(request), viewer, number, _MOVES[verb])
    return RedirectResponse(f"/jobs/{number}", status_code=303)


@router.get("/trials/{trial_id}")
def trial(request: Request, viewer: Viewer, trial_id: str) -> Response:
    """One trial with all of its evidence."""
    with state_of(request).database.read() as s:
        shown = trial_detail(s, row_id(trial_id, "trial"))
        device = None if shown.device is None else devices.get(s, shown.device)
    problem = parse_problem(shown.problem)
    # The trial's own measurement; later ones are of races it was in.
    measured = shown.measurements[0] if shown.measurements else None
    cache = str(measured.policy.get("cache", "cold")) if measured else "cold"
    reached = roof.share(problem, shown.time_us, None if device is None else device.roof, cache)
    rate, other = views.rates(problem, shown.time_us, reached.kind)
    return page(
        "trial.html",
        viewer,
        here="jobs",
        trial=shown,
        device=device,
        measured=measured,
        roof=reached,
        rate=rate,
        other_rate=other,
        strips=[jobpage.sample_strip(m.samples_us, m.median_us) for m in shown.measurements],
        policy_text=views.policy_text,
        toolchain=views.toolchain_text(shown.toolchain),
        state_doc=TrialState(shown.state).doc,
        reason_doc=TrialReason(shown.reason).doc if shown.reason else "",
    )
