"""How is cuBLASLt called from Python, and which of its kernels does it choose?

By ctypes on the library itself: a dozen of its functions, whose arguments are numbers and opaque handles
(cublasLt.h of cuBLAS 13.10). nvmath-python binds the same functions and is well kept, but brings cuda-core
and cuda-pathfinder into every process that only wants a fallback, and pins their versions; the library is
there wherever CuPy's own matmul works. Library errors become LaunchError, what it has no kernel for
UnsuitableError.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rooftile.errors import DeviceError, LaunchError
from rooftile.launch.cublaslt_plan import LtMatrix, LtPlan
from rooftile.launch.errors import UnsuitableError

# library_types.h (cudaDataType) and cublas_api.h (cublasComputeType_t).
_DTYPE = {
    "f32": 0,
    "tf32": 0,
    "f64": 1,
    "f16": 2,
    "s8": 3,
    "u8": 8,
    "s32": 10,
    "bf16": 14,
    "e4m3": 28,
    "e5m2": 29,
}
_COMPUTE = {"f16": 64, "f32": 68, "f64": 70, "s32": 72, "tf32": 77}
_SCALAR: dict[str, Any] = {"f32": ctypes.c_float, "f64": ctypes.c_double, "s32": ctypes.c_int32}
# cublasLt.h: cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t,
# cublasLtMatmulPreferenceAttributes_t.
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _BIAS_TYPE = 3, 4, 7, 8, 26
_A_SCALE, _B_SCALE = 17, 18
_BATCH_COUNT, _BATCH_OFFSET = 5, 6
_MAX_WORKSPACE, _MIN_ALIGN = 1, (5, 6, 7, 8)  # of A, B, C, D
_EPILOGUES = {None: 1, "relu": 2, "gelu_tanh": 32}
_EPILOGUE_BIAS = 4
_CONFIG = {
    "id": 0, "tile": 1, "split_k": 2, "reduction": 3, "swizzle": 4, "custom": 5, "stages": 6,
    "inner_shape": 7, "cluster_shape": 8,
}  # fmt: skip
_STATUS = {
    1: "not initialised", 3: "out of memory", 7: "invalid value", 8: "this GPU lacks what it needs",
    11: "mapping error", 13: "the launch failed", 14: "internal error", 15: "not supported", 16: "licence",
}  # fmt: skip
_NOT_SUPPORTED = (7, 8, 15)
_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so")

# NVIDIA recommends 32 MiB for Hopper and 4 MiB before (cuBLAS documentation, cublasSetWorkspace).
WORKSPACE_BYTES = 32 << 20
# Nothing asks for more than this; it is the alignment that the library assumes when it is not told.
_MOST_ALIGN = 256


class _Algo(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", _Algo),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class LtAlgorithm:
    """One of the kernels that the heuristic proposes, in its order."""

    rank: int
    raw: bytes
    workspace_bytes: int
    waves: float
    config: Mapping[str, int]
    """Algorithm id, tile, stages, split-K... as the library numbers them."""

    def to_json(self) -> dict[str, Any]:
        """What is recorded of the Baseline."""
        return {
            "rank": self.rank,
            "workspace_bytes": self.workspace_bytes,
            "waves": self.waves,
            "config": dict(self.config),
        }


@cache
def load_library() -> ctypes.CDLL:
    """cuBLASLt of this process. DeviceError where there is none."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("cublasLt").abs_path
        if path:  # None for a library that somebody else has loaded: its name is enough below
            return ctypes.CDLL(path)
    except Exception:  # noqa: BLE001 - not installed, or it finds none: the loader's own search is next
        pass
    for name in _SONAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError("the library cuBLASLt was not found; it comes with the CUDA toolkit and with torch")


class CublasLt:
    """A handle on the device that is current when it is made."""

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self._library = load_library() if library is None else library
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    @property
    def version(self) -> int:
        """Such as 131000 for 13.10.0."""
        return int(self._library.cublasLtGetVersion())

    def matmul(self, plan: LtPlan, pointers: Mapping[str, int]) -> LtMatmul:
        """The plan on these addresses (by operand), ready for its algorithms."""
        return LtMatmul(self, plan, pointers)

    def close(self) -> None:
        """Give the handle back."""
        if self._handle:
            self._library.cublasLtDestroy(self._handle)
            self._handle = ctypes.c_void_p()

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status:
            text = f"{name}: {_STATUS.get(status, 'status')} ({status})"
            raise (UnsuitableError if status in _NOT_SUPPORTED else LaunchError)(text)


class LtMatmul:
    """One product: descriptors made once, run with any of the algorithms."""

    def __init__(self, lt: CublasLt, plan: LtPlan, pointers: Mapping[str, int]) -> None:
        self._lt = lt
        self._plan = plan
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        scalars = _SCALAR.get(plan.scalars)
        if scalars is None:
            raise UnsuitableError(f"cuBLASLt is not asked for {plan.scalars} scalars here")
        self._scalar_type = scalars
        self._at = {m.operand: pointers[m.operand] for m in (plan.x, plan.y, plan.c, plan.d)}
        self._desc = self._make("MatmulDesc", _COMPUTE[plan.compute], _DTYPE[plan.scalars])
        self._set("MatmulDesc", self._desc, _TRANSA, ctypes.c_int32(plan.transpose_x))
        self._set("MatmulDesc", self._desc, _TRANSB, ctypes.c_int32(plan.transpose_y))
        epilogue = _EPILOGUES[plan.activation]
        if plan.bias:
            # DEFAULT is 1 and has no place in the combination: BIAS alone is 4, with RELU 6.
            epilogue = _EPILOGUE_BIAS | (epilogue if plan.activation else 0)
            self._set("MatmulDesc", self._desc, _BIAS_POINTER, ctypes.c_void_p(pointers["bias"]))
            if plan.d.dtype in ("e4m3", "e5m2") or plan.x.dtype in ("e4m3", "e5m2"):
                kind = "bf16" if plan.d.dtype in ("e4m3", "e5m2") else plan.d.dtype
                self._set("MatmulDesc", self._desc, _BIAS_TYPE, ctypes.c_int32(_DTYPE[kind]))
        self._set("MatmulDesc", self._desc, _EPILOGUE, ctypes.c_uint32(epilogue))
        for attribute, name in ((_A_SCALE, plan.scale_x), (_B_SCALE, plan.scale_y)):
            if name is not None:
                self._set("MatmulDesc", self._desc, attribute, ctypes.c_void_p(pointers[name]))
        self._x, self._y, self._c, self._d = (self._layout(m) for m in (plan.x, plan.y, plan.c, plan.d))

    def algorithms(self, most: int = 8, workspace_bytes: int = WORKSPACE_BYTES) -> list[LtAlgorithm]:
        """What the heuristic proposes, best first by its own opinion. UnsuitableError where it has
        nothing."""
        preference = self._make("MatmulPreference")
        self._set("MatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_uint64(workspace_bytes))
        plan = self._plan
        for attribute, matrix in zip(_MIN_ALIGN, (plan.x, plan.y, plan.c, plan.d), strict=True):
            address = self._at[matrix.operand] | _MOST_ALIGN
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(address & -address))
        results = (_Result * most)()
        count = ctypes.c_int()
        self._lt._call(
            "cublasLtMatmulAlgoGetHeuristic", self._lt._handle, self._desc, self._x, self._y, self._c,
            self._d, preference, ctypes.c_int(most), results, ctypes.byref(count),
        )  # fmt: skip
        found = [
            LtAlgorithm(
                rank, bytes(one.algo), int(one.workspace_bytes), float(one.waves), self._config(one.algo)
            )
            for rank, one in enumerate(results[: count.value])
            if one.state == 0
        ]
        if not found:
            raise UnsuitableError("cuBLASLt has no kernel for these types, layouts and alignments")
        return found

    def runner(
        self, algorithm: LtAlgorithm, alpha: float, beta: float, workspace: int, workspace_bytes: int
    ) -> Callable[[int], None]:
        """run(stream): enqueue the product with that algorithm."""
        algo = _Algo.from_buffer_copy(algorithm.raw)
        with_c = 1.0 if self._plan.c_operand == "residual" else beta
        scale, add = self._scalar(alpha), self._scalar(with_c if self._plan.c_operand else 0.0)
        x, y, c, d = (
            ctypes.c_void_p(self._at[m.operand])
            for m in (self._plan.x, self._plan.y, self._plan.c, self._plan.d)
        )
        function, handle = self._lt._library.cublasLtMatmul, self._lt._handle
        fixed = (
            handle, self._desc, ctypes.byref(scale), x, self._x, y, self._y, ctypes.byref(add), c, self._c, d,
            self._d, ctypes.byref(algo), ctypes.c_void_p(workspace), ctypes.c_size_t(workspace_bytes),
        )  # fmt: skip
        keep = (self, scale, add, algo)

        def run(stream: int) -> None:
            status = int(function(*fixed, ctypes.c_void_p(stream)))
            if status:
                raise LaunchError(f"cublasLtMatmul: {_STATUS.get(status, 'status')} ({status})")

        run.keep = keep  # type: ignore[attr-defined]
        return run

    def _scalar(self, value: float) -> Any:
        whole = self._scalar_type is ctypes.c_int32
        return self._scalar_type(int(value) if whole else value)

    def close(self) -> None:
        """Give the descriptors back."""
        for kind, made in self._made:
            getattr(self._lt._library, f"cublasLt{kind}Destroy")(made)
        self._made.clear()

    def _config(self, algo: _Algo) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, number in _CONFIG.items():
            # inner_shape and cluster_shape are 16 bits wide, the others 32.
            value = ctypes.c_uint16() if number >= 7 else ctypes.c_uint32()
            written = ctypes.c_size_t()
            status = self._lt._library.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(algo), ctypes.c_int(number), ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
            )  # fmt: skip
            if not status:
                found[name] = int(value.value)
        return found

    def _layout(self, matrix: LtMatrix) -> ctypes.c_void_p:
        layout = self._make(
            "MatrixLayout",
            _DTYPE[matrix.dtype],
            ctypes.c_uint64(matrix.rows),
            ctypes.c_uint64(matrix.cols),
            ctypes.c_int64(max(matrix.ld, matrix.rows, 1)),
        )
        if matrix.batch > 1:
            self._set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(matrix.batch))
            self._set("MatrixLayout", layout, _BATCH_OFFSET, ctypes.c_int64(matrix.batch_stride))
        return layout

    def _make(self, kind: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._lt._call(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self._lt._call(
            f"cublasLt{kind}SetAttribute", target, ctypes.c_int(attribute), ctypes.byref(value),
            ctypes.c_size_t(ctypes.sizeof(value)),
        )  # fmt: skip


_handles: dict[int, CublasLt] = {}
_handles_lock = threading.Lock()


def handle_for(device: int) -> CublasLt:
    """The process's handle on a device, which must be current."""
    with _handles_lock:
        if device not in _handles:
            _handles[device] = CublasLt()
        return _handles[device]
