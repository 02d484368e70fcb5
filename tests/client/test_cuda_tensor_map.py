"""Does the driver get exactly the tensor map that the plan says, and the kernel what the driver made?"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rooftile.errors import DeviceError, LaunchError
from rooftile.launch import cuda_tensor_map
from rooftile.launch.cuda import CudaKernel
from rooftile.launch.cuda_tensor_map import MAPS_KEPT, DriverEncoder
from rooftile.launch.cuda_workspace import Workspaces
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import (
    NO_TENSOR,
    Arg,
    ConcreteTensorMap,
    Launch,
    LaunchPlan,
    TensorMap,
    ValidFor,
    Workspace,
    arg_offsets,
    mul,
    pack_args,
)
from rooftile.plan.tensor_map import ELEMENT_BYTES, FILLS, L2_PROMOTIONS, SWIZZLES
from rooftile.problem import Gemm
from support import driver_stub
from support.host_cuda import HostCuda, LaunchSeen, cubin_header, view

# -- what the driver is given ------------------------------------------------------------------------------

BASE = ConcreteTensorMap("a", "bf16", (320, 300), (640,), (64, 128), 128, 256, "zero", 0)
# One of each rank, type, swizzle, promotion and fill; the largest numbers that a plan may give.
MAPS = (
    (BASE, 0x7F0000001000),
    (ConcreteTensorMap("b", "f16", (2**32, 7, 3, 2, 5), (16, 2**40 - 16, 0, 32), (16, 256, 1, 2, 3), 32, 0,
                       "nan", 0), 2**48 - 16),
    (ConcreteTensorMap("out", "f32", (100,), (), (256,), 0, 64, "zero", 0), 0x10),
    (ConcreteTensorMap("out", "tf32", (100, 4, 2), (400, 1600), (16, 4, 1), 64, 128, "nan", 0), 0x20),
    *((ConcreteTensorMap("c", dtype, (64, 8), (512,), (16, 8), 0, 0, "zero", 0), 0x30)
      for dtype in ELEMENT_BYTES),
)  # fmt: skip

_SCRIPT = """
import json, sys
from rooftile.launch.cuda_tensor_map import DriverEncoder
from rooftile.plan import ConcreteTensorMap
entered = []
encode = DriverEncoder(lambda: entered.append(1))
made = []
for fields, address in json.loads({given!r}):
    for name in ("dims", "strides", "box"):
        fields[name] = tuple(fields[name])
    made.append(encode(ConcreteTensorMap(**fields), address).hex())
print(json.dumps([made, len(entered)]))
"""


def script(*maps: tuple[ConcreteTensorMap, int]) -> str:
    return _SCRIPT.format(given=json.dumps([[asdict(tensor), address] for tensor, address in maps]))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cuda.bindings.driver")
    return driver_stub.build(tmp_path_factory.mktemp("driver"))


def test_numbers_are_those_of_cuda_bindings() -> None:
    names = pytest.importorskip("cuda.bindings.driver")
    types = {
        "u8": "UINT8", "s8": "UINT8", "e4m3": "UINT8", "e5m2": "UINT8", "s32": "INT32", "f16": "FLOAT16",
        "f32": "FLOAT32", "f64": "FLOAT64", "bf16": "BFLOAT16", "tf32": "TFLOAT32",
    }  # fmt: skip
    assert set(cuda_tensor_map.DATA_TYPES) == set(types) == set(ELEMENT_BYTES)
    for dtype, name in types.items():
        want = getattr(names.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}")
        assert cuda_tensor_map.DATA_TYPES[dtype] == int(want), dtype
    for value, name in ((0, "NONE"), (32, "32B"), (64, "64B"), (128, "128B")):
        want = getattr(names.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}")
        assert cuda_tensor_map.SWIZZLES[value] == int(want)
    for value, name in ((0, "NONE"), (64, "L2_64B"), (128, "L2_128B"), (256, "L2_256B")):
        want = getattr(names.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{name}")
        assert cuda_tensor_map.L2_PROMOTIONS[value] == int(want)
    for value, name in (("zero", "NONE"), ("nan", "NAN_REQUEST_ZERO_FMA")):
        want = getattr(names.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{name}")
        assert cuda_tensor_map.FILLS[value] == int(want)
    assert int(names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE) == cuda_tensor_map._INTERLEAVE_NONE
    assert int(names.CUresult.CUDA_ERROR_NOT_INITIALIZED) == cuda_tensor_map._NOT_INITIALIZED
    assert int(names.CUresult.CUDA_ERROR_INVALID_CONTEXT) == cuda_tensor_map._INVALID_CONTEXT
    assert set(cuda_tensor_map.SWIZZLES) == set(SWIZZLES)
    assert set(cuda_tensor_map.L2_PROMOTIONS) == set(L2_PROMOTIONS)
    assert set(cuda_tensor_map.FILLS) == set(FILLS)


def test_the_driver_is_given_the_map(driver: Path) -> None:
    """Through the real cuda-bindings, as C sees it: order, widths, numbers, alignment; and its bytes come
    back."""
    said, calls = driver_stub.run(driver, script(*MAPS))
    made, entered = json.loads(said)
    assert entered == 0
    assert len(made) == len(calls) == len(MAPS)
    for number, ((tensor, address), call, data) in enumerate(zip(MAPS, calls, made, strict=True)):
        assert call == {
            "map_align": 0,
            "type": cuda_tensor_map.DATA_TYPES[tensor.dtype],
            "rank": len(tensor.dims),
            "address": address,
            "dims": list(tensor.dims),
            "strides": list(tensor.strides),
            "box": list(tensor.box),
            "steps": [1] * len(tensor.dims),
            "interleave": 0,
            "swizzle": {0: 0, 32: 1, 64: 2, 128: 3}[tensor.swizzle],
            "promotion": {0: 0, 64: 1, 128: 2, 256: 3}[tensor.l2_promotion],
            "fill": ["zero", "nan"].index(tensor.fill),
        }
        assert bytes.fromhex(data) == bytes((i + number) % 256 for i in range(128))


def _error(driver: Path, **environment: str) -> str:
    """The sentence of the error that the script ends with, and its class."""
    body = "\n".join(f"    {line}" for line in script(MAPS[0]).strip().splitlines())
    said, _ = driver_stub.run(
        driver, f"try:\n{body}\nexcept Exception as error: print(type(error).__name__, error)", **environment
    )
    return said


def test_a_refusal_tells_the_numbers(driver: Path) -> None:
    assert _error(driver, STUB_CODES="1") == (
        "LaunchError the driver refuses the tensor map (CUDA_ERROR_INVALID_VALUE): bf16 of a at"
        " 0x7f0000001000, dims [320, 300], strides [640] bytes, box [64, 128], swizzle 128, L2 promotion 256,"
        " fill zero"
    )
    assert "(CUresult 4711)" in _error(driver, STUB_CODES="4711")


@pytest.mark.parametrize("code", ["3", "201"])
def test_a_thread_without_a_context_gets_one(driver: Path, code: str) -> None:
    said, calls = driver_stub.run(driver, script(MAPS[0], MAPS[0]), STUB_CODES=f"{code},0")
    made, entered = json.loads(said)
    assert entered == 1
    assert len(calls) == 3
    assert calls[0] == calls[1] == calls[2]
    assert bytes.fromhex(made[0])[0] == 1, "the bytes are those of the second try"
    assert f"LaunchError the driver refuses the tensor map (CUDA_ERROR_{'NOT' if code == '3' else 'INV'}" in (
        _error(driver, STUB_CODES=code)
    )


def test_an_old_driver_is_named(driver: Path) -> None:
    said = _error(driver, STUB_NONE="1")
    assert said.startswith("DeviceError this CUDA driver has no cuTensorMapEncodeTiled")
    assert "CUDA 12.0" in said


def test_no_driver_is_one_sentence(tmp_path: Path) -> None:
    names = pytest.importorskip("cuda.bindings.driver")
    try:
        names.cuInit(0)
    except Exception:  # noqa: BLE001 - cuda-bindings' own
        with pytest.raises(DeviceError, match="does not reach the CUDA driver"):
            DriverEncoder(lambda: None)
    else:
        pytest.skip("this machine has a driver")


def test_missing_cuda_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"package cuda-bindings.*'rooftile\[cuda13\]' \(or cuda12\)"):
        DriverEncoder(lambda: None)


# -- what the kernel is given ------------------------------------------------------------------------------

SIZES = (
    "m", "n", "k", "batch", "ld_a", "ld_b", "ld_out", "stride_a", "stride_b", "stride_out",
)  # fmt: skip
A = TensorMap("a", "f32", ("k", "m"), (mul("ld_a", 4),), (16, 32), 64, 128)
OUT = TensorMap("out", "f32", ("n", "m"), (mul("ld_out", 4),), (8, 32))
# Pieces of all widths before and between the maps.
ARGS = (
    Arg("m", "i32", value="m"), Arg.tensor_map("map_a", A), Arg("n", "i32", value="n"), Arg.ptr("b"),
    Arg.i64("k"), Arg.f32("alpha"), Arg.tensor_map("map_out", OUT), Arg.i64("ld_b"),
)  # fmt: skip


def toy(cuda: HostCuda) -> Callable[[LaunchSeen], None]:
    """out = alpha a b, with a and out as their maps say."""

    def kernel(seen: LaunchSeen) -> None:
        m, map_a, n, b, k, alpha, map_out, ld_b = seen.values(["i", "128s", "i", "Q", "q", "f", "128s", "q"])
        arrays = []
        for data, rows, columns in ((map_a, m, k), (map_out, m, n)):
            tensor, address = cuda.map_of(data)
            assert tensor.dims == (columns, rows)
            arrays.append(view(address, (rows, columns), (tensor.strides[0], 4), np.float32))
        arrays[1][...] = alpha * (arrays[0] @ view(b, (k, n), (4 * ld_b, 4), np.float32))

    return kernel


def plan(args: tuple[Arg, ...] = ARGS, workspace: Workspace | None = None) -> LaunchPlan:
    launch = Launch("gemm", args, grid=(2, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1))
    return LaunchPlan(
        family="toy", arch="sm_90a", kind="cuda", entries=("gemm",), sizes=SIZES, steps=(launch,),
        workspace=workspace or Workspace(0), valid_for=ValidFor({}, {"a": 4, "b": 4, "out": 4}),
    )  # fmt: skip


@pytest.fixture
def cuda() -> HostCuda:
    made = HostCuda({}, devices=((9, 0), (9, 0)))
    made.kernels["gemm"] = toy(made)
    return made


Make = Callable[..., CudaKernel]


@pytest.fixture
def make(cuda: HostCuda, tmp_path: Path) -> Make:
    def build(its_plan: LaunchPlan | None = None, problem: Gemm | None = None) -> CudaKernel:
        path = tmp_path / "toy.cubin"
        path.write_bytes(cubin_header(90))
        return CudaKernel(path, its_plan or plan(), problem, runtime=cuda, workspaces=Workspaces(cuda))

    return build


PROBLEM = Gemm(20, 8, 12, "f32")


def aligned(rows: int, columns: int, skip: int = 0) -> np.ndarray[Any, Any]:
    """A matrix that begins at a multiple of 16 bytes, and `skip` elements."""
    flat = np.random.default_rng(rows).uniform(-1, 1, rows * columns + 8).astype(np.float32)
    start = int(-flat.ctypes.data % 16) // 4 + skip
    return flat[start : start + rows * columns].reshape(rows, columns)


def call(cuda: HostCuda, kernel: CudaKernel, a: Any, b: Any, out: Any, device: int = 0) -> None:
    kernel(*(cuda.array(x, device) for x in (a, b, out)), alpha=2.0)
    np.testing.assert_allclose(out, 2.0 * (a @ b), rtol=1e-5, atol=1e-6)


def test_maps_reach_the_kernel_among_other_arguments(cuda: HostCuda, make: Make) -> None:
    a, b, out = aligned(20, 12), aligned(12, 8), aligned(20, 8)
    kernel = make(problem=PROBLEM)
    call(cuda, kernel, a, b, out)
    names = {**PROBLEM.plan_names(), "sm_count": 108, "threads": 1}
    step = kernel.plan.concrete(names).steps[0]
    pointers = {name: int(x.ctypes.data) for name, x in {"a": a, "b": b, "out": out}.items()}
    known = {(t, address): n for n, (t, address, _) in enumerate(cuda.maps)}
    again = HostCuda({})
    packed = pack_args(
        step.args,  # type: ignore[union-attr]
        pointers,
        {"alpha": 2.0},
        lambda tensor, address: again.encode(tensor, address) if (tensor, address) in known else b"",
    )
    offsets, _ = arg_offsets([arg.type for arg in ARGS])
    for offset, piece in zip(offsets, cuda.seen[-1].parameters, strict=True):
        assert packed[offset : offset + len(piece)] == piece
    assert [len(piece) for piece in cuda.seen[-1].parameters] == [4, 128, 4, 8, 8, 4, 128, 8]
    tensor, address, _ = cuda.maps[0]
    assert (tensor.dims, tensor.strides, tensor.box) == ((12, 20), (48,), (16, 32))
    assert (tensor.swizzle, tensor.l2_promotion, address) == (64, 128, pointers["a"])


def test_a_map_is_encoded_once_for_an_address(cuda: HostCuda, make: Make) -> None:
    """New addresses get new maps, known ones none; a view further down is another address."""
    kernel = make(problem=PROBLEM)
    many = [(aligned(20, 12), aligned(12, 8), aligned(20, 8)) for _ in range(3)]
    for _ in range(3):
        for arrays in many:
            call(cuda, kernel, *arrays)
    assert [(tensor.buffer, address) for tensor, address, _ in cuda.maps] == [
        (name, int(x.ctypes.data)) for a, _, out in many for name, x in (("a", a), ("out", out))
    ]
    count = len(cuda.maps)
    wide = aligned(40, 12)
    for first in (0, 8, 0, 8):  # 8 rows of 48 bytes: as well aligned to 128, so the same launch
        call(cuda, kernel, wide[first : first + 20], many[0][1], many[0][2])
    assert len([tensor for tensor, _, _ in cuda.maps[count:] if tensor.buffer == "a"]) == 2


def test_other_strides_are_another_map_at_the_same_address(cuda: HostCuda, make: Make) -> None:
    kernel = make(problem=PROBLEM)
    wide, b, out = aligned(40, 24), aligned(12, 8), aligned(20, 8)
    for a in (wide[:20, :12], wide[::2, :12], wide[:20, :12]):
        call(cuda, kernel, a, b, out)
    assert [tensor.strides for tensor, _, _ in cuda.maps if tensor.buffer == "a"] == [(96,), (192,)]


def test_few_maps_are_kept(cuda: HostCuda, make: Make) -> None:
    kernel = make(problem=PROBLEM)
    b, out = aligned(12, 8), aligned(20, 8)
    big = aligned(20 + 16 * MAPS_KEPT, 12)
    views = [big[8 * i : 8 * i + 20] for i in range(2 * MAPS_KEPT)]
    for a in (*views, *views):
        call(cuda, kernel, a, b, out)
    count = len(cuda.maps)
    assert count == 4 * MAPS_KEPT + 1, "the oldest goes: a round over twice as many finds none"
    for a in views[MAPS_KEPT:]:
        call(cuda, kernel, a, b, out)
    assert len(cuda.maps) == count


def test_many_threads(cuda: HostCuda, make: Make) -> None:
    """Each sees its own map, whoever else encodes."""
    kernel = make(problem=PROBLEM)
    many = [(aligned(20, 12), aligned(12, 8), aligned(20, 8)) for _ in range(8)]
    arrays = [tuple(cuda.array(x) for x in three) for three in many]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(40):
                kernel(*arrays[number], alpha=2.0)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(many))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for a, b, out in many:
        np.testing.assert_allclose(out, 2.0 * (a @ b), rtol=1e-5, atol=1e-6)


def test_each_device_has_maps_of_its_own(cuda: HostCuda, make: Make) -> None:
    """Encoded with the arrays' device current, whatever the caller's is (map_of holds it against that)."""
    kernel = make(problem=PROBLEM)
    arrays = (aligned(20, 12), aligned(12, 8), aligned(20, 8))
    for device in (1, 0, 1):
        call(cuda, kernel, *arrays, device=device)
        assert cuda.device == 0
    assert [device for _, _, device in cuda.maps] == [1, 1, 0, 0]


def test_prepared_launches_keep_their_maps(cuda: HostCuda, make: Make) -> None:
    kernel = make()
    a, b, out = aligned(20, 12), aligned(12, 8), aligned(20, 8)
    pointers = {n: int(x.ctypes.data) for n, x in {"a": a, "b": b, "out": out}.items()}
    for device in (0, 1):
        ready = kernel.prepare(PROBLEM.plan_names(), pointers, {"alpha": 1.0}, device=device)
        for _ in range(3):
            ready.run()
        np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)
    assert [device for _, _, device in cuda.maps] == [0, 0, 1, 1]


def test_offset_and_workspace(cuda: HostCuda, make: Make) -> None:
    """A map may begin further down, and may be of the scratch memory."""
    scratch = TensorMap("workspace", "f32", ("n", "m"), (mul("n", 4),), (8, 32), offset=mul("m", 16))
    args = (Arg.tensor_map("map_w", scratch),)
    seen: list[tuple[ConcreteTensorMap, int]] = []
    cuda.kernels["gemm"] = lambda launch: seen.append(cuda.map_of(launch.parameters[0]))
    kernel = make(plan(args, Workspace(4096)))
    kernel.prepare(PROBLEM.plan_names(), {}).run()
    tensor, address = seen[0]
    assert (tensor.dims, tensor.offset) == ((8, 20), 320)
    assert address - 320 in cuda.allocations


def test_a_buffer_that_is_not_there_has_a_map_of_zeros(cuda: HostCuda, make: Make) -> None:
    """As its pointer is null: without products A and B need not be given."""
    seen: list[int] = []
    cuda.kernels["gemm"] = lambda launch: seen.append(launch.parameters.count(NO_TENSOR))
    make().prepare(PROBLEM.plan_names(), {"b": 64, "out": 64}, {"alpha": 0.0}).run()
    assert seen == [1]


def test_what_the_driver_would_refuse_is_said_of_the_argument(cuda: HostCuda, make: Make) -> None:
    b, out = aligned(12, 8), aligned(20, 8)
    kernel = make(problem=PROBLEM)
    with pytest.raises(UnsuitableError, match=r"argument map_a: its tensor at 0x.* not aligned to 16 bytes"):
        call(cuda, kernel, aligned(20, 12, skip=1), b, out)
    with pytest.raises(UnsuitableError, match="argument map_a: a tensor's stride of 52 bytes"):
        call(cuda, kernel, aligned(20, 13)[:, :12], b, out)
    assert not cuda.seen
    assert not cuda.maps

    def refuse(tensor: ConcreteTensorMap, address: int) -> bytes:
        raise LaunchError("the driver refuses the tensor map")

    cuda.encode = refuse  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match=r"^argument map_a: the driver refuses the tensor map$"):
        call(cuda, make(problem=PROBLEM), aligned(20, 12), b, out)
