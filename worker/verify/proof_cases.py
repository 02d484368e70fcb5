"""With which numbers, pitches and scalars does the emulator run a proof problem?

Pitches and steps between batch entries are as good as free there: a buffer keeps only the bytes that exist,
wherever they lie. So no two operands have the same, none is a multiple of more than the plan asks for, and in
half of the runs all lies so far apart that offsets of 32 bits wrap round. Two runs more, of the smallest
problem: with NaN and infinities among the inputs, and with an alpha of 0 where the call chooses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rooftile.plan import Launch, LaunchPlan
from rooftile.problem import Gemm, Problem, operand_dtype, operand_shape

from worker.verify.cases import Case, scalar
from worker.verify.elements import element_dtype

PITCHED = ("a", "b", "c", "out", "residual")
FAR_BYTES = 1 << 31
"""Between batch entries; rows lie beyond all entries, past 2^32."""
MOST_EXTENT = 15 << 40
"""Bytes of an operand from its first to its last: the emulator has room for 2^44."""
_SEVERAL_TILES = 4
_FEW_SMS = {1: 3, 3: 3, 4: 1}
"""By index of the problem, where a block that computes several tiles has several."""
_ONE_ORDER = (1, 4)
"""Of many tiles, by index: what they show, they show in any order."""


@dataclass(frozen=True)
class ProofCase:
    """One run to be proved."""

    case: Case
    far: bool
    """Offsets pass 2^32 bytes."""
    few_sms: int
    """Clusters that the device has room for; 0: for all that matter."""
    every_order: bool
    """What shows in the numbers of a single order is run in the last one alone."""

    def names(self, plan: LaunchPlan) -> dict[str, int]:
        """m n k batch, pitches and steps, as the plan wants them."""
        return spread(self.case.problem, plan, far=self.far)

    def sm_count(self, plan: LaunchPlan) -> int:
        """Of the device that it is run for."""
        clusters = [math.prod(step.cluster or (1,)) for step in plan.steps if isinstance(step, Launch)]
        return self.few_sms * max(clusters, default=1) if self.few_sms else _SEVERAL_TILES


def proof_cases(problems: Sequence[Problem], seed: int) -> tuple[ProofCase, ...]:
    """A run of each problem, then those of the smallest with something to sum."""
    found = []
    for index, problem in enumerate(problems):
        case, far, few_sms = proof_case(problem, seed, index), index < 2, _FEW_SMS.get(index, 0)
        found.append(ProofCase(case, far, few_sms, every_order=index not in _ONE_ORDER))
    small = min((p for p in problems if isinstance(p, Gemm) and not p.empty), key=_work, default=None)
    if small is None:
        return tuple(found)
    beta = scalar(small.beta, 0.5)
    more = [replace(proof_case(small, seed, len(found)), name="proof odd", odd=True, beta=beta)]
    if small.alpha == "any":
        none = proof_case(small, seed, len(found) + 1)
        more.append(replace(none, name="proof alpha 0", alpha=0.0, beta=beta))
    return (*found, *(ProofCase(case, case.odd, few_sms=0, every_order=False) for case in more))


def _work(problem: Gemm) -> int:
    return problem.batch * problem.m * problem.n * problem.k


def proof_case(problem: Problem, seed: int, index: int) -> Case:
    """The numbers of one proof problem. Every third one leaves C alone (beta 0), where the problem lets the
    call choose: C is NaN then, so that reading it shows. Factors are no whole numbers, for integers too:
    what they make of a sum is rounded."""
    assert isinstance(problem, Gemm)
    alpha = scalar(problem.alpha, -0.75)
    beta = scalar(problem.beta, 0.0 if index % 3 == 2 else 0.5)
    name = f"proof {index}"
    return Case(name, problem, "end", 0, (seed * 1_000_003 + index) & 0x7FFF_FFFF, alpha, beta, align=16)


def spread(problem: Gemm, plan: LaunchPlan, *, far: bool) -> dict[str, int]:
    """m n k batch, and for each operand a pitch and a step between batch entries that no other has: odd
    multiples of what the plan is for. Near, entries follow each other; `far`, they lie between the rows."""
    names = problem.plan_names()
    for operand in PITCHED:
        rows, row = operand_shape(problem, operand)[-2:]
        item = element_dtype(operand_dtype(problem, operand)).itemsize
        given = {names[f"{what}_{x}"] for what in ("ld", "stride") for x in PITCHED[: PITCHED.index(operand)]}
        ld_unit, step_unit = (
            valid.multiple_of if (valid := plan.valid_for.sizes.get(f"{what}_{operand}")) else 1
            for what in ("ld", "stride")
        )
        if far:
            entries = max(problem.batch, 2)
            least = min(FAR_BYTES, MOST_EXTENT // (entries + 1) // max(rows, 1)) // item
            step = _odd_multiple(max(least, row + 1), step_unit, given)
            ld = _odd_multiple(entries * step, ld_unit, given)
        else:
            ld = _odd_multiple(row + 1, ld_unit, given)
            step = _odd_multiple(max(rows, 1) * ld + 1, step_unit, given | {ld})
        names |= {f"ld_{operand}": ld, f"stride_{operand}": step}
    return names


def _odd_multiple(least: int, unit: int, given: set[int]) -> int:
    """The first one from `least` on that was not given yet."""
    found = (-(-least // unit) | 1) * unit
    while found in given:
        found += 2 * unit
    return found


def byte_strides(problem: Gemm, operand: str, names: Mapping[str, int]) -> tuple[int, ...] | None:
    """Where the elements of an operand lie at these pitches; None for one without any."""
    if operand not in PITCHED:
        return None
    item = element_dtype(operand_dtype(problem, operand)).itemsize
    matrix = (names[f"ld_{operand}"] * item, item)
    return matrix if problem.batch == 1 else (names[f"stride_{operand}"] * item, *matrix)
