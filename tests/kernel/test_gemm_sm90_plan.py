"""Do gemm_sm90's plans ask for what the template does: tensor maps, grid, clusters, workspace, shared memory?

The arithmetic here is written from what the template's comments say, not from the planner.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
from kernel.cuda_problems import problem
from kernel.test_gemm_sm90_space import BASE, H100, start
from rooftile.plan import ConcreteFill, ConcreteLaunch, ConcreteTensorMap, LaunchPlan
from rooftile.problem import Gemm

from search_space.plan.gemm_sm90 import FAMILY
from search_space.schedule import Schedule

NK = {"b": "nk"}


def schedule(p: Gemm, **values: Any) -> Schedule:
    s = start(p).replace(**(BASE | values))
    assert FAMILY.check(p, H100, s) == []
    return s


def run(p: Gemm, s: Schedule, sms: int = 132) -> tuple[list[ConcreteFill], list[ConcreteLaunch], int]:
    """Fills, launches and workspace of the plan."""
    plan = FAMILY.plan(p, H100, s)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    names = p.plan_names() | {"threads": 1, "sm_count": sms}
    assert plan.check(names) == []
    done = plan.concrete(names)
    fills = [x for x in done.steps if isinstance(x, ConcreteFill)]
    return fills, [x for x in done.steps if isinstance(x, ConcreteLaunch)], done.workspace_bytes


def maps(launch: ConcreteLaunch) -> dict[str, ConcreteTensorMap]:
    return {a.name: a.tensor for a in launch.args if a.tensor is not None}


@pytest.mark.parametrize(("sms", "cluster"), [(132, (1, 1)), (132, (2, 1)), (114, (2, 2)), (1, (2, 1))])
def test_blocks_are_whole_clusters_no_more_than_sms(sms: int, cluster: tuple[int, int]) -> None:
    p = problem("bf16", 1000, 520, 256, batch=3, layout=NK)
    values = {"cluster_m": cluster[0], "cluster_n": cluster[1]}
    size = cluster[0] * cluster[1]
    clusters = -(-1000 // (128 * cluster[0])) * -(-520 // (128 * cluster[1])) * 3
    (launch,) = run(p, schedule(p, **values), sms)[1]
    assert launch.cluster == (size, 1, 1)
    assert launch.grid == (min(clusters, max(sms // size, 1)) * size, 1, 1)
    assert launch.block == (384, 1, 1)
    (launch,) = run(p, schedule(p, persistent=False, **values), sms)[1]
    assert launch.grid == (clusters * size, 1, 1)


def test_maps_of_operands_along_k() -> None:
    p = problem("bf16", 1000, 520, 264, batch=3, layout=NK)
    (launch,) = run(p, schedule(p, bn=64, cluster_m=2, cluster_n=1, promotion=256))[1]
    a, b, out = maps(launch).values()
    assert list(maps(launch)) == ["map_a", "map_b", "map_out"]
    assert [x.name for x in launch.args][:3] == ["map_a", "map_b", "map_out"]
    assert (a.buffer, a.dims, a.strides) == ("a", (264, 1000, 3), (528, 528 * 1000))
    assert (a.box, a.swizzle, a.l2_promotion, a.fill) == ((64, 128, 1), 128, 256, "zero")
    # Two blocks below each other share B: each loads half of its 64 rows.
    assert (b.buffer, b.dims, b.box) == ("b", (264, 520, 3), (64, 32, 1))
    assert (out.buffer, out.dims, out.strides) == ("out", (520, 1000, 3), (1040, 1040 * 1000))
    assert (out.box, out.swizzle, out.dtype) == ((64, 64, 1), 128, "bf16")


def test_maps_of_operands_along_m_and_n() -> None:
    p = problem("f16", 1000, 520, 264, layout={"a": "km", "b": "kn"})
    (launch,) = run(p, schedule(p, cluster_n=2, swizzle_a=64, store_columns=32, store="tma"))[1]
    a, b, out = maps(launch).values()
    assert (a.dims, a.strides[0], a.box, a.swizzle) == ((1000, 264, 1), 2000, (32, 32, 1), 64)
    assert (b.dims, b.strides[0], b.box, b.swizzle) == ((520, 264, 1), 1040, (64, 64, 1), 128)
    assert (out.box, out.swizzle) == ((32, 64, 1), 64)


def test_small_tiles_are_loaded_and_stored_as_such() -> None:
    p = problem("bf16", 16, 4096, 4096, layout=NK)
    s = schedule(p, bm=16, bn=64, consumers_m=1, registers="40/248")
    a, _, out = maps(run(p, s)[1][0]).values()
    assert (a.box, out.box) == ((64, 16, 1), (64, 16, 1))
    assert FAMILY.shared_map(p, H100, s)[0].stage_bytes == 64 * 64 * 2  # a wgmma reads 64 rows all the same


def test_without_k_a_map_is_still_one() -> None:
    p = problem("bf16", 128, 128, 0, layout=NK, ld={"a": 8, "b": 8})
    a, b, _ = maps(run(p, schedule(p))[1][0]).values()
    assert (a.dims[0], b.dims[0]) == (1, 1)


def test_operands_are_exchanged_for_a_transposed_product_or_result() -> None:
    p = problem("bf16", 1024, 512, 256, layout=NK, epilogue={"bias": "n"})
    s = schedule(p, swap_ab=True, store="staged", vector=8, store_columns=32, bn=64)
    (launch,) = run(p, s)[1]
    a, b = maps(launch).values()
    assert (a.buffer, b.buffer, a.dims[1], b.dims[1]) == ("b", "a", 512, 1024)
    assert launch.grid[0] == 512 // 128 * 1024 // 64
    defines = dict(FAMILY.build(p, H100, s).defines)
    # The epilogue sees the result as it is; only the product is transposed.
    assert (defines["RT_TRANSPOSED"], defines["RT_BIAS"]) == ("1", "1")
    values = {x.name: x.value for x in launch.args if x.value is not None}
    assert (values["m"], values["n"]) == (1024, 512)
    q = problem("bf16", 1024, 512, 256, layout={"b": "nk", "c": "nm"}, epilogue={"bias": "n"})
    a, b, out = maps(run(q, schedule(q))[1][0]).values()
    assert (a.buffer, b.buffer, a.dims[1]) == ("b", "a", 512)
    assert out.dims == (1024, 512, 1)
    assert dict(FAMILY.build(q, H100, schedule(q)).defines)["RT_BIAS"] == "2"


def test_the_last_block_adds_up_in_a_workspace_of_whole_clusters() -> None:
    p = problem("bf16", 1000, 520, 2048, batch=2, layout=NK)
    fills, (launch,), workspace = run(p, schedule(p, split_k=3, cluster_m=2))
    tiles = 4 * 2 * 5 * 2
    (fill,) = fills
    assert (fill.offset, fill.bytes, fill.value) == (0, tiles * 4, 0)
    at = next(a.value for a in launch.args if a.name == "partials_at")
    assert at is not None
    assert at % 16 == 0
    assert at >= fill.bytes
    assert workspace == at + tiles * 3 * 128 * 128 * 4


def test_a_second_entry_takes_no_maps() -> None:
    p = problem("bf16", 1000, 504, 2048, batch=2, layout=NK)
    s = schedule(p, split_k=3, split_sum="second", store="staged", store_columns=32, vector=8)
    fills, (first, second), workspace = run(p, s)
    assert (fills, first.entry, second.entry) == ([], "gemm", "reduce")
    assert second.args == first.args[2:]
    assert (second.cluster, second.block) == ((1, 1, 1), (256, 1, 1))
    assert workspace == 3 * 2 * 1000 * 504 * 4
    assert FAMILY.build(p, H100, s).entries == ("gemm", "reduce")


def test_what_a_plan_is_valid_for() -> None:
    p = problem("bf16", beta="any", layout=NK, epilogue={"residual": True})
    valid = FAMILY.plan(p, H100, schedule(p)).valid_for
    assert {x: valid.align[x] for x in ("a", "b", "out", "c", "residual")} == dict.fromkeys(
        ("a", "b", "out", "c", "residual"), 16
    )
    assert valid.sizes["n"].multiple_of == 8  # a row's end, which TMA rounds to 16 bytes
    assert valid.sizes["m"].multiple_of == 1
    assert {valid.sizes[f"{w}_{x}"].multiple_of for w, x in product(("ld", "stride"), "ab")} == {8}
    staged = FAMILY.plan(p, H100, schedule(p, store="staged", vector=4, store_columns=32)).valid_for
    assert (staged.sizes["n"].multiple_of, staged.align["out"]) == (1, 8)


def test_sizes_are_no_part_of_the_build() -> None:
    one, other = (
        problem("bf16", 1024, 512, 256, layout=NK),
        problem("bf16", 8, 4096, 8192, batch=7, layout=NK),
    )
    s = schedule(one)
    for kwargs in ({}, {"raster": "n", "group": 16}, {"promotion": 0}):
        assert FAMILY.build(one, H100, s) == FAMILY.build(other, H100, s.replace(**kwargs))
    for kwargs in ({"stages": 4}, {"raster": "hilbert"}, {"cluster_m": 2}, {"hint_a": "first"}):
        assert FAMILY.build(one, H100, s) != FAMILY.build(one, H100, s.replace(**kwargs))


def test_areas_of_shared_memory_follow_each_other() -> None:
    p = problem("bf16", layout=NK)
    for values in ({}, {"store": "staged", "store_columns": 32, "vector": 8}, {"store": "direct"},
                   {"hand_off": "pingpong"}, {"store_panels": 2, "store_columns": 32}):  # fmt: skip
        s = schedule(p, **values)
        areas = FAMILY.shared_map(p, H100, s)
        assert {a.align for a in areas} == {1024}
        assert areas[0].offset_bytes == 0
        for one, after in pairwise(areas):
            end = one.offset_bytes + one.stage_bytes * one.stages
            assert end <= after.offset_bytes < end + 1024
        last = areas[-1]
        (launch,) = run(p, s)[1]
        # A slack to align with, and a word or two for parts of k, padded to 16 bytes.
        assert launch.smem_bytes == last.offset_bytes + last.stage_bytes * last.stages + 1024 + 16


def test_roles_are_all_warps() -> None:
    p = problem("bf16", layout=NK)
    assert FAMILY.roles(p, H100, schedule(p)) == {
        "producer": range(4), "consumer0": range(4, 8), "consumer1": range(8, 12),
    }  # fmt: skip


def test_proof_problems_keep_the_build_and_are_legal() -> None:
    p = problem("bf16", 4096, 4096, 4096, layout=NK, batch=2, epilogue={"bias": "n"})
    for values in ({}, {"cluster_m": 2, "hand_off": "pingpong"}, {"split_k": 4},
                   {"swap_ab": True, "store": "staged", "vector": 8, "store_columns": 32}):  # fmt: skip
        s = schedule(p, **values)
        found = [x for x in FAMILY.proof_problems(p, H100, s) if isinstance(x, Gemm)]
        assert len(found) >= (2 if "split_k" in values else 4)
        for small in found:
            assert FAMILY.supports(small, "sm_90a") == []
            assert FAMILY.check(small, H100, s) == []
            assert FAMILY.build(small, H100, s) == FAMILY.build(p, H100, s)
        blocks = [(run(x, s, 4)[1][0].grid[0], run(x, s, 1)[1][0].grid[0]) for x in found]
        assert blocks[1][0] > blocks[1][1]  # several tiles a block, where the device has one SM
