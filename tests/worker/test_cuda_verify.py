"""Do the checks on a GPU's arrays find what a kernel does wrong, and let a right one pass?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.plan import Arg, Launch, LaunchPlan, ValidFor, Workspace
from rooftile.problem import Gemm, parse_problem
from support.host_cuda import HostCuda, HostMemory, LaunchSeen, cubin_header, view

from worker.verify import reference
from worker.verify.bounds import Comparison
from worker.verify.checks import VerifyFailure
from worker.verify.device_cases import device_mains, device_neighbours
from worker.verify.device_checks import (
    DeviceTarget,
    check_device_case,
    prepare_device_case,
    self_check,
)
from worker.verify.device_elements import (
    checksum,
    decode,
    encode,
    fill_random,
    poison_word,
    storage,
    unsigned,
)
from worker.verify.device_integers import Integers, integers_of
from worker.verify.device_memory import DeviceBuffer
from worker.verify.device_reference import finish
from worker.verify.elements import element_dtype

DTYPES = ("f64", "f32", "tf32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8")


# -- elements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "e4m3", "e5m2", "f16"])
def test_words_are_what_ml_dtypes_says(name: str) -> None:
    """Every code decodes to its number; every number rounds to the nearest code, halves to even."""
    kind = element_dtype(name)
    codes = np.arange(1 << 8 * kind.itemsize, dtype=np.uint32).astype(
        storage(name) if name != "f16" else np.uint16
    )
    words = codes.view(np.float16) if name == "f16" else codes
    np.testing.assert_array_equal(
        decode(np, words, name).astype(np.float32), codes.view(kind).astype(np.float32)
    )
    values = np.random.default_rng(1).uniform(-1, 1, 20_000).astype(np.float32)
    exact = codes.view(kind).astype(np.float32)
    exact = np.sort(np.unique(exact[np.isfinite(exact) & (np.abs(exact) <= 1)]))
    values = np.concatenate(
        [values, exact, ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)]
    )
    ours = decode(np, encode(np, values, name), name).astype(np.float32)
    theirs = values.astype(kind).astype(np.float32)
    halves = np.abs(ours - values) == np.abs(theirs - values)
    assert halves.all()
    if name in ("bf16", "f16"):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", DTYPES)
def test_random_numbers(name: str) -> None:
    words = np.empty(40_000, storage(name))
    fill_random(np, words, name, 7, 0)
    numbers = decode(np, words, name).astype(np.float64)
    if name in ("s8", "u8"):
        low, high = (-128, 127) if name == "s8" else (0, 255)
        assert (numbers.min(), numbers.max()) == (low, high)
    else:
        assert np.abs(numbers).max() <= 1
        assert abs(numbers.mean()) < 0.02
        assert abs(numbers.std() - 3**-0.5) < 0.02
    assert not (unsigned(words) == poison_word(name)).all()
    again, other = np.empty_like(words), np.empty_like(words)
    fill_random(np, again, name, 7, 0)
    fill_random(np, other, name, 7, 1)
    assert (again == words).all()
    assert (unsigned(other) != unsigned(words)).mean() > 0.9
    if name == "tf32":
        assert not (words.view(np.uint32) & 0x1FFF).any()


def test_a_checksum_sees_one_bit() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1003, dtype=np.uint8)
    before = checksum(np, data)
    for at in (0, 500, 1002):
        data[at] ^= 1
        assert checksum(np, data) != before
        data[at] ^= 1
    swapped = data.copy()
    swapped[:8], swapped[8:16] = data[8:16], data[:8].copy()
    assert checksum(np, swapped) != before


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_the_reference_is_that_of_the_cpu(activation: str | None) -> None:
    problem = gemm(beta="any", epilogue={"bias": "n", "activation": activation, "residual": True})
    case = device_mains(problem, 3)[0]
    stream = np.random.default_rng(2)
    products, c, residual = (stream.uniform(-3, 3, (9, 11)) for _ in range(3))
    bias = stream.uniform(-1, 1, 11)
    ours = finish(np, products, case, {"c": c, "residual": residual}, bias)
    theirs = reference.finish(
        products, alpha=case.alpha, beta=case.beta, c=c, bias=bias, activation=activation, residual=residual
    )
    np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-13, atol=1e-13)
    assert ours.rms == pytest.approx(theirs.rms, rel=1e-12)


# -- buffers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3", "s8"])
@pytest.mark.parametrize(("placement", "offset", "align"), [("start", 256, 1), ("end", 0, 16), ("end", 0, 1)])
def test_a_byte_in_a_margin_is_seen(dtype: str, placement: str, offset: int, align: int) -> None:
    memory = HostMemory(HostCuda({}))
    width = element_dtype(dtype).itemsize
    align = max(align, width)
    buffer = DeviceBuffer(memory, "out", 37 * width, dtype, placement=placement, offset=offset, align=align)
    assert buffer.base % align == 0
    assert buffer.touched() is None
    buffer.data()[...] = 0
    assert buffer.touched() is None
    flat = view(buffer.base - 64, (buffer.nbytes + 128,), (1,), np.uint8)
    for at, wanted in (
        (64 + buffer.nbytes, ("past", 0)),
        (63, ("before", 1)),
        (70 + buffer.nbytes, ("past", 6)),
    ):
        was = flat[at]
        flat[at] = was ^ 0xFF
        assert buffer.touched() == wanted
        flat[at] = was


# -- kernels ----------------------------------------------------------------------------------------------

SIZES = (
    "m",
    "n",
    "k",
    "batch",
    "ld_a",
    "ld_b",
    "ld_out",
    "stride_a",
    "stride_b",
    "stride_out",
    "stride_c",
    "ld_c",
    "ld_residual",
)
ARGS = tuple(Arg.ptr(name) for name in ("a", "b", "c", "out", "workspace", "bias", "residual")) + tuple(
    Arg.i64(name) for name in SIZES
) + (Arg.f32("alpha"), Arg.f32("beta"))  # fmt: skip
CODES = "Q" * 7 + "q" * len(SIZES) + "ff"


class Toy:
    """A GEMM in Python on words of a dtype, with a fault to be planted: a function of what it computed."""

    def __init__(
        self, problem: Gemm, fault: Callable[[Toy, Any, dict[str, Any]], None] | None = None
    ) -> None:
        self.problem, self.fault, self.calls = problem, fault, 0

    def __call__(self, seen: LaunchSeen) -> None:
        self.calls += 1
        values = seen.values(CODES)
        p = dict(
            zip(
                ("a", "b", "c", "out", "workspace", "bias", "residual", *SIZES, "alpha", "beta"),
                values,
                strict=True,
            )
        )
        kinds = self.problem.dtype
        for i in range(p["batch"]):

            def matrix(name: str, rows: int, cols: int, kind: str, batch: int = i) -> Any:
                item = storage(kind).itemsize
                start = p[name] + item * batch * p.get(f"stride_{name}", 0)
                return view(start, (rows, cols), (item * p[f"ld_{name}"], item), storage(kind))

            m, n, k = p["m"], p["n"], p["k"]
            total = p["alpha"] * (
                decode(np, matrix("a", m, k, kinds.a), kinds.a).astype(np.float32)
                @ decode(np, matrix("b", k, n, kinds.b), kinds.b).astype(np.float32)
            )
            if p["c"] and p["beta"]:
                total = total + np.float32(p["beta"]) * decode(np, matrix("c", m, n, kinds.c), kinds.c)
            if p["bias"]:
                total = total + decode(
                    np, view(p["bias"], (n,), (storage(kinds.c).itemsize,), storage(kinds.c)), kinds.c
                )
            out = matrix("out", m, n, kinds.c)
            words = total.astype(element_dtype(kinds.c))
            out[...] = words.view(out.dtype)
            if self.fault is not None:
                self.fault(self, out, p)


def gemm(m: int = 20, n: int = 24, k: int = 32, dtype: Any = "f32", **more: Any) -> Gemm:
    problem = parse_problem({"op": "gemm", "m": m, "n": n, "k": k, "dtype": dtype, **more})
    assert isinstance(problem, Gemm)
    return problem


@pytest.fixture
def prove(tmp_path: Path) -> Callable[..., list[Any]]:
    """Run every case of a problem on a toy kernel with a fault."""

    def run(
        problem: Gemm, fault: Any = None, *, cases: int | None = None, deterministic: bool = True
    ) -> list[Any]:
        toy = Toy(problem, fault)
        cuda = HostCuda({"gemm": toy})
        path = tmp_path / "toy.cubin"
        path.write_bytes(cubin_header(80))
        plan = LaunchPlan(
            family="toy", arch="sm_80", kind="cuda", entries=("gemm",), sizes=SIZES,
            steps=(Launch("gemm", ARGS, grid=(1, 1, 1), block=(32, 1, 1)),), workspace=Workspace(4096),
            deterministic=deterministic, valid_for=ValidFor({}, {"a": 1, "b": 1, "out": 1}),
        )  # fmt: skip
        kernel = CudaKernel(path, plan, runtime=cuda, workspaces=Workspaces(cuda))
        memory = HostMemory(cuda)
        found = []
        for case in [*device_mains(problem, 5), *device_neighbours(problem, 5)][:cases]:
            prepared = prepare_device_case(case, memory)
            found.append(check_device_case(kernel, prepared, memory, lambda _: None, repeat=1))
        return found

    return run


MIXED = {"a": "bf16", "b": "bf16", "acc": "f32", "c": "f32"}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "tf32", "e4m3", "e5m2", MIXED])
def test_a_right_kernel_passes(prove: Callable[..., list[Any]], dtype: Any) -> None:
    found = prove(gemm(dtype=dtype, beta="any", epilogue={"bias": "n"}))
    assert all(one.passed and one.skipped is None for one in found)
    assert {one.case.name for one in found} >= {"main/end", "k0", "long k", "batched", "out is c", "other m"}
    assert max(one.max_error or 0.0 for one in found) > 0.0


def test_a_large_problem_is_sampled(prove: Callable[..., list[Any]]) -> None:
    memory = HostMemory(HostCuda({}))
    prepared = prepare_device_case(device_mains(gemm(90, 80, 70), 5)[0], memory, most_flops=1e5)
    assert not prepared.whole
    assert len(prepared.parts) == 2


def wrong(change: Callable[[Any, Any], None]) -> Any:
    def fault(_: Toy, out: Any, p: dict[str, Any]) -> None:
        if out.size > 40:
            change(out, p)

    return fault


def past_out(_: Toy, out: Any, p: dict[str, Any]) -> None:
    end = p["out"] + out.itemsize * ((p["batch"] - 1) * p["stride_out"] + (p["m"] - 1) * p["ld_out"] + p["n"])
    view(end, (1,), (1,), np.uint8)[0] = 1


def in_the_gap(_: Toy, out: Any, p: dict[str, Any]) -> None:
    if p["ld_out"] > p["n"] and p["m"] > 1:
        view(p["out"] + out.itemsize * p["n"], (1,), (4,), np.uint8)[0] = 1


def half_of_the_calls(toy: Toy, out: Any, p: dict[str, Any]) -> None:
    if toy.calls % 2 == 0 and p["k"] > 16:
        out[...] += np.float32(1e-6)


def poisoned(out: Any, _: Any) -> None:
    out.view(np.uint32)[3:, 5] = poison_word("f32")


FAULTS: dict[str, tuple[str, Any, str]] = {
    "wrong value": ("wrong_result", wrong(lambda out, _: out.__setitem__((3, 5), 9.0)), r"\[3, 5\]"),
    "swapped rows": (
        "wrong_result",
        wrong(lambda out, _: out.__setitem__(slice(None), out[::-1].copy())),
        "wrong",
    ),
    "NaN": ("nan_result", wrong(lambda out, _: out.__setitem__((2, 1), np.nan)), r"\[2, 1\]"),
    "not written": ("not_written", wrong(poisoned), r"first at \[3, 5\]"),
    "past out": ("out_of_bounds", past_out, r"past the end of out, at \+0"),
    "before a": (
        "out_of_bounds",
        lambda _toy, _out, p: view(p["a"] - 8, (1,), (1,), np.uint8).__setitem__(0, 1),
        "before the start of a, at -8",
    ),
    "between rows": ("out_of_bounds", in_the_gap, "between the rows of out"),
    "past the workspace": (
        "out_of_bounds",
        lambda _toy, _out, p: view(p["workspace"] + 4096, (1,), (1,), np.uint8).__setitem__(0, 1),
        "past the end of workspace",
    ),
    "into an input": (
        "out_of_bounds",
        lambda _toy, _out, p: view(p["b"], (1,), (1,), np.uint8).__setitem__(0, 1),
        "read-only b",
    ),
    "differs": ("nondeterministic", half_of_the_calls, "differ between two runs"),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_each_fault_is_named(prove: Callable[..., list[Any]], name: str) -> None:
    reason, fault, says = FAULTS[name]
    with pytest.raises(VerifyFailure, match=says) as caught:
        prove(gemm(), fault)
    assert caught.value.reason == reason
    assert caught.value.evidence["on"]["case"]


def test_a_plan_that_says_so_may_differ(prove: Callable[..., list[Any]]) -> None:
    prove(gemm(), half_of_the_calls, deterministic=False)


def test_faults_in_narrow_outputs(prove: Callable[..., list[Any]]) -> None:
    """The poison of 16-bit outputs, and a bit that is wrong in the last place but one."""

    def last_bits(out: Any, _: Any) -> None:
        out[1, 1] ^= 0x8

    with pytest.raises(VerifyFailure, match=r"\[1, 1\]"):
        prove(gemm(dtype="bf16"), wrong(last_bits))
    with pytest.raises(VerifyFailure, match="1 of 480 elements were not written"):
        prove(gemm(dtype="bf16"), wrong(lambda out, _: out.__setitem__((0, 0), poison_word("bf16"))))


@pytest.mark.parametrize("dtype", [*DTYPES, MIXED])
def test_the_checks_check_themselves(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every type, packed, pitched and sampled; and a comparison that sees nothing is found out."""
    memory = HostMemory(HostCuda({}))
    problem = gemm(dtype=dtype, beta="any" if dtype == "f32" else "zero")
    pitched = next(case for case in device_neighbours(problem, 1) if case.pad)
    for case, most in (
        (device_mains(problem, 1)[1], 1e12),
        (pitched, 1e12),
        (device_mains(problem, 1)[0], 1e3),
    ):
        self_check(prepare_device_case(case, memory, most_flops=most), memory)
    if dtype == "u8":  # sums beyond what a float32 tells apart
        long = device_mains(gemm(k=4104, dtype="u8"), 1)[1]
        self_check(prepare_device_case(long, memory), memory)
    nothing = Comparison(None, 0.0, 0.0, {})
    monkeypatch.setattr(DeviceTarget, "compare", lambda _self: nothing)
    with pytest.raises(RuntimeError, match="do not see a wrong element"):
        self_check(prepare_device_case(pitched, memory), memory)


def test_integers_must_be_exact(prove: Callable[..., list[Any]]) -> None:
    memory = HostMemory(HostCuda({}))
    case = device_mains(gemm(dtype="s8"), 1)[0]
    assert prepare_device_case(case, memory).bound.absolute == 0.0


@pytest.mark.parametrize("k", [1, 16, 96, 264, 1000, 4112, 1 << 16, 1 << 20])
@pytest.mark.parametrize("b", ["s8", "u8"])
@pytest.mark.parametrize("a", ["s8", "u8"])
def test_sums_of_integers_stay_within_an_f16(a: str, b: str, k: int) -> None:
    """By their own numbers, not by the formula that chose them: the worst case, or 8 sigmas of a sum; twice
    that is still finite."""
    problem = gemm(64, 64, k, {"a": a, "b": b, "acc": "s32", "c": "f16"}, alpha="any")
    ranges = {"a": (0, 0), "b": (0, 0)}
    for case in (*device_mains(problem, 4), *device_neighbours(problem, 4)):
        numbers, depth = {}, case.problem.k
        for stream, (name, dtype) in enumerate((("a", a), ("b", b))):
            words = np.empty(max(20_000, 2 * depth), storage(dtype))
            fill_random(np, words, dtype, case.seed, stream, integers_of(case, name))
            numbers[name] = words.astype(np.int64)
            low, high = ranges[name]
            ranges[name] = min(low, int(words.min())), max(high, int(words.max()))
        products = numbers["a"] * numbers["b"]
        worst = depth * int(np.abs(numbers["a"]).max()) * int(np.abs(numbers["b"]).max())
        likely = abs(depth * products.mean()) + 8 * products.std() * depth**0.5
        assert min(worst, likely) * max(1.0, abs(case.alpha)) < 65504 * 0.75
        if depth:  # a sum is of many numbers, however large k is
            assert depth * np.count_nonzero(products) / products.size >= min(depth / 4, 20)
    # And each operand has its whole range in one of the cases.
    assert ranges == {
        name: {"s8": (-128, 127), "u8": (0, 255)}[dtype] for name, dtype in (("a", a), ("b", b))
    }


@pytest.mark.parametrize("a", ["s8", "u8"])
def test_the_reference_of_integers_is_a_finite_f16(a: str) -> None:
    memory = HostMemory(HostCuda({}))
    for k in (96, 4112):
        problem = gemm(40, 48, k, {"a": a, "b": "s8", "acc": "s32", "c": "f16"}, alpha="any")
        for case in device_mains(problem, 3):
            (part,) = prepare_device_case(case, memory).parts
            assert np.isfinite(part.reference.values.astype(np.float16)).all()
            assert np.abs(part.reference.values).max() > 100.0
    # Where the result holds every sum, both have their whole range.
    wide = device_mains(gemm(k=4112, dtype={"a": a, "b": "s8", "acc": "s32", "c": "f32"}), 3)[0]
    assert integers_of(wide, "b") == Integers(-128, 127)
    assert integers_of(wide, "a") == Integers(*{"s8": (-128, 127), "u8": (0, 255)}[a])


def test_neighbours_are_for_vector_copies_too() -> None:
    cases = device_neighbours(gemm(64, 256, 512, "bf16"), 1)
    eight = [
        c
        for c in cases
        if c.problem.k % 8 == 0 and all(v % 8 == 0 for k, v in c.names().items() if "ld" in k)
    ]
    assert len(eight) >= 6
    assert any(c.problem.batch > 1 and c.names()["stride_a"] % 8 == 0 for c in cases)
    assert any(c.problem.k % 2 for c in cases)
