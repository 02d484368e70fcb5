"""Do the CUDA GEMM templates keep their promises at the edges: what is not read, far offsets, nothing to do?

Each test here stands for a mistake that was made, or one that public kernels are known for. The breadth
(every schedule, type and layout, in many orders) is the emulator bench's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from kernel.cuda_problems import problem
from rooftile.problem import Gemm

from emulator import FaultKind, Operand, Order, Program, Region, Report, run_plan
from search_space.device import Device
from search_space.family import Family
from search_space.registry import get_family
from search_space.schedule import Schedule
from service.paths import kernels_dir
from service.store.enums import TrialReason
from worker.compile import compile_kernel
from worker.verify.emulated import prove

Array = npt.NDArray[Any]
NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "tf32": np.float32,
                         "s8": np.int8, "s32": np.int32}  # fmt: skip
SMALL = {"bm": 64, "bn": 64, "bk": 32, "warps_m": 2, "warps_n": 2, "split_k": 1, "resident": 1}
BOTH = [("gemm_sm80", "sm_80"), ("gemm_sm70", "sm_70")]


def schedule(name: str, arch: str, p: Gemm, **values: Any) -> tuple[Family, Device, Schedule]:
    family, device = get_family(name), Device.for_arch(arch)
    s = family.default(p, device).replace(**(SMALL | values))
    assert family.check(p, device, s) == []
    return family, device, s


def run(
    made: tuple[Family, Device, Schedule],
    p: Gemm,
    arrays: dict[str, Any],
    home: Path,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    names: dict[str, int] | None = None,
    order: str = "late",
) -> Report:
    family, device, s = made
    artifact = compile_kernel(family.build(p, device, s), home=home)
    assert artifact.ptx is not None
    regions = tuple(
        Region(x.name, x.offset_bytes, x.stage_bytes, x.stages) for x in family.shared_map(p, device, s)
    )
    report = run_plan(
        Program.from_ptx(artifact.ptx), family.plan(p, device, s), names or p.plan_names(), arrays,
        {"alpha": alpha, "beta": beta}, order=Order(order), regions=regions,
    )  # fmt: skip
    assert report.faults == (), [f.message for f in report.faults]
    return report


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype in ("s8", "s32"):
        return rng.integers(-9, 9, shape).astype(NUMPY[dtype])
    return rng.uniform(-1, 1, shape).astype(np.float32).astype(NUMPY[dtype])


def near(out: Array, wanted: Array, k: int) -> None:
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=0.01, atol=1e-3 * (k + 8) ** 0.5)


def nan(shape: tuple[int, ...]) -> Array:
    return np.full(shape, np.nan, np.float16)


@pytest.mark.parametrize(("name", "arch"), BOTH)
@pytest.mark.parametrize("split", [(1, "last"), (2, "last"), (2, "second")])
def test_operands_that_do_not_count_are_not_read(
    name: str, arch: str, split: tuple[int, str], home: Path
) -> None:
    """With beta 0 C may be NaN or absent, with alpha 0 so may A and B, whatever the problem promised."""
    rng = np.random.default_rng(1)
    p = Gemm(70, 72, 72, "f16", beta="any")
    made = schedule(name, arch, p, split_k=split[0], split_sum=split[1])
    a, b, c = (random(rng, s, "f16") for s in ((70, 72), (72, 72), (70, 72)))
    out = np.zeros((70, 72), np.float16)
    whole = split[0] == 1
    for given in ({"c": nan((70, 72))}, {})[: 1 + whole]:
        run(made, p, {"a": a, "b": b, "out": out, **given}, home, alpha=0.5)
        near(out, 0.5 * (a.astype(np.float64) @ b.astype(np.float64)), 72)
    for given in ({"a": nan((70, 72)), "b": nan((72, 72))}, {})[: 1 + whole]:
        run(made, p, {"c": c, "out": out, **given}, home, alpha=0.0, beta=0.5)
        near(out, 0.5 * c.astype(np.float64), 0)


@pytest.mark.parametrize(("name", "arch"), BOTH)
def test_nothing_to_sum_leaves_beta_c_and_the_epilogue(name: str, arch: str, home: Path) -> None:
    rng = np.random.default_rng(2)
    p = Gemm(70, 72, 0, "f16", beta="any", epilogue={"bias": "n", "activation": "relu", "residual": True})
    made = schedule(name, arch, p)
    c, r = random(rng, (70, 72), "f16"), random(rng, (70, 72), "f16")
    bias, out = random(rng, (72,), "f16"), np.zeros((70, 72), np.float16)
    run(made, p, {"c": c, "residual": r, "bias": bias, "out": out}, home, beta=-2.0)
    wide = [x.astype(np.float64) for x in (c, bias, r)]
    near(out, np.maximum(-2.0 * wide[0] + wide[1], 0) + wide[2], 0)


@pytest.mark.parametrize("dtype", ["bf16", "s8"])
@pytest.mark.parametrize("copies", [("cp_async_16", "cp_async_16"), ("plain", "cp_async_8")])
def test_lookahead_with_one_step_a_tile(dtype: str, copies: tuple[str, str], home: Path) -> None:
    """The next tile's fragments were read into the second set of registers, and the first was multiplied."""
    rng = np.random.default_rng(3)
    bk = {"bf16": 16, "s8": 32}[dtype]
    p = problem(dtype, 64, 64, 6 * bk)
    made = schedule(
        "gemm_sm80", "sm_80", p, bk=bk, stages=3, lookahead=True, copy_a=copies[0], copy_b=copies[1]
    )
    # Small whole numbers: exact in every type.
    b_shape = (64, 6 * bk) if p.layout.b == "nk" else (6 * bk, 64)
    a, b = (rng.integers(-4, 5, s).astype(NUMPY[dtype]) for s in ((64, 6 * bk), b_shape))
    out = np.zeros((64, 64), NUMPY[p.dtype.c])
    run(made, p, {"a": a, "b": b, "out": out}, home)
    wide = a.astype(np.float64) @ (b.T if p.layout.b == "nk" else b).astype(np.float64)
    assert np.array_equal(out.astype(np.float64), wide.astype(out.dtype).astype(np.float64))


@pytest.mark.parametrize(("name", "arch"), BOTH)
@pytest.mark.parametrize("c", ["mn", "nm"])
def test_offsets_past_two_to_the_31(name: str, arch: str, c: str, home: Path) -> None:
    """Rows and batch entries billions of elements apart."""
    rng = np.random.default_rng(4)
    far, entry = 2**31 + 8, 2**38
    p = Gemm(33, 40, 40, "f16", batch=2, layout={"b": "nk", "c": c}, beta="one", epilogue={"residual": True})
    made = schedule(name, arch, p, vector=1)
    shape = (2, 33, 40) if c == "mn" else (2, 40, 33)
    shapes = {"a": (2, 33, 40), "b": (2, 40, 40), "c": shape, "residual": shape}
    arrays = {x: random(rng, size, "f16") for x, size in shapes.items()} | {
        "out": np.zeros(shape, np.float16)
    }
    names = p.plan_names() | {f"ld_{x}": far for x in arrays} | {f"stride_{x}": entry for x in arrays}
    placed = {x: Operand(array, strides=(2 * entry, 2 * far, 2)) for x, array in arrays.items()}
    run(made, p, placed, home, names=names)
    wide = {x: array.astype(np.float64) for x, array in arrays.items()}
    product = wide["a"] @ wide["b"].transpose(0, 2, 1)
    product = product if c == "mn" else product.transpose(0, 2, 1)
    near(arrays["out"], product + wide["c"] + wide["residual"], 40)


@pytest.mark.parametrize(("name", "arch"), BOTH)
@pytest.mark.parametrize("sum_by", ["last", "second"])
def test_out_may_be_c(name: str, arch: str, sum_by: str, home: Path) -> None:
    rng = np.random.default_rng(5)
    p = Gemm(70, 72, 200, "f16", beta="one")
    made = schedule(name, arch, p, split_k=3, split_sum=sum_by)
    a, b, out = (random(rng, s, "f16") for s in ((70, 200), (200, 72), (70, 72)))
    wanted = a.astype(np.float64) @ b.astype(np.float64) + out.astype(np.float64)
    run(made, p, {"a": a, "b": b, "c": out, "out": out}, home)
    near(out, wanted, 200)


@pytest.mark.parametrize(("dtype", "layout"), [
    ("bf16", {"a": "mk", "b": "kn"}), ("f16", {"a": "km", "b": "nk"}), ("tf32", {"a": "mk", "b": "nk"}),
    ("tf32", {"a": "km", "b": "kn"}), ("s8", {"b": "nk"}),
])  # fmt: skip
@pytest.mark.parametrize("banks", ["swizzle", "pad"])
def test_fragments_are_read_without_bank_conflicts(
    dtype: str, layout: dict[str, str], banks: str, home: Path
) -> None:
    """In both layouts of shared memory, for rows of 32 to 256 bytes and such as are no power of two."""
    rng = np.random.default_rng(6)
    size = {"tf32": 4, "s8": 1}.get(dtype, 2)
    tiles = ((64, 64, 32), (96, 32, 64), (64, 96, 128))
    for bm, bn, depth in tiles if banks == "swizzle" else tiles[1:2]:
        p = problem(dtype, bm, bn, 2 * depth // size, layout=layout)
        made = schedule(
            "gemm_sm80", "sm_80", p, bm=bm, bn=bn, bk=depth // size, stages=2, banks=banks, store="direct",
            vector=1, copy_a="cp_async_16", copy_b="cp_async_16",
        )  # fmt: skip
        shapes = [tuple(getattr(p, x) for x in order) for order in (p.layout.a, p.layout.b)]
        arrays = {x: random(rng, s, dtype) for x, s in zip("ab", shapes, strict=True)}
        out = np.zeros((bm, bn), NUMPY[p.dtype.c])
        report = run(made, p, arrays | {"out": out}, home)
        conflicts = report.counters["all"]["bank_conflicts"]
        assert conflicts["load"] == 0, (bm, bn, depth)
        if banks == "swizzle":  # padded rows are read without conflicts, but not written so
            assert conflicts["copy"] == 0, (bm, bn, depth)


@pytest.mark.parametrize(("name", "arch"), BOTH[:1])
def test_parts_of_k_that_have_nothing_add_nothing(name: str, arch: str, home: Path) -> None:
    """A plan for eight parts, run on a product with k for two and a half."""
    rng = np.random.default_rng(7)
    large, p = Gemm(70, 72, 4096, "f16"), Gemm(70, 72, 72, "f16")
    family, device, s = schedule(name, arch, large, split_k=8)
    a, b = random(rng, (70, 72), "f16"), random(rng, (72, 72), "f16")
    out = np.zeros((70, 72), np.float16)
    for sum_by in ("last", "second"):
        run((family, device, s.replace(split_sum=sum_by)), p, {"a": a, "b": b, "out": out}, home)
        near(out, a.astype(np.float64) @ b.astype(np.float64), 72)


def test_a_wrong_pitch_is_seen(home: Path) -> None:
    """The emulator would tell: the tests above do not pass because nothing looks."""
    p = Gemm(70, 72, 72, "f16")
    family, device, s = schedule("gemm_sm80", "sm_80", p)
    artifact = compile_kernel(family.build(p, device, s), home=home)
    arrays = {"a": np.zeros((70, 72), np.float16), "b": np.zeros((72, 72), np.float16),
              "out": np.zeros((70, 72), np.float16)}  # fmt: skip
    names = p.plan_names() | {"ld_a": 80}
    report = run_plan(
        Program.from_ptx(artifact.ptx or b""), family.plan(p, device, s), names, arrays,
        {"alpha": 1.0, "beta": 0.0},
    )  # fmt: skip
    assert report.faults[0].kind == FaultKind.OUT_OF_BOUNDS
    assert report.faults[0].buffer == "a"


def test_sums_that_depend_on_who_comes_last_are_told(home: Path, tmp_path: Path) -> None:
    """Within the bound, and yet not the same twice: parts of k added up from the last block's own on."""
    types = {"a": "bf16", "b": "bf16", "c": "f32"}  # 16 bits would round the difference away
    p = Gemm(64, 64, 32 * 6, types, ld={"a": 200, "b": 72, "c": 72})
    family, device, s = schedule("gemm_sm80", "sm_80", p, split_k=3, split_sum="last", stages=2)
    root = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), root)
    file = root / "cuda/include/sched/split_k.cuh"
    text = file.read_text()
    changed = text.replace(
        "for (unsigned s = 0; s < splits; ++s, from += SPLIT_BYTES) {",
        "for (unsigned s = 0; s < splits; ++s) {"
        " from = partials + (s + split) % splits * SPLIT_BYTES + thread * 16;",
    )
    assert changed != text
    file.write_text(changed)
    orders = (Order("late"), Order("ahead"), Order("behind"))
    for where, wanted in ((None, None), (root, TrialReason.NONDETERMINISTIC)):
        artifact = compile_kernel(family.build(p, device, s), home=home, root=where)
        assert artifact.ptx is not None
        verdict = prove(artifact.ptx, family, p, device, s, problems=(p,), orders=orders)
        assert verdict.reason is wanted, verdict.evidence
    assert "bit for bit" in verdict.evidence["message"]
