"""Is gemm_sm90 right in the emulator, and does it keep its promises at the edges?

A schedule for each way of handing over, moving and storing; the breadth, in every order, is the emulator
bench's. Then what is not read, far offsets, plans for other sizes than they
were made for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernel.test_gemm_sm90_space import BASE, H100, start
from rooftile.problem import Gemm

from emulator import Operand, Order, Program, Report, run_plan
from search_space.plan.gemm_sm90 import FAMILY
from search_space.schedule import Schedule
from worker.compile import compile_kernel
from worker.verify.emulated import prove, regions_of

Array = npt.NDArray[Any]
NK = {"b": "nk"}
SMALL = BASE | {"bm": 64, "bn": 64, "consumers_m": 1, "registers": "40/248", "group": 2}
TURNS = {"hand_off": "pingpong", "consumers_m": 2, "registers": "40/232"}
STAGED = {"store": "staged", "store_columns": 32, "vector": 8}
LATE, AHEAD, BEHIND, BY_CHANCE = Order("late"), Order("ahead"), Order("behind"), Order("random", 9)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Order]] = {
    "plain": ({}, {}, Order("early")),
    "turns, a cluster, full epilogue": (
        TURNS | {"cluster_m": 2, "bn": 16, "store_columns": 8, "store_panels": 2, "bk": 32, "stages": 2,
                 "swizzle_a": 64, "swizzle_b": 64},
        {"beta": "any", "epilogue": {"bias": "n", "activation": "gelu", "residual": True}},
        BY_CHANCE,
    ),
    "turns, staged": (TURNS | STAGED | {"stages": 2, "bn": 32}, {}, AHEAD),
    "a cluster either way along Hilbert's curve": (
        {"cluster_m": 2, "cluster_n": 2, "raster": "hilbert", "bn": 32, "store_columns": 32, "stages": 2},
        {},
        BEHIND,
    ),
    # Several panels of A, whose distance is beside the address in a descriptor, in blocks that are not the
    # first of their cluster.
    "along m and n, a cluster": (
        {"swizzle_a": 64, "cluster_n": 2, "stages": 2}, {"layout": {"a": "km", "b": "kn"}}, LATE,
    ),
    "beside each other": (
        {"consumers_n": 2, "bn": 32, "store_columns": 16, "registers": "40/232", "stages": 2}, {}, LATE,
    ),
    "three consumers, two panels": (
        {"bm": 192, "consumers_m": 3, "registers": "32/160", "bn": 16, "store_columns": 16, "bk": 128,
         "stages": 2}, {}, AHEAD,
    ),
    "16 rows": (
        {"bm": 16, "swizzle_a": 32, "bn": 32, "store_columns": 32, "stages": 2},
        {"layout": {"a": "km", "b": "nk"}},
        BY_CHANCE,
    ),
    "a stage is one step, 16 stages, three panels": (
        TURNS | {"bk": 16, "swizzle_a": 32, "swizzle_b": 32, "stages": 16, "bn": 16, "store_columns": 8,
                 "store_panels": 3}, {}, LATE,
    ),
    "a stage is one step, along m and n": (
        {"bk": 16, "stages": 2, "cluster_n": 2}, {"layout": {"a": "km", "b": "kn"}}, BY_CHANCE,
    ),
    "transposed": (STAGED | {"swap_ab": True, "bn": 32, "stages": 2}, {"epilogue": {"bias": "n"}}, LATE),
    "parts of k, turns": (TURNS | {"split_k": 2, "bn": 32, "store_columns": 32, "stages": 2}, {}, BEHIND),
    "parts of k, a second entry": (
        {"split_k": 2, "split_sum": "second", "store": "direct", "store_columns": 32, "cluster_m": 2,
         "persistent": False, "stages": 2}, {}, LATE,
    ),
}  # fmt: skip


def schedule(p: Gemm, **values: Any) -> Schedule:
    s = start(p).replace(**(SMALL | values))
    assert FAMILY.check(p, H100, s) == []
    return s


@pytest.mark.parametrize("name", CASES)
def test_schedules_are_right(name: str, home: Path) -> None:
    values, more, order = CASES[name]
    p = Gemm(512, 512, 512, "bf16", **({"layout": NK} | more))
    s = schedule(p, **values)
    artifact = compile_kernel(FAMILY.build(p, H100, s), home=home)
    assert artifact.ptx is not None
    verdict = prove(artifact.ptx, FAMILY, p, H100, s, orders=(order,))
    assert verdict.passed, verdict.evidence
    counted = verdict.counters["roles"]
    # The producer copies and nothing else does; consumers multiply.
    assert counted["producer"]["bulk"]["load_boxes"] > 0
    assert "bulk" not in counted["consumer0"] or "load_boxes" not in counted["consumer0"]["bulk"]
    assert "mma_flops" not in counted["producer"]
    assert counted["consumer0"]["mma_flops"] > 0


def run(
    p: Gemm,
    s: Schedule,
    arrays: dict[str, Any],
    home: Path,
    *,
    at: Gemm | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    names: dict[str, int] | None = None,
) -> Report:
    artifact = compile_kernel(FAMILY.build(p, H100, s), home=home)
    program, plan = Program.from_ptx(artifact.ptx or b""), FAMILY.plan(p, H100, s)
    report = run_plan(
        program, plan, names or (at or p).plan_names(), arrays, {"alpha": alpha, "beta": beta},
        order=Order("late"), regions=regions_of(program, plan, FAMILY.shared_map(p, H100, s)),
        roles=FAMILY.roles(p, H100, s),
    )  # fmt: skip
    assert report.faults == (), [f.message for f in report.faults]
    return report


def random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(np.float16)


def near(out: Array, wanted: Array, k: int) -> None:
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0.01, atol=1e-3 * (k + 8) ** 0.5)


@pytest.mark.parametrize("values", [{}, STAGED | {"split_k": 2, "split_sum": "second"}])
def test_operands_that_do_not_count_are_not_read(values: dict[str, Any], home: Path) -> None:
    """With beta 0 C may be NaN or absent, with alpha 0 so may A and B, whose maps are none then."""
    rng = np.random.default_rng(1)
    p = Gemm(70, 72, 136, "f16", beta="any", layout=NK)
    s = schedule(p, **values)
    a, b, c = random(rng, 70, 136), random(rng, 72, 136), random(rng, 70, 72)
    out, nan = np.zeros((70, 72), np.float16), np.full((70, 72), np.nan, np.float16)
    for given in ({"c": nan}, {}):
        run(p, s, {"a": a, "b": b, "out": out, **given}, home, alpha=0.5)
        near(out, 0.5 * (a.astype(np.float64) @ b.T.astype(np.float64)), 136)
    bad = {"a": np.full((70, 136), np.nan, np.float16), "b": np.full((72, 136), np.nan, np.float16)}
    for given in (bad, {}):
        run(p, s, {"c": c, "out": out, **given}, home, alpha=0.0, beta=0.5)
        near(out, 0.5 * c.astype(np.float64), 0)


def test_nothing_to_sum_leaves_beta_c_and_the_epilogue(home: Path) -> None:
    rng = np.random.default_rng(2)
    epilogue = {"bias": "n", "activation": "relu", "residual": True}
    p = Gemm(70, 72, 0, "f16", beta="any", layout=NK, ld={"a": 8, "b": 8}, epilogue=epilogue)
    c, r, bias, out = (
        random(rng, 70, 72),
        random(rng, 70, 72),
        random(rng, 72),
        np.zeros((70, 72), np.float16),
    )
    for values in ({}, TURNS):
        run(p, schedule(p, **values), {"c": c, "residual": r, "bias": bias, "out": out}, home, beta=-2.0)
        wide = [x.astype(np.float64) for x in (c, bias, r)]
        near(out, np.maximum(-2.0 * wide[0] + wide[1], 0) + wide[2], 0)


def test_offsets_past_two_to_the_31(home: Path) -> None:
    """Rows and batch entries billions of elements apart."""
    rng = np.random.default_rng(4)
    far, entry = 2**31 + 8, 2**38
    p = Gemm(33, 40, 40, "f16", batch=2, layout=NK, beta="one", epilogue={"residual": True})
    shapes = {"a": (2, 33, 40), "b": (2, 40, 40), "c": (2, 33, 40), "residual": (2, 33, 40)}
    arrays = {x: random(rng, *size) for x, size in shapes.items()} | {
        "out": np.zeros((2, 33, 40), np.float16)
    }
    names = p.plan_names() | {f"ld_{x}": far for x in arrays} | {f"stride_{x}": entry for x in arrays}
    placed = {x: Operand(array, strides=(2 * entry, 2 * far, 2)) for x, array in arrays.items()}
    run(p, schedule(p, bn=32, store_columns=32), placed, home, names=names)
    wide = {x: array.astype(np.float64) for x, array in arrays.items()}
    near(arrays["out"], wide["a"] @ wide["b"].transpose(0, 2, 1) + wide["c"] + wide["residual"], 40)


def test_out_may_be_c(home: Path) -> None:
    rng = np.random.default_rng(5)
    p = Gemm(70, 72, 200, "f16", beta="one", layout=NK)
    for values in ({}, {"split_k": 3, "stages": 2}):
        a, b, out = random(rng, 70, 200), random(rng, 72, 200), random(rng, 70, 72)
        wanted = a.astype(np.float64) @ b.T.astype(np.float64) + out.astype(np.float64)
        run(p, schedule(p, **values), {"a": a, "b": b, "c": out, "out": out}, home)
        near(out, wanted, 200)


def test_parts_of_k_that_have_nothing_add_nothing(home: Path) -> None:
    """A plan for eight parts, run on a product with k for two and a half: in turns, the other has nothing."""
    rng = np.random.default_rng(7)
    large, p = Gemm(70, 72, 4096, "f16", layout=NK), Gemm(70, 72, 160, "f16", layout=NK)
    a, b, out = random(rng, 70, 160), random(rng, 72, 160), np.zeros((70, 72), np.float16)
    for values in (TURNS,):
        run(large, schedule(large, split_k=8, **values), {"a": a, "b": b, "out": out}, home, at=p)
        near(out, a.astype(np.float64) @ b.T.astype(np.float64), 160)


def test_results_leave_without_bank_conflicts(home: Path) -> None:
    """Panels are written as TMA exchanges their chunks: eight rows of a matrix fall into all banks."""
    rng = np.random.default_rng(8)
    p = Gemm(64, 64, 64, "f16", layout=NK)
    a, b, out = random(rng, 64, 64), random(rng, 64, 64), np.zeros((64, 64), np.float16)
    report = run(p, schedule(p), {"a": a, "b": b, "out": out}, home)
    near(out, a.astype(np.float64) @ b.T.astype(np.float64), 64)
    counted = report.counters["consumer0"]
    assert counted["shared_requests"]["store"] == 64 * 64 // 8 // 32
    assert counted["shared_wavefronts"]["store"] == counted["shared_requests"]["store"] * 4  # 512 bytes each
    assert "bank_conflicts" not in counted
