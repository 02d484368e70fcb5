"""Does a compile worker refuse what cannot be launched at the problem's own sizes?"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from rooftile.problem import parse_problem
from support import toy_gpu_family
from support.toy_family import only_family

from search_space.device import Device
from service.store.enums import TrialReason, TrialState
from service.store.records import CompileClaim, Failed
from worker.compiling import Task, plan_task

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f16"}


@pytest.mark.parametrize(("batch", "runs"), [(1, True), (65535, True), (65536, False)])
def test_a_plan_that_cannot_be_launched_is_invalid_before_it_is_compiled(batch: int, runs: bool) -> None:
    """Without a device nothing else looks at these sizes: the emulator runs smaller ones."""
    name, arch = toy_gpu_family.NAME, toy_gpu_family.ARCH
    with only_family(name, toy_gpu_family.__name__) as family:
        problem = PROBLEM | {"batch": batch}
        schedule = family.default(parse_problem(problem), Device.for_arch(arch))
        claim = CompileClaim(1, 1, 1, 1, problem, schedule.to_json(), name, arch, None)
        found = plan_task(claim, {})
    if runs:
        assert isinstance(found, Task), found
        return
    assert isinstance(found, Failed)
    assert (found.state, found.reason) == (TrialState.REJECTED, TrialReason.PLAN_INVALID)
    assert found.evidence["message"] == "launch toy: grid 1 x 65536 x 1 cannot be launched"


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (ValueError("odd"), True),
        (OSError(errno.ENOENT, "gone"), True),
        (MemoryError(), False),
        (OSError(errno.ENOMEM, "no memory"), False),
        (BlockingIOError(errno.EAGAIN, "no process"), False),
    ],
)
def test_a_host_without_memory_is_no_fault_of_the_schedule(
    error: Exception, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    name, arch = toy_gpu_family.NAME, toy_gpu_family.ARCH
    with only_family(name, toy_gpu_family.__name__) as family:
        schedule = family.default(parse_problem(PROBLEM), Device.for_arch(arch))
        claim = CompileClaim(1, 1, 1, 1, PROBLEM, schedule.to_json(), name, arch, None)
        monkeypatch.setattr(type(family), "plan", fails)
        if blamed:
            found = plan_task(claim, {})
            assert isinstance(found, Failed)
            assert found.reason is TrialReason.INTERNAL_ERROR
        else:
            with pytest.raises(type(error)):
                plan_task(claim, {})
