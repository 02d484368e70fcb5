"""Do compiled schedules of gemm_x86 give the right result, and touch nothing else?

Operands end at unmapped pages, the workspace too; padding between rows is poisoned; the reference is in
double precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from kernel.guarded import run_guarded
from rooftile.device import local_cpu
from rooftile.launch.x86 import X86Kernel
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.registry import get_family
from search_space.schedule import Schedule

FAMILY = get_family("gemm_x86")
ERROR = 2e-6
"""Of sqrt(k) products of numbers in [-1, 1]: some ten roundings."""

RAGGED = [(1, 1, 1), (2, 7, 3), (5, 16, 8), (7, 33, 17), (13, 100, 65), (29, 47, 130), (40, 131, 77)]

# What differs from a plain schedule of that path; legal on machines with at least two cores.
BLOCKED: dict[str, dict[str, Any]] = {
    "6x16": {},
    "4x24 handed out": {"mr": 4, "nr": 24, "hand_out": "tiles"},
    "b held, small blocks": {"mr": 5, "nr": 16, "mc": 24, "nc": 128, "kc": 64, "unroll": 4, "outer": "k"},
    "a held": {"mr": 3, "nr": 32, "hold": "a", "unroll": 4, "pad": 0},
    "a in place": {"pack_a": "no", "inner": "columns", "unroll": 2},
    "nothing packed": {"pack_a": "no", "pack_b": False, "pad": 0, "mr": 4, "kc": 64},
    "b in place, blocks ahead": {"pack_b": False, "prefetch": "both", "kc": 64},
    "n shared": {"split_n": 2, "kc": 64, "prefetch": "block"},
    "n apart": {"split_n": 2, "share": False, "mc": 24},
    "k shared": {"split_k": 2, "kc": 64},
    "columns handed out": {"split_n": 2, "hand_out": "columns", "nc": 128, "pack_a": "whole", "kc": 64},
    "a whole": {"pack_a": "whole", "kc": 64, "mc": 24, "prefetch": "panel"},
}
STREAM: dict[str, dict[str, Any]] = {
    "b held": {},
    "parts handed out": {"split_k": 8, "split_n": 1, "hand_out": "parts"},
    "sums held": {"hold": "c", "mr": 4, "unroll": 4, "kc": 8, "split_n": 2, "split_k": 1, "nc": 128},
    "three vectors, ahead": {"nr": 24, "unroll": 4, "ahead": 4},
}


def schedule_of(problem: Gemm, device: Device, changes: dict[str, Any], path: str) -> Schedule:
    """The first start on that path with the changes, checked to be legal."""
    starts = FAMILY.candidates(problem, device)
    base = next(s for s in starts if s["path"] == path and s["threads"] == device.cores)
    if path == "blocked":
        base = next(s for s in starts if s["path"] == path and s["mr"] != 1)
        plain = {"mc": 0, "nc": 0, "kc": 0, "split_n": 1, "split_k": 1, "hand_out": "no", "share": True}
        plain |= {"pack_a": "block", "pack_b": True, "inner": "rows", "outer": "n", "prefetch": "none"}
        base = base.replace(**plain, mr=6, nr=16, hold="b", unroll=8, pad=16)
    schedule = base.replace(**changes)
    assert FAMILY.check(problem, device, schedule) == []
    return schedule


def problem_of(m: int, n: int, k: int, **more: Any) -> Gemm:
    return Gemm(m, n, k, "f32", **more)


def check_sizes(kernel: X86Kernel, sizes: list[tuple[int, int, int]], threads: int, **more: Any) -> None:
    for seed, (m, n, k) in enumerate(sizes):
        for place in ("end", "start"):
            problem = problem_of(m, n, k, **more)
            _, error = run_guarded(kernel, problem, seed, threads, placement=place, pad=seed % 3)
            assert error < ERROR, (m, n, k, place)


needs_two = pytest.mark.skipif(local_cpu().cores < 2, reason="what threads share needs two cores")
needs_avx2 = pytest.mark.skipif(
    not local_cpu().arch.endswith("v3"), reason="these register tiles are written for vectors of eight"
)


@needs_two
@needs_avx2
@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_schedules_are_right_at_ragged_sizes(name: str, load: Any, device: Device) -> None:
    problem = problem_of(300, 300, 300)
    kernel = load(problem, schedule_of(problem, device, BLOCKED[name], "blocked"))
    for threads in (device.cores, 1):
        check_sizes(kernel, RAGGED if threads > 1 else RAGGED[3:5], threads)
    # More work than a block in each direction.
    _, error = run_guarded(kernel, problem_of(101, 391, 300), 7, device.cores)
    assert error < ERROR


@needs_two
@needs_avx2
@pytest.mark.parametrize("name", STREAM)
def test_stream_schedules_are_right_at_ragged_sizes(name: str, load: Any, device: Device) -> None:
    problem = problem_of(16, 600, 600)
    kernel = load(problem, schedule_of(problem, device, STREAM[name], "stream"))
    check_sizes(kernel, RAGGED, device.cores)
    check_sizes(kernel, [(16, 391, 301), (1, 777, 130)], device.cores)
    check_sizes(kernel, [(7, 33, 17)], 1)


@pytest.mark.parametrize("a", ["mk", "km"])
@pytest.mark.parametrize("b", ["kn", "nk"])
@pytest.mark.parametrize("c", ["mn", "nm"])
@pytest.mark.parametrize("rows", [12, 90])
def test_defaults_of_all_layouts(a: str, b: str, c: str, rows: int, load: Any, device: Device) -> None:
    layout = {"a": a, "b": b, "c": c}
    problem = problem_of(rows, 200, 150, layout=layout)
    kernel = load(problem, FAMILY.default(problem, device))
    sizes = [(1, 5, 3), (rows, 200, 150), (rows + 1, 67, 9)]
    check_sizes(kernel, sizes, device.cores, layout=layout)


@pytest.mark.parametrize("c", ["mn", "nm"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("rows", [9, 70])
def test_epilogues(c: str, activation: str | None, rows: int, load: Any, device: Device) -> None:
    epilogue = {"bias": "n", "activation": activation, "residual": True}
    facets: dict[str, Any] = {"layout": {"c": c}, "beta": "any", "epilogue": epilogue, "batch": 3}
    problem = problem_of(rows, 70, 40, **facets)
    kernel = load(problem, FAMILY.default(problem, device))
    for alpha, beta in ((1.0, 0.0), (-0.5, 1.0), (0.0, 0.7), (2.0, 0.25)):
        for out_is_c in (False, True):
            if out_is_c and beta == 0.0:
                continue
            _, error = run_guarded(
                kernel, problem, 3, device.cores, alpha=alpha, beta=beta, pad=1, out_is_c=out_is_c
            )
            assert error < ERROR, (alpha, beta, out_is_c)


@pytest.mark.parametrize("alpha", ["zero", "one", "any"])
@pytest.mark.parametrize("beta", ["zero", "one", "any"])
def test_scalars_and_empty_k(alpha: str, beta: str, load: Any, device: Device) -> None:
    value = {"zero": 0.0, "one": 1.0, "any": 0.75}
    problem = problem_of(9, 70, 40, alpha=alpha, beta=beta, epilogue={"bias": "n"})
    kernel = load(problem, FAMILY.default(problem, device))
    for k in (40, 1, 0):
        case = problem_of(9, 70, k, alpha=alpha, beta=beta, epilogue={"bias": "n"})
        _, error = run_guarded(kernel, case, k, device.cores, alpha=value[alpha], beta=value[beta])
        assert error < ERROR


@needs_two
def test_repeated_runs_give_the_same_bits(load: Any, device: Device) -> None:
    for m, path in ((8, "stream"), (200, "blocked")):
        problem = problem_of(m, 600, 600)
        for schedule in FAMILY.candidates(problem, device)[:3]:
            assert FAMILY.plan(problem, device, schedule).deterministic
            kernel = load(problem, schedule)
            first, _ = run_guarded(kernel, problem, 5, device.cores)
            again, _ = run_guarded(kernel, problem, 5, device.cores)
            assert np.array_equal(first, again), (path, schedule.one_line())


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_are_exact_to_float(activation: str, load: Any, device: Device) -> None:
    """One column of A times one row of B: the kernel is then the activation alone."""
    facets: dict[str, Any] = {"alpha": "one", "epilogue": {"activation": activation}}
    problem = problem_of(1, 4001, 1, **facets)
    kernel = load(problem, FAMILY.default(problem, device))
    x = np.concatenate([np.linspace(-12, 12, 3989, dtype=np.float32), np.float32([0.0, -0.0, 1e-30, -1e-6])])
    x = np.concatenate([x, np.float32([90, -90, 1e4, -1e4, 1e30, np.inf, np.nan, -1e-38])]).astype(np.float32)
    out = np.empty((1, 4001), np.float32)
    kernel(np.ones((1, 1), np.float32), x.reshape(1, -1), out)
    got, wide = out[0].astype(np.float64), x.astype(np.float64)
    with np.errstate(all="ignore"):
        want = reference(activation, wide)
    finite = np.isfinite(want) & (np.abs(want) > 1e-20)
    relative = np.abs(got[finite] - want[finite]) / np.abs(want[finite])
    near = np.abs(wide[finite]) < 5
    assert relative[near].max() < 2e-6
    assert relative.max() < 2e-5  # the far tails, where exp's argument is large
    tiny = np.isfinite(want) & (np.abs(want) <= 1e-20)
    assert (np.abs(got[tiny]) < 1e-19).all()
    assert np.isnan(got[np.isnan(wide)]).all()
    assert np.isposinf(got[np.isposinf(wide)]).all()


def reference(name: str, x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """In forms that keep their digits in the negative tail."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu_tanh":
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return x * 0.5 * erfc(-x / math.sqrt(2))
