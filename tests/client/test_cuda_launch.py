"""Does the CUDA launcher launch the right thing, with the right bytes, in the right place, or refuse?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.errors import ArtifactError, DeviceError, LaunchError
from rooftile.launch.cuda import CudaKernel, runs_on_gpu
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import Arg, Fill, Launch, LaunchPlan, SizeRange, ValidFor, Workspace, ceil_div, pack_args
from rooftile.problem import Gemm, parse_problem
from support.host_cuda import HostArray, HostCuda, LaunchSeen, cubin_header, view

SIZES = (
    "m", "n", "k", "batch", "ld_a", "ld_b", "ld_c", "ld_out", "ld_residual",
    "stride_a", "stride_b", "stride_c", "stride_out", "stride_residual",
)  # fmt: skip
NO_WORKSPACE = Workspace(0)
# Widths are mixed on purpose: a 4-byte argument between pointers makes a hole.
ARGS = (
    Arg.ptr("a"), Arg("m", "i32", value="m"), Arg.ptr("b"), Arg("n", "u32", value="n"),
    Arg("k", "i32", value="k"), Arg.f32("alpha"), Arg.ptr("out"), Arg.i64("ld_a"), Arg.i64("ld_b"),
    Arg.i64("ld_out"), Arg.ptr("c"), Arg.i64("ld_c"), Arg.f32("beta"), Arg.ptr("workspace"),
    Arg("batch", "i32", value="batch"), Arg.i64("stride_a"), Arg.i64("stride_b"), Arg.i64("stride_out"),
    Arg.ptr("bias"),
)  # fmt: skip
CODES = "QiQIifQqqqQqfQiqqqQ"


def toy(seen: LaunchSeen) -> None:
    """out = alpha a b + beta c + bias, and a check that the workspace is zero."""
    (
        a,
        m,
        b,
        n,
        k,
        alpha,
        out,
        ld_a,
        ld_b,
        ld_out,
        c,
        ld_c,
        beta,
        workspace,
        batch,
        s_a,
        s_b,
        s_out,
        bias,
    ) = seen.values(CODES)
    if workspace:
        words = view(workspace, (16,), (4,), np.uint32)
        assert not words.any(), "the workspace is not zero"
        words[:] = 7
    for i in range(batch):
        x = view(a + 4 * i * s_a, (m, k), (4 * ld_a, 4), np.float32)
        y = view(b + 4 * i * s_b, (k, n), (4 * ld_b, 4), np.float32)
        total = alpha * (x @ y)
        if c:
            total = total + beta * view(c, (m, n), (4 * ld_c, 4), np.float32)
        if bias:
            total = total + view(bias, (n,), (4,), np.float32)
        view(out + 4 * i * s_out, (m, n), (4 * ld_out, 4), np.float32)[...] = total


def plan(
    *,
    smem: Any = 0,
    workspace: Workspace = NO_WORKSPACE,
    fill: bool = False,
    valid: ValidFor | None = None,
    arch: str = "sm_80",
    cluster: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (128, 1, 1),
) -> LaunchPlan:
    fills = (Fill(0, 64, 0),) if fill else ()
    grid = (ceil_div("m", 64), ceil_div("n", 64), "batch")
    launch = Launch("gemm", ARGS, grid=grid, block=block, cluster=cluster, smem=smem)
    return LaunchPlan(
        family="toy", arch=arch, kind="cuda", entries=("gemm",), sizes=SIZES, steps=(*fills, launch),
        workspace=workspace, valid_for=valid or ValidFor({}, {"a": 4, "b": 4, "out": 4}),
    )  # fmt: skip


def gemm(m: int = 5, n: int = 7, k: int = 11, **more: Any) -> Gemm:
    problem = parse_problem({"op": "gemm", "m": m, "n": n, "k": k, "dtype": "f32", **more})
    assert isinstance(problem, Gemm)
    return problem


@pytest.fixture
def cuda() -> HostCuda:
    return HostCuda({"gemm": toy})


Make = Callable[..., CudaKernel]


@pytest.fixture
def make(cuda: HostCuda, tmp_path: Path) -> Make:
    def build(problem: Gemm | None = None, its_plan: LaunchPlan | None = None, **more: Any) -> CudaKernel:
        path = tmp_path / "toy.cubin"
        path.write_bytes(cubin_header(80))
        return CudaKernel(
            path, its_plan or plan(), problem, runtime=cuda, workspaces=Workspaces(cuda), **more
        )

    return build


def uniform(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def run(cuda: HostCuda, kernel: CudaKernel, a: Any, b: Any, out: Any, **more: Any) -> None:
    given = {name: cuda.array(x) if isinstance(x, np.ndarray) else x for name, x in more.items()}
    kernel(cuda.array(a), cuda.array(b), cuda.array(out), **given)


# -- right ------------------------------------------------------------------------------------------------


def test_it_computes(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm())
    a, b, out = uniform(5, 11), uniform(11, 7), np.full((5, 7), np.nan, np.float32)
    run(cuda, kernel, a, b, out, alpha=-0.5)
    np.testing.assert_allclose(out, -0.5 * (a @ b), rtol=1e-5)
    seen = cuda.seen[-1]
    assert (seen.grid, seen.block, seen.smem_bytes, seen.stream) == ((1, 1, 1), (128, 1, 1), 0, 0)


def test_the_bytes_are_those_of_pack_args(cuda: HostCuda, make: Make) -> None:
    """The launcher's own packing of every parameter equals the one packing code, padding aside."""
    kernel = make(gemm(70, 130, 11, beta="any", epilogue={"bias": "n"}))
    a, b, c, bias = uniform(70, 11), uniform(11, 130), uniform(70, 130), uniform(130)
    out = np.zeros((70, 130), np.float32)
    run(cuda, kernel, a, b, out, c=c, bias=bias, alpha=1.5, beta=0.25)
    names = {
        **gemm(70, 130, 11, beta="any").plan_names(),
        "sm_count": 108,
        "threads": 1,
    }
    step = kernel.plan.concrete(names).steps[0]
    pointers = {
        name: int(x.ctypes.data) for name, x in {"a": a, "b": b, "c": c, "out": out, "bias": bias}.items()
    }
    packed = pack_args(step.args, pointers, {"alpha": 1.5, "beta": 0.25})  # type: ignore[union-attr]
    from rooftile.plan import arg_offsets

    offsets, _ = arg_offsets([arg.type for arg in ARGS])
    for offset, piece in zip(offsets, cuda.seen[-1].parameters, strict=True):
        assert packed[offset : offset + len(piece)] == piece
    np.testing.assert_allclose(out, 1.5 * (a @ b) + 0.25 * c + bias, rtol=1e-4)


def test_pitches_and_batch_strides_are_read(cuda: HostCuda, make: Make) -> None:
    big_a, big_b, big_out = uniform(10, 30), uniform(22, 20), np.zeros((5, 40), np.float32)
    a, b, out = big_a[::2, 3:14], big_b[::2, 2:9], big_out[:, 30:37]
    run(cuda, make(gemm()), a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    assert not big_out[:, :30].any()
    a3, b3 = uniform(6, 5, 11)[::2], uniform(11, 3, 7).transpose(1, 0, 2)
    out3 = np.zeros((5, 3, 7), np.float32).transpose(1, 0, 2)
    run(cuda, make(gemm(batch=3)), a3, b3, out3)
    np.testing.assert_allclose(out3, a3 @ b3, rtol=1e-5)


def test_open_sizes(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm(), open_sizes=True)
    for m in (1, 65, 300):
        a, b, out = uniform(m, 11), uniform(11, 7), np.zeros((m, 7), np.float32)
        run(cuda, kernel, a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-6)
        assert cuda.seen[-1].grid == (-(-m // 64), 1, 1)


def test_c_is_not_passed_when_beta_is_zero(cuda: HostCuda, make: Make) -> None:
    a, b, c, out = (
        uniform(5, 11),
        uniform(11, 7),
        np.full((5, 7), np.nan, np.float32),
        np.zeros((5, 7), np.float32),
    )
    run(cuda, make(gemm(beta="any")), a, b, out, c=c, beta=0.0)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


# -- refused ----------------------------------------------------------------------------------------------


def test_views_that_the_plan_cannot_read_are_refused(cuda: HostCuda, make: Make) -> None:
    """Raw kernels ignore strides: a transposed array must not be taken for the original."""
    out = np.zeros((5, 7), np.float32)
    for a, b in (
        (uniform(11, 5).T, uniform(11, 7)),
        (uniform(5, 11), uniform(7, 11).T),
        (uniform(5, 22)[:, ::2], uniform(11, 7)),
        (uniform(5, 11)[::-1], uniform(11, 7)),
    ):
        with pytest.raises(UnsuitableError, match="strides"):
            run(cuda, make(gemm()), a, b, out)
    assert not cuda.seen


def test_alignment_is_judged_by_the_plan(cuda: HostCuda, make: Make) -> None:
    strict = plan(valid=ValidFor({}, {"a": 16, "b": 4, "out": 4}))
    flat = np.zeros(5 * 11 + 8, np.float32)
    start = int(-flat.ctypes.data % 16 // 4)
    b, out = uniform(11, 7), np.zeros((5, 7), np.float32)
    aligned, odd = (flat[start + skip :][: 5 * 11].reshape(5, 11) for skip in (0, 1))
    run(cuda, make(gemm(), strict), aligned, b, out)
    with pytest.raises(UnsuitableError, match="a is aligned to 4 bytes, not 16"):
        run(cuda, make(gemm(), strict), odd, b, out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"a": np.zeros((5, 12), np.float32)}, r"a has shape \(5, 12\)"),
        ({"a": np.zeros((5, 11), np.float64)}, "a is float64, the problem says f32"),
        ({"alpha": "1"}, "alpha='1' is not a number"),
        ({"beta": 1.0}, "problem fixes beta to zero"),
        ({"c": np.zeros((5, 7), np.float32)}, "fixes beta to zero"),
        ({"bias": np.zeros(7, np.float32)}, "epilogue has none"),
        ({"stream": "0"}, "stream is a str"),
        ({"scale_a": np.zeros(1, np.float32)}, "no such scale"),
    ],
)
def test_wrong_calls_are_named(cuda: HostCuda, make: Make, change: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"a": uniform(5, 11), "b": uniform(11, 7), "out": np.zeros((5, 7), np.float32)}
    given |= change
    with pytest.raises(LaunchError, match=says) as caught:
        run(cuda, make(gemm()), given.pop("a"), given.pop("b"), given.pop("out"), **given)
    assert not isinstance(caught.value, UnsuitableError)
    assert not cuda.seen


def test_host_arrays_and_read_only_outputs_are_refused(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm())
    a, b, out = uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32)
    with pytest.raises(LaunchError, match="a is a ndarray in host memory"):
        kernel(a, cuda.array(b), cuda.array(out))
    read_only = cuda.array(out, read_only=True)
    with pytest.raises(LaunchError, match="out is read-only"):
        kernel(cuda.array(a), cuda.array(b), read_only)
    nowhere = HostArray(np.zeros((1 << 20, 7), np.float32))
    with pytest.raises(LaunchError, match="no address on a GPU"):
        kernel(cuda.array(a), nowhere, cuda.array(out))


def test_overlap_is_refused_but_out_may_be_c(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm(beta="any"))
    a, b = uniform(5, 11), uniform(11, 7)
    c = uniform(5, 7)
    want = a @ b + 2.0 * c
    run(cuda, kernel, a, b, c, c=c, beta=2.0)
    np.testing.assert_allclose(c, want, rtol=1e-5)
    memory = np.zeros((6, 7), np.float32)
    with pytest.raises(LaunchError, match="out overlaps c"):
        run(cuda, kernel, a, b, memory[1:], c=memory[:5], beta=2.0)
    memory = np.zeros(200, np.float32)
    with pytest.raises(LaunchError, match="out overlaps a"):
        run(cuda, kernel, memory[:55].reshape(5, 11), b, memory[50:85].reshape(5, 7))


def test_empty_results_are_not_launched(cuda: HostCuda, make: Make) -> None:
    for m, n in ((0, 7), (5, 0)):
        run(cuda, make(gemm(m, n)), uniform(m, 11), uniform(11, n), np.zeros((m, n), np.float32))
    assert not cuda.seen
    assert make().prepare({**gemm(0).plan_names()}, {"a": 64, "b": 64, "out": 64}).workspace_bytes == 0


def test_k_0_is_launched_where_the_plan_is_for_it(cuda: HostCuda, make: Make) -> None:
    out = np.full((5, 7), np.nan, np.float32)
    run(cuda, make(gemm(k=0)), np.zeros((5, 0), np.float32), np.zeros((0, 7), np.float32), out)
    assert not out.any()
    not_for_it = plan(valid=ValidFor({"k": SizeRange(min=1)}))
    with pytest.raises(UnsuitableError, match="k = 0"):
        run(
            cuda, make(gemm(k=0), not_for_it), np.zeros((5, 0), np.float32), np.zeros((0, 7), np.float32), out
        )


# -- shared memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("static", "dynamic", "allowed"),
    [
        (0, 49152, None),
        (0, 49153, 49153),
        (16, 49152, 49152),
        (16, 49136, None),
        (16, 49137, 49137),
        (0, 0, None),
    ],
)
def test_shared_memory_opt_in(
    cuda: HostCuda, make: Make, static: int, dynamic: int, allowed: int | None
) -> None:
    """The opt-in is made exactly where static and dynamic together pass 48 KiB: 16 bytes of barriers
    count."""
    cuda.static_smem_bytes = static
    kernel = make(gemm(), plan(smem=dynamic))
    for _ in range(2):
        run(cuda, kernel, uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32))
    assert cuda.functions[0].allowed == ([] if allowed is None else [allowed])
    assert cuda.seen[-1].smem_bytes == dynamic


def test_a_larger_size_raises_the_opt_in(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm(), plan(smem={"op": "*", "args": ["m", 1024]}), open_sizes=True)
    for m in (49, 96, 60):
        run(cuda, kernel, uniform(m, 11), uniform(11, 7), np.zeros((m, 7), np.float32))
    assert cuda.functions[0].allowed == [49 * 1024, 96 * 1024]


def test_more_than_the_device_has_is_refused_before_the_launch(cuda: HostCuda, make: Make) -> None:
    cuda.static_smem_bytes, cuda.max_smem_bytes = 16, 232448
    args = (uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32))
    run(cuda, make(gemm(), plan(smem=232432)), *args)
    with pytest.raises(UnsuitableError, match=r"232449 bytes of shared memory.*232448"):
        run(cuda, make(gemm(), plan(smem=232433)), *args)
    too_many = make(gemm(), plan(block=(1024, 2, 1)))
    with pytest.raises(UnsuitableError, match="2048 threads a block"):
        run(cuda, too_many, *args)
    sixteen = make(None, plan(cluster=(16, 1, 1)))
    with pytest.raises(LaunchError, match="clusters of 16 blocks; 8"):
        sixteen.prepare(gemm(1024).plan_names(), {"a": 64, "b": 64, "out": 64}, {"alpha": 1, "beta": 0})


# -- devices, streams, threads ----------------------------------------------------------------------------


def test_it_launches_where_the_arrays_are(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm())
    a, b = uniform(5, 11), uniform(11, 7)
    for device in (1, 0, 1):
        out = np.zeros((5, 7), np.float32)
        kernel(*(cuda.array(x.copy() if x is not out else x, device) for x in (a, b, out)))
        np.testing.assert_allclose(out, a @ b, rtol=1e-5)
        assert cuda.seen[-1].device == device
        assert cuda.device == 0, "the caller's device was changed"
    assert cuda.loads == [("gemm", 1), ("gemm", 0)], "one module a device, loaded once"
    with pytest.raises(LaunchError, match="b is on device 0, a on device 1"):
        kernel(cuda.array(a.copy(), 1), cuda.array(b.copy(), 0), cuda.array(np.zeros((5, 7), np.float32), 1))


def test_the_callers_device_is_kept_when_a_launch_fails(cuda: HostCuda, make: Make) -> None:
    def fails(_: LaunchSeen) -> None:
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")

    cuda.kernels["gemm"] = fails
    kernel = make(gemm())
    arrays = [cuda.array(x, 1) for x in (uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32))]
    with pytest.raises(RuntimeError):
        kernel(*arrays)
    assert cuda.device == 0


def test_streams(cuda: HostCuda, make: Make) -> None:
    class Torch:
        cuda_stream = 77

    class Cupy:
        ptr = 78

    class Other:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 79

    cuda.current[0] = 5
    kernel = make(gemm())
    for given, wanted in ((None, 5), (0, 0), (6, 6), (Torch(), 77), (Cupy(), 78), (Other(), 79)):
        run(cuda, kernel, uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32), stream=given)
        assert cuda.seen[-1].stream == wanted


def test_threads_do_not_share_argument_memory(cuda: HostCuda, make: Make) -> None:
    """The driver copies arguments without the GIL: while one launch is under way another must pack
    elsewhere."""
    inside, go = threading.Event(), threading.Event()
    alphas: list[float] = []

    def slow(seen: LaunchSeen) -> None:
        if not inside.is_set():
            inside.set()
            go.wait(10)
        alphas.append(seen.values(CODES)[5])

    cuda.kernels["gemm"] = slow
    kernel = make(gemm())
    args = (uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32))
    pieces: list[int] = []
    real = kernel.functions(0)["gemm"]

    class Watched:
        static_smem_bytes, max_threads = real.static_smem_bytes, real.max_threads

        def launch(self, grid: Any, block: Any, parameters: Any, smem: int, stream: int) -> None:
            pieces.append(parameters[0].__array_interface__["data"][0])
            real.launch(grid, block, parameters, smem, stream)

    kernel._functions[0]["gemm"] = Watched()  # type: ignore[assignment]
    first = threading.Thread(target=lambda: run(cuda, kernel, *args, alpha=1.0))
    first.start()
    assert inside.wait(10)
    run(cuda, kernel, *args, alpha=2.0)
    go.set()
    first.join()
    assert sorted(alphas) == [1.0, 2.0]
    assert len(set(pieces)) == 2
    run(cuda, kernel, *args, alpha=3.0)
    assert len(set(pieces)) == 2, "argument memory is used again"


# -- workspace and capture --------------------------------------------------------------------------------

SPLIT = plan(workspace=Workspace(64, init="zero"))


@pytest.mark.parametrize("its_plan", [SPLIT, plan(workspace=Workspace(64), fill=True)])
def test_the_workspace_is_zero_at_every_run(cuda: HostCuda, make: Make, its_plan: LaunchPlan) -> None:
    kernel = make(gemm(), its_plan)
    for stream in (0, 3, 0, 3, 3):
        run(cuda, kernel, uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32), stream=stream)
        assert cuda.memsets[-1][3] == stream
    by_stream = {seen.stream: seen.values(CODES)[13] for seen in cuda.seen}
    assert len(set(by_stream.values())) == 2, "launches on two streams may run together"


def test_nothing_is_allocated_while_a_graph_is_captured(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm(), SPLIT)
    args = (uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32))
    cuda.captured = {9}
    with pytest.raises(UnsuitableError, match="not loaded"):
        run(cuda, kernel, *args, stream=9)
    cuda.captured = set()
    run(cuda, kernel, *args, stream=4)  # the warm-up, on another stream than the capture's
    eager = cuda.seen[-1].values(CODES)[13]
    cuda.captured = {9}
    run(cuda, kernel, *args, stream=9)
    captured = cuda.seen[-1].values(CODES)[13]
    assert captured != eager, "a graph may be replayed while others launch eagerly"
    run(cuda, kernel, *args, stream=9)
    assert cuda.seen[-1].values(CODES)[13] == captured
    cuda.captured = {10}
    with pytest.raises(UnsuitableError, match="scratch memory"):
        run(cuda, kernel, *args, stream=10)
    cuda.captured = set()
    run(cuda, kernel, *args, stream=9)
    assert cuda.seen[-1].values(CODES)[13] not in (captured, eager)


def test_a_workspace_that_grows_leaves_the_old_one_alone(cuda: HostCuda) -> None:
    spaces = Workspaces(cuda)
    small = spaces.get(0, 1, 100)
    assert spaces.get(0, 1, 200) == small
    large = spaces.get(0, 1, 5 << 20)
    assert large != small
    assert small in cuda.allocations, "kernels that were enqueued still use it"
    assert spaces.get(0, 1, 100) == large
    cuda.captured = {2}
    in_graph = spaces.get(0, 2, 5 << 20)
    with pytest.raises(UnsuitableError):
        spaces.get(0, 2, 7 << 20)
    assert spaces.get(0, 2, 100) == in_graph


def test_warm_up(cuda: HostCuda, make: Make) -> None:
    kernel = make(gemm(), SPLIT)
    kernel.warm_up(0, workspace_bytes=64)
    cuda.captured = {9}
    out = np.zeros((5, 7), np.float32)
    run(cuda, kernel, uniform(5, 11), uniform(11, 7), out, stream=9)
    np.testing.assert_allclose(out, uniform(5, 11) @ uniform(11, 7), rtol=1e-5)


# -- loading ----------------------------------------------------------------------------------------------


def test_prepare_is_what_a_call_does(cuda: HostCuda, make: Make) -> None:
    kernel = make(None, SPLIT)
    a, b, out = uniform(5, 11), uniform(11, 7), np.zeros((5, 7), np.float32)
    pointers = {n: int(x.ctypes.data) for n, x in {"a": a, "b": b, "out": out}.items()}
    ready = kernel.prepare(gemm().plan_names(), pointers, {"alpha": 2.0, "beta": 0.0}, device=1, stream=8)
    for _ in range(2):
        ready.run()
    np.testing.assert_allclose(out, 2 * (a @ b), rtol=1e-5)
    assert (cuda.seen[-1].device, cuda.seen[-1].stream, cuda.device) == (1, 8, 0)
    with pytest.raises(LaunchError, match="gamma"):
        kernel.prepare(gemm().plan_names(), pointers, {"gamma": 1.0})
    with pytest.raises(LaunchError, match="without its problem"):
        kernel(None, None)


def test_what_does_not_fit_the_device_is_not_loaded(cuda: HostCuda, tmp_path: Path) -> None:
    path = tmp_path / "x.cubin"
    path.write_bytes(b"\x7fELF not a cubin" + bytes(64))
    with pytest.raises(ArtifactError, match="no cubin"):
        CudaKernel(path, plan(), runtime=cuda)
    path.write_bytes(cubin_header(90))
    with pytest.raises(ArtifactError, match=r"is for sm_90, the plan says sm_80"):
        CudaKernel(path, plan(), runtime=cuda)
    kernel = CudaKernel(path, plan(arch="sm_90a"), runtime=cuda)
    with pytest.raises(DeviceError, match=r"sm_90a, device 0 is 8\.0"):
        kernel.warm_up()
    path.write_bytes(cubin_header(80))
    no_such = HostCuda({})
    with pytest.raises(ArtifactError, match="entry gemm"):
        CudaKernel(path, plan(), runtime=no_such).warm_up()
    with pytest.raises(ArtifactError, match="cannot be read"):
        CudaKernel(tmp_path / "none.cubin", plan(), runtime=cuda)


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_80", (9, 0), False),
        ("sm_86", (8, 0), False),
        ("sm_86", (8, 9), True),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_70", (7, 5), True),
        ("sm_120a", (12, 0), True),
        ("sm_120a", (12, 1), False),
        ("x86-64-v4", (8, 0), False),
    ],
)
def test_which_cubins_run_where(arch: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on_gpu(arch, capability) is runs
