"""Does every kind of schedule of gemm_x86 give the right result, on ragged sizes, and touch nothing else?"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from kernel.guarded import run_guarded
from rooftile.launch.x86 import X86Kernel
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule
from search_space.space import Space

Load = Callable[[Gemm, Schedule], X86Kernel]

PROBLEMS = (
    Gemm(m=5, n=67, k=39, dtype="f32"),
    Gemm(m=37, n=83, k=129, dtype="f32"),
    Gemm(m=8, n=131, k=70, dtype="f32", layout={"b": "nk"}),
    Gemm(m=33, n=50, k=41, dtype="f32", layout={"a": "km", "b": "nk"}, batch=3),
    Gemm(m=19, n=96, k=64, dtype="f32", epilogue={"bias": "n", "activation": "silu", "residual": True}),
    Gemm(m=21, n=45, k=33, dtype="f32", beta="any", epilogue={"activation": "gelu"}),
)


@pytest.mark.parametrize("index", range(len(PROBLEMS)))
def test_random_legal_schedules_are_right(index: int, load: Load, device: Device) -> None:
    problem = PROBLEMS[index]
    family = get_family("gemm_x86")
    rng = random.Random(index)
    space = Space(family, problem, device)
    schedules = [*family.candidates(problem, device)[:2], *(space.random(rng) for _ in range(3))]
    for number, schedule in enumerate(schedules):
        kernel = load(problem, schedule)
        beta = 0.75 if problem.beta == "any" else 0.0
        for placement in ("end", "start"):
            out, error = run_guarded(
                kernel, problem, number, device.cores, alpha=1.25, beta=beta, pad=3, placement=placement
            )
            assert not np.isnan(out).any(), schedule.one_line()
            assert error <= 1e-5, (error, schedule.one_line())


@pytest.mark.parametrize("size", ["m", "n", "k"])
def test_a_size_of_zero(size: str, load: Load, device: Device) -> None:
    """m or n of 0: nothing to write; k of 0: beta * C."""
    whole = Gemm(m=7, n=18, k=9, dtype="f32", beta="any")
    family = get_family("gemm_x86")
    empty = Gemm(**{"m": 7, "n": 18, "k": 9, size: 0}, dtype="f32", beta="any")
    kernel = load(whole, family.default(whole, device))
    out, error = run_guarded(kernel, empty, 1, device.cores, alpha=1.0, beta=0.5)
    assert error <= 1e-5
    assert not np.isnan(out).any()
