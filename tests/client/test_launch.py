"""Does a kernel called with arrays give the problem's result for every legal array, and refuse all others?"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.baseline import Baseline
from rooftile.errors import LaunchError
from rooftile.launch.errors import UnsuitableError
from rooftile.launch.memory import Workspace, address_of
from rooftile.launch.pool import Pool
from rooftile.launch.x86 import X86Kernel
from rooftile.plan import LaunchPlan, pack_args
from rooftile.problem import Gemm

MakePlan = Callable[..., LaunchPlan]
Arrays = dict[str, Any]


@pytest.fixture
def kernel(toy_so: Path, pool: Pool, toy_plan: MakePlan) -> Callable[..., X86Kernel]:
    """kernel(problem, split=..., valid=..., open_sizes=...)"""

    def make(problem: Gemm, open_sizes: bool = False, **plan: Any) -> X86Kernel:
        return X86Kernel(toy_so, toy_plan(problem.layout.b, **plan), pool, problem, open_sizes=open_sizes)

    return make


MakeKernel = Callable[..., X86Kernel]


def gemm(m: int = 5, n: int = 7, k: int = 11, **fields: Any) -> Gemm:
    return Gemm(m, n, k, "f32", **fields)


def uniform(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def reference(a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, c: Any = None, bias: Any = 0.0,
              residual: Any = 0.0) -> Any:  # fmt: skip
    result = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + np.asarray(bias, np.float64)
    return result + (beta * c.astype(np.float64) if beta else 0) + np.asarray(residual, np.float64)


def close(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", [False, True])
def test_result_is_right_and_out_is_returned(kernel: MakeKernel, split: bool) -> None:
    k = kernel(gemm(), split=split)
    a, b, out = uniform(5, 11), uniform(11, 7), np.full((5, 7), np.nan, np.float32)
    assert k(a, b, out) is out
    close(out, reference(a, b))
    made = k(a, b)
    assert made.dtype == np.float32
    close(made, out)


def test_both_layouts_of_b(kernel: MakeKernel) -> None:
    a, b = uniform(5, 11), uniform(7, 11)
    close(kernel(gemm(layout={"b": "nk"}))(a, b), reference(a, b.T))


@pytest.mark.parametrize(
    ("with_bias", "with_residual", "beta"), list(product((False, True), (False, True), (0.0, -0.5)))
)
def test_epilogue_operands(kernel: MakeKernel, with_bias: bool, with_residual: bool, beta: float) -> None:
    epilogue = {"bias": "n" if with_bias else None, "residual": with_residual}
    k = kernel(gemm(beta="any", epilogue=epilogue))
    a, b, c = uniform(5, 11), uniform(11, 7), uniform(5, 7)
    given: Arrays = {"alpha": 2.0, "beta": beta}
    if beta:
        given["c"] = c
    if with_bias:
        given["bias"] = uniform(7)
    if with_residual:
        given["residual"] = uniform(5, 7)[::-1].copy()
    close(k(a, b, **given), reference(a, b, **given))


def test_beta_zero_does_not_read_c(kernel: MakeKernel) -> None:
    a, b, c = uniform(5, 11), uniform(11, 7), np.full((5, 7), np.nan, np.float32)
    close(kernel(gemm(beta="any"))(a, b, c=c, beta=0.0), reference(a, b))


def test_out_may_be_c_itself(kernel: MakeKernel) -> None:
    a, b, c = uniform(5, 11), uniform(11, 7), uniform(5, 7)
    want = reference(a, b, beta=2.0, c=c)
    close(kernel(gemm(beta="any"))(a, b, out=c, c=c, beta=2.0), want)
    close(c, want)


def test_the_workspace_is_clean_at_every_run(kernel: MakeKernel) -> None:
    """A plan that zeroes by a fill step, and one that asks for a zero workspace; what other kernels of the
    pool left in it must not show."""
    a, b = uniform(5, 11), uniform(11, 7)
    first, second = kernel(gemm(), split=True), kernel(gemm(), split=True, init="zero")
    for _ in range(3):
        close(first(a, b), reference(a, b))
        close(second(a, b), reference(a, b))


# -- views ------------------------------------------------------------------------------------------------


def test_pitches_are_read(kernel: MakeKernel) -> None:
    big_a, big_b, big_out = uniform(10, 30), uniform(22, 20), np.zeros((5, 40), np.float32)
    a, b, out = big_a[::2, 3:14], big_b[::2, 2:9], big_out[:, 30:37]
    kernel(gemm())(a, b, out)
    close(out, reference(a, b))
    assert not big_out[:, :30].any()
    assert not big_out[:, 37:].any()


def test_pitches_of_optional_operands_are_read(kernel: MakeKernel) -> None:
    k = kernel(gemm(beta="any", epilogue={"bias": "n", "residual": True}))
    a, b = uniform(5, 11), uniform(11, 7)
    c, residual = uniform(5, 20)[:, 1:8], uniform(10, 9)[::2, :7]
    bias = uniform(16)[3:10]
    given: Arrays = {"c": c, "beta": 1.0, "bias": bias, "residual": residual}
    close(k(a, b, **given), reference(a, b, **given))


def test_batch_strides_are_read(kernel: MakeKernel) -> None:
    k = kernel(gemm(batch=3))
    a, b = uniform(6, 5, 11)[::2], uniform(11, 3, 7).transpose(1, 0, 2)
    out = np.zeros((5, 3, 7), np.float32).transpose(1, 0, 2)
    close(k(a, b, out), reference(a, b))
    shared = np.broadcast_to(uniform(11, 7), (3, 11, 7))
    close(k(a, shared), reference(a, shared))


def test_strides_of_single_rows_and_columns_do_not_matter(kernel: MakeKernel) -> None:
    a = uniform(5, 40)[2:3, :11]
    b = np.lib.stride_tricks.as_strided(uniform(11, 1), (11, 1), (4, 4000))
    close(kernel(gemm(1, 1, 11))(a, b), reference(a, b))


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_transposed_view_is_refused_by_name(kernel: MakeKernel, name: str) -> None:
    arrays = {"a": uniform(5, 11), "b": uniform(11, 7), "out": uniform(5, 7)}
    arrays[name] = np.asfortranarray(arrays[name])
    with pytest.raises(
        UnsuitableError, match=rf"^{name} has strides \(4, .*last dimension must be contiguous"
    ):
        kernel(gemm())(**arrays)


def test_other_strides_that_no_pitch_can_say(kernel: MakeKernel) -> None:
    k, a, b = kernel(gemm()), uniform(5, 11), uniform(11, 7)
    with pytest.raises(UnsuitableError, match="a has strides"):
        k(uniform(5, 22)[:, ::2], b)
    with pytest.raises(UnsuitableError, match="a has strides"):
        k(a[::-1], b)
    with pytest.raises(UnsuitableError, match="a has strides"):
        k(np.broadcast_to(uniform(11), (5, 11)), b)
    odd = np.zeros(5 * 50, np.uint8)[: 5 * 50].reshape(5, 50)[:, :44].view(np.float32)
    with pytest.raises(UnsuitableError, match="no multiples of its 4-byte elements"):
        k(odd, b)
    unaligned = np.zeros(5 * 11 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(5, 11)
    with pytest.raises(UnsuitableError, match=r"a starts at no multiple|a is aligned to 1"):
        k(unaligned, b)


def test_the_plan_says_what_it_is_valid_for(kernel: MakeKernel) -> None:
    valid = {"sizes": {"ld_b": {"min": 1, "multiple_of": 4}}, "align": {"a": 64}}
    k = kernel(gemm(n=8), valid=valid)
    store = np.zeros(5 * 11 + 64, np.float32)
    start = (-address_of(store) % 64) // 4
    a, b = store[start : start + 55].reshape(5, 11), uniform(11, 8)
    k(a, b)
    with pytest.raises(UnsuitableError, match="a is aligned to 4 bytes, not 64"):
        k(store[start + 1 : start + 56].reshape(5, 11), b)
    with pytest.raises(UnsuitableError, match="ld_b = 9 is no multiple of 4"):
        k(a, uniform(11, 9)[:, :8])
    k(a, b)


# -- refusals ---------------------------------------------------------------------------------------------


def wrong_calls() -> list[tuple[str, Arrays, str]]:
    a, b, o = uniform(5, 11), uniform(11, 7), uniform(5, 7)
    read_only = o.copy()
    read_only.flags.writeable = False
    return [
        ("shape of a", {"a": uniform(6, 11), "b": b}, r"a has shape \(6, 11\), the .* wants \(5, 11\)"),
        ("shape of b", {"a": a, "b": b.T}, r"b has shape \(7, 11\)"),
        ("batch where none is", {"a": a[None], "b": b}, r"a has shape \(1, 5, 11\)"),
        ("shape of out", {"a": a, "b": b, "out": uniform(7, 5)}, r"out has shape"),
        ("dtype of a", {"a": a.astype(np.float64), "b": b}, "a is float64, the problem says float32"),
        ("dtype of b", {"a": a, "b": b.astype(np.float16)}, "b is float16"),
        ("byte order", {"a": a.astype(">f4"), "b": b}, "a is >f4"),
        ("dtype of out", {"a": a, "b": b, "out": o.astype(np.int32)}, "out is int32"),
        ("read-only out", {"a": a, "b": b, "out": read_only}, "out is read-only"),
        ("a list", {"a": a.tolist(), "b": b}, "a is a list; it must be an array"),
        ("None", {"a": a, "b": None}, "b is a NoneType"),
        ("a scale", {"a": a, "b": b, "scale_a": 1.0}, "scale_a was given, but the problem has no such scale"),
        ("a stream", {"a": a, "b": b, "stream": 0}, "stream was given"),
        ("c without beta", {"a": a, "b": b, "c": o}, "fixes beta to zero"),
        ("beta", {"a": a, "b": b, "c": o, "beta": 1.0}, "beta=1.0, but the problem fixes beta to zero"),
        ("bias", {"a": a, "b": b, "bias": uniform(7)}, "epilogue has none"),
        ("residual", {"a": a, "b": b, "residual": o}, "epilogue has none"),
        ("alpha too large", {"a": a, "b": b, "alpha": 1e300}, "alpha=1e"),
        ("alpha no number", {"a": a, "b": b, "alpha": "2"}, "alpha='2'"),
        ("alpha is nothing", {"a": a, "b": b, "alpha": None}, "alpha=None is not a number"),
        ("alpha an array", {"a": a, "b": b, "alpha": np.ones(2)}, "alpha=.* is not a number"),
        ("beta an array", {"a": a, "b": b, "beta": np.ones(2)}, "beta=.* is not a number"),
        ("alpha beyond floats", {"a": a, "b": b, "alpha": 10**400}, "alpha=.* is not a number"),
        ("masked", {"a": np.ma.masked_less(a, 0), "b": b}, "a is a masked array"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"), [x[1:] for x in wrong_calls()], ids=[x[0] for x in wrong_calls()]
)
def test_wrong_calls_are_refused(kernel: MakeKernel, given: Arrays, message: str) -> None:
    k = kernel(gemm())
    k(uniform(5, 11), uniform(11, 7))  # a right call before must not let a wrong one through
    with pytest.raises(LaunchError, match=message) as caught:
        k(**given)
    assert not isinstance(caught.value, UnsuitableError)
    with pytest.raises(LaunchError, match=message):  # who won the race must not decide what is right
        Baseline(gemm())(**given)


def test_missing_operands_are_named(kernel: MakeKernel) -> None:
    a, b = uniform(5, 11), uniform(11, 7)
    with pytest.raises(LaunchError, match="bias is missing"):
        kernel(gemm(epilogue={"bias": "n"}))(a, b)
    with pytest.raises(LaunchError, match="residual is missing"):
        kernel(gemm(epilogue={"residual": True}))(a, b)
    k = kernel(gemm(beta="any"))
    k(a, b)
    with pytest.raises(LaunchError, match=r"beta=1.0 needs c"):
        k(a, b, beta=1.0)
    with pytest.raises(LaunchError, match="fixes alpha to one"):
        kernel(gemm(alpha="one"))(a, b, alpha=2.0)


def test_out_over_an_input_is_refused(kernel: MakeKernel) -> None:
    k = kernel(gemm(7, 7, 7))
    a, b = uniform(7, 7), uniform(7, 7)
    for name, call in {"a": (a, b, a), "b": (a, b, b)}.items():
        with pytest.raises(LaunchError, match=f"out overlaps {name}"):
            k(*call)
    store = uniform(20, 7)
    with pytest.raises(LaunchError, match="out overlaps a"):
        k(store[:7], b, store[6:13])
    # Side by side in one matrix: their ranges cross, but they share no byte.
    wide = uniform(7, 14)
    want = reference(wide[:, :7], b)
    close(k(wide[:, :7], b, wide[:, 7:]), want)
    c = uniform(8, 7)
    with pytest.raises(LaunchError, match="out overlaps c; only c itself"):
        kernel(gemm(7, 7, 7, beta="any"))(a, b, out=c[1:], c=c[:7], beta=1.0)
    with pytest.raises(LaunchError, match="out overlaps residual"):
        kernel(gemm(7, 7, 7, epilogue={"residual": True}))(a, b, out=c[1:], residual=c[1:])
    with pytest.raises(LaunchError, match="out overlaps bias"):
        kernel(gemm(7, 7, 7, epilogue={"bias": "n"}))(a, b, out=c[1:], bias=c[1])


def test_an_out_that_overlaps_itself_is_refused(kernel: MakeKernel) -> None:
    rows = np.lib.stride_tricks.as_strided(np.zeros(100, np.float32), (5, 7), (12, 4))
    with pytest.raises(LaunchError, match="its elements overlap"):
        kernel(gemm())(uniform(5, 11), uniform(11, 7), rows)


# -- sizes of 0 and open sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(0, 7, 11), (5, 0, 11), (0, 0, 0)])
def test_an_empty_result_never_reaches_the_kernel(kernel: MakeKernel, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    one = kernel(gemm(m, n, k))
    one.functions["run"].value = 0  # calling it would crash
    assert one(np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)).shape == (m, n)


@pytest.mark.parametrize(
    "valid", [None, {"sizes": {"k": {"min": 1}}}], ids=["by the kernel", "by the client"]
)
def test_k_of_zero_gives_beta_c(kernel: MakeKernel, valid: Any) -> None:
    k = kernel(gemm(5, 7, 0, beta="any", epilogue={"bias": "n", "residual": True}), valid=valid)
    a, b = np.zeros((5, 0), np.float32), np.zeros((0, 7), np.float32)
    c, bias, residual = uniform(5, 7), uniform(7), uniform(7, 5).reshape(5, 7)
    close(k(a, b, c=c, beta=-2.0, bias=bias, residual=residual), -2.0 * c + bias + residual)
    out = np.full((5, 7), np.nan, np.float32)
    close(k(a, b, out, bias=bias, residual=residual), bias + residual)
    want = 3.0 * c + bias + residual
    close(k(a, b, out=c, c=c, beta=3.0, bias=bias, residual=residual), want)


def test_open_sizes_follow_the_arrays(kernel: MakeKernel) -> None:
    k = kernel(gemm(), open_sizes=True)
    b = uniform(11, 7)
    for m in (1, 5, 0, 12):
        a = uniform(m, 11) if m else np.zeros((0, 11), np.float32)
        close(k(a, b), reference(a, b))
    a3, b3 = uniform(2, 3, 11), uniform(2, 11, 7)
    close(k(a3, b3), reference(a3, b3))
    with pytest.raises(LaunchError, match="a has shape"):
        k(uniform(5, 10), b)


# -- what the launcher does underneath --------------------------------------------------------------------


def test_anything_that_lends_memory_is_used_without_a_copy(kernel: MakeKernel) -> None:
    import array

    k = kernel(gemm(2, 2, 2))
    a = memoryview(array.array("f", [1, 2, 3, 4])).cast("B").cast("f", [2, 2])
    out = memoryview(array.array("f", [0] * 4)).cast("B").cast("f", [2, 2])
    assert k(a, np.eye(2, dtype=np.float32), out) is out
    assert out.tolist() == [[1, 2], [3, 4]]

    class Interface:
        def __init__(self, base: Any) -> None:
            self.base = base
            self.__array_interface__ = base.__array_interface__

    base = np.zeros((2, 2), np.float32)
    k(np.eye(2, dtype=np.float32), uniform(2, 2), Interface(base))
    close(base, uniform(2, 2))


def test_packed_arguments_are_those_of_pack_args(toy_so: Path, pool: Pool, toy_plan: MakePlan) -> None:
    """The fast packing of the launcher against the plain one, for a struct that needs padding."""
    plan = LaunchPlan.from_json({
        "schema": 1, "family": "toy", "arch": "x86-64-v3", "kind": "x86", "entries": ["run"],
        "sizes": ["m", "n"],
        "steps": [{"op": "launch", "entry": "run", "threads": 1, "args": [
            {"name": "alpha", "type": "f32", "scalar": "alpha"}, {"name": "a", "type": "ptr", "buffer": "a"},
            {"name": "m", "type": "i32", "value": {"op": "-", "args": [0, "m"]}},
            {"name": "beta", "type": "f64", "scalar": "beta"}, {"name": "n", "type": "u32", "value": "n"},
            {"name": "q", "type": "ptr", "buffer": "q"}, {"name": "n2", "type": "i64", "value": "n"},
            {"name": "m2", "type": "i32", "value": "m"},
        ]}],
    })  # fmt: skip
    names, pointers, scalars = {"m": 3, "n": 4}, {"a": 0x7F0123456789, "b": 1}, {"alpha": 0.1, "beta": 0.2}
    prepared = X86Kernel(toy_so, plan, pool).prepare(names, pointers, scalars)
    (launch,) = plan.concrete(names).steps
    expected = pack_args(launch.args, pointers, scalars)  # type: ignore[union-attr]
    assert [call[1] for call in prepared._calls] == [expected]
    assert expected == struct.pack("@fPidIPqi0q", 0.1, 0x7F0123456789, -3, 0.2, 4, 0, 4, 3)


def test_prepare_runs_on_addresses(toy_so: Path, pool: Pool, toy_plan: MakePlan) -> None:
    problem = gemm()
    a, b = uniform(5, 11), uniform(11, 7)
    names = problem.plan_names()
    for split in (False, True):
        kernel = X86Kernel(toy_so, toy_plan(split=split), pool)
        out = np.full((5, 7), np.nan, np.float32)
        pointers = {"a": address_of(a), "b": address_of(b), "out": address_of(out)}
        scalars = {"alpha": 1.0, "beta": 0.0}
        prepared = kernel.prepare(names, pointers, scalars)
        for _ in range(3):
            out[...] = np.nan
            prepared.run()
            close(out, reference(a, b))
        if split:
            given = Workspace(prepared.workspace_bytes)
            kernel.prepare(names, {**pointers, "workspace": given.address}, scalars).run()
            close(out, reference(a, b))
        kernel.prepare({**names, "m": 0}, {}, scalars).run()
        with pytest.raises(UnsuitableError, match="a is aligned to 2 bytes, not 4"):
            kernel.prepare(names, {**pointers, "a": address_of(a) + 2}, scalars)
        with pytest.raises(UnsuitableError, match="wants 3 threads"):
            kernel.prepare({**names, "threads": 3}, pointers, scalars)
        with pytest.raises(LaunchError, match="wants the scalar beta"):
            kernel.prepare(names, pointers, {"alpha": 1.0})
        with pytest.raises(LaunchError, match="without its problem"):
            kernel(a, b)


def test_workspaces_are_aligned_and_large_ones_too() -> None:
    for size in (1, 100, 4096, 2 * 2**20, 5 * 2**20 + 1):
        one = Workspace(size)
        assert one.address % 64 == 0
        if size >= 2 * 2**20:
            assert one.address % (2 * 2**20) == 0
        import ctypes

        ctypes.memset(one.address, 1, size)


def test_python_threads_may_call_one_kernel_at_once(kernel: MakeKernel) -> None:
    problems = [gemm(m, 7, 11) for m in (3, 4, 5, 6)]
    k = kernel(gemm(), open_sizes=True, split=True)
    failures: list[Exception] = []

    def caller(problem: Gemm) -> None:
        try:
            a, b = uniform(problem.m, 11), uniform(11, 7)
            for _ in range(100):
                close(k(a, b), reference(a, b))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=caller, args=(p,)) for p in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_what_is_kept_is_bounded(kernel: MakeKernel) -> None:
    k = kernel(gemm(), open_sizes=True)
    b = uniform(11, 7)
    for m in range(1, 400):
        k(np.zeros((m, 11), np.float32), b)
    assert k._call is not None
    assert len(k._call._known) <= 256
