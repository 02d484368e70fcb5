"""Do gemm_sm80's plans ask for what the template does: grid, workspace, arguments, alignment, shared memory?

The arithmetic here is written from what the template's comments say, not from the planner.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from kernel.cuda_problems import FULL, layouts, problem
from rooftile.plan import ConcreteFill, ConcreteLaunch, LaunchPlan
from rooftile.problem import Gemm

from search_space.device import Device
from search_space.plan.gemm_sm80 import FAMILY
from search_space.schedule import Schedule
from search_space.space import Space

A100 = Device.for_arch("sm_80")
BASE = {"bm": 128, "bn": 64, "bk": 32, "warps_m": 2, "warps_n": 2, "stages": 3, "split_k": 1}


def schedule(p: Gemm, **values: Any) -> Schedule:
    s = FAMILY.default(p, A100).replace(**(BASE | values))
    assert FAMILY.check(p, A100, s) == []
    return s


def run(p: Gemm, s: Schedule, at: Gemm | None = None) -> tuple[list[ConcreteFill], list[ConcreteLaunch], int]:
    """Fills, launches and workspace of the plan for p, at the sizes of `at`."""
    plan = FAMILY.plan(p, A100, s)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    names = (at or p).plan_names() | {"threads": 1, "sm_count": 108}
    assert plan.check(names) == []
    done = plan.concrete(names)
    fills = [x for x in done.steps if isinstance(x, ConcreteFill)]
    return fills, [x for x in done.steps if isinstance(x, ConcreteLaunch)], done.workspace_bytes


def arguments(launch: ConcreteLaunch) -> dict[str, int | str | None]:
    return {a.name: a.value if a.value is not None else a.buffer or a.scalar for a in launch.args}


@pytest.mark.parametrize("size", [(1, 1, 1), (128, 64, 32), (129, 65, 33), (1000, 3000, 0), (70000, 8, 8)])
def test_one_block_a_tile_in_x_alone(size: tuple[int, int, int]) -> None:
    p = problem("bf16", 1024, 1024, 1024, batch=3)
    m, n, k = size
    at = problem(
        "bf16", m, n, k, batch=3, ld={"b": -(-n // 8) * 8, "c": -(-n // 8) * 8, "a": max(-(-k // 8) * 8, 1)}
    )
    fills, (launch,), workspace = run(p, schedule(p, copy_a="plain", group=4, raster="n"), at)
    assert launch.grid == (-(-m // 128) * -(-n // 64) * 3, 1, 1)
    assert launch.block == (128, 1, 1)
    assert (fills, workspace) == ([], 0)
    got = arguments(launch)
    assert (got["m"], got["n"], got["k"], got["batch"]) == (m, n, k, 3)
    assert (got["splits"], got["group"], got["along_m"]) == (1, 4, 0)
    assert got["stride_b"] == k * got["ld_b"]  # type: ignore[operator]


def test_the_last_block_adds_up_in_a_workspace_of_whole_tiles() -> None:
    p = problem("bf16", 1000, 500, 2048, batch=2)
    fills, (launch,), workspace = run(p, schedule(p, split_k=3))
    tiles = 8 * 8 * 2
    assert launch.grid == (tiles * 3, 1, 1)
    (fill,) = fills
    assert (fill.offset, fill.bytes, fill.value) == (0, tiles * 4, 0)
    at = arguments(launch)["partials_at"]
    assert isinstance(at, int)
    assert at % 16 == 0
    assert at >= fill.bytes
    assert workspace == at + tiles * 3 * 128 * 64 * 4


def test_a_second_entry_adds_up_rows_of_whole_vectors() -> None:
    p = problem("bf16", 1000, 504, 2048, batch=2)
    fills, (first, second), workspace = run(p, schedule(p, split_k=3, split_sum="second"))
    assert (fills, first.entry, second.entry) == ([], "gemm", "reduce")
    assert workspace == 3 * 2 * 1000 * 504 * 4
    assert second.grid == (-(-(2 * 1000 * 126) // 256), 1, 1)
    assert (second.block, second.smem_bytes) == ((256, 1, 1), 0)
    assert arguments(first) == arguments(second)
    assert FAMILY.build(p, A100, schedule(p, split_k=3, split_sum="second")).entries == ("gemm", "reduce")
    assert FAMILY.build(p, A100, schedule(p, split_k=3)).entries == ("gemm",)


def test_operands_are_exchanged_for_a_transposed_result() -> None:
    p = problem("bf16", 1024, 512, 256, layout={"a": "km", "b": "nk", "c": "nm"}, epilogue={"bias": "n"})
    s = schedule(p)
    (launch,) = run(p, s)[1]
    got = arguments(launch)
    assert (got["a"], got["b"], got["m"], got["n"]) == ("b", "a", 512, 1024)
    assert (got["ld_a"], got["ld_b"], got["ld_out"]) == (256, 1024, 1024)
    assert (got["scale_a"], got["scale_b"]) == ("scale_b", "scale_a")
    defines = dict(FAMILY.build(p, A100, s).defines)
    assert (defines["RT_A_K_CONTIGUOUS"], defines["RT_B_K_CONTIGUOUS"], defines["RT_BIAS"]) == ("1", "0", "2")


def test_what_a_plan_is_valid_for() -> None:
    p = problem("bf16", beta="any", epilogue=FULL)
    s = schedule(p, copy_a="cp_async_8", copy_b="plain", store="direct", vector=2)
    valid = FAMILY.plan(p, A100, s).valid_for
    assert valid.align == {
        "a": 8, "b": 2, "c": 4, "out": 4, "residual": 4, "bias": 2, "scale_a": 4, "scale_b": 4,
        "workspace": 16,
    }  # fmt: skip
    multiples = {name: r.multiple_of for name, r in valid.sizes.items() if r.multiple_of > 1}
    wanted = {"a": 4, "c": 2, "out": 2, "residual": 2}
    assert multiples == {f"{what}_{x}": v for what in ("ld", "stride") for x, v in wanted.items()}
    plain = problem("bf16")  # neither C nor residual: their pitches do not matter
    assert {"ld_c", "ld_residual"}.isdisjoint(FAMILY.plan(plain, A100, schedule(plain)).valid_for.sizes)


def test_sizes_are_no_part_of_the_build() -> None:
    one, other = problem("bf16", 1024, 512, 256), problem("bf16", 8, 4096, 8192, batch=7)
    s = schedule(one)
    for kwargs in ({}, {"raster": "n", "group": 16}):
        assert FAMILY.build(one, A100, s) == FAMILY.build(other, A100, s.replace(**kwargs))
    assert FAMILY.build(one, A100, s) != FAMILY.build(one, A100, s.replace(stages=4))
    three, four = s.replace(split_k=3), s.replace(split_k=4)
    assert FAMILY.build(one, A100, three) == FAMILY.build(one, A100, four)


def test_offsets_past_two_to_the_31_fit_the_arguments() -> None:
    p = problem("bf16", 65536, 65536, 8)
    (launch,) = run(p, schedule(p))[1]
    assert {a.type for a in launch.args if a.value is not None} == {"i64"}
    assert arguments(launch)["stride_out"] == 2**32


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "s8"])
def test_shared_memory_is_a_ring_of_a_and_one_of_b(dtype: str) -> None:
    size = {"bf16": 2, "tf32": 4, "s8": 1}[dtype]
    bk = 64 // size
    for layout in layouts(dtype):
        p = problem(dtype, layout=layout)
        rows_a = "mk" if layout["c"] == "mn" else "nk"
        k_a = (layout["a"] if layout["c"] == "mn" else layout["b"]) == rows_a
        rows_b = "nk" if layout["c"] == "mn" else "mk"
        k_b = (layout["b"] if layout["c"] == "mn" else layout["a"]) == rows_b
        for banks in ("swizzle", "pad"):
            s = schedule(p, bk=bk, banks=banks, vector=1)
            (launch,) = run(p, s)[1]
            sizes = []
            for extent, k_last in ((128, k_a), (64, k_b)):
                pad = 0 if banks == "swizzle" else 32 if size == 4 and not k_last else 16
                sizes.append(extent * (64 + pad) if k_last else bk * (extent * size + pad))
            a, b = FAMILY.shared_map(p, A100, s)
            assert (a.name, a.offset_bytes, a.stage_bytes, a.stages) == ("a", 0, sizes[0], 3)
            assert (b.name, b.offset_bytes, b.stage_bytes, b.stages) == ("b", 3 * sizes[0], sizes[1], 3)
            # The epilogue: four warps with 16 rows of 32 sums, 8 words apart from a multiple of 32.
            assert launch.smem_bytes == max(3 * sum(sizes), 4 * 16 * 40 * 4)


def test_proof_problems_keep_the_code_and_reach_all_of_it() -> None:
    rng = Random(5)
    for p in (problem("bf16", beta="any", epilogue=FULL, batch=4), problem("tf32", layout={"c": "nm"}),
              problem("s8"), problem("f16", n=2046, align={"b": 2})):  # fmt: skip
        space = Space(FAMILY, p, A100)
        for s in [FAMILY.default(p, A100), *(space.random(rng) for _ in range(20))]:
            bm, bn, bk, stages = (s.integer(x) for x in ("bm", "bn", "bk", "stages"))
            splits = s.integer("split_k")
            small = FAMILY.proof_problems(p, A100, s)
            seen = []
            for q in small:
                assert isinstance(q, Gemm)
                assert FAMILY.check(q, A100, s) == []
                assert FAMILY.build(q, A100, s) == FAMILY.build(p, A100, s)
                assert FAMILY.plan(q, A100, s).check(q.plan_names()) == []
                m, n = (q.n, q.m) if q.layout.c == "nm" else (q.m, q.n)
                seen.append((m, n, q.k, q.batch))
                assert m * n * q.k <= 64e6
            assert any(m > bm and n > bn for m, n, _, _ in seen)  # several tiles
            assert any(m % bm and n % bn and k % bk for m, n, k, _ in seen)
            assert any(-(-k // bk) > stages for _, _, k, _ in seen)  # the ring goes round
            if splits == 1:
                assert any(0 < k < bk for _, _, k, _ in seen)
                assert any(k == 0 for _, _, k, _ in seen)
            assert (p.batch > 1) == any(batch > 1 for *_, batch in seen)


def test_structure_is_what_the_code_depends_on() -> None:
    p = problem("bf16")
    s = schedule(p)
    same = FAMILY.structure(p, A100, s)
    assert FAMILY.structure(problem("bf16", 8, 4096, 512), A100, s) == same
    for values in ({"bm": 256, "warps_m": 4}, {"raster": "n"}, {"group": 1}):
        assert FAMILY.structure(p, A100, s.replace(**values)) == same
    assert FAMILY.structure(p, A100, s.replace(stages=4)) == FAMILY.structure(p, A100, s.replace(stages=6))
    different: list[dict[str, Any]] = [
        {"stages": 2}, {"copy_a": "cp_async_4"}, {"banks": "pad"}, {"lookahead": True}, {"split_k": 2},
        {"store": "direct", "vector": 2}, {"bk": 16}, {"split_k": 2, "split_sum": "second"},
        # Copies that some threads sit out, and rows that take several turns.
        {"bn": 96}, {"bn": 256, "copy_b": "cp_async_4", "warps_m": 1},
    ]  # fmt: skip
    found = [FAMILY.structure(p, A100, s.replace(**values)) for values in different]
    assert same not in found
    assert all(x != y for x, y in pairwise(found))
    assert FAMILY.structure(problem("f16"), A100, s) != same
    assert FAMILY.structure(problem("bf16", epilogue=FULL), A100, s) != same


def test_the_default_serves_the_usual_awkward_sizes() -> None:
    """Sizes around tiles and pieces; each plan can be launched with packed rows."""
    rng = Random(8)
    for _ in range(60):
        m = rng.choice((1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 4095))
        n = rng.choice((8, 16, 24, 40, 96, 120, 136, 200, 248, 264, 470, 2112, 7168))
        k = rng.choice((8, 16, 32, 64, 72, 128, 136, 192, 256, 1152, 4104))
        p = problem(rng.choice(("bf16", "tf32", "s8")), m, n, k)
        s = FAMILY.default(p, A100)
        assert FAMILY.check(p, A100, s) == []
        assert run(p, s)[1]
