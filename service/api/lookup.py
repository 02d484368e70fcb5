"""Which kernel is to be used for a problem on a device, at which level of certainty, and why?

A lookup always has an answer with a level: `exact` (tuned, raced and served), `stale` (so, but built by
another toolchain than today's), `baseline` (the vendor's kernel won, or there is nothing to run), `none`.
Device and dtype are never ignored. Only a question that makes no sense is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rooftile.device import parse_device_key
from rooftile.errors import MISSING, FieldError
from rooftile.problem import OPEN_SIZES, Problem, nearest_name, parse_problem
from sqlalchemy.orm import Session

from search_space.device import arch_of_key
from search_space.registry import why_not
from service.api import dispatch_tables, pages, render, schemas
from service.api.routes.params import absent
from service.jobs.decide import UNRACED
from service.jobs.problem_rows import problem_record
from service.jobs.request import CACHES, LAUNCHES
from service.jobs.target import auto_device, policy_key, resolve_policy
from service.store import devices, jobs, problems, releases, trials
from service.store.enums import JobProblemState, ReleaseState, TrialState, Winner
from service.store.records import JobProblemRecord, NewDemand, ProblemRecord, ReleaseRecord

MOST_MISSES = 200
LEVELS = ("exact", "stale", "foreign", "bucket", "default", "baseline", "none")
AUTO = "auto"
_MOST_COUNT = 10**9
# Trials of a family that are looked through for the toolchain of a release, newest first.
_RECENT = 100


@dataclass(frozen=True, slots=True)
class Question:
    """A lookup whose every field is of the right kind."""

    problem: Problem
    device: str
    """A key that parses, or "auto"."""
    cache: str
    launch: str | None


def parse(body: Mapping[str, Any]) -> Question:
    """From the body of POST /v1/best; FieldError names what is wrong with it."""
    _members("", body, ("problem", "device", "policy"))
    policy = body.get("policy")
    policy = {} if policy is None else policy
    if not isinstance(policy, Mapping):
        raise FieldError("policy", policy, "an object with cache and launch")
    _members("policy.", policy, ("cache", "launch"))
    return Question(
        problem=_problem("problem", body.get("problem", MISSING)),
        device=_device("device", body.get("device", AUTO)),
        cache=_word("policy.cache", policy.get("cache", "cold"), CACHES),
        launch=None if policy.get("launch") is None else _word("policy.launch", policy["launch"], LAUNCHES),
    )


def parse_misses(body: Mapping[str, Any]) -> list[NewDemand]:
    """From the body of POST /v1/demand."""
    _members("", body, ("misses",))
    rows = body.get("misses", MISSING)
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_MISSES:
        raise FieldError("misses", rows, f"a list of 1 to {MOST_MISSES} entries")
    out = []
    for index, row in enumerate(rows):
        path = f"misses[{index}]"
        if not isinstance(row, Mapping):
            raise FieldError(path, row, "an object with problem and device")
        _members(f"{path}.", row, ("problem", "device", "policy", "level", "count"))
        try:
            question = parse({name: row[name] for name in ("problem", "device", "policy") if name in row})
        except FieldError as error:
            raise FieldError(f"{path}.{error.field}", error.value, error.allowed, error.nearest) from None
        if question.device == AUTO:
            raise FieldError(f"{path}.device", row.get("device", MISSING), "the key of the client's device")
        count = row.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_COUNT:
            raise FieldError(f"{path}.count", count, f"a whole number from 1 to {_MOST_COUNT}")
        policy = resolve_policy(question.cache, question.launch, question.device)
        out.append(
            NewDemand(
                problem=problem_record(question.problem),
                device_key=question.device,
                policy_key=policy_key(policy),
                level=_word(f"{path}.level", row.get("level", "none"), LEVELS),
                count=count,
            )
        )
    return out


Answer: TypeAlias = tuple[schemas.Best, ReleaseRecord | None]
"""And the release that alone it stands on; None where it hangs on more than that."""


def best(s: Session, question: Question) -> schemas.Best:
    """The answer. FieldError only where `auto` could mean several devices."""
    answer = best_of(s, [question])[0]
    if isinstance(answer, FieldError):
        raise answer
    return answer[0]


def best_of(s: Session, questions: Sequence[Question]) -> list[Answer | FieldError]:
    """The answers to some questions, which take one query together where all are served."""
    placed = [_place(s, question) for question in questions]
    lines = {one.line for one in placed if isinstance(one, _Placed)}
    served = releases.served(s, lines) if lines else {}
    return [_best(s, one, served.get(one.line)) if isinstance(one, _Placed) else one for one in placed]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A question with its device and policy."""

    question: Question
    device: str
    policy: dict[str, str]
    line: tuple[str, str, str]


def _place(s: Session, question: Question) -> _Placed | Answer | FieldError:
    try:
        device = auto_device(s, "device") if question.device == AUTO else question.device
        if device is None:
            reason = "No device is known to this service, so auto means none; name the device's key."
            asked = {"cache": question.cache, "launch": question.launch}
            return _nothing(question, None, asked, "none", reason), None
        policy = resolve_policy(question.cache, question.launch, device)
    except FieldError as error:
        return error
    if question.problem.empty:
        reason = "A size is 0: there is nothing to tune, and the client gives the empty result or beta*C."
        return _nothing(question, device, policy, "baseline", reason), None
    return _Placed(question, device, policy, (question.problem.key, device, policy_key(policy)))


def _best(s: Session, placed: _Placed, found: tuple[ReleaseRecord, str | None] | None) -> Answer:
    if found is None:
        reason = _why_none(s, placed.question.problem, placed.device, placed.policy)
        return _nothing(placed.question, placed.device, placed.policy, "none", reason), None
    row, newest = found
    alone = row if placed.question.device != AUTO else None  # which device auto means may change
    if row.winner is Winner.BASELINE:
        reason = row.reason or "The vendor's kernel won the race; the client calls it."
        return _answer(row, "baseline", reason), alone
    newer = _newer_toolchain(s, row) if newest not in (None, row.toolchain_key) else None
    if newer is not None:
        return _answer(row, "stale", newer), alone
    return _answer(row, "exact", row.reason or "Tuned, raced and served for exactly this."), alone


def _answer(row: ReleaseRecord, level: str, reason: str) -> schemas.Best:
    shown = render.release(row)
    if row.winner is Winner.TRIAL and row.baseline_time_us is None and UNRACED not in reason:
        reason = f"{reason.rstrip('.')}; {UNRACED}."
    if shown.unproven:
        reason = f"{reason.rstrip('.')}; unproven: no emulated verdict speaks for it."
    return schemas.Best(
        level=level,
        reason=reason,
        problem_key=shown.problem_key,
        problem=shown.problem,
        device=shown.device,
        policy=shown.policy,
        release_id=shown.release_id,
        generation=shown.generation,
        arch=shown.arch,
        family=shown.family,
        schedule=shown.schedule,
        schedule_text=shown.schedule_text,
        time_us=shown.time_us,
        baseline_time_us=shown.baseline_time_us,
        artifact=shown.artifact,
        pool=shown.pool,
        launch=shown.launch,
        toolchain=shown.toolchain,
        noise=shown.noise,
        tie_set=shown.tie_set,
        unproven=shown.unproven,
        published_at=shown.published_at,
    )


def _nothing(
    question: Question, device: str | None, policy: Mapping[str, Any], level: str, reason: str
) -> schemas.Best:
    empty = dict.fromkeys(
        name
        for name in schemas.Best.model_fields
        if name not in ("level", "reason", "problem_key", "problem", "device", "policy")
    )
    return schemas.Best(
        **empty,
        level=level,
        reason=reason,
        problem_key=question.problem.key,
        problem=question.problem.to_json(),
        device=device,
        policy=dict(policy),
    )


def _why_none(s: Session, problem: Problem, device: str, policy: Mapping[str, Any]) -> str:
    """The most telling of the reasons why nothing is served, and what was ranked for an arch."""
    ranked = _ranked(s, problem)
    return f"{_why_none_here(s, problem, device, policy)}{ranked}"


def _why_none_here(s: Session, problem: Problem, device: str, policy: Mapping[str, Any]) -> str:
    record = devices.get(s, device)
    arch = record.arch if record is not None else arch_of_key(device)
    if arch is not None:
        reasons = why_not(problem, arch)
        if reasons:
            return f"Nothing can be tuned for it on {arch}: {reasons[0].message}."
    before = releases.history(s, problem.key, device, policy_key(policy))
    if before:
        last = before[0]
        word = "was withdrawn" if last.state is ReleaseState.WITHDRAWN else f"is {last.state}"
        return f"Release {last.id} {word}" + (f": {last.reason}." if last.reason else ".")
    tried = _tried(s, problem, device, policy)
    if tried is not None:
        return tried
    served = releases.for_problem(s, problem.key)
    if served:
        near = served[0]
        differs = "device" if near.device_key != device else "policy"
        there = near.device_key if differs == "device" else f"{near.policy_key}"
        return f"Not tuned for this {differs}; it is for the {differs} {there} (release {near.id})."
    return "Not tuned yet; `rooftile submit` or POST /v1/jobs tunes it."


def _tried(s: Session, problem: Problem, device: str, policy: Mapping[str, Any]) -> str | None:
    """What the newest job for exactly this does, or why it released nothing; None where there was none."""
    for row in jobs.of_problem_key(s, problem.key, device, limit=_RECENT):
        job = jobs.get(s, row.job_id)
        if job is None or job.policy_key != policy_key(policy):
            continue
        if row.state is JobProblemState.FAILED:
            why = row.message or ("" if row.reason is None else row.reason.doc)
            return f"Job {job.id} has no answer for it. {why}".rstrip()
        if row.state is JobProblemState.CANCELLED:
            return f"Job {job.id} was cancelled before it released anything; POST /v1/jobs tunes it again."
        if row.finished_at is None:
            return f"Job {job.id} is to tune it: {row.state} at present."
        return None
    return None


def _ranked(s: Session, problem: Problem) -> str:
    """That newest jobs without a device ranked it, a sentence for each arch; empty where none did."""
    told: dict[str, str] = {}
    for row in jobs.of_problem_key(s, problem.key, limit=_RECENT):
        if row.device_key is not None or row.arch in told:
            continue
        best = trials.ranked(s, row.id, 1)
        if best:
            told[row.arch] = (
                f" Ranked for {row.arch} without a device in job {row.job_id}: trial {best[0].id},"
                f" {best[0].predicted_us:.3g} us expected, not yet timed."
            )
    return "".join(told.values())


def _newer_toolchain(s: Session, row: ReleaseRecord) -> str | None:
    """Why the release is stale: its family was built by another toolchain since. None: it is not."""
    if row.toolchain_key is None or row.family is None:
        return None

    def recent(limit: int) -> list[str]:
        found = trials.listing(
            s,
            device_key=row.device_key,
            family=row.family,
            states=(TrialState.MEASURED, TrialState.CULLED),
            order="newest",
            limit=limit,
        )
        return [
            trial.toolchain_key
            for trial in found.rows
            if trial.toolchain_key is not None
            and trial.job_id != row.job_id
            and trial.id > (row.trial_id or 0)
        ]

    newest = recent(1)
    if not newest or newest[0] == row.toolchain_key or row.toolchain_key in recent(_RECENT):
        return None
    return (
        f"Built by another toolchain than the newest kernels of {row.family} on this device; tune it again."
    )


def problem(
    s: Session, row: ProblemRecord, served: Sequence[ReleaseRecord], limit: int | None, token: str | None
) -> schemas.ProblemOut:
    """A problem with its work, what is served for it, and a page of who tuned it."""
    kind = f"problem-{row.key[:16]}"
    page = pages.page(kind, limit, token, (int,))
    before = None if page.after is None else page.after[0]
    assert before is None or isinstance(before, int)
    found = jobs.of_problem_key(s, row.key, limit=page.limit + 1, before=before)
    shown = found[: page.limit]
    parsed = parse_problem(row.spec)
    return schemas.ProblemOut(
        problem_key=row.key,
        layer_key=row.layer_key,
        op=row.op,
        title=row.title,
        problem=dict(row.spec),
        flops=float(parsed.flops),
        min_bytes=float(parsed.min_bytes),
        releases=[render.release(release) for release in served],
        jobs=[_problem_job(s, one) for one in shown],
        next_page_token=pages.encode_token(kind, (shown[-1].id,)) if len(found) > len(shown) else None,
    )


def _problem_job(s: Session, row: JobProblemRecord) -> schemas.ProblemJob:
    best = trials.ranked(s, row.id, 1) if row.device_key is None else []
    return schemas.ProblemJob(
        job_id=row.job_id,
        device=row.device_key,
        arch=row.arch,
        state=str(row.state),
        reason=None if row.reason is None else str(row.reason),
        message=row.message,
        trial_id=best[0].id if best else None,
        predicted_us=best[0].predicted_us if best else None,
    )


def table(
    s: Session,
    layer_key: str,
    device: str,
    cache: str | None,
    launch: str | None,
    *,
    limit: int | None,
    token: str | None,
) -> schemas.Table:
    """What is served at each tuned size of a layer on one device, page by page; NotFoundError for an unknown
    layer."""
    known = problems.of_layer(s, layer_key)
    if not known:
        raise absent("layer", layer_key, "layer_key")
    asked = _device("device", device)
    key = auto_device(s, "device") if asked == AUTO else asked
    if key is None:
        raise FieldError("device", device, "the key of a device (none is known, so auto means none)")
    policy = resolve_policy(
        _word("cache", cache or "cold", CACHES),
        None if not launch else _word("launch", launch, LAUNCHES),
        key,
    )
    names = OPEN_SIZES[known[0].op]
    kind = f"table-{layer_key[:16]}"
    page = pages.page(kind, pages.MAX_LIMIT if limit is None else limit, token, (int,) * len(names))
    # The sizes of all, which are small, put the rows in order; only a page of them is read whole.
    sizes = {
        row_id: tuple(int(spec[name]) for name in reversed(names))
        for row_id, spec in releases.for_layer(s, layer_key, key, policy_key(policy))
    }
    left = sorted((at, row_id) for row_id, at in sizes.items() if page.after is None or at > page.after)
    shown = left[: page.limit]
    return schemas.Table(
        layer_key=layer_key,
        device=key,
        policy=dict(policy),
        open=list(names),
        rows=[_table_row(row, names) for row in releases.several(s, [row_id for _, row_id in shown])],
        dispatch=dispatch_tables.shown(s, layer_key, key, policy_key(policy)),
        next_page_token=pages.encode_token(kind, shown[-1][0]) if len(left) > len(shown) else None,
    )


def _table_row(row: ReleaseRecord, names: Sequence[str]) -> schemas.TableRow:
    return schemas.TableRow(
        sizes={name: int(row.problem[name]) for name in names},
        problem_key=row.problem_key,
        release_id=row.id,
        level=render.level(row),
        time_us=row.time_us,
        baseline_time_us=row.baseline_time_us,
        artifact=row.artifact_sha256,
        pool=row.pool_sha256,
        schedule=None if row.schedule is None else dict(row.schedule),
        schedule_text=None if row.schedule is None else render.schedule_text(row.schedule),
        launch=None if row.plan is None else dict(row.plan),
    )


# ---------------------------------------------------------------- fields


def _problem(path: str, value: object) -> Problem:
    if value is MISSING:
        raise FieldError(path, MISSING, "an object with op, its sizes and dtype")
    try:
        return parse_problem(value)
    except FieldError as error:
        field = path if error.field in ("problem", "") else f"{path}.{error.field}"
        raise FieldError(field, error.value, error.allowed, error.nearest) from None


def _device(path: str, value: object) -> str:
    if value == AUTO:
        return AUTO
    try:
        return str(parse_device_key(value))
    except FieldError as error:
        raise FieldError(path, error.value, error.allowed, error.nearest) from None


def _word(path: str, value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in names:
        return value
    raise FieldError(path, value, f"one of {', '.join(names)}", nearest_name(value, names))


def _members(prefix: str, value: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in value:
        if name not in names:
            shown = prefix + (name[:64] or '""')
            raise FieldError(
                shown, value[name], f"no such field; there are {', '.join(names)}", nearest_name(name, names)
            )
