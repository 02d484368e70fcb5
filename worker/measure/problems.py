"""What does the measuring process keep ready for one problem?

Inputs and references of every case, and as many copies of the timed inputs as the policy rotates over. Made
once for a problem, seed and policy; the candidates' processes get it by fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rooftile.problem import Gemm, parse_problem

from worker.compile.capacity import usable_memory_bytes
from worker.measure.policy import Policy, Rotation, rotation
from worker.verify.arena import GuardedBuffer
from worker.verify.cases import main_cases, neighbours
from worker.verify.prepared import PreparedCase, copy_inputs, prepare_case, span_bytes, wanted_inputs

# Of the free memory, the part that one problem may take; the rest is for outputs and the candidates.
_MEMORY_SHARE = 0.6


@dataclass(frozen=True)
class PreparedProblem:
    """Everything that is the same for all candidates of one problem."""

    problem: Gemm
    policy: Policy
    seed: int
    rotation: Rotation
    set_bytes: int
    mains: tuple[PreparedCase, PreparedCase]
    sets: tuple[PreparedCase, ...]
    neighbours: tuple[PreparedCase, ...]
    flush: GuardedBuffer | None

    @property
    def read_bytes(self) -> int:
        """What one run must read: inputs, each once."""
        return sum(span_bytes(self.mains[1].case, name) for name in wanted_inputs(self.problem))

    @property
    def seeds(self) -> list[int]:
        return sorted({case.case.seed for case in (*self.mains, *self.neighbours)})


def prepare(
    spec: Any, policy: Policy, seed: int, llc_bytes: int | None, *, with_neighbours: bool = True
) -> PreparedProblem:
    """Build it. MemoryError where it does not fit, NotImplementedError for what no check exists for."""
    problem = parse_problem(spec)
    if not isinstance(problem, Gemm):
        raise NotImplementedError(f"{problem.op} cannot be verified on a CPU yet")
    end, start = main_cases(problem, seed)
    inputs_bytes = sum(span_bytes(start, name) for name in wanted_inputs(problem))
    set_bytes = inputs_bytes + span_bytes(start, "out")
    # The float64 reference, its product and the comparison of one output, for both main cases.
    reference_bytes = 4 * 8 * problem.batch * problem.m * problem.n + (256 << 20)
    free = int(usable_memory_bytes() * _MEMORY_SHARE) - inputs_bytes - reference_bytes
    turns = rotation(policy, max(1, set_bytes), llc_bytes, max(0, free))
    first = prepare_case(end)
    second = prepare_case(start)
    sets = [second]
    while len(sets) < turns.sets:
        sets.append(copy_inputs(second, f"set {len(sets)}"))
    around: list[PreparedCase] = []
    if with_neighbours:
        ready = {"main/start": second}
        around = [prepare_case(case, shared=ready) for case in neighbours(problem, seed)]
    flush = None
    if turns.flush_bytes:
        flush = GuardedBuffer("flush", turns.flush_bytes, placement="start", offset=0)
        # Written to: pages nobody wrote are all one page of zeros, which would flush nothing.
        flush.data().view(np.float32)[:] = 1.0
        flush.read_only()
    return PreparedProblem(
        problem, policy, seed, turns, set_bytes, (first, second), tuple(sets), tuple(around), flush
    )
