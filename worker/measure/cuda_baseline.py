"""How does the vendor's kernel run in a race on a GPU: cuBLASLt at its best, and torch where it is installed?

cuBLASLt's heuristic is asked for its first eight algorithms; each is proved like a candidate and the fastest
is the Baseline, so that no win is one over a bad guess of the heuristic. The binding is the client's own
(rooftile.launch.cublaslt, by ctypes): what is raced is what a client falls back to. torch runs only what is
one call of it: a plain product whose operands and result have one type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rooftile.launch.cublaslt import WORKSPACE_BYTES, CublasLt, LtAlgorithm, handle_for
from rooftile.launch.cublaslt_plan import lt_plan
from rooftile.launch.errors import UnsuitableError
from rooftile.plan import Launch, LaunchPlan, Workspace
from rooftile.problem import Gemm, operand_dtype, operand_shape

from worker.measure.cuda_backend import Baseline
from worker.verify.cases import resized
from worker.verify.device_elements import storage

MOST_ALGORITHMS = 8
_TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32", "f64": "float64"}


@dataclass
class Bound:
    """A kernel of the vendor's on its addresses."""

    call: Callable[[], object]

    def run(self) -> None:
        self.call()


def baselines(problem: Gemm) -> list[Baseline]:
    """cuBLASLt's algorithms in the heuristic's order, then torch. UnsuitableError where there is neither."""
    found: list[Baseline] = []
    reason = "torch is not installed"
    try:
        found += _lt_baselines(problem)
    except UnsuitableError as error:
        reason = str(error)
    found += _torch_baselines(problem)
    if not found:
        raise UnsuitableError(f"cuBLASLt: {reason}")
    return found


def stub_plan(family: str, workspace_bytes: int) -> LaunchPlan:
    """What the checks want to know of a kernel that has no LaunchPlan of ours."""
    return LaunchPlan(
        family=family,
        arch="sm_80",
        kind="cuda",
        entries=("vendor",),
        sizes=(),
        steps=(Launch("vendor", (), grid=(1, 1, 1), block=(1, 1, 1)),),
        workspace=Workspace(workspace_bytes),
        deterministic=False,
    )


# -- cuBLASLt -------------------------------------------------------------------------------------------


def _lt_baselines(problem: Gemm) -> list[Baseline]:
    names = problem.plan_names()
    # Addresses as cudaMalloc gives them: the alignment that the timed buffers have.
    operands = ("a", "b", "c", "out", "bias", "residual", "scale_a", "scale_b")
    pointers = dict.fromkeys(operands, 1 << 20)
    lt = handle_for(0)
    matmul = lt.matmul(lt_plan(problem, names), pointers)
    try:
        return [LtBaseline(lt, problem, one) for one in matmul.algorithms(MOST_ALGORITHMS)]
    finally:
        matmul.close()


class LtBaseline:
    """One algorithm of cuBLASLt for one problem."""

    def __init__(self, lt: CublasLt, problem: Gemm, algorithm: LtAlgorithm) -> None:
        self.plan = stub_plan("cublaslt", WORKSPACE_BYTES)
        self.name = f"cublaslt/{algorithm.rank}"
        self._lt, self._problem, self._algorithm = lt, problem, algorithm

    def machine_names(self) -> dict[str, int]:
        return {}

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Bound:
        import cupy

        problem = resized(self._problem, names["m"], names["n"], names["k"], names["batch"])
        matmul = self._lt.matmul(lt_plan(problem, names), pointers)
        given = scalars or {}
        run = matmul.runner(
            self._algorithm,
            given.get("alpha", 1.0),
            given.get("beta", 0.0),
            pointers.get("workspace", 0),
            WORKSPACE_BYTES,
        )
        stream = int(cupy.cuda.get_current_stream().ptr)
        return Bound(lambda: run(stream))

    def facts(self) -> dict[str, Any]:
        return {"library": "cuBLASLt", "version": self._lt.version, **self._algorithm.to_json()}


# -- torch ----------------------------------------------------------------------------------------------


def _torch_baselines(problem: Gemm) -> list[Baseline]:
    epilogue = problem.epilogue
    plain = (
        problem.dtype.a == problem.dtype.b
        and problem.dtype.a in _TORCH
        and (problem.dtype.c == problem.dtype.a or problem.dtype.a == "tf32")
        and problem.beta == "zero"
        and epilogue.bias is None
        and epilogue.activation is None
        and not epilogue.residual
        and problem.layout.c == "mn"
    )
    if not plain:
        return []
    try:
        import torch
    except ImportError:
        return []
    return [TorchBaseline(torch, problem)] if torch.cuda.is_available() else []


class TorchBaseline:
    """torch.matmul into a given result."""

    def __init__(self, torch: Any, problem: Gemm) -> None:
        self.plan = stub_plan("torch", 0)
        self.name = "torch"
        self._torch, self._problem = torch, problem
        torch.backends.cuda.matmul.allow_tf32 = problem.dtype.a == "tf32"

    def machine_names(self) -> dict[str, int]:
        return {}

    def prepare(
        self,
        names: Mapping[str, int],
        pointers: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> Bound:
        import cupy

        if (scalars or {}).get("alpha", 1.0) != 1.0:
            raise UnsuitableError("torch.matmul has no alpha")
        torch = self._torch
        problem = resized(self._problem, names["m"], names["n"], names["k"], names["batch"])
        a, b, out = (self._tensor(cupy, problem, name, names, pointers[name]) for name in ("a", "b", "out"))
        a = a if problem.layout.a == "mk" else a.transpose(-1, -2)
        b = b if problem.layout.b == "kn" else b.transpose(-1, -2)
        stream = torch.cuda.ExternalStream(int(cupy.cuda.get_current_stream().ptr))

        def call() -> None:
            with torch.cuda.stream(stream):
                torch.matmul(a, b, out=out)

        return Bound(call)

    def _tensor(self, cupy: Any, problem: Gemm, name: str, names: Mapping[str, int], address: int) -> Any:
        """A torch view of the memory at an address."""
        dtype = operand_dtype(problem, name)
        shape, words = operand_shape(problem, name), storage(dtype)
        ld, step = names[f"ld_{name}"], names[f"stride_{name}"]
        reach = (problem.batch - 1) * step + (shape[-2] - 1) * ld + shape[-1]
        memory = cupy.cuda.UnownedMemory(address, reach * words.itemsize, self)
        kind = np.dtype(np.int16) if dtype == "bf16" else words  # torch takes no uint16 everywhere
        flat = cupy.ndarray((reach,), kind, cupy.cuda.MemoryPointer(memory, 0))
        tensor = self._torch.from_dlpack(flat).view(getattr(self._torch, _TORCH[dtype]))
        strides = (ld, 1) if len(shape) == 2 else (step, ld, 1)
        return tensor.as_strided(shape, strides)

    def facts(self) -> dict[str, Any]:
        return {"library": "torch", "version": self._torch.__version__, "call": "torch.matmul(a, b, out=out)"}
