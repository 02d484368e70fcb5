"""What runs on a GPU when the vendor's kernel is the best there is, or ours cannot do a call? cuBLASLt.

Called and checked like one of ours. It takes the heuristic's first algorithm; the worker's Baseline races the
first eight. What cuBLASLt has no epilogue for is refused by name, for then there is no vendor's kernel to
fall back to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftile.errors import LaunchError
from rooftile.launch.cuda_arrays import (
    DeviceArray,
    default_stream,
    device_array,
    new_array,
    stream_handle,
)
from rooftile.launch.cuda_call import check_call, check_device_overlap
from rooftile.launch.cuda_runtime import Runtime, cupy_runtime
from rooftile.launch.operands import as_scalar, check_scalars, pitches, plan_names, problem_of
from rooftile.problem import Gemm, operand_dtype, operand_shape

if TYPE_CHECKING:
    from rooftile.launch.cublaslt import LtAlgorithm, LtMatmul

_MOST_KEPT = 64


class CudaBaseline:
    """cuBLASLt for one GEMM problem, with the call of a kernel."""

    def __init__(self, problem: Gemm, *, open_sizes: bool = False, runtime: Runtime | None = None) -> None:
        self.problem = problem
        self._open = open_sizes
        self._runtime = runtime
        self._made: dict[Any, tuple[LtMatmul, LtAlgorithm]] = {}

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Any = None,
        residual: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        stream: Any = None,
    ) -> Any:
        """Enqueue it on the caller's stream; the result array, which is not there yet."""
        runtime = self._runtime = self._runtime or cupy_runtime()
        alpha, beta = as_scalar("alpha", alpha), as_scalar("beta", beta)
        check_scalars(self.problem, alpha, beta)
        given = {"a": a, "b": b, "c": c, "bias": bias, "residual": residual}
        given |= {"scale_a": scale_a, "scale_b": scale_b}
        arrays = {n: device_array(n, x, runtime) for n, x in given.items() if x is not None}
        if "a" not in arrays or "b" not in arrays:
            raise LaunchError(f"{'b' if 'a' in arrays else 'a'} is missing")
        handle = stream_handle(stream)
        if handle is None:
            handle = default_stream(arrays["a"], runtime)
        problem = problem_of(self.problem, arrays["a"], self._open)  # type: ignore[arg-type]
        made = out
        if made is None:
            shape, dtype = operand_shape(problem, "out"), operand_dtype(problem, "out")
            made = new_array(arrays["a"], shape, dtype, lambda: runtime.capturing(handle))
        arrays["out"] = device_array("out", made, runtime)
        check_call(problem, arrays, beta)
        check_device_overlap(arrays)
        if 0 in (problem.m, problem.n, problem.batch):
            return made
        with runtime.on(arrays["a"].device):
            self._run(problem, arrays, alpha, beta, handle)
        return made

    def _run(
        self, problem: Gemm, arrays: dict[str, DeviceArray], alpha: float, beta: float, stream: int
    ) -> None:
        from rooftile.launch.cublaslt import WORKSPACE_BYTES, handle_for
        from rooftile.launch.cublaslt_plan import lt_plan
        from rooftile.launch.cuda import shared_workspaces

        runtime = self._runtime
        assert runtime is not None
        device = arrays["a"].device
        key = (device, tuple((n, x.address, x.shape, x.strides) for n, x in arrays.items()))
        known = self._made.get(key)
        if known is None:
            matrices = {n: x for n, x in arrays.items() if not n.startswith("scale_")}
            operands = {n: pitches(n, x) for n, x in matrices.items()}  # type: ignore[arg-type]
            plan = lt_plan(problem, plan_names(operands, problem))
            matmul = handle_for(device).matmul(plan, {n: x.address for n, x in arrays.items()})
            known = matmul, matmul.algorithms(1)[0]
            if len(self._made) >= _MOST_KEPT:
                self._made.pop(next(iter(self._made)))[0].close()
            self._made[key] = known
        matmul, algorithm = known
        workspace = shared_workspaces(runtime).get(device, stream, WORKSPACE_BYTES)
        run: Callable[[int], None] = matmul.runner(algorithm, alpha, beta, workspace, WORKSPACE_BYTES)
        run(stream)
