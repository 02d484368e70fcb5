"""What is known about one schedule that was tried, and about all of a job?"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from rooftile.problem import parse_problem
from sqlalchemy.orm import Session
from starlette.requests import Request

from service.api import pages, render, schemas
from service.api.auth import needs
from service.api.openapi import errors
from service.api.routes.params import IdPath, LimitQuery, TokenQuery, absent, one_of, row_id
from service.api.state import state_of
from service.store import jobs, trials
from service.store.enums import Scope, TrialState

router = APIRouter(tags=["trials"])

ORDERS: dict[str, tuple[type, ...]] = {
    "oldest": (int,),
    "newest": (int,),
    "fastest": (float, int),
    "predicted": (float, int),
}


@router.get(
    "/v1/jobs/{job_id:id}/trials",
    dependencies=[needs(Scope.READ)],
    responses=errors(404),
    response_model=schemas.TrialPage,
)
def list_trials(
    request: Request,
    job_id: IdPath,
    limit: LimitQuery = None,
    page_token: TokenQuery = None,
    state: Annotated[str | None, Query(description="only trials in this state")] = None,
    order: Annotated[str | None, Query(description="oldest (default), newest, fastest or predicted")] = None,
) -> schemas.TrialPage:
    """The trials of a job, page by page."""
    number = row_id(job_id, "job")
    how = one_of(order, tuple(ORDERS), "order") or "oldest"
    wanted = one_of(state, tuple(str(state) for state in TrialState), "state")
    with state_of(request).database.read() as s:
        if jobs.get(s, number) is None:
            raise absent("job", number)
        return page_of_trials(s, number, how, wanted, limit, page_token)


def page_of_trials(
    s: Session, job_id: int, order: str, state: str | None, limit: int | None, token: str | None
) -> schemas.TrialPage:
    """One page; the token belongs to this job and order."""
    kind = f"trials-{job_id}-{order}"
    page = pages.page(kind, limit, token, ORDERS[order])
    found = trials.listing(
        s,
        job_id=job_id,
        states=None if state is None else [TrialState(state)],
        order=order,
        after=page.after,  # type: ignore[arg-type]  # decode_token checked its shape
        limit=page.limit,
    )
    return schemas.TrialPage(
        trials=[render.trial(row) for row in found.rows],
        next_page_token=None if found.next is None else pages.encode_token(kind, found.next),
    )


@router.get(
    "/v1/trials/{trial_id:id}",
    dependencies=[needs(Scope.READ)],
    responses=errors(404),
    response_model=schemas.TrialDetail,
)
def get_trial(request: Request, trial_id: IdPath) -> schemas.TrialDetail:
    """One trial with its evidence: schedule, verdicts, every sample, toolchain, and how to repeat it."""
    with state_of(request).database.read() as s:
        return trial_detail(s, row_id(trial_id, "trial"))


def trial_detail(s: Session, trial_id: int) -> schemas.TrialDetail:
    row = trials.detail(s, trial_id)
    if row is None:
        raise absent("trial", trial_id)
    job, problem = jobs.get(s, row.trial.job_id), jobs.problem(s, row.trial.job_problem_id)
    return render.trial_detail(
        row,
        parse_problem(row.problem).title(),
        {} if job is None else job.policy,
        over=problem is None or problem.finished_at is not None,
    )
