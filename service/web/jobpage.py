"""What does the page of one job show, live and after its end?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from rooftile.problem import parse_problem
from sqlalchemy.orm import Session

from service.api import jobview, schemas
from service.api.auth import Principal
from service.api.routes.jobs import steers
from service.api.routes.trials import page_of_trials
from service.store import devices, trials
from service.store.enums import JobProblemReason, JobReason, JobState, TrialReason, TrialState, Word
from service.store.records import JobRecord
from service.web import roof, svg, units, views
from service.web.views import Pager

# Trials that the picture shows; of more only the newest (a page must not grow with its job).
MOST_DOTS = 1000
ROWS = 50


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a job the reader wants to see, as it stands in the address."""

    problem: int | None = None
    order: str = "newest"
    state: str | None = None
    page_token: str | None = None

    def query(self, path: str, **changes: Any) -> str:
        given = {
            "problem": self.problem,
            "order": None if self.order == "newest" else self.order,
            "state": self.state,
            "page_token": self.page_token,
            **changes,
        }
        kept = {name: value for name, value in given.items() if value}
        return f"{path}?{urlencode(kept)}" if kept else path


def context(s: Session, job: JobRecord, choice: Choice, principal: Principal) -> dict[str, Any]:
    """Everything the templates `job.html` and `live.html` need."""
    shown = jobview.full(s, job)
    chosen = next((p for p in shown.problems if p.id == choice.problem), None) or _default_problem(shown)
    path = f"/jobs/{job.id}"
    timed = any(problem.device is not None for problem in shown.problems)
    if choice.order == "fastest" and not timed:
        choice = replace(choice, order="predicted")  # nobody times its trials
    table = page_of_trials(s, job.id, choice.order, choice.state, ROWS, choice.page_token)
    return {
        "job": shown,
        "over": not job.open,
        "chosen": chosen,
        "choice": choice,
        "path": path,
        "live_url": choice.query(f"{path}/live"),
        "state_doc": _doc(JobState, shown.state),
        "reason_doc": _doc(JobReason, shown.reason),
        "steps": _buttons(job) if steers(s, principal, job.id) else [],
        "ended": sum(n for state, n in shown.counts.items() if state not in _OPEN),
        "under_way": sum(n for state, n in shown.counts.items() if state in _OPEN),
        "outcomes": [_outcome(row) for row in shown.outcomes],
        "best": _best(s, shown, chosen),
        "chart": _chart(s, chosen),
        "table": table,
        "orders": ("newest", "oldest", "fastest" if timed else "predicted"),
        "filters": ("measured" if timed else "ranked", "failed", "rejected"),
        "many": len(shown.problems) > 1,
        "problem_titles": {problem.id: problem.title for problem in shown.problems},
        "pager_links": Pager(
            first=choice.query(path, page_token=None) + "#trials" if choice.page_token else None,
            next=choice.query(path, page_token=table.next_page_token) + "#trials"
            if table.next_page_token
            else None,
        ),
        "budget": budget_text(shown.budget),
        "problem_reason_docs": {str(reason): reason.doc for reason in JobProblemReason},
        "policy": views.policy_text(shown.policy),
        "trial_states": [str(state) for state in TrialState],
        "reason_docs": {str(reason): reason.doc for reason in TrialReason},
    }


_OPEN = ("proposed", "compiled", "measuring")


def budget_text(budget: schemas.Budget) -> str:
    """The limits that a job has."""
    parts = []
    if budget.trials is not None:
        parts.append(units.counted(budget.trials, "trial"))
    if budget.seconds is not None:
        parts.append(units.seconds(budget.seconds))
    if budget.device_seconds is not None:
        parts.append(f"{units.seconds(budget.device_seconds)} of the device")
    return ", ".join(parts) or "none"


def _default_problem(job: schemas.Job) -> schemas.JobProblem | None:
    """The one at work, else the last that got somewhere, else the first."""
    for states in (("searching", "racing", "proving"), ("done",)):
        for problem in reversed(job.problems):
            if problem.state in states and (problem.counts or states[0] == "searching"):
                return problem
    return job.problems[0] if job.problems else None


def _doc(kind: type[Word], word: str | None) -> str:
    return "" if word is None else kind(word).doc


def _buttons(job: JobRecord) -> list[tuple[str, str, str]]:
    """(verb, label, class) of what can be done now."""
    if not job.open or job.state is JobState.FINISHING:
        return []
    first = ("resume", "Resume", "primary") if job.state is JobState.PAUSED else ("pause", "Pause", "")
    return [first, ("cancel", "Cancel job", "danger")]


def _outcome(row: schemas.Outcome) -> dict[str, Any]:
    words = f"{row.state}: {row.reason.replace('_', ' ')}" if row.reason else row.state
    doc = TrialReason(row.reason).doc if row.reason else TrialState(row.state).doc
    return {"count": row.count, "words": words, "doc": doc, "state": row.state}


def _best(s: Session, job: schemas.Job, chosen: schemas.JobProblem | None) -> dict[str, Any] | None:
    """The figures of the best so far of the chosen problem."""
    if chosen is None or chosen.best is None:
        return None
    best = chosen.best
    problem = parse_problem(chosen.problem)
    device = None if best.device is None else devices.get(s, best.device)
    cache = str(job.policy.get("cache", "cold"))
    reached = roof.share(problem, best.time_us, None if device is None else device.roof, cache)
    rate, other = views.rates(problem, best.time_us, reached.kind)
    return {"row": best, "roof": reached, "rate": rate, "other_rate": other}


def _chart(s: Session, chosen: schemas.JobProblem | None) -> dict[str, Any] | None:
    if chosen is None:
        return None
    total = sum(chosen.counts.values())
    found = trials.listing(s, job_problem_id=chosen.id, order="newest", limit=MOST_DOTS)
    dots = [
        svg.Dot(row.number, row.id, "contended" if row.contended else str(row.state), row.time_us)
        for row in sorted(found.rows, key=lambda row: row.number)
    ]
    baseline = None if chosen.best is None else chosen.best.baseline_time_us
    steps = svg.best_steps(dots)
    return {
        "wide": svg.convergence(dots, baseline, width=700, height=270),
        "narrow": svg.convergence(dots, baseline, width=360, height=230),
        "steps": [
            {
                "trial_id": step.trial_id,
                "time": units.time_us(step.time_us),
                "gain": units.ratio(steps[0].time_us / step.time_us),
            }
            for step in steps
        ],
        "hollow": sorted({dot.outcome for dot in dots if dot.time_us and dot.outcome != "measured"}),
        "cut": total if total > len(dots) else None,
        "shown": len(dots),
    }


def sample_strip(samples: list[float], median: float, width: int = 560) -> Markup:
    """Every sample of a measurement on one axis, with the median marked."""
    if not samples:
        return Markup("")
    low, high = min(samples), max(samples)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return round(10 + (value - low) / span * (width - 20), 1)

    dots = "".join(
        f'<circle class="dot" cx="{x(value)}" cy="{14 + index % 5 * 4}" r="2.6"/>'
        for index, value in enumerate(samples[:400])
    )
    return Markup(
        f'<svg class="strip" viewBox="0 0 {width} 44" role="img" '
        f'aria-label="{len(samples)} samples from {units.time_us(low)} to {units.time_us(high)}">'
        f'<line class="axis" x1="10" y1="38" x2="{width - 10}" y2="38"/>{dots}'
        f'<line class="median" x1="{x(median)}" y1="4" x2="{x(median)}" y2="42"/></svg>'
    )
