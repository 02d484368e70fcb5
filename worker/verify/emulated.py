"""Is a CUDA schedule right in the emulator: its own PTX, on small problems that keep its structure?

For each of the family's proof problems (numbers and pitches: worker/verify/proof_cases.py), and each order in
which asynchronous work may complete: fresh inputs from a recorded seed, poisoned outputs, a run of the
LaunchPlan, then every element against float64 within the bounds that the device check uses, NaN where the
reference has it, and nothing written beside them. The emulator's own accusations come first: they say more
than the wrong numbers they may have caused. A plan that says it is deterministic must give the same bits in
every order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from rooftile.errors import RooftileError
from rooftile.plan import Launch, LaunchPlan
from rooftile.problem import Problem

from emulator import EmulatorError, FaultKind, Limits, Operand, Order, Program, Region, run_plan
from service.store.enums import TrialReason
from worker.verify.cases import Case
from worker.verify.checks import Target, VerifyFailure
from worker.verify.poison import pattern, words
from worker.verify.prepared import PreparedCase, prepare_case, strided
from worker.verify.proof_cases import ProofCase, byte_strides, proof_cases

if TYPE_CHECKING:
    from search_space.device import Device
    from search_space.family import Family, SharedArea
    from search_space.schedule import Schedule

EARLY, LATE = Order("early"), Order("late")
ORDERS = (EARLY, LATE)
# A base is put just as far off as the plan allows: an access that counts on more is misaligned.
_MOST_MISALIGN = 128
_FAULTS_KEPT = 20

# FaultKind -> why the trial ends; every accusation is a wrong kernel, but for a limit, which says nothing.
_REASONS = {kind: TrialReason(str(kind)) for kind in FaultKind if kind is not FaultKind.LIMIT}


class UndecidedError(Exception):
    """The run could not be brought to its end, so it says nothing; `reason` and `evidence` say why."""

    def __init__(self, reason: TrialReason, message: str, **more: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.evidence: dict[str, object] = {"message": message, **more}


@dataclass(frozen=True)
class EmulatedVerdict:
    """What the emulator says of one schedule."""

    passed: bool
    reason: TrialReason | None
    seeds: tuple[int, ...]
    checks: tuple[Mapping[str, Any], ...]
    """One for each problem and order that was run."""
    max_error: float | None
    bound: float | None
    counters: Mapping[str, Any]
    """Of the first problem with copies as late as possible: what explains the schedule's speed."""
    evidence: Mapping[str, Any]
    seconds: float


@dataclass
class _Run:
    """What has been found so far."""

    checks: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    max_error: float | None = None
    bound: float | None = None
    counters: dict[str, Any] = field(default_factory=dict)


def prove(
    ptx: str | bytes,
    family: Family,
    problem: Problem,
    device: Device,
    schedule: Schedule,
    *,
    problems: Sequence[Problem] | None = None,
    orders: Sequence[Order] = ORDERS,
    extra: Sequence[Order] = (),
    seed: int = 0,
    limits: Limits | None = None,
    accuse: bool = True,
    beside: bool = True,
) -> EmulatedVerdict:
    """Run everything, up to the first thing that is wrong. `extra` orders are run on the first problem only.
    Without `accuse` only numbers count: that tells whether a mistake would have shown in them. Without
    `beside` the problems alone are run, none of them again with other numbers.

    Raises UndecidedError where the PTX or the plan is beyond the emulator, or a run met its limit.
    """
    started = time.monotonic()
    chosen = tuple(problems) if problems is not None else family.proof_problems(problem, device, schedule)
    if not chosen:
        raise UndecidedError(
            TrialReason.NOT_EMULATED, f"{family.name} names no problems to prove {schedule.one_line()} on."
        )
    try:
        program = Program.from_ptx(ptx)
    except EmulatorError as error:
        raise UndecidedError(TrialReason.NOT_EMULATED, str(error)) from None
    wanted = family.build(problem, device, schedule)
    roles = family.roles(problem, device, schedule)
    run = _Run()
    cases = proof_cases(chosen, seed)
    for index, this in enumerate(cases if beside else cases[: len(chosen)]):
        small = this.case.problem
        if family.build(small, device, schedule) != wanted:
            message = f"Proof problem {small.title()} is compiled to other code than {problem.title()}."
            raise UndecidedError(TrialReason.INTERNAL_ERROR, message)
        plan = family.plan(small, device, schedule)
        regions = regions_of(program, plan, family.shared_map(small, device, schedule))
        if 0 in (small.m, small.n):
            continue  # nothing is launched
        prepared = prepare_case(this.case, threads=1)
        run.seeds.append(this.case.seed)
        for order in (*(orders if this.every_order else orders[-1:]), *(extra if index == 0 else ())):
            fault = _one(run, program, plan, this, prepared, regions, roles, order, limits, index, accuse)
            if fault is None and accuse and plan.deterministic:
                fault = _differs(run)
            if fault is not None:
                reason, evidence = fault
                return _verdict(run, False, reason, evidence, started)
    return _verdict(run, True, None, {}, started)


def _differs(run: _Run) -> tuple[TrialReason, dict[str, Any]] | None:
    """Whether the last run gave other bits than the first of the same problem did in another order."""
    last = run.checks[-1]
    first = next(check for check in run.checks if check["seed"] == last["seed"])
    if first["bits"] == last["bits"]:
        return None
    run.checks[-1] = last | {"passed": False}
    message = f"the results of order {last['order']} are not those of order {first['order']}, bit for bit"
    return TrialReason.NONDETERMINISTIC, {"message": message, "on": last}


def _verdict(
    run: _Run, passed: bool, reason: TrialReason | None, evidence: Mapping[str, Any], started: float
) -> EmulatedVerdict:
    return EmulatedVerdict(
        passed=passed,
        reason=reason,
        seeds=tuple(dict.fromkeys(run.seeds)),
        checks=tuple(run.checks),
        max_error=run.max_error,
        bound=run.bound,
        counters=run.counters,
        evidence=evidence,
        seconds=time.monotonic() - started,
    )


def regions_of(program: Program, plan: LaunchPlan, areas: Sequence[SharedArea]) -> tuple[Region, ...]:
    """The areas where the plan's first kernel finds them: it may have to align what it is given."""
    first = next(step for step in plan.steps if isinstance(step, Launch))
    kernel = program.kernel(first.entry)
    base = kernel.shared_base + kernel.dynamic_start
    return tuple(Region(a.name, a.offset_bytes + -base % a.align, a.stage_bytes, a.stages) for a in areas)


# ---------------------------------------------------------------- one run


def _one(
    run: _Run,
    program: Program,
    plan: LaunchPlan,
    this: ProofCase,
    prepared: PreparedCase,
    regions: tuple[Region, ...],
    roles: Mapping[str, range],
    order: Order,
    limits: Limits | None,
    index: int,
    accuse: bool,
) -> tuple[TrialReason, dict[str, Any]] | None:
    """Run once; what is wrong, or None."""
    case, names = this.case, this.names(plan)
    target = Target(prepared, lambda regions: None)
    arrays = _arrays(prepared, target, plan, names)
    report: Any = None

    def launch() -> None:
        nonlocal report
        report = run_plan(
            program,
            plan,
            names,
            arrays,
            {"alpha": case.alpha, "beta": case.beta},
            order=order,
            regions=regions,
            roles=roles or None,
            limits=limits,
            sm_count=this.sm_count(plan),
            stop_at_first=accuse,
        )

    target.launch = launch
    try:
        try:
            target.run_once()
        except EmulatorError as error:
            raise UndecidedError(TrialReason.NOT_EMULATED, str(error), on=_where(case, order)) from None
        except RooftileError as error:
            raise UndecidedError(TrialReason.PLAN_INVALID, str(error), on=_where(case, order)) from None
        where = _where(case, order)
        where |= {"instructions": report.instructions, "seconds": round(report.seconds, 3)}
        if index == 0 and (order.kind == LATE.kind or not run.counters):
            run.counters = {**_where(case, order), "roles": dict(report.counters)}
        if accuse and report.faults:
            run.checks.append({**where, "passed": False})
            return _accused(report.faults, where)
        try:
            found = target.check()
        except VerifyFailure as failure:
            run.checks.append({**where, "passed": False})
            return TrialReason(failure.reason), {**failure.evidence, "on": where}
        bound = _allowed(prepared)
        worst = run.max_error is None or found.max_error / (bound or 1.0) > run.max_error / (run.bound or 1.0)
        if worst:
            run.max_error, run.bound = found.max_error, bound
        run.checks.append(
            {
                **where,
                "passed": True,
                "max_error": found.max_error,
                "norm_error": found.norm_error,
                "bound": bound,
                "bits": hashlib.sha256(target.output().tobytes()).hexdigest()[:16],
            }
        )
        return None
    finally:
        target.close()


def _allowed(prepared: PreparedCase) -> float:
    """How far off the largest element that is a number may be."""
    values = [part.reference.values for part in prepared.parts]
    largest = max(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in values)
    return prepared.bound.absolute + prepared.bound.relative * largest


def _arrays(
    prepared: PreparedCase, target: Target, plan: LaunchPlan, names: Mapping[str, int]
) -> dict[str, Any]:
    case = prepared.case
    arrays: dict[str, Any] = {
        name: strided(case, name, buffer.data()) for name, buffer in prepared.inputs.items()
    }
    for factor, operands in ((case.alpha, ("a", "b")), (case.beta, ("c",))):
        if factor == 0.0:
            arrays |= {name: _unread(arrays[name]) for name in operands if name in arrays}
    arrays["out"] = target.output()
    arrays |= prepared.scales
    return {
        name: Operand(array, byte_strides(case.problem, name, names), _misalign(name, array, plan))
        for name, array in arrays.items()
    }


def _unread(array: Any) -> Any:
    """NaN throughout: an operand that does not count. Of integers there is none; what is far from all others
    shows as well."""
    unread = np.empty_like(array, order="C")
    words(unread)[...] = pattern(unread.dtype)
    return unread


def _misalign(name: str, array: Any, plan: LaunchPlan) -> int:
    needed = int(plan.valid_for.align.get(name, array.itemsize))
    return needed if needed < _MOST_MISALIGN else 0


def _where(case: Case, order: Order) -> dict[str, Any]:
    p = case.problem
    sizes = {"m": p.m, "n": p.n, "k": p.k, "batch": p.batch}
    return {**sizes, "alpha": case.alpha, "beta": case.beta, "seed": case.seed, "order": str(order)}


def _accused(faults: Sequence[Any], where: Mapping[str, Any]) -> tuple[TrialReason, dict[str, Any]]:
    """The gravest accusation names the reason: the first that is no limit."""
    told = [fault.to_json() for fault in faults[:_FAULTS_KEPT]]
    graver = [fault for fault in faults if fault.kind is not FaultKind.LIMIT]
    if not graver:
        raise UndecidedError(TrialReason.EMULATE_TIMEOUT, faults[0].message, faults=told, on=dict(where))
    first = graver[0]
    return _REASONS[first.kind], {"message": first.message, "faults": told, "on": dict(where)}
