"""What does a GPU's measuring process keep ready for one problem?

Inputs and references of every case, and as many copies of the timed inputs and outputs as the policy rotates
over. Candidates share the inputs; after each of them these must still be what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooftile.problem import Gemm, parse_problem

from worker.measure.cuda_backend import Backend
from worker.measure.policy import Policy, Rotation
from worker.verify.device_cases import device_mains, device_neighbours
from worker.verify.device_checks import (
    DeviceCase,
    copy_inputs,
    prepare_device_case,
    self_check,
    span_bytes,
)
from worker.verify.device_elements import Array
from worker.verify.prepared import wanted_inputs

# Between two uses of any byte at least this many times the L2 is read or written.
CACHES = 2
# A hypervisor, or a MIG instance, may report less L2 than its lines compete for (AT-23).
FLOOR_BYTES = 64 << 20
# A kernel is bound to each set, at some 20 us: more sets would cost every trial more than they tell.
MOST_SETS = 256
# Of the free memory, the part that one problem may take.
_MEMORY_SHARE = 0.7


@dataclass
class DeviceProblem:
    """Everything that is the same for all candidates of one problem."""

    problem: Gemm
    policy: Policy
    seed: int
    rotation: Rotation
    set_bytes: int
    mains: tuple[DeviceCase, DeviceCase]
    sets: tuple[DeviceCase, ...]
    neighbours: tuple[DeviceCase, ...]
    flush: Array | None
    backend: Backend

    @property
    def read_bytes(self) -> int:
        """What one run must read: inputs, each once."""
        return sum(span_bytes(self.mains[1].case, name) for name in wanted_inputs(self.problem))

    @property
    def seeds(self) -> list[int]:
        return sorted({case.case.seed for case in (*self.mains, *self.neighbours)})

    def flush_cache(self) -> None:
        """Stream other data through the L2."""
        if self.flush is not None:
            self.flush ^= 1

    def check_inputs(self) -> None:
        """Raise VerifyFailure where a candidate has written to what all candidates read."""
        for one in (*self.mains, *self.sets[1:], *self.neighbours):
            one.check_inputs()


def device_rotation(policy: Policy, set_bytes: int, l2_bytes: int, free_bytes: int) -> Rotation:
    """Sets for one problem. MemoryError where even one does not fit."""
    if set_bytes > free_bytes:
        raise MemoryError(f"one set of buffers needs {set_bytes} bytes, {free_bytes} are free on the device")
    if not policy.cold:
        return Rotation(1, 0)
    wanted = max(FLOOR_BYTES, CACHES * l2_bytes)
    sets = min(MOST_SETS, max(2, -(-wanted // max(1, set_bytes))))
    sets = max(1, min(sets, free_bytes // max(1, set_bytes)))
    return Rotation(sets, 0 if sets * set_bytes >= wanted else wanted)


def prepare_on_device(
    spec: Any, policy: Policy, seed: int, backend: Backend, *, with_neighbours: bool = True
) -> DeviceProblem:
    """Build it. MemoryError where it does not fit, NotImplementedError for what no check exists for."""
    problem = parse_problem(spec)
    if not isinstance(problem, Gemm):
        raise NotImplementedError(f"{problem.op} cannot be verified on a GPU yet")
    end, start = device_mains(problem, seed)
    inputs_bytes = sum(span_bytes(start, name) for name in wanted_inputs(problem))
    set_bytes = inputs_bytes + span_bytes(start, "out")
    # The other main case, the float64 reference, its product and the comparison of one output.
    rest = set_bytes + 4 * 8 * problem.batch * problem.m * problem.n + (256 << 20)
    free = int(backend.memory.free_bytes() * _MEMORY_SHARE) - rest
    turns = device_rotation(policy, max(1, set_bytes), backend.l2_bytes, max(0, free))
    first, second = (prepare_device_case(case, backend.memory) for case in (end, start))
    sets = [second]
    while len(sets) < turns.sets:
        sets.append(copy_inputs(second, f"set {len(sets)}", backend.memory))
    around: tuple[DeviceCase, ...] = ()
    if with_neighbours:
        around = tuple(prepare_device_case(case, backend.memory) for case in device_neighbours(problem, seed))
    # CuPy compiles each operation at its first use: here, where it takes no candidate's time, and where a
    # check that would not find a wrong element is found out itself.
    self_check(second, backend.memory)
    if around:
        self_check(next(one for one in around if one.case.pad and one.case.problem.m > 1), backend.memory)
    flush = backend.memory.empty(turns.flush_bytes) if turns.flush_bytes else None
    return DeviceProblem(
        problem, policy, seed, turns, set_bytes, (first, second), tuple(sets), around, flush, backend
    )
