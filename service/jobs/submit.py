"""How does a request become a job: checked against devices and families, and joined to an equal one?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rooftile.errors import FieldError
from rooftile.problem import nearest_name, sha256_key
from sqlalchemy.orm import Session

from search_space.family import Parameter
from search_space.registry import get_family
from service.jobs.lifecycle import why_without
from service.jobs.lines import Line
from service.jobs.problem_rows import problem_record
from service.jobs.request import Budget, JobRequest
from service.jobs.swept import Wanted
from service.jobs.target import (
    Place,
    arch_model,
    check_families,
    check_memory,
    device_model,
    places,
    policy_for,
    policy_key,
)
from service.store import devices, jobs
from service.store.database import Database
from service.store.enums import JobReason, JobState
from service.store.records import DeviceRecord, JobRecord, NewJob, NewJobProblem

DEFAULT_TRIALS = 64
"""For each problem of a job that sets no budget."""

T = TypeVar("T")


def submit(
    where: Session | Database, request: JobRequest | Mapping[str, Any], token_id: int | None = None
) -> tuple[JobRecord, bool]:
    """(the new job, True), or (the open job that asks for the same, False).

    Raises FieldError. With a Session the caller's transaction is used; with a Database one of its own.
    """
    asked = request if isinstance(request, JobRequest) else JobRequest.parse(request)
    return in_transaction(where, lambda s: jobs.create(s, _new_job(s, asked, token_id)))


def in_transaction(where: Session | Database, fn: Callable[[Session], T]) -> T:
    """`fn` in the caller's session, or in a transaction of its own."""
    return where.run(fn) if isinstance(where, Database) else fn(where)


def _new_job(s: Session, asked: JobRequest, token_id: int | None) -> NewJob:
    spots = places(s, asked.target)
    rows = {spot.device_key: devices.get(s, spot.device_key) for spot in spots if spot.device_key}
    policy = policy_for(asked.cache, asked.launch, cpu=spots[0].arch.startswith("x86"))
    pairs = [(wanted, spot) for wanted in asked.problems for spot in spots]
    for wanted, spot in pairs:
        if not wanted.problem.empty:
            row = rows.get(spot.device_key or "")
            check_memory(wanted.problem, spot, row, wanted.path)
            families = check_families(wanted.problem, spot, asked.families, wanted.path)
            if asked.params:
                _check_params(asked, wanted, spot, row, families)
    busy = [(wanted, spot) for wanted, spot in pairs if not wanted.problem.empty]
    count = _count(asked, busy)
    budget = _budget(asked.budget, count, timed=spots[0].device_key is not None)
    state, reason, message = _first_state(busy, rows)
    target = _target_json(spots)
    options: dict[str, Any] = {
        "families": None if asked.families is None else list(asked.families),
        "params": {name: list(values) for name, values in asked.params.items()},
        "emulate": asked.emulate,
        "early_stop": asked.early_stop,
        "force": asked.force,
    }
    made = _shares(pairs, budget, asked)
    if asked.lines:
        paid = _paid(asked.lines, made)
        options["lines"] = [line.to_json() for line in paid]
        made = [one if one.line is None else _share_of_line(one, paid[one.line]) for one in made]
    if asked.weighted:
        options["weighted"] = True
    same = {
        "problems": [[wanted.problem.key, wanted.weight] for wanted in asked.problems],
        "target": target,
        "policy": policy,
        "budget": budget.to_json(),
        "seed": asked.seed,
        "options": options,
    }
    return NewJob(
        request=dict(asked.body),
        target=target,
        policy=policy,
        policy_key=policy_key(policy),
        problems=made,
        budget_trials=budget.trials,
        budget_seconds=budget.seconds,
        budget_device_seconds=budget.device_seconds,
        priority=asked.priority,
        seed=asked.seed,
        token_id=token_id,
        dedup_key=None if asked.force else sha256_key(same),
        options=options,
        state=state,
        reason=reason,
        message=message,
    )


def _first_state(
    busy: Sequence[tuple[Wanted, Place]], rows: Mapping[str, DeviceRecord | None]
) -> tuple[JobState, JobReason | None, str]:
    if not busy:
        return JobState.DONE, JobReason.EMPTY_PROBLEM, ""
    if any(spot.device_key is None for _, spot in busy):
        return JobState.QUEUED, None, ""
    asked = {spot.device_key: rows.get(spot.device_key) for _, spot in busy if spot.device_key is not None}
    if any(row is not None and row.connected for row in asked.values()):
        return JobState.QUEUED, None, ""
    return JobState.WAITING, *why_without(asked)


def _target_json(spots: Sequence[Place]) -> dict[str, Any]:
    if spots[0].device_key is None:
        return {"arch": spots[0].arch}
    if len(spots) == 1:
        return {"device": spots[0].device_key}
    return {"devices": [spot.device_key for spot in spots]}


# ---------------------------------------------------------------- budgets


def _budget(given: Budget, count: int, *, timed: bool) -> Budget:
    """The budget with its default; FieldError when there are more problems than trials, or when nothing is
    timed and device seconds, of which none is ever spent, are all that could end the job."""
    if given == Budget():
        return Budget(trials=DEFAULT_TRIALS * count) if count else given
    if count and not timed and given.trials is None and given.seconds is None:
        allowed = "what goes beside trials or seconds: a job for an arch runs on no device, so it spends none"
        raise FieldError("budget.device_seconds", given.device_seconds, allowed)
    if given.trials is not None and given.trials < count:
        allowed = f"at least {count}, one for each problem and device"
        raise FieldError("budget.trials", given.trials, allowed, count)
    return given


def _count(asked: JobRequest, busy: Sequence[tuple[Wanted, Place]]) -> int:
    """How many problems there will be: of a range, as many as may be tuned."""
    listed = sum(1 for wanted, _ in busy if wanted.line is None or not asked.lines[wanted.line].chosen)
    begun = {(wanted.line, spot) for wanted, spot in busy if wanted.line is not None}
    return listed + sum(asked.lines[i].tune for i, _ in begun if asked.lines[i].chosen)


def _shares(pairs: Sequence[tuple[Wanted, Place]], budget: Budget, asked: JobRequest) -> list[NewJobProblem]:
    """Each problem on each device with its share by weight. Seconds are shared again whenever a problem
    starts, because what the ones before it left over passes on."""
    weights = [0.0 if wanted.problem.empty else _weight(wanted, asked) for wanted, _ in pairs]
    total = sum(weights) or 1.0
    trials = share_trials(budget.trials, weights)

    def part(amount: float | None, weight: float) -> float | None:
        return None if amount is None or weight == 0 else amount * weight / total

    return [
        NewJobProblem(
            problem=problem_record(wanted.problem),
            device_key=spot.device_key,
            arch=spot.arch,
            weight=wanted.weight,
            budget_trials=count,
            budget_seconds=part(budget.seconds, weight),
            budget_device_seconds=part(budget.device_seconds, weight),
            seed=asked.seed,
            line=wanted.line,
        )
        for (wanted, spot), weight, count in zip(pairs, weights, trials, strict=True)
    ]


def _weight(wanted: Wanted, asked: JobRequest) -> float:
    """The first sizes of a range have the shares of those that are still to be chosen too."""
    if wanted.line is None or not asked.lines[wanted.line].chosen:
        return wanted.weight
    line = asked.lines[wanted.line]
    return wanted.weight * line.tune / len(line.first_sizes())


def _paid(lines: Sequence[Line], made: Sequence[NewJobProblem]) -> list[Line]:
    """The lines with what their sizes have together on one device; lists leave each size its own share."""
    found = []
    for index, line in enumerate(lines):
        rows = [one for one in made if one.line == index]
        mine = [one for one in rows if one.device_key == rows[0].device_key]
        trials = [one.budget_trials for one in mine if one.budget_trials is not None]
        device = [one.budget_device_seconds for one in mine if one.budget_device_seconds is not None]
        if line.chosen:
            line = line.with_budget(sum(trials) if trials else None, sum(device) if device else None)
        found.append(line)
    return found


def _share_of_line(one: NewJobProblem, line: Line) -> NewJobProblem:
    """The first sizes of a range with a share as those will have that are chosen later."""
    if not line.chosen:
        return one
    return replace(
        one,
        budget_trials=line.share_trials(),
        budget_device_seconds=line.share_device_seconds(),
    )


def share_trials(total: int | None, weights: Sequence[float]) -> list[int | None]:
    """Whole trials by weight: at least one for each weight above 0, all of them given out."""
    if total is None:
        return [None] * len(weights)
    busy = [i for i, weight in enumerate(weights) if weight > 0]
    shares = [0] * len(weights)
    left = total - len(busy)
    whole = sum(weights)
    exact = {i: left * weights[i] / whole for i in busy}
    for i in busy:
        shares[i] = 1 + math.floor(exact[i])
    rest = total - sum(shares)
    for i in sorted(busy, key=lambda i: (math.floor(exact[i]) - exact[i], i))[: max(0, rest)]:
        shares[i] += 1
    return list(shares)


# ---------------------------------------------------------------- limits on the schedule


def _check_params(
    asked: JobRequest, wanted: Wanted, spot: Place, row: DeviceRecord | None, families: Sequence[str]
) -> None:
    """Every name is a parameter of a family that will be searched, every value one of its choices."""
    device = arch_model(spot.arch) if spot.device_key is None else device_model(spot.device_key, row)
    known: dict[str, dict[str, Parameter]] = {}
    for family in families:
        for parameter in get_family(family).parameters(wanted.problem, device):
            known.setdefault(parameter.name, {})[family] = parameter
    for name, values in asked.params.items():
        path = "params." + (name[:64] or '""')
        if name not in known:
            listed = ", ".join(known)
            allowed = f"a parameter that can be set here: {listed}"
            given = list(values) if len(values) > 1 else values[0]
            raise FieldError(path, given, allowed, nearest_name(name, tuple(known)))
        choices = [choice for parameter in known[name].values() for choice in parameter.choices]
        for value in values:
            if not any(type(value) is type(choice) and value == choice for choice in choices):
                left_out = [parameter.why_left_out(value) for parameter in known[name].values()]
                why = next(filter(None, left_out), "")
                allowed = f"one of {_listed(known[name])} for {wanted.path}"
                allowed += f" (left out: {why})" if why else ""
                raise FieldError(path, value, allowed, _near(value, choices))


def _listed(parameters: Mapping[str, Parameter]) -> str:
    """The choices of a parameter, family by family where they differ."""
    texts = {family: ", ".join(map(str, one.choices)) for family, one in parameters.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{text} ({family})" for family, text in texts.items())


def _near(value: object, choices: Sequence[object]) -> object:
    numbers = [c for c in choices if isinstance(c, int) and not isinstance(c, bool)]
    if isinstance(value, int) and numbers:
        return min(numbers, key=lambda c: abs(c - value))
    return nearest_name(value, tuple(c for c in choices if isinstance(c, str)))
